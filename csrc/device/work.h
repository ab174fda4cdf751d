// From an operator's tensors to the `Work` its cost formula wants: FLOPs, bytes, rows.
#pragma once

#include <ATen/core/Tensor.h>

#include "device/traits.h"
#include "timeline/cost.h"

namespace opentrn::device {

using TensorRefs = c10::ArrayRef<const at::TensorBase*>;

// inputs: every defined tensor argument, in order, lists flattened; arguments[i]: the argument that gave inputs[i];
// outputs: fresh results only.
timeline::Work describe_work(const OperatorTraits& traits, TensorRefs inputs, c10::ArrayRef<uint8_t> arguments,
                             TensorRefs outputs);

}  // namespace opentrn::device
