// Operators that PyTorch asks of an accelerator and that have no CPU kernel of their own: convolution, fused RNN cells,
// dropout, copies. Each is written in CPU operators, and is one operator of the device.
#include "device/host_kernels.h"

#include <ATen/ATen.h>

#include "device/random.h"

namespace opentrn::device {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor convolution(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, at::IntArrayRef stride,
                   at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                   int64_t groups) {
  Tensor result = at::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
  // On CPU one channels-last operand makes the result channels-last; the meta kernel's is always contiguous. (Of
  // volumes, CPU asks its libraries.)
  const auto is_channels_last = [](const Tensor& tensor) {
    return tensor.dim() == 4 && tensor.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
  };
  if (!result.is_meta() || !(is_channels_last(input) || is_channels_last(weight))) return result;
  return at::empty_like(result, at::MemoryFormat::ChannelsLast);
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad_output, const Tensor& input,
                                                        const Tensor& weight, at::IntArrayRef stride,
                                                        at::IntArrayRef padding, at::IntArrayRef dilation,
                                                        bool transposed, at::IntArrayRef output_padding, int64_t groups,
                                                        std::array<bool, 3> output_mask) {
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  return at::convolution_backward(grad_output, input, weight, at::IntArrayRef(channels), stride, padding, dilation,
                                  transposed, output_padding, groups, output_mask);
}

Tensor add_bias(const Tensor& gates, const OptionalTensor& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

// Returns (hy, cy, workspace), the workspace being the four activated gates [B, 4H] in the order i, f, g, o.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const Tensor gates = add_bias(add_bias(input_gates + hidden_gates, input_bias), hidden_bias);
  auto parts = gates.chunk(4, 1);
  const Tensor in = parts[0].sigmoid(), forget = parts[1].sigmoid(), cell = parts[2].tanh(), out = parts[3].sigmoid();
  Tensor cy = forget * cx + in * cell;
  Tensor hy = out * cy.tanh();
  return {std::move(hy), std::move(cy), at::cat({in, forget, cell, out}, 1)};
}

// Returns (gradient of the gates [B, 4H], of cx, of the biases).
std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy, const OptionalTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  auto parts = workspace.chunk(4, 1);
  const Tensor &in = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
  const Tensor tanh_cy = cy.tanh();
  const Tensor from_hy = grad_hy && grad_hy->defined() ? *grad_hy : at::zeros_like(cx);
  Tensor to_cell = from_hy * out * (1 - tanh_cy * tanh_cy);
  if (grad_cy && grad_cy->defined()) to_cell = to_cell + *grad_cy;
  Tensor grad_gates = at::cat({to_cell * cell * in * (1 - in), to_cell * cx * forget * (1 - forget),
                               to_cell * in * (1 - cell * cell), from_hy * tanh_cy * out * (1 - out)},
                              1);
  Tensor grad_bias = has_bias ? grad_gates.sum(0) : Tensor();
  return {std::move(grad_gates), to_cell * forget, std::move(grad_bias)};
}

// Returns (hy, workspace), the workspace being [B, 5H]: reset, update, new, hx, and the hidden part of the new gate.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  auto from_input = add_bias(input_gates, input_bias).chunk(3, 1);
  auto from_hidden = add_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset = (from_hidden[0] + from_input[0]).sigmoid();
  const Tensor update = (from_hidden[1] + from_input[1]).sigmoid();
  const Tensor fresh = (from_input[2] + from_hidden[2] * reset).tanh();
  Tensor hy = (hx - fresh) * update + fresh;
  return {std::move(hy), at::cat({reset, update, fresh, hx, from_hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace,
                                                                     bool has_bias) {
  auto parts = workspace.chunk(5, 1);
  const Tensor &reset = parts[0], &update = parts[1], &fresh = parts[2], &hx = parts[3], &hidden = parts[4];
  const Tensor to_fresh = grad_hy * (1 - update) * (1 - fresh * fresh);
  const Tensor to_update = grad_hy * (hx - fresh) * update * (1 - update);
  const Tensor to_reset = to_fresh * hidden * reset * (1 - reset);
  Tensor grad_input = at::cat({to_reset, to_update, to_fresh}, 1);
  Tensor grad_hidden = at::cat({to_reset, to_update, to_fresh * reset}, 1);
  Tensor input_bias = has_bias ? grad_input.sum(0) : Tensor();
  Tensor hidden_bias = has_bias ? grad_hidden.sum(0) : Tensor();
  return {std::move(grad_input), std::move(grad_hidden), grad_hy * update, std::move(input_bias),
          std::move(hidden_bias)};
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true) || p == 0 || input.numel() == 0) {
    return {input.clone(), at::ones(input.sizes(), input.options().dtype(at::kBool))};
  }
  if (p == 1) return {at::zeros_like(input), at::zeros(input.sizes(), input.options().dtype(at::kBool))};
  Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  mask.bernoulli_(1 - p, host_generator(std::nullopt, running_device(), input.numel()));
  return {input.mul(mask).mul_(1 / (1 - p)), mask};
}

// Composite as comparisons, which would answer False for tensors without bytes; as one operator it has a rule of its
// own.
Tensor isfinite(const Tensor& self) { return at::isfinite(self); }

// Accelerators count integers too (expert routing does); CPU's kernel takes floats only.
Tensor histc(const Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  if (!c10::isIntegralType(self.scalar_type(), false)) return at::histc(self, bins, min, max);
  return at::histc(self.to(at::kDouble), bins, min, max).to(self.scalar_type());
}

// Shape of a grouped product: rows or columns of the 2-D operands are divided among the groups by `offsets`.
std::vector<int64_t> grouped_shape(const Tensor& a, const Tensor& b, const OptionalTensor& offsets) {
  if (a.dim() == 2 && b.dim() == 2) return {offsets ? offsets->size(0) : 1, a.size(0), b.size(1)};
  if (a.dim() == 3 && b.dim() == 3) return {a.size(0), a.size(1), b.size(2)};
  return {a.dim() == 3 ? a.size(1) : a.size(0), b.size(-1)};
}

// One operator here, where PyTorch composes it of as many products as there are groups.
Tensor grouped_mm(const Tensor& self, const Tensor& other, const OptionalTensor& offsets, const OptionalTensor& bias,
                  std::optional<at::ScalarType> dtype) {
  if (!self.is_meta()) return at::_grouped_mm(self, other, offsets, bias, dtype);
  TORCH_CHECK(self.size(-1) == other.size(-2), "contraction dimension of self and mat2 must match");
  return at::empty(grouped_shape(self, other, offsets), self.options().dtype(dtype.value_or(self.scalar_type())));
}

Tensor copy_from(const Tensor& self, const Tensor& target, bool non_blocking) {
  return const_cast<Tensor&>(target).copy_(self, non_blocking);
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& target) {
  return const_cast<Tensor&>(target).resize_(self.sizes()).copy_(self);
}

}  // namespace

void register_host_kernels(torch::Library& aten) {
  register_host_kernel(aten, "convolution_overrideable", &convolution);
  register_host_kernel(aten, "convolution_backward_overrideable", &convolution_backward);
  register_host_kernel(aten, "_thnn_fused_lstm_cell", &lstm_cell);
  register_host_kernel(aten, "_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  register_host_kernel(aten, "_thnn_fused_gru_cell", &gru_cell);
  register_host_kernel(aten, "_thnn_fused_gru_cell_backward", &gru_cell_backward);
  register_host_kernel(aten, "native_dropout", &native_dropout);
  register_host_kernel(aten, "isfinite", &isfinite);
  register_host_kernel(aten, "histc", &histc);
  register_host_kernel(aten, "_grouped_mm", &grouped_mm);
  register_host_kernel(aten, "_copy_from", &copy_from);
  register_host_kernel(aten, "_copy_from_and_resize", &copy_from_and_resize);
}

}  // namespace opentrn::device
