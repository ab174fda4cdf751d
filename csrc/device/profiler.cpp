// torch.profiler: device time of an operator is what the device was kept busy for while it ran.
#include <memory>

#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include "device/context.h"
#include "device/registration.h"

namespace opentrn::device {
namespace {

class Stubs final : public torch::profiler::impl::ProfilerStubs {
 public:
  void record(c10::DeviceIndex* device, torch::profiler::impl::ProfilerVoidEventStub* event,
              int64_t* cpu_ns) const override {
    const c10::DeviceIndex index = current_device();
    if (device) *device = index;
    if (event) {
      *event = std::make_shared<timeline::Nanoseconds>(
          Context::get().attached() ? Context::get().device(index).totals.device_busy_ns : 0);
    }
    if (cpu_ns) *cpu_ns = c10::getTime();
  }
  // Microseconds.
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub* first,
                const torch::profiler::impl::ProfilerVoidEventStub* second) const override {
    const auto time = [](const auto* event) { return *std::static_pointer_cast<timeline::Nanoseconds>(*event); };
    return static_cast<float>(static_cast<double>(time(second) - time(first)) * 1e-3);
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> visit) const override { visit(current_device()); }
  void synchronize() const override {
    if (Context::get().attached()) Context::get().device(current_device()).timeline.synchronize();
  }
};

}  // namespace

void register_profiler() {
  static Stubs stubs;
  torch::profiler::impl::registerPrivateUse1Methods(&stubs);
}

}  // namespace opentrn::device
