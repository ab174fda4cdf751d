// How long one operator takes on the device, and why: the cost of an eager operator.
//
// Simulated where a program computes the operator (programs.h). Modelled otherwise: closed formulas per operator class,
// from engine rates, DMA bytes and fixed costs of the attached machine. Callers see an `OperatorCost` either way.
#pragma once

#include <cstdint>
#include <string_view>

#include "timeline/clock.h"
#include "timeline/machine.h"

namespace opentrn::timeline {

enum class OperatorClass : uint8_t {
  kNone,  // metadata only: views, sizes, set_
  kMatmul,
  kConvolution,
  kAttention,
  kAttentionBackward,
  kPointwise,
  kReduction,
  kCopy,
  kGather,
  kScatter,
  kSort,
  kScan,
  kRandom,
  kTransfer,    // between host and device
  kCollective,  // among devices; its duration is given
  kProgram,     // a program of instructions (an NKI kernel); its duration is simulated
  kUnlisted,    // no entry in operator_classes.inc: costed as pointwise, counted apart
};
constexpr int kOperatorClassCount = 17;

const char* class_name(OperatorClass operator_class);
// "aten::add.Tensor" → its class, by the base name.
OperatorClass classify(std::string_view base_name);

enum class Element : uint8_t { kFloat32, kFloat16, kBFloat16, kFloat8, kOther };

// Where a duration comes from; the trace and every report carry it.
enum class Provenance : uint8_t { kModelled, kSimulated };

// What a cost formula may look at. Counts are elements, bytes are of distinct memory.
struct Work {
  OperatorClass operator_class = OperatorClass::kNone;
  Element element = Element::kOther;
  int64_t read_bytes = 0;
  int64_t written_bytes = 0;
  int64_t input_elements = 0;   // of the largest input
  int64_t output_elements = 0;  // of all outputs
  int64_t tensor_operands = 0;
  // Matmul-like work: `batch` products of [m, k] by [k, n].
  int64_t batch = 1, m = 0, n = 0, k = 0;
  int64_t flops = 0;  // multiply-adds count two
  int64_t rows = 0;   // gathered or scattered rows
  int64_t sort_length = 0;
  bool from_host = false;  // transfers: host to device, else device to host
};

struct OperatorCost {
  Nanoseconds duration = 0;
  int64_t flops = 0;
  int64_t bytes = 0;  // HBM traffic
  Provenance provenance = Provenance::kModelled;
};

OperatorCost modelled_cost(const Machine& machine, const Work& work);

}  // namespace opentrn::timeline
