// Reductions, scans and batch statistics.
#include <algorithm>

#include "core/instructions.h"

namespace core {

namespace {

void tensor_reduce(Call& c) {
  const Tile dst = c.tile(0), data = c.unmerged(2);
  const Alu op = c.alu(1);
  const bool negate = c.flag(4);
  std::vector<i64> axes = c.integers(3);
  const int dims = data.dims;
  std::array<bool, 5> reduced{};
  for (i64 a : axes) {
    if (a < 0) a += dims + 1;
    if (a < 1 || a > dims)
      fail(Category::unsupported,
           "axis " + std::to_string(a) + " cannot be reduced: the operand has free axes 1 to " + std::to_string(dims),
           "the partition axis is reduced by nc_matmul or tensor_partition_reduce");
    reduced[a - 1] = true;
  }
  i64 kept = 1, inner = 1;
  for (int d = 0; d < dims; ++d) (reduced[d] ? inner : kept) *= data.count[d];
  if (kept != dst.elements)
    fail(Category::unsupported, "dst holds " + std::to_string(dst.elements) +
                                    " elements per partition; reducing leaves " + std::to_string(kept));
  // Flat index of (kept position, reduced position): the row is read whole, then gathered if the reduced axes are not
  // last.
  bool trailing = true;
  for (int d = 0; d + 1 < dims; ++d)
    if (reduced[d] && !reduced[d + 1]) trailing = false;
  std::vector<i64> order;
  if (!trailing) {
    order.resize(data.elements);
    std::vector<i64> next(kept, 0);
    for (i64 e = 0; e < data.elements; ++e) {
      i64 rest = e, k = 0, scale = 1;
      for (int d = dims - 1; d >= 0; --d) {
        if (!reduced[d]) {
          k += (rest % data.count[d]) * scale;
          scale *= data.count[d];
        }
        rest /= data.count[d];
      }
      order[k * inner + next[k]++] = e;
    }
  }
  const bool exact = c.i.engine == Engine::gpsimd && is_integer(data.dtype) && is_integer(dst.dtype);
  std::vector<float> row(data.elements), gathered(trailing ? 0 : data.elements), out(kept);
  std::vector<i64> integers(exact ? data.elements : 0), sums(exact ? kept : 0);
  for (i64 p = 0; p < dst.partitions; ++p) {
    if (exact) {
      read_integers(data, p, 0, data.elements, integers.data());
      for (i64 k = 0; k < kept; ++k) {
        i64 r = integers[trailing ? k * inner : order[k * inner]];
        for (i64 i = 1; i < inner; ++i)
          alu_integers(op, &r, &integers[trailing ? k * inner + i : order[k * inner + i]], &r, 1, 64, true);
        sums[k] = negate ? -r : r;
      }
      write_integers(dst, p, 0, kept, sums.data());
      continue;
    }
    const float* in = read_floats(data, p, 0, data.elements, row.data());
    if (!trailing) {
      for (i64 e = 0; e < data.elements; ++e) gathered[e] = in[order[e]];
      in = gathered.data();
    }
    for (i64 k = 0; k < kept; ++k) {
      float r = alu_reduce(op, in + k * inner, inner, alu_identity(op));
      if (op == Alu::average) r /= float(inner);
      out[k] = negate ? -r : r;
    }
    write_floats(dst, p, 0, kept, out.data());
  }
}

void partition_reduce(Call& c) {
  const Tile dst = c.tile(0), data = c.tile(2);
  const Alu op = c.alu(1);
  const i64 n = data.elements;
  std::vector<float> sum(n, alu_identity(op)), row(n);
  for (i64 p = 0; p < data.partitions; ++p) {
    const float* in = read_floats(data, p, 0, n, row.data());
    alu_rows(op == Alu::subtract ? Alu::add : op, sum.data(), in, sum.data(), n);
  }
  write_floats(dst, 0, 0, n, sum.data());
}

// Six values: count, mean and variance times count of the even elements, then of the odd ones.
void bn_stats(Call& c) {
  const Tile dst = c.tile(0), data = c.tile(1);
  std::vector<float> row(data.elements);
  for (i64 p = 0; p < dst.partitions; ++p) {
    const float* in = read_floats(data, p, 0, data.elements, row.data());
    float out[6] = {};
    for (int half = 0; half < 2; ++half) {
      double sum = 0, squares = 0;
      i64 count = 0;
      for (i64 i = half; i < data.elements; i += 2) {
        sum += in[i];
        ++count;
      }
      const double mean = count ? sum / double(count) : 0;
      for (i64 i = half; i < data.elements; i += 2) squares += (in[i] - mean) * (in[i] - mean);
      out[3 * half] = float(count);
      out[3 * half + 1] = float(mean);
      out[3 * half + 2] = float(squares);
    }
    write_floats(dst, p, 0, 6, out);
  }
}

void bn_aggr(Call& c) {
  const Tile dst = c.tile(0), data = c.tile(1);
  std::vector<float> row(data.elements);
  for (i64 p = 0; p < dst.partitions; ++p) {
    const float* in = read_floats(data, p, 0, data.elements, row.data());
    double count = 0, sum = 0, squares = 0;
    for (i64 i = 0; i < data.elements; i += 3) {
      count += in[i];
      sum += double(in[i]) * in[i + 1];
    }
    const double mean = sum / count;
    for (i64 i = 0; i < data.elements; i += 3) squares += in[i + 2] + in[i] * (in[i + 1] - mean) * (in[i + 1] - mean);
    const float out[2] = {float(mean), float(squares / count)};
    write_floats(dst, p, 0, 2, out);
  }
}

// out[i] = u[i] * out[i - 1] + v[i] in several rows at once: each value of a row waits for the one before it, and the
// host computes the other rows' meanwhile.
template <int rows>
void recur(const float* const* u, const float* const* v, float* const* out, float* last, i64 n) {
  for (i64 i = 0; i < n; ++i)
    for (int r = 0; r < rows; ++r) out[r][i] = last[r] = u[r][i] * last[r] + v[r][i];
}

void scan(Call& c) {
  const Tile dst = c.tile(0), a = c.tile(1), b = c.tile(2);
  const Call::Scalar initial = c.scalar(3);
  const Alu op0 = c.alu(4), op1 = c.alu(5);
  const bool reverse0 = c.flag(6), reverse1 = c.flag(7), linear = op0 == Alu::multiply && op1 == Alu::add;
  constexpr i64 most = 4;
  float x[most][chunk], y[most][chunk], z[most][chunk];
  for (i64 p = 0; p < dst.partitions;) {
    const i64 rows = linear && dst.partitions - p >= most ? most : 1;
    float last[most];
    for (i64 r = 0; r < rows; ++r) last[r] = initial.at(p + r);
    for (i64 s = 0; s < dst.elements; s += chunk) {
      const i64 m = std::min(chunk, dst.elements - s);
      const float *u[most], *v[most];
      float* const out[most] = {z[0], z[1], z[2], z[3]};
      for (i64 r = 0; r < rows; ++r) {
        u[r] = read_floats(a, p + r, s, m, x[r]);
        v[r] = read_floats(b, p + r, s, m, y[r]);
      }
      if (rows == most) {
        recur<most>(u, v, out, last, m);
      } else if (linear) {
        recur<1>(u, v, out, last, m);
      } else {
        for (i64 i = 0; i < m; ++i) {
          const float first = reverse0 ? alu_one(op0, last[0], u[0][i]) : alu_one(op0, u[0][i], last[0]);
          z[0][i] = last[0] = reverse1 ? alu_one(op1, v[0][i], first) : alu_one(op1, first, v[0][i]);
        }
      }
      for (i64 r = 0; r < rows; ++r) write_floats(dst, p + r, s, m, z[r]);
    }
    p += rows;
  }
}

// dst[i] = op1(dst[i - 1], op0(src[i], imm0)); reduce_cmd says where the running value comes from.
void cumulative(Call& c) {
  const Tile dst = c.tile(0), src = c.tile(1);
  const Alu op0 = c.alu(2), op1 = c.alu(3);
  const Call::Scalar first = c.scalar(4), second = c.present(5) ? c.scalar(5) : Call::Scalar{};
  const ReduceCommand command = reduce_command(c.text(6));
  std::vector<float> in(src.elements), out(src.elements);
  for (i64 p = 0; p < dst.partitions; ++p) {
    const float* row = read_floats(src, p, 0, src.elements, in.data());
    float last = c.core.vector_accumulator[p];
    if (command == ReduceCommand::reset || command == ReduceCommand::reset_reduce) last = alu_identity(op1);
    if (command == ReduceCommand::load_reduce) last = second.at(p);
    alu_row_scalar(op0, row, first.at(p), out.data(), src.elements, false);
    for (i64 i = 0; i < src.elements; ++i) out[i] = last = alu_one(op1, last, out[i]);
    c.core.vector_accumulator[p] = last;
    write_floats(dst, p, 0, src.elements, out.data());
  }
}

}  // namespace

void reduce_instruction(Call& c) {
  switch (c.i.opcode) {
    case Opcode::tensor_reduce:
      return tensor_reduce(c);
    case Opcode::tensor_partition_reduce:
      return partition_reduce(c);
    case Opcode::bn_stats:
      return bn_stats(c);
    case Opcode::bn_aggr:
      return bn_aggr(c);
    case Opcode::tensor_tensor_scan:
      return scan(c);
    default:
      return cumulative(c);
  }
}

}  // namespace core
