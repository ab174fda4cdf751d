#include "device/registration.h"

#include <memory>

#include <torch/library.h>

#include "device/fallback.h"
#include "device/host_kernels.h"
#include "device/operators.h"

namespace opentrn::device {

int register_operators() {
  static auto aten =
      std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  register_own_operators(*aten);
  register_host_kernels(*aten);
  register_attention(*aten);
  register_hot_operators(*aten);
  return register_fallback();
}

}  // namespace opentrn::device
