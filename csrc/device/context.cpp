#include "device/context.h"

#include <pthread.h>

#include <c10/util/Exception.h>

namespace opentrn::device {
namespace {

constinit thread_local c10::DeviceIndex this_device = 0;
// One for every index there can be: an array needs no initialiser, which would be asked for at each access.
constinit thread_local std::array<int64_t, 128> this_streams{};

}  // namespace

Context& Context::get() {
  // Never destroyed: tensors may outlive every static object at interpreter exit.
  static Context* context = [] {
    auto* made = new Context();
    pthread_atfork(nullptr, nullptr, [] { Context::get().mark_forked(); });
    return made;
  }();
  return *context;
}

void Context::attach(const timeline::Machine& machine, std::string instance) {
  TORCH_CHECK(!used_, "opentrn: ", instance, " cannot be attached: ", instance_,
              " already holds tensors of this process\n  what to do: call opentrn.attach() before the first use of the "
              "device, or set OPENTRN_INSTANCE");
  machine_ = machine;
  instance_ = std::move(instance);
  devices_.clear();
  for (int index = 0; index < static_cast<int>(machine_.device_count); ++index) {
    devices_.push_back(std::make_unique<Device>(machine_, index));
  }
  attached_.store(true, std::memory_order_release);
}

void Context::ensure_slow() {
  TORCH_CHECK(!forked_,
              "opentrn: the neuron device was used before this process was forked, and a forked child "
              "cannot use it\n  what to do: start workers with the 'spawn' method "
              "(torch.multiprocessing.set_start_method('spawn')), or keep device tensors out of them");
  if (attached()) return;
  TORCH_CHECK(attach_hook_, "opentrn: no machine is attached");
  attach_hook_();
}

void Context::check_index(c10::DeviceIndex index) {
  ensure();
  TORCH_CHECK(index >= 0 && static_cast<size_t>(index) < devices_.size(),
              "opentrn: there is no device neuron:", static_cast<int>(index), ": ", instance_, " has ", devices_.size(),
              " (neuron:0 to neuron:", devices_.size() - 1,
              ")\n  what to do: use an index in that range, or attach a larger instance (OPENTRN_INSTANCE)");
}

Device& Context::device(c10::DeviceIndex index) {
  if (C10_UNLIKELY(!attached() || forked_ || index < 0 || static_cast<size_t>(index) >= devices_.size())) {
    check_index(index);
  }
  return *devices_[index];
}

c10::DeviceIndex current_device() { return this_device; }

void set_current_device(c10::DeviceIndex index) {
  if (index == this_device) return;
  Context::get().check_index(index);
  this_device = index;
}

int64_t current_stream(c10::DeviceIndex index) { return index < 0 ? 0 : this_streams[index]; }

void set_current_stream(c10::DeviceIndex index, int64_t stream) {
  TORCH_CHECK(index >= 0, "opentrn: a stream needs the index of its device");
  this_streams[index] = stream;
}

}  // namespace opentrn::device
