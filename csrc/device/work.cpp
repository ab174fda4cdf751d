#include "device/work.h"

#include <algorithm>
#include <string_view>

namespace opentrn::device {
namespace {

using timeline::OperatorClass;
using timeline::Work;

// Elements that exist in memory: a dimension of stride 0 repeats the same ones.
int64_t distinct_elements(const at::TensorBase& tensor) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  int64_t count = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return 0;
    if (strides[d] != 0) count *= sizes[d];
  }
  return count;
}

int64_t bytes_of(const at::TensorBase& tensor) {
  if (C10_LIKELY(tensor.is_contiguous())) return static_cast<int64_t>(tensor.nbytes());
  return distinct_elements(tensor) * static_cast<int64_t>(tensor.itemsize());
}

timeline::Element element_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return timeline::Element::kFloat32;
    case at::kHalf:
      return timeline::Element::kFloat16;
    case at::kBFloat16:
      return timeline::Element::kBFloat16;
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e5m2:
      return timeline::Element::kFloat8;
    default:
      return timeline::Element::kOther;
  }
}

int64_t size_or_one(const at::TensorBase& tensor, int64_t from_end) {
  const int64_t dim = tensor.dim() - from_end;
  return dim >= 0 ? tensor.sizes()[dim] : 1;
}

// Which two of the operands are multiplied: the last two matrices of the schema.
void describe_matmul(Work& work, std::string_view base, TensorRefs inputs) {
  const bool with_addend = base.starts_with("add") || base == "baddbmm" || base == "_addmm_activation";
  const size_t first = with_addend && inputs.size() >= 3 ? 1 : 0;
  if (inputs.size() < first + 2) return;
  const at::TensorBase& a = *inputs[first];
  const at::TensorBase& b = *inputs[first + 1];
  if (a.dim() == 0 || b.dim() == 0) return;
  work.element = element_of(a.scalar_type());
  work.k = a.sizes().back();
  if (base == "linear") {  // x [..., k] by weight [n, k]
    work.n = b.dim() == 2 ? b.sizes()[0] : 1;
    work.m = work.k ? a.numel() / work.k : 0;
  } else if (base == "_grouped_mm" || base == "_scaled_grouped_mm") {
    work.m = size_or_one(a, 2);
    work.n = b.sizes().back();
    if (a.dim() == 3) work.batch = a.sizes()[0];
  } else if (a.dim() == 3) {
    work.batch = a.sizes()[0];
    work.m = a.sizes()[1];
    work.n = b.sizes().back();
  } else if (base == "addr") {
    work.m = a.numel();
    work.n = b.numel();
    work.k = 1;
  } else {
    work.m = a.dim() == 2 ? a.sizes()[0] : 1;
    work.n = b.dim() == 2 ? b.sizes()[1] : 1;
  }
  work.flops = 2 * work.batch * work.m * work.n * work.k;
}

void describe_convolution(Work& work, std::string_view base, TensorRefs inputs, TensorRefs outputs) {
  // forward (input, weight, bias): every output element takes weight elements per output channel.
  // backward (grad_output, input, weight): the same product twice.
  const bool backward = base.find("backward") != std::string_view::npos;
  const size_t weight_index = backward ? 2 : 1;
  if (inputs.size() <= weight_index) return;
  const at::TensorBase& weight = *inputs[weight_index];
  const at::TensorBase* result = backward ? inputs[0] : outputs.empty() ? nullptr : outputs[0];
  if (!result || weight.dim() == 0 || weight.sizes()[0] == 0) return;
  work.element = element_of(weight.scalar_type());
  work.flops = 2 * result->numel() * (weight.numel() / weight.sizes()[0]) * (backward ? 2 : 1);
}

// Two products of [Sq, D] by [D, Sk] forward, four backward: model FLOPs. The scores that a fused backward computes
// again are its own business, and part of its duration only. Masked and causal parts are counted in full, as
// TorchTitan's formula counts them.
void describe_attention(Work& work, bool backward, TensorRefs inputs) {
  const size_t first = backward ? 1 : 0;
  if (inputs.size() < first + 3) return;
  const at::TensorBase& query = *inputs[first];
  const at::TensorBase& key = *inputs[first + 1];
  const at::TensorBase& value = *inputs[first + 2];
  if (query.dim() < 2 || key.dim() < 2 || value.dim() < 2) return;
  const int64_t heads = query.numel() / std::max<int64_t>(1, size_or_one(query, 2) * size_or_one(query, 1));
  const int64_t scores = heads * size_or_one(query, 2) * size_or_one(key, 2);
  const int64_t query_depth = size_or_one(query, 1), value_depth = size_or_one(value, 1);
  work.element = element_of(query.scalar_type());
  work.flops = backward ? 2 * scores * 2 * (query_depth + value_depth) : 2 * scores * (query_depth + value_depth);
}

void describe_rows(Work& work, TensorRefs inputs) {
  if (inputs.empty()) return;
  const int64_t row = std::max<int64_t>(1, inputs[0]->dim() >= 2 ? inputs[0]->sizes().back() : 1);
  const int64_t moved = work.operator_class == OperatorClass::kScatter
                            ? (inputs.size() > 1 ? inputs.back()->numel() : work.output_elements)
                            : work.output_elements;
  work.rows = (moved + row - 1) / row;
}

// Where a scatter writes into what it is given, only the rows that it names move.
void count_scattered(Work& work, const OperatorTraits& traits, TensorRefs inputs, c10::ArrayRef<uint8_t> arguments,
                     TensorRefs outputs) {
  if (!outputs.empty()) return;
  int64_t read = 0, values = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (traits.writes(arguments[i])) continue;
    read += bytes_of(*inputs[i]);
    values = std::max(values, bytes_of(*inputs[i]));
  }
  work.read_bytes = std::min(work.read_bytes, read + values);
  work.written_bytes = std::min(work.written_bytes, values);
}

// nll_loss takes one score of each target, and its backward none.
void count_picked(Work& work, std::string_view base, TensorRefs inputs) {
  const bool backward = base.ends_with("_backward");
  const size_t scores = backward ? 1 : 0;
  if (!base.starts_with("nll_loss") || inputs.size() < scores + 2) return;
  const int64_t picked = backward ? 0 : inputs[1]->numel() * static_cast<int64_t>(inputs[0]->itemsize());
  work.read_bytes += picked - bytes_of(*inputs[scores]);
}

}  // namespace

Work describe_work(const OperatorTraits& traits, TensorRefs inputs, c10::ArrayRef<uint8_t> arguments,
                   TensorRefs outputs) {
  Work work;
  work.operator_class = traits.operator_class;
  if (work.operator_class == OperatorClass::kNone) return work;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::TensorBase& tensor = *inputs[i];
    const int64_t bytes = bytes_of(tensor);
    work.input_elements = std::max(work.input_elements, tensor.numel());
    const bool is_written = traits.writes(arguments[i]);
    if (is_written) {
      work.written_bytes += bytes;
      work.output_elements += tensor.numel();
    }
    // A copy overwrites its target without reading it.
    if (!(is_written &&
          (work.operator_class == OperatorClass::kCopy || work.operator_class == OperatorClass::kTransfer ||
           work.operator_class == OperatorClass::kRandom))) {
      work.read_bytes += bytes;
      ++work.tensor_operands;
    }
  }
  for (const at::TensorBase* output : outputs) {
    work.written_bytes += bytes_of(*output);
    work.output_elements += output->numel();
  }
  switch (work.operator_class) {
    case OperatorClass::kMatmul:
      describe_matmul(work, traits.base, inputs);
      break;
    case OperatorClass::kConvolution:
      describe_convolution(work, traits.base, inputs, outputs);
      break;
    case OperatorClass::kAttention:
    case OperatorClass::kAttentionBackward:
      describe_attention(work, work.operator_class == OperatorClass::kAttentionBackward, inputs);
      break;
    case OperatorClass::kGather:
    case OperatorClass::kScatter:
      describe_rows(work, inputs);
      // A gather reads the rows it takes, not the whole table.
      if (work.operator_class == OperatorClass::kGather)
        work.read_bytes = std::min(work.read_bytes, 2 * work.written_bytes);
      else
        count_scattered(work, traits, inputs, arguments, outputs);
      break;
    case OperatorClass::kReduction:
      count_picked(work, traits.base, inputs);
      break;
    case OperatorClass::kSort:
      work.sort_length = inputs.empty() || inputs[0]->dim() == 0 ? 1 : inputs[0]->sizes().back();
      break;
    default:
      break;
  }
  return work;
}

}  // namespace opentrn::device
