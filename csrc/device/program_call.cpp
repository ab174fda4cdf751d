#include "device/program_call.h"

#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include "device/alias.h"
#include "device/allocation.h"
#include "device/bindings.h"
#include "device/dry.h"
#include "device/host_call.h"
#include "device/operators.h"
#include "device/signature.h"

namespace py = pybind11;

namespace opentrn::device {

ProgramCall::ProgramCall(const std::string& name, c10::DeviceIndex device, std::vector<at::Tensor> arguments)
    : traits_(traits_by_name(name, timeline::OperatorClass::kProgram)),
      device_(device),
      arguments_(std::move(arguments)) {
  enter_operator();
  Context::get().check_index(device);
  for (const at::Tensor& argument : arguments_) {
    TORCH_CHECK(is_neuron(argument) && argument.device().index() == device,
                "Expected all tensors to be on the same "
                "device, but ",
                name, " got a tensor on ", argument.device(), " beside tensors on neuron:", static_cast<int>(device),
                "\n  what to do: move it with .to('neuron:", static_cast<int>(device), "') first");
    backed_ &= !is_unbacked(argument);
  }
  origin_.emplace(traits_);
  if (C10_LIKELY(!guard_mode())) return;
  for (const at::Tensor& argument : arguments_) open_guard(allocation_of(argument.storage().unsafeGetStorageImpl()));
}

ProgramCall::~ProgramCall() { close(); }

void ProgramCall::close() {
  if (!origin_) return;
  origin_.reset();
  if (C10_LIKELY(!guard_mode())) return;
  for (const at::Tensor& argument : arguments_) close_guard(allocation_of(argument.storage().unsafeGetStorageImpl()));
}

bool ProgramCall::gets_bytes(size_t bytes, at::ScalarType type) { return dry::gets_bytes(bytes, type); }

std::vector<at::Tensor> ProgramCall::views() const {
  std::vector<at::Tensor> views;
  views.reserve(arguments_.size());
  for (const at::Tensor& argument : arguments_) views.push_back(host_alias(argument));
  return views;
}

at::Tensor ProgramCall::give(at::Tensor host) {
  results_.push_back(to_device(std::move(host), device_));
  return results_.back();
}

at::Tensor ProgramCall::give_inferred(c10::IntArrayRef sizes, at::ScalarType type) {
  const size_t bytes = c10::multiply_integers(sizes) * c10::elementSize(type);
  const bool stand_in = dry::is_integer(type) && dry::gets_bytes(bytes, type);
  auto impl = c10::make_intrusive<c10::TensorImpl>(new_storage(bytes, device_, stand_in || bytes == 0),
                                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                   c10::scalarTypeToTypeMeta(type));
  impl->set_sizes_contiguous(sizes);
  results_.emplace_back(std::move(impl));
  if (stand_in && bytes) dry::write_stand_in(traits_, results_.size() - 1, 1, results_.back());
  return results_.back();
}

void ProgramCall::write_inferred(const at::Tensor& argument) {
  if (dry::is_integer(argument.scalar_type())) {
    dry::note_kept_values(traits_);
  } else {
    drop_bytes(argument.storage().unsafeGetStorageImpl());
  }
}

void ProgramCall::note_assumption(const std::string& text) { dry::note_stand_in(traits_, text.c_str()); }

timeline::Interval ProgramCall::finish(timeline::Nanoseconds duration, int64_t flops, int64_t bytes) {
  close();
  timeline::OperatorCost cost;
  cost.duration = duration;
  cost.flops = flops;
  cost.bytes = bytes;
  cost.provenance = timeline::Provenance::kSimulated;
  std::vector<const at::TensorBase*> inputs, outputs;
  for (const at::Tensor& tensor : arguments_) inputs.push_back(&tensor);
  for (const at::Tensor& tensor : results_) outputs.push_back(&tensor);
  return account_known(traits_, device_, current_stream(device_), cost, inputs, outputs);
}

void bind_program(py::module_& m) {
  py::class_<ProgramCall>(m, "ProgramCall")
      .def(py::init([](const std::string& name, int device, std::vector<at::Tensor> arguments) {
             return std::make_unique<ProgramCall>(name, static_cast<c10::DeviceIndex>(device), std::move(arguments));
           }),
           py::arg("name"), py::arg("device"), py::arg("arguments"))
      .def_property_readonly("backed", &ProgramCall::backed)
      .def_static("gets_bytes", &ProgramCall::gets_bytes, py::arg("bytes"), py::arg("dtype"))
      .def("views", &ProgramCall::views)
      .def("give", &ProgramCall::give)
      .def("give_inferred", [](ProgramCall& call, const std::vector<int64_t>& sizes,
                               at::ScalarType type) { return call.give_inferred(sizes, type); })
      .def("write_inferred", &ProgramCall::write_inferred)
      .def("note_assumption", &ProgramCall::note_assumption)
      .def("close", &ProgramCall::close)
      .def(
          "finish",
          [](ProgramCall& call, int64_t duration, int64_t flops, int64_t bytes) {
            const timeline::Interval interval = call.finish(duration, flops, bytes);
            return py::make_tuple(interval.device_start, interval.device_end);
          },
          "Virtual ns at which the program starts and ends on the device.");
}

}  // namespace opentrn::device
