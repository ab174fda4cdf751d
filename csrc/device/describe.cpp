#include "device/describe.h"

#include <algorithm>

namespace opentrn::device {

using timeline::Layout;
using timeline::OperatorClass;
using timeline::ProgramSignature;

void add_operand(ProgramSignature& signature, const at::TensorBase& tensor, Layout layout, bool output) {
  const int used = signature.inputs + signature.outputs;
  if (used == ProgramSignature::kOperands) {
    signature.overflow = 1;
    return;
  }
  signature.operands[used] = {static_cast<uint8_t>(tensor.scalar_type()), layout};
  ++(output ? signature.outputs : signature.inputs);
}

bool overwrites(const OperatorTraits& traits) {
  return traits.has_out || traits.operator_class == OperatorClass::kCopy;
}

Operands operands_of(const Ran& ran) {
  Operands operands;
  if (ran.traits->is_copy) {  // copy_(self, src) and _copy_from(self, dst)
    const size_t source = ran.traits->base == "copy_" ? 1 : 0;
    operands.inputs.push_back(ran.inputs[source]);
    operands.outputs.push_back(ran.inputs[1 - source]);
    return operands;
  }
  for (size_t i = 0; i < ran.inputs.size(); ++i) {
    const bool written = ran.traits->writes(ran.arguments[i]);
    if (!written || !overwrites(*ran.traits)) operands.inputs.push_back(ran.inputs[i]);
    if (written) operands.outputs.push_back(ran.inputs[i]);
  }
  for (const at::TensorBase* output : ran.outputs) operands.outputs.push_back(output);
  return operands;
}

int64_t from_end(const at::TensorBase& tensor, int64_t back) {
  return tensor.dim() >= back ? tensor.sizes()[tensor.dim() - back] : 1;
}

namespace {

// Which dimensions of `input` were reduced, read off the result: those it lacks, or has with size one. Where sizes
// leave a choice (a square that becomes a row), the later dimensions were reduced.
struct Reduced {
  int64_t outer = 1, reduced = 1, inner = 1;
};

Reduced compare(const at::TensorBase& input, const at::TensorBase& result) {
  Reduced found;
  const bool kept_dims = input.dim() == result.dim();
  int64_t next = 0;
  for (int64_t d = 0; d < input.dim(); ++d) {
    const int64_t size = input.sizes()[d];
    const bool kept = next < result.dim() && result.sizes()[next] == size;
    if (kept || kept_dims) ++next;
    if (!kept) {
      found.outer *= found.inner;  // kept dimensions between reduced ones count as outer
      found.inner = 1;
      found.reduced *= size;
    } else {
      (found.reduced == 1 ? found.outer : found.inner) *= size;
    }
  }
  return found;
}

Reduced along(const at::TensorBase& input, int64_t dim) {
  Reduced found;
  const int64_t at = dim < 0 ? dim + input.dim() : dim;
  for (int64_t d = 0; d < input.dim(); ++d) {
    (d < at ? found.outer : d == at ? found.reduced : found.inner) *= input.sizes()[d];
  }
  return found;
}

Reduced reduced_of(const Ran& ran, const at::TensorBase& input, const at::TensorBase& result) {
  const bool told = ran.dim != Ran::kNoDim && input.dim() > 0 && result.numel() < input.numel();
  return told ? along(input, ran.dim) : compare(input, result);
}

void add_operands(ProgramSignature& signature, const Operands& operands, int64_t whole) {
  for (const auto* list : {&operands.inputs, &operands.outputs}) {
    for (const at::TensorBase* tensor : *list) {
      const Layout layout = tensor->numel() == whole ? Layout::kWhole : Layout::kRow;
      add_operand(signature, *tensor, layout, list == &operands.outputs);
    }
  }
}

// ---- Normalisation over channels, and losses that pick one element of a row ---------------------------------------

// The tensor that argument number `argument` of the schema gave.
const at::TensorBase* given_as(const Ran& ran, uint8_t argument) {
  for (size_t i = 0; i < ran.inputs.size(); ++i) {
    if (ran.arguments[i] == argument) return ran.inputs[i];
  }
  return nullptr;
}

bool describe_channels(ProgramSignature& signature, const Ran& ran, bool backward) {
  const Operands operands = operands_of(ran);
  const at::TensorBase& input = *operands.inputs[0];
  if (operands.outputs.empty() || input.dim() < 2 || input.numel() == 0) return false;
  const int64_t batch = input.sizes()[0], channels = input.sizes()[1];
  // Both schemas of a group norm have its mean as the second of three: of the results, else of the arguments.
  const at::TensorBase* mean = backward                      ? given_as(ran, 2)
                               : operands.outputs.size() > 1 ? operands.outputs[1]
                                                             : nullptr;
  const int64_t statistics = mean ? mean->numel() : 0;
  signature.dims = {input.numel(), batch, channels, input.numel() / batch / channels, 0, statistics, 0, 0};
  add_operands(signature, operands, input.numel());
  for (int i = 0; i < signature.inputs; ++i) {
    if (!operands.inputs[i]->is_contiguous()) signature.operands[i].layout = Layout::kScattered;
  }
  return true;
}

bool describe_picked(ProgramSignature& signature, const Ran& ran, bool backward) {
  const at::TensorBase* scores = given_as(ran, backward ? 1 : 0);
  const at::TensorBase* target = given_as(ran, backward ? 2 : 1);
  const at::TensorBase* weight = given_as(ran, backward ? 3 : 2);
  const Operands operands = operands_of(ran);
  if (!scores || !target || operands.outputs.empty() || target->numel() == 0) return false;
  signature.dims = {scores->numel(),
                    target->numel(),
                    scores->numel() / target->numel(),
                    1,
                    weight != nullptr,
                    operands.outputs[0]->numel(),
                    0,
                    0};
  add_operand(signature, *scores, Layout::kWhole, false);
  add_operand(signature, *target, Layout::kRow, false);
  add_operand(signature, *operands.outputs[0], Layout::kRow, true);
  return true;
}

// ---- Rows that indices name ---------------------------------------------------------------------------------------

bool is_index(const at::TensorBase& tensor) {
  return tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt;
}

struct Indexed {
  int64_t rows = 0;   // indices
  int64_t outer = 1;  // times that they are used
  int64_t width = 0;  // elements that lie side by side at each
  int64_t table = 0;  // rows to choose from
  const at::TensorBase* index = nullptr;
};

// index and index_put: the tensors of one list index the first dimensions, together.
bool index_leading(Indexed& found, const Ran& ran, const at::TensorBase& self) {
  int64_t dims = 0;
  for (size_t i = 0; i < ran.inputs.size(); ++i) {
    if (ran.arguments[i] != 1) continue;
    if (!is_index(*ran.inputs[i])) return false;
    ++dims;
    if (ran.inputs[i]->numel() > found.rows) {
      found.rows = ran.inputs[i]->numel();
      found.index = ran.inputs[i];
    }
  }
  if (!found.index || dims > self.dim()) return false;
  found.width = found.table = 1;
  for (int64_t d = 0; d < self.dim(); ++d) (d < dims ? found.table : found.width) *= self.sizes()[d];
  return true;
}

bool index_along(Indexed& found, const Ran& ran, const at::TensorBase& self, const at::TensorBase& index) {
  if (!is_index(index)) return false;
  const Reduced around = along(self, ran.dim == Ran::kNoDim ? 0 : ran.dim);
  found = {index.numel(), around.outer, around.inner, around.reduced, &index};
  return true;
}

void add_indexed(ProgramSignature& signature, const Indexed& found, bool copied) {
  signature.dims = {found.rows, found.width, found.outer, found.table, copied, 0, 0, 0};
}

}  // namespace

bool describe_reduction(ProgramSignature& signature, const Ran& ran) {
  const Operands operands = operands_of(ran);
  if (operands.inputs.empty() || operands.outputs.empty()) return false;
  const std::string& base = ran.traits->base;
  const bool backward = base.ends_with("_backward");
  if (base.find("batch_norm") != std::string::npos || base.find("group_norm") != std::string::npos)
    return describe_channels(signature, ran, backward);
  if (base.starts_with("nll_loss")) return describe_picked(signature, ran, backward);
  const at::TensorBase& input = *operands.inputs[0];
  if (input.numel() == 0) return false;
  const Reduced found = reduced_of(ran, input, *operands.outputs[0]);
  const int64_t second = operands.outputs.size() > 1 ? operands.outputs[1]->numel() : 0;
  signature.dims = {input.numel(), found.outer, found.reduced, found.inner, from_end(input, 1), second, 0, 0};
  add_operands(signature, operands, input.numel());
  return true;
}

bool describe_scan(ProgramSignature& signature, const Ran& ran) {
  const Operands operands = operands_of(ran);
  if (operands.inputs.empty() || operands.outputs.empty() || operands.inputs[0]->numel() == 0) return false;
  const at::TensorBase& input = *operands.inputs[0];
  const Reduced found = along(input, ran.dim == Ran::kNoDim ? -1 : ran.dim);
  signature.dims = {input.numel(), found.outer, found.reduced, found.inner, 0, 0, 0, 0};
  add_operand(signature, input, Layout::kWhole, false);
  for (const at::TensorBase* output : operands.outputs) add_operand(signature, *output, Layout::kWhole, true);
  return true;
}

bool describe_gather(ProgramSignature& signature, const Ran& ran) {
  const Operands operands = operands_of(ran);
  if (operands.inputs.size() < 2 || operands.outputs.size() != 1) return false;
  const at::TensorBase& self = *operands.inputs[0];
  const at::TensorBase& index = *operands.inputs[1];
  const std::string& base = ran.traits->base;
  Indexed found;
  bool described = false;
  if (base == "embedding" || base == "index_select") described = index_along(found, ran, self, index);
  if (base == "index") described = index_leading(found, ran, self);
  if (base == "gather" && is_index(index)) {
    found = {index.numel(), 1, 1, self.numel(), &index};
    described = true;
  }
  if (!described || found.rows * found.outer * found.width != operands.outputs[0]->numel()) return false;
  add_indexed(signature, found, false);
  for (const at::TensorBase* tensor : {&self, found.index}) add_operand(signature, *tensor, Layout::kWhole, false);
  add_operand(signature, *operands.outputs[0], Layout::kWhole, true);
  return true;
}

bool describe_scatter(ProgramSignature& signature, const Ran& ran) {
  const Operands operands = operands_of(ran);
  if (operands.inputs.size() < 2 || operands.outputs.size() != 1) return false;
  const at::TensorBase& result = *operands.outputs[0];
  const at::TensorBase* values = operands.inputs.back();
  const std::string& base = ran.traits->base;
  Indexed found;
  bool described = false;
  if (base == "embedding_dense_backward") {
    values = operands.inputs[0];
    const at::TensorBase& index = *operands.inputs[1];
    found = {index.numel(), 1, from_end(result, 1), from_end(result, 2), &index};
    described = is_index(index);
  }
  if (base.starts_with("index_add") || base.starts_with("index_copy"))
    described = index_along(found, ran, result, *given_as(ran, 2));
  if (base.find("index_put") != std::string::npos) described = index_leading(found, ran, result);
  if (!described || found.rows == 0) return false;
  // A result that is fresh is first filled: with zeros, or with what the operator was given.
  add_indexed(signature, found, !ran.outputs.empty());
  for (const at::TensorBase* tensor : {values, found.index}) add_operand(signature, *tensor, Layout::kWhole, false);
  add_operand(signature, result, Layout::kWhole, true);
  return true;
}

}  // namespace opentrn::device
