// C = A^T B (+ C): the one matrix product of the core. A hook takes a library's sgemm; the own kernel needs none.
#pragma once
#include "core/types.h"

namespace core {

// C[m, n] (+)= sum over k of A[k, m] * B[k, n]; rows `lda`, `ldb`, `ldc` floats apart; FP32 throughout.
void gemm(i64 m, i64 n, i64 k, const float* a, i64 lda, const float* b, i64 ldb, float* c, i64 ldc, bool accumulate);

// `function` is Fortran's sgemm with 32-bit (wide = false) or 64-bit integers; 0 returns to the own kernel.
// `threads` is a function void(int) that makes the calling thread's library calls single-threaded, or 0.
void set_gemm_hook(std::uintptr_t function, bool wide, std::uintptr_t threads);
bool has_gemm_hook();

}  // namespace core
