// torch.autocast("neuron"): PyTorch's own operator lists, so that the device casts what CUDA casts.
#include <ATen/ATen.h>
#include <ATen/NativeFunctions.h>
#include <ATen/Operators.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "device/registration.h"

namespace opentrn::device {
namespace {

// Begins with PyTorch's own words, which libraries look for.
at::Tensor refuse_binary_cross_entropy(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                       int64_t) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
              "  what to do: use binary_cross_entropy_with_logits or BCEWithLogitsLoss, which take the sigmoid "
              "themselves and are safe to autocast");
}

}  // namespace

void register_autocast() {}  // the registrations below are static; this keeps the file linked in

}  // namespace opentrn::device

namespace at::autocast {

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define OPENTRN_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(OPENTRN_LOWER_PRECISION)
#undef OPENTRN_LOWER_PRECISION
#define OPENTRN_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(OPENTRN_FP32)
#undef OPENTRN_FP32
#define OPENTRN_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(OPENTRN_FP32_SET_OPT_DTYPE)
#undef OPENTRN_FP32_SET_OPT_DTYPE
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
#define OPENTRN_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(OPENTRN_PROMOTE)
#undef OPENTRN_PROMOTE
  KERNEL_PRIVATEUSEONE(cat, promote)
  KERNEL_PRIVATEUSEONE(stack, promote)
  m.impl("binary_cross_entropy", &opentrn::device::refuse_binary_cross_entropy);
}

}  // namespace at::autocast
