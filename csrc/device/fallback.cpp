#include "device/fallback.h"

#include <ATen/core/List.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <unordered_set>

#include "device/accounting.h"
#include "device/alias.h"
#include "device/operators.h"
#include "device/random.h"
#include "device/trace.h"

namespace opentrn::device {
namespace {

constexpr c10::DispatchKeySet kAboveBackend =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

thread_local c10::DeviceIndex running = 0;

// One call on its way through the host: keeps the original tensors beside their aliases.
class HostCall {
 public:
  HostCall(const c10::OperatorHandle& op, OperatorTraits& traits, torch::jit::Stack* stack, const HostKernel* kernel)
      : op_(op), traits_(traits), stack_(stack), kernel_(kernel), first_(stack->size() - traits.argument_count) {}

  void run() {
    take_arguments();
    if (device_ < 0) device_ = device_argument_ >= 0 ? device_argument_ : current_device();
    Context::get().device(device_);
    replace_generator();
    execute();
    if (traits_.written_arguments) follow_written();
    give_results();
    put_on_clock();
  }

 private:
  struct Argument {
    at::Tensor original;
    at::Tensor alias;  // undefined: not a neuron tensor, passed as it is
    bool written;
  };

  void take_arguments() {
    for (int index = 0; index < traits_.argument_count; ++index) {
      c10::IValue& value = (*stack_)[first_ + index];
      argument_ = index;
      if (value.isTensor()) {
        take_tensor(value);
      } else if (value.isTensorList()) {
        take_list(value);
      } else if (value.isOptionalTensorList()) {
        take_optional_list(value);
      } else if (index == traits_.device_argument && value.isDevice()) {
        take_device(value);
      }
    }
  }

  bool is_written() const { return argument_ < 64 && (traits_.written_arguments >> argument_ & 1); }

  void take_tensor(c10::IValue& value) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return;
    at::Tensor alias = take(tensor);
    if (alias.defined()) value = std::move(alias);
  }

  void take_list(c10::IValue& value) {
    c10::List<at::Tensor> list = value.toTensorList();
    c10::List<at::Tensor> aliases;
    aliases.reserve(list.size());
    for (const at::Tensor tensor : list) {
      at::Tensor alias = tensor.defined() ? take(tensor) : at::Tensor();
      aliases.push_back(alias.defined() ? std::move(alias) : tensor);
    }
    value = std::move(aliases);
  }

  void take_optional_list(c10::IValue& value) {
    c10::List<std::optional<at::Tensor>> list = value.toOptionalTensorList();
    c10::List<std::optional<at::Tensor>> aliases;
    aliases.reserve(list.size());
    for (const std::optional<at::Tensor> tensor : list) {
      if (!tensor || !tensor->defined()) {
        aliases.push_back(tensor);
        continue;
      }
      at::Tensor alias = take(*tensor);
      aliases.push_back(alias.defined() ? std::move(alias) : *tensor);
    }
    value = std::move(aliases);
  }

  void take_device(c10::IValue& value) {
    const c10::Device device = value.toDevice();
    device_given_ = true;
    if (device.type() != kNeuron) {
      device_elsewhere_ = true;
      return;
    }
    device_argument_ = resolve(device);
    value = c10::Device(c10::DeviceType::CPU);
  }

  // The alias of a neuron tensor, or an undefined tensor for one that stays as it is.
  at::Tensor take(const at::Tensor& tensor) {
    if (!is_neuron(tensor)) {
      check_foreign(tensor);
      arguments_.push_back({tensor, at::Tensor(), is_written()});
      return {};
    }
    const c10::DeviceIndex index = tensor.device().index();
    if (device_ < 0) {
      device_ = index;
    } else if (index != device_ && !traits_.may_mix_devices) {
      raise_mixed(tensor.device());
    }
    at::Tensor alias = host_alias(tensor);
    needs_full_dispatch_ |= alias.is_conj() || alias.is_neg();
    arguments_.push_back({tensor, alias, is_written()});
    return alias;
  }

  void check_foreign(const at::Tensor& tensor) {
    // As on CUDA: a zero-dimensional CPU tensor may be read beside device tensors, and never written.
    const bool scalar = tensor.dim() == 0 && tensor.device().is_cpu() && !is_written();
    if (!scalar && !traits_.may_mix_devices) raise_mixed(tensor.device());
  }

  [[noreturn]] void raise_mixed(c10::Device other) {
    const c10::FunctionSchema& schema = op_.schema();
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but ", traits_.name, " got argument '",
                schema.arguments()[argument_].name(), "' on ", other, " beside tensors on neuron",
                device_ >= 0 ? ":" + std::to_string(static_cast<int>(device_)) : std::string(),
                "\n  what to do: move it with .to('neuron", 
                device_ > 0 ? ":" + std::to_string(static_cast<int>(device_)) : std::string(), "') first");
  }

  [[noreturn]] void raise_no_kernel() {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "opentrn: ", traits_.name, " has no kernel that neuron can run: CPU PyTorch has "
                                "none either\n  what to do: write it in other operators, or as a custom operator with a "
                                "CPU implementation");
  }

  void replace_generator() {
    if (!traits_.random) return;
    c10::IValue& value = (*stack_)[first_ + traits_.generator_argument];
    std::optional<at::Generator> given;
    if (!value.isNone()) given = value.toGenerator();
    int64_t elements = 0;
    for (const Argument& argument : arguments_) elements = std::max(elements, argument.original.numel());
    value = host_generator(given, device_, elements);
  }

  void execute() {
    BelowAutograd below;
    running = device_;
    struct Guards {
      HostCall& call;
      explicit Guards(HostCall& of) : call(of) {
        if (C10_UNLIKELY(guard_mode())) call.move_guards(true);
      }
      ~Guards() {
        if (C10_UNLIKELY(guard_mode())) call.move_guards(false);
      }
    } guards(*this);
    if (kernel_) {
      kernel_->callBoxed(op_, c10::DispatchKeySet(c10::DispatchKey::CPU), stack_);
    } else if (C10_UNLIKELY(needs_full_dispatch_)) {
      op_.callBoxed(stack_);
    } else {
      if (C10_UNLIKELY(!op_.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU))) raise_no_kernel();
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack_);
    }
  }

  void move_guards(bool open) {
    for (const Argument& argument : arguments_) {
      if (!argument.alias.defined()) continue;
      Allocation* allocation = allocation_of(argument.original.storage().unsafeGetStorageImpl());
      open ? open_guard(allocation) : close_guard(allocation);
    }
  }

  // out= and in-place operators may have resized or re-strided what they wrote.
  void follow_written() {
    for (Argument& argument : arguments_) {
      if (!argument.written || !argument.alias.defined()) continue;
      follow_host_resize(argument.original.storage().unsafeGetStorageImpl());
      copy_geometry(argument.alias, argument.original);
    }
  }

  void give_results() {
    const size_t first_result = stack_->size() - traits_.return_count;
    for (size_t index = first_result; index < stack_->size(); ++index) {
      c10::IValue& value = (*stack_)[index];
      if (value.isTensor()) {
        const at::Tensor& result = value.toTensor();
        if (result.defined()) value = give(result);
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list = value.toTensorList();
        c10::List<at::Tensor> given;
        given.reserve(list.size());
        for (const at::Tensor result : list) given.push_back(result.defined() ? give(result) : result);
        value = std::move(given);
      }
    }
  }

  at::Tensor give(const at::Tensor& result) {
    c10::TensorImpl* impl = result.unsafeGetTensorImpl();
    for (const Argument& argument : arguments_) {
      if (impl == argument.alias.unsafeGetTensorImpl() || impl == argument.original.unsafeGetTensorImpl()) {
        return argument.original;
      }
    }
    if (device_elsewhere_) return result;
    TORCH_CHECK(result.layout() == c10::kStrided && !result.is_quantized(), "opentrn: ", traits_.name, " returns a ",
                result.is_quantized() ? "quantised" : "sparse",
                " tensor, and neuron has dense ones only\n  what to do: call it on the host (.cpu())");
    const c10::StorageImpl* host = result.storage().unsafeGetStorageImpl();
    if (const c10::StorageImpl* shared = storage_of_host(host)) {
      return device_tensor(c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
                               const_cast<c10::StorageImpl*>(shared))),
                           result);
    }
    at::Tensor fresh = device_tensor(adopt_storage(result.storage(), device_), result);
    fresh_.push_back({host, fresh});
    return fresh;
  }

  // The device storage around a host storage, if an argument or an earlier result has it.
  const c10::StorageImpl* storage_of_host(const c10::StorageImpl* host) const {
    for (const Argument& argument : arguments_) {
      if (!argument.alias.defined()) continue;
      const c10::StorageImpl* storage = argument.original.storage().unsafeGetStorageImpl();
      const Allocation* allocation = allocation_of(storage);
      if (allocation && allocation->host.get() == host) return storage;
    }
    for (const auto& [known, tensor] : fresh_) {
      if (known == host) return tensor.storage().unsafeGetStorageImpl();
    }
    return nullptr;
  }

  void put_on_clock() {
    c10::SmallVector<const at::TensorBase*, 8> inputs, outputs;
    uint64_t written = 0;
    for (const Argument& argument : arguments_) {
      if (argument.written && inputs.size() < 64) written |= uint64_t{1} << inputs.size();
      inputs.push_back(&argument.original);
    }
    for (const auto& [host, tensor] : fresh_) outputs.push_back(&tensor);
    if (traits_.is_copy) {
      account_copy(inputs);
      return;
    }
    account({&traits_, device_, inputs, written, outputs});
    if (traits_.synchronizes) synchronize_host(device_);
  }

  // copy_(self, src): between host and device it is a transfer, and a blocking one waits.
  void account_copy(TensorRefs inputs);

  const c10::OperatorHandle& op_;
  OperatorTraits& traits_;
  torch::jit::Stack* stack_;
  const HostKernel* kernel_;
  size_t first_;
  int argument_ = 0;
  c10::DeviceIndex device_ = -1;
  c10::DeviceIndex device_argument_ = -1;
  bool device_given_ = false;
  bool device_elsewhere_ = false;
  bool needs_full_dispatch_ = false;
  c10::SmallVector<Argument, 6> arguments_;
  c10::SmallVector<std::pair<const c10::StorageImpl*, at::Tensor>, 4> fresh_;
};

void HostCall::account_copy(TensorRefs inputs) {
  if (inputs.size() < 2) return;
  // copy_(self, src) and _copy_from(self, dst): source and target by position.
  const bool from_first = traits_.base != "copy_";
  const at::TensorBase& source = *inputs[from_first ? 0 : 1];
  const at::TensorBase& target = *inputs[from_first ? 1 : 0];
  timeline::Work work;
  work.operator_class = timeline::OperatorClass::kCopy;
  work.read_bytes = static_cast<int64_t>(source.nbytes());
  work.written_bytes = static_cast<int64_t>(target.nbytes());
  work.output_elements = target.numel();
  const bool from_host = !is_neuron(source), to_host = !is_neuron(target);
  if (from_host || to_host) {
    work.operator_class = timeline::OperatorClass::kTransfer;
    work.from_host = from_host;
  }
  account({&traits_, device_, inputs, uint64_t{1} << (from_first ? 1 : 0), {}}, &work);
  if (to_host) synchronize_host(device_);
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

// Operators that have a kernel of their own here, or must stay composite.
bool stays(const std::string& base) {
  static const std::unordered_set<std::string> names = {
      "empty", "empty_strided", "as_strided", "view", "_reshape_alias", "unfold", "view_as_real", "view_as_complex",
      "set_", "resize_", "_fused_sdp_choice", "_has_compatible_shallow_copy_type", "native_dropout", "_to_copy",
      "_local_scalar_dense", "alias", "detach", "lift_fresh", "_nested_view_from_buffer", "is_set_to"};
  return names.count(base) > 0;
}

bool composite_would_win(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  return op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional) ||
         op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd);
}

}  // namespace

BelowAutograd::BelowAutograd() : guard(kAboveBackend) {}

void enter_operator() {
  Context::get().ensure();
  thread_local bool single_threaded_backward = false;
  if (C10_UNLIKELY(!single_threaded_backward)) {
    single_threaded_backward = true;
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
}

c10::DeviceIndex running_device() { return running; }

void run_on_host(const c10::OperatorHandle& op, OperatorTraits& traits, torch::jit::Stack* stack,
                 const HostKernel* kernel) {
  enter_operator();
  memory::Origin& origin = current_origin();
  const memory::Origin before = origin;
  origin = origin_of(traits);
  struct Restore {
    memory::Origin& origin;
    const memory::Origin& before;
    ~Restore() { origin = before; }
  } restore{origin, before};
  HostCall(op, traits, stack, kernel).run();
}

int register_fallback() {
  static std::vector<std::unique_ptr<torch::Library>> libraries;
  auto fallback = std::make_unique<torch::Library>(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__,
                                                   __LINE__);
  fallback->fallback(torch::CppFunction::makeFromBoxedFunction<&fallback_kernel>());
  libraries.push_back(std::move(fallback));
  for (const auto key : {c10::DispatchKey::SparsePrivateUse1, c10::DispatchKey::SparseCsrPrivateUse1,
                   c10::DispatchKey::QuantizedPrivateUse1}) {
    auto refusing = std::make_unique<torch::Library>(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
    refusing->fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_layout>());
    libraries.push_back(std::move(refusing));
  }
  // A composite kernel wins over a backend fallback, so that `add` would go through its out= form (twice the cost) and
  // `native_layer_norm` through a decomposition with other numbers. Each operator with both a CPU and a composite kernel
  // is therefore registered directly; the list is read from the dispatcher, so it cannot be out of step with PyTorch.
  auto aten = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__,
                                               __LINE__);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  int registered = 0;
  for (const c10::OperatorName& name : dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CPU)) {
    if (name.name.rfind("aten::", 0) != 0 || stays(name.name.substr(6))) continue;
    auto op = dispatcher.findSchema(name);
    if (!op || !composite_would_win(*op) || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;
    std::string full = name.name.substr(6);
    if (!name.overload_name.empty()) full += "." + name.overload_name;
    aten->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>()));
    ++registered;
  }
  libraries.push_back(std::move(aten));
  return registered;
}

}  // namespace opentrn::device
