#include "device/stand_in.h"

#include <ATen/Functions.h>

#include <string_view>
#include <unordered_map>

namespace opentrn::device::dry {
namespace {

enum class Rule { kFalse, kTrue, kBalancedIndices, kPivots, kZeros };

const char* name_of(Rule rule) {
  switch (rule) {
    case Rule::kFalse:
      return "comparison: False everywhere";
    case Rule::kTrue:
      return "finite: True everywhere";
    case Rule::kBalancedIndices:
      return "indices: valid, distinct along the dimension, balanced over it";
    case Rule::kPivots:
      return "pivots: no row is exchanged";
    case Rule::kZeros:
      return "integers: zeros";
  }
  return "";
}

// Operators whose integer or boolean results have a rule of their own; everything else gets zeros or False.
const std::unordered_map<std::string_view, Rule> kRules = {
    {"isfinite", Rule::kTrue},
    {"topk", Rule::kBalancedIndices},
    {"sort", Rule::kBalancedIndices},
    {"argsort", Rule::kBalancedIndices},
    {"argmax", Rule::kBalancedIndices},
    {"argmin", Rule::kBalancedIndices},
    {"max", Rule::kBalancedIndices},
    {"min", Rule::kBalancedIndices},
    {"multinomial", Rule::kBalancedIndices},
    {"kthvalue", Rule::kBalancedIndices},
    {"median", Rule::kBalancedIndices},
    {"mode", Rule::kBalancedIndices},
    {"_cummax_helper", Rule::kBalancedIndices},
    {"_cummin_helper", Rule::kBalancedIndices},
};

// Factorisations whose result of that number holds pivots, counted from 1.
const std::unordered_map<std::string_view, size_t> kPivots = {
    {"linalg_lu_factor_ex", 1}, {"linalg_ldl_factor_ex", 1}, {"_linalg_det", 2},
    {"_linalg_slogdet", 3},     {"_linalg_solve_ex", 2},
};

Rule rule_of(const OperatorTraits& traits, size_t index, at::ScalarType type) {
  auto pivots = kPivots.find(traits.base);
  if (pivots != kPivots.end() && pivots->second == index) return Rule::kPivots;
  auto found = kRules.find(traits.base);
  if (found != kRules.end()) return found->second;
  return type == at::kBool ? Rule::kFalse : Rule::kZeros;
}

// Row r of k indices into `extent` gets r·k, r·k+1, … modulo the extent: distinct within a row as long as k ≤ extent,
// and every index is used equally often, so that expert routing is balanced.
void fill_balanced(at::Tensor& host, int64_t extent) {
  if (host.numel() == 0) return;
  at::Tensor values =
      at::arange(host.numel(), at::TensorOptions().dtype(at::kLong)).remainder_(std::max<int64_t>(extent, 1));
  host.copy_(values.view(host.sizes()));
}

}  // namespace

const char* fill_stand_in(const OperatorTraits& traits, size_t index, int64_t extent, at::Tensor& host) {
  // The seed of attention's dropout is nobody's to read.
  if (traits.operator_class == timeline::OperatorClass::kAttention) {
    host.zero_();
    return nullptr;
  }
  const Rule rule = rule_of(traits, index, host.scalar_type());
  switch (rule) {
    case Rule::kFalse:
    case Rule::kZeros:
      host.zero_();
      break;
    case Rule::kTrue:
      host.fill_(true);
      break;
    case Rule::kPivots:
      if (host.dim() > 0) host.copy_(at::arange(1, host.size(-1) + 1, host.options()).expand(host.sizes()));
      break;
    case Rule::kBalancedIndices:
      host.scalar_type() == at::kBool ? (void)host.zero_() : fill_balanced(host, extent);
      break;
  }
  return name_of(rule);
}

}  // namespace opentrn::device::dry
