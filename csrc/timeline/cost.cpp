#include "timeline/cost.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <unordered_map>

namespace opentrn::timeline {
namespace {

double seconds_to_ns(double seconds) { return seconds * 1e9; }

double memory_ns(const Machine& machine, double bytes) {
  // The DMA engines of the core and its share of HBM are in series: the slower one decides.
  return seconds_to_ns(bytes / std::min(machine.hbm_bytes_per_s, machine.dma_bytes_per_s));
}

double tensor_tflops(const Machine& machine, Element element) {
  switch (element) {
    case Element::kFloat8:
      return machine.tensor_tflops_fp8 > 0 ? machine.tensor_tflops_fp8 : machine.tensor_tflops_bf16;
    case Element::kBFloat16:
      return machine.tensor_tflops_bf16;
    case Element::kFloat16:
      return machine.tensor_tflops_fp16;
    default:
      return machine.tensor_tflops_fp32;
  }
}

double round_up(double value, double multiple) { return std::ceil(value / multiple) * multiple; }

// The tensor engine holds a [rows × columns] stationary tile and streams the moving one through it: contraction and
// stationary extents are padded to the array; the longer of m and n moves.
double matmul_ns(const Machine& machine, const Work& work) {
  if (work.m == 0 || work.n == 0 || work.k == 0) return 0;
  const double moving = std::max(work.m, work.n);
  const double stationary = round_up(std::min(work.m, work.n), machine.tensor_columns);
  const double contraction = round_up(work.k, machine.tensor_rows);
  const double padded_flops = 2.0 * work.batch * moving * stationary * contraction;
  const double rate = tensor_tflops(machine, work.element) * 1e12 * machine.tensor_efficiency;
  return seconds_to_ns(padded_flops / rate);
}

double flops_ns(const Machine& machine, const Work& work) {
  return seconds_to_ns(work.flops / (tensor_tflops(machine, work.element) * 1e12 * machine.tensor_efficiency));
}

double lanes(const Machine& machine) { return machine.vector_lanes * machine.cores_per_logical; }

double vector_ns(const Machine& machine, double elements, double cycles_per_element) {
  return elements * cycles_per_element / (lanes(machine) * machine.vector_clock_ghz);
}

double elementwise_ns(const Machine& machine, const Work& work) {
  const double elements = std::max(work.output_elements, work.input_elements);
  const double cycles = work.tensor_operands >= 2 ? machine.vector_tensor_tensor_cycles_per_element
                                                  : machine.activation_cycles_per_element;
  return vector_ns(machine, elements, cycles);
}

double sort_ns(const Machine& machine, const Work& work) {
  const double passes = std::bit_width(static_cast<uint64_t>(std::max<int64_t>(work.sort_length, 1)));
  return vector_ns(machine, work.input_elements, machine.sort_cycles_per_element * passes);
}

struct Parts {
  double compute_ns;  // overlaps with memory
  double fixed_ns;    // does not
};

Parts parts(const Machine& machine, const Work& work) {
  switch (work.operator_class) {
    case OperatorClass::kNone:
    case OperatorClass::kTransfer:
    case OperatorClass::kCollective:
    case OperatorClass::kProgram:
      return {0, 0};
    case OperatorClass::kMatmul:
      return {matmul_ns(machine, work), machine.matmul_fixed_ns};
    case OperatorClass::kAttentionBackward:
      // Five products run for the four that count: the scores are computed again.
      return {flops_ns(machine, work) * 1.25, machine.matmul_fixed_ns};
    case OperatorClass::kConvolution:
    case OperatorClass::kAttention:
      return {flops_ns(machine, work), machine.matmul_fixed_ns};
    case OperatorClass::kReduction:
      return {vector_ns(machine, work.input_elements, 1), machine.reduction_fixed_ns};
    case OperatorClass::kCopy:
      return {0, machine.copy_fixed_ns};
    case OperatorClass::kGather:
      return {work.rows * machine.gather_row_ns, machine.gather_fixed_ns};
    case OperatorClass::kScatter:
      return {work.rows * machine.scatter_row_ns, machine.scatter_fixed_ns};
    case OperatorClass::kSort:
      return {sort_ns(machine, work), machine.sort_fixed_ns};
    case OperatorClass::kScan:
      return {vector_ns(machine, work.input_elements, 2), machine.scan_fixed_ns};
    case OperatorClass::kRandom:
      return {vector_ns(machine, work.output_elements, machine.random_cycles_per_element), machine.random_fixed_ns};
    case OperatorClass::kPointwise:
    case OperatorClass::kUnlisted:
      return {elementwise_ns(machine, work), machine.pointwise_fixed_ns};
  }
  return {0, 0};
}

double transfer_ns(const Machine& machine, const Work& work) {
  const double bytes = std::max(work.read_bytes, work.written_bytes);
  return work.from_host ? machine.h2d_fixed_ns + seconds_to_ns(bytes / machine.h2d_bytes_per_s)
                        : machine.d2h_fixed_ns + seconds_to_ns(bytes / machine.d2h_bytes_per_s);
}

const std::unordered_map<std::string_view, OperatorClass>& class_table() {
  static const std::unordered_map<std::string_view, OperatorClass> table = {
#define OPENTRN_CLASS(operator_class, name) {#name, OperatorClass::operator_class},
#include "timeline/operator_classes.inc"
#undef OPENTRN_CLASS
  };
  return table;
}

}  // namespace

const char* class_name(OperatorClass operator_class) {
  static const char* const names[kOperatorClassCount] = {
      "metadata",  "matmul",    "convolution", "attention", "attention backward",
      "pointwise", "reduction", "copy",        "gather",    "scatter",
      "sort",      "scan",      "random",      "transfer",  "collective",
      "program",   "unlisted"};
  return names[static_cast<int>(operator_class)];
}

OperatorClass classify(std::string_view base_name) {
  const auto& table = class_table();
  auto found = table.find(base_name);
  if (found == table.end() && base_name.ends_with('_')) {
    found = table.find(base_name.substr(0, base_name.size() - 1));  // add_ costs what add costs
  }
  return found == table.end() ? OperatorClass::kUnlisted : found->second;
}

OperatorCost modelled_cost(const Machine& machine, const Work& work) {
  OperatorCost cost;
  cost.flops = work.flops;
  if (work.operator_class == OperatorClass::kNone) return cost;
  cost.bytes = work.read_bytes + work.written_bytes;
  if (work.operator_class == OperatorClass::kTransfer) {
    cost.duration = static_cast<Nanoseconds>(transfer_ns(machine, work));
    return cost;
  }
  const Parts time = parts(machine, work);
  cost.duration = static_cast<Nanoseconds>(
      std::max(time.compute_ns, memory_ns(machine, static_cast<double>(cost.bytes))) + time.fixed_ns);
  return cost;
}

}  // namespace opentrn::timeline
