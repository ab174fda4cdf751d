#include "device/fallback.h"

#include <torch/library.h>

#include <unordered_set>

#include "device/host_call.h"

namespace opentrn::device {
namespace {

// Replaces the arguments on the stack by what the kernel gets.
class BoxedArguments {
 public:
  BoxedArguments(HostCall& call, const OperatorTraits& traits, torch::jit::Stack& stack)
      : call_(call), traits_(traits), stack_(stack), first_(stack.size() - traits.argument_count) {}

  void take() {
    for (index_ = 0; index_ < traits_.argument_count; ++index_) take(stack_[first_ + index_]);
    if (traits_.random) {
      c10::IValue& value = stack_[first_ + traits_.generator_argument];
      value = call_.take_generator(value.isNone() ? std::optional<at::Generator>() : value.toGenerator());
    }
  }

 private:
  void take(c10::IValue& value) {
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      if (tensor.defined()) value = call_.take(tensor, index_);
    } else if (value.isTensorList()) {
      value = take_list(value.toTensorList());
    } else if (value.isOptionalTensorList()) {
      value = take_list(value.toOptionalTensorList());
    } else if (index_ == traits_.device_argument && value.isDevice()) {
      value = call_.take(value.toDevice());
    }
  }

  c10::List<at::Tensor> take_list(const c10::List<at::Tensor>& list) {
    c10::List<at::Tensor> taken;
    taken.reserve(list.size());
    for (const at::Tensor tensor : list) taken.push_back(tensor.defined() ? call_.take(tensor, index_) : tensor);
    return taken;
  }

  c10::List<std::optional<at::Tensor>> take_list(const c10::List<std::optional<at::Tensor>>& list) {
    c10::List<std::optional<at::Tensor>> taken;
    taken.reserve(list.size());
    for (const std::optional<at::Tensor> tensor : list) {
      taken.push_back(tensor && tensor->defined() ? call_.take(*tensor, index_) : tensor);
    }
    return taken;
  }

  HostCall& call_;
  const OperatorTraits& traits_;
  torch::jit::Stack& stack_;
  size_t first_;
  int index_ = 0;
};

[[noreturn]] void raise_no_kernel(const OperatorTraits& traits) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "opentrn: ", traits.name, " has no kernel that neuron can run: CPU PyTorch has "
                              "none either\n  what to do: write it in other operators, or as a custom operator with a "
                              "CPU implementation");
}

void execute(const c10::OperatorHandle& op, const OperatorTraits& traits, HostCall& call, torch::jit::Stack* stack,
             const HostKernel* kernel) {
  constexpr c10::DispatchKeySet cpu(c10::DispatchKey::CPU);
  HostCall::Running running(call);
  if (kernel) {
    kernel->callBoxed(op, cpu, stack);
  } else if (C10_UNLIKELY(call.needs_full_dispatch())) {
    op.callBoxed(stack);
  } else {
    if (C10_UNLIKELY(!op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU))) raise_no_kernel(traits);
    op.redispatchBoxed(cpu, stack);
  }
}

void give_results(HostCall& call, const OperatorTraits& traits, torch::jit::Stack& stack) {
  for (size_t index = stack.size() - traits.return_count; index < stack.size(); ++index) {
    c10::IValue& value = stack[index];
    if (value.isTensor()) {
      value = call.give(std::move(value).toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> given;
      for (const at::Tensor result : value.toTensorList()) given.push_back(call.give(at::Tensor(result)));
      value = std::move(given);
    }
  }
}

class Kernel final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    if (C10_UNLIKELY(!traits_)) traits_ = &traits_of(op);
    run_on_host(op, *traits_, stack);
  }

 private:
  OperatorTraits* traits_ = nullptr;
};

void fallback_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  run_on_host(op, traits_of(op), stack);
}

void refuse_layout(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK(false, "opentrn: ", op.operator_name(), ": neuron has dense tensors only, no sparse or quantised ones\n",
              "  what to do: convert on the host (.to_dense(), .dequantize()) before moving to the device");
}

// Operators whose composite kernel is right on the device.
bool stays_composite(const std::string& base) {
  static const std::unordered_set<std::string> names = {"_to_copy", "alias", "detach", "lift_fresh",
                                                        "_nested_view_from_buffer"};
  return names.count(base) > 0;
}

bool composite_would_win(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  return op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
}

std::vector<std::unique_ptr<torch::Library>>& libraries() {
  static auto* made = new std::vector<std::unique_ptr<torch::Library>>();
  return *made;
}

torch::Library& new_library(const char* name, c10::DispatchKey key) {
  return *libraries().emplace_back(
      std::make_unique<torch::Library>(torch::Library::IMPL, name, key, __FILE__, __LINE__));
}

}  // namespace

void run_on_host(const c10::OperatorHandle& op, OperatorTraits& traits, torch::jit::Stack* stack,
                 const HostKernel* kernel) {
  HostCall call(traits);
  BoxedArguments(call, traits, *stack).take();
  execute(op, traits, call, stack, kernel);
  call.follow_written();
  give_results(call, traits, *stack);
  call.finish();
}

int register_fallback() {
  new_library("_", c10::DispatchKey::PrivateUse1)
      .fallback(torch::CppFunction::makeFromBoxedFunction<&fallback_kernel>());
  for (const auto key : {c10::DispatchKey::SparsePrivateUse1, c10::DispatchKey::SparseCsrPrivateUse1,
                         c10::DispatchKey::QuantizedPrivateUse1}) {
    new_library("_", key).fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_layout>());
  }
  // A composite kernel wins over a backend fallback, so that `add` would go through its out= form (twice the cost) and
  // `native_layer_norm` through a decomposition with other numbers. Each operator with both a CPU and a composite kernel
  // is therefore registered directly; the list is read from the dispatcher, so it cannot be out of step with PyTorch.
  torch::Library& aten = new_library("aten", c10::DispatchKey::PrivateUse1);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  int registered = 0;
  for (const c10::OperatorName& name : dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CPU)) {
    if (name.name.rfind("aten::", 0) != 0 || stays_composite(name.name.substr(6))) continue;
    auto op = dispatcher.findSchema(name);
    if (!op || !composite_would_win(*op) || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;
    std::string full = name.name.substr(6);
    if (!name.overload_name.empty()) full += "." + name.overload_name;
    aten.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>()));
    ++registered;
  }
  return registered;
}

}  // namespace opentrn::device
