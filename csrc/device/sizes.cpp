#include "device/sizes.h"

#include <ATen/Functions.h>

#include "device/dry.h"
#include "device/operators.h"

namespace opentrn::device::dry {
namespace {

bool is_indexing(const OperatorTraits& traits) {
  return traits.base == "index" || traits.base == "index_put" || traits.base == "index_put_" ||
         traits.base == "_index_put_impl_" || traits.base == "_unsafe_index" || traits.base == "_unsafe_index_put";
}

// Integer indices of the true elements of `mask`, one tensor a dimension, on the mask's device.
std::vector<at::Tensor> indices_of(const OperatorTraits& traits, const at::Tensor& mask) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  at::Tensor positions;
  if (is_unbacked(mask)) {
    note_stand_in(traits, "mask without bytes selects every element");
    positions = at::empty({mask.numel(), mask.dim()}, at::TensorOptions().dtype(at::kLong).device(mask.device()));
  } else {
    const at::Tensor host = is_neuron(mask) ? host_alias(mask) : mask;
    const OpenedBytes bytes(mask);
    positions = host.nonzero().to(mask.device());
  }
  return positions.unbind(1);
}

void expand_masks(const OperatorTraits& traits, c10::IValue& value) {
  c10::List<std::optional<at::Tensor>> expanded;
  bool any = false;
  for (const std::optional<at::Tensor> index : value.toOptionalTensorList()) {
    const bool is_mask =
        index && index->defined() && (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte);
    if (!is_mask) {
      expanded.push_back(index);
      continue;
    }
    any = true;
    for (at::Tensor& positions : indices_of(traits, *index)) expanded.push_back(std::move(positions));
  }
  if (any) value = std::move(expanded);
}

}  // namespace

void adapt_data_dependent(const OperatorTraits& traits, torch::jit::Stack& stack, Scan& scan_result) {
  if (!is_indexing(traits)) return;
  c10::IValue& indices = stack[stack.size() - traits.argument_count + 1];
  if (!indices.isOptionalTensorList()) return;
  expand_masks(traits, indices);
  const c10::DeviceIndex device = scan_result.device;
  scan_result = scan(traits, stack);
  scan_result.device = device;
}

}  // namespace opentrn::device::dry
