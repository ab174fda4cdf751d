#include "core/dtype.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/vectorised.h"

namespace core {

Dtype dtype_from_name(const std::string& name) {
  for (int i = 0; i < dtype_count; ++i)
    if (name == dtype_names[i]) return Dtype(i);
  fail(Category::unsupported, "'" + name + "' is not a dtype of the NeuronCore",
       "use one of float32, tfloat32, bfloat16, float16, float8_*, int8..int32, uint8..uint32, bool");
}

namespace {

u32 bits_of(float x) { return std::bit_cast<u32>(x); }
float float_of(u32 x) { return std::bit_cast<float>(x); }

// A small float format: 1 sign, `exponent_bits`, `mantissa_bits`. style: 0 IEEE (infinity), 1 "fn" (no infinity, NaN =
// all ones), 2 finite only (saturates).
struct Small {
  int exponent_bits, mantissa_bits, bias, style;
};
constexpr Small small_formats[] = {{4, 3, 7, 0}, {4, 3, 7, 1}, {5, 2, 15, 0}, {3, 4, 3, 0}};
constexpr Small float4 = {2, 1, 1, 2};

float decode_small(u32 code, const Small& f) {
  const int m = f.mantissa_bits, e = f.exponent_bits;
  const u32 sign = (code >> (m + e)) & 1, exponent = (code >> m) & ((1u << e) - 1), mantissa = code & ((1u << m) - 1);
  const u32 top = (1u << e) - 1;
  float value;
  if (f.style == 0 && exponent == top)
    value = mantissa ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  else if (f.style == 1 && exponent == top && mantissa == (1u << m) - 1)
    value = std::numeric_limits<float>::quiet_NaN();
  else if (exponent == 0)
    value = std::ldexp(float(mantissa), 1 - f.bias - m);
  else
    value = std::ldexp(float(mantissa | (1u << m)), int(exponent) - f.bias - m);
  return sign ? -value : value;
}

u32 encode_small(float x, const Small& f) {
  const int m = f.mantissa_bits, e = f.exponent_bits;
  const u32 input = bits_of(x), sign = (input >> 31) << (m + e), magnitude = input & 0x7fffffff;
  const u32 top = ((1u << e) - 1) << m;
  const u32 infinity = top, quiet = f.style == 0 ? top | (1u << (m - 1)) : top | ((1u << m) - 1);
  const u32 largest = f.style == 0 ? top - 1 : f.style == 1 ? (top | ((1u << m) - 1)) - 1 : top | ((1u << m) - 1);
  if (magnitude > 0x7f800000) return f.style == 2 ? (1u << (m + e)) : sign | quiet;
  u32 code;
  const int exponent = int(magnitude >> 23) - 127;
  if (magnitude == 0x7f800000) {
    code = largest + 1;
  } else if (exponent < 1 - f.bias) {
    // Subnormal: the quantum is 2^(1 - bias - m); adding 1.5 * 2^23 quanta rounds to nearest even.
    const float quantum = std::ldexp(1.0f, 1 - f.bias - m);
    const float scaled = float_of(magnitude) / quantum;
    code = u32(scaled + 12582912.0f - 12582912.0f);
  } else {
    const int drop = 23 - m;
    const u32 rounded = magnitude + ((1u << (drop - 1)) - 1) + ((magnitude >> drop) & 1);
    code = (rounded >> drop) - (u32(127 - f.bias) << m);
  }
  if (code > largest) code = f.style == 0 ? infinity : f.style == 1 ? quiet : largest;
  return sign | code;
}

struct Tables {
  float small[4][256];
  float float4_values[16];
  Tables() {
    for (int f = 0; f < 4; ++f)
      for (int c = 0; c < 256; ++c) small[f][c] = decode_small(c, small_formats[f]);
    for (int c = 0; c < 16; ++c) float4_values[c] = decode_small(c, float4);
  }
};
const Tables tables;

float half_to_float(u16 h) {
  const u32 sign = u32(h & 0x8000) << 16, rest = h & 0x7fff;
  // Multiplying by 2^112 rebiases normals and subnormals alike; infinity and NaN are repaired.
  float x = float_of(rest << 13) * 5.192296858534828e33f;
  u32 r = bits_of(x);
  r = rest >= 0x7c00 ? (rest << 13) | 0x7f800000 : r;
  return float_of(r | sign);
}

u16 float_to_half(float value) {
  const u32 x = bits_of(value), sign = (x >> 16) & 0x8000, magnitude = x & 0x7fffffff;
  const u32 rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  const u32 normal = (rounded - 0x38000000) >> 13;
  const u32 subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000;
  u32 code = magnitude < 0x38800000 ? subnormal : normal;
  code = rounded >= 0x47800000 ? 0x7c00 : code;
  code = magnitude > 0x7f800000 ? 0x7e00 : code;
  return u16(sign | code);
}

u16 float_to_bfloat(float value) {
  const u32 x = bits_of(value);
  const u32 rounded = (x + 0x7fff + ((x >> 16) & 1)) >> 16;
  return u16((x & 0x7fffffff) > 0x7f800000 ? ((x >> 16) & 0x8000) | 0x7fc0 : rounded);
}

float e8m0_to_float(u8 code) {
  return code == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, int(code) - 127);
}

u8 float_to_e8m0(float x) {  // nearest power of two; zero, negative and NaN have no code
  const u32 b = bits_of(x);
  if ((b >> 31) || !(x > 0) || (b & 0x7fffffff) >= 0x7f800000) return 255;
  const u32 rounded = b + 0x3fffff + ((b >> 23) & 1);
  return u8(rounded >> 23);
}

template <class T, class F>
inline void load_as(const u8* from, i64 stride, i64 n, F&& put) {
  if (stride == i64(sizeof(T))) {
    const T* p = reinterpret_cast<const T*>(from);
    for (i64 i = 0; i < n; ++i) put(i, p[i]);
  } else {
    for (i64 i = 0; i < n; ++i) put(i, *reinterpret_cast<const T*>(from + i * stride));
  }
}

template <class T, class F>
inline void store_as(u8* to, i64 stride, i64 n, F&& get) {
  if (stride == i64(sizeof(T))) {
    T* p = reinterpret_cast<T*>(to);
    for (i64 i = 0; i < n; ++i) p[i] = get(i);
  } else {
    for (i64 i = 0; i < n; ++i) *reinterpret_cast<T*>(to + i * stride) = get(i);
  }
}

template <class T>
inline T saturate(float x) {
  // float(max) of a 32-bit type rounds up to the power of two, so >= is exact for every width.
  if (!(x == x)) return 0;
  if (x <= float(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  if (x >= float(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  return T(std::lrintf(x));  // nearest even
}

template <class T>
void store_saturated(const float* from, i64 n, u8* to, i64 stride) {
  store_as<T>(to, stride, n, [&](i64 i) { return saturate<T>(from[i]); });
}

template <class T>
T clamp_integer(i64 x) {
  if constexpr (sizeof(T) == 8)
    return T(x);
  else {
    if (x < i64(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
    if (x > i64(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
    return T(x);
  }
}

[[noreturn]] void no_scalar(Dtype d) {
  fail(Category::unsupported,
       std::string("elements of ") + dtype_names[int(d)] + " cannot be read as numbers by this instruction",
       "only nc_matmul_mx, quantize_mx and copies of equal dtype take packed types");
}

}  // namespace

float bfloat16_round(float x) { return float_of(u32(float_to_bfloat(x)) << 16); }

float tfloat32_round(float x) {
  const u32 b = bits_of(x);
  if ((b & 0x7fffffff) >= 0x7f800000) return x;
  return float_of((b + 0xfff + ((b >> 13) & 1)) & ~0x1fffu);
}

CORE_VECTORISED void load_floats(Dtype dtype, const u8* from, i64 stride, i64 n, float* to) {
  switch (dtype) {
    case Dtype::float32:
      load_as<float>(from, stride, n, [&](i64 i, float x) { to[i] = x; });
      return;
    case Dtype::tfloat32:
      load_as<float>(from, stride, n, [&](i64 i, float x) { to[i] = x; });
      return;
    case Dtype::bfloat16:
      load_as<u16>(from, stride, n, [&](i64 i, u16 x) { to[i] = float_of(u32(x) << 16); });
      return;
    case Dtype::float16:
      load_as<u16>(from, stride, n, [&](i64 i, u16 x) { to[i] = half_to_float(x); });
      return;
    case Dtype::float8_e4m3:
    case Dtype::float8_e4m3fn:
    case Dtype::float8_e5m2:
    case Dtype::float8_e3m4: {
      const float* table = tables.small[int(dtype) - int(Dtype::float8_e4m3)];
      load_as<u8>(from, stride, n, [&](i64 i, u8 x) { to[i] = table[x]; });
      return;
    }
    case Dtype::float8_e8m0fnu:
      load_as<u8>(from, stride, n, [&](i64 i, u8 x) { to[i] = e8m0_to_float(x); });
      return;
    case Dtype::int8:
      load_as<std::int8_t>(from, stride, n, [&](i64 i, auto x) { to[i] = x; });
      return;
    case Dtype::int16:
      load_as<std::int16_t>(from, stride, n, [&](i64 i, auto x) { to[i] = x; });
      return;
    case Dtype::int32:
      load_as<i32>(from, stride, n, [&](i64 i, auto x) { to[i] = float(x); });
      return;
    case Dtype::int64:
      load_as<i64>(from, stride, n, [&](i64 i, auto x) { to[i] = float(x); });
      return;
    case Dtype::uint8:
      load_as<u8>(from, stride, n, [&](i64 i, auto x) { to[i] = x; });
      return;
    case Dtype::boolean:
      load_as<u8>(from, stride, n, [&](i64 i, auto x) { to[i] = x != 0; });
      return;
    case Dtype::uint16:
      load_as<u16>(from, stride, n, [&](i64 i, auto x) { to[i] = x; });
      return;
    case Dtype::uint32:
      load_as<u32>(from, stride, n, [&](i64 i, auto x) { to[i] = float(x); });
      return;
    case Dtype::uint64:
      load_as<u64>(from, stride, n, [&](i64 i, auto x) { to[i] = float(x); });
      return;
    case Dtype::float64:
      load_as<double>(from, stride, n, [&](i64 i, auto x) { to[i] = float(x); });
      return;
    default:
      no_scalar(dtype);
  }
}

CORE_VECTORISED void store_floats(Dtype dtype, const float* from, i64 n, u8* to, i64 stride) {
  switch (dtype) {
    case Dtype::float32:
      store_as<float>(to, stride, n, [&](i64 i) { return from[i]; });
      return;
    case Dtype::tfloat32:
      store_as<float>(to, stride, n, [&](i64 i) { return tfloat32_round(from[i]); });
      return;
    case Dtype::bfloat16:
      store_as<u16>(to, stride, n, [&](i64 i) { return float_to_bfloat(from[i]); });
      return;
    case Dtype::float16:
      store_as<u16>(to, stride, n, [&](i64 i) { return float_to_half(from[i]); });
      return;
    case Dtype::float8_e4m3:
    case Dtype::float8_e4m3fn:
    case Dtype::float8_e5m2:
    case Dtype::float8_e3m4: {
      const Small& f = small_formats[int(dtype) - int(Dtype::float8_e4m3)];
      store_as<u8>(to, stride, n, [&](i64 i) { return u8(encode_small(from[i], f)); });
      return;
    }
    case Dtype::float8_e8m0fnu:
      store_as<u8>(to, stride, n, [&](i64 i) { return float_to_e8m0(from[i]); });
      return;
    case Dtype::int8:
      store_saturated<std::int8_t>(from, n, to, stride);
      return;
    case Dtype::int16:
      store_saturated<std::int16_t>(from, n, to, stride);
      return;
    case Dtype::int32:
      store_saturated<i32>(from, n, to, stride);
      return;
    case Dtype::int64:
      store_saturated<i64>(from, n, to, stride);
      return;
    case Dtype::uint8:
      store_saturated<u8>(from, n, to, stride);
      return;
    case Dtype::boolean:
      store_as<u8>(to, stride, n, [&](i64 i) { return u8(from[i] != 0); });
      return;
    case Dtype::uint16:
      store_saturated<u16>(from, n, to, stride);
      return;
    case Dtype::uint32:
      store_saturated<u32>(from, n, to, stride);
      return;
    case Dtype::uint64:
      store_saturated<u64>(from, n, to, stride);
      return;
    case Dtype::float64:
      store_as<double>(to, stride, n, [&](i64 i) { return double(from[i]); });
      return;
    default:
      no_scalar(dtype);
  }
}

void load_integers(Dtype dtype, const u8* from, i64 stride, i64 n, i64* to) {
  auto put = [&](i64 i, auto x) { to[i] = i64(x); };
  switch (dtype) {
    case Dtype::int8:
      load_as<std::int8_t>(from, stride, n, put);
      return;
    case Dtype::int16:
      load_as<std::int16_t>(from, stride, n, put);
      return;
    case Dtype::int32:
      load_as<i32>(from, stride, n, put);
      return;
    case Dtype::int64:
      load_as<i64>(from, stride, n, put);
      return;
    case Dtype::uint8:
    case Dtype::boolean:
      load_as<u8>(from, stride, n, put);
      return;
    case Dtype::uint16:
      load_as<u16>(from, stride, n, put);
      return;
    case Dtype::uint32:
      load_as<u32>(from, stride, n, put);
      return;
    case Dtype::uint64:
      load_as<u64>(from, stride, n, put);
      return;
    // Bitwise instructions see the stored bits of a float.
    case Dtype::float32:
    case Dtype::tfloat32:
      load_as<u32>(from, stride, n, put);
      return;
    case Dtype::bfloat16:
    case Dtype::float16:
      load_as<u16>(from, stride, n, put);
      return;
    default:
      if (size_of(dtype) == 1) {
        load_as<u8>(from, stride, n, put);
        return;
      }
      no_scalar(dtype);
  }
}

template <bool wrap>
static void store_integers_as(Dtype dtype, const i64* from, i64 n, u8* to, i64 stride) {
  auto put = [&]<class T>(T) {
    store_as<T>(to, stride, n, [&](i64 i) { return wrap ? T(from[i]) : clamp_integer<T>(from[i]); });
  };
  switch (dtype) {
    case Dtype::int8:
      put(std::int8_t{});
      return;
    case Dtype::int16:
      put(std::int16_t{});
      return;
    case Dtype::int32:
      put(i32{});
      return;
    case Dtype::int64:
      put(i64{});
      return;
    case Dtype::uint8:
      put(u8{});
      return;
    case Dtype::boolean:
      store_as<u8>(to, stride, n, [&](i64 i) { return u8(from[i] != 0); });
      return;
    case Dtype::uint16:
      put(u16{});
      return;
    case Dtype::uint32:
      put(u32{});
      return;
    case Dtype::uint64:
      put(u64{});
      return;
    case Dtype::float32:
    case Dtype::tfloat32:
      store_as<u32>(to, stride, n, [&](i64 i) { return u32(from[i]); });
      return;
    case Dtype::bfloat16:
    case Dtype::float16:
      store_as<u16>(to, stride, n, [&](i64 i) { return u16(from[i]); });
      return;
    default:
      no_scalar(dtype);
  }
}

void store_integers(Dtype d, const i64* from, i64 n, u8* to, i64 stride) {
  store_integers_as<false>(d, from, n, to, stride);
}
void store_integers_wrapping(Dtype d, const i64* from, i64 n, u8* to, i64 stride) {
  store_integers_as<true>(d, from, n, to, stride);
}

void unpack_x4(Dtype packed, const u8* from, i64 stride, i64 n, float* to) {
  if (packed == Dtype::float4_e2m1fn_x4) {
    for (i64 i = 0; i < n; ++i) {
      u16 code;
      std::memcpy(&code, from + i * stride, 2);
      for (int k = 0; k < 4; ++k) to[4 * i + k] = tables.float4_values[(code >> (4 * k)) & 15];
    }
    return;
  }
  const float* table = tables.small[packed == Dtype::float8_e4m3fn_x4 ? 1 : 2];
  for (i64 i = 0; i < n; ++i)
    for (int k = 0; k < 4; ++k) to[4 * i + k] = table[from[i * stride + k]];
}

void pack_x4(Dtype packed, const float* from, i64 n, u8* to, i64 stride) {
  for (i64 i = 0; i < n; ++i) {
    if (packed == Dtype::float4_e2m1fn_x4) {
      u16 code = 0;
      for (int k = 0; k < 4; ++k) code |= u16(encode_small(from[4 * i + k], float4) << (4 * k));
      std::memcpy(to + i * stride, &code, 2);
    } else {
      const Small& f = small_formats[packed == Dtype::float8_e4m3fn_x4 ? 1 : 2];
      for (int k = 0; k < 4; ++k) to[i * stride + k] = u8(encode_small(from[4 * i + k], f));
    }
  }
}

int x4_largest_exponent(Dtype packed) {
  return packed == Dtype::float8_e4m3fn_x4 ? 8 : packed == Dtype::float8_e5m2_x4 ? 15 : 2;
}

}  // namespace core
