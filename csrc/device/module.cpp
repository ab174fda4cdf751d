// opentrn.device._C: what Python sees of the device.
#include <torch/csrc/utils/pybind.h>

#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "device/accounting.h"
#include "device/alias.h"
#include "device/allocation.h"
#include "device/bindings.h"
#include "device/context.h"
#include "device/dry.h"
#include "device/memory_report.h"
#include "device/random.h"
#include "device/registration.h"
#include "device/trace.h"

namespace py = pybind11;

namespace opentrn::device {
namespace {

void attach(const py::dict& parameters) {
  timeline::Machine machine;
#define OPENTRN_READ(name, initial) machine.name = parameters[#name].cast<double>();
  OPENTRN_MACHINE_NUMBERS(OPENTRN_READ)
#undef OPENTRN_READ
  Context::get().attach(machine, parameters["instance"].cast<std::string>());
}

void set_attach_hook(py::function hook) {
  // Leaked on purpose: the hook may be called until the very end of the interpreter.
  auto* kept = new py::function(std::move(hook));
  Context::get().set_attach_hook([kept] {
    py::gil_scoped_acquire gil;
    (*kept)();
  });
}

py::dict describe(const Totals& of) {
  py::dict result;
  result["operators"] = of.operators;
  result["device_busy_ns"] = of.device_busy_ns;
  result["modelled_ns"] = of.modelled_ns;
  result["simulated_ns"] = of.simulated_ns;
  result["flops"] = of.flops;
  result["hbm_bytes"] = of.hbm_bytes;
  return result;
}

py::dict totals(int index) {
  Device& device = Context::get().device(static_cast<c10::DeviceIndex>(index));
  std::lock_guard<SpinLock> lock(totals_mutex());
  py::dict result = describe(device.totals);
  result["host_ns"] = timeline::host_now();
  return result;
}

py::dict phase_totals(int index) {
  Device& device = Context::get().device(static_cast<c10::DeviceIndex>(index));
  std::lock_guard<SpinLock> lock(totals_mutex());
  py::dict result;
  for (int phase = 0; phase < trace::kPhaseCount; ++phase)
    result[py::int_(phase)] = describe(device.phase_totals[phase]);
  return result;
}

py::dict operator_totals() {
  py::dict result;
  for (uint32_t id = 1; id < traits_count(); ++id) {
    const OperatorTraits& traits = traits_by_id(id);
    if (!traits.count) continue;
    std::lock_guard<SpinLock> lock(totals_mutex());
    py::dict entry;
    entry["count"] = traits.count;
    entry["device_ns"] = traits.device_ns;
    entry["simulated_ns"] = traits.simulated_ns;
    entry["simulated_count"] = traits.simulated_count;
    entry["simulated_flops"] = traits.simulated_flops;
    entry["simulated_bytes"] = traits.simulated_bytes;
    entry["flops"] = traits.flops;
    entry["bytes"] = traits.bytes;
    entry["class"] = timeline::class_name(traits.operator_class);
    result[py::str(traits.name)] = entry;
  }
  return result;
}

void reset_operator_totals() {
  for (uint32_t id = 1; id < traits_count(); ++id) {
    OperatorTraits& traits = traits_by_id(id);
    std::lock_guard<SpinLock> lock(totals_mutex());
    traits.count = traits.device_ns = traits.flops = traits.bytes = 0;
    traits.simulated_count = traits.simulated_ns = traits.simulated_flops = traits.simulated_bytes = 0;
  }
}

void bind_clock(py::module_& m) {
  m.def("host_time", [] { return timeline::host_now(); }, "Virtual host time of the calling thread, ns.");
  m.def("advance_host", [](int64_t ns) { timeline::advance_host(ns); });
  m.def(
      "device_time",
      [](int index) { return Context::get().device(static_cast<c10::DeviceIndex>(index)).timeline.latest(); },
      "When the last issued work of the device ends, ns of virtual time.");
  m.def("stream_time", [](int index, int64_t stream) {
    return Context::get().device(static_cast<c10::DeviceIndex>(index)).timeline.ready(stream);
  });
  m.def(
      "stream_wait_until",
      [](int index, int64_t stream, int64_t time) {
        Context::get().device(static_cast<c10::DeviceIndex>(index)).timeline.wait_until(stream, time);
      },
      "Work issued later on the stream starts no earlier than this virtual time, ns.");
  m.def("occupy",
        [](int index, int64_t stream, int64_t ns) { occupy(static_cast<c10::DeviceIndex>(index), stream, ns); });
  m.def(
      "account_collective",
      [](const std::string& name, int index, int64_t stream, int64_t ns, int64_t bytes,
         const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs) {
        timeline::OperatorCost cost;
        cost.duration = ns;
        cost.bytes = bytes;
        std::vector<const at::TensorBase*> in, out;
        for (const at::Tensor& tensor : inputs) in.push_back(&tensor);
        for (const at::Tensor& tensor : outputs) out.push_back(&tensor);
        account_known(traits_by_name(name, timeline::OperatorClass::kCollective), static_cast<c10::DeviceIndex>(index),
                      stream, cost, in, out);
      },
      py::arg("name"), py::arg("device"), py::arg("stream"), py::arg("ns"), py::arg("bytes"),
      py::arg("inputs") = std::vector<at::Tensor>(), py::arg("outputs") = std::vector<at::Tensor>(),
      "Puts a collective of a known duration on a stream.");
  m.def(
      "account_transfer",
      [](const std::string& name, int index, int64_t bytes, bool from_host) {
        timeline::Work work;
        work.operator_class = timeline::OperatorClass::kTransfer;
        work.read_bytes = work.written_bytes = bytes;
        work.from_host = from_host;
        const auto device = static_cast<c10::DeviceIndex>(index);
        account({&traits_by_name(name, work.operator_class), device, {}, 0, {}}, &work);
        if (!from_host) synchronize_host(device);
      },
      py::arg("name"), py::arg("device"), py::arg("bytes"), py::arg("from_host"),
      "Puts a transfer of that many bytes on the device's current stream; the host waits for one that it reads.");
  m.def("totals", &totals);
  m.def("phase_totals", &phase_totals);
  m.def("operator_class", [](const std::string& name) { return timeline::class_name(timeline::classify(name)); });
  m.def("operator_totals", &operator_totals);
  m.def("reset_operator_totals", &reset_operator_totals);
  m.def("operator_name", [](uint32_t id) { return traits_by_id(id).name; });
  m.def("operator_count", &traits_count);
  m.def("operator_classes", [] {
    py::dict result;
    for (uint32_t id = 1; id < traits_count(); ++id) {
      result[py::str(traits_by_id(id).name)] = timeline::class_name(traits_by_id(id).operator_class);
    }
    return result;
  });
}

void bind_dry(py::module_& m) {
  m.def("set_dry", &dry::set_mode, "Turns dry mode on or off; returns the mode before.");
  m.def("is_dry", &dry::mode);
  m.def("set_backing_limits", &dry::set_backing_limits, py::arg("float_bytes"), py::arg("integer_bytes"));
  m.def("is_backed", [](const at::Tensor& tensor) { return !is_unbacked(tensor); });
  m.def("unbacked_exist", &dry::concerned);
  m.def("stand_in_ledger", [] {
    py::list result;
    for (const dry::StandIn& entry : dry::ledger()) {
      py::dict item;
      item["operator"] = entry.operator_name;
      item["rule"] = entry.rule;
      item["frame"] = entry.frame;
      item["count"] = entry.count;
      result.append(item);
    }
    return result;
  });
  m.def("clear_stand_in_ledger", &dry::clear_ledger);
  m.def("dry_counters", [] {
    const dry::Counters counters = dry::counters();
    py::dict result;
    result["inferred"] = counters.inferred;
    result["ran"] = counters.ran;
    result["misses"] = counters.misses;
    result["signatures"] = counters.signatures;
    return result;
  });
}

void bind_device(py::module_& m) {
  m.def("attach", &attach);
  m.def("is_attached", [] { return Context::get().attached(); });
  m.def("instance", [] { return Context::get().instance(); });
  m.def("set_attach_hook", &set_attach_hook);
  m.def("device_count", [] { return Context::get().device_count(); });
  m.def("current_device", [] { return static_cast<int>(current_device()); });
  m.def("set_device", [](int index) {
    Context::get().check_index(static_cast<c10::DeviceIndex>(std::clamp(index, -1, 127)));
    set_current_device(static_cast<c10::DeviceIndex>(index));
  });
  m.def("synchronize",
        [](int index) { Context::get().device(static_cast<c10::DeviceIndex>(index)).timeline.synchronize(); });
  m.def("current_stream", [](int index) { return current_stream(static_cast<c10::DeviceIndex>(index)); });
  m.def("is_in_bad_fork", [] { return Context::get().forked(); });
  m.def("default_generator", [](int index) { return default_generator(static_cast<c10::DeviceIndex>(index)); });
  m.def("enable_guard_mode", &enable_guard_mode);
}

}  // namespace
}  // namespace opentrn::device

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace opentrn::device;
  register_device_interfaces();
  register_autocast();
  register_profiler();
  m.attr("directly_registered_operators") = register_operators();
  bind_device(m);
  bind_clock(m);
  bind_memory(m);
  bind_dry(m);
  bind_programs(m);
  bind_trace(m);
  bind_program(m);
}
