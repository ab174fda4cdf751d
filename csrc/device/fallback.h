// The one path every operator takes: its device tensors become CPU aliases, PyTorch's CPU kernel runs in place on device
// memory, its results become device tensors without a copy, and the work is put on the virtual clock.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "device/traits.h"

namespace opentrn::device {

// What runs on the aliases in place of the operator's own CPU kernel, where it has none (convolution_overrideable …).
using HostKernel = c10::KernelFunction;

// Runs `op` with the arguments on top of `stack`, leaving its results there.
void run_on_host(const c10::OperatorHandle& op, OperatorTraits& traits, torch::jit::Stack* stack,
                 const HostKernel* kernel = nullptr);

// The device of the operator that is running on the calling thread, for host kernels that draw random numbers.
c10::DeviceIndex running_device();

// Every neuron operator calls this first: attaches the machine, refuses forked children, and makes backward run on the
// calling thread (so that clock, dry state and Python frames follow it).
void enter_operator();

// Registers the fallback, and directly for each operator whose composite kernel would win over it.
// Returns how many operators were registered directly.
int register_fallback();

// Kernels inside an operator run below autograd and autocast, on plain CPU tensors.
struct BelowAutograd {
  BelowAutograd();
  c10::impl::ExcludeDispatchKeyGuard guard;
};

}  // namespace opentrn::device
