"""From a chip and an instance to the flat numbers the device and its timeline run on.

`device_parameters` describes one logical device. Each row of the tables below says where a parameter comes
from and what share of it one device has; `provenance` reads the same rows to say how the number is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from opentrn.chips.model import Chip, Constant, Instance
from opentrn.chips.schema import OPERATORS


class Share(NamedTuple):
    """What part of a machine one logical device is."""

    cores_per_logical: int
    devices_per_chip: int
    chips: int


class Row(NamedTuple):
    """One parameter: `field` of the chip or instance file, times `factor` of the device's share.

    absent: value where the file has no such field; `reason` then says why that is right.
    """

    parameter: str
    field: str
    factor: Callable[[Share], float]
    whole: bool
    absent: float | None = None
    reason: str = ""


def _one(share: Share) -> float:
    return 1.0


def _cores(share: Share) -> float:
    """The field is per physical core and adds up over the cores of a device."""
    return float(share.cores_per_logical)


def _of_chip(share: Share) -> float:
    """The field is per chip; a device has its part of it."""
    return 1.0 / share.devices_per_chip


def _of_instance(share: Share) -> float:
    """The field is per instance; a device has its part of it."""
    return 1.0 / (share.devices_per_chip * share.chips)


_NO_RATE = "the chip has no such rate"
_NO_LINK = "the machine has no such link"

CHIP_ROWS: tuple[Row, ...] = (
    Row("sync_clock_ghz", "clocks.sync", _one, False),
    Row("tensor_clock_ghz", "clocks.tensor", _one, False),
    Row("vector_clock_ghz", "clocks.vector", _one, False),
    Row("scalar_clock_ghz", "clocks.scalar", _one, False),
    Row("gpsimd_clock_ghz", "clocks.gpsimd", _one, False),
    Row("tensor_tflops_bf16", "tensor_engine.bf16", _cores, False),
    Row("tensor_tflops_fp16", "tensor_engine.fp16", _cores, False, 0.0, _NO_RATE),
    Row("tensor_tflops_tf32", "tensor_engine.tf32", _cores, False, 0.0, _NO_RATE),
    Row("tensor_tflops_fp32", "tensor_engine.fp32", _cores, False),
    Row("tensor_tflops_fp8", "tensor_engine.fp8", _cores, False, 0.0, _NO_RATE),
    Row("tensor_tflops_mxfp8", "tensor_engine.mxfp8", _cores, False, 0.0, _NO_RATE),
    Row("tensor_rows", "tensor_engine.rows", _one, True),
    Row("tensor_columns", "tensor_engine.columns", _one, True),
    Row("tensor_moving_max", "tensor_engine.moving_max", _one, True),
    Row("tensor_fp32_passes", "tensor_engine.fp32_passes", _one, True),
    Row("tensor_efficiency", "tensor_engine.efficiency", _one, False),
    Row("matmul_init_cycles", "tensor_engine.start", _one, True),
    Row("vector_lanes", "vector_engine.lanes", _one, True),
    Row("vector_copy_speedup_16bit", "vector_engine.copy_speedup_16bit", _one, False),
    Row("vector_tensor_tensor_speedup_16bit", "vector_engine.tensor_tensor_speedup_16bit", _one, False),
    Row(
        "vector_tensor_tensor_cycles_per_element",
        "vector_engine.tensor_tensor_cycles_per_element",
        _one,
        False,
    ),
    Row("vector_reciprocal_cycles_per_element", "vector_engine.reciprocal_cycles_per_element", _one, False),
    Row("random_cycles_per_element", "vector_engine.random_cycles_per_element", _one, False),
    Row("sort_cycles_per_element", "vector_engine.sort_cycles_per_element", _one, False),
    Row("scalar_copy_speedup_16bit", "scalar_engine.copy_speedup_16bit", _one, False),
    Row("activation_cycles_per_element", "scalar_engine.activation_cycles_per_element", _one, False),
    Row("activation_accumulator_cycles", "scalar_engine.accumulator_read", _one, True),
    Row("gpsimd_start_cycles", "gpsimd_engine.start", _one, True),
    Row("min_instruction_cycles", "instruction.minimum", _one, True),
    Row("instruction_overhead_cycles", "instruction.overhead", _one, True),
    Row("tensor_access_start_cycles", "instruction.access_start", _one, True),
    Row("sbuf_partitions", "sbuf.partitions", _one, True),
    Row("sbuf_bytes_per_partition", "sbuf.bytes_per_partition", _one, True),
    Row("sbuf_reserved_bytes_per_partition", "sbuf.reserved_per_partition", _one, True),
    Row("psum_bytes_per_partition", "psum.bytes_per_partition", _one, True),
    Row("psum_banks", "psum.banks", _one, True),
    Row("hbm_bytes", "memory.capacity", _of_chip, True),
    Row("hbm_bytes_per_s", "memory.bandwidth", _of_chip, False),
    Row("hbm_reserved_bytes", "memory.reserved_per_core", _cores, True),
    Row("dma_engines", "dma.engines_per_core", _cores, True),
    Row("dge_per_core", "dma.descriptor_engines_per_core", _one, True),
    Row("dma_engine_bytes_per_s", "dma.engine_bandwidth", _one, False),
    Row("dma_issue_ns", "dma.issue", _one, True),
    Row("dma_fixed_ns", "dma.latency", _one, True),
    Row("dma_transpose_efficiency", "dma.transpose_efficiency", _one, False),
    Row("dma_sbuf_transpose_efficiency", "dma.sbuf_transpose_efficiency", _one, False),
    Row("dma_accumulate_efficiency", "dma.accumulate_efficiency", _one, False),
    Row("vendor_peak_tflops_bf16", "peak.bf16", _of_chip, False),
    Row("vendor_peak_tflops_fp16", "peak.fp16", _of_chip, False, 0.0, _NO_RATE),
    Row("vendor_peak_tflops_fp8", "peak.fp8", _of_chip, False, 0.0, _NO_RATE),
    Row("vendor_peak_tflops_fp32", "peak.fp32", _of_chip, False, 0.0, _NO_RATE),
    Row("mfu_peak_tflops_bf16", "mfu.bf16_per_core", _cores, False),
    Row("same_chip_hop_ns", "links.same_chip_hop", _one, True),
    Row("scale_up_links", "links.per_chip", _one, True, 1, "the count of links is not published"),
    *(Row(f"{name}_fixed_ns", f"operators.{name}_fixed", _one, True) for name in OPERATORS),
)

INSTANCE_ROWS: tuple[Row, ...] = (
    Row("chips_per_instance", "machine.chips", _one, True),
    Row("domain_instances", "machine.domain_instances", _one, True),
    Row("host_ns_per_op", "host.operator", _one, True),
    Row("compiled_launch_ns", "host.compiled_launch", _one, True),
    Row("launch_ns", "host.launch", _one, True),
    Row("queue_depth", "host.queue_depth", _one, True),
    Row("synchronize_ns", "host.synchronize", _one, True),
    Row("h2d_bytes_per_s", "host.to_device_per_chip", _of_chip, False),
    Row("d2h_bytes_per_s", "host.from_device_per_chip", _of_chip, False),
    Row("h2d_fixed_ns", "host.to_device_fixed", _one, True),
    Row("d2h_fixed_ns", "host.from_device_fixed", _one, True),
    Row("host_pageable_bytes_per_s", "host.pageable", _one, False),
    Row("small_request_bytes", "allocator.small_request", _one, True),
    Row("size_class_limit_bytes", "allocator.size_class_limit", _one, True),
    Row("min_block_bytes", "allocator.minimum_block", _one, True),
    Row("small_segment_bytes", "allocator.small_segment", _one, True),
    Row("large_segment_bytes", "allocator.large_segment", _one, True),
    Row("segment_round_bytes", "allocator.segment_round", _one, True),
    Row("scale_up_bytes_per_s", "network.scale_up", _of_chip, False, 0.0, _NO_LINK),
    Row("scale_up_hop_ns", "network.scale_up_hop", _one, True, 0, _NO_LINK),
    Row("domain_bytes_per_s", "network.domain", _of_chip, False, 0.0, _NO_LINK),
    Row("domain_hop_ns", "network.domain_hop", _one, True, 0, _NO_LINK),
    Row("scale_out_bytes_per_s", "network.scale_out", _of_instance, False, 0.0, _NO_LINK),
    Row("scale_out_hop_ns", "network.scale_out_hop", _one, True, 0, _NO_LINK),
)

# How one engine figure follows from others where a chip file has no such engine (GPUs, TPUs).
# parameter -> reason, printed by `provenance`.
DERIVATIONS = {
    "sync_clock_ghz": "clocks.main", "tensor_clock_ghz": "clocks.main", "vector_clock_ghz": "clocks.main",
    "scalar_clock_ghz": "clocks.main", "gpsimd_clock_ghz": "clocks.main",
    "tensor_tflops_bf16": "share of peak.bf16", "tensor_tflops_fp16": "share of peak.fp16",
    "tensor_tflops_tf32": "share of peak.tf32", "tensor_tflops_fp32": "share of peak.fp32",
    "tensor_tflops_fp8": "share of peak.fp8", "tensor_tflops_mxfp8": "share of peak.mxfp8",
    "tensor_efficiency": "measured.matmul_bf16 / peak.bf16",
    "vector_lanes": "peak.fp32 / (2 x clocks.main), per core",
    "dma_engine_bytes_per_s": "the device's memory bandwidth over its engines",
    "mfu_peak_tflops_bf16": "share of peak.bf16",
}  # fmt: skip

# What follows from other parameters on every chip: parameter -> reason.
COMPUTED = {
    "dma_bytes_per_s": "dma_engine_bytes_per_s x dma_engines",
    "dma_peak_bytes_per_s": "dma.engine_peak x dma_engines, or the memory's bandwidth",
    "gather_row_ns": "dma.descriptor / dma_engines: every engine takes every n-th row",
    "scatter_row_ns": "as gather_row_ns",
    "same_chip_bytes_per_s": "dma_bytes_per_s: devices of one chip reach each other's HBM by DMA",
}


# Used beside the rows above.
_ALSO_OF_CHIP = ("cores.per_chip", "cores.default_logical", "cores.logical_sizes", "dma.descriptor")
_ALSO_OF_INSTANCE = ("machine.hosts", "network.topology", "network.extent")
# A chip with NeuronCores states its engines; only this may be left to a derivation.
_MAY_LACK = ("mfu_peak_tflops_bf16",)


def required_of_chip(kind: str) -> list[str]:
    """Fields a chip file of this kind must have, itself or through its includes."""
    derivable = _MAY_LACK if kind == "neuroncore" else DERIVATIONS
    fields = [row.field for row in CHIP_ROWS if row.absent is None and row.parameter not in derivable]
    own = ("dma.engine_peak",) if kind == "neuroncore" else ("clocks.main", "peak.fp32")
    return [*_ALSO_OF_CHIP, *fields, *own]


def required_of_instance() -> list[str]:
    """Fields an instance file must have, itself or through its includes."""
    return [*_ALSO_OF_INSTANCE, *(row.field for row in INSTANCE_ROWS if row.absent is None)]


def device_parameters(chip: Chip, instance: Instance, share: Share) -> dict[str, float]:
    """Every number of one logical device; keys end in their unit. See docs/guide/chips.md for the list."""
    numbers: dict[str, float] = {}
    for rows, description in ((CHIP_ROWS, chip), (INSTANCE_ROWS, instance)):
        constants = description.constants
        for parameter, field, factor, whole, absent, _ in rows:
            constant = constants.get(field)
            if constant is not None:
                value = constant.base * factor(share)
            else:
                derived = _derive(parameter, chip, share) if parameter in DERIVATIONS else None
                if derived is None:
                    # A required field; indexing raises the error that names it.
                    derived = chip[field] if absent is None else absent
                value = derived
            numbers[parameter] = int(value) if whole else float(value)
    if "measured.matmul_bf16" in chip:
        numbers["tensor_efficiency"] = chip["measured.matmul_bf16"] / chip["peak.bf16"]
    _compute(numbers, chip, share)
    return numbers


def _derive(parameter: str, chip: Chip, share: Share) -> float | None:
    """An engine figure of a chip that publishes none, or None where that cannot be done."""
    if parameter.endswith("_clock_ghz"):
        return chip.get("clocks.main")
    if parameter.startswith("tensor_tflops_"):
        peak = chip.get("peak." + parameter.removeprefix("tensor_tflops_"))
        return None if peak is None else peak / share.devices_per_chip
    if parameter == "mfu_peak_tflops_bf16":
        return float(chip["peak.bf16"]) / share.devices_per_chip
    if parameter == "vector_lanes":
        # Two FLOPs (multiply and add) per lane and cycle.
        return float(round(chip["peak.fp32"] * 1e3 / (2.0 * chip["clocks.main"] * chip["cores.per_chip"])))
    if parameter == "dma_engine_bytes_per_s":
        engines = chip["dma.engines_per_core"] * share.cores_per_logical
        return float(chip["memory.bandwidth"]) / share.devices_per_chip / engines
    return None


def _compute(numbers: dict[str, float], chip: Chip, share: Share) -> None:
    engines = numbers["dma_engines"]
    numbers["dma_bytes_per_s"] = numbers["dma_engine_bytes_per_s"] * engines
    engine_peak = chip.get("dma.engine_peak")
    numbers["dma_peak_bytes_per_s"] = (
        numbers["hbm_bytes_per_s"] if engine_peak is None else engine_peak * engines
    )
    numbers["gather_row_ns"] = chip["dma.descriptor"] / engines
    numbers["scatter_row_ns"] = numbers["gather_row_ns"]
    numbers["same_chip_bytes_per_s"] = numbers["dma_bytes_per_s"]


def provenance(chip: Chip, instance: Instance) -> dict[str, tuple[str, str]]:
    """parameter -> (status, source or reason): how each number of `device_parameters` is known."""
    known: dict[str, tuple[str, str]] = {}
    for rows, description in ((CHIP_ROWS, chip), (INSTANCE_ROWS, instance)):
        for row in rows:
            constant = description.constants.get(row.field)
            if constant is not None:
                known[row.parameter] = _how_known(constant, description.sources, row.factor is not _one)
            elif row.parameter in DERIVATIONS and (row.absent is None or _derivable(row.parameter, chip)):
                known[row.parameter] = ("derived", DERIVATIONS[row.parameter])
            else:
                known[row.parameter] = ("derived", row.reason)
    if "measured.matmul_bf16" in chip:
        known["tensor_efficiency"] = ("derived", DERIVATIONS["tensor_efficiency"])
    for parameter, reason in COMPUTED.items():
        known[parameter] = ("derived", reason)
    return known


def _derivable(parameter: str, chip: Chip) -> bool:
    return not parameter.startswith("tensor_tflops_") or f"peak.{parameter[14:]}" in chip


def _how_known(constant: Constant, sources: dict[str, Any], shared: bool) -> tuple[str, str]:
    """A share of a sourced figure is derived by a division; of an assumed one it stays assumed."""
    if constant.status != "sourced":
        return constant.status, constant.reason
    source = sources[constant.source]
    text = f"{source.title}, {source.as_of}"
    return ("derived", f"the device's share; {text}") if shared else ("sourced", text)
