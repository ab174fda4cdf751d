// Registers plain functions on CPU tensors as kernels of operators that have none on CPU.
#pragma once

#include <memory>

#include <ATen/core/boxing/KernelFunction.h>
#include <torch/library.h>

#include "device/fallback.h"
#include "device/host_call.h"

namespace opentrn::device {

class HostKernelFunctor final : public c10::OperatorKernel {
 public:
  explicit HostKernelFunctor(c10::KernelFunction kernel) : kernel_(std::move(kernel)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    if (C10_UNLIKELY(!traits_)) traits_ = &traits_of(op);
    run_on_host(op, *traits_, stack, &kernel_);
  }

 private:
  c10::KernelFunction kernel_;
  OperatorTraits* traits_ = nullptr;
};

template <typename Function>
void register_host_kernel(torch::Library& aten, const char* name, Function* function) {
  auto kernel = c10::KernelFunction::makeFromUnboxedRuntimeFunction(function);
  aten.impl(name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HostKernelFunctor>(std::move(kernel))));
}

void register_host_kernels(torch::Library& aten);   // host_kernels.cpp
void register_attention(torch::Library& aten);      // attention.cpp
void register_hot_operators(torch::Library& aten);  // hot_operators.cpp

}  // namespace opentrn::device
