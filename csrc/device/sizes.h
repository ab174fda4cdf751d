// Operators whose result sizes depend on values: what their sizes are in a dry run.
#pragma once

#include <ATen/core/stack.h>

#include "device/signature.h"
#include "device/traits.h"

namespace opentrn::device::dry {

// Rewrites the call so that its sizes can be inferred: a boolean mask among indices becomes integer indices, as many as
// it has true elements where it has bytes, and one for every element where it has not (counted as a stand-in).
void adapt_data_dependent(const OperatorTraits& traits, torch::jit::Stack& stack, Scan& scan);

}  // namespace opentrn::device::dry
