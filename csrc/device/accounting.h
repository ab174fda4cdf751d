// Puts an operator that ran on the clock, into the counters and into the trace.
#pragma once

#include "device/context.h"
#include "device/traits.h"
#include "device/work.h"
#include "timeline/programs.h"

namespace opentrn::device {

struct Ran {
  static constexpr int64_t kNoDim = INT64_MIN;

  OperatorTraits* traits;
  c10::DeviceIndex device;
  TensorRefs inputs;
  c10::ArrayRef<uint8_t> arguments;  // which argument gave each input
  TensorRefs outputs;                // fresh results
  // Where the cost of calls like this one is kept; filled where it is of another generation.
  timeline::KnownCost* known = nullptr;
  bool causal = false;   // attention
  int64_t dim = kNoDim;  // the argument of that name, where it is one number
};

// Issues the operator on the current stream of its device. `work` overrides the description from the tensors.
void account(const Ran& ran, const timeline::Work* work = nullptr);

// A copy between or within devices: inputs are the two tensors in the order of the schema.
void account_copy(OperatorTraits& traits, c10::DeviceIndex device, TensorRefs inputs);

// Work whose cost is known beforehand, on a given stream (collectives, programs). Returns when it runs.
timeline::Interval account_known(OperatorTraits& traits, c10::DeviceIndex device, int64_t stream,
                                 const timeline::OperatorCost& cost, TensorRefs inputs, TensorRefs outputs);

// Keeps a stream busy for a time without an operator (torch.neuron._sleep).
void occupy(c10::DeviceIndex device, int64_t stream, timeline::Nanoseconds duration);

// Waits for the current stream, as a read of a device value by the host does.
void synchronize_host(c10::DeviceIndex device);

SpinLock& totals_mutex();

}  // namespace opentrn::device
