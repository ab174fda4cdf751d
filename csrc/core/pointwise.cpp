// Elementwise instructions of the Vector and Scalar engines.
#include <algorithm>
#include <cmath>

#include "core/instructions.h"

namespace core {

namespace {

// f(p, start, n, row of `a`, out); the result goes to dst.
template <class F>
void each_row(const Tile& dst, const Tile& a, F&& f) {
  float in[chunk], out[chunk];
  for (i64 p = 0; p < dst.partitions; ++p)
    for (i64 s = 0; s < dst.elements; s += chunk) {
      const i64 m = std::min(chunk, dst.elements - s);
      const float* row = read_floats(a, p, s, m, in);
      float* place = float_row(dst, p, s);
      float* target = place ? place : out;
      f(p, s, m, row, target);
      write_floats(dst, p, s, m, target);
    }
}

bool all_integer(std::initializer_list<const Tile*> tiles) {
  return std::all_of(tiles.begin(), tiles.end(), [](const Tile* t) { return is_integer(t->dtype); });
}

// GpSimd computes integers exactly; bit operations do so on every engine. Everything else goes through fp32.
bool exact_integers(const Call& c, Alu a, Alu b, std::initializer_list<const Tile*> tiles) {
  return is_bitwise(a) || (b != Alu::none && is_bitwise(b)) || (c.i.engine == Engine::gpsimd && all_integer(tiles));
}

void tensor_tensor(Call& c) {
  const Tile dst = c.tile(0), a = c.tile(1), b = c.tile(2);
  const Alu op = c.alu(3);
  if (exact_integers(c, op, Alu::none, {&dst, &a, &b})) {
    i64 x[chunk], y[chunk];
    for (i64 p = 0; p < dst.partitions; ++p)
      for (i64 s = 0; s < dst.elements; s += chunk) {
        const i64 m = std::min(chunk, dst.elements - s);
        read_integers(a, p, s, m, x);
        read_integers(b, p, s, m, y);
        alu_integers(op, x, y, x, m, 8 * a.bytes,
                     a.dtype == Dtype::int8 || a.dtype == Dtype::int16 || a.dtype == Dtype::int32);
        write_integers(dst, p, s, m, x, is_bitwise(op) || dst.bytes == 4);  // 32-bit arithmetic wraps
      }
    return;
  }
  float other[chunk];
  each_row(dst, a, [&](i64 p, i64 s, i64 m, const float* row, float* out) {
    alu_rows(op, row, read_floats(b, p, s, m, other), out, m);
  });
}

void tensor_scalar(Call& c) {
  const Tile dst = c.tile(0), data = c.tile(1);
  const Alu op0 = c.alu(2), op1 = c.alu(5);
  const Call::Scalar first = c.scalar(3), second = c.present(6) ? c.scalar(6) : Call::Scalar{};
  const bool reverse0 = c.flag(4), reverse1 = c.flag(7);
  if (op1 != Alu::none && !c.present(6) && !is_unary(op1))
    fail(Category::configuration, "op1 is given without operand1");
  if (exact_integers(c, op0, op1, {&dst, &data})) {
    i64 x[chunk], y[chunk];
    const int bits = 8 * data.bytes;
    for (i64 p = 0; p < dst.partitions; ++p)
      for (i64 s = 0; s < dst.elements; s += chunk) {
        const i64 m = std::min(chunk, dst.elements - s);
        read_integers(data, p, s, m, x);
        auto step = [&](Alu op, const Call::Scalar& operand, bool reverse, int index) {
          const i64 v = operand.is_tile ? operand.integer(p) : i64(c.number(index));
          std::fill(y, y + m, v);
          alu_integers(op, reverse ? y : x, reverse ? x : y, x, m, bits, true);
        };
        step(op0, first, reverse0, 3);
        if (op1 != Alu::none) step(op1, second, reverse1, 6);
        write_integers(dst, p, s, m, x, is_bitwise(op0) || is_bitwise(op1) || dst.bytes == 4);
      }
    return;
  }
  each_row(dst, data, [&](i64 p, i64, i64 m, const float* row, float* out) {
    alu_row_scalar(op0, row, first.at(p), out, m, reverse0);
    if (op1 != Alu::none) alu_row_scalar(op1, out, second.at(p), out, m, reverse1);
  });
}

void tensor_scalar_reduce(Call& c) {
  const Tile dst = c.tile(0), data = c.tile(1), result = c.tile(5);
  const Alu op = c.alu(2), reduce = c.alu(4);
  const Call::Scalar operand = c.scalar(3);
  const bool reverse = c.flag(6), negate = c.flag(9);
  Accumulator accumulator(c.core.vector_accumulator, reduce, reduce_command(c.text(7)));
  for (i64 p = 0; p < dst.partitions; ++p) {
    if (accumulator.command() == ReduceCommand::load_reduce) accumulator.load(p, float(c.number(8)));
    accumulator.begin(p);
  }
  each_row(dst, data, [&](i64 p, i64, i64 m, const float* row, float* out) {
    alu_row_scalar(op, row, operand.at(p), out, m, reverse);
    accumulator.feed(p, out, m);
  });
  for (i64 p = 0; p < dst.partitions; ++p) {
    const float v = negate ? -accumulator.value(p) : accumulator.value(p);
    write_floats(result, p, 0, 1, &v);
  }
}

void scalar_tensor_tensor(Call& c) {
  const Tile dst = c.tile(0), data = c.tile(1), other = c.tile(5);
  const Alu op0 = c.alu(2), op1 = c.alu(4);
  const Call::Scalar operand = c.scalar(3);
  const bool reverse0 = c.flag(6), reverse1 = c.flag(7);
  float b[chunk], between[chunk];
  each_row(dst, data, [&](i64 p, i64 s, i64 m, const float* row, float* out) {
    const float* right = read_floats(other, p, s, m, b);
    // `out` may be the memory of operand1
    alu_row_scalar(op0, row, operand.at(p), between, m, reverse0);
    if (reverse1)
      alu_rows(op1, right, between, out, m);
    else
      alu_rows(op1, between, right, out, m);
  });
}

void refuse_out_of_range(Activation f, const float* row, i64 n) {
  float low, high;
  if (f == Activation::sin || !activation_range(f, low, high)) return;  // sin extrapolates
  for (i64 i = 0; i < n; ++i)
    if (!(row[i] >= low && row[i] <= high) && !(row[i] == 0 && f != Activation::log))
      fail(Category::undefined_behaviour,
           "the activation function is defined on [" + std::to_string(low) + ", " + std::to_string(high) +
               "] and received " + std::to_string(row[i]),
           "bring the input into range, or switch activation_ranges off");
}

void activation(Call& c) {
  const bool always_reduces = c.i.opcode == Opcode::activation_reduce;
  const Tile dst = c.tile(0), data = c.tile(2);
  const Activation f = c.function(1);
  const int bias_at = always_reduces ? 5 : 3, scale_at = always_reduces ? 6 : 4, op_at = always_reduces ? 3 : 5,
            result_at = always_reduces ? 4 : 6;
  const Call::Scalar bias = c.present(bias_at) ? c.scalar(bias_at) : Call::Scalar{}, scale = c.scalar(scale_at);
  const bool ranges = c.core.rank.options.activation_ranges;
  const ReduceCommand command = always_reduces ? ReduceCommand::reset_reduce : reduce_command(c.text(7));
  const Alu reduce = c.present(op_at) ? c.alu(op_at) : Alu::add;
  Accumulator accumulator(c.core.scalar_accumulator, reduce, command);
  const bool reduces = command != ReduceCommand::idle;
  if (reduces)
    for (i64 p = 0; p < dst.partitions; ++p) {
      if (command == ReduceCommand::load_reduce && c.present(result_at))
        accumulator.load(p, read_float(c.tile(result_at), p));
      accumulator.begin(p);
    }
  const bool plain = !bias.is_tile && !scale.is_tile && scale.value == 1.0f;
  each_row(dst, data, [&](i64 p, i64, i64 m, const float* row, float* out) {
    if (!plain) {
      const float k = scale.at(p), b = bias.is_tile ? bias.at(p) : 0.0f;
      for (i64 i = 0; i < m; ++i) out[i] = row[i] * k + b;
      row = out;
    }
    if (ranges) refuse_out_of_range(f, row, m);
    activation_row(f, row, out, m, ranges);
    if (reduces) accumulator.feed(p, out, m);
  });
  if (!c.present(result_at)) return;
  const Tile result = c.tile(result_at);
  for (i64 p = 0; p < dst.partitions; ++p) {
    const float v = accumulator.value(p);
    write_floats(result, p, 0, 1, &v);
  }
}

void activate2(Call& c) {
  const Tile dst = c.tile(0), data = c.tile(2);
  const Call::Scalar first = c.scalar(3), second = c.scalar(4);
  const Alu op0 = c.alu(5), op1 = c.alu(6);
  const float slope = float(c.number(7));
  const bool reverse0 = c.flag(8), reverse1 = c.flag(9), ranges = c.core.rank.options.activation_ranges;
  const Activation f = c.function(1);
  const ReduceCommand command = reduce_command(c.text(12));
  Accumulator accumulator(c.core.scalar_accumulator, c.present(10) ? c.alu(10) : Alu::add, command);
  for (i64 p = 0; p < dst.partitions; ++p) accumulator.begin(p);
  each_row(dst, data, [&](i64 p, i64, i64 m, const float* row, float* out) {
    alu_row_scalar(op0, row, first.at(p), out, m, reverse0);
    alu_row_scalar(op1, out, second.at(p), out, m, reverse1);
    if (f == Activation::prelu || f == Activation::leaky_relu)
      for (i64 i = 0; i < m; ++i) out[i] = out[i] > 0 ? out[i] : out[i] * slope;
    else
      activation_row(f, out, out, m, ranges);
    accumulator.feed(p, out, m);
  });
  if (!c.present(11)) return;
  const Tile result = c.tile(11);
  for (i64 p = 0; p < dst.partitions; ++p) {
    const float v = accumulator.value(p);
    write_floats(result, p, 0, 1, &v);
  }
}

// exp(src - max_value), with the sum in the Vector engine's accumulators.
void exponential(Call& c) {
  const Tile dst = c.tile(0), src = c.tile(1);
  const Call::Scalar maximum = c.scalar(2);
  const ReduceCommand command = reduce_command(c.text(4));
  Accumulator accumulator(c.core.vector_accumulator, Alu::add, command);
  for (i64 p = 0; p < dst.partitions; ++p) {
    if (command == ReduceCommand::load_reduce) accumulator.load(p, float(c.number(5)));
    accumulator.begin(p);
  }
  each_row(dst, src, [&](i64 p, i64, i64 m, const float* row, float* out) {
    alu_row_scalar(Alu::subtract, row, maximum.at(p), out, m, false);
    activation_row(Activation::exp, out, out, m, false);
    accumulator.feed(p, out, m);
  });
  if (!c.present(3)) return;
  const Tile result = c.tile(3);
  for (i64 p = 0; p < dst.partitions; ++p) {
    const float v = accumulator.value(p);
    write_floats(result, p, 0, 1, &v);
  }
}

}  // namespace

void pointwise_instruction(Call& c) {
  switch (c.i.opcode) {
    case Opcode::tensor_tensor:
      return tensor_tensor(c);
    case Opcode::tensor_scalar:
      return tensor_scalar(c);
    case Opcode::tensor_scalar_reduce:
      return tensor_scalar_reduce(c);
    case Opcode::scalar_tensor_tensor:
      return scalar_tensor_tensor(c);
    case Opcode::activate2:
      return activate2(c);
    case Opcode::exponential:
      return exponential(c);
    case Opcode::reciprocal: {
      const Tile dst = c.tile(0), data = c.tile(1);
      return each_row(dst, data, [&](i64, i64, i64 m, const float* row, float* out) {
        for (i64 i = 0; i < m; ++i) out[i] = 1.0f / row[i];
      });
    }
    default:
      return activation(c);
  }
}

}  // namespace core
