#include "core/alu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "core/vectorised.h"

namespace core {

namespace {

const std::unordered_map<std::string, Alu>& alu_index() {
  static const std::unordered_map<std::string, Alu> index = {{"none", Alu::none},
                                                             {"add", Alu::add},
                                                             {"subtract", Alu::subtract},
                                                             {"multiply", Alu::multiply},
                                                             {"divide", Alu::divide},
                                                             {"maximum", Alu::maximum},
                                                             {"max", Alu::maximum},
                                                             {"minimum", Alu::minimum},
                                                             {"min", Alu::minimum},
                                                             {"power", Alu::power},
                                                             {"pow", Alu::power},
                                                             {"mod", Alu::mod},
                                                             {"abs_max", Alu::abs_max},
                                                             {"abs_min", Alu::abs_min},
                                                             {"equal", Alu::equal},
                                                             {"not_equal", Alu::not_equal},
                                                             {"greater", Alu::greater},
                                                             {"greater_equal", Alu::greater_equal},
                                                             {"less", Alu::less},
                                                             {"less_equal", Alu::less_equal},
                                                             {"logical_and", Alu::logical_and},
                                                             {"logical_or", Alu::logical_or},
                                                             {"logical_xor", Alu::logical_xor},
                                                             {"bitwise_and", Alu::bitwise_and},
                                                             {"bitwise_or", Alu::bitwise_or},
                                                             {"bitwise_xor", Alu::bitwise_xor},
                                                             {"left_shift", Alu::left_shift},
                                                             {"logical_left_shift", Alu::left_shift},
                                                             {"right_shift", Alu::right_shift},
                                                             {"logical_right_shift", Alu::right_shift},
                                                             {"arithmetic_shift_right", Alu::arithmetic_shift_right},
                                                             {"arith_shift_right", Alu::arithmetic_shift_right},
                                                             {"arith_right_shift", Alu::arithmetic_shift_right},
                                                             {"bypass", Alu::bypass},
                                                             {"copy", Alu::bypass},
                                                             {"rsqrt", Alu::rsqrt},
                                                             {"abs", Alu::abs},
                                                             {"logical_not", Alu::logical_not},
                                                             {"invert", Alu::invert},
                                                             {"bitwise_not", Alu::invert},
                                                             {"negative", Alu::negative},
                                                             {"reciprocal", Alu::reciprocal},
                                                             {"square", Alu::square},
                                                             {"sqrt", Alu::sqrt},
                                                             {"relu", Alu::relu},
                                                             {"average", Alu::average},
                                                             {"mean", Alu::average}};
  return index;
}

// `%` of NumPy: the result has the sign of the divisor.
inline float python_mod(float a, float b) {
  const float r = std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

// NaN spreads through maximum and minimum, as in NumPy. `|`, not `||`: a branch keeps loops from vectorising.
inline float largest(float a, float b) { return (a > b) | (a != a) ? a : b; }
inline float smallest(float a, float b) { return (a < b) | (a != a) ? a : b; }

template <class F>
inline void dispatch(Alu op, F&& run) {
  switch (op) {
    case Alu::add:
      run([](float a, float b) { return a + b; });
      return;
    case Alu::subtract:
      run([](float a, float b) { return a - b; });
      return;
    case Alu::multiply:
      run([](float a, float b) { return a * b; });
      return;
    case Alu::divide:
      run([](float a, float b) { return a / b; });
      return;
    case Alu::maximum:
      run([](float a, float b) { return largest(a, b); });
      return;
    case Alu::minimum:
      run([](float a, float b) { return smallest(a, b); });
      return;
    case Alu::power:
      run([](float a, float b) { return std::pow(a, b); });
      return;
    case Alu::mod:
      run([](float a, float b) { return python_mod(a, b); });
      return;
    case Alu::abs_max:
      run([](float a, float b) { return largest(std::fabs(a), std::fabs(b)); });
      return;
    case Alu::abs_min:
      run([](float a, float b) { return smallest(std::fabs(a), std::fabs(b)); });
      return;
    case Alu::equal:
      run([](float a, float b) { return float(a == b); });
      return;
    case Alu::not_equal:
      run([](float a, float b) { return float(a != b); });
      return;
    case Alu::greater:
      run([](float a, float b) { return float(a > b); });
      return;
    case Alu::greater_equal:
      run([](float a, float b) { return float(a >= b); });
      return;
    case Alu::less:
      run([](float a, float b) { return float(a < b); });
      return;
    case Alu::less_equal:
      run([](float a, float b) { return float(a <= b); });
      return;
    case Alu::logical_and:
      run([](float a, float b) { return float(a != 0 && b != 0); });
      return;
    case Alu::logical_or:
      run([](float a, float b) { return float(a != 0 || b != 0); });
      return;
    case Alu::logical_xor:
      run([](float a, float b) { return float((a != 0) != (b != 0)); });
      return;
    case Alu::rsqrt:
      run([](float a, float) { return 1.0f / std::sqrt(a); });
      return;
    case Alu::abs:
      run([](float a, float) { return std::fabs(a); });
      return;
    case Alu::logical_not:
      run([](float a, float) { return float(a == 0); });
      return;
    case Alu::negative:
      run([](float a, float) { return -a; });
      return;
    case Alu::reciprocal:
      run([](float a, float) { return 1.0f / a; });
      return;
    case Alu::square:
      run([](float a, float) { return a * a; });
      return;
    case Alu::sqrt:
      run([](float a, float) { return std::sqrt(a); });
      return;
    case Alu::relu:
      run([](float a, float) { return a > 0 ? a : 0.0f; });
      return;
    case Alu::average:
      run([](float a, float b) { return a + b; });
      return;
    case Alu::bypass:
      run([](float a, float) { return a; });
      return;
    default:
      fail(Category::unsupported, std::string("operation '") + alu_name(op) + "' needs integer operands on every side",
           "convert the operands to an integer dtype, or use another operation");
  }
}

}  // namespace

Alu alu_from_name(const std::string& name) {
  auto it = alu_index().find(name);
  if (it == alu_index().end())
    fail(Category::unsupported, "'" + name + "' is not an ALU operation", "docs/instructions.md lists them");
  return it->second;
}

const char* alu_name(Alu op) {
  for (const auto& [name, value] : alu_index())
    if (value == op && name != "max" && name != "min" && name != "pow" && name != "copy" && name != "mean")
      return name.c_str();
  return "?";
}

bool is_unary(Alu op) { return op >= Alu::rsqrt && op <= Alu::relu; }
bool is_bitwise(Alu op) { return (op >= Alu::bitwise_and && op <= Alu::arithmetic_shift_right) || op == Alu::invert; }

CORE_VECTORISED void alu_rows(Alu op, const float* a, const float* b, float* out, i64 n) {
  switch (op) {  // the frequent ones, in loops the compiler sees whole
    case Alu::add:
      for (i64 i = 0; i < n; ++i) out[i] = a[i] + b[i];
      return;
    case Alu::subtract:
      for (i64 i = 0; i < n; ++i) out[i] = a[i] - b[i];
      return;
    case Alu::multiply:
      for (i64 i = 0; i < n; ++i) out[i] = a[i] * b[i];
      return;
    case Alu::maximum:
      for (i64 i = 0; i < n; ++i) out[i] = largest(a[i], b[i]);
      return;
    case Alu::minimum:
      for (i64 i = 0; i < n; ++i) out[i] = smallest(a[i], b[i]);
      return;
    default:
      break;
  }
  dispatch(op, [&](auto f) {
    for (i64 i = 0; i < n; ++i) out[i] = f(a[i], b[i]);
  });
}

CORE_VECTORISED void alu_row_scalar(Alu op, const float* a, float b, float* out, i64 n, bool reversed) {
  switch (op) {
    case Alu::add:
      for (i64 i = 0; i < n; ++i) out[i] = a[i] + b;
      return;
    case Alu::multiply:
      for (i64 i = 0; i < n; ++i) out[i] = a[i] * b;
      return;
    case Alu::subtract:
      if (reversed)
        for (i64 i = 0; i < n; ++i) out[i] = b - a[i];
      else
        for (i64 i = 0; i < n; ++i) out[i] = a[i] - b;
      return;
    case Alu::maximum:
      for (i64 i = 0; i < n; ++i) out[i] = largest(a[i], b);
      return;
    case Alu::minimum:
      for (i64 i = 0; i < n; ++i) out[i] = smallest(a[i], b);
      return;
    default:
      break;
  }
  dispatch(op, [&](auto f) {
    if (reversed)
      for (i64 i = 0; i < n; ++i) out[i] = f(b, a[i]);
    else
      for (i64 i = 0; i < n; ++i) out[i] = f(a[i], b);
  });
}

float alu_one(Alu op, float a, float b) {
  float out = 0;
  dispatch(op, [&](auto f) { out = f(a, b); });
  return out;
}

void alu_integers(Alu op, const i64* a, const i64* b, i64* out, i64 n, int bits, bool is_signed) {
  const u64 mask = bits >= 64 ? ~u64(0) : (u64(1) << bits) - 1;
  auto each = [&](auto f) {
    for (i64 i = 0; i < n; ++i) out[i] = f(a[i], b[i]);
  };
  switch (op) {
    case Alu::add:
    case Alu::average:
      each([](i64 x, i64 y) { return x + y; });
      return;
    case Alu::subtract:
      each([](i64 x, i64 y) { return x - y; });
      return;
    case Alu::multiply:
      each([](i64 x, i64 y) { return i64(u64(x) * u64(y)); });
      return;
    case Alu::divide:
      each([](i64 x, i64 y) { return y ? floor_div(x, y) : 0; });
      return;
    case Alu::mod:
      each([](i64 x, i64 y) {
        const i64 r = y ? x % y : 0;
        return r && (r < 0) != (y < 0) ? r + y : r;
      });
      return;
    case Alu::maximum:
      each([](i64 x, i64 y) { return std::max(x, y); });
      return;
    case Alu::minimum:
      each([](i64 x, i64 y) { return std::min(x, y); });
      return;
    case Alu::abs_max:
      each([](i64 x, i64 y) { return std::max(std::abs(x), std::abs(y)); });
      return;
    case Alu::abs_min:
      each([](i64 x, i64 y) { return std::min(std::abs(x), std::abs(y)); });
      return;
    case Alu::power:
      each([](i64 x, i64 y) {
        i64 r = 1;
        for (; y > 0; y >>= 1, x = i64(u64(x) * u64(x)))
          if (y & 1) r = i64(u64(r) * u64(x));
        return r;
      });
      return;
    case Alu::equal:
      each([](i64 x, i64 y) { return i64(x == y); });
      return;
    case Alu::not_equal:
      each([](i64 x, i64 y) { return i64(x != y); });
      return;
    case Alu::greater:
      each([](i64 x, i64 y) { return i64(x > y); });
      return;
    case Alu::greater_equal:
      each([](i64 x, i64 y) { return i64(x >= y); });
      return;
    case Alu::less:
      each([](i64 x, i64 y) { return i64(x < y); });
      return;
    case Alu::less_equal:
      each([](i64 x, i64 y) { return i64(x <= y); });
      return;
    case Alu::logical_and:
      each([](i64 x, i64 y) { return i64(x && y); });
      return;
    case Alu::logical_or:
      each([](i64 x, i64 y) { return i64(x || y); });
      return;
    case Alu::logical_xor:
      each([](i64 x, i64 y) { return i64(!x != !y); });
      return;
    case Alu::logical_not:
      each([](i64 x, i64) { return i64(!x); });
      return;
    case Alu::bitwise_and:
      each([](i64 x, i64 y) { return x & y; });
      return;
    case Alu::bitwise_or:
      each([](i64 x, i64 y) { return x | y; });
      return;
    case Alu::bitwise_xor:
      each([](i64 x, i64 y) { return x ^ y; });
      return;
    case Alu::invert:
      each([](i64 x, i64) { return ~x; });
      return;
    case Alu::left_shift:
      each([&](i64 x, i64 y) { return y < 0 || y >= bits ? 0 : i64((u64(x) << y) & mask); });
      return;
    case Alu::right_shift:
      each([&](i64 x, i64 y) { return y < 0 || y >= bits ? 0 : i64((u64(x) & mask) >> y); });
      return;
    case Alu::arithmetic_shift_right:
      each([&](i64 x, i64 y) { return x >> std::min<i64>(std::max<i64>(y, 0), 63); });
      return;
    case Alu::abs:
      each([](i64 x, i64) { return std::abs(x); });
      return;
    case Alu::negative:
      each([](i64 x, i64) { return -x; });
      return;
    case Alu::square:
      each([](i64 x, i64) { return x * x; });
      return;
    case Alu::relu:
      each([](i64 x, i64) { return std::max<i64>(x, 0); });
      return;
    case Alu::bypass:
      each([](i64 x, i64) { return x; });
      return;
    default:
      fail(Category::unsupported, std::string("operation '") + alu_name(op) + "' does not exist for integers",
           "convert the operands to float32");
  }
  (void)is_signed;
}

float alu_identity(Alu op) {
  switch (op) {
    case Alu::add:
    case Alu::subtract:
    case Alu::average:
    case Alu::logical_or:
    case Alu::logical_xor:
    case Alu::abs_max:
      return 0;
    case Alu::multiply:
    case Alu::logical_and:
      return 1;
    case Alu::maximum:
      return -std::numeric_limits<float>::infinity();
    case Alu::minimum:
    case Alu::abs_min:
      return std::numeric_limits<float>::infinity();
    default:
      fail(Category::unsupported, std::string("'") + alu_name(op) + "' cannot reduce",
           "reduce with add, multiply, maximum, minimum, logical_and/or/xor or their abs forms");
  }
}

// Several running results, folded at the end: vectorisable, and the same order on every host.
CORE_VECTORISED float alu_reduce(Alu op, const float* a, i64 n, float start) {
  if (op == Alu::add || op == Alu::average) {
    float part[16] = {};
    i64 i = 0;
    for (; i + 16 <= n; i += 16)
      for (int k = 0; k < 16; ++k) part[k] += a[i + k];
    for (; i < n; ++i) part[i % 16] += a[i];
    for (int width = 8; width; width /= 2)
      for (int k = 0; k < width; ++k) part[k] += part[k + width];
    return start + part[0];
  }
  if (op == Alu::maximum || op == Alu::minimum) {  // any order gives the same, NaN included
    // So many that the inner loops stay loops, which is what the compiler vectorises.
    constexpr i64 parts = 64;
    float part[parts];
    std::fill(part, part + parts, start);
    auto fold = [&](auto f) {
      i64 i = 0;
      for (; i + parts <= n; i += parts)
        for (i64 k = 0; k < parts; ++k) part[k] = f(part[k], a[i + k]);
      for (i64 k = 0; k < n - i; ++k) part[k] = f(part[k], a[i + k]);
      for (i64 k = 0; k < 32; ++k) part[k] = f(part[k], part[k + 32]);
      for (i64 k = 0; k < 16; ++k) part[k] = f(part[k], part[k + 16]);
      for (i64 k = 0; k < 8; ++k) part[k] = f(part[k], part[k + 8]);
      for (i64 k = 1; k < 8; ++k) part[0] = f(part[0], part[k]);
    };
    op == Alu::maximum ? fold([](float x, float y) { return largest(x, y); })
                       : fold([](float x, float y) { return smallest(x, y); });
    return part[0];
  }
  float result = start;
  dispatch(op == Alu::subtract ? Alu::add : op, [&](auto f) {
    for (i64 i = 0; i < n; ++i) result = f(result, a[i]);
  });
  return result;
}

}  // namespace core
