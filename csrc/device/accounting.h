// Puts an operator that ran on the clock, into the counters and into the trace.
#pragma once

#include "device/context.h"
#include "device/traits.h"
#include "device/work.h"

namespace opentrn::device {

struct Ran {
  OperatorTraits* traits;
  c10::DeviceIndex device;
  TensorRefs inputs;
  uint64_t written = 0;  // of inputs
  TensorRefs outputs;    // fresh results
};

// Issues the operator on the current stream of its device. `work` overrides the description from the tensors.
void account(const Ran& ran, const timeline::Work* work = nullptr);

// Waits for the current stream, as a read of a device value by the host does.
void synchronize_host(c10::DeviceIndex device);

std::mutex& totals_mutex();

}  // namespace opentrn::device
