// Replaces the arguments on a stack by what a taker gives for them: CPU aliases to run, meta tensors to infer.
//
// A taker has take(const at::Tensor&, int argument), take(c10::Device), and take_generator(optional<at::Generator>)
// returning an IValue-compatible value.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/stack.h>

#include "device/traits.h"

namespace opentrn::device {

template <typename Taker>
class BoxedArguments {
 public:
  BoxedArguments(Taker& taker, const OperatorTraits& traits, torch::jit::Stack& stack)
      : taker_(taker), traits_(traits), stack_(stack), first_(stack.size() - traits.argument_count) {}

  void take() {
    for (index_ = 0; index_ < traits_.argument_count; ++index_) take(stack_[first_ + index_]);
    if (traits_.random) {
      c10::IValue& value = stack_[first_ + traits_.generator_argument];
      value = taker_.take_generator(value.isNone() ? std::optional<at::Generator>() : value.toGenerator());
    }
  }

 private:
  void take(c10::IValue& value) {
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      if (tensor.defined()) value = taker_.take(tensor, index_);
    } else if (value.isTensorList()) {
      value = take_list(value.toTensorList());
    } else if (value.isOptionalTensorList()) {
      value = take_list(value.toOptionalTensorList());
    } else if (index_ == traits_.device_argument && value.isDevice()) {
      value = taker_.take(value.toDevice());
    }
  }

  c10::List<at::Tensor> take_list(const c10::List<at::Tensor>& list) {
    c10::List<at::Tensor> taken;
    taken.reserve(list.size());
    for (const at::Tensor tensor : list) taken.push_back(tensor.defined() ? taker_.take(tensor, index_) : tensor);
    return taken;
  }

  c10::List<std::optional<at::Tensor>> take_list(const c10::List<std::optional<at::Tensor>>& list) {
    c10::List<std::optional<at::Tensor>> taken;
    taken.reserve(list.size());
    for (const std::optional<at::Tensor> tensor : list) {
      taken.push_back(tensor && tensor->defined() ? std::optional<at::Tensor>(taker_.take(*tensor, index_)) : tensor);
    }
    return taken;
  }

  Taker& taker_;
  const OperatorTraits& traits_;
  torch::jit::Stack& stack_;
  size_t first_;
  int index_ = 0;
};

}  // namespace opentrn::device
