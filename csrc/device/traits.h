// What the dispatcher glue knows of one operator, worked out once from its schema and name.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/dispatch/Dispatcher.h>

#include "timeline/cost.h"

namespace opentrn::device {

struct OperatorTraits {
  uint32_t id = 0;
  std::string name;  // "aten::add.Tensor"
  std::string base;  // "add"
  c10::OperatorName operator_name{"", ""};
  timeline::OperatorClass operator_class = timeline::OperatorClass::kUnlisted;
  int argument_count = 0;
  int return_count = 0;
  int generator_argument = -1;
  int device_argument = -1;
  int dim_argument = -1;
  int causal_argument = -1;
  uint64_t written_arguments = 0;  // bit i: argument i is written
  bool has_out = false;            // an out= overload
  bool random = false;
  bool may_mix_devices = false;  // copies, and indexing with CPU indices
  bool synchronizes = false;     // its result or its shape goes back to the host
  bool is_copy = false;
  // Counters since the last reset; guarded by the totals mutex.
  int64_t count = 0, device_ns = 0, flops = 0, bytes = 0;
  // The part of them whose time was simulated.
  int64_t simulated_count = 0, simulated_ns = 0, simulated_flops = 0, simulated_bytes = 0;

  // Whether the operator writes its argument number `argument`.
  bool writes(int argument) const { return argument < 64 && (written_arguments >> argument & 1); }
};

// Found by the identity of the operator; made on first use. Never invalidated.
OperatorTraits& traits_of(const c10::OperatorHandle& op);
OperatorTraits& traits_by_id(uint32_t id);
uint32_t traits_count();
// For work that is no operator of the dispatcher (storage copies, flushes).
OperatorTraits& traits_by_name(const std::string& name, timeline::OperatorClass operator_class);

}  // namespace opentrn::device
