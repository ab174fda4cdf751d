"""`neuronxcc.nki.isa`: instructions that return their result tile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from opentrn.errors import UnsupportedError
from opentrn.nki import isa_compute as _modern
from opentrn.nki.classic import operations as _ops
from opentrn.nki.classic import patterns as _patterns
from opentrn.nki.classic.tile import Tile, box_of, crop, dtype_or, flush
from opentrn.nki.dtypes import name_of as _name_of
from opentrn.nki.enums import MemoryRegion, dge_mode, engine, nc_version, oob_mode, reduce_cmd
from opentrn.nki.instruction import (
    Command,
    Engine,
    Flag,
    Float,
    Integer,
    Operation,
    Read,
    ReadLikeFirst,
    ReadRows,
    Reduction,
    Scalar,
    WriteIfGiven,
    tile_instruction,
)
from opentrn.nki.isa_common import classic_op_name as op_name
from opentrn.nki.isa_common import classic_reduction_name as reduction_name
from opentrn.nki.isa_common import member
from opentrn.nki.modern.isa import get_nc_version
from opentrn.nki.tracing import active

tensor_engine, vector_engine, scalar_engine = engine.tensor, engine.vector, engine.scalar
gpsimd_engine, unknown_engine = engine.gpsimd, engine.unknown
_PSUM = MemoryRegion.psum


def _token(op: Any) -> Any:
    """An operation as the modern instructions take it: they know no functions of NumPy."""
    return SimpleNamespace(nki_op=op_name(op))


def _engine(value: Any) -> str:
    return member(value, engine, "engine")


@tile_instruction()
def activation(
    op: Operation,
    data: Read,
    *,
    bias: Scalar = None,
    scale: Scalar = 1.0,
    reduce_op: Reduction = None,
    reduce_res: WriteIfGiven = None,
    reduce_cmd: Command = reduce_cmd.idle,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Any:
    """``op(data * scale + bias)``."""


@tile_instruction()
def activation_reduce(
    op: Operation,
    data: Read,
    *,
    reduce_op: Reduction,
    reduce_res: WriteIfGiven,
    bias: Scalar = None,
    scale: Scalar = 1.0,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Any:
    """`activation` and its sum along the free dimensions."""


def tensor_copy(
    src: Tile, *, mask: Any = None, dtype: Any = None, engine: Any = engine.unknown, **_: Any
) -> Tile:
    """A copy within SBUF and PSUM."""
    return _ops.copy(src, dtype, mask, _engine(engine))


def tensor_copy_dynamic_src(
    src: Tile, *, mask: Any = None, dtype: Any = None, engine: Any = engine.unknown, **_: Any
) -> Tile:
    """A copy whose source offset is known when the kernel runs."""
    return _ops.copy(src, dtype, mask, _engine(engine), "tensor_copy_dynamic_src")


def tensor_copy_dynamic_dst(*, dst: Tile, src: Tile, engine: Any = engine.unknown, **_: Any) -> None:
    """A copy whose destination offset is known when the kernel runs."""
    tracer = active()
    flush(tracer)
    tracer.locate()
    tracer.emit(
        "tensor_copy_dynamic_dst",
        dst=tracer.write(dst),
        src=tracer.read(src),
        engine=_engine(engine),
        name=None,
    )


def tensor_copy_predicated(
    *, src: Any, dst: Tile, predicate: Tile, reverse_pred: bool = False, **_: Any
) -> None:
    """Copy where the predicate holds."""
    flush(active())
    _modern.tensor_copy_predicated(dst, src, predicate, reverse_pred)


def tensor_tensor(
    data1: Tile,
    data2: Tile,
    op: Any,
    *,
    dtype: Any = None,
    mask: Any = None,
    engine: Any = engine.unknown,
    **_: Any,
) -> Tile:
    """``data1 op data2``."""
    return _ops.binary(str(op_name(op)), data1, data2, dtype, mask)


@tile_instruction()
def tensor_scalar(
    data: Read,
    op0: Operation,
    operand0: Scalar,
    reverse0: Flag = False,
    op1: Operation = None,
    operand1: Scalar = None,
    reverse1: Flag = False,
    *,
    dtype: Any = None,
    mask: Any = None,
    engine: Engine = engine.unknown,
    **_: Any,
) -> Any:
    """``(data op0 operand0) op1 operand1``."""


@tile_instruction()
def tensor_scalar_reduce(
    *,
    data: Read,
    op0: Operation,
    operand0: Scalar,
    reduce_op: Reduction,
    reduce_res: WriteIfGiven,
    reverse0: Flag = False,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Any:
    """`tensor_scalar` with one operation, and its reduction."""


@tile_instruction()
def scalar_tensor_tensor(
    *,
    data: Read,
    op0: Operation,
    operand0: Scalar,
    op1: Operation,
    operand1: ReadLikeFirst,
    reverse0: Flag = False,
    reverse1: Flag = False,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Any:
    """``(data op0 operand0) op1 operand1`` with a tile as operand1."""


@tile_instruction()
def tensor_tensor_scan(
    data0: Read,
    data1: Read,
    initial: Scalar,
    op0: Operation,
    op1: Operation,
    reverse0: Flag = False,
    reverse1: Flag = False,
    *,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Any:
    """A scan along the free dimension."""


def tensor_reduce(
    op: Any,
    data: Tile,
    axis: Any,
    *,
    mask: Any = None,
    dtype: Any = None,
    negate: bool = False,
    keepdims: bool = False,
    **_: Any,
) -> Tile:
    """Reduce free dimensions."""
    return _ops.reduce(str(reduction_name(op)), data, axis, dtype, mask, keepdims, negate)


def tensor_partition_reduce(op: Any, data: Tile, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    """Reduce over the partitions."""
    source = _ops.operand(data, data.shape, box_of(mask, data.shape))
    out, fixed = dtype_or(dtype, source.dtype)
    return _ops.generic(
        "tensor_partition_reduce", (1, *source.shape[1:]), out, fixed, op=reduction_name(op), data=source
    )


@tile_instruction()
def reciprocal(data: Read, *, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
    """1 / data."""


def nc_matmul(
    stationary: Tile,
    moving: Tile,
    *,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    tile_position: Any = (),
    tile_size: Any = (),
    mask: Any = None,
    perf_mode: Any = None,
    **_: Any,
) -> Tile:
    """``stationary.T @ moving``."""
    mode = {"double_row_gen3": "double_row", "double_row": "double_row"}.get(
        getattr(perf_mode, "name", perf_mode) or "none", "none"
    )
    return _ops.nc_matmul(
        stationary,
        moving,
        mask,
        is_stationary_onezero=bool(is_stationary_onezero),
        is_moving_onezero=bool(is_moving_onezero),
        is_transpose=bool(is_transpose),
        tile_position=tuple(tile_position or ()),
        tile_size=tuple(tile_size or ()),
        perf_mode=mode,
    )


def nc_transpose(
    data: Tile, *, mask: Any = None, dtype: Any = None, engine: Any = engine.unknown, **_: Any
) -> Tile:
    """Swap partition and free dimension."""
    return _ops.nc_transpose(data, dtype, mask, _engine(engine))


def dma_transpose(src: Tile, *, axes: Any = None, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    """Transpose with the DMA engines."""
    source = src.as_nki_tensor()
    order = tuple(axes) if axes else {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}[source.ndim]
    out, fixed = dtype_or(dtype, source.dtype)
    return _ops.generic(
        "dma_transpose",
        tuple(source.shape[a] for a in order),
        out,
        fixed,
        src=source,
        axes=order,
        dge_mode="unknown",
        oob_mode="error",
    )


def dma_copy(
    *,
    dst: Tile,
    src: Tile,
    mask: Any = None,
    dst_rmw_op: Any = None,
    oob_mode: Any = oob_mode.error,
    dge_mode: Any = dge_mode.unknown,
    **_: Any,
) -> None:
    """Copy between any two memories."""
    _ops.dma_copy(
        dst, src, mask, dst_rmw_op, getattr(oob_mode, "name", "error"), getattr(dge_mode, "name", "unknown")
    )


def memset(
    shape: Any, value: Any, dtype: Any, *, mask: Any = None, engine: Any = engine.unknown, **_: Any
) -> Tile:
    """A tile filled with one value."""
    dims = tuple(int(n) for n in shape)
    box = box_of(mask, dims)
    return _ops.generic(
        "memset", dims, _name_of(dtype), True, box, value=active().scalar(value), engine=_engine(engine)
    )


def iota(expr: Any, dtype: Any, *, mask: Any = None, **_: Any) -> Tile:
    """The values of an index expression."""
    return _patterns.iota(expr, dtype, mask)


def affine_select(
    pred: Any, on_true_tile: Tile, on_false_value: Any, *, mask: Any = None, dtype: Any = None, **_: Any
) -> Tile:
    """Select by a comparison of indices."""
    return _patterns.affine_select(pred, on_true_tile, on_false_value, mask, dtype)


@tile_instruction(columns=6, dtype="float32")
def bn_stats(data: Read, *, mask: Any = None, dtype: Any = None, **_: Any) -> Any:
    """Statistics of even and odd elements."""


@tile_instruction(columns=2, dtype="float32")
def bn_aggr(data: Read, *, mask: Any = None, dtype: Any = None, **_: Any) -> Any:
    """Mean and variance from `bn_stats` results."""


def dropout(data: Tile, prob: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    """Replace elements by zero with a probability."""
    from opentrn.nki.classic import language

    return language.dropout(data, prob, dtype=dtype, mask=mask)


@tile_instruction(columns=8)
def max8(*, src: Read, mask: Any = None, dtype: Any = None, **_: Any) -> Any:
    """The eight largest values."""


@tile_instruction(columns=8, dtype="uint32")
def nc_find_index8(*, data: Read, vals: ReadRows, mask: Any = None, dtype: Any = None, **_: Any) -> Any:
    """Where the eight values are."""


@tile_instruction()
def nc_match_replace8(
    *,
    data: Read,
    vals: ReadRows,
    imm: Float,
    dst_idx: WriteIfGiven = None,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Any:
    """Replace eight values."""


def nc_stream_shuffle(
    src: Tile, dst: Tile, shuffle_mask: Any, *, dtype: Any = None, mask: Any = None, **_: Any
) -> None:
    """Permute partitions within quadrants."""
    tracer = active()
    source, target = src.as_nki_tensor(), dst.as_nki_tensor()
    flush(tracer)
    tracer.locate()
    box = box_of(mask, target.shape)
    if box:
        source, target = crop(source, box), crop(target, box)
    tracer.emit(
        "nc_stream_shuffle",
        dst=tracer.write(target),
        src=tracer.read(source),
        shuffle_mask=[int(m) for m in shuffle_mask],
        name=None,
    )


@tile_instruction()
def range_select(
    *,
    on_true_tile: Read,
    comp_op0: Operation,
    comp_op1: Operation,
    bound0: ReadRows,
    bound1: ReadRows,
    reduce_cmd: Command = reduce_cmd.idle,
    reduce_res: WriteIfGiven = None,
    reduce_op: Reduction = np.amax,
    range_start: Integer = 0,
    on_false_value: Float = -3.4028235e38,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Any:
    """Keep elements whose index is within bounds."""


def select_reduce(
    *,
    dst: Tile,
    predicate: Tile,
    on_true: Tile,
    on_false: Any,
    reduce_res: Any = None,
    reduce_cmd: Any = reduce_cmd.idle,
    reduce_op: Any = np.amax,
    reverse_pred: bool = False,
    **_: Any,
) -> None:
    """Select by a predicate tile, with the maximum of the result."""
    flush(active())
    _modern.select_reduce(
        dst, predicate, on_true, on_false, reduce_res, reduce_cmd, _token(reduce_op), reverse_pred
    )


def tensor_scalar_cumulative(
    *,
    src: Tile,
    dst: Tile,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: Any = reduce_cmd.reset_reduce,
    **_: Any,
) -> None:
    """Running reduction ``reg = op1(op0(src, imm0), reg)`` along the free dimensions."""
    flush(active())
    _modern.tensor_scalar_cumulative(dst, src, _token(op0), _token(op1), imm0, imm1, reduce_cmd)


def local_gather(
    src_buffer: Tile,
    index: Tile,
    num_elem_per_idx: int = 1,
    num_valid_indices: Any = None,
    *,
    mask: Any = None,
) -> Tile:
    """Gather within groups of 16 partitions."""
    source, indices = src_buffer.as_nki_tensor(), index.as_nki_tensor()
    per_core = indices.size // (indices.shape[0] // 16)
    count = per_core if num_valid_indices is None else int(num_valid_indices)
    return _ops.generic(
        "local_gather",
        (source.shape[0], count, int(num_elem_per_idx)),
        source.dtype,
        False,
        src_buffer=source,
        index=indices,
        num_elem_per_idx=int(num_elem_per_idx),
        num_valid_indices=num_valid_indices,
    )


def sequence_bounds(*, segment_ids: Tile, dtype: Any = None) -> Tile:
    """Start and end of the segment of each element."""
    source = segment_ids.as_nki_tensor()
    out, fixed = dtype_or(dtype, source.dtype)
    return _ops.generic(
        "sequence_bounds", (source.shape[0], 2, *source.shape[1:]), out, fixed, segment_ids=source
    )


def builtin_custom_op(*_: Any, **__: Any) -> None:
    """Custom GpSimd programs are binaries of another chip. Raises UnsupportedError."""
    raise UnsupportedError("builtin_custom_op loads compiled GpSimd code, which a virtual core cannot run")


__all__ = ["dge_mode", "engine", "get_nc_version", "nc_version", "oob_mode", "reduce_cmd"]
