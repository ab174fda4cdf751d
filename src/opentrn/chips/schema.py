"""The fields of chip and instance files: "section.field" -> dimension, as tables.

A field that is not listed here is refused with the nearest listed name, so a typing error cannot turn into a
silently missing constant. `opentrn chips NAME` prints fields in this order.
"""

from __future__ import annotations

# Plain settings (strings and lists of strings) at the top of a file: name -> (required, kind).
CHIP_SETTINGS = {
    "schema": (True, "str"),
    "name": (True, "str"),
    "title": (True, "str"),
    "vendor": (True, "str"),
    "kind": (True, "str"),
    "device_name": (True, "str"),
    "core_generation": (False, "str"),
    "platform_targets": (False, "list"),
    "default_instance": (False, "str"),
    "include": (False, "list"),
}
INSTANCE_SETTINGS = {
    "schema": (True, "str"),
    "name": (True, "str"),
    "title": (True, "str"),
    "chip": (True, "str"),
    "device_name": (False, "str"),
    "aliases": (False, "list"),
    "include": (False, "list"),
}
COMMON_SETTINGS = {
    "schema": (True, "str"),
    "name": (True, "str"),
    "title": (True, "str"),
}

KINDS = ("neuroncore", "gpu", "tpu")
TOPOLOGIES = ("single", "ring", "torus2d", "torus3d", "switched", "mesh")

_FLOATS = ("fp32", "tf32", "bf16", "fp16", "cfp8", "fp8", "mxfp8", "mxfp4", "fp4", "nvfp4", "int8")
_ENGINE_FLOATS = ("bf16", "fp16", "tf32", "fp32", "fp8", "mxfp8", "sparse")

# The classes of operators that the modelled timeline tells apart.
OPERATORS = (
    "matmul",
    "pointwise",
    "reduction",
    "copy",
    "gather",
    "scatter",
    "sort",
    "scan",
    "random",
    "collective",
)

CHIP_FIELDS: dict[str, str] = {
    # Physical cores of one chip, and how many make one logical core (one PyTorch device).
    "cores.per_chip": "count",
    "cores.default_logical": "count",
    "cores.logical_sizes": "counts",
    # Engine clocks; `main` is the one clock of a GPU or TPU.
    "clocks.tensor": "frequency",
    "clocks.vector": "frequency",
    "clocks.scalar": "frequency",
    "clocks.gpsimd": "frequency",
    "clocks.sync": "frequency",
    "clocks.main": "frequency",
    # The vendor's dense peaks of a whole chip; sparse ones apart, never to be used as dense.
    **{f"peak.{dtype}": "compute" for dtype in _FLOATS},
    "sparse_peak.bf16": "compute",
    "sparse_peak.fp8": "compute",
    # The matrix engine of one core: what its clock and size allow.
    **{f"tensor_engine.{dtype}": "compute" for dtype in _ENGINE_FLOATS},
    "tensor_engine.rows": "count",
    "tensor_engine.columns": "count",
    "tensor_engine.moving_max": "count",
    "tensor_engine.fp32_passes": "count",
    "tensor_engine.start": "cycles",
    "tensor_engine.efficiency": "ratio",
    # TorchTitan's MFU denominator, per physical core.
    "mfu.bf16_per_core": "compute",
    "vector_engine.lanes": "count",
    "vector_engine.copy_speedup_16bit": "ratio",
    "vector_engine.tensor_tensor_speedup_16bit": "ratio",
    "vector_engine.tensor_tensor_cycles_per_element": "ratio",
    "vector_engine.reciprocal_cycles_per_element": "ratio",
    "vector_engine.random_cycles_per_element": "ratio",
    "vector_engine.sort_cycles_per_element": "ratio",
    "scalar_engine.copy_speedup_16bit": "ratio",
    "scalar_engine.activation_cycles_per_element": "ratio",
    "scalar_engine.accumulator_read": "cycles",
    "gpsimd_engine.start": "cycles",
    "gpsimd_engine.dma_bandwidth": "bandwidth",
    # Costs every engine shares.
    "instruction.minimum": "cycles",
    "instruction.overhead": "cycles",
    "instruction.access_start": "cycles",
    "instruction.dynamic_copy_minimum": "cycles",
    "sbuf.partitions": "count",
    "sbuf.bytes_per_partition": "bytes",
    "sbuf.reserved_per_partition": "bytes",
    "psum.bytes_per_partition": "bytes",
    "psum.banks": "count",
    # HBM of the chip; what the runtime keeps for itself, per physical core.
    "memory.capacity": "bytes",
    "memory.bandwidth": "bandwidth",
    "memory.stacks": "count",
    "memory.reserved_per_core": "bytes",
    "dma.engines_per_core": "count",
    "dma.engine_bandwidth": "bandwidth",
    "dma.engine_peak": "bandwidth",
    "dma.chip_bandwidth": "bandwidth",
    "dma.issue": "time",
    "dma.latency": "time",
    "dma.descriptor": "time",
    "dma.descriptor_engines_per_core": "count",
    "dma.transpose_efficiency": "ratio",
    "dma.sbuf_transpose_efficiency": "ratio",
    "dma.accumulate_efficiency": "ratio",
    # Scale-up links of one chip as published; instances say which part of them they use.
    "links.name": "text",
    "links.per_chip": "count",
    "links.total": "bandwidth",
    "links.collective_cores": "count",
    "links.same_chip_hop": "time",
    # What others measured on the chip.
    "measured.matmul_bf16": "compute",
    "measured.matmul_fp8": "compute",
    "measured.memory_bandwidth": "bandwidth",
    "on_chip.multiprocessors": "count",
    "on_chip.last_level_cache": "bytes",
    "on_chip.shared_memory_per_multiprocessor": "bytes",
    "power.design": "power",
    # Fixed cost of one operator in the modelled timeline, from trigger to result in HBM.
    **{f"operators.{name}_fixed": "time" for name in OPERATORS},
}

INSTANCE_FIELDS: dict[str, str] = {
    "machine.chips": "count",
    "machine.hosts": "count",
    "machine.domain_instances": "count",
    "host.vcpus": "count",
    "host.memory": "bytes",
    "host.operator": "time",
    "host.compiled_launch": "time",
    "host.launch": "time",
    "host.queue_depth": "count",
    "host.synchronize": "time",
    "host.to_device_per_chip": "bandwidth",
    "host.from_device_per_chip": "bandwidth",
    "host.to_device_fixed": "time",
    "host.from_device_fixed": "time",
    "host.pageable": "bandwidth",
    "allocator.small_request": "bytes",
    "allocator.size_class_limit": "bytes",
    "allocator.minimum_block": "bytes",
    "allocator.small_segment": "bytes",
    "allocator.large_segment": "bytes",
    "allocator.segment_round": "bytes",
    # Bandwidths are per direction: per chip on the links, per instance on the cluster network.
    "network.topology": "text",
    "network.extent": "counts",
    "network.scale_up": "bandwidth",
    "network.scale_up_hop": "time",
    "network.domain": "bandwidth",
    "network.domain_hop": "time",
    "network.scale_out": "bandwidth",
    "network.scale_out_hop": "time",
    "price.on_demand": "price",
    "price.on_demand_per_chip": "price",
    "price.spot": "price",
    "price.spot_per_chip": "price",
    "price.reserved_effective": "price",
    "price.capacity_block": "price",
}

# Keys of one constant.
CONSTANT_KEYS = ("value", "unit", "source", "status", "reason", "note", "conflicts", "choice")
CONFLICT_KEYS = ("value", "unit", "source", "note")
SOURCE_KEYS = ("title", "url", "as_of")
