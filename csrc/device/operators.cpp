// Operators with a kernel of their own: those that make, reshape or re-point device storages, and those that have no
// CPU kernel to run in place.
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include "device/accounting.h"
#include "device/alias.h"
#include "device/dry.h"
#include "device/host_call.h"
#include "device/operators.h"

namespace opentrn::device {
namespace {

at::Tensor tensor_in_new_storage(at::IntArrayRef sizes, at::IntArrayRef strides, caffe2::TypeMeta dtype,
                                 c10::DeviceIndex device) {
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, dtype.itemsize());
  auto impl = c10::make_intrusive<c10::TensorImpl>(new_storage_for(bytes, dtype.toScalarType(), device),
                                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype);
  impl->set_sizes_and_strides(sizes, strides);
  return at::Tensor(std::move(impl));
}

c10::DeviceIndex target_device(std::optional<at::Device> device) {
  enter_operator();
  return device ? resolve(*device) : current_device();
}

void check_options(std::optional<at::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK(!layout || *layout == at::kStrided, "opentrn: neuron has dense tensors only, no ", *layout,
              " ones\n  what to do: make it on the host and call .to_dense() before moving it");
  TORCH_CHECK(!pin_memory || !*pin_memory, "opentrn: only CPU tensors can be pinned");
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> device,
                         std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  at::detail::check_size_nonnegative(sizes);
  const c10::DeviceIndex index = target_device(device);
  static const OperatorTraits& traits = traits_by_name("aten::empty_strided", timeline::OperatorClass::kNone);
  const OriginScope origin(traits);
  return tensor_in_new_storage(sizes, strides, at::scalarTypeToTypeMeta(c10::dtype_or_default(dtype)), index);
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> memory_format) {
  check_options(layout, pin_memory);
  at::detail::check_size_nonnegative(sizes);
  const c10::DeviceIndex index = target_device(device);
  static const OperatorTraits& traits = traits_by_name("aten::empty.memory_format", timeline::OperatorClass::kNone);
  const OriginScope origin(traits);
  const auto type = at::scalarTypeToTypeMeta(c10::dtype_or_default(dtype));
  const size_t bytes = at::detail::computeStorageNbytesContiguous(sizes, type.itemsize());
  auto impl = c10::make_intrusive<c10::TensorImpl>(new_storage_for(bytes, type.toScalarType(), index),
                                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type);
  if (sizes.size() != 1 || sizes[0] != 0) impl->set_sizes_contiguous(sizes);
  if (memory_format && *memory_format != at::MemoryFormat::Contiguous) impl->empty_tensor_restride(*memory_format);
  return at::Tensor(std::move(impl));
}

void grow_storage(const at::Tensor& self, size_t bytes) {
  c10::StorageImpl* storage = self.storage().unsafeGetStorageImpl();
  if (bytes > storage->nbytes()) resize_storage(storage, bytes);
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  enter_operator();
  static const OperatorTraits& traits = traits_by_name("aten::resize_", timeline::OperatorClass::kNone);
  const OriginScope origin(traits);
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  if (self.sizes() != sizes) {
    impl->set_sizes_contiguous(sizes);
    grow_storage(self, at::detail::computeStorageNbytesContiguous(sizes, self.itemsize(),
                                                                  static_cast<size_t>(self.storage_offset())));
  }
  if (format) {
    TORCH_CHECK(*format != at::MemoryFormat::Preserve, "Unsupported memory format ", *format);
    impl->empty_tensor_restride(*format);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides) {
  TORCH_CHECK(source.device().type() == kNeuron || source.nbytes() == 0,
              "opentrn: set_ on a neuron tensor got a storage on ", source.device(),
              "\n  what to do: move the storage to the device first");
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  if (C10_UNLIKELY(dry::concerned())) {
    // PyTorch's check compares addresses, which storages without bytes have not.
    TORCH_CHECK(offset >= 0, "Tensor: invalid storage offset ", offset);
    TORCH_CHECK(strides.empty() || sizes.size() == strides.size(), "unequal size length (", sizes.size(),
                ") and stride length (", strides.size(), ")");
    if (self.storage().unsafeGetStorageImpl() != source.unsafeGetStorageImpl()) impl->set_storage_keep_dtype(source);
  } else {
    at::native::checkSetStorage(self, source, offset, sizes, strides, false);
  }
  impl->set_storage_offset(offset);
  if (strides.empty() && !sizes.empty()) {
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides);
  }
  grow_storage(self, at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize(),
                                                      static_cast<size_t>(offset)));
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, elements, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.is_same(source)) return self;
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_empty(at::Tensor& self) { return set_storage(self, new_storage(0, self.device().index()), 0, {0}, {}); }

at::Scalar local_scalar_dense(const at::Tensor& self) {
  enter_operator();
  synchronize_host(self.device().index());
  if (C10_UNLIKELY(dry::concerned() && is_unbacked(self))) return dry::stand_in_scalar(self);
  const OpenedBytes bytes(self);
  const c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  return at::_local_scalar_dense(host_alias(self));
}

// Dense tensors of CPU and neuron may stand in for each other, so that Module.to() keeps tied parameters tied.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto dense = [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_nested() &&
           (tensor.device().is_cpu() || is_neuron(tensor)) && !tensor.unsafeGetTensorImpl()->is_python_dispatch();
  };
  return dense(self) && dense(from);
}

// Neuron keeps padded batches: told that a mask is not left-aligned, TransformerEncoder takes its dense path.
bool mask_is_never_left_aligned(const at::Tensor&, const at::Tensor&) { return false; }

void record_stream(at::Tensor&, at::Stream) {}  // values are ready when an operator returns

}  // namespace

c10::Storage new_storage_for(size_t bytes, at::ScalarType type, c10::DeviceIndex device) {
  return new_storage(bytes, device, dry::gets_bytes(bytes, type));
}

OpenedBytes::OpenedBytes(const at::TensorBase& tensor)
    : allocation_(allocation_of(tensor.storage().unsafeGetStorageImpl())) {
  if (C10_UNLIKELY(guard_mode())) open_guard(allocation_);
}
OpenedBytes::~OpenedBytes() {
  if (C10_UNLIKELY(guard_mode())) close_guard(allocation_);
}

void register_own_operators(torch::Library& aten) {
  aten.impl("empty.memory_format", &empty);
  aten.impl("empty_strided", &empty_strided);
  aten.impl("as_strided", &at::native::as_strided_tensorimpl);
  aten.impl("view", &at::native::view);
  aten.impl("_reshape_alias", &at::native::_reshape_alias);
  aten.impl("unfold", &at::native::unfold);
  aten.impl("view_as_real", &at::native::view_as_real);
  aten.impl("view_as_complex", &at::native::view_as_complex);
  aten.impl("is_set_to", &at::native::is_set_to);
  aten.impl("resize_", &resize_);
  aten.impl("set_.source_Storage_storage_offset", &set_storage);
  aten.impl("set_.source_Storage", &set_whole_storage);
  aten.impl("set_.source_Tensor", &set_tensor);
  aten.impl("set_", &set_empty);
  aten.impl("_local_scalar_dense", &local_scalar_dense);
  aten.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
  aten.impl("record_stream", &record_stream);
  aten.impl("_nested_tensor_from_mask_left_aligned", &mask_is_never_left_aligned);
}

}  // namespace opentrn::device
