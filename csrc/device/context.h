// The process's view of the attached machine: its devices, the current one, and the state every operator consults.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Stream.h>

#include "device/segments.h"
#include "timeline/clock.h"
#include "timeline/cost.h"
#include "timeline/machine.h"

namespace opentrn::device {

constexpr c10::DeviceType kNeuron = c10::DeviceType::PrivateUse1;

// What one device did since attach or reset.
struct Totals {
  int64_t operators = 0;
  int64_t device_busy_ns = 0;
  int64_t modelled_ns = 0;
  int64_t simulated_ns = 0;
  int64_t flops = 0;
  int64_t hbm_bytes = 0;
};

struct Device {
  Device(const timeline::Machine& machine, int index) : memory(machine, index) {}
  memory::SegmentAllocator memory;
  timeline::DeviceTimeline timeline;
  Totals totals;
  std::array<Totals, 5> phase_totals;  // by trace::Phase
  int64_t next_stream = 1;
};

class Context {
 public:
  static Context& get();

  // Attaches `machine`; a second call before any device memory exists replaces it, afterwards it raises.
  void attach(const timeline::Machine& machine, std::string instance);
  bool attached() const { return attached_.load(std::memory_order_acquire); }
  // Attaches through the hook if nothing is attached yet, and refuses forked children.
  void ensure() {
    if (C10_UNLIKELY(!attached() || forked_)) ensure_slow();
  }
  void set_attach_hook(std::function<void()> hook) { attach_hook_ = std::move(hook); }

  const timeline::Machine& machine() const { return machine_; }
  const std::string& instance() const { return instance_; }
  int device_count() {
    ensure();
    return static_cast<int>(devices_.size());
  }
  // Raises for an index that the machine does not have.
  Device& device(c10::DeviceIndex index);
  void check_index(c10::DeviceIndex index);

  void mark_used() { used_ = true; }
  // A child of a process that only attached may use the device: nothing lives there yet.
  void mark_forked() { forked_ = used_; }
  bool forked() const { return forked_; }

 private:
  void ensure_slow();

  std::atomic<bool> attached_{false};
  bool forked_ = false;
  bool used_ = false;
  std::function<void()> attach_hook_;
  timeline::Machine machine_;
  std::string instance_;
  std::vector<std::unique_ptr<Device>> devices_;
};

// Per thread, as PyTorch has it: the current device and, per device, the current stream.
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex index);
int64_t current_stream(c10::DeviceIndex index);
void set_current_stream(c10::DeviceIndex index, int64_t stream);

// The index a tensor option of "neuron" without index means.
inline c10::DeviceIndex resolve(c10::Device device) { return device.has_index() ? device.index() : current_device(); }

}  // namespace opentrn::device
