// MX formats: blocks of 8 partitions x 4 packed values share one power-of-two scale (e8m0).
//
// Scale layout: the four blocks of a 32-partition quadrant keep their scales in the quadrant's first four partitions
// (of the scale operand), one byte per packed column. A scale operand of whole quadrants gets zeros in the other 28;
// one that starts inside a quadrant shares it with others, and nothing else of it is touched.
#include <algorithm>
#include <cmath>

#include "core/gemm.h"
#include "core/instructions.h"

namespace core {

void accumulate_into_psum(Call& c, const Tile& dst, const float* product, bool given, bool accumulate);

namespace {

i64 scale_row(i64 partition) { return partition / 32 * 32 + partition % 32 / 8; }

void clear_unused(const Tile& scale, i64 columns) {
  if (scale.first_partition % 32 || scale.partitions % 32) return;
  Tile raw = scale;
  raw.dtype = Dtype::uint8;
  const std::vector<i64> zeros(columns, 0);
  for (i64 p = 0; p < scale.partitions; ++p)
    if (p % 32 >= 4) write_integers(raw, p, 0, columns, zeros.data());
}

void quantize(Call& c) {
  const Tile dst = c.tile(0), src = c.tile(1), scale = c.tile(2);
  const i64 columns = dst.elements;
  clear_unused(scale, columns);
  const int largest = x4_largest_exponent(dst.dtype);
  std::vector<float> buffer(4 * columns), block(8 * 4 * columns);
  std::vector<u8> packed(columns * dst.bytes);
  for (i64 first = 0; first < src.partitions; first += 8) {
    std::vector<float> peak(columns, 0.0f);
    for (i64 p = 0; p < 8; ++p) {
      const float* row = read_floats(src, first + p, 0, 4 * columns, buffer.data());
      std::copy(row, row + 4 * columns, &block[p * 4 * columns]);
      for (i64 e = 0; e < 4 * columns; ++e) peak[e / 4] = std::max(peak[e / 4], std::fabs(row[e]));
    }
    std::vector<i64> codes(columns);
    std::vector<float> inverse(columns);
    for (i64 e = 0; e < columns; ++e) {
      // OCP: 2^(floor(log2 amax) - Emax); a block of zeros takes the smallest scale.
      const int exponent = peak[e] > 0 ? std::clamp(std::ilogb(peak[e]) - largest, -127, 127) : -127;
      codes[e] = exponent + 127;
      inverse[e] = std::ldexp(1.0f, -exponent);
    }
    Tile raw = scale;
    raw.dtype = Dtype::uint8;
    write_integers(raw, scale_row(first), 0, columns, codes.data());
    for (i64 p = 0; p < 8; ++p) {
      float* row = &block[p * 4 * columns];
      const float limit = dst.dtype == Dtype::float8_e4m3fn_x4 ? 448.0f
                          : dst.dtype == Dtype::float8_e5m2_x4 ? 57344.0f
                                                               : 6.0f;
      for (i64 e = 0; e < 4 * columns; ++e) row[e] = std::clamp(row[e] * inverse[e / 4], -limit, limit);
      pack_x4(dst.dtype, row, columns, packed.data(), dst.bytes);
      for_runs(dst, dst.row(first + p), 0, columns, [&](u8* at, i64 stride, i64 n, i64 done) {
        for (i64 i = 0; i < n; ++i) std::copy_n(&packed[(done + i) * dst.bytes], dst.bytes, at + i * stride);
      });
      mark_row(dst, first + p, 0, columns);
    }
  }
}

// [4 K, columns]: the four packed values of a partition become four contraction rows, scaled.
void expand(const Tile& t, const Tile& scale, std::vector<float>& out) {
  const i64 columns = t.elements;
  std::vector<float> values(4 * columns), factor(columns);
  std::vector<i64> codes(columns);
  out.resize(t.partitions * 4 * columns);
  Tile raw = scale;
  raw.dtype = Dtype::uint8;
  for (i64 p = 0; p < t.partitions; ++p) {
    check_row(t, p, 0, columns);
    for_runs(t, t.row(p), 0, columns,
             [&](u8* at, i64 stride, i64 n, i64 done) { unpack_x4(t.dtype, at, stride, n, &values[4 * done]); });
    read_integers(raw, scale_row(p), 0, columns, codes.data());
    for (i64 e = 0; e < columns; ++e) factor[e] = codes[e] == 255 ? NAN : std::ldexp(1.0f, int(codes[e]) - 127);
    for (int k = 0; k < 4; ++k)
      for (i64 e = 0; e < columns; ++e) out[(4 * p + k) * columns + e] = values[4 * e + k] * factor[e];
  }
}

}  // namespace

void mx_instruction(Call& c) {
  if (c.i.opcode == Opcode::quantize_mx) return quantize(c);
  const Tile dst = c.tile(0), stationary = c.tile(1), moving = c.tile(2), scale_s = c.tile(3), scale_m = c.tile(4);
  std::vector<float> a, b, product(dst.partitions * dst.elements);
  expand(stationary, scale_s, a);
  expand(moving, scale_m, b);
  gemm(dst.partitions, dst.elements, 4 * stationary.partitions, a.data(), stationary.elements, b.data(),
       moving.elements, product.data(), dst.elements, false);
  accumulate_into_psum(c, dst, product.data(), c.present(7), c.flag(7));
}

}  // namespace core
