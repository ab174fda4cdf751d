// Conversion between stored elements and the ALU's fp32 (or exact integers): rows, vectorised.
//
// Float casts round to nearest even and agree bit for bit with ml_dtypes (overflow: infinity where the format has one,
// else NaN). Integer casts round to nearest even and saturate; NaN becomes 0.
#pragma once
#include "core/types.h"

namespace core {

// `stride` in bytes between elements. Packed (x4) types have no scalar value: use unpack_x4.
void load_floats(Dtype dtype, const u8* from, i64 stride, i64 n, float* to);
void store_floats(Dtype dtype, const float* from, i64 n, u8* to, i64 stride);
void load_integers(Dtype dtype, const u8* from, i64 stride, i64 n, i64* to);
void store_integers(Dtype dtype, const i64* from, i64 n, u8* to, i64 stride);  // saturates
void store_integers_wrapping(Dtype dtype, const i64* from, i64 n, u8* to, i64 stride);

// Four values per packed element, first value in the lowest bits.
void unpack_x4(Dtype packed, const u8* from, i64 stride, i64 n, float* to);
void pack_x4(Dtype packed, const float* from, i64 n, u8* to, i64 stride);
int x4_largest_exponent(Dtype packed);  // Emax of the element format: 8 (e4m3fn), 15 (e5m2), 2 (e2m1fn)

float bfloat16_round(float x);
float tfloat32_round(float x);

}  // namespace core
