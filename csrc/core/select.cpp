// Selections by predicate, range or affine condition.
#include <algorithm>
#include <array>

#include "core/instructions.h"

namespace core {

namespace {

void finish(const Accumulator& a, Call& c, int result_at, i64 partitions) {
  if (!c.present(result_at)) return;
  const Tile result = c.tile(result_at);
  for (i64 p = 0; p < partitions; ++p) {
    const float v = a.value(p);
    write_floats(result, p, 0, 1, &v);
  }
}

void select_reduce(Call& c) {
  const Tile dst = c.tile(0), predicate = c.tile(1), on_true = c.tile(2);
  const bool tile_false = c.is_tile(3), reverse = c.flag(7);
  const Tile on_false = tile_false ? c.tile(3) : Tile{};
  const bool broadcast = tile_false && on_false.elements == 1 && dst.elements != 1;
  const Call::Scalar value = tile_false && !broadcast ? Call::Scalar{} : c.scalar(3);
  Accumulator accumulator(c.core.vector_accumulator, c.alu(6), reduce_command(c.text(5)));
  float q[chunk], a[chunk], b[chunk], out[chunk];
  for (i64 p = 0; p < dst.partitions; ++p) {
    if (accumulator.command() == ReduceCommand::load_reduce) accumulator.load(p, read_float(c.tile(4), p));
    accumulator.begin(p);
    for (i64 s = 0; s < dst.elements; s += chunk) {
      const i64 m = std::min(chunk, dst.elements - s);
      const float *mask = read_floats(predicate, p, s, m, q), *yes = read_floats(on_true, p, s, m, a);
      const float* no = tile_false && !broadcast ? read_floats(on_false, p, s, m, b) : nullptr;
      for (i64 i = 0; i < m; ++i) out[i] = (mask[i] != 0) != reverse ? yes[i] : no ? no[i] : value.at(p);
      accumulator.feed(p, out, m);
      write_floats(dst, p, s, m, out);
    }
  }
  finish(accumulator, c, 4, dst.partitions);
}

void range_select(Call& c) {
  const Tile dst = c.tile(0), data = c.tile(1);
  const Alu op0 = c.alu(2), op1 = c.alu(3);
  const Call::Scalar low = c.scalar(4), high = c.scalar(5);
  const double start = c.number(9);
  const float other = float(c.number(10));
  Accumulator accumulator(c.core.vector_accumulator, c.alu(8), reduce_command(c.text(6)));
  float in[chunk], index[chunk], first[chunk], second[chunk], out[chunk];
  for (i64 p = 0; p < dst.partitions; ++p) {
    if (accumulator.command() == ReduceCommand::load_reduce && c.present(7))
      accumulator.load(p, read_float(c.tile(7), p));
    accumulator.begin(p);
    for (i64 s = 0; s < dst.elements; s += chunk) {
      const i64 m = std::min(chunk, dst.elements - s);
      const float* row = read_floats(data, p, s, m, in);
      for (i64 i = 0; i < m; ++i) index[i] = float(start + double(s + i));
      alu_row_scalar(op0, index, low.at(p), first, m, false);
      alu_row_scalar(op1, index, high.at(p), second, m, false);
      for (i64 i = 0; i < m; ++i) out[i] = first[i] != 0 && second[i] != 0 ? row[i] : other;
      accumulator.feed(p, out, m);
      write_floats(dst, p, s, m, out);
    }
  }
  finish(accumulator, c, 7, dst.partitions);
}

void affine_select(Call& c) {
  const Tile dst = c.tile(0), data = c.tile(3);
  const i64 channel = i64(c.number(2)), offset = i64(c.number(6));
  const float other = float(c.number(4));
  const Alu op = c.alu(5);
  std::vector<std::array<i64, 2>> pattern;
  i64 total = 1;
  for (const Value& v : c.list(1)) {
    const auto& pair = c.sublist(v);
    pattern.push_back({c.number_of(pair.at(0)), c.number_of(pair.at(1))});
    total *= pattern.back()[1];
  }
  if (total != dst.elements)
    fail(Category::configuration, "the pattern has " + std::to_string(total) + " values, dst holds " +
                                      std::to_string(dst.elements) + " per partition");
  std::vector<float> index(total), hit(total), in(total), out(total);
  for (i64 e = 0; e < total; ++e) {
    i64 v = 0, rest = e;
    for (int d = int(pattern.size()) - 1; d >= 0; --d) {
      v += (rest % pattern[d][1]) * pattern[d][0];
      rest /= pattern[d][1];
    }
    index[e] = float(v);
  }
  for (i64 p = 0; p < dst.partitions; ++p) {
    const float* row = read_floats(data, p, 0, total, in.data());
    alu_row_scalar(Alu::add, index.data(), float(offset + p * channel), hit.data(), total, false);
    alu_row_scalar(op, hit.data(), 0.0f, hit.data(), total, false);
    for (i64 e = 0; e < total; ++e) out[e] = hit[e] != 0 ? row[e] : other;
    write_floats(dst, p, 0, total, out.data());
  }
}

}  // namespace

void select_instruction(Call& c) {
  switch (c.i.opcode) {
    case Opcode::select_reduce:
      return select_reduce(c);
    case Opcode::range_select:
      return range_select(c);
    default:
      return affine_select(c);
  }
}

}  // namespace core
