// Instructions that move or make values without arithmetic: memset, iota, copies, shuffles, transposes.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/instructions.h"

namespace core {

namespace {

void tensor_begin(Call& c) {
  const Tile t = c.tile(0);
  const Buffer& buffer = c.core.plan().program->buffers[t.buffer];
  const bool check = c.core.rank.options.check_uninitialised;
  for (i64 p = 0; p < t.partitions; ++p) {
    u8* row = t.row(p);
    const u64 at = u64(row - t.region->base), n = u64(t.elements) * t.bytes;
    // Pinned SBUF tensors may name memory that another tensor filled on purpose; only a fresh tile is surely empty.
    if (!buffer.pinned && check) mark_unwritten(*t.region, at, n);
    if (!check && !all_written(*t.region, at, n)) {
      fill_unwritten(row, n, t.dtype);
      mark_written(*t.region, at, n);
    }
  }
  if (t.begun) std::fill(t.begun->bits.begin(), t.begun->bits.end(), u8(0));
}

void memset_tile(Call& c) {
  const Tile t = c.tile(0);
  const double value = c.number(1);
  if (t.space == Space::hbm) note_hbm(c.core, t, true);
  if (is_packed(t.dtype)) {
    if (value != 0) fail(Category::unsupported, "memset of a packed type takes 0 only");
    for (i64 p = 0; p < t.partitions; ++p) {
      for_runs(t, t.row(p), 0, t.elements, [&](u8* at, i64 stride, i64 n, i64) {
        for (i64 k = 0; k < n; ++k) std::memset(at + k * stride, 0, t.bytes);
      });
      mark_row(t, p, 0, t.elements);
    }
    return;
  }
  const i64 n = std::min(t.elements, chunk);
  float floats[chunk];
  i64 integers[chunk];
  const bool whole = is_integer(t.dtype) && value == std::floor(value);
  if (whole)
    std::fill(integers, integers + n, i64(value));
  else
    std::fill(floats, floats + n, float(value));
  for (i64 p = 0; p < t.partitions; ++p)
    for (i64 s = 0; s < t.elements; s += chunk) {
      const i64 m = std::min(chunk, t.elements - s);
      if (whole)
        write_integers(t, p, s, m, integers, true);
      else
        write_floats(t, p, s, m, floats);
    }
}

void iota(Call& c) {
  const Tile t = c.tile(0);
  const i64 offset = i64(c.number(2)), channel = i64(c.number(3));
  std::vector<std::array<i64, 2>> pattern;
  for (const Value& v : c.list(1)) {
    const auto& pair = c.sublist(v);
    pattern.push_back({c.number_of(pair.at(0)), c.number_of(pair.at(1))});
  }
  i64 total = 1;
  for (auto& p : pattern) total *= p[1];
  if (total != t.elements)
    fail(Category::configuration, "the pattern makes " + std::to_string(total) + " values, dst holds " +
                                      std::to_string(t.elements) + " per partition");
  std::vector<i64> row(t.elements);
  std::vector<float> floats(t.elements);
  for (i64 p = 0; p < t.partitions; ++p) {
    for (i64 e = 0; e < t.elements; ++e) {
      i64 v = offset + p * channel, rest = e;
      for (int d = int(pattern.size()) - 1; d >= 0; --d) {
        v += (rest % pattern[d][1]) * pattern[d][0];
        rest /= pattern[d][1];
      }
      row[e] = v;
      floats[e] = float(v);
    }
    if (is_integer(t.dtype))
      write_integers(t, p, 0, t.elements, row.data(), true);
    else
      write_floats(t, p, 0, t.elements, floats.data());
  }
}

void copy_row(const Tile& dst, i64 dp, const Tile& src, i64 sp) {
  const i64 n = dst.elements;
  if (dst.dtype == src.dtype) {
    check_row(src, sp, 0, n);
    if (dst.contiguous() && src.contiguous())
      std::memmove(dst.row(dp), src.row(sp), n * dst.bytes);
    else if (!is_packed(dst.dtype) && dst.bytes == 4) {
      for (i64 s = 0; s < n; s += chunk) {
        u32 buffer[chunk];
        const i64 m = std::min(chunk, n - s);
        for_runs(src, src.row(sp), s, m, [&](u8* at, i64 stride, i64 k, i64 done) {
          for (i64 i = 0; i < k; ++i) buffer[done + i] = *reinterpret_cast<u32*>(at + i * stride);
        });
        for_runs(dst, dst.row(dp), s, m, [&](u8* at, i64 stride, i64 k, i64 done) {
          for (i64 i = 0; i < k; ++i) *reinterpret_cast<u32*>(at + i * stride) = buffer[done + i];
        });
      }
    } else {
      std::vector<u8> buffer(n * dst.bytes);
      for_runs(src, src.row(sp), 0, n, [&](u8* at, i64 stride, i64 k, i64 done) {
        for (i64 i = 0; i < k; ++i) std::memcpy(&buffer[(done + i) * src.bytes], at + i * stride, src.bytes);
      });
      for_runs(dst, dst.row(dp), 0, n, [&](u8* at, i64 stride, i64 k, i64 done) {
        for (i64 i = 0; i < k; ++i) std::memcpy(at + i * stride, &buffer[(done + i) * dst.bytes], dst.bytes);
      });
    }
    mark_row(dst, dp, 0, n);
    return;
  }
  for (i64 s = 0; s < n; s += chunk) {
    const i64 m = std::min(chunk, n - s);
    if (is_integer(dst.dtype) && is_integer(src.dtype)) {
      i64 buffer[chunk];
      read_integers(src, sp, s, m, buffer);
      write_integers(dst, dp, s, m, buffer);
    } else {
      float buffer[chunk];
      write_floats(dst, dp, s, m, read_floats(src, sp, s, m, buffer));
    }
  }
}

void tensor_copy(Call& c) {
  const Tile dst = c.tile(0), src = c.tile(1);
  for (i64 p = 0; p < dst.partitions; ++p) copy_row(dst, p, src, p);
}

void copy_predicated(Call& c) {
  const Tile dst = c.tile(0), predicate = c.tile(2);
  const Call::Scalar src = c.scalar(1);
  const bool reverse = c.flag(3);
  float a[chunk], b[chunk], q[chunk];
  const bool broadcast = src.is_tile && src.tile.elements == 1 && dst.elements != 1;
  for (i64 p = 0; p < dst.partitions; ++p)
    for (i64 s = 0; s < dst.elements; s += chunk) {
      const i64 m = std::min(chunk, dst.elements - s);
      const float* mask = read_floats(predicate, p, s, m, q);
      const float* in = nullptr;
      float value = src.value;
      if (src.is_tile && broadcast)
        value = read_float(src.tile, p);
      else if (src.is_tile)
        in = read_floats(src.tile, p, s, m, a);
      i64 i = 0;
      // Unselected elements keep their value, written or not: only runs of selected ones are stored.
      while (i < m) {
        if ((mask[i] != 0) == reverse) {
          ++i;
          continue;
        }
        const i64 first = i;
        while (i < m && (mask[i] != 0) != reverse) {
          b[i - first] = in ? in[i] : value;
          ++i;
        }
        if (is_integer(dst.dtype) && src.is_tile && is_integer(src.tile.dtype) && !broadcast) {
          std::vector<i64> exact(i - first);
          read_integers(src.tile, p, s + first, i - first, exact.data());
          write_integers(dst, p, s + first, i - first, exact.data());
        } else {
          write_floats(dst, p, s + first, i - first, b);
        }
      }
    }
}

void stream_shuffle(Call& c) {
  const Tile dst = c.tile(0), src = c.tile(1);
  const std::vector<i64> mask = c.integers(2);
  if (mask.size() != 32)
    fail(Category::configuration, "shuffle_mask has " + std::to_string(mask.size()) + " entries instead of 32");
  const i64 n = dst.elements;
  // All rows are read before any is written: dst may be src.
  std::vector<u8> rows(32 * n * dst.bytes);
  std::vector<float> buffer(n);
  for (i64 group = 0; group < dst.partitions; group += 32) {
    const i64 size = std::min<i64>(32, dst.partitions - group);
    Tile scratch = dst;
    Region region{rows.data(), rows.size(), nullptr, false};
    scratch.region = &region;
    scratch.rows = nullptr;
    scratch.data = rows.data();
    scratch.pitch = n * dst.bytes;
    scratch.dims = 1;
    scratch.stride[0] = dst.bytes;
    scratch.count[0] = n;
    for (i64 k = 0; k < size; ++k) {
      if (mask[k] == 255) continue;  // leave that partition
      if (mask[k] < 0 || mask[k] >= 32)
        fail(Category::out_of_bounds, "shuffle_mask entry " + std::to_string(mask[k]) + " is neither 0..31 nor 255");
      if (group + mask[k] >= src.partitions)
        fail(Category::out_of_bounds,
             "shuffle_mask entry " + std::to_string(mask[k]) + " is beyond the partitions of src");
      copy_row(scratch, k, src, group + mask[k]);
    }
    for (i64 k = 0; k < size; ++k)
      if (mask[k] != 255) copy_row(dst, group + k, scratch, k);
  }
}

void transpose(Call& c) {
  const Tile dst = c.tile(0), src = c.tile(1);
  const i64 rows = src.partitions, columns = src.elements;
  std::vector<float> buffer(columns), out(rows * columns);
  for (i64 p = 0; p < rows; ++p) {
    const float* row = read_floats(src, p, 0, columns, buffer.data());
    for (i64 e = 0; e < columns; ++e) out[e * rows + p] = row[e];
  }
  if (is_integer(src.dtype) && size_of(src.dtype) == 4) {  // 32-bit integers do not survive fp32
    std::vector<i64> exact(columns), all(rows * columns);
    for (i64 p = 0; p < rows; ++p) {
      read_integers(src, p, 0, columns, exact.data());
      for (i64 e = 0; e < columns; ++e) all[e * rows + p] = exact[e];
    }
    for (i64 e = 0; e < columns; ++e) write_integers(dst, e, 0, rows, &all[e * rows]);
    return;
  }
  for (i64 e = 0; e < columns; ++e) write_floats(dst, e, 0, rows, &out[e * rows]);
}

}  // namespace

void move_instruction(Call& c) {
  switch (c.i.opcode) {
    case Opcode::tensor_begin:
      return tensor_begin(c);
    case Opcode::memset:
      return memset_tile(c);
    case Opcode::iota:
      return iota(c);
    case Opcode::tensor_copy_predicated:
      return copy_predicated(c);
    case Opcode::nc_stream_shuffle:
      return stream_shuffle(c);
    case Opcode::nc_transpose:
      return transpose(c);
    default:
      return tensor_copy(c);
  }
}

}  // namespace core
