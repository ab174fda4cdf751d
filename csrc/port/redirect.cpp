// Sends what a CUDA script asks of the device type `cuda` to the device `neuron`, below Python.
//
// No tensor of type CUDA ever exists: a factory function that is asked for one reaches the CUDA dispatch key, whose
// kernels here replace the device argument and dispatch again. Operators without a device argument never pass
// through this file. Nothing is registered before `redirect()` is called.
#include <torch/extension.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/to_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace py = pybind11;

namespace opentrn::port {
namespace {

constexpr auto kCuda = c10::DeviceType::CUDA;
constexpr auto kNeuron = c10::DeviceType::PrivateUse1;

c10::Device to_neuron(c10::Device device) {
  return device.type() == kCuda ? c10::Device(kNeuron, device.index()) : device;
}

// ---- How often, by operator, and where first --------------------------------------------------------------------

struct Ledger {
  std::mutex mutex;
  std::unordered_map<std::string, int64_t> counts;
  py::object* on_first = nullptr;  // never destroyed: the interpreter may be gone at exit
};

Ledger& ledger() {
  static auto* the_ledger = new Ledger();
  return *the_ledger;
}

void count(const std::string& name) {
  {
    std::lock_guard<std::mutex> lock(ledger().mutex);
    if (++ledger().counts[name] != 1) return;
  }
  if (ledger().on_first == nullptr || !Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  (*ledger().on_first)(name);
}

// ---- The guard: the current device of type `cuda` is the current neuron device -----------------------------------

class CudaNameGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kCuda; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return as_cuda(neuron().exchangeDevice(to_neuron(device)));
  }
  c10::Device getDevice() const override { return as_cuda(neuron().getDevice()); }
  void setDevice(c10::Device device) const override { neuron().setDevice(to_neuron(device)); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    neuron().uncheckedSetDevice(to_neuron(device));
  }
  c10::Stream getStream(c10::Device device) const override { return as_cuda(neuron().getStream(to_neuron(device))); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return as_cuda(neuron().getDefaultStream(to_neuron(device)));
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return as_cuda(neuron().getNewStream(to_neuron(device), priority));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return as_cuda(neuron().exchangeStream(as_neuron(stream)));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return neuron().deviceCount(); }
  void synchronizeDevice(const c10::DeviceIndex index) const override { neuron().synchronizeDevice(index); }
  bool queryStream(const c10::Stream& stream) const override { return neuron().queryStream(as_neuron(stream)); }
  void synchronizeStream(const c10::Stream& stream) const override { neuron().synchronizeStream(as_neuron(stream)); }
  void destroyEvent(void* event, const c10::DeviceIndex index) const noexcept override {
    neuron().destroyEvent(event, index);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex index,
              const c10::EventFlag flag) const override {
    neuron().record(event, as_neuron(stream), index, flag);
  }
  void block(void* event, const c10::Stream& stream) const override { neuron().block(event, as_neuron(stream)); }
  bool queryEvent(void* event) const override { return neuron().queryEvent(event); }
  void synchronizeEvent(void* event) const override { neuron().synchronizeEvent(event); }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex index) const override {
    return neuron().elapsedTime(first, second, index);
  }

 private:
  static const c10::impl::DeviceGuardImplInterface& neuron() { return *c10::impl::getDeviceGuardImpl(kNeuron); }
  static c10::Device as_cuda(c10::Device device) {
    return device.type() == kNeuron ? c10::Device(kCuda, device.index()) : device;
  }
  static c10::Stream as_cuda(c10::Stream stream) {
    return c10::Stream(c10::Stream::UNSAFE, as_cuda(stream.device()), stream.id());
  }
  static c10::Stream as_neuron(c10::Stream stream) {
    return c10::Stream(c10::Stream::UNSAFE, to_neuron(stream.device()), stream.id());
  }
};

// ---- The kernels -------------------------------------------------------------------------------------------------

// Replaces every CUDA device among the arguments; says whether there was one.
bool replace_devices(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t arguments = op.schema().arguments().size();
  bool found = false;
  for (size_t i = stack->size() - arguments; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (value.isDevice() && value.toDevice().type() == kCuda) {
      value = to_neuron(value.toDevice());
      found = true;
    }
  }
  return found;
}

// At a CUDA key: only a device argument can lead here, so the operator is dispatched again with that replaced.
void redirect_factory(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  TORCH_CHECK(replace_devices(op, stack), "opentrn: ", op.schema().operator_name(),
              " was dispatched to CUDA without a device argument; under --from-cuda no CUDA tensor can exist");
  count(op.schema().name());
  op.callBoxed(stack);
}

// At BackendSelect: operators with a tensor and a device argument (`_to_copy`, `new_zeros`, `empty_like`).
void redirect_argument(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (replace_devices(op, stack)) count(op.schema().name());
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect),
                     stack);
}

// `x.to("cuda")` of a neuron tensor is `x` itself, which the composite kernel decides by comparing devices.
at::Tensor to_device(const at::Tensor& self, at::Device device, at::ScalarType dtype, bool non_blocking, bool copy,
                     std::optional<at::MemoryFormat> memory_format) {
  if (device.type() == kCuda) count("aten::to");
  return at::native::to(self, to_neuron(device), dtype, non_blocking, copy, memory_format);
}

at::Tensor to_dtype_layout(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                           std::optional<at::Layout> layout, std::optional<at::Device> device,
                           std::optional<bool> pin_memory, bool non_blocking, bool copy,
                           std::optional<at::MemoryFormat> memory_format) {
  if (device.has_value() && device->type() == kCuda) {
    count("aten::to");
    // A script's bare "cuda" is the current device; a tensor on another one has to move.
    device = c10::Device(
        kNeuron, device->has_index() ? device->index() : c10::impl::getDeviceGuardImpl(kNeuron)->getDevice().index());
  }
  return at::native::to(self, dtype, layout, device, pin_memory, non_blocking, copy, memory_format);
}

std::vector<std::unique_ptr<torch::Library>>& libraries() {
  static auto* the_libraries = new std::vector<std::unique_ptr<torch::Library>>();
  return *the_libraries;
}

torch::Library& library(const char* name_space, c10::DispatchKey key) {
  libraries().push_back(std::make_unique<torch::Library>(torch::Library::IMPL, name_space, key, __FILE__, __LINE__));
  return *libraries().back();
}

// factories, arguments: overload names ("zeros.names") without "aten::", of operators that take a device and no
// tensor, and a device and a tensor.
void redirect(const std::vector<std::string>& factories, const std::vector<std::string>& arguments) {
  if (!libraries().empty()) return;
  static const c10::impl::DeviceGuardImplRegistrar guard(kCuda, new CudaNameGuard());
  for (const auto key : {c10::DispatchKey::CUDA, c10::DispatchKey::SparseCUDA, c10::DispatchKey::SparseCsrCUDA,
                         c10::DispatchKey::QuantizedCUDA}) {
    library("_", key).fallback(torch::CppFunction::makeFromBoxedFunction<&redirect_factory>());
  }
  // A composite kernel wins over a fallback, and would build the result out of other operators than neuron's own.
  auto& cuda = library("aten", c10::DispatchKey::CUDA);
  for (const auto& name : factories) {
    cuda.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&redirect_factory>());
  }
  auto& select = library("aten", c10::DispatchKey::BackendSelect);
  for (const auto& name : arguments) {
    select.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&redirect_argument>());
  }
  for (const auto key : {c10::DispatchKey::AutogradPrivateUse1, c10::DispatchKey::PrivateUse1}) {
    auto& neuron = library("aten", key);
    neuron.impl("to.device", TORCH_FN(to_device));
    neuron.impl("to.dtype_layout", TORCH_FN(to_dtype_layout));
  }
}

py::dict counts() {
  std::lock_guard<std::mutex> lock(ledger().mutex);
  py::dict result;
  for (const auto& [name, number] : ledger().counts) result[py::str(name)] = number;
  return result;
}

}  // namespace
}  // namespace opentrn::port

PYBIND11_MODULE(_redirect, m) {
  using namespace opentrn::port;
  m.doc() = "What a CUDA script asks of `cuda` goes to `neuron`.";
  m.def("redirect", &redirect, py::arg("factories"), py::arg("arguments"), "Installs the kernels and the guard, once.");
  m.def("counts", &counts, "How often each operator's device argument was replaced.");
  m.def(
      "on_first", [](py::object function) { ledger().on_first = new py::object(std::move(function)); },
      "`function(name)` is called at the first redirection of each operator, on the calling thread.");
}
