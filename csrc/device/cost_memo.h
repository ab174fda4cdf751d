// Costs of operator calls worked out before, so that a call like an earlier one does not describe its work again.
#pragma once

#include "device/accounting.h"

namespace opentrn::device {

// The place for the cost of calls like `ran`: of one operator, on tensors of one geometry each. Belongs to the calling
// thread, which may read and fill it until it asks for the next one.
timeline::KnownCost& known_cost(const Ran& ran);

}  // namespace opentrn::device
