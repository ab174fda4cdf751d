// DistributedDataParallel's own statistics (`_get_ddp_logging_data`), in virtual device time.
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "device/context.h"

namespace c10d {
namespace {

class NeuronTimer final : public Timer {
 public:
  explicit NeuronTimer(c10::Device device) : device_(device) {}

  void record(Event event) override {
    getTimeRef(event) = opentrn::device::Context::get().device(device_.index()).timeline.latest();
  }

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    if (!getTimestamp(start) || !getTimestamp(end)) return std::nullopt;
    return getTimeRef(end) - getTimeRef(start);
  }

 private:
  c10::Device device_;
};

C10_REGISTER_TYPED_CLASS(TimerRegistry, opentrn::device::kNeuron, NeuronTimer)

}  // namespace
}  // namespace c10d
