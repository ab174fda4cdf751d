// nc_matmul: stationary^T x moving into PSUM.
#include <algorithm>
#include <cstring>

#include "core/gemm.h"
#include "core/instructions.h"

namespace core {

namespace {

struct Matrix {
  const float* data;
  i64 pitch;
};

// The operand as float rows [K, columns]; in place where it already is float32 rows.
Matrix as_floats(const Tile& t, std::vector<float>& buffer) {
  const i64 k = t.partitions, n = t.elements;
  for (i64 p = 0; p < k; ++p) check_row(t, p, 0, n);
  if (t.dtype == Dtype::float32 && t.contiguous() && !t.rows && t.pitch > 0)
    return {reinterpret_cast<const float*>(t.data), t.pitch / 4};
  buffer.resize(k * n);
  for (i64 p = 0; p < k; ++p) {
    float* to = &buffer[p * n];
    const float* row = read_floats(t, p, 0, n, to, false);
    if (row != to) std::copy(row, row + n, to);
  }
  return {buffer.data(), n};
}

// The moving operand of the last matmul as floats: the next one often takes the same tile with another stationary.
// Valid only from one instruction to the next of one run of steps.
struct Converted {
  const Core* core = nullptr;
  i64 step = -1;
  const u8* data = nullptr;
  Dtype dtype = Dtype::float32;
  i64 partitions = 0, elements = 0, pitch = 0;
  std::array<i64, 4> stride{}, count{};
  std::vector<float> values;
  bool holds(const Core& c, const Tile& t) const {
    return core == &c && step + 1 == c.steps && data == t.data && dtype == t.dtype && partitions == t.partitions &&
           elements == t.elements && pitch == t.pitch && stride == t.stride && count == t.count && !t.rows;
  }
  void keep(const Core& c, const Tile& t) {
    core = &c;
    data = t.data;
    dtype = t.dtype;
    partitions = t.partitions;
    elements = t.elements;
    pitch = t.pitch;
    stride = t.stride;
    count = t.count;
  }
};
thread_local Converted converted;

// A permutation matrix moves data exactly, infinities and NaN included (the transpose mode of the Tensor engine).
// source[n] = the k with m[k][n] == 1, or false.
bool permutation(const Matrix& m, i64 k, i64 n, std::vector<i64>& source) {
  source.assign(n, -1);
  for (i64 i = 0; i < k; ++i)
    for (i64 j = 0; j < n; ++j) {
      const float x = m.data[i * m.pitch + j];
      if (x == 0) continue;
      if (x != 1 || source[j] >= 0) return false;
      source[j] = i;
    }
  return std::find(source.begin(), source.end(), -1) == source.end();
}

}  // namespace

namespace {
bool begun_at(const Tile& t, const u8* at, u64 n) {
  return all_written({nullptr, 0, t.begun->bits.data(), false}, t.begun->place(at), n);
}

// Whether no byte of [at, at + n) has begun.
bool none_begun(const Tile& t, const u8* at, u64 n) {
  const std::vector<u8>& bits = t.begun->bits;
  u64 k = t.begun->place(at);
  const u64 end = k + n;
  for (; k < end && k % 8; ++k)
    if (bits[k / 8] >> (k % 8) & 1) return false;
  for (; k + 64 <= end; k += 64) {
    u64 word;
    std::memcpy(&word, &bits[k / 8], 8);
    if (word) return false;
  }
  for (; k < end; ++k)
    if (bits[k / 8] >> (k % 8) & 1) return false;
  return true;
}
}  // namespace

void accumulate_into_psum(Call& c, const Tile& dst, const float* product, bool given, bool accumulate) {
  (void)c;
  const i64 n = dst.elements;
  std::vector<float> old(n), sum(n);
  for (i64 p = 0; p < dst.partitions; ++p) {
    const float* row = product + p * n;
    if (given && !accumulate) {
      write_floats(dst, p, 0, n, row);
      continue;
    }
    const u64 bytes = u64(n) * dst.bytes;
    if (!given && dst.contiguous() && none_begun(dst, dst.row(p), bytes)) {
      write_floats(dst, p, 0, n, row);
      continue;
    }
    if (given || (dst.contiguous() && begun_at(dst, dst.row(p), bytes))) {
      const float* before = read_floats(dst, p, 0, n, old.data());
      for (i64 i = 0; i < n; ++i) sum[i] = before[i] + row[i];
    } else {
      for_runs(dst, dst.row(p), 0, n, [&](u8* at, i64 stride, i64 count, i64 done) {
        for (i64 i = 0; i < count; ++i) {
          float before = 0;
          if (begun_at(dst, at + i * stride, dst.bytes)) load_floats(dst.dtype, at + i * stride, dst.bytes, 1, &before);
          sum[done + i] = row[done + i] + before;
        }
      });
    }
    write_floats(dst, p, 0, n, sum.data());
  }
}

namespace {

// Whether a whole tile has begun to accumulate (1), has not (0), or partly (-1).
int accumulation_state(const Tile& dst) {
  bool all = true, any = false;
  for (i64 p = 0; p < dst.partitions; ++p) {
    if (begun_at(dst, dst.row(p), u64(dst.elements) * dst.bytes)) {
      any = true;
      continue;
    }
    all = false;
    any = any || !none_begun(dst, dst.row(p), u64(dst.elements) * dst.bytes);
  }
  return all ? 1 : any ? -1 : 0;
}

}  // namespace

void forget_converted() { converted.core = nullptr; }

void matmul_instruction(Call& c) {
  const Tile dst = c.tile(0), stationary = c.tile(1), moving = c.tile(2);
  if (!dst.partitions || !dst.elements) return;
  thread_local std::vector<float> left, right, product;
  Matrix a = as_floats(stationary, left), b;
  if (moving.dtype == Dtype::float32) {
    b = as_floats(moving, right);
  } else {
    if (!converted.holds(c.core, moving)) {
      converted.core = nullptr;
      as_floats(moving, converted.values);
      converted.keep(c.core, moving);
    }
    converted.step = c.core.steps;
    b = {converted.values.data(), moving.elements};
  }
  i64 k = stationary.partitions;
  const i64 m = dst.partitions, n = dst.elements;
  const bool double_row = c.text(9).rfind("double_row", 0) == 0;
  const bool given = c.present(6), accumulate = c.flag(6);
  if (double_row) {  // [K, 2, M] and [K, 2, N]: two contraction rows per partition
    product.resize(m * n);
    gemm(m, n, k, a.data, a.pitch, b.data, b.pitch, product.data(), n, false);
    gemm(m, n, k, a.data + m, a.pitch, b.data + n, b.pitch, product.data(), n, true);
    return accumulate_into_psum(c, dst, product.data(), given, accumulate);
  }
  if (c.flag(5)) {
    std::vector<i64> source;
    product.resize(m * n);
    if (permutation(b, k, n, source)) {
      for (i64 j = 0; j < n; ++j)
        for (i64 i = 0; i < m; ++i) product[i * n + j] = a.data[source[j] * a.pitch + i];
      return accumulate_into_psum(c, dst, product.data(), given, accumulate);
    }
    if (permutation(a, k, m, source)) {
      for (i64 i = 0; i < m; ++i) std::copy_n(b.data + source[i] * b.pitch, n, &product[i * n]);
      return accumulate_into_psum(c, dst, product.data(), given, accumulate);
    }
  }
  if (dst.dtype == Dtype::float32 && dst.contiguous() && dst.pitch > 0) {
    const int state = given ? int(accumulate) : accumulation_state(dst);
    if (state >= 0) {
      if (state)
        for (i64 p = 0; p < m; ++p) check_row(dst, p, 0, n);
      gemm(m, n, k, a.data, a.pitch, b.data, b.pitch, reinterpret_cast<float*>(dst.data), dst.pitch / 4, state == 1);
      for (i64 p = 0; p < m; ++p) mark_row(dst, p, 0, n);
      return;
    }
  }
  product.resize(m * n);
  gemm(m, n, k, a.data, a.pitch, b.data, b.pitch, product.data(), n, false);
  accumulate_into_psum(c, dst, product.data(), given, accumulate);
}

}  // namespace core
