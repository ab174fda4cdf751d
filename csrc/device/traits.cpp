#include "device/traits.h"

#include <deque>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace opentrn::device {
namespace {

// Operators that accept tensors of other devices beside neuron ones, as on CUDA.
const std::unordered_set<std::string_view> kMixing = {"copy_",
                                                      "_copy_from",
                                                      "_copy_from_and_resize",
                                                      "index",
                                                      "index_put",
                                                      "index_put_",
                                                      "_index_put_impl_",
                                                      "_unsafe_index",
                                                      "_unsafe_index_put",
                                                      "copy",
                                                      "_foreach_copy_",
                                                      "record_stream",
                                                      "set_",
                                                      "_has_compatible_shallow_copy_type",
                                                      "_pin_memory",
                                                      "is_pinned"};

// Operators whose output shape or result depends on values: the host has to wait for the device.
const std::unordered_set<std::string_view> kSynchronizing = {"_local_scalar_dense",
                                                             "equal",
                                                             "is_nonzero",
                                                             "nonzero",
                                                             "masked_select",
                                                             "_unique",
                                                             "_unique2",
                                                             "unique_dim",
                                                             "unique_consecutive",
                                                             "unique_dim_consecutive",
                                                             "bincount",
                                                             "repeat_interleave",
                                                             "is_set_to"};

std::mutex registry_mutex;

struct Registry {
  std::deque<OperatorTraits> all{1};  // id 0 is "none"
  std::unordered_map<const void*, OperatorTraits*> by_schema;
  std::unordered_map<std::string, OperatorTraits*> by_name;
};
Registry& registry() {
  static auto* made = new Registry();
  return *made;
}

OperatorTraits& add(std::string name, std::string base) {
  OperatorTraits& traits = registry().all.emplace_back();
  traits.id = static_cast<uint32_t>(registry().all.size() - 1);
  traits.name = std::move(name);
  traits.base = std::move(base);
  return traits;
}

void read_schema(OperatorTraits& traits, const c10::FunctionSchema& schema) {
  traits.argument_count = static_cast<int>(schema.arguments().size());
  traits.return_count = static_cast<int>(schema.returns().size());
  for (int index = 0; index < traits.argument_count; ++index) {
    const c10::Argument& argument = schema.arguments()[index];
    const std::string type = argument.real_type()->str();
    if (type.find("Generator") != std::string::npos) traits.generator_argument = index;
    if (type.find("Device") != std::string::npos && type.find("DeviceIndex") == std::string::npos) {
      traits.device_argument = index;
    }
    traits.has_out |= argument.is_out();
    if (argument.name() == "dim") traits.dim_argument = index;
    if (argument.name() == "is_causal") traits.causal_argument = index;
    if (argument.alias_info() && argument.alias_info()->isWrite() && index < 64) {
      traits.written_arguments |= uint64_t{1} << index;
    }
  }
}

}  // namespace

OperatorTraits& traits_of(const c10::OperatorHandle& op) {
  const void* key = &op.schema();
  std::lock_guard<std::mutex> lock(registry_mutex);
  auto found = registry().by_schema.find(key);
  if (found != registry().by_schema.end()) return *found->second;
  const c10::OperatorName& operator_name = op.operator_name();
  std::string base = operator_name.name.substr(operator_name.name.find("::") + 2);
  std::string full = operator_name.name;
  if (!operator_name.overload_name.empty()) full += "." + operator_name.overload_name;
  OperatorTraits& traits = add(full, base);
  traits.operator_name = operator_name;
  read_schema(traits, op.schema());
  traits.operator_class = timeline::classify(base);
  traits.random = traits.generator_argument >= 0;
  traits.may_mix_devices = kMixing.count(base) > 0;
  traits.synchronizes = kSynchronizing.count(base) > 0;
  traits.is_copy = base == "copy_" || base == "_copy_from" || base == "_copy_from_and_resize";
  registry().by_schema[key] = &traits;
  registry().by_name[full] = &traits;
  return traits;
}

OperatorTraits& traits_by_id(uint32_t id) {
  std::lock_guard<std::mutex> lock(registry_mutex);
  return registry().all[id];
}

uint32_t traits_count() {
  std::lock_guard<std::mutex> lock(registry_mutex);
  return static_cast<uint32_t>(registry().all.size());
}

OperatorTraits& traits_by_name(const std::string& name, timeline::OperatorClass operator_class) {
  std::lock_guard<std::mutex> lock(registry_mutex);
  auto found = registry().by_name.find(name);
  if (found != registry().by_name.end()) return *found->second;
  OperatorTraits& traits = add(name, name.substr(name.find("::") + 2));
  traits.operator_class = operator_class;
  registry().by_name[name] = &traits;
  return traits;
}

}  // namespace opentrn::device
