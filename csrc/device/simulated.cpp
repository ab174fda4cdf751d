#include "device/simulated.h"

#include "device/alias.h"
#include "device/describe.h"

#include <algorithm>
#include <map>

namespace opentrn::device {
namespace {

using timeline::Layout;
using timeline::OperatorClass;
using timeline::ProgramSignature;
using timeline::Work;

bool has_programs(OperatorClass operator_class) {
  switch (operator_class) {
    case OperatorClass::kMatmul:
    case OperatorClass::kAttention:
    case OperatorClass::kAttentionBackward:
    case OperatorClass::kPointwise:
    case OperatorClass::kReduction:
    case OperatorClass::kCopy:
    case OperatorClass::kGather:
    case OperatorClass::kScatter:
    case OperatorClass::kScan:
    case OperatorClass::kRandom:
      return true;
    default:
      return false;
  }
}

// ---- Elementwise: layouts relative to the tensor that is walked over -----------------------------------------------

struct Walk {
  const at::TensorBase* shape;  // the largest result, or the largest operand
  int64_t elements;
};

// Elements of the innermost dimensions over which `tensor` repeats one value, and of those it follows.
struct Extent {
  int64_t repeated = 1, followed = 1;
};

Extent inner_extent(const at::TensorBase& tensor, const at::TensorBase& shape) {
  Extent extent;
  int64_t d = tensor.dim() - 1, of = shape.dim() - 1;
  const auto repeats = [&] { return d < 0 || tensor.sizes()[d] == 1 || tensor.strides()[d] == 0; };
  for (; of >= 0 && (shape.sizes()[of] == 1 || repeats()); --of, --d) extent.repeated *= shape.sizes()[of];
  for (; of >= 0 && (shape.sizes()[of] == 1 || !repeats()); --of, --d) extent.followed *= shape.sizes()[of];
  return extent;
}

// Neighbours of the result, along the dimension in which it is contiguous, must be neighbours in `tensor` too.
bool is_scattered(const at::TensorBase& tensor, const at::TensorBase& shape) {
  for (int64_t back = 1; back <= shape.dim(); ++back) {
    const int64_t of = shape.dim() - back, d = tensor.dim() - back;
    if (shape.sizes()[of] > 1 && shape.strides()[of] == 1)
      return d >= 0 && tensor.sizes()[d] > 1 && tensor.strides()[d] > 1;
  }
  return false;
}

Layout layout_of(ProgramSignature& signature, const at::TensorBase& tensor, const Walk& walk) {
  const int64_t count = tensor.numel();
  if (count == 1) return is_neuron(tensor) ? Layout::kScalar : Layout::kNumber;
  if (count == walk.elements) {
    if (C10_LIKELY(tensor.is_contiguous() && walk.shape->is_contiguous())) return Layout::kWhole;
    const Extent extent = inner_extent(tensor, *walk.shape);  // an expanded view repeats as a small tensor does
    if (extent.repeated == 1 && extent.followed == walk.elements)
      return is_scattered(tensor, *walk.shape) ? Layout::kScattered : Layout::kWhole;
  }
  const Extent extent = inner_extent(tensor, *walk.shape);
  if (extent.repeated >= walk.elements) return Layout::kScalar;
  if (extent.repeated > 1) {
    signature.dims[2] = std::max(signature.dims[2], extent.repeated);
    return Layout::kColumn;
  }
  signature.dims[1] = std::max(signature.dims[1], extent.followed);
  return Layout::kRow;
}

bool describe_elementwise(ProgramSignature& signature, const Operands& operands, int64_t tensors) {
  Walk walk{nullptr, -1};
  for (const auto* list : {&operands.outputs, &operands.inputs}) {
    for (const at::TensorBase* tensor : *list) {
      if (tensor->numel() > walk.elements) walk = {tensor, tensor->numel()};
    }
  }
  if (walk.elements <= 0) return false;
  signature.dims[0] = walk.elements;
  signature.dims[3] = tensors;
  for (const at::TensorBase* tensor : operands.inputs)
    add_operand(signature, *tensor, layout_of(signature, *tensor, walk), false);
  for (const at::TensorBase* tensor : operands.outputs)
    add_operand(signature, *tensor, layout_of(signature, *tensor, walk), true);
  return true;
}

// A concatenation moves its result once, wherever the pieces come from.
bool describe_gathered_copy(ProgramSignature& signature, const Ran& ran, const at::TensorBase& result) {
  if (ran.inputs.empty() || result.numel() == 0) return false;
  signature.dims[0] = result.numel();
  signature.dims[3] = 1;
  add_operand(signature, *ran.inputs[0], Layout::kWhole, false);
  add_operand(signature, result, Layout::kWhole, true);
  return true;
}

// ---- Matmul, attention
// -----------------------------------------------------------------------------------------------

// The matrix's columns, not its rows, lie side by side.
bool is_transposed(const at::TensorBase& matrix) {
  if (matrix.dim() < 2) return false;
  const auto sizes = matrix.sizes(), strides = matrix.strides();
  const size_t last = sizes.size() - 1;
  return sizes[last] > 1 && strides[last] != 1 && strides[last - 1] == 1;
}

bool describe_product(ProgramSignature& signature, const Ran& ran, const Work& work) {
  if (work.m <= 0 || work.n <= 0 || work.k <= 0 || work.batch <= 0) return false;
  const std::string& base = ran.traits->base;
  const bool linear = base == "linear";
  const bool with_addend = ran.inputs.size() >= 3 && (base.starts_with("add") || base.starts_with("baddbmm") ||
                                                      base.starts_with("_addmm_activation"));
  const size_t first = with_addend ? 1 : 0;
  const at::TensorBase& left = *ran.inputs[first];
  const at::TensorBase& right = *ran.inputs[first + 1];
  const at::TensorBase* addend = with_addend                        ? ran.inputs[0]
                                 : linear && ran.inputs.size() >= 3 ? ran.inputs[2]
                                                                    : nullptr;
  int64_t batch = work.batch, m = work.m;
  if (base == "_grouped_mm" && left.dim() == 2 && right.dim() == 3) {  // rows are taken to be spread evenly
    batch = right.sizes()[0];
    m = (m + batch - 1) / batch;
  }
  signature.dims = {batch, m, work.n, work.k, is_transposed(left), is_transposed(right) != linear, 0, 0};
  if (addend) signature.dims[6] = addend->numel() > work.n ? 2 : 1;
  add_operand(signature, left, Layout::kWhole, false);
  add_operand(signature, right, Layout::kWhole, false);
  const Operands operands = operands_of(ran);
  if (!operands.outputs.empty()) add_operand(signature, *operands.outputs[0], Layout::kWhole, true);
  return !operands.outputs.empty();
}

bool describe_attention(ProgramSignature& signature, const Ran& ran) {
  const size_t first = signature.operator_class == OperatorClass::kAttentionBackward ? 1 : 0;
  if (ran.inputs.size() < first + 3) return false;
  const at::TensorBase& query = *ran.inputs[first];
  const at::TensorBase& key = *ran.inputs[first + 1];
  const at::TensorBase& value = *ran.inputs[first + 2];
  const int64_t one_query = from_end(query, 1) * from_end(query, 2), one_key = from_end(key, 1) * from_end(key, 2);
  if (one_query <= 0 || one_key <= 0) return false;
  signature.dims = {query.numel() / one_query, key.numel() / one_key, from_end(query, 2), from_end(key, 2),
                    from_end(query, 1),        from_end(value, 1),    ran.causal,         0};
  // Forward: a fourth tensor is the mask. Backward: it comes before the output and the sums.
  const size_t mask = first + 3;
  signature.dims[7] = ran.inputs.size() > mask && ran.inputs[mask]->numel() > 1 &&
                      (first == 0 || ran.inputs[mask]->sizes() != ran.inputs[0]->sizes());
  for (const at::TensorBase* tensor : {&query, &key, &value}) add_operand(signature, *tensor, Layout::kWhole, false);
  return true;
}

// ---- Lists of tensors
// --------------------------------------------------------------------------------------------------

// True if some argument gave several tensors.
bool has_lists(const Ran& ran) {
  for (size_t i = 1; i < ran.arguments.size(); ++i) {
    if (ran.arguments[i] == ran.arguments[i - 1]) return true;
  }
  return false;
}

// Position in `inputs` at which each argument's tensors begin, and the longest list's length.
struct Lists {
  c10::SmallVector<std::pair<size_t, size_t>, 8> ranges;
  size_t length = 0;
};

Lists lists_of(const Ran& ran) {
  Lists lists;
  for (size_t i = 0; i < ran.arguments.size(); ++i) {
    if (i == 0 || ran.arguments[i] != ran.arguments[i - 1]) lists.ranges.emplace_back(i, i);
    lists.ranges.back().second = i + 1;
    lists.length = std::max(lists.length, lists.ranges.back().second - lists.ranges.back().first);
  }
  return lists;
}

Operands operands_at(const Ran& ran, const Lists& lists, size_t index) {
  Operands operands;
  for (const auto& [begin, end] : lists.ranges) {
    const bool list = end - begin == lists.length;
    const at::TensorBase* tensor = ran.inputs[list ? begin + index : begin];
    const bool written = ran.traits->writes(ran.arguments[begin]);
    if (!written || !overwrites(*ran.traits)) operands.inputs.push_back(tensor);
    if (written) operands.outputs.push_back(tensor);
  }
  if (ran.outputs.size() == lists.length) operands.outputs.push_back(ran.outputs[index]);
  return operands;
}

ProgramSignature start_signature(const Ran& ran) {
  ProgramSignature signature;
  signature.operator_id = ran.traits->id;
  signature.operator_class = ran.traits->operator_class;
  return signature;
}

bool describe_reduction_of(ProgramSignature& signature, const Operands& operands, int64_t tensors) {
  if (operands.inputs.empty() || operands.outputs.empty() || operands.inputs[0]->numel() == 0) return false;
  const int64_t elements = operands.inputs[0]->numel();
  signature.dims = {elements, 1, elements, 1, elements, 0, tensors, 0};
  add_operand(signature, *operands.inputs[0], Layout::kWhole, false);
  add_operand(signature, *operands.outputs[0], Layout::kRow, true);
  return true;
}

std::optional<double> list_ns(const Ran& ran) {
  const Lists lists = lists_of(ran);
  // Equal tensors are neighbours of no particular order: count them by size.
  std::map<int64_t, std::pair<size_t, int64_t>> groups;  // elements: (first index, tensors)
  for (size_t i = 0; i < lists.length; ++i) {
    const auto& [begin, end] = lists.ranges[0];
    const int64_t elements = ran.inputs[end - begin == lists.length ? begin + i : begin]->numel();
    if (elements > 0) ++groups.try_emplace(elements, i, 0).first->second.second;
  }
  double total = 0;
  for (const auto& [elements, group] : groups) {
    ProgramSignature signature = start_signature(ran);
    const Operands operands = operands_at(ran, lists, group.first);
    const bool described = signature.operator_class == OperatorClass::kReduction
                               ? describe_reduction_of(signature, operands, group.second)
                               : describe_elementwise(signature, operands, group.second);
    if (!described || signature.overflow) return std::nullopt;
    const timeline::ProgramAnswer answer = timeline::programs::find(signature);
    if (!answer.exists()) return std::nullopt;
    total += answer.nanoseconds;
  }
  return total;
}

bool describe(ProgramSignature& signature, const Ran& ran, const Work& work) {
  switch (signature.operator_class) {
    case OperatorClass::kMatmul:
      return describe_product(signature, ran, work);
    case OperatorClass::kAttention:
    case OperatorClass::kAttentionBackward:
      return describe_attention(signature, ran);
    case OperatorClass::kReduction:
      return describe_reduction(signature, ran);
    case OperatorClass::kScan:
      return describe_scan(signature, ran);
    case OperatorClass::kGather:
      return describe_gather(signature, ran);
    case OperatorClass::kScatter:
      return describe_scatter(signature, ran);
    default:
      return describe_elementwise(signature, operands_of(ran), 1);
  }
}

// cat and stack, also into out=: one list in, one tensor out. (_foreach_copy_ has as many results as tensors.)
const at::TensorBase* gathered_result(const Ran& ran) {
  if (ran.traits->operator_class != OperatorClass::kCopy) return nullptr;
  const Operands operands = operands_of(ran);
  return operands.outputs.size() == 1 ? operands.outputs[0] : nullptr;
}

}  // namespace

std::optional<double> simulated_ns(const Ran& ran, const Work& work) {
  // `work` may be of another class than its operator: a copy between devices is a transfer.
  if (!has_programs(work.operator_class)) return std::nullopt;
  ProgramSignature signature = start_signature(ran);
  signature.operator_class = work.operator_class;
  if (has_lists(ran) && work.operator_class != OperatorClass::kMatmul) {
    const at::TensorBase* gathered = gathered_result(ran);
    if (!gathered) return list_ns(ran);
    if (!describe_gathered_copy(signature, ran, *gathered)) return std::nullopt;
  } else if (!describe(signature, ran, work)) {
    return std::nullopt;
  }
  if (signature.overflow) return std::nullopt;
  const timeline::ProgramAnswer answer = timeline::programs::find(signature);
  return answer.exists() ? std::optional<double>(answer.nanoseconds) : std::nullopt;
}

}  // namespace opentrn::device
