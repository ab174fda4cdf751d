// Device tensors seen as CPU tensors over the same bytes, and CPU results seen as device tensors.
#pragma once

#include <ATen/Tensor.h>

#include "device/allocation.h"

namespace opentrn::device {

inline bool is_neuron(const at::TensorBase& tensor) { return tensor.device().type() == kNeuron; }

// A CPU tensor with the storage bytes, sizes, strides, offset, conjugate and negative bits of `tensor`.
// Raises for sparse, quantised and nested tensors. The alias must not outlive the operator.
at::Tensor host_alias(const at::TensorBase& tensor);
// Gives an alias back after use: the next host_alias() of the same geometry takes it instead of making one.
void keep_alias(const at::TensorBase& tensor, at::Tensor&& alias);

// A device tensor around `host`'s metadata, in `storage`.
at::Tensor device_tensor(c10::Storage storage, const at::TensorBase& host);

// A CPU result as a tensor of device `index`, around the same bytes. Reuses the tensor object where nobody else has it.
at::Tensor to_device(at::Tensor&& host, c10::DeviceIndex index);

// Copies sizes, strides, offset and the conjugate and negative bits of `from` to `to`, where they differ.
void copy_geometry(const at::TensorBase& from, const at::TensorBase& to);

// Sets on the fresh tensor `to` the conjugate, negative and wrapped-number bits of `from`.
void copy_flags(const at::TensorBase& from, c10::TensorImpl* to);

}  // namespace opentrn::device
