"""`nki.isa`: DMA, GpSimd, random numbers, registers and the instructions between cores."""

from __future__ import annotations

from typing import Any

from opentrn.errors import UnsupportedError
from opentrn.nki import enums
from opentrn.nki.affine import whole_number
from opentrn.nki.enums import engine as engines
from opentrn.nki.instruction import (
    Axes,
    DgeMode,
    DmaEngine,
    Engine,
    Expression,
    Integer,
    IntegerIfGiven,
    OobMode,
    OperationOrEqual,
    Pattern,
    Plain,
    Read,
    Scalar,
    Write,
    instruction,
)
from opentrn.nki.isa_common import member, reduction_name
from opentrn.nki.newer import require_parameter
from opentrn.nki.registers import VirtualRegister, new_register
from opentrn.nki.tracing import active

_UNKNOWN = enums.engine.unknown
_ERROR = enums.oob_mode.error
_ANY_DGE = enums.dge_mode.unknown


# -- DMA ---------------------------------------------------------------------------------------------
@instruction
def dma_copy(
    dst: Write,
    src: Read,
    oob_mode: OobMode = _ERROR,
    dge_mode: DgeMode = _ANY_DGE,
    engine: Engine = _UNKNOWN,
    name: Plain = None,
    priority: Any = None,
) -> None:
    """Copy between any two memories, converting the data type; gathers and scatters with `.ap()` offsets."""


@instruction
def dma_transpose(
    dst: Write,
    src: Read,
    axes: Axes = None,
    dge_mode: DgeMode = _ANY_DGE,
    oob_mode: OobMode = _ERROR,
    name: Plain = None,
    priority: Any = None,
) -> None:
    """Transpose with the DMA engines: [1,0], [2,1,0] or [3,1,2,0]."""


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
    require_parameter("nki.isa.dma_compute", "oob_mode", oob_mode, _ERROR)
    t = active()
    t.locate()
    t.emit(
        "dma_compute",
        dst=t.write(dst),
        srcs=[t.read(source) for source in srcs],
        reduce_op=reduction_name(reduce_op),
        scales=None if scales is None else [float(s) for s in scales],
        unique_indices=bool(unique_indices),
        oob_mode=member(oob_mode, enums.oob_mode, "oob_mode"),
        name=name,
    )


@instruction
def sendrecv(
    src: Read,
    dst: Write,
    send_to_rank: Integer,
    recv_from_rank: Integer,
    pipe_id: Integer,
    dma_engine: DmaEngine = enums.dma_engine.dma,
    name: Plain = None,
) -> None:
    """Exchange tiles between the two cores of a logical core."""


def core_barrier(data: Any, cores: Any, engine: Any = engines.gpsimd, name: str | None = None) -> None:
    """Wait for the other core of the logical core. cores: their numbers, or one number."""
    t = active()
    t.locate()
    members = (cores,) if isinstance(cores, int) else tuple(cores)
    if t.lnc == 1 and len(members) > 1:
        raise UnsupportedError(
            f"core_barrier over cores {members} in a launch with one core",
            where=t.where,
            cure="launch with kernel[2], or skip the barrier when nl.num_programs() is 1",
        )
    t.emit(
        "core_barrier",
        data=None if data is None else t.read(data),
        cores=tuple(int(c) for c in members),
        engine=member(engine, engines, "engine"),
        name=name,
    )


# -- GpSimd ------------------------------------------------------------------------------------------
@instruction
def iota(
    dst: Write,
    pattern: Pattern,
    offset: Expression = 0,
    channel_multiplier: Integer = 0,
    name: Plain = None,
) -> None:
    """``offset + partition * channel_multiplier + sum(step * index)``."""


@instruction
def affine_select(
    dst: Write,
    pattern: Pattern,
    channel_multiplier: Integer,
    on_true_tile: Read,
    on_false_value: Scalar,
    cmp_op: OperationOrEqual = None,
    offset: Expression = 0,
    name: Plain = None,
) -> None:
    """Select by comparing an affine value with zero."""


@instruction
def local_gather(
    dst: Write,
    src_buffer: Read,
    index: Read,
    num_elem_per_idx: Integer = 1,
    num_valid_indices: IntegerIfGiven = None,
    name: Plain = None,
) -> None:
    """Gather within each group of 16 partitions; indices count elements of a partition."""


@instruction
def nc_n_gather(dst: Write, data: Read, indices: Read, name: Plain = None) -> None:
    """Gather within each partition."""


@instruction
def nonzero_with_count(
    dst: Write, src: Read, index_offset: Expression = 0, padding_val: Integer = -1, name: Plain = None
) -> None:
    """Indices of the nonzero elements of partitions 0, 16, …, and their number."""


@instruction
def sequence_bounds(dst: Write, segment_ids: Read, name: Plain = None) -> None:
    """Start and end of the segment of each element."""


# -- random numbers --------------------------------------------------------------------------------------
@instruction
def rng(dst: Write, engine: Engine = _UNKNOWN, name: Plain = None) -> None:
    """Random bits."""


@instruction
def rand2(dst: Write, min: Scalar, max: Scalar, name: Plain = None) -> None:
    """Uniform random numbers (NeuronCore-v4)."""


@instruction
def set_rng_seed(src_seeds: Read, name: Plain = None) -> None:
    """Seed the Vector engine's generator."""


@instruction
def rand_set_state(src_seeds: Read, engine: Engine = _UNKNOWN, name: Plain = None) -> None:
    """Load the state of a generator."""


@instruction
def rand_get_state(dst: Write, engine: Engine = _UNKNOWN, name: Plain = None) -> None:
    """Store the state of a generator."""


# -- registers -------------------------------------------------------------------------------------------
def register_alloc(x: int | None = None) -> VirtualRegister:
    """A register, optionally with a value."""
    return new_register(active(), None if x is None else whole_number(x, "register_alloc"))


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
