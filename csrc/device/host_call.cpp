#include "device/host_call.h"

#include <c10/core/AutogradState.h>

#include "device/operators.h"
#include "device/random.h"
#include "device/trace.h"

namespace opentrn::device {
namespace {

constexpr c10::DispatchKeySet kAboveBackend =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

constinit thread_local c10::DeviceIndex running = 0;

}  // namespace

void enter_operator() {
  Context::get().ensure();
  constinit thread_local bool single_threaded_backward = false;
  if (C10_UNLIKELY(!single_threaded_backward)) {
    single_threaded_backward = true;
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
}

c10::DeviceIndex running_device() { return running; }

void check_place(const OperatorTraits& traits, const at::Tensor& tensor, int argument, c10::DeviceIndex device) {
  const bool here = is_neuron(tensor) ? tensor.device().index() == device
                                      : tensor.dim() == 0 && tensor.device().is_cpu() && !traits.writes(argument);
  if (C10_LIKELY(here || traits.may_mix_devices)) return;
  auto op = c10::Dispatcher::singleton().findSchema(traits.operator_name);
  const std::string name = op ? op->schema().arguments()[argument].name() : std::to_string(argument);
  const std::string index = std::to_string(std::max<int>(device, 0));
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but ", traits.name, " got argument '", name,
              "' on ", tensor.device(), " beside tensors on neuron:", index,
              "\n  what to do: move it with .to('neuron:", index, "') first");
}

void check_dense(const OperatorTraits& traits, const at::Tensor& result) {
  TORCH_CHECK(result.layout() == c10::kStrided && !result.is_quantized(), "opentrn: ", traits.name, " returns a ",
              result.is_quantized() ? "quantised" : "sparse",
              " tensor, and neuron has dense ones only\n  what to do: call it on the host (.cpu())");
}

HostCall::HostCall(OperatorTraits& traits) : traits_(traits), origin_(traits) { enter_operator(); }

HostCall::~HostCall() {
  // The kernel raised after it may have resized what it writes: the device storages follow all the same.
  if (C10_UNLIKELY(ran_ && !followed_)) {
    try {
      follow_written();
    } catch (...) {  // already unwinding; the first error is the one to report
    }
  }
  for (Argument& argument : arguments_) {
    if (argument.alias.defined()) keep_alias(*argument.original, std::move(argument.alias));
  }
}

at::Tensor HostCall::take(Held tensor, int argument) {
  const bool written = traits_.writes(argument);
  const auto number = static_cast<uint8_t>(argument);
  if (!is_neuron(*tensor)) {
    check_place(traits_, *tensor, argument, device_);
    at::Tensor same = *tensor;
    arguments_.push_back({std::move(tensor), at::Tensor(), written, number});
    return same;
  }
  if (device_ < 0) device_ = tensor->device().index();
  check_place(traits_, *tensor, argument, device_);
  at::Tensor alias = known_alias(*tensor);
  if (!alias.defined()) alias = host_alias(*tensor);
  needs_full_dispatch_ |= alias.is_conj() || alias.is_neg();
  arguments_.push_back({std::move(tensor), alias, written, number});
  return alias;
}

// A tensor passed twice to an operator that writes is one tensor to the CPU kernel as well (out is self).
at::Tensor HostCall::known_alias(const at::Tensor& tensor) const {
  if (!traits_.written_arguments) return {};
  for (const Argument& argument : arguments_) {
    if (argument.original->is_same(tensor)) return argument.alias;
  }
  return {};
}

c10::Device HostCall::take(c10::Device device) {
  if (device.type() != kNeuron) {
    device_elsewhere_ = true;
    return device;
  }
  device_ = resolve(device);
  Context::get().check_index(device_);
  return c10::Device(c10::DeviceType::CPU);
}

at::Generator HostCall::take_generator(const std::optional<at::Generator>& generator) {
  int64_t elements = 0;
  for (const Argument& argument : arguments_) elements = std::max(elements, argument.original->numel());
  if (device_ < 0) device_ = current_device();
  return host_generator(generator, device_, elements);
}

HostCall::Running::Running(HostCall& call) : call_(call), before_(running), guard_(kAboveBackend) {
  if (call.device_ < 0) call.device_ = current_device();
  running = call.device_;
  if (C10_UNLIKELY(guard_mode())) call.move_guards(true);
  call.ran_ = true;
}

HostCall::Running::~Running() {
  if (C10_UNLIKELY(guard_mode())) call_.move_guards(false);
  running = before_;
}

void HostCall::move_guards(bool open) {
  for (const Argument& argument : arguments_) {
    if (!argument.alias.defined()) continue;
    Allocation* allocation = allocation_of(argument.original->storage().unsafeGetStorageImpl());
    open ? open_guard(allocation) : close_guard(allocation);
  }
}

void HostCall::follow_written() {
  followed_ = true;
  if (!traits_.written_arguments) return;
  for (Argument& argument : arguments_) {
    if (!argument.written || !argument.alias.defined()) continue;
    follow_host_resize(argument.original->storage().unsafeGetStorageImpl());
    copy_geometry(argument.alias, *argument.original);
  }
}

const c10::StorageImpl* HostCall::storage_of_host(const c10::StorageImpl* host) const {
  for (const Argument& argument : arguments_) {
    if (!argument.alias.defined()) continue;
    if (argument.alias.storage().unsafeGetStorageImpl() == host) {
      return argument.original->storage().unsafeGetStorageImpl();
    }
  }
  for (const auto& [known, tensor] : fresh_) {
    if (known == host) return tensor->storage().unsafeGetStorageImpl();
  }
  return nullptr;
}

at::Tensor HostCall::give(at::Tensor&& result) {
  if (!result.defined()) return std::move(result);
  // A result that nobody else holds is no argument.
  if (result.use_count() > 1) {
    const c10::TensorImpl* impl = result.unsafeGetTensorImpl();
    for (const Argument& argument : arguments_) {
      if (impl == argument.alias.unsafeGetTensorImpl() || impl == argument.original->unsafeGetTensorImpl()) {
        return *argument.original;
      }
    }
  }
  if (C10_UNLIKELY(device_elsewhere_)) return std::move(result);
  check_dense(traits_, result);
  const c10::StorageImpl* host = result.storage().unsafeGetStorageImpl();
  const bool unshared = result.storage().use_count() == 1;
  if (const c10::StorageImpl* shared = unshared ? nullptr : storage_of_host(host)) {
    auto storage = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(const_cast<c10::StorageImpl*>(shared));
    return device_tensor(c10::Storage(std::move(storage)), result);
  }
  at::Tensor fresh = to_device(std::move(result), device_);
  fresh_.emplace_back(host, Held::borrowed(fresh));
  return fresh;
}

void HostCall::finish() {
  if (traits_.operator_class == timeline::OperatorClass::kNone) return;
  c10::SmallVector<const at::TensorBase*, 8> inputs, outputs;
  c10::SmallVector<uint8_t, 8> numbers;
  for (const Argument& argument : arguments_) {
    inputs.push_back(&*argument.original);
    numbers.push_back(argument.number);
  }
  for (const auto& [host, tensor] : fresh_) outputs.push_back(&*tensor);
  if (traits_.is_copy) {
    account_copy(traits_, device_, inputs);
    return;
  }
  account({&traits_, device_, inputs, numbers, outputs, nullptr, causal_, dim_});
  if (traits_.synchronizes) synchronize_host(device_);
}

}  // namespace opentrn::device
