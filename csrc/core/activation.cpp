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
  const float clamped = std::min(std::max(x, -104.0f), 89.0f);
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
  // 2^k in two halves, so that results in the subnormal range come out too.
  const i32 n = i32(k), half = n >> 1;
  const float scale1 = std::bit_cast<float>(u32(half + 127) << 23),
              scale2 = std::bit_cast<float>(u32(n - half + 127) << 23);
  const float result = p * scale1 * scale2;
  return x != x ? x : result;
}

inline float sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }
inline float normal_cdf(float x) { return 0.5f * (1.0f + std::erf(x * 0.70710678118654752f)); }
inline float gelu_tanh_inner(float x) { return 0.7978845608028654f * (x + 0.044715f * x * x * x); }
inline float fast_tanh(float x) {
  const float a = std::fabs(x);
  if (a < 0.3f) return std::tanh(x);
  const float e = fast_exp(-2.0f * a), t = (1.0f - e) / (1.0f + e);
  return std::copysign(t, x);
}
inline float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

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
      each(in, out, n, [](float x) { return normal_cdf(x) + x * 0.3989422804014327f * std::exp(-0.5f * x * x); });
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
      each(in, out, n, [](float x) { return x * std::tanh(softplus(x)); });
      return;
    case Activation::erf:
      each(in, out, n, [](float x) { return std::erf(x); });
      return;
    case Activation::erf_dx:
      each(in, out, n, [](float x) { return 1.1283791670955126f * std::exp(-x * x); });
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
      each(in, out, n, [](float x) { return std::log(x); });
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
