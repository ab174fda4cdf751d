// Values that stand in for small integer and boolean results of inputs without bytes.
#pragma once

#include <ATen/Tensor.h>

#include "device/traits.h"

namespace opentrn::device::dry {

// Fills `host` (a CPU tensor, the bytes of result `index` of the operator) by the operator's rule and returns its name,
// or null where nothing can depend on the values.
// `extent` is the size of the dimension that indices point into.
const char* fill_stand_in(const OperatorTraits& traits, size_t index, int64_t extent, at::Tensor& host);

}  // namespace opentrn::device::dry
