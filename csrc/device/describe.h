// Parts of a program's signature that several operator classes share, and the classes that work on rows.
#pragma once

#include "device/accounting.h"
#include "timeline/programs.h"

namespace opentrn::device {

// The tensors that a program loads and stores.
struct Operands {
  c10::SmallVector<const at::TensorBase*, 12> inputs, outputs;
};

// Whether an operator does not read what it writes.
bool overwrites(const OperatorTraits& traits);
Operands operands_of(const Ran& ran);
void add_operand(timeline::ProgramSignature& signature, const at::TensorBase& tensor, timeline::Layout layout,
                 bool output);
// Size of the dimension `back` from the end, 1 where there is none.
int64_t from_end(const at::TensorBase& tensor, int64_t back);

// Each fills the signature of its class (timeline/programs.h says with what); false: no program covers the call.
bool describe_reduction(timeline::ProgramSignature& signature, const Ran& ran);
bool describe_scan(timeline::ProgramSignature& signature, const Ran& ran);
bool describe_gather(timeline::ProgramSignature& signature, const Ran& ran);
bool describe_scatter(timeline::ProgramSignature& signature, const Ran& ran);

}  // namespace opentrn::device
