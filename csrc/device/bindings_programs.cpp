// The table of simulated durations, and the Python provider that fills it.
#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include "device/bindings.h"
#include "device/traits.h"
#include "timeline/programs.h"

namespace py = pybind11;

namespace opentrn::device {
namespace {

using timeline::Layout;
using timeline::ProgramAnswer;
using timeline::ProgramSignature;

const char* layout_name(Layout layout) {
  switch (layout) {
    case Layout::kWhole:
      return "whole";
    case Layout::kScattered:
      return "scattered";
    case Layout::kScalar:
      return "scalar";
    case Layout::kRow:
      return "row";
    case Layout::kColumn:
      return "column";
    case Layout::kNumber:
      return "number";
  }
  return "whole";
}

py::tuple operands_tuple(const ProgramSignature& signature, int first, int count) {
  py::tuple operands(count);
  for (int i = 0; i < count; ++i) {
    const auto& operand = signature.operands[first + i];
    operands[i] =
        py::make_tuple(c10::toString(static_cast<c10::ScalarType>(operand.type)), layout_name(operand.layout));
  }
  return operands;
}

// Calls `provider` (operator, class, dims, inputs, outputs) -> ns, or None where there is no program. A miss may come
// on a thread that gave the interpreter away: autograd's, or the dispatcher's.
ProgramAnswer ask(const py::function& provider, const ProgramSignature& signature) {
  if (!Py_IsInitialized()) return {};
  py::gil_scoped_acquire gil;
  // An operator that already raised (its cost is counted on the way out) must keep its error.
  py::error_scope pending;
  const py::object answer = provider(
      traits_by_id(signature.operator_id).base, timeline::class_name(signature.operator_class), signature.dims,
      operands_tuple(signature, 0, signature.inputs), operands_tuple(signature, signature.inputs, signature.outputs));
  return answer.is_none() ? ProgramAnswer{} : ProgramAnswer{answer.cast<double>()};
}

void set_provider(const py::object& provider) {
  if (provider.is_none()) {
    timeline::programs::set_provider({});
    return;
  }
  // Leaked on purpose: operators may run until the very end of the interpreter.
  auto* kept = new py::function(provider.cast<py::function>());
  timeline::programs::set_provider([kept](const ProgramSignature& signature) { return ask(*kept, signature); });
}

py::dict counters() {
  const timeline::ProgramCounters count = timeline::programs::counters();
  py::dict result;
  result["signatures"] = count.signatures;
  result["lookups"] = count.lookups;
  result["misses"] = count.misses;
  result["programs"] = count.programs;
  result["evictions"] = count.evictions;
  return result;
}

}  // namespace

void bind_programs(py::module_& m) {
  m.def("set_program_provider", &set_provider, py::arg("provider").none(true),
        "Who times the programs of operators: provider(operator, class, dims, inputs, outputs) -> ns or None. None: "
        "every operator is modelled.");
  m.def("use_programs", &timeline::programs::set_enabled, py::arg("on"),
        "Whether operators with a program take its time; returns what was on before.");
  m.def("program_counters", &counters);
}

}  // namespace opentrn::device
