// Memory statistics, snapshots and the allocation log, as Python objects.
#include <torch/csrc/utils/pybind.h>

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <optional>

#include <ATen/Functions.h>

#include "device/alias.h"
#include "device/allocation.h"
#include "device/bindings.h"
#include "device/context.h"
#include "device/memory_report.h"
#include "device/trace.h"
#include "device/traits.h"

namespace py = pybind11;

namespace opentrn::device {
namespace {

memory::SegmentAllocator& memory_of(int index) {
  return Context::get().device(static_cast<c10::DeviceIndex>(index)).memory;
}

// Flat, with the key names of torch.cuda.memory_stats.
void flatten(py::dict& to, const char* name, const memory::Counters& counters) {
  static const char* const pools[] = {"all", "small_pool", "large_pool"};
  for (size_t pool = 0; pool < counters.size(); ++pool) {
    const std::string prefix = std::string(name) + "." + pools[pool] + ".";
    to[py::str(prefix + "current")] = counters[pool].current;
    to[py::str(prefix + "peak")] = counters[pool].peak;
    to[py::str(prefix + "allocated")] = counters[pool].allocated;
    to[py::str(prefix + "freed")] = counters[pool].freed;
  }
}

py::dict memory_stats(int index) {
  const memory::Statistics statistics = memory_of(index).statistics();
  py::dict result;
  flatten(result, "active", statistics.allocation);
  flatten(result, "active_bytes", statistics.allocated_bytes);
  flatten(result, "allocated_bytes", statistics.allocated_bytes);
  flatten(result, "allocation", statistics.allocation);
  flatten(result, "inactive_split", statistics.inactive_split);
  flatten(result, "inactive_split_bytes", statistics.inactive_split_bytes);
  flatten(result, "requested_bytes", statistics.requested_bytes);
  flatten(result, "reserved_bytes", statistics.reserved_bytes);
  flatten(result, "segment", statistics.segment);
  result["num_alloc_retries"] = statistics.retries;
  result["num_ooms"] = statistics.out_of_memory;
  result["num_device_alloc"] = statistics.segment_allocations;
  result["num_device_free"] = statistics.segment_frees;
  result["num_sync_all_streams"] = 0;
  result["max_split_size"] = -1;
  return result;
}

py::dict describe_block(const memory::Block& block) {
  py::dict entry;
  entry["address"] = block.address;
  entry["size"] = block.size;
  entry["requested_size"] = block.requested;
  entry["state"] = block.free ? "inactive" : "active_allocated";
  entry["serial"] = block.serial;
  entry["operator"] = block.origin.operator_id ? traits_by_id(block.origin.operator_id).name : std::string();
  entry["module"] = trace::module_name(block.origin.module_id);
  entry["frame"] = trace::frame_name(block.origin.frame_id);
  entry["category"] = category_name(block.origin.category);
  return entry;
}

py::list memory_snapshot(int index) {
  py::list segments;
  py::dict current;
  const memory::Segment* last = nullptr;
  memory_of(index).visit([&](const memory::Segment& segment, const memory::Block& block) {
    if (&segment != last) {
      last = &segment;
      current = py::dict();
      current["device"] = index;
      current["address"] = segment.address;
      current["total_size"] = segment.size;
      current["segment_type"] = segment.large ? "large" : "small";
      current["blocks"] = py::list();
      segments.append(current);
    }
    current["blocks"].cast<py::list>().append(describe_block(block));
  });
  return segments;
}

template <typename Value, typename Read>
py::array_t<Value> column(const std::vector<memory::Event>& events, Read&& read) {
  py::array_t<Value> array(static_cast<py::ssize_t>(events.size()));
  auto* data = array.mutable_data();
  for (size_t i = 0; i < events.size(); ++i) data[i] = static_cast<Value>(read(events[i]));
  return array;
}

py::dict memory_log_drain(int index, bool stop) {
  const auto events = memory_of(index).drain_log(stop);
  py::dict result;
  result["time"] = column<int64_t>(events, [](const auto& e) { return e.time; });
  result["storage"] = column<int64_t>(events, [](const auto& e) { return e.serial; });
  result["address"] = column<uint64_t>(events, [](const auto& e) { return e.address; });
  result["size"] = column<int64_t>(events, [](const auto& e) { return e.size; });
  result["requested"] = column<int64_t>(events, [](const auto& e) { return e.requested; });
  result["event"] = column<int8_t>(events, [](const auto& e) { return static_cast<int>(e.kind); });
  result["category"] = column<int8_t>(events, [](const auto& e) { return static_cast<int>(e.origin.category); });
  result["operator"] = column<int32_t>(events, [](const auto& e) { return e.origin.operator_id; });
  result["module"] =
      column<int32_t>(events, [](const auto& e) { return static_cast<int32_t>(e.origin.module_id) - 1; });
  result["frame"] = column<int32_t>(events, [](const auto& e) { return static_cast<int32_t>(e.origin.frame_id) - 1; });
  result["phase"] = column<int8_t>(events, [](const auto& e) { return e.origin.phase; });
  result["device"] = column<int16_t>(events, [index](const auto&) { return index; });
  return result;
}

memory::Block* block_of(const at::Tensor& tensor) {
  if (!is_neuron(tensor) || !tensor.has_storage()) return nullptr;
  Allocation* allocation = allocation_of(tensor.storage().unsafeGetStorageImpl());
  return allocation ? allocation->block : nullptr;
}

}  // namespace

void bind_memory(py::module_& m) {
  m.def("memory_stats", &memory_stats);
  m.def("memory_snapshot", &memory_snapshot);
  m.def("reset_peak_memory_stats", [](int index) { memory_of(index).reset_peak(); });
  m.def("reset_accumulated_memory_stats", [](int index) { memory_of(index).reset_accumulated(); });
  m.def("empty_cache", [](int index) { memory_of(index).empty_cache(); });
  m.def("memory_capacity", [](int index) { return memory_of(index).capacity(); });
  m.def("memory_limit", [](int index) { return memory_of(index).limit(); });
  m.def("set_memory_fraction", [](int index, double fraction) { memory_of(index).set_fraction(fraction); });
  m.def("memory_log_start", [](int index) { memory_of(index).start_log(timeline::host_now()); });
  m.def("memory_log_drain", &memory_log_drain, py::arg("device"), py::arg("stop") = false);
  m.def("set_category", [](const at::Tensor& tensor, int category) {
    TORCH_CHECK(category >= 0 && category < memory::kCategoryCount, "opentrn: there is no memory category ", category);
    mark_category(tensor, static_cast<memory::Category>(category));
  });
  m.def("category_names", [] {
    py::list names;
    for (int i = 0; i < memory::kCategoryCount; ++i) names.append(category_name(static_cast<memory::Category>(i)));
    return names;
  });
  m.def("block_serial", [](const at::Tensor& tensor) -> int64_t {
    memory::Block* block = block_of(tensor);
    return block ? static_cast<int64_t>(block->serial) : 0;
  });
  m.def("device_address", [](const at::Tensor& tensor) -> uint64_t {
    memory::Block* block = block_of(tensor);
    return block ? block->address + static_cast<uint64_t>(tensor.storage_offset()) * tensor.itemsize() : 0;
  });
  m.def(
      "unbacked_address",
      [](const c10::Storage& storage) -> std::optional<uint64_t> {
        Allocation* allocation = allocation_of(storage.unsafeGetStorageImpl());
        if (!allocation || allocation->backed) return std::nullopt;
        return allocation->block ? allocation->block->address : 0;
      },
      "The device address of a storage without bytes; None for any other.");
  m.def(
      "resize_storage",
      [](const c10::Storage& storage, size_t bytes) { resize_storage(storage.unsafeGetStorageImpl(), bytes); },
      "Storage.resize_, whose Python form asks for the bytes first.");
  m.def(
      "host_alias", [](const at::Tensor& tensor) { return host_alias(tensor); },
      "A CPU tensor over the bytes of a neuron tensor. Under guard mode they are open between open_guard and "
      "close_guard only.");
  m.def("open_guard",
        [](const at::Tensor& tensor) { open_guard(allocation_of(tensor.storage().unsafeGetStorageImpl())); });
  m.def("close_guard",
        [](const at::Tensor& tensor) { close_guard(allocation_of(tensor.storage().unsafeGetStorageImpl())); });
  m.def("allocate_raw", [](int64_t bytes, int index) {
    // Held until the returned tensor dies; for tests of the allocator and for reservations.
    return at::empty({bytes},
                     at::TensorOptions().dtype(at::kByte).device(kNeuron, static_cast<c10::DeviceIndex>(index)));
  });
}

}  // namespace opentrn::device
