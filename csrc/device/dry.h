// Dry runs: large tensors are a shape and an address, without bytes.
//
// In a dry run an operator whose inputs all have bytes and whose results are small runs really, so that masks,
// positions and control flow are exact. Any other only infers the shapes of its results (once per signature), allocates
// them, and advances the clock. Small integer and boolean results of inputs without bytes are made with bytes when they
// are produced, by stated rules; each such stand-in is counted in a ledger.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "device/fallback.h"
#include "device/signature.h"

namespace opentrn::device::dry {

// Whether an operator may meet tensors without bytes at all: dry mode is on, or such storages exist.
bool concerned();
bool mode();
bool set_mode(bool on);       // returns the mode before
void count_unbacked(int by);  // storages without bytes that exist

// Whether a fresh storage gets bytes in the present mode.
bool gets_bytes(size_t bytes, at::ScalarType type);

// Up to how many bytes a storage of floats, and of integers or booleans, has bytes in a dry run. With 0 for floats
// every float is inferred, which is how tests hold inference against real runs.
void set_backing_limits(size_t float_bytes, size_t integer_bytes);

// Runs `op` in a dry run. Returns false where the operator has to run really.
bool run(const c10::OperatorHandle& op, OperatorTraits& traits, torch::jit::Stack* stack, const HostKernel* kernel);

// The value that stands in for an element without bytes that the host reads. Outside a dry run it raises instead: only
// a dry run reports what stood in.
at::Scalar stand_in_scalar(const at::TensorBase& tensor);

struct StandIn {
  std::string operator_name;
  std::string rule;
  std::string frame;  // the user's line
  int64_t count = 0;
};
void note_stand_in(const OperatorTraits& traits, const char* rule);

// Integers and booleans: masks, positions and routing, which keep values where floats lose them.
inline bool is_integer(at::ScalarType type) { return c10::isIntegralType(type, /*includeBool=*/true); }
// Writes the stand-in of result `index` into the bytes of `tensor`, and notes it; `extent`: see fill_stand_in.
void write_stand_in(const OperatorTraits& traits, size_t index, int64_t extent, const at::Tensor& tensor);
// Notes that integers which would have been written keep what they have.
void note_kept_values(const OperatorTraits& traits);
std::vector<StandIn> ledger();
void clear_ledger();

struct Counters {
  int64_t inferred = 0;  // operators that only inferred
  int64_t ran = 0;       // operators that ran really
  int64_t misses = 0;    // signatures seen for the first time
  int64_t signatures = 0;
};
Counters counters();

}  // namespace opentrn::device::dry
