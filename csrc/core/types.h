// The vocabulary every layer of the core shares: dtypes, memories, engines.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/error.h"

namespace core {

using i64 = std::int64_t;
using i32 = std::int32_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using u16 = std::uint16_t;
using u8 = std::uint8_t;

enum class Dtype : u8 {
  float32,
  tfloat32,
  bfloat16,
  float16,
  float8_e4m3,
  float8_e4m3fn,
  float8_e5m2,
  float8_e3m4,
  float8_e8m0fnu,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  boolean,
  float64,
  float8_e4m3fn_x4,
  float8_e5m2_x4,
  float4_e2m1fn_x4,
  count
};
inline constexpr int dtype_count = int(Dtype::count);
inline constexpr std::array<const char*, dtype_count> dtype_names = {
    "float32",        "tfloat32",        "bfloat16",    "float16",        "float8_e4m3",
    "float8_e4m3fn",  "float8_e5m2",     "float8_e3m4", "float8_e8m0fnu", "int8",
    "int16",          "int32",           "int64",       "uint8",          "uint16",
    "uint32",         "uint64",          "bool",        "float64",        "float8_e4m3fn_x4",
    "float8_e5m2_x4", "float4_e2m1fn_x4"};
inline constexpr std::array<int, dtype_count> dtype_bytes = {4, 4, 2, 2, 1, 1, 1, 1, 1, 1, 2,
                                                             4, 8, 1, 2, 4, 8, 1, 8, 4, 4, 2};

inline int size_of(Dtype d) { return dtype_bytes[int(d)]; }
inline bool is_integer(Dtype d) { return d >= Dtype::int8 && d <= Dtype::boolean; }
inline bool is_packed(Dtype d) { return d >= Dtype::float8_e4m3fn_x4; }
inline bool is_float8(Dtype d) { return d >= Dtype::float8_e4m3 && d <= Dtype::float8_e3m4; }
inline bool is_16bit_float(Dtype d) { return d == Dtype::bfloat16 || d == Dtype::float16; }
Dtype dtype_from_name(const std::string& name);

enum class Space : u8 { hbm, sbuf, psum };
inline constexpr std::array<const char*, 3> space_names = {"hbm", "sbuf", "psum"};

// The order of the NKI enum nki.isa.engine, so that numbers in kernels mean the same.
enum class Engine : u8 { unknown, tensor, scalar, gpsimd, dma, vector, sync, count };
inline constexpr int engine_count = int(Engine::count);
inline constexpr std::array<const char*, engine_count> engine_names = {"unknown", "tensor", "scalar", "gpsimd",
                                                                       "dma",     "vector", "sync"};

inline constexpr int partitions_max = 128;

inline i64 ceil_div(i64 a, i64 b) { return a >= 0 ? (a + b - 1) / b : -((-a) / b); }
inline i64 floor_div(i64 a, i64 b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

}  // namespace core
