// The boxed path: every operator without a kernel of its own arrives here.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "device/traits.h"

namespace opentrn::device {

// What runs on the aliases in place of the operator's own CPU kernel, where it has none (convolution_overrideable …).
using HostKernel = c10::KernelFunction;

// Runs `op` with the arguments on top of `stack`, leaving its results there.
void run_on_host(const c10::OperatorHandle& op, OperatorTraits& traits, torch::jit::Stack* stack,
                 const HostKernel* kernel = nullptr);

// Registers the fallback, and directly for each operator whose composite kernel would win over it.
// Returns how many operators were registered directly.
int register_fallback();

}  // namespace opentrn::device
