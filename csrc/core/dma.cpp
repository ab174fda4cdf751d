// DMA: copies between memories, transposes, accumulating copies.
#include <algorithm>
#include <cstring>
#include <set>

#include "core/instructions.h"

namespace core {

namespace {

bool absent(const Tile& t, i64 p) { return t.rows && (*t.rows)[p] == Tile::absent; }

void copy_segment(const Tile& dst, i64 dp, i64 de, const Tile& src, i64 sp, i64 se, i64 n) {
  if (dst.dtype == src.dtype || (is_packed(dst.dtype) && dst.bytes == src.bytes) ||
      (is_packed(src.dtype) && dst.bytes == src.bytes)) {
    check_row(src, sp, se, n);
    if (dst.contiguous() && src.contiguous()) {
      std::memmove(dst.row(dp) + de * dst.bytes, src.row(sp) + se * src.bytes, n * dst.bytes);
    } else if (dst.contiguous() && (src.dims == 0 || src.stride[src.dims - 1] == src.bytes)) {  // runs of one side
      u8* to = dst.row(dp) + de * dst.bytes;
      for_runs(src, src.row(sp), se, n,
               [&](u8* at, i64, i64 k, i64 done) { std::memmove(to + done * dst.bytes, at, k * dst.bytes); });
    } else if (src.contiguous() && (dst.dims == 0 || dst.stride[dst.dims - 1] == dst.bytes)) {
      const u8* from = src.row(sp) + se * src.bytes;
      for_runs(dst, dst.row(dp), de, n,
               [&](u8* at, i64, i64 k, i64 done) { std::memmove(at, from + done * dst.bytes, k * dst.bytes); });
    } else {
      thread_local std::vector<u8> buffer;
      buffer.resize(n * dst.bytes);
      auto gather = [&]<class T>(T) {
        for_runs(src, src.row(sp), se, n, [&](u8* at, i64 stride, i64 k, i64 done) {
          T* to = reinterpret_cast<T*>(buffer.data()) + done;
          for (i64 i = 0; i < k; ++i) to[i] = *reinterpret_cast<T*>(at + i * stride);
        });
      };
      auto scatter = [&]<class T>(T) {
        for_runs(dst, dst.row(dp), de, n, [&](u8* at, i64 stride, i64 k, i64 done) {
          const T* from = reinterpret_cast<const T*>(buffer.data()) + done;
          for (i64 i = 0; i < k; ++i) *reinterpret_cast<T*>(at + i * stride) = from[i];
        });
      };
      switch (dst.bytes) {
        case 1:
          gather(u8{});
          scatter(u8{});
          break;
        case 2:
          gather(u16{});
          scatter(u16{});
          break;
        case 4:
          gather(u32{});
          scatter(u32{});
          break;
        default:
          gather(u64{});
          scatter(u64{});
          break;
      }
    }
    mark_row(dst, dp, de, n);
    return;
  }
  if (is_integer(dst.dtype) && is_integer(src.dtype)) {
    std::vector<i64> buffer(n);
    read_integers(src, sp, se, n, buffer.data());
    write_integers(dst, dp, de, n, buffer.data());
  } else {
    std::vector<float> buffer(n);
    write_floats(dst, dp, de, n, read_floats(src, sp, se, n, buffer.data()));
  }
}

}  // namespace

void copy_elements(Core& core, const Tile& dst, const Tile& src) {
  note_hbm(core, src, false);
  note_hbm(core, dst, true);
  const i64 total = dst.partitions * dst.elements;
  i64 dp = 0, de = 0, sp = 0, se = 0;
  for (i64 done = 0; done < total;) {
    const i64 n = std::min({dst.elements - de, src.elements - se, i64(65536)});
    if (!absent(dst, dp) && !absent(src, sp)) copy_segment(dst, dp, de, src, sp, se, n);
    done += n;
    if ((de += n) == dst.elements) {
      de = 0;
      ++dp;
    }
    if ((se += n) == src.elements) {
      se = 0;
      ++sp;
    }
  }
}

namespace {

void check_unique_rows(const Tile& t) {
  if (!t.rows) return;
  std::set<i64> seen;
  for (i64 r : *t.rows)
    if (r != Tile::absent && !seen.insert(r).second)
      fail(Category::undefined_behaviour,
           "race: the vector_offset of '" + std::string(t.operand) +
               "' names one row twice, and both writes are in flight together",
           "pass unique_indices=False, or make the indices distinct");
}

void dma_copy(Call& c) {
  const std::string& mode = c.text(2);
  if (mode != "error" && mode != "skip" && !mode.empty())
    fail(Category::configuration, "'" + mode + "' is not an oob_mode", "use error or skip");
  const bool skip = mode == "skip";
  const Tile dst = c.tile(0, skip), src = c.tile(1, skip);
  if (dst.dtype != src.dtype && c.text(3) == "hwdge" && dst.bytes != src.bytes)
    fail(Category::unsupported,
         "hardware descriptor generation does not convert: src is " + std::string(dtype_names[int(src.dtype)]) +
             ", dst is " + dtype_names[int(dst.dtype)],
         "use equal dtypes, or dge_mode=swdge");
  copy_elements(c.core, dst, src);
}

// An element grid with the partition axis as an ordinary first axis.
struct Grid {
  u8* data;
  std::vector<i64> stride, count;
};

Grid grid_of(const Tile& t) {
  Grid g{t.data, {t.pitch}, {t.partitions}};
  for (int d = 0; d < t.dims; ++d) {
    g.stride.push_back(t.stride[d]);
    g.count.push_back(t.count[d]);
  }
  return g;
}

void dma_transpose(Call& c) {
  const bool skip = c.text(4) == "skip";
  const Tile dst = c.tile(0), src = c.core.resolve(c.i.arguments[1].index, "src", skip, false);
  Grid g = grid_of(src);
  const int dims = int(g.count.size());
  std::vector<i64> axes = c.integers(2);
  if (axes.empty()) {
    if (dims == 4)
      axes = {3, 1, 2, 0};
    else
      for (int d = dims - 1; d >= 0; --d) axes.push_back(d);
  }
  if (int(axes.size()) != dims)
    fail(Category::configuration,
         "axes has " + std::to_string(axes.size()) + " entries for an operand of " + std::to_string(dims) + " axes");
  std::vector<i64> stride, count;
  std::vector<bool> used(dims);
  for (i64 a : axes) {
    if (a < 0 || a >= dims || used[a]) fail(Category::configuration, "axes is not a permutation");
    used[a] = true;
    stride.push_back(g.stride[a]);
    count.push_back(g.count[a]);
  }
  for (i64 p = 0; p < src.partitions; ++p)
    if (!absent(src, p)) check_row(src, p, 0, src.elements);
  note_hbm(c.core, src, false);
  note_hbm(c.core, dst, true);
  const i64 gathered_axis = std::find(axes.begin(), axes.end(), 0) - axes.begin();
  std::vector<u8> row(dst.elements * dst.bytes);
  std::vector<i64> at(dims, 0);
  for (i64 p = 0; p < dst.partitions; ++p) {
    for (i64 e = 0; e < dst.elements; ++e) {
      const u8* from = src.data;
      bool missing = false;
      for (int d = 0; d < dims; ++d) {
        if (src.rows && d == gathered_axis) {
          const i64 r = (*src.rows)[at[d]];
          if (r == Tile::absent)
            missing = true;
          else
            from += r;
        } else
          from += at[d] * stride[d];
      }
      if (missing)
        std::memset(&row[e * dst.bytes], 0, dst.bytes);
      else
        std::memcpy(&row[e * dst.bytes], from, dst.bytes);
      for (int d = dims - 1; d >= 0; --d) {
        if (++at[d] < count[d]) break;
        at[d] = 0;
      }
    }
    for_runs(dst, dst.row(p), 0, dst.elements, [&](u8* to, i64 step, i64 n, i64 done) {
      for (i64 i = 0; i < n; ++i) std::memcpy(to + i * step, &row[(done + i) * dst.bytes], dst.bytes);
    });
    mark_row(dst, p, 0, dst.elements);
  }
}

// dst = reduce over k of scales[k] * srcs[k]; row by row, so that repeated indices accumulate when they are allowed.
void dma_compute(Call& c) {
  const bool skip = c.text(5) == "skip";
  const Tile dst = c.tile(0, skip);
  const Alu op = c.alu(2);
  std::vector<Tile> srcs;
  for (const Value& v : c.list(1)) {
    if (v.kind != ValueKind::access) fail(Category::configuration, "srcs must be a list of tensors");
    srcs.push_back(c.core.resolve(i32(v.payload), "srcs", skip));
    note_hbm(c.core, srcs.back(), false);
  }
  if (srcs.empty() || srcs.size() > 16)
    fail(Category::unsupported, "dma_compute takes 1 to 16 sources; found " + std::to_string(srcs.size()));
  std::vector<float> scales(srcs.size(), 1.0f);
  if (c.present(3)) {
    const auto& given = c.list(3);
    if (given.size() != srcs.size())
      fail(Category::configuration,
           "scales has " + std::to_string(given.size()) + " entries for " + std::to_string(srcs.size()) + " sources");
    for (std::size_t k = 0; k < given.size(); ++k) scales[k] = float(c.real_of(given[k]));
  }
  if (c.flag(4)) check_unique_rows(dst);
  for (const Tile& s : srcs)
    if (s.partitions * s.elements != dst.partitions * dst.elements)
      fail(Category::unsupported, "a source holds " + std::to_string(s.partitions * s.elements) + " elements, dst " +
                                      std::to_string(dst.partitions * dst.elements));
  note_hbm(c.core, dst, true);
  float in[chunk], sum[chunk];
  std::vector<std::array<i64, 2>> at(srcs.size(), {0, 0});
  for (i64 p = 0; p < dst.partitions; ++p)
    for (i64 e = 0; e < dst.elements;) {
      i64 n = std::min(chunk, dst.elements - e);
      for (std::size_t k = 0; k < srcs.size(); ++k) n = std::min(n, srcs[k].elements - at[k][1]);
      bool missing = absent(dst, p);
      for (std::size_t k = 0; k < srcs.size(); ++k) missing = missing || absent(srcs[k], at[k][0]);
      for (std::size_t k = 0; k < srcs.size(); ++k) {
        if (!missing) {
          const float* row = read_floats(srcs[k], at[k][0], at[k][1], n, in);
          if (k == 0)
            alu_row_scalar(Alu::multiply, row, scales[0], sum, n, false);
          else {
            if (scales[k] != 1.0f) {
              alu_row_scalar(Alu::multiply, row, scales[k], in, n, false);
              row = in;
            }
            alu_rows(op, sum, row, sum, n);
          }
        }
        if ((at[k][1] += n) == srcs[k].elements) at[k] = {at[k][0] + 1, 0};
      }
      if (!missing) write_floats(dst, p, e, n, sum);
      e += n;
    }
}

}  // namespace

void dma_instruction(Call& c) {
  switch (c.i.opcode) {
    case Opcode::dma_copy:
      return dma_copy(c);
    case Opcode::dma_transpose:
      return dma_transpose(c);
    default:
      return dma_compute(c);
  }
}

}  // namespace core
