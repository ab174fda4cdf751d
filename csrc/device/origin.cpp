#include "device/origin.h"

#include "device/trace.h"

namespace opentrn::device {

OriginScope::OriginScope(const OperatorTraits& traits) : before_(current_origin()) {
  const trace::Place place = trace::current_place();
  memory::Origin& origin = current_origin();
  origin = {};
  origin.operator_id = traits.id;
  origin.module_id = place.module;
  origin.frame_id = place.frame;
  origin.phase = static_cast<uint8_t>(place.phase);
}

}  // namespace opentrn::device
