// Searching and sorting within a partition.
#include <algorithm>
#include <numeric>

#include "core/instructions.h"
#include "core/vectorised.h"

namespace core {

namespace {

constexpr i64 block = 32;  // elements that are looked at together before any of them is looked at alone

// The eight largest of a row of at least eight, descending. Most blocks hold nothing above the eighth so far.
CORE_VECTORISED void largest8(const float* row, i64 n, float* best) {
  std::copy(row, row + 8, best);
  std::sort(best, best + 8, std::greater<float>());
  for (i64 start = 8; start < n; start += block) {
    const i64 stop = std::min(n, start + block);
    int above = 0;
    for (i64 i = start; i < stop; ++i) above |= row[i] > best[7];
    if (!above) continue;
    for (i64 i = start; i < stop; ++i) {
      if (!(row[i] > best[7])) continue;
      int at = 7;
      for (; at > 0 && row[i] > best[at - 1]; --at) best[at] = best[at - 1];
      best[at] = row[i];
    }
  }
}

// The first place from `from` on that holds `value`; n: none.
CORE_VECTORISED i64 first_equal(const float* row, i64 from, i64 n, float value) {
  for (i64 start = from; start < n; start += block) {
    const i64 stop = std::min(n, start + block);
    int equal = 0;
    for (i64 i = start; i < stop; ++i) equal |= row[i] == value;
    if (equal) return std::find(row + start, row + stop, value) - row;
  }
  return n;
}

void max8(Call& c) {
  const Tile dst = c.tile(0), src = c.tile(1);
  std::vector<float> buffer(src.elements);
  for (i64 p = 0; p < dst.partitions; ++p) {
    const float* row = read_floats(src, p, 0, src.elements, buffer.data());
    float best[8];
    largest8(row, src.elements, best);
    write_floats(dst, p, 0, 8, best);
  }
}

i64 all_ones(const Tile& t) { return t.bytes == 4 ? i64(0xffffffff) : t.bytes == 2 ? 0xffff : 0xff; }

// Equal values take successive occurrences.
void find_index8(Call& c) {
  const Tile dst = c.tile(0), data = c.tile(1), vals = c.tile(2);
  std::vector<float> buffer(data.elements);
  for (i64 p = 0; p < dst.partitions; ++p) {
    const float* row = read_floats(data, p, 0, data.elements, buffer.data());
    float wanted[8], scratch[8];
    const float* w = read_floats(vals, p, 0, 8, scratch);
    std::copy(w, w + 8, wanted);
    i64 found[8];
    for (int k = 0; k < 8; ++k) {
      i64 from = 0;
      for (int j = 0; j < k; ++j)
        if (wanted[j] == wanted[k] && found[j] != all_ones(dst)) from = std::max(from, found[j] + 1);
      const i64 at = first_equal(row, from, data.elements, wanted[k]);
      found[k] = at < data.elements ? at : all_ones(dst);
    }
    write_integers(dst, p, 0, 8, found, true);
  }
}

// The eight values are handled from the last to the first; each takes its first occurrence that is still there.
void match_replace8(Call& c) {
  const Tile dst = c.tile(0), data = c.tile(1), vals = c.tile(2);
  const float imm = float(c.number(3));
  std::vector<float> buffer(data.elements), row(data.elements);
  std::vector<u8> taken(data.elements);
  for (i64 p = 0; p < dst.partitions; ++p) {
    const float* in = read_floats(data, p, 0, data.elements, buffer.data());
    std::copy(in, in + data.elements, row.begin());
    std::fill(taken.begin(), taken.end(), 0);
    float scratch[8];
    const float* wanted = read_floats(vals, p, 0, 8, scratch);
    i64 found[8];
    for (int k = 7; k >= 0; --k) {
      found[k] = c.present(4) ? all_ones(c.tile(4)) : -1;
      for (i64 i = 0; i < data.elements; ++i)
        if (!taken[i] && in[i] == wanted[k]) {
          taken[i] = 1;
          row[i] = imm;
          found[k] = i;
          break;
        }
    }
    if (c.present(4)) write_integers(c.tile(4), p, 0, 8, found, true);
    write_floats(dst, p, 0, data.elements, row.data());
  }
}

void topk(Call& c) {
  const Tile values = c.tile(0), indices = c.tile(1), src = c.tile(2);
  const i64 n = i64(c.number(3));
  if (n > src.elements)
    fail(Category::out_of_bounds, "n = " + std::to_string(n) + " values of " + std::to_string(src.elements));
  std::vector<float> buffer(src.elements), best(n);
  std::vector<i64> order(src.elements), chosen(n);
  for (i64 p = 0; p < src.partitions; ++p) {
    const float* row = read_floats(src, p, 0, src.elements, buffer.data());
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + n, order.end(),
                      [&](i64 a, i64 b) { return row[a] > row[b] || (row[a] == row[b] && a < b); });
    for (i64 k = 0; k < n; ++k) {
      best[k] = row[order[k]];
      chosen[k] = order[k];
    }
    write_floats(values, p, 0, n, best.data());
    write_integers(indices, p, 0, n, chosen.data());
  }
}

// Indices of the nonzero elements, then padding; the last element of dst is their number.
void nonzero_with_count(Call& c) {
  const Tile dst = c.tile(0), src = c.tile(1);
  const i64 offset = i64(c.number(2)), padding = i64(c.number(3));
  std::vector<float> buffer(src.elements);
  std::vector<i64> out(dst.elements);
  // each GpSimd core handles its first partition; the other fifteen keep their contents
  for (i64 p = 0; p < std::min(dst.partitions, src.partitions); p += 16) {
    const float* row = read_floats(src, p, 0, src.elements, buffer.data());
    i64 count = 0;
    std::fill(out.begin(), out.end(), padding);
    for (i64 i = 0; i < src.elements; ++i)
      if (row[i] != 0) out[count++] = i + offset;
    out.back() = count;
    write_integers(dst, p, 0, dst.elements, out.data());
  }
}

// For each element the start and end of its run of equal ids; id 0 is padding: start = n, end = -1.
void sequence_bounds(Call& c) {
  const Tile dst = c.tile(0), ids = c.tile(1);
  const i64 n = ids.elements;
  std::vector<float> buffer(n), out(2 * n);
  for (i64 p = 0; p < dst.partitions; ++p) {
    const float* row = read_floats(ids, p, 0, n, buffer.data());
    for (i64 i = 0; i < n;) {
      i64 end = i;
      while (end < n && row[end] == row[i]) ++end;
      for (i64 k = i; k < end; ++k) {
        out[k] = row[i] == 0 ? float(n) : float(i);
        out[n + k] = row[i] == 0 ? -1.0f : float(end);
      }
      i = end;
    }
    write_floats(dst, p, 0, 2 * n, out.data());
  }
}

}  // namespace

void search_instruction(Call& c) {
  switch (c.i.opcode) {
    case Opcode::max8:
      return max8(c);
    case Opcode::nc_find_index8:
      return find_index8(c);
    case Opcode::nc_match_replace8:
      return match_replace8(c);
    case Opcode::topk:
      return topk(c);
    case Opcode::nonzero_with_count:
      return nonzero_with_count(c);
    default:
      return sequence_bounds(c);
  }
}

}  // namespace core
