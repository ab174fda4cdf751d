// C = A^T B (+ C): the one matrix product of the core. A hook takes a library's sgemm; the own kernel needs none.
#pragma once
#include "core/types.h"

namespace core {

// C[m, n] (+)= sum over k of A[k, m] * B[k, n]; rows `lda`, `ldb`, `ldc` floats apart; FP32 throughout.
void gemm(i64 m, i64 n, i64 k, const float* a, i64 lda, const float* b, i64 ldb, float* c, i64 ldc, bool accumulate);

// `function` is Fortran's sgemm with 32-bit (wide = false) or 64-bit integers; 0 returns to the own kernel.
// `threads` is a function int(int) that sets the library's threads and returns what they were, or 0.
void set_gemm_hook(std::uintptr_t function, bool wide, std::uintptr_t threads);
bool has_gemm_hook();

// While one lives, the library's products run on one thread each: the core brings its own. What was set comes back.
class SingleThreadedProducts {
 public:
  SingleThreadedProducts();
  ~SingleThreadedProducts();
  SingleThreadedProducts(const SingleThreadedProducts&) = delete;

 private:
  int before_ = -1;
};

}  // namespace core
