#include "device/alias.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/TensorImpl.h>

namespace opentrn::device {
namespace {

constexpr c10::DispatchKeySet kBits = c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});

c10::Storage host_storage(const at::TensorBase& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  Allocation* allocation = allocation_of(storage);
  if (C10_LIKELY(allocation != nullptr)) {
    TORCH_CHECK(allocation->backed,
                "opentrn: an operator would read a tensor that has no bytes (it was made in a dry "
                "run)\n  what to do: use it inside opentrn.dry_run(), or make it outside");
    TORCH_CHECK(allocation->host->nbytes() > 0 || tensor.numel() == 0,
                "opentrn: the storage of this tensor was resized to "
                "zero bytes\n  what to do: resize it back before the tensor is used");
    return c10::Storage(allocation->host);
  }
  // Someone else's memory (DLPack, from_blob): alias it without owning it.
  void* bytes = storage->mutable_data();
  return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<int64_t>(storage->nbytes()),
                      c10::DataPtr(bytes, c10::Device(c10::DeviceType::CPU)), nullptr, false);
}

// Nothing but a geometry over a storage: no conjugate or negative bit, no wrapped number, no trace of a use in Python.
bool is_plain(const c10::TensorImpl& impl) {
  return (impl.key_set() & kBits).empty() && !impl.is_python_dispatch() && !impl.autograd_meta() &&
         !impl.is_wrapped_number() && !impl.pyobj_slot()->load_pyobj();
}

bool is_alias_of(const at::Tensor& alias, const at::TensorBase& tensor, const c10::StorageImpl* host) {
  return alias.defined() && alias.storage().unsafeGetStorageImpl() == host && alias.dtype() == tensor.dtype() &&
         alias.storage_offset() == tensor.storage_offset() && alias.sizes() == tensor.sizes() &&
         alias.strides() == tensor.strides() && alias.is_inference() == c10::InferenceMode::is_enabled() &&
         !tensor.is_conj() && !tensor.is_neg() && !tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

// A kept alias of the same geometry, or nothing.
at::Tensor spare_alias(const at::TensorBase& tensor) {
  Allocation* allocation = allocation_of(tensor.storage().unsafeGetStorageImpl());
  if (!allocation) return {};
  at::Tensor alias = allocation->spare_alias.take();
  return is_alias_of(alias, tensor, allocation->host.get()) ? alias : at::Tensor();
}

}  // namespace

void keep_alias(const at::TensorBase& tensor, at::Tensor&& alias) {
  // Whoever else holds it, may look at it later.
  if (!alias.defined() || alias.use_count() != 1 || !is_plain(*alias.unsafeGetTensorImpl())) return;
  Allocation* allocation = allocation_of(tensor.storage().unsafeGetStorageImpl());
  if (allocation && allocation->backed) allocation->spare_alias.put(std::move(alias));
}

at::Tensor host_alias(const at::TensorBase& tensor) {
  TORCH_CHECK(
      tensor.layout() == c10::kStrided && !tensor.is_quantized() && !tensor.is_nested(),
      "opentrn: neuron has dense tensors only; this one is ",
      tensor.is_quantized() ? "quantised"
      : tensor.is_nested()  ? "nested"
                            : "sparse",
      "\n  what to do: convert it on the host (.to_dense(), .dequantize(), .cpu()) before it reaches the device");
  if (at::Tensor spare = spare_alias(tensor); spare.defined()) return spare;
  auto impl = c10::make_intrusive<c10::TensorImpl>(host_storage(tensor), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                   tensor.dtype());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  copy_flags(tensor, impl.get());
  return at::Tensor(std::move(impl));
}

at::Tensor device_tensor(c10::Storage storage, const at::TensorBase& host) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage),
                                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), host.dtype());
  impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
  copy_flags(host, impl.get());
  return at::Tensor(std::move(impl));
}

namespace {

// TensorImpl has no public way to change its device; a member pointer taken through a derived class is one.
struct DeviceMember : c10::TensorImpl {
  static constexpr auto member() { return &DeviceMember::device_opt_; }
};

}  // namespace

at::Tensor to_device(at::Tensor&& host, c10::DeviceIndex index) {
  c10::Storage storage = adopt_storage(host.storage(), index);
  c10::TensorImpl* impl = host.unsafeGetTensorImpl();
  const bool plain = host.use_count() == 1 && !host.is_conj() && !host.is_neg() && !impl->is_wrapped_number() &&
                     !impl->autograd_meta();
  if (C10_UNLIKELY(!plain)) return device_tensor(std::move(storage), host);
  impl->set_storage_keep_dtype(std::move(storage));
  impl->_change_backend_component_keys(c10::Device(kNeuron, index));
  impl->*DeviceMember::member() = c10::Device(kNeuron, index);
  return std::move(host);
}

void copy_flags(const at::TensorBase& from, c10::TensorImpl* to) {
  if (C10_UNLIKELY(from.is_conj())) to->_set_conj(true);
  if (C10_UNLIKELY(from.is_neg())) to->_set_neg(true);
  if (C10_UNLIKELY(from.unsafeGetTensorImpl()->is_wrapped_number())) to->set_wrapped_number(true);
}

void copy_geometry(const at::TensorBase& from, const at::TensorBase& to) {
  if (C10_UNLIKELY(from.is_conj() != to.is_conj())) to.unsafeGetTensorImpl()->_set_conj(from.is_conj());
  if (C10_UNLIKELY(from.is_neg() != to.is_neg())) to.unsafeGetTensorImpl()->_set_neg(from.is_neg());
  if (from.sizes() == to.sizes() && from.strides() == to.strides() && from.storage_offset() == to.storage_offset()) {
    return;
  }
  c10::TensorImpl* impl = to.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
}

}  // namespace opentrn::device
