#include "device/allocation.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <unordered_map>

#include <c10/core/CPUAllocator.h>

#include "device/dry.h"
#include "device/memory_report.h"

namespace opentrn::device {
namespace {

bool guarding = false;
FrameName frame_name = nullptr;
constinit thread_local memory::Origin this_origin;

// ---- Guarded host memory: whole pages, closed outside operators --------------------------------------------------

struct GuardedPages {
  void* base;
  size_t bytes;
  int open = 0;
};
std::mutex guarded_mutex;
std::unordered_map<const void*, GuardedPages>& guarded_pages() {
  static auto* pages = new std::unordered_map<const void*, GuardedPages>();
  return *pages;
}

void free_guarded(void* pointer) {
  std::lock_guard<std::mutex> lock(guarded_mutex);
  auto found = guarded_pages().find(pointer);
  munmap(found->second.base, found->second.bytes);
  guarded_pages().erase(found);
}

c10::DataPtr allocate_guarded(size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t rounded = (std::max<size_t>(bytes, 1) + page - 1) / page * page;
  void* base = mmap(nullptr, rounded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK(base != MAP_FAILED, "opentrn: guard mode could not map ", rounded, " bytes");
  std::lock_guard<std::mutex> lock(guarded_mutex);
  guarded_pages()[base] = {base, rounded};
  return {base, base, &free_guarded, c10::Device(c10::DeviceType::CPU)};
}

void move_guard(Allocation* allocation, int by) {
  if (!allocation || !allocation->guarded) return;
  std::lock_guard<std::mutex> lock(guarded_mutex);
  auto found = guarded_pages().find(allocation->host->data());
  if (found == guarded_pages().end()) return;
  GuardedPages& pages = found->second;
  const int before = pages.open;
  pages.open += by;
  if (before == 0) mprotect(pages.base, pages.bytes, PROT_READ | PROT_WRITE);
  if (pages.open == 0) mprotect(pages.base, pages.bytes, PROT_NONE);
}

// ---- Blocks ------------------------------------------------------------------------------------------------------

// The time of an event; nobody asks for it while nothing is logged.
int64_t event_time(const memory::SegmentAllocator& memory) { return memory.logging() ? timeline::host_now() : 0; }

void give_back(memory::Block* block, c10::DeviceIndex index) {
  memory::SegmentAllocator& memory = Context::get().device(index).memory;
  memory.release(block, event_time(memory));
}

void release(void* context) {
  auto* allocation = static_cast<Allocation*>(context);
  if (!allocation->backed) dry::count_unbacked(-1);
  // A forked child drops tensors that its parent owns: nothing to give back, and nothing may raise here.
  if (allocation->block && !Context::get().forked()) {
    give_back(allocation->block, allocation->device);
  }
  delete allocation;
}

memory::Block* new_block(size_t bytes, c10::DeviceIndex index) {
  Context& context = Context::get();
  Device& device = context.device(index);
  context.mark_used();
  if (bytes == 0) return nullptr;
  memory::Shortage shortage{};
  memory::Block* block = device.memory.allocate(bytes, this_origin, event_time(device.memory), &shortage);
  if (!block) raise_out_of_memory(device, index, shortage, frame_name);
  return block;
}

c10::intrusive_ptr<c10::StorageImpl> new_host_storage(size_t bytes, bool backed) {
  auto* allocator = c10::GetCPUAllocator();
  c10::DataPtr data = !backed    ? c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU))
                      : guarding ? allocate_guarded(bytes)
                                 : allocator->allocate(bytes);
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes),
                                               std::move(data), allocator, true);
}

const char kUnbackedMessage[] =
    "opentrn: this tensor has no bytes: it was made in a dry run, where large tensors are only a shape and an address\n"
    "  what to do: run without --dry, or read something computed from small integer inputs only";

void mark_unbacked(c10::StorageImpl* storage) {
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(std::string(kUnbackedMessage));
}

c10::DataPtr data_pointer(Allocation* allocation) {
  // const_cast: the host storage's own checks (copy on write) do not apply to device memory.
  void* bytes = allocation->host->_mutable_data_ptr_no_checks().get();
  return {bytes, allocation, &release, c10::Device(kNeuron, allocation->device)};
}

c10::Storage wrap(memory::Block* block, c10::intrusive_ptr<c10::StorageImpl> host, size_t bytes,
                  c10::DeviceIndex device, bool backed) {
  auto allocation = std::make_unique<Allocation>();
  allocation->block = block;
  allocation->host = std::move(host);
  allocation->device = device;
  allocation->backed = backed;
  allocation->guarded = guarding && backed;
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes),
                                                       data_pointer(allocation.get()), device_allocator(), true);
  allocation.release();
  if (!backed) {
    dry::count_unbacked(1);
    mark_unbacked(storage.get());
  }
  return c10::Storage(std::move(storage));
}

}  // namespace

Allocation* allocation_of(const c10::StorageImpl* storage) {
  auto& data = const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
  return data.get_deleter() == &release ? static_cast<Allocation*>(data.get_context()) : nullptr;
}

c10::Storage new_storage(size_t bytes, c10::DeviceIndex device, bool backed) {
  // The virtual block first: what does not fit the device must not ask the host for its bytes.
  memory::Block* block = new_block(bytes, device);
  c10::intrusive_ptr<c10::StorageImpl> host;
  try {
    host = new_host_storage(bytes, backed);
  } catch (...) {
    if (block) give_back(block, device);
    throw;
  }
  return wrap(block, std::move(host), bytes, device, backed);
}

c10::Storage adopt_storage(c10::Storage host, c10::DeviceIndex device) {
  const size_t bytes = host.nbytes();
  if (C10_UNLIKELY(guarding)) {
    // CPU kernels allocate in ordinary memory; under guard mode the result moves into guarded pages.
    c10::Storage storage = new_storage(bytes, device);
    Allocation* allocation = allocation_of(storage.unsafeGetStorageImpl());
    open_guard(allocation);
    if (bytes) std::memcpy(allocation->host->mutable_data(), host.data(), bytes);
    close_guard(allocation);
    return storage;
  }
  memory::Block* block = new_block(bytes, device);
  return wrap(block, c10::intrusive_ptr<c10::StorageImpl>::reclaim(host.unsafeReleaseStorageImpl()), bytes, device,
              true);
}

void resize_storage(c10::StorageImpl* storage, size_t bytes) {
  TORCH_CHECK(storage->resizable(), "opentrn: trying to resize a storage that is not resizable");
  Allocation* old = allocation_of(storage);
  TORCH_CHECK(old, "opentrn: a storage that another library owns cannot be resized");
  c10::Storage made = new_storage(bytes, old->device, old->backed);
  Allocation* fresh = allocation_of(made.unsafeGetStorageImpl());
  const size_t common = std::min(bytes, storage->nbytes());
  if (common && old->backed) {
    open_guard(old);
    open_guard(fresh);
    std::memcpy(fresh->host->mutable_data(), old->host->data(), common);
    close_guard(fresh);
    close_guard(old);
  }
  storage->set_data_ptr_noswap(std::move(made.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
  storage->set_nbytes(bytes);
}

void follow_host_resize(c10::StorageImpl* storage) {
  Allocation* allocation = allocation_of(storage);
  if (!allocation || !allocation->backed) return;
  const size_t bytes = allocation->host->nbytes();
  const void* pointer = allocation->host->_mutable_data_ptr_no_checks().get();
  if (bytes == storage->nbytes() && pointer == storage->_mutable_data_ptr_no_checks().get()) return;
  c10::Storage host(allocation->host);
  c10::Storage made = adopt_storage(std::move(host), allocation->device);
  storage->set_data_ptr_noswap(std::move(made.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
  storage->set_nbytes(bytes);
}

void drop_bytes(c10::StorageImpl* storage) {
  Allocation* allocation = allocation_of(storage);
  if (!allocation || !allocation->backed) return;
  allocation->host = new_host_storage(storage->nbytes(), false);
  allocation->spare_alias.take();  // it holds the bytes
  allocation->backed = false;
  allocation->guarded = false;
  dry::count_unbacked(1);
  // The context stays; only the pointer to the bytes goes.
  auto& data = storage->_mutable_data_ptr_no_checks();
  data.release_context();
  data = data_pointer(allocation);
  mark_unbacked(storage);
}

void restore_bytes(c10::StorageImpl* storage) {
  Allocation* allocation = allocation_of(storage);
  if (!allocation || allocation->backed) return;
  allocation->host = new_host_storage(storage->nbytes(), true);
  allocation->backed = true;
  allocation->guarded = guarding;
  dry::count_unbacked(-1);
  auto& data = storage->_mutable_data_ptr_no_checks();
  data.release_context();
  data = data_pointer(allocation);
  storage->clear_data_ptr_access_error_msg_();
}

void mark_category(const at::TensorBase& tensor, memory::Category category) {
  if (tensor.device().type() != kNeuron || !tensor.has_storage()) return;
  Allocation* allocation = allocation_of(tensor.storage().unsafeGetStorageImpl());
  if (!allocation || !allocation->block) return;
  memory::SegmentAllocator& memory = Context::get().device(allocation->device).memory;
  memory.set_category(allocation->block, category, event_time(memory));
}

memory::Origin& current_origin() { return this_origin; }
void set_frame_name(FrameName name) { frame_name = name; }
void enable_guard_mode() { guarding = true; }
bool guard_mode() { return guarding; }
void open_guard(Allocation* allocation) { move_guard(allocation, 1); }
void close_guard(Allocation* allocation) { move_guard(allocation, -1); }

// ---- The allocator PyTorch sees ----------------------------------------------------------------------------------

namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;

void copy_counters(const memory::Counters& counters, StatArray& to) {
  // PyTorch's order: aggregate, small pool, large pool.
  for (size_t index = 0; index < counters.size(); ++index) {
    Stat& stat = to[index];
    stat.current = counters[index].current;
    stat.peak = counters[index].peak;
    stat.allocated = counters[index].allocated;
    stat.freed = counters[index].freed;
  }
}

class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    c10::Storage storage = new_storage(bytes, current_device());
    return std::move(storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks());
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool initialized() override { return Context::get().attached(); }
  void emptyCache(c10::MempoolId_t) override {
    if (!initialized()) return;
    for (int index = 0; index < Context::get().device_count(); ++index) {
      Context::get().device(static_cast<c10::DeviceIndex>(index)).memory.empty_cache();
    }
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}  // values are ready when an operator returns
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    const memory::Statistics from = memory_of(index).statistics();
    copy_counters(from.allocation, stats.allocation);
    copy_counters(from.segment, stats.segment);
    copy_counters(from.allocation, stats.active);
    copy_counters(from.inactive_split, stats.inactive_split);
    copy_counters(from.allocated_bytes, stats.allocated_bytes);
    copy_counters(from.reserved_bytes, stats.reserved_bytes);
    copy_counters(from.allocated_bytes, stats.active_bytes);
    copy_counters(from.inactive_split_bytes, stats.inactive_split_bytes);
    copy_counters(from.requested_bytes, stats.requested_bytes);
    stats.num_alloc_retries = from.retries;
    stats.num_ooms = from.out_of_memory;
    stats.num_device_alloc = from.segment_allocations;
    stats.num_device_free = from.segment_frees;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override { memory_of(index).reset_accumulated(); }
  void resetPeakStats(c10::DeviceIndex index) override { memory_of(index).reset_peak(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    memory::SegmentAllocator& memory = memory_of(index);
    const auto reserved = static_cast<uint64_t>(memory.statistics().reserved_bytes[0].current);
    return {memory.capacity() - std::min(memory.capacity(), reserved), memory.capacity()};
  }

 private:
  static memory::SegmentAllocator& memory_of(c10::DeviceIndex index) {
    return Context::get().device(index < 0 ? current_device() : index).memory;
  }
};

}  // namespace

c10::DeviceAllocator* device_allocator() {
  static auto* allocator = new DeviceAllocator();
  return allocator;
}

}  // namespace opentrn::device
