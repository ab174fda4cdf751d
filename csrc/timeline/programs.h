// Simulated durations of eager operators, by the signature of the program that computes them.
//
// A program of NeuronCore instructions is timed once per signature by a provider (the core's library, through Python);
// the answer stays in a bounded table. What has no program keeps its modelled cost. The timeline knows no tensors and
// the table no instructions: a signature is numbers, and only the provider reads them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "timeline/cost.h"

namespace opentrn::timeline {

// How an operand lies in memory, relative to the elements that the operator walks over.
enum class Layout : uint8_t {
  kWhole,      // every element, in the order of the result
  kScattered,  // every element, but neighbours of the result do not lie side by side
  kScalar,     // one element for all
  kRow,        // repeated over the outer dimensions: a bias, a position table
  kColumn,     // repeated over the inner dimensions: a row's mean
  kNumber,     // known to the host: part of an instruction
};

// Everything a program depends on, and nothing it does not: calls with equal signatures take equally long.
struct ProgramSignature {
  static constexpr int kDims = 8;
  static constexpr int kOperands = 12;
  struct Operand {
    uint8_t type = 0;  // c10::ScalarType
    Layout layout = Layout::kWhole;
    bool operator==(const Operand&) const = default;
  };
  uint32_t operator_id = 0;  // OperatorTraits::id
  OperatorClass operator_class = OperatorClass::kNone;
  uint8_t inputs = 0, outputs = 0;  // of `operands`, inputs first
  uint8_t overflow = 0;             // more operands than fit: no program
  std::array<Operand, kOperands> operands{};
  // matmul: batch, m, n, k, left transposed, right transposed, addend (0 none, 1 a row, 2 whole)
  // attention: query heads, key heads, queries, keys, head size, value size, causal, mask
  // reduction: elements, outer, reduced, inner, last dimension, elements of the second result
  // batch and group norm: elements, batch, channels, inner, -, elements of the mean
  // nll_loss: elements, targets, classes (or classes x places), -, class weights, elements of the result
  // scan: elements, outer, scanned, inner
  // gather and scatter: indices, elements at each, outer, rows to choose from, whether the result is fresh
  // pointwise, copy and random: elements of one tensor, period of a row, extent of a column, tensors
  std::array<int64_t, kDims> dims{};
  bool operator==(const ProgramSignature&) const = default;
};

// A cost worked out before, for the machine and the programs of that generation (`programs::generation()`).
struct KnownCost {
  OperatorCost cost;
  int64_t generation = -1;
};

struct ProgramAnswer {
  double nanoseconds = -1;  // of the logical core; negative: there is no program
  bool exists() const { return nanoseconds >= 0; }
};

// Times a signature's program. Called without locks held, at most once per signature unless threads race.
using ProgramProvider = std::function<ProgramAnswer(const ProgramSignature&)>;

struct ProgramCounters {
  int64_t signatures = 0;  // in the table
  int64_t lookups = 0;
  int64_t misses = 0;     // programs asked of the provider
  int64_t programs = 0;   // misses that found one
  int64_t evictions = 0;  // times the table was full and started over
};

// The cost of an operator whose program takes `program_ns`. Its physical cores share the logical core's part of HBM,
// which the program of one core does not see: no operator moves its bytes faster than that.
OperatorCost simulated_cost(const Machine& machine, const Work& work, double program_ns);

namespace programs {

// An empty provider turns simulation off. Forgets every answer.
void set_provider(ProgramProvider provider);
bool enabled();
// Turns simulation off and on without forgetting; returns what was on before.
bool set_enabled(bool on);
ProgramAnswer find(const ProgramSignature& signature);
ProgramCounters counters();
// Changes whenever costs worked out before may no longer hold: another provider (machine), or simulation on or off.
int64_t generation();

}  // namespace programs
}  // namespace opentrn::timeline
