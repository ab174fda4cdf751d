#pragma once

#include <torch/library.h>

#include "device/allocation.h"
#include "device/traits.h"

namespace opentrn::device {

// A storage for a fresh tensor of `bytes`; in a dry run the rules of dry.h decide whether it has bytes.
c10::Storage new_storage_for(size_t bytes, at::ScalarType type, c10::DeviceIndex device);

// Opens the bytes of one tensor under guard mode, for code outside the fallback.
class OpenedBytes {
 public:
  explicit OpenedBytes(const at::TensorBase& tensor);
  ~OpenedBytes();

 private:
  Allocation* allocation_;
};

void register_own_operators(torch::Library& aten);

}  // namespace opentrn::device
