#include "device/memory_report.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <tuple>
#include <vector>

#include <c10/util/Exception.h>

#include "device/traits.h"
#include "device/trace.h"

namespace opentrn::device {
namespace {

constexpr size_t kTopHolders = 8;

struct Holder {
  uint64_t bytes = 0;
  int64_t count = 0;
};

// Live blocks by (operator, module, frame, category), largest first.
std::vector<std::pair<std::string, Holder>> holders(Device& device, std::string (*frame_name)(uint32_t)) {
  std::map<std::tuple<uint32_t, uint32_t, uint32_t, int>, Holder> by_origin;
  device.memory.visit([&](const memory::Segment&, const memory::Block& block) {
    if (block.free) return;
    const memory::Origin& origin = block.origin;
    Holder& holder =
        by_origin[{origin.operator_id, origin.module_id, origin.frame_id, static_cast<int>(origin.category)}];
    holder.bytes += block.size;
    ++holder.count;
  });
  std::vector<std::pair<std::string, Holder>> result;
  for (const auto& [key, holder] : by_origin) {
    const auto& [operator_id, module_id, frame_id, category] = key;
    std::string text = category_name(static_cast<memory::Category>(category));
    text += operator_id ? " made by " + traits_by_id(operator_id).name : std::string(" made by storage allocation");
    if (module_id) text += " in module " + trace::module_name(module_id);
    if (frame_id && frame_name) text += " at " + frame_name(frame_id);
    result.emplace_back(std::move(text), holder);
  }
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  return result;
}

}  // namespace

const char* category_name(memory::Category category) {
  static const char* const names[memory::kCategoryCount] = {
      "other", "parameter", "gradient", "optimizer state", "activation", "temporary", "input", "buffer", "kv cache"};
  return names[static_cast<int>(category)];
}

std::string human_bytes(double bytes) {
  static const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  std::ostringstream out;
  out.precision(unit ? 2 : 0);
  out << std::fixed << bytes << ' ' << units[unit];
  return out.str();
}

void raise_out_of_memory(Device& device, c10::DeviceIndex index, const memory::Shortage& shortage,
                         std::string (*frame_name)(uint32_t)) {
  const auto all = holders(device, frame_name);
  std::ostringstream text;
  text << "opentrn: neuron:" << static_cast<int>(index) << " out of memory: tried to allocate "
       << human_bytes(static_cast<double>(shortage.requested)) << "; "
       << human_bytes(static_cast<double>(shortage.allocated)) << " are allocated and "
       << human_bytes(static_cast<double>(shortage.reserved)) << " reserved of the logical core's "
       << human_bytes(static_cast<double>(shortage.capacity)) << " (" << Context::get().instance() << ")\n"
       << "  held by:";
  for (size_t i = 0; i < std::min(all.size(), kTopHolders); ++i) {
    text << "\n    " << human_bytes(static_cast<double>(all[i].second.bytes)) << " in " << all[i].second.count
         << " allocations: " << all[i].first;
  }
  if (all.size() > kTopHolders) text << "\n    and " << all.size() - kTopHolders << " smaller holders";
  text << "\n  what to try: a smaller batch or sequence, activation checkpointing, a lower-precision optimizer, "
          "sharding over more logical cores (FSDP), or an instance with more HBM per core; "
          "torch.neuron.memory._record_memory_history() adds the Python frame of each holder";
  TORCH_CHECK_WITH(OutOfMemoryError, false, text.str());
}

}  // namespace opentrn::device
