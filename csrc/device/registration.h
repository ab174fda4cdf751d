// Everything that is registered with PyTorch, in the order it has to be.
#pragma once

namespace opentrn::device {

void register_device_interfaces();  // guard.cpp: guard, hooks, allocators
void register_autocast();           // autocast.cpp
void register_profiler();           // profiler.cpp
int register_operators();           // registration.cpp: own kernels first, then the fallback; count of direct ones

}  // namespace opentrn::device
