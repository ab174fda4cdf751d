#include "core/gemm.h"

#include <algorithm>
#include <cstring>

namespace core {

namespace {

// Fortran's sgemm: everything by address, column-major.
template <class Int>
using Sgemm = void (*)(const char*, const char*, const Int*, const Int*, const Int*, const float*, const float*,
                       const Int*, const float*, const Int*, const float*, float*, const Int*);

std::uintptr_t hook = 0, hook_threads = 0;
bool hook_wide = false;

// Row-major C = A^T B is column-major C^T = B^T A, and each row-major matrix is its own transpose in column-major.
template <class Int>
void call(i64 m, i64 n, i64 k, const float* a, i64 lda, const float* b, i64 ldb, float* c, i64 ldc, bool accumulate) {
  const Int columns = Int(n), rows_out = Int(m), depth = Int(k), b_pitch = Int(ldb), a_pitch = Int(lda),
            c_pitch = Int(ldc);
  const float one = 1.0f, beta = accumulate ? 1.0f : 0.0f;
  reinterpret_cast<Sgemm<Int>>(hook)("N", "T", &columns, &rows_out, &depth, &one, b, &b_pitch, a, &a_pitch, &beta, c,
                                     &c_pitch);
}

constexpr int rows = 4, lanes = 16;
typedef float Vector __attribute__((vector_size(32), aligned(4)));

// 4 x 16 results in registers over the whole of K.
__attribute__((target_clones("avx2", "default"))) void kernel(i64 k, const float* a, i64 lda, const float* b, i64 ldb,
                                                              float* c, i64 ldc, bool accumulate) {
  Vector sum[rows][2] = {};
  for (i64 i = 0; i < k; ++i) {
    const Vector b0 = *reinterpret_cast<const Vector*>(b + i * ldb),
                 b1 = *reinterpret_cast<const Vector*>(b + i * ldb + 8);
    for (int r = 0; r < rows; ++r) {
      const float x = a[i * lda + r];
      sum[r][0] += b0 * x;
      sum[r][1] += b1 * x;
    }
  }
  for (int r = 0; r < rows; ++r) {
    Vector* out = reinterpret_cast<Vector*>(c + r * ldc);
    out[0] = accumulate ? out[0] + sum[r][0] : sum[r][0];
    out[1] = accumulate ? out[1] + sum[r][1] : sum[r][1];
  }
}

void edge(i64 m, i64 n, i64 k, const float* a, i64 lda, const float* b, i64 ldb, float* c, i64 ldc, bool accumulate) {
  for (i64 i = 0; i < m; ++i)
    for (i64 j = 0; j < n; ++j) {
      float s = 0;
      for (i64 x = 0; x < k; ++x) s += a[x * lda + i] * b[x * ldb + j];
      c[i * ldc + j] = accumulate ? c[i * ldc + j] + s : s;
    }
}

}  // namespace

void set_gemm_hook(std::uintptr_t function, bool wide, std::uintptr_t threads) {
  hook = function;
  hook_wide = wide;
  hook_threads = threads;
}
bool has_gemm_hook() { return hook != 0; }

SingleThreadedProducts::SingleThreadedProducts() {
  if (hook_threads) before_ = reinterpret_cast<int (*)(int)>(hook_threads)(1);
}
SingleThreadedProducts::~SingleThreadedProducts() {
  if (hook_threads && before_ >= 0) reinterpret_cast<int (*)(int)>(hook_threads)(before_);
}

void gemm(i64 m, i64 n, i64 k, const float* a, i64 lda, const float* b, i64 ldb, float* c, i64 ldc, bool accumulate) {
  if (hook) {
    if (hook_wide)
      call<i64>(m, n, k, a, lda, b, ldb, c, ldc, accumulate);
    else
      call<int>(m, n, k, a, lda, b, ldb, c, ldc, accumulate);
    return;
  }
  const i64 full_m = m - m % rows, full_n = n - n % lanes;
  for (i64 j = 0; j < full_n; j += lanes)
    for (i64 i = 0; i < full_m; i += rows) kernel(k, a + i, lda, b + j, ldb, c + i * ldc + j, ldc, accumulate);
  if (full_n < n) edge(full_m, n - full_n, k, a, lda, b + full_n, ldb, c + full_n, ldc, accumulate);
  if (full_m < m) edge(m - full_m, n, k, a + full_m, lda, b, ldb, c + full_m * ldc, ldc, accumulate);
}

}  // namespace core
