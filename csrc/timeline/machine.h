// The attached machine as plain numbers: what one device (one logical NeuronCore) can do.
//
// Every number comes from the chip and instance files (src/opentrn/chips/data), which name their sources and say what
// is assumed; nothing here is a constant of a chip. The names are the keys of `Machine.device_parameters()`.
#pragma once

#include <cstdint>
#include <string>

// One line per number the timeline reads: name, then its value before a machine is attached.
#define OPENTRN_MACHINE_NUMBERS(_)              \
  _(device_count, 1)                            \
  _(cores_per_logical, 1)                       \
  _(tensor_clock_ghz, 1)                        \
  _(tensor_tflops_bf16, 1)                      \
  _(tensor_tflops_fp16, 1)                      \
  _(tensor_tflops_fp32, 1)                      \
  _(tensor_tflops_fp8, 1)                       \
  _(tensor_rows, 128)                           \
  _(tensor_columns, 128)                        \
  _(tensor_efficiency, 1)                       \
  _(vector_clock_ghz, 1)                        \
  _(scalar_clock_ghz, 1)                        \
  _(vector_lanes, 128)                          \
  _(vector_tensor_tensor_cycles_per_element, 2) \
  _(activation_cycles_per_element, 1)           \
  _(hbm_bytes, 0)                               \
  _(hbm_reserved_bytes, 0)                      \
  _(hbm_bytes_per_s, 1)                         \
  _(dma_bytes_per_s, 1)                         \
  _(matmul_fixed_ns, 0)                         \
  _(pointwise_fixed_ns, 0)                      \
  _(reduction_fixed_ns, 0)                      \
  _(copy_fixed_ns, 0)                           \
  _(gather_fixed_ns, 0)                         \
  _(scatter_fixed_ns, 0)                        \
  _(sort_fixed_ns, 0)                           \
  _(scan_fixed_ns, 0)                           \
  _(random_fixed_ns, 0)                         \
  _(gather_row_ns, 0)                           \
  _(scatter_row_ns, 0)                          \
  _(sort_cycles_per_element, 1)                 \
  _(random_cycles_per_element, 1)               \
  _(host_ns_per_op, 0)                          \
  _(launch_ns, 0)                               \
  _(queue_depth, 1)                             \
  _(synchronize_ns, 0)                          \
  _(h2d_bytes_per_s, 1)                         \
  _(d2h_bytes_per_s, 1)                         \
  _(h2d_fixed_ns, 0)                            \
  _(d2h_fixed_ns, 0)                            \
  _(small_request_bytes, 1 << 20)               \
  _(size_class_limit_bytes, 16 << 20)           \
  _(min_block_bytes, 256)                       \
  _(small_segment_bytes, 2 << 20)               \
  _(large_segment_bytes, 20 << 20)              \
  _(segment_round_bytes, 2 << 20)

namespace opentrn::timeline {

struct Machine {
#define OPENTRN_FIELD(name, initial) double name = initial;
  OPENTRN_MACHINE_NUMBERS(OPENTRN_FIELD)
#undef OPENTRN_FIELD
};

}  // namespace opentrn::timeline
