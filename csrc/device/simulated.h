// From an operator's tensors to the signature of its program, and to its simulated duration.
#pragma once

#include <optional>

#include "device/accounting.h"
#include "timeline/programs.h"

namespace opentrn::device {

// Nanoseconds on the core, or nothing where no program covers the operator. An operator on lists of tensors runs one
// group of equal tensors after another.
std::optional<double> simulated_ns(const Ran& ran, const timeline::Work& work);

}  // namespace opentrn::device
