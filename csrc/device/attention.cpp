// Scaled dot-product attention as one operator, forward and backward.
//
// The device never holds the S×S scores: where CPU PyTorch would choose its flash kernel the same kernel runs here, and
// where it would choose the math path (dropout, odd shapes) that path runs on the host inside the operator and is
// recomputed in backward from (seed, offset).
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/SDPBackend.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>

#include "device/alias.h"
#include "device/host_kernels.h"
#include "device/random.h"

namespace opentrn::device {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool grouped_query(const Tensor& query, const Tensor& key) {
  return query.dim() >= 3 && key.dim() >= 3 && query.size(-3) != key.size(-3);
}

at::Tensor metadata_on_cpu(const Tensor& tensor) {
  if (!tensor.is_meta()) return tensor;
  static char nothing[64];  // never read
  return at::from_blob(nothing, tensor.sizes(), tensor.strides(), at::TensorOptions().dtype(tensor.scalar_type()));
}

bool chooses_flash(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask,
                   double dropout, bool is_causal) {
  // The choice looks at metadata only, and only CPU tensors get CPU's answer: meta tensors (dry runs) are asked as
  // such.
  const OptionalTensor host_mask = mask && mask->defined() ? OptionalTensor(metadata_on_cpu(*mask)) : std::nullopt;
  const int64_t choice = at::_fused_sdp_choice(metadata_on_cpu(query), metadata_on_cpu(key), metadata_on_cpu(value),
                                               host_mask, dropout, is_causal, std::nullopt, grouped_query(query, key));
  return choice == static_cast<int64_t>(at::SDPBackend::flash_attention);
}

// True for the elements that stay.
OptionalTensor dropout_mask(const Tensor& query, const Tensor& key, double p, int64_t seed) {
  if (p == 0) return std::nullopt;
  auto sizes = query.sizes().vec();
  sizes.back() = key.size(-2);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed));
  return at::empty(sizes, query.options().dtype(at::kBool)).bernoulli_(1 - p, generator);
}

// PyTorch warns that a given dropout mask is for tests only; here it is how backward draws the same one.
class NoWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

Tensor math_attention(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask,
                      double dropout, bool is_causal, int64_t seed, std::optional<double> scale) {
  NoWarnings silent;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silent);
  return std::get<0>(at::_scaled_dot_product_attention_math(query, key, value, mask, dropout, is_causal,
                                                            dropout_mask(query, key, dropout, seed), scale,
                                                            grouped_query(query, key)));
}

using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

Forward attention(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& bias,
                  double dropout, bool is_causal, bool /*return_debug_mask*/, std::optional<double> scale) {
  Tensor output, logsumexp;
  int64_t seed = 0;
  if (chooses_flash(query, key, value, bias, dropout, is_causal)) {
    std::tie(output, logsumexp) =
        at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, is_causal, bias, scale);
  } else {
    if (dropout > 0) {
      auto generator = host_generator(std::nullopt, running_device(), query.numel() / query.size(-1) * key.size(-2));
      seed = static_cast<int64_t>(generator.current_seed());
    }
    output = math_attention(query, key, value, bias, dropout, is_causal, seed, scale);
    logsumexp = at::empty({0}, query.options());  // backward recomputes
  }
  const auto options = at::TensorOptions().dtype(at::kLong);
  return {std::move(output),
          std::move(logsumexp),
          Tensor(),
          Tensor(),
          query.size(-2),
          key.size(-2),
          at::scalar_tensor(at::Scalar(seed), options),
          at::scalar_tensor(at::Scalar(int64_t{0}), options),
          Tensor()};
}

// Differentiates the math path on the host; `wants` as in the operator's grad_input_mask.
std::array<Tensor, 4> math_backward(const Tensor& grad, const std::array<Tensor, 4>& inputs,
                                    const std::array<bool, 4>& wants, double dropout, bool is_causal, int64_t seed,
                                    std::optional<double> scale) {
  // Autograd has to see these operators, though this kernel runs below it.
  c10::impl::ForceDispatchKeyGuard with_autograd(c10::default_included_set, c10::default_excluded_set);
  at::AutoGradMode enable(true);
  std::array<Tensor, 4> leaves;
  std::vector<Tensor> wanted;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    leaves[i] = inputs[i].detach();
    if (!wants[i]) continue;
    leaves[i].requires_grad_(true);
    wanted.push_back(leaves[i]);
  }
  const OptionalTensor mask = leaves[3].defined() ? OptionalTensor(leaves[3]) : std::nullopt;
  const Tensor output = math_attention(leaves[0], leaves[1], leaves[2], mask, dropout, is_causal, seed, scale);
  const auto gradients = torch::autograd::grad({output}, wanted, {grad}, false, false, true);
  std::array<Tensor, 4> result;
  size_t next = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (leaves[i].defined() && wants[i]) result[i] = gradients[next++];
  }
  return result;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias,
    std::array<bool, 4> wants, const Tensor& output, const Tensor& logsumexp, const Tensor& /*cum_seq_q*/,
    const Tensor& /*cum_seq_k*/, c10::SymInt /*max_q*/, c10::SymInt /*max_k*/, double dropout, bool is_causal,
    const Tensor& seed, const Tensor& /*offset*/, std::optional<double> scale) {
  const OptionalTensor mask = bias.defined() ? OptionalTensor(bias) : std::nullopt;
  if (logsumexp.numel() > 0 && !wants[3]) {
    auto [grad_query, grad_key, grad_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        grad, query, key, value, output, logsumexp, dropout, is_causal, mask, scale);
    return {grad_query, grad_key, grad_value, Tensor()};
  }
  auto result = math_backward(grad, {query, key, value, bias}, wants, dropout, is_causal,
                              seed.is_meta() ? 0 : seed.item<int64_t>(), scale);
  return {result[0], result[1], result[2], result[3]};
}

int64_t choose(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask,
               double /*dropout*/, bool /*is_causal*/, std::optional<double> /*scale*/, bool /*enable_gqa*/) {
  // vmap has no batching rule for the fused operator.
  const auto batched = [](const Tensor& tensor) { return tensor.key_set().has(c10::DispatchKey::FuncTorchBatched); };
  if (batched(query) || batched(key) || batched(value)) return static_cast<int64_t>(at::SDPBackend::math);
  const bool dense = !query.is_nested() && !key.is_nested() && !value.is_nested();
  // A mask that wants a gradient is S×S itself: the composite path is as good, and exact.
  const bool mask_gradient = mask && mask->defined() && mask->requires_grad() && at::GradMode::is_enabled();
  const bool allowed = at::globalContext().userEnabledFlashSDP() || at::globalContext().userEnabledOverrideableSDP();
  return static_cast<int64_t>(dense && !mask_gradient && allowed && query.numel() && key.numel()
                                  ? at::SDPBackend::overrideable
                                  : at::SDPBackend::math);
}

int64_t choose_on_device(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask,
                         double dropout, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  return choose(query, key, value, mask, dropout, is_causal, scale, enable_gqa);
}

}  // namespace

void register_attention(torch::Library& aten) {
  register_host_kernel(aten, "_scaled_dot_product_fused_attention_overrideable", &attention);
  register_host_kernel(aten, "_scaled_dot_product_fused_attention_overrideable_backward", &attention_backward);
  aten.impl("_fused_sdp_choice", &choose_on_device);
}

}  // namespace opentrn::device

namespace at::native {
// The stub that scaled_dot_product_attention asks first.
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &opentrn::device::choose)
}  // namespace at::native
