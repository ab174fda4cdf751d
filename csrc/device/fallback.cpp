#include "device/fallback.h"

#include <torch/library.h>

#include <unordered_set>

#include "device/boxed_arguments.h"
#include "device/dry.h"
#include "device/host_call.h"

namespace opentrn::device {
namespace {

[[noreturn]] void raise_no_kernel(const OperatorTraits& traits) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "opentrn: ", traits.name,
                              " has no kernel that neuron can run: CPU PyTorch has "
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

void fallback_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) { run_on_host(op, traits_of(op), stack); }

void refuse_layout(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK(
      false, "opentrn: ", op.operator_name(),
      ": neuron has dense tensors only, no sparse, quantised or strided nested ones\n",
      "  what to do: convert on the host (.to_dense(), .dequantize(), layout=torch.jagged) before moving to the "
      "device");
}

// Operators whose composite kernel is right on the device.
bool stays_composite(const std::string& base) {
  static const std::unordered_set<std::string> names = {"_to_copy", "alias", "detach", "lift_fresh",
                                                        "_nested_view_from_buffer"};
  return names.count(base) > 0;
}

std::string full_name(const c10::OperatorName& name) {
  std::string full = name.name.substr(6);  // without "aten::"
  return name.overload_name.empty() ? full : full + "." + name.overload_name;
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
  if (C10_UNLIKELY(dry::concerned())) {
    enter_operator();
    if (dry::run(op, traits, stack, kernel)) return;
  }
  HostCall call(traits);
  if (traits.causal_argument >= 0) {
    call.set_causal((*stack)[stack->size() - traits.argument_count + traits.causal_argument].toBool());
  }
  if (traits.dim_argument >= 0) {
    const c10::IValue& dim = (*stack)[stack->size() - traits.argument_count + traits.dim_argument];
    if (dim.isInt()) call.see_number(dim.toInt(), traits.dim_argument);
  }
  BoxedArguments<HostCall>(call, traits, *stack).take();
  execute(op, traits, call, stack, kernel);
  call.follow_written();
  give_results(call, traits, *stack);
  call.finish();
}

int register_fallback() {
  new_library("_", c10::DispatchKey::PrivateUse1)
      .fallback(torch::CppFunction::makeFromBoxedFunction<&fallback_kernel>());
  for (const auto key : {c10::DispatchKey::SparsePrivateUse1, c10::DispatchKey::SparseCsrPrivateUse1,
                         c10::DispatchKey::QuantizedPrivateUse1, c10::DispatchKey::NestedTensorPrivateUse1}) {
    new_library("_", key).fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_layout>());
  }
  // `.to("neuron")` of a compressed sparse tensor arrives here with the key of its result; the composite kernel would
  // build one around device values.
  new_library("aten", c10::DispatchKey::SparseCsrPrivateUse1)
      .impl("_to_copy", torch::CppFunction::makeFromBoxedFunction<&refuse_layout>());
  // A composite kernel wins over a backend fallback, so that `add` would go through its out= form (twice the cost) and
  // `native_layer_norm` through a decomposition with other numbers. Each operator with both a CPU and a composite
  // kernel is therefore registered directly; the list is read from the dispatcher, so it cannot be out of step with
  // PyTorch.
  torch::Library& aten = new_library("aten", c10::DispatchKey::PrivateUse1);
  // Composite kernels that reach for a stub of the tensor's own device type, which only CPU has.
  for (const char* name : {"conj_physical_", "addr_", "mode.values"}) {
    aten.impl(name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>()));
  }
  // One call on a list of tensors is one operator of the device, as on other accelerators, not one per tensor.
  c10::Dispatcher& all = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name :
       all.getRegistrationsForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) {
    if (name.name.rfind("aten::_foreach_", 0) != 0) continue;
    auto op = all.findSchema(name);
    if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;
    aten.impl(full_name(name).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>()));
  }
  // Composite makers of sparse tensors would build one around device values.
  for (const char* name : {"_sparse_compressed_tensor_unsafe", "_sparse_csr_tensor_unsafe", "_sparse_csc_tensor_unsafe",
                           "_sparse_bsr_tensor_unsafe", "_sparse_bsc_tensor_unsafe"}) {
    aten.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_layout>());
  }
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  int registered = 0;
  for (const c10::OperatorName& name : dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CPU)) {
    if (name.name.rfind("aten::", 0) != 0 || stays_composite(name.name.substr(6))) continue;
    auto op = dispatcher.findSchema(name);
    if (!op || !composite_would_win(*op) || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;
    aten.impl(full_name(name).c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>()));
    ++registered;
  }
  return registered;
}

}  // namespace opentrn::device
