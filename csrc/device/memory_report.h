// What is said when memory runs out: what was asked, what is held, by whom, and what to try.
#pragma once

#include <string>

#include "device/context.h"

namespace opentrn::device {

[[noreturn]] void raise_out_of_memory(Device& device, c10::DeviceIndex index, const memory::Shortage& shortage,
                                      std::string (*frame_name)(uint32_t));

const char* category_name(memory::Category category);
// "1.50 GiB"
std::string human_bytes(double bytes);

}  // namespace opentrn::device
