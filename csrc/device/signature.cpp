#include "device/signature.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>

namespace opentrn::device {
namespace {

void mix_double(Signature& signature, double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  signature.mix(bits);
}

class Scanner {
 public:
  Scanner(Scan& result) : result_(result), signature_(result.signature) {}

  void value(const c10::IValue& value, int argument) {
    if (value.isTensor()) {
      tensor(value.toTensor(), argument);
    } else if (value.isNone()) {
      signature_.mix(3);
    } else if (value.isInt()) {
      signature_.mix(5 + static_cast<uint64_t>(value.toInt()) * 8);
    } else if (value.isDouble()) {
      signature_.mix(7);
      mix_double(signature_, value.toDouble());
    } else if (value.isBool()) {
      signature_.mix(value.toBool() ? 11 : 13);
    } else if (value.isTensorList()) {
      list(value.toTensorList(), argument);
    } else if (value.isOptionalTensorList()) {
      list(value.toOptionalTensorList(), argument);
    } else if (value.isIntList() || value.isDoubleList() || value.isBoolList() || value.isList()) {
      const auto elements = value.toListRef();
      signature_.mix(17 + elements.size() * 32);
      for (const c10::IValue& element : elements) this->value(element, argument);
    } else if (value.isDevice()) {
      device(value.toDevice());
    } else if (value.isString()) {
      signature_.mix(std::hash<std::string>()(value.toStringRef()));
    } else if (value.isGenerator()) {
      signature_.mix(19);
    } else if (value.isComplexDouble()) {
      mix_double(signature_, value.toComplexDouble().real());
      mix_double(signature_, value.toComplexDouble().imag());
    } else {
      result_.hashable = false;
    }
  }

 private:
  void list(const c10::List<at::Tensor>& tensors, int argument) {
    signature_.mix(23 + tensors.size() * 32);
    for (const at::Tensor tensor : tensors) this->tensor(tensor, argument);
  }
  void list(const c10::List<std::optional<at::Tensor>>& tensors, int argument) {
    signature_.mix(29 + tensors.size() * 32);
    for (const std::optional<at::Tensor> tensor : tensors) {
      tensor ? this->tensor(*tensor, argument) : signature_.mix(3);
    }
  }

  void device(c10::Device device) {
    signature_.mix(31 + static_cast<uint64_t>(device.type()) * 64 + static_cast<uint64_t>(device.index() + 1) * 4096);
    if (device.type() == kNeuron && result_.device < 0) result_.device = resolve(device);
  }

  void tensor(const at::Tensor& tensor, int argument) {
    if (!tensor.defined()) {
      signature_.mix(37);
      return;
    }
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    const bool neuron = is_neuron(tensor);
    const bool backed = !is_unbacked(tensor);
    signature_.mix(
        static_cast<uint64_t>(tensor.scalar_type()) | static_cast<uint64_t>(tensor.dim()) << 8 |
        static_cast<uint64_t>(backed) << 16 | static_cast<uint64_t>(tensor.is_conj()) << 17 |
        static_cast<uint64_t>(tensor.is_neg()) << 18 | static_cast<uint64_t>(impl->is_wrapped_number()) << 19 |
        static_cast<uint64_t>(tensor.device().index() + 1) << 20 | static_cast<uint64_t>(tensor.device().type()) << 32);
    for (const int64_t size : tensor.sizes()) signature_.mix(static_cast<uint64_t>(size));
    for (const int64_t stride : tensor.strides()) signature_.mix(static_cast<uint64_t>(stride) + 0x10000);
    // An argument given twice (out is self) is refused where two tensors are not.
    for (size_t i = 0; i < result_.tensors.size() && i < kMostCompared; ++i) {
      const auto& earlier = result_.tensors[i];
      if (earlier.argument != argument && earlier.tensor.is_same(tensor)) signature_.mix(41 + i * 64);
    }
    if (neuron && result_.device < 0) result_.device = tensor.device().index();
    if (neuron && !backed) result_.all_backed = false;
    result_.tensors.push_back({tensor, argument, backed});
  }

  Scan& result_;
  Signature& signature_;
};

}  // namespace

bool is_unbacked(const at::TensorBase& tensor) {
  if (!is_neuron(tensor) || !tensor.has_storage()) return false;
  const Allocation* allocation = allocation_of(tensor.storage().unsafeGetStorageImpl());
  return allocation && !allocation->backed;
}

Scan scan(const OperatorTraits& traits, const torch::jit::Stack& stack) {
  Scan result;
  result.signature.mix(traits.id);
  result.signature.mix(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()) |
                       static_cast<uint64_t>(at::globalContext().deterministicAlgorithms()) << 8);
  Scanner scanner(result);
  const size_t first = stack.size() - traits.argument_count;
  for (int index = 0; index < traits.argument_count; ++index) scanner.value(stack[first + index], index);
  return result;
}

}  // namespace opentrn::device
