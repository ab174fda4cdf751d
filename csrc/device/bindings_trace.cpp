// The trace buffer and Python frames, as Python objects.
#include <torch/csrc/utils/pybind.h>

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "device/allocation.h"
#include "device/bindings.h"
#include "device/trace.h"
#include "device/traits.h"

namespace py = pybind11;

namespace opentrn::device {
namespace {

// Hands a column over without a copy: the array owns the vector.
template <typename Value>
py::array_t<Value> array_of(std::vector<Value>&& values) {
  auto* kept = new std::vector<Value>(std::move(values));
  py::capsule owner(kept, [](void* pointer) { delete static_cast<std::vector<Value>*>(pointer); });
  return py::array_t<Value>(static_cast<py::ssize_t>(kept->size()), kept->data(), owner);
}

py::dict trace_drain() {
  trace::Columns columns = trace::drain();
  py::dict result;
  const auto minus_one = [](std::vector<uint32_t>&& ids) {  // id 0 is "none"; Python sees -1
    std::vector<int32_t> shifted(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) shifted[i] = static_cast<int32_t>(ids[i]) - 1;
    return array_of(std::move(shifted));
  };
  result["operator"] = minus_one(std::move(columns.operator_id));
  result["signature"] = minus_one(std::move(columns.signature_id));
  result["module"] = minus_one(std::move(columns.module_id));
  result["frame"] = minus_one(std::move(columns.frame_id));
  result["host_start"] = array_of(std::move(columns.host_start));
  result["host_end"] = array_of(std::move(columns.host_end));
  result["device_start"] = array_of(std::move(columns.device_start));
  result["device_end"] = array_of(std::move(columns.device_end));
  result["flops"] = array_of(std::move(columns.flops));
  result["bytes"] = array_of(std::move(columns.bytes));
  result["memory_allocated"] = array_of(std::move(columns.memory_allocated));
  result["stream"] = array_of(std::move(columns.stream));
  result["device"] = array_of(std::move(columns.device));
  result["phase"] = array_of(std::move(columns.phase));
  result["kind"] = array_of(std::move(columns.provenance));
  return result;
}

// The interned tables from the given indices on; ids in the columns index these lists.
py::dict trace_names(size_t operators_from, size_t signatures_from, size_t modules_from, size_t frames_from) {
  py::dict result;
  py::list operators;
  for (size_t id = operators_from + 1; id < traits_count(); ++id) {
    operators.append(traits_by_id(static_cast<uint32_t>(id)).name);
  }
  result["operators"] = operators;
  result["signatures"] = trace::signatures(signatures_from + 1);
  result["modules"] = trace::modules(modules_from + 1);
  result["frames"] = trace::frames(frames_from + 1);
  return result;
}

// Files whose frames are not the user's: PyTorch's and our own. Set from Python, which knows where they lie.
std::vector<std::string>& library_prefixes() {
  static auto* prefixes = new std::vector<std::string>();
  return *prefixes;
}

bool is_library(std::string_view file) {
  if (!file.empty() && file[0] == '<') return true;
  for (const std::string& prefix : library_prefixes()) {
    if (file.substr(0, prefix.size()) == prefix) return true;
  }
  return false;
}

// "file.py:12 function" of the innermost frame outside the libraries; the innermost at all if there is none.
std::string python_frame() {
  if (!Py_IsInitialized()) return "";
  py::gil_scoped_acquire gil;
  PyFrameObject* frame = PyEval_GetFrame();
  std::string innermost;
  Py_XINCREF(frame);
  while (frame) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    const char* function = PyUnicode_AsUTF8(code->co_name);
    std::string text = std::string(file ? file : "?") + ":" + std::to_string(PyFrame_GetLineNumber(frame)) + " " +
                       (function ? function : "?");
    const bool library = is_library(file ? file : "");
    Py_DECREF(code);
    if (innermost.empty()) innermost = text;
    PyFrameObject* back = library ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    if (!library) return text;
    frame = back;
  }
  return innermost;
}

}  // namespace

void bind_trace(py::module_& m) {
  trace::set_capture_frame(&python_frame);
  set_frame_name(&trace::frame_name);
  m.def(
      "trace_start",
      [](const py::dict& options) {
        trace::Options wanted;
        if (options.contains("shapes")) wanted.shapes = options["shapes"].cast<bool>();
        if (options.contains("frames")) wanted.frames = options["frames"].cast<bool>();
        trace::start(wanted);
      },
      py::arg("options") = py::dict());
  m.def("trace_stop", &trace::stop);
  m.def("trace_active", &trace::active);
  m.def("trace_pending", &trace::pending);
  m.def("trace_drain", &trace_drain);
  m.def("trace_names", &trace_names, py::arg("operators") = 0, py::arg("signatures") = 0, py::arg("modules") = 0,
        py::arg("frames") = 0);
  m.def("trace_module_enter", [](const std::string& path) { trace::enter_module(trace::intern_module(path)); });
  m.def("trace_module_exit", &trace::exit_module);
  m.def("set_phase", [](int phase) {
    TORCH_CHECK(phase >= 0 && phase < trace::kPhaseCount, "opentrn: there is no phase ", phase);
    return static_cast<int>(trace::announce_phase(static_cast<trace::Phase>(phase)));
  });
  m.def("record_frames", &trace::set_frames);
  m.def("python_frame", &python_frame);
  m.def("set_library_prefixes", [](std::vector<std::string> prefixes) { library_prefixes() = std::move(prefixes); });
}

}  // namespace opentrn::device
