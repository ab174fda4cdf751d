"""`nki.isa`: DMA, GpSimd, random numbers, registers and the instructions between cores."""

from __future__ import annotations

from typing import Any

from opentrn.errors import UnsupportedError
from opentrn.nki.enums import dge_mode as dge_modes
from opentrn.nki.enums import dma_engine as dma_engines
from opentrn.nki.enums import engine as engines
from opentrn.nki.enums import oob_mode as oob_modes
from opentrn.nki.isa_common import member, op_name, reduction_name
from opentrn.nki.registers import VirtualRegister, new_register
from opentrn.nki.tracing import active

_UNKNOWN = engines.unknown
_ERROR = oob_modes.error
_ANY_DGE = dge_modes.unknown


# -- DMA ---------------------------------------------------------------------------------------------
def dma_copy(
    dst: Any,
    src: Any,
    oob_mode: Any = _ERROR,
    dge_mode: Any = _ANY_DGE,
    engine: Any = _UNKNOWN,
    name: str | None = None,
    priority: Any = None,
) -> None:
    """Copy between any two memories, converting the data type; gathers and scatters with `.ap()` offsets."""
    t = active()
    t.locate()
    t.emit(
        "dma_copy",
        dst=t.write(dst),
        src=t.read(src),
        oob_mode=member(oob_mode, oob_modes, "oob_mode"),
        dge_mode=member(dge_mode, dge_modes, "dge_mode"),
        engine=member(engine, engines, "engine"),
        name=name,
    )


def dma_transpose(
    dst: Any,
    src: Any,
    axes: Any = None,
    dge_mode: Any = _ANY_DGE,
    oob_mode: Any = _ERROR,
    name: str | None = None,
    priority: Any = None,
) -> None:
    """Transpose with the DMA engines: [1,0], [2,1,0] or [3,1,2,0]."""
    t = active()
    t.locate()
    t.emit(
        "dma_transpose",
        dst=t.write(dst),
        src=t.read(src),
        axes=None if axes is None else tuple(axes),
        dge_mode=member(dge_mode, dge_modes, "dge_mode"),
        oob_mode=member(oob_mode, oob_modes, "oob_mode"),
        name=name,
    )


def dma_compute(
    dst: Any,
    srcs: Any,
    reduce_op: Any,
    scales: Any = None,
    unique_indices: bool = True,
    name: str | None = None,
    oob_mode: Any = _ERROR,
) -> None:
    """Scaled element-wise reduction inside the DMA engines; scatter-add and gather-add."""
    t = active()
    t.locate()
    t.emit(
        "dma_compute",
        dst=t.write(dst),
        srcs=[t.read(source) for source in srcs],
        reduce_op=reduction_name(reduce_op),
        scales=None if scales is None else [float(s) for s in scales],
        unique_indices=bool(unique_indices),
        oob_mode=member(oob_mode, oob_modes, "oob_mode"),
        name=name,
    )


def sendrecv(
    src: Any,
    dst: Any,
    send_to_rank: Any,
    recv_from_rank: Any,
    pipe_id: Any,
    dma_engine: Any = dma_engines.dma,
    name: str | None = None,
) -> None:
    """Exchange tiles between the two cores of a logical core."""
    t = active()
    t.locate()
    t.emit(
        "sendrecv",
        src=t.read(src),
        dst=t.write(dst),
        send_to_rank=int(send_to_rank),
        recv_from_rank=int(recv_from_rank),
        pipe_id=int(pipe_id),
        dma_engine=member(dma_engine, dma_engines, "dma_engine"),
        name=name,
    )


def core_barrier(data: Any, cores: Any, engine: Any = engines.gpsimd, name: str | None = None) -> None:
    """Wait for the other core of the logical core."""
    t = active()
    t.locate()
    if t.lnc == 1 and len(tuple(cores)) > 1:
        raise UnsupportedError(
            f"core_barrier over cores {tuple(cores)} in a launch with one core",
            where=t.where,
            cure="launch with kernel[2], or skip the barrier when nl.num_programs() is 1",
        )
    t.emit(
        "core_barrier",
        data=None if data is None else t.read(data),
        cores=tuple(int(c) for c in cores),
        engine=member(engine, engines, "engine"),
        name=name,
    )


# -- GpSimd ------------------------------------------------------------------------------------------
def _pattern(pattern: Any) -> list[list[int]]:
    return [[int(step), int(count)] for step, count in pattern]


def iota(
    dst: Any, pattern: Any, offset: Any = 0, channel_multiplier: int = 0, name: str | None = None
) -> None:
    """``offset + partition * channel_multiplier + sum(step * index)``."""
    t = active()
    t.locate()
    t.emit(
        "iota",
        dst=t.write(dst),
        pattern=_pattern(pattern),
        offset=t.expression(offset),
        channel_multiplier=int(channel_multiplier),
        name=name,
    )


def affine_select(
    dst: Any,
    pattern: Any,
    channel_multiplier: int,
    on_true_tile: Any,
    on_false_value: Any,
    cmp_op: Any = None,
    offset: Any = 0,
    name: str | None = None,
) -> None:
    """Select by comparing an affine value with zero."""
    t = active()
    t.locate()
    t.emit(
        "affine_select",
        dst=t.write(dst),
        pattern=_pattern(pattern),
        channel_multiplier=int(channel_multiplier),
        on_true_tile=t.read(on_true_tile),
        on_false_value=t.scalar(on_false_value),
        cmp_op=op_name(cmp_op) or "equal",
        offset=t.expression(offset),
        name=name,
    )


def local_gather(
    dst: Any,
    src_buffer: Any,
    index: Any,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    name: str | None = None,
) -> None:
    """Gather within each group of 16 partitions."""
    t = active()
    t.locate()
    t.emit(
        "local_gather",
        dst=t.write(dst),
        src_buffer=t.read(src_buffer),
        index=t.read(index),
        num_elem_per_idx=int(num_elem_per_idx),
        num_valid_indices=None if num_valid_indices is None else int(num_valid_indices),
        name=name,
    )


def nc_n_gather(dst: Any, data: Any, indices: Any, name: str | None = None) -> None:
    """Gather within each partition."""
    t = active()
    t.locate()
    t.emit("nc_n_gather", dst=t.write(dst), data=t.read(data), indices=t.read(indices), name=name)


def nonzero_with_count(
    dst: Any, src: Any, index_offset: int = 0, padding_val: int = -1, name: str | None = None
) -> None:
    """Indices of the nonzero elements of partitions 0, 16, …, and their number."""
    t = active()
    t.locate()
    t.emit(
        "nonzero_with_count",
        dst=t.write(dst),
        src=t.read(src),
        index_offset=t.expression(index_offset),
        padding_val=int(padding_val),
        name=name,
    )


def sequence_bounds(dst: Any, segment_ids: Any, name: str | None = None) -> None:
    """Start and end of the segment of each element."""
    t = active()
    t.locate()
    t.emit("sequence_bounds", dst=t.write(dst), segment_ids=t.read(segment_ids), name=name)


# -- random numbers --------------------------------------------------------------------------------------
def rng(dst: Any, engine: Any = _UNKNOWN, name: str | None = None) -> None:
    """Random bits."""
    t = active()
    t.locate()
    t.emit("rng", dst=t.write(dst), engine=member(engine, engines, "engine"), name=name)


def rand2(dst: Any, min: Any, max: Any, name: str | None = None) -> None:
    """Uniform random numbers (NeuronCore-v4)."""
    t = active()
    t.locate()
    t.emit("rand2", dst=t.write(dst), min=t.scalar(min), max=t.scalar(max), name=name)


def set_rng_seed(src_seeds: Any, name: str | None = None) -> None:
    """Seed the Vector engine's generator."""
    t = active()
    t.locate()
    t.emit("set_rng_seed", src_seeds=t.read(src_seeds), name=name)


def rand_set_state(src_seeds: Any, engine: Any = _UNKNOWN, name: str | None = None) -> None:
    """Load the state of a generator."""
    t = active()
    t.locate()
    t.emit("rand_set_state", src_seeds=t.read(src_seeds), engine=member(engine, engines, "engine"), name=name)


def rand_get_state(dst: Any, engine: Any = _UNKNOWN, name: str | None = None) -> None:
    """Store the state of a generator."""
    t = active()
    t.locate()
    t.emit("rand_get_state", dst=t.write(dst), engine=member(engine, engines, "engine"), name=name)


# -- registers -------------------------------------------------------------------------------------------
def register_alloc(x: int | None = None) -> VirtualRegister:
    """A register, optionally with a value."""
    return new_register(active(), None if x is None else int(x))


def _register(value: Any) -> VirtualRegister:
    if not isinstance(value, VirtualRegister):
        raise UnsupportedError(f"expected a register of nisa.register_alloc(), got {type(value).__name__}")
    return value


def register_load(dst: Any, src: Any) -> None:
    """Load one element into a register."""
    t = active()
    t.locate()
    t.emit("register_load", dst=_register(dst).key, src=t.read(src))


def register_move(dst: Any, src: Any) -> None:
    """Copy a constant or a register."""
    t = active()
    t.locate()
    t.emit("register_move", dst=_register(dst).key, src=t.expression(src))


def register_store(dst: Any, src: Any) -> None:
    """Store a register into one element."""
    t = active()
    t.locate()
    t.emit("register_store", dst=t.write(dst), src=t.expression(src))


def get_nc_sub_version() -> int:
    """Revision within a generation; the public documentation names none but 0."""
    return 0
