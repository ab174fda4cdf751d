// Activation functions of the Scalar engine, in fp32.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "core/alu.h"
#include "core/vectorised.h"

namespace core {

Activation activation_from_name(const std::string& name) {
  static const std::unordered_map<std::string, Activation> index = {
      {"identity", Activation::identity},
      {"copy", Activation::identity},
      {"exp", Activation::exp},
      {"relu", Activation::relu},
      {"leaky_relu", Activation::leaky_relu},
      {"prelu", Activation::prelu},
      {"sigmoid", Activation::sigmoid},
      {"tanh", Activation::tanh},
      {"gelu", Activation::gelu},
      {"gelu_apprx_tanh", Activation::gelu_apprx_tanh},
      {"gelu_apprx_sigmoid", Activation::gelu_apprx_sigmoid},
      {"gelu_dx", Activation::gelu_dx},
      {"gelu_apprx_tanh_dx", Activation::gelu_apprx_tanh_dx},
      {"gelu_apprx_sigmoid_dx", Activation::gelu_apprx_sigmoid_dx},
      {"silu", Activation::silu},
      {"silu_dx", Activation::silu_dx},
      {"softplus", Activation::softplus},
      {"mish", Activation::mish},
      {"erf", Activation::erf},
      {"erf_dx", Activation::erf_dx},
      {"sqrt", Activation::sqrt},
      {"rsqrt", Activation::rsqrt},
      {"reciprocal", Activation::reciprocal},
      {"square", Activation::square},
      {"abs", Activation::abs},
      {"sign", Activation::sign},
      {"sin", Activation::sin},
      {"cos", Activation::cos},
      {"tan", Activation::tan},
      {"arctan", Activation::arctan},
      {"log", Activation::log},
      {"ceil", Activation::ceil},
      {"floor", Activation::floor},
      {"trunc", Activation::trunc},
      {"rint", Activation::rint},
      {"sigmoid_dx", Activation::sigmoid_dx},
      {"tanh_dx", Activation::tanh_dx},
      {"relu_dx", Activation::relu_dx},
      {"sinh", Activation::sinh},
      {"cosh", Activation::cosh},
      {"expm1", Activation::expm1},
      {"log1p", Activation::log1p},
      {"exp2", Activation::exp2},
      {"log2", Activation::log2},
      {"negative", Activation::negative}};
  auto it = index.find(name);
  if (it == index.end())
    fail(Category::unsupported, "'" + name + "' is not an activation function", "docs/instructions.md lists them");
  return it->second;
}

namespace {

// exp in fp32 by range reduction to [-ln2/2, ln2/2] and a polynomial; at most 2 ulp from the exact value. Branch-free.
inline float fast_exp(float x) {
  // To [-104, 89] by the bits, which order as signed integers above zero and as unsigned ones below: hosts take the
  // smaller integer in one instruction, where floats need a comparison and a choice for NaN's sake.
  const i32 below = std::min(std::bit_cast<i32>(x), std::bit_cast<i32>(89.0f));
  const float clamped = std::bit_cast<float>(std::min(u32(below), std::bit_cast<u32>(-104.0f)));
  const float shifted = clamped * 1.44269504088896341f + 12582912.0f;
  const float k = shifted - 12582912.0f;
  float r = clamped - k * 0.693359375f;
  r = r - k * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // 2^k in two halves, so that results in the subnormal range come out too; the first, which rounds nothing, goes into
  // the exponent.
  const i32 n = std::bit_cast<i32>(shifted) - std::bit_cast<i32>(12582912.0f), half = n >> 1;
  const float scaled = std::bit_cast<float>(std::bit_cast<u32>(p) + (u32(half) << 23)),
              scale = std::bit_cast<float>(u32(n - half + 127) << 23);
  const float result = scaled * scale;
  return x != x ? x : result;
}

inline float sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

// log in fp32: the mantissa in [sqrt(1/2), sqrt(2)) by a polynomial, plus exponent * ln2; within 2 ulp. Branch-free.
inline float fast_log(float x) {
  const bool small = x < 1.17549435e-38f;  // subnormal: scaled by 2^24 first
  const u32 bits = std::bit_cast<u32>(small ? x * 16777216.0f : x);
  float m = std::bit_cast<float>((bits & 0x007fffff) | 0x3f000000);
  float e = float(i32(bits >> 23) - 126) - (small ? 24.0f : 0.0f);
  const bool low = m < 0.707106781186547524f;
  e -= low ? 1.0f : 0.0f;
  m += (low ? m : 0.0f) - 1.0f;
  const float z = m * m;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  float r = m * z * p;
  r += e * -2.12194440e-4f;
  r += -0.5f * z;
  r = m + r + e * 0.693359375f;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  r = x == infinity ? x : r;
  r = x == 0.0f ? -infinity : r;
  return x >= 0.0f ? r : std::numeric_limits<float>::quiet_NaN();
}

// erf: a polynomial below 1, 1 - t P(t) exp(-x^2) with t = 1 / (1 + 0.3275911 |x|) above (Abramowitz and Stegun 7.1.26,
// absolute error 1.5e-7).
inline float fast_erf(float x) {
  const float a = std::fabs(x), z = x * x;
  float p = 7.853861353153693e-5f;
  p = p * z - 8.010193625184903e-4f;
  p = p * z + 5.188327685732524e-3f;
  p = p * z - 2.685381193529856e-2f;
  p = p * z + 1.128358514861418e-1f;
  p = p * z - 3.761262582423300e-1f;
  p = p * z + 1.128379165726710f;
  const float t = 1.0f / (1.0f + 0.3275911f * a);
  float q = 1.061405429f;
  q = q * t - 1.453152027f;
  q = q * t + 1.421413741f;
  q = q * t - 0.284496736f;
  q = q * t + 0.254829592f;
  const float far = std::copysign(1.0f - q * t * fast_exp(-z), x);
  const float near = p * x;
  return a < 1.0f ? near : (x != x ? x : far);
}
inline float normal_cdf(float x) { return 0.5f * (1.0f + fast_erf(x * 0.70710678118654752f)); }
inline float gelu_tanh_inner(float x) { return 0.7978845608028654f * (x + 0.044715f * x * x * x); }
inline float fast_tanh(float x) {
  const float a = std::fabs(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float near = x + x * z * p;
  const float e = fast_exp(-2.0f * a), far = std::copysign((1.0f - e) / (1.0f + e), x);
  return a < 0.625f ? near : far;
}
// log(1 + exp(x)) = max(x, 0) + log(1 + u) with u = exp(-|x|); the quotient restores what rounding 1 + u lost.
inline float softplus(float x) {
  const float u = fast_exp(-std::fabs(x)), w = 1.0f + u, d = w - 1.0f;
  const float tail = d > 0.0f ? fast_log(w) * (u / d) : u;
  return (x > 0.0f ? x : 0.0f * x) + tail;
}

// Beyond [-pi, pi] the hardware's table extrapolates its cubic; sin(9.0) = 27.65 is documented. The cubic through the
// table's end at pi is -(t) + t^3 / 6 with t = x - pi; its value at 9.0 is 27.6.
inline float table_sin(float x) {
  constexpr float pi = 3.14159265358979f;
  if (x > pi) {
    const float t = x - pi;
    return -t + t * t * t / 6.0f;
  }
  if (x < -pi) {
    const float t = x + pi;
    return -t + t * t * t / 6.0f;
  }
  return std::sin(x);
}

template <class F>
inline void each(const float* in, float* out, i64 n, F f) {
  for (i64 i = 0; i < n; ++i) out[i] = f(in[i]);
}

}  // namespace

bool activation_range(Activation f, float& low, float& high) {
  constexpr float pi = 3.1415927f;
  switch (f) {
    case Activation::log:
      low = std::ldexp(1.0f, -64);
      high = std::ldexp(1.0f, 64);
      return true;
    case Activation::sin:
      low = -pi;
      high = pi;
      return true;
    case Activation::arctan:
      low = -pi / 2;
      high = pi / 2;
      return true;
    case Activation::sqrt:
      low = std::ldexp(1.0f, -116);
      high = std::ldexp(1.0f, 118);
      return true;
    case Activation::rsqrt:
      low = std::ldexp(1.0f, -87);
      high = std::ldexp(1.0f, 97);
      return true;
    case Activation::reciprocal:
      low = -std::ldexp(1.0f, 42);
      high = std::ldexp(1.0f, 42);
      return true;
    default:
      return false;
  }
}

CORE_VECTORISED void activation_row(Activation f, const float* in, float* out, i64 n, bool ranges) {
  switch (f) {
    case Activation::identity:
      each(in, out, n, [](float x) { return x; });
      return;
    case Activation::exp:
      each(in, out, n, [](float x) { return fast_exp(x); });
      return;
    case Activation::relu:
      each(in, out, n, [](float x) { return x > 0 || x != x ? x : 0.0f; });
      return;
    case Activation::leaky_relu:
    case Activation::prelu:
      each(in, out, n, [](float x) { return x > 0 ? x : 0.01f * x; });
      return;
    case Activation::sigmoid:
      each(in, out, n, [](float x) { return sigmoid(x); });
      return;
    case Activation::tanh:
      each(in, out, n, [](float x) { return fast_tanh(x); });
      return;
    case Activation::gelu:
      each(in, out, n, [](float x) { return x * normal_cdf(x); });
      return;
    case Activation::gelu_apprx_tanh:
      each(in, out, n, [](float x) { return 0.5f * x * (1.0f + fast_tanh(gelu_tanh_inner(x))); });
      return;
    case Activation::gelu_apprx_sigmoid:
      each(in, out, n, [](float x) { return x * sigmoid(1.702f * x); });
      return;
    case Activation::gelu_dx:
      each(in, out, n, [](float x) { return normal_cdf(x) + x * 0.3989422804014327f * fast_exp(-0.5f * x * x); });
      return;
    case Activation::gelu_apprx_tanh_dx:
      each(in, out, n, [](float x) {
        const float t = fast_tanh(gelu_tanh_inner(x));
        return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.7978845608028654f * (1.0f + 3.0f * 0.044715f * x * x);
      });
      return;
    case Activation::gelu_apprx_sigmoid_dx:
      each(in, out, n, [](float x) {
        const float s = sigmoid(1.702f * x);
        return s + 1.702f * x * s * (1.0f - s);
      });
      return;
    case Activation::silu:
      each(in, out, n, [](float x) { return x * sigmoid(x); });
      return;
    case Activation::silu_dx:
      each(in, out, n, [](float x) {
        const float s = sigmoid(x);
        return s * (1.0f + x * (1.0f - s));
      });
      return;
    case Activation::softplus:
      each(in, out, n, [](float x) { return softplus(x); });
      return;
    case Activation::mish:
      each(in, out, n, [](float x) { return x * fast_tanh(softplus(x)); });
      return;
    case Activation::erf:
      each(in, out, n, [](float x) { return fast_erf(x); });
      return;
    case Activation::erf_dx:
      each(in, out, n, [](float x) { return 1.1283791670955126f * fast_exp(-x * x); });
      return;
    case Activation::sqrt:
      each(in, out, n, [](float x) { return std::sqrt(x); });
      return;
    case Activation::rsqrt:
      each(in, out, n, [](float x) { return 1.0f / std::sqrt(x); });
      return;
    case Activation::reciprocal:
      each(in, out, n, [](float x) { return 1.0f / x; });
      return;
    case Activation::square:
      each(in, out, n, [](float x) { return x * x; });
      return;
    case Activation::abs:
      each(in, out, n, [](float x) { return std::fabs(x); });
      return;
    case Activation::sign:
      each(in, out, n, [](float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x; });
      return;
    case Activation::sin:
      if (ranges)
        each(in, out, n, [](float x) { return table_sin(x); });
      else
        each(in, out, n, [](float x) { return std::sin(x); });
      return;
    case Activation::cos:
      each(in, out, n, [](float x) { return std::cos(x); });
      return;
    case Activation::tan:
      each(in, out, n, [](float x) { return std::tan(x); });
      return;
    case Activation::arctan:
      each(in, out, n, [](float x) { return std::atan(x); });
      return;
    case Activation::log:
      each(in, out, n, [](float x) { return fast_log(x); });
      return;
    case Activation::ceil:
      each(in, out, n, [](float x) { return std::ceil(x); });
      return;
    case Activation::floor:
      each(in, out, n, [](float x) { return std::floor(x); });
      return;
    case Activation::trunc:
      each(in, out, n, [](float x) { return std::trunc(x); });
      return;
    case Activation::rint:
      each(in, out, n, [](float x) { return std::nearbyint(x); });
      return;
    case Activation::sigmoid_dx:
      each(in, out, n, [](float x) {
        const float s = sigmoid(x);
        return s * (1.0f - s);
      });
      return;
    case Activation::tanh_dx:
      each(in, out, n, [](float x) {
        const float t = fast_tanh(x);
        return 1.0f - t * t;
      });
      return;
    case Activation::relu_dx:
      each(in, out, n, [](float x) { return x > 0 ? 1.0f : 0.0f; });
      return;
    case Activation::sinh:
      each(in, out, n, [](float x) { return std::sinh(x); });
      return;
    case Activation::cosh:
      each(in, out, n, [](float x) { return std::cosh(x); });
      return;
    case Activation::expm1:
      each(in, out, n, [](float x) { return std::expm1(x); });
      return;
    case Activation::log1p:
      each(in, out, n, [](float x) { return std::log1p(x); });
      return;
    case Activation::exp2:
      each(in, out, n, [](float x) { return std::exp2(x); });
      return;
    case Activation::log2:
      each(in, out, n, [](float x) { return std::log2(x); });
      return;
    case Activation::negative:
      each(in, out, n, [](float x) { return -x; });
      return;
    case Activation::count:
      break;
  }
}

}  // namespace core
