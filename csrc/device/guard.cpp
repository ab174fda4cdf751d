// What PyTorch asks of a device type: current device, streams and events on virtual time, and the hooks of PrivateUse1.
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>
#include <mutex>
#include <map>

#include "device/accounting.h"
#include "device/allocation.h"
#include "device/context.h"
#include "device/random.h"
#include "device/registration.h"

namespace opentrn::device {
namespace {

struct VirtualEvent {
  timeline::Nanoseconds time = 0;
  c10::DeviceIndex device = 0;
  bool timing = false;
};

timeline::DeviceTimeline& timeline_of(c10::DeviceIndex index) { return Context::get().device(index).timeline; }

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kNeuron; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::DeviceIndex before = current_device();
    set_current_device(device.index());
    return {kNeuron, before};
  }
  c10::Device getDevice() const override { return {kNeuron, current_device()}; }
  void setDevice(c10::Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    try {
      set_current_device(device.index());
    } catch (...) {  // noexcept by contract: an index that is not there stays unset
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    try {
      return static_cast<c10::DeviceIndex>(Context::get().device_count());
    } catch (...) {
      return 0;
    }
  }

  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, current_stream(device.index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    const c10::DeviceIndex index = resolve(device);
    Device& state = Context::get().device(index);
    std::lock_guard<SpinLock> lock(totals_mutex());
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kNeuron, index), state.next_stream++);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::DeviceIndex index = stream.device_index();
    c10::Stream before(c10::Stream::UNSAFE, c10::Device(kNeuron, index), current_stream(index));
    set_current_stream(index, stream.id());
    return before;
  }
  // Asking costs virtual host time, so that a loop that polls comes to an end.
  static timeline::Nanoseconds asked() {
    timeline::advance_host(std::max<timeline::Nanoseconds>(
        1, static_cast<timeline::Nanoseconds>(Context::get().machine().synchronize_ns)));
    return timeline::host_now();
  }
  bool queryStream(const c10::Stream& stream) const override {
    return timeline_of(stream.device_index()).ready(stream.id()) <= asked();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    timeline_of(stream.device_index()).synchronize_stream(stream.id());
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override { timeline_of(index).synchronize(); }
  bool isStreamCapturing(const c10::Stream&) const override { return false; }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device_index,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(device_index == -1 || device_index == stream.device_index(),
                "opentrn: an event of neuron:", static_cast<int>(device_index),
                " cannot be recorded on a stream of neuron:", static_cast<int>(stream.device_index()));
    if (!*event) *event = new VirtualEvent();
    auto* virtual_event = static_cast<VirtualEvent*>(*event);
    virtual_event->device = stream.device_index();
    virtual_event->timing = flag == c10::EventFlag::BACKEND_DEFAULT;
    // A record is queued work of its own: the host pays for issuing it, and two records are never at one time.
    virtual_event->time = timeline_of(stream.device_index()).issue(Context::get().machine(), stream.id(), 1).device_end;
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (!event) return;  // waiting for an event that was never recorded is no wait, as on CUDA
    timeline_of(stream.device_index()).wait_until(stream.id(), static_cast<VirtualEvent*>(event)->time);
  }
  bool queryEvent(void* event) const override { return !event || static_cast<VirtualEvent*>(event)->time <= asked(); }
  void synchronizeEvent(void* event) const override {
    if (!event) return;
    timeline::set_host_now(std::max(timeline::host_now(), static_cast<VirtualEvent*>(event)->time));
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    TORCH_CHECK(first && second,
                "opentrn: elapsed_time needs two recorded events\n"
                "  what to do: call record() on both before elapsed_time()");
    const auto* start = static_cast<VirtualEvent*>(first);
    const auto* end = static_cast<VirtualEvent*>(second);
    TORCH_CHECK(start->timing && end->timing, "opentrn: elapsed_time needs events made with enable_timing=True");
    return static_cast<double>(end->time - start->time) * 1e-6;  // milliseconds
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<VirtualEvent*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

// Pinned memory is ordinary host memory that remembers it is pinned.
class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = c10::GetCPUAllocator()->allocate(bytes);
    void* pointer = data.get();
    if (pointer) {
      std::lock_guard<std::mutex> lock(mutex());
      ranges()[reinterpret_cast<uintptr_t>(pointer)] = bytes;
    }
    auto* kept = new c10::DataPtr(std::move(data));
    return {pointer, kept, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

  static bool is_pinned(const void* pointer) {
    std::lock_guard<std::mutex> lock(mutex());
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    auto after = ranges().upper_bound(address);
    if (after == ranges().begin()) return false;
    --after;
    return address < after->first + std::max<size_t>(after->second, 1);
  }

 private:
  static void release(void* context) {
    auto* kept = static_cast<c10::DataPtr*>(context);
    {
      std::lock_guard<std::mutex> lock(mutex());
      ranges().erase(reinterpret_cast<uintptr_t>(kept->get()));
    }
    delete kept;
  }
  static std::mutex& mutex() {
    static auto* made = new std::mutex();
    return *made;
  }
  static std::map<uintptr_t, size_t>& ranges() {
    static auto* made = new std::map<uintptr_t, size_t>();
    return *made;
  }
};

PinnedAllocator* pinned_allocator() {
  static auto* allocator = new PinnedAllocator();
  return allocator;
}

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return Context::get().attached(); }
  void init() const override { Context::get().ensure(); }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(Context::get().device_count()); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex before = current_device();
    set_current_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current_device() : exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index < 0 ? current_device() : index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    const c10::DeviceIndex device = index < 0 ? current_device() : index;
    Context::get().check_index(device);
    return at::make_generator<NeuronGenerator>(device);
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  bool isPinnedPtr(const void* pointer) const override { return PinnedAllocator::is_pinned(pointer); }
  at::Device getDeviceFromPtr(void*) const override { return {kNeuron, current_device()}; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), bytes);
  }
};

}  // namespace

void register_device_interfaces() {
  static Guard guard;
  static Hooks hooks;
  c10::impl::DeviceGuardImplRegistrar registrar(kNeuron, &guard);
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::SetAllocator(kNeuron, device_allocator());
  at::setHostAllocator(kNeuron, pinned_allocator());
}

}  // namespace opentrn::device
