// Who asks for memory and time while an operator runs: the operator, its module, its part of the step, its source line.
#pragma once

#include "device/allocation.h"
#include "device/traits.h"

namespace opentrn::device {

// For as long as it lives, what the calling thread does is the work of one operator.
class OriginScope {
 public:
  explicit OriginScope(const OperatorTraits& traits);
  ~OriginScope() { current_origin() = before_; }
  OriginScope(const OriginScope&) = delete;
  OriginScope& operator=(const OriginScope&) = delete;

 private:
  memory::Origin before_;
};

}  // namespace opentrn::device
