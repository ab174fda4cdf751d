// ALU operations and activation functions on rows.
#pragma once
#include "core/types.h"

namespace core {

enum class Alu : u8 {
  none,
  add,
  subtract,
  multiply,
  divide,
  maximum,
  minimum,
  power,
  mod,
  abs_max,
  abs_min,
  equal,
  not_equal,
  greater,
  greater_equal,
  less,
  less_equal,
  logical_and,
  logical_or,
  logical_xor,
  bitwise_and,
  bitwise_or,
  bitwise_xor,
  left_shift,
  right_shift,
  arithmetic_shift_right,
  bypass,
  // unary ones (the second operand is ignored)
  rsqrt,
  abs,
  logical_not,
  invert,
  negative,
  reciprocal,
  square,
  sqrt,
  relu,
  average,
  count
};
Alu alu_from_name(const std::string& name);
const char* alu_name(Alu op);
bool is_unary(Alu op);
bool is_bitwise(Alu op);  // works on the stored bits, exact for every integer

enum class Activation : u8 {
  identity,
  exp,
  relu,
  leaky_relu,
  prelu,
  sigmoid,
  tanh,
  gelu,
  gelu_apprx_tanh,
  gelu_apprx_sigmoid,
  gelu_dx,
  gelu_apprx_tanh_dx,
  gelu_apprx_sigmoid_dx,
  silu,
  silu_dx,
  softplus,
  mish,
  erf,
  erf_dx,
  sqrt,
  rsqrt,
  reciprocal,
  square,
  abs,
  sign,
  sin,
  cos,
  tan,
  arctan,
  log,
  ceil,
  floor,
  trunc,
  rint,
  sigmoid_dx,
  tanh_dx,
  relu_dx,
  sinh,
  cosh,
  expm1,
  log1p,
  exp2,
  log2,
  negative,
  count
};
Activation activation_from_name(const std::string& name);

// out[i] = a[i] op b[i]; out may alias a or b.
void alu_rows(Alu op, const float* a, const float* b, float* out, i64 n);
void alu_row_scalar(Alu op, const float* a, float b, float* out, i64 n, bool reversed);
void alu_integers(Alu op, const i64* a, const i64* b, i64* out, i64 n, int bits, bool is_signed);
float alu_one(Alu op, float a, float b);
float alu_reduce(Alu op, const float* a, i64 n, float start);
float alu_identity(Alu op);

// `ranges`: values outside the documented range of the function are treated as the hardware table does (sin: cubic
// extrapolation beyond pi) or refused by the caller.
void activation_row(Activation f, const float* in, float* out, i64 n, bool ranges);
// The documented valid input range of f; false where it is all numbers.
bool activation_range(Activation f, float& low, float& high);

}  // namespace core
