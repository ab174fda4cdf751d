// Gathers within SBUF.
#include <algorithm>

#include "core/instructions.h"

namespace core {

namespace {

// Sixteen partitions share one GpSimd core and one list of indices: their index rows, read column by column. An index
// counts elements of the partition, also where several are read from it on.
void local_gather(Call& c) {
  const Tile dst = c.tile(0), src = c.tile(1), index = c.tile(2);
  const i64 each = i64(c.number(3));
  const i64 valid = c.present(4) ? i64(c.number(4)) : index.elements * std::min<i64>(16, index.partitions);
  if (each != 1 && each != 2 && each != 4 && each != 8 && each != 16 && each != 32)
    fail(Category::unsupported, "num_elem_per_idx is " + std::to_string(each) + "; it must be 1, 2, 4, 8, 16 or 32");
  if (valid > 4096) fail(Category::unsupported, "at most 4096 indices per GpSimd core; found " + std::to_string(valid));
  if (dst.elements != valid * each)
    fail(Category::unsupported, "dst holds " + std::to_string(dst.elements) + " elements per partition; " +
                                    std::to_string(valid) + " indices give " + std::to_string(valid * each));
  const bool integers = is_integer(dst.dtype) && is_integer(src.dtype);
  std::vector<float> row(src.elements), out(dst.elements);
  std::vector<i64> exact(dst.elements), indices(valid);
  for (i64 group = 0; group < dst.partitions; group += 16) {
    for (i64 i = 0; i < valid; ++i) {
      indices[i] = read_integer(index, group + i % 16, i / 16);
      if (indices[i] < 0 || indices[i] + each > src.elements)
        fail(Category::out_of_bounds, "index " + std::to_string(indices[i]) + " with " + std::to_string(each) +
                                          " elements leaves src_buffer, which has " + std::to_string(src.elements) +
                                          " per partition");
    }
    for (i64 p = group; p < std::min(group + 16, dst.partitions); ++p) {
      if (integers) {
        for (i64 i = 0; i < dst.elements; ++i) exact[i] = read_integer(src, p, indices[i / each] + i % each);
        write_integers(dst, p, 0, dst.elements, exact.data());
        continue;
      }
      const float* in = read_floats(src, p, 0, src.elements, row.data());
      for (i64 i = 0; i < dst.elements; ++i) out[i] = in[indices[i / each] + i % each];
      write_floats(dst, p, 0, dst.elements, out.data());
    }
  }
}

void n_gather(Call& c) {
  const Tile dst = c.tile(0), data = c.tile(1), indices = c.tile(2);
  std::vector<float> out(dst.elements);
  std::vector<i64> at(dst.elements), exact(dst.elements);
  const bool integers = is_integer(dst.dtype) && is_integer(data.dtype);
  for (i64 p = 0; p < dst.partitions; ++p) {
    for (i64 i = 0; i < dst.elements; ++i) {
      at[i] = read_integer(indices, p, i);
      if (at[i] < 0 || at[i] >= data.elements)
        fail(Category::out_of_bounds, "index " + std::to_string(at[i]) + " leaves data, which has " +
                                          std::to_string(data.elements) + " elements per partition");
    }
    for (i64 i = 0; i < dst.elements; ++i) {
      if (integers)
        exact[i] = read_integer(data, p, at[i]);
      else
        out[i] = read_float(data, p, at[i]);
    }
    if (integers)
      write_integers(dst, p, 0, dst.elements, exact.data());
    else
      write_floats(dst, p, 0, dst.elements, out.data());
  }
}

}  // namespace

void gather_instruction(Call& c) { c.i.opcode == Opcode::local_gather ? local_gather(c) : n_gather(c); }

}  // namespace core
