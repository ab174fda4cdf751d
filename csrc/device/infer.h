// Shapes, strides, dtypes and aliasing of an operator's results, without values.
#pragma once

#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "device/fallback.h"
#include "device/signature.h"
#include "timeline/programs.h"

namespace opentrn::device::dry {

struct Geometry {
  c10::SmallVector<int64_t, 5> sizes, strides;
  int64_t offset = 0;
  at::ScalarType type = at::kFloat;
  size_t storage_bytes = 0;
  bool conjugate = false, negative = false;
};

struct Result {
  enum Kind : uint8_t {
    kUndefined,
    kArgument,      // the argument itself (in-place, out=)
    kArgumentView,  // new tensor in the storage of an argument
    kFresh,         // new tensor in a new storage
    kFreshView,     // new tensor in the storage of an earlier fresh result
    kConstant,      // not a tensor
  };
  Kind kind = kUndefined;
  int source = -1;  // argument tensor (flattened), or earlier result
  Geometry geometry;
  c10::IValue constant;
};

struct Plan {
  std::vector<Result> results;                    // flattened
  std::vector<int> list_lengths;                  // per return: -1, or the length of a tensor list
  std::vector<std::pair<int, Geometry>> changed;  // written arguments that got another geometry
  size_t fresh_bytes = 0;                         // of results that would be run for, by the backing rule
  bool fits_bytes = true;                         // every fresh result is small enough to have bytes
  const char* stands_in = nullptr;                // rule behind sizes or answers that no computation gave
  timeline::KnownCost cost;
};

// Infers on meta tensors; where PyTorch has no meta kernel, by running the CPU kernel on zeros, up to a size limit.
// Raises what the operator itself raises for wrong shapes, and NotImplementedError where neither way exists.
Plan infer(const c10::OperatorHandle& op, const OperatorTraits& traits, const torch::jit::Stack& stack,
           const Scan& scan, const HostKernel* kernel);

}  // namespace opentrn::device::dry
