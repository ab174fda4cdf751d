// Device storages: a virtual block of HBM beside the host bytes that hold its values.
//
// The data pointer of a neuron storage points at the bytes of a CPU storage (its *host storage*), so that CPU kernels
// work in place on device memory; its context is an `Allocation`. An unbacked storage (dry runs) has no bytes.
#pragma once

#include <atomic>
#include <string>

#include <ATen/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

#include "device/context.h"

namespace opentrn::device {

// The host alias of a storage, kept from one operator for the next: most tensors are read again as they were read
// before, and a new alias costs a tenth of a small operator. Threads may take and put at the same time.
class SpareAlias {
 public:
  SpareAlias() = default;
  SpareAlias(const SpareAlias&) = delete;
  ~SpareAlias() { take(); }
  // Undefined if there is none.
  at::Tensor take() { return reclaim(spare_.exchange(nothing(), std::memory_order_acq_rel)); }
  void put(at::Tensor&& alias) { reclaim(spare_.exchange(alias.unsafeReleaseTensorImpl(), std::memory_order_acq_rel)); }

 private:
  static c10::TensorImpl* nothing() { return c10::UndefinedTensorImpl::singleton(); }
  static at::Tensor reclaim(c10::TensorImpl* alias) {
    return at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(alias));
  }
  std::atomic<c10::TensorImpl*> spare_{nothing()};
};

struct Allocation {
  c10::intrusive_ptr<c10::StorageImpl> host;
  memory::Block* block = nullptr;  // null for zero bytes
  c10::DeviceIndex device = 0;
  bool backed = true;
  bool guarded = false;
  SpareAlias spare_alias;
};

// The allocation of a storage, or null where someone else made its data pointer (DLPack, from_blob).
Allocation* allocation_of(const c10::StorageImpl* storage);

// A new device storage of `bytes`, with uninitialised bytes, or none when `backed` is false.
c10::Storage new_storage(size_t bytes, c10::DeviceIndex device, bool backed = true);
// A new device storage around the bytes of `host`, without a copy.
c10::Storage adopt_storage(c10::Storage host, c10::DeviceIndex device);
// Grows or shrinks a device storage, keeping the common bytes.
void resize_storage(c10::StorageImpl* storage, size_t bytes);
// After an operator wrote through the host storage: takes over a reallocation that it made.
void follow_host_resize(c10::StorageImpl* storage);
// Turns a backed storage into an unbacked one of the same size and address, or back (dry runs).
void drop_bytes(c10::StorageImpl* storage);
void restore_bytes(c10::StorageImpl* storage);

// Says what the memory of a tensor is for, in reports and snapshots.
void mark_category(const at::TensorBase& tensor, memory::Category category);

c10::DeviceAllocator* device_allocator();

// Set while an operator runs, so that allocations know who asks for them.
memory::Origin& current_origin();
// Called for the out-of-memory message: the Python frame of an interned id, or "".
using FrameName = std::string (*)(uint32_t);
void set_frame_name(FrameName name);

// Guard mode (OPENTRN_GUARD=1, for tests): device memory is inaccessible to the host outside an operator.
void enable_guard_mode();
bool guard_mode();
void open_guard(Allocation* allocation);  // nests
void close_guard(Allocation* allocation);

}  // namespace opentrn::device
