"""`neuronxcc.nki.isa`: instructions that return their result tile."""

from __future__ import annotations

from typing import Any

import numpy as np

from opentrn.errors import UnsupportedError
from opentrn.nki.classic import operations as _ops
from opentrn.nki.classic.tile import Tile, box_of, crop, dtype_or, flush
from opentrn.nki.dtypes import name_of as _name_of
from opentrn.nki.enums import MemoryRegion, dge_mode, engine, nc_version, oob_mode, reduce_cmd
from opentrn.nki.isa_common import command, member, op_name, reduction_name
from opentrn.nki.modern.isa import get_nc_version
from opentrn.nki.tracing import active

tensor_engine, vector_engine, scalar_engine = engine.tensor, engine.vector, engine.scalar
gpsimd_engine, unknown_engine = engine.gpsimd, engine.unknown
_PSUM = MemoryRegion.psum


def _engine(value: Any) -> str:
    return member(value, engine, "engine")


def activation(
    op: Any,
    data: Tile,
    *,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: Any = None,
    reduce_cmd: Any = reduce_cmd.idle,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Tile:
    """``op(data * scale + bias)``."""
    tracer = active()
    box = box_of(mask, data.shape)
    source = _ops.operand(data, data.shape, box)
    bias_access = None if bias is None else _ops.number_or_column(tracer, bias, box)
    scale_access = _ops.number_or_column(tracer, scale, box)
    sums = _ops.result_view(reduce_res)
    out, fixed = dtype_or(dtype, source.dtype)
    return _ops.generic(
        "activation",
        data.shape,
        out,
        fixed,
        box,
        op=op_name(op),
        data=source,
        bias=bias_access,
        scale=scale_access,
        reduce_op=reduction_name(reduce_op),
        reduce_res=sums,
        reduce_cmd=command(reduce_cmd),
    )


def activation_reduce(
    op: Any,
    data: Tile,
    *,
    reduce_op: Any,
    reduce_res: Any,
    bias: Any = None,
    scale: Any = 1.0,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Tile:
    """`activation` and its sum along the free dimensions."""
    tracer = active()
    box = box_of(mask, data.shape)
    source = _ops.operand(data, data.shape, box)
    bias_access = None if bias is None else _ops.number_or_column(tracer, bias, box)
    scale_access = _ops.number_or_column(tracer, scale, box)
    sums = _ops.result_view(reduce_res)
    out, fixed = dtype_or(dtype, source.dtype)
    return _ops.generic(
        "activation_reduce",
        data.shape,
        out,
        fixed,
        box,
        op=op_name(op),
        data=source,
        reduce_op=reduction_name(reduce_op),
        reduce_res=sums,
        bias=bias_access,
        scale=scale_access,
    )


def tensor_copy(
    src: Tile, *, mask: Any = None, dtype: Any = None, engine: Any = engine.unknown, **_: Any
) -> Tile:
    """A copy within SBUF and PSUM."""
    return _ops.copy(src, dtype, mask, _engine(engine))


def tensor_copy_dynamic_src(src: Tile, **options: Any) -> Tile:
    """A copy whose source offset is known when the kernel runs."""
    return tensor_copy(src, **options)


def tensor_copy_dynamic_dst(*, dst: Tile, src: Tile, **_: Any) -> None:
    """A copy whose destination offset is known when the kernel runs."""
    dst[...] = src


def tensor_copy_predicated(
    *, src: Any, dst: Tile, predicate: Tile, reverse_pred: bool = False, **_: Any
) -> None:
    """Copy where the predicate holds."""
    tracer = active()
    source = src.as_nki_tensor() if isinstance(src, Tile) else src
    mask, target = predicate.as_nki_tensor(), dst.as_nki_tensor()
    flush(tracer)
    tracer.locate()
    tracer.emit(
        "tensor_copy_predicated",
        dst=tracer.write(target),
        src=tracer.scalar(source),
        predicate=tracer.read(mask),
        reverse_pred=bool(reverse_pred),
        name=None,
    )


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


def tensor_scalar(
    data: Tile,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
    engine: Any = engine.unknown,
    **_: Any,
) -> Tile:
    """``(data op0 operand0) op1 operand1``."""
    tracer = active()
    box = box_of(mask, data.shape)
    source = _ops.operand(data, data.shape, box)
    first = _ops.number_or_column(tracer, operand0, box)
    second = None if operand1 is None else _ops.number_or_column(tracer, operand1, box)
    out, fixed = dtype_or(dtype, source.dtype)
    return _ops.generic(
        "tensor_scalar",
        data.shape,
        out,
        fixed,
        box,
        data=source,
        op0=op_name(op0),
        operand0=first,
        reverse0=bool(reverse0),
        op1=op_name(op1),
        operand1=second,
        reverse1=bool(reverse1),
        engine=_engine(engine),
    )


def tensor_scalar_reduce(
    *,
    data: Tile,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: Tile,
    reverse0: bool = False,
    dtype: Any = None,
    mask: Any = None,
    **_: Any,
) -> Tile:
    """`tensor_scalar` with one operation, and its reduction."""
    tracer = active()
    box = box_of(mask, data.shape)
    source = _ops.operand(data, data.shape, box)
    first = _ops.number_or_column(tracer, operand0, box)
    sums = _ops.result_view(reduce_res)
    out, fixed = dtype_or(dtype, source.dtype)
    return _ops.generic(
        "tensor_scalar_reduce",
        data.shape,
        out,
        fixed,
        box,
        data=source,
        op0=op_name(op0),
        operand0=first,
        reduce_op=reduction_name(reduce_op),
        reduce_res=sums,
        reverse0=bool(reverse0),
    )


def scalar_tensor_tensor(
    *,
    data: Tile,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: Tile,
    reverse0: bool = False,
    reverse1: bool = False,
    dtype: Any = None,
    mask: Any = None,
    **_: Any,
) -> Tile:
    """``(data op0 operand0) op1 operand1`` with a tile as operand1."""
    tracer = active()
    box = box_of(mask, data.shape)
    source, other = _ops.operand(data, data.shape, box), _ops.operand(operand1, data.shape, box)
    first = _ops.number_or_column(tracer, operand0, box)
    if other.shape != source.shape:
        other = _ops.broadcast_view(tracer, other, source.shape)
    out, fixed = dtype_or(dtype, source.dtype)
    return _ops.generic(
        "scalar_tensor_tensor",
        data.shape,
        out,
        fixed,
        box,
        data=source,
        op0=op_name(op0),
        operand0=first,
        op1=op_name(op1),
        operand1=other,
        reverse0=bool(reverse0),
        reverse1=bool(reverse1),
    )


def tensor_tensor_scan(
    data0: Tile,
    data1: Tile,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
    **_: Any,
) -> Tile:
    """A scan along the free dimension."""
    tracer = active()
    box = box_of(mask, data0.shape)
    x, y = _ops.operand(data0, data0.shape, box), _ops.operand(data1, data0.shape, box)
    start = _ops.number_or_column(tracer, initial, box)
    out, fixed = dtype_or(dtype, x.dtype)
    return _ops.generic(
        "tensor_tensor_scan",
        data0.shape,
        out,
        fixed,
        box,
        data0=x,
        data1=y,
        initial=start,
        op0=op_name(op0),
        op1=op_name(op1),
        reverse0=bool(reverse0),
        reverse1=bool(reverse1),
    )


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


def reciprocal(data: Tile, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    """1 / data."""
    box = box_of(mask, data.shape)
    source = _ops.operand(data, data.shape, box)
    out, fixed = dtype_or(dtype, source.dtype)
    return _ops.generic("reciprocal", data.shape, out, fixed, box, data=source)


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
    return _ops.iota(expr, dtype, mask)


def affine_select(
    pred: Any, on_true_tile: Tile, on_false_value: Any, *, mask: Any = None, dtype: Any = None, **_: Any
) -> Tile:
    """Select by a comparison of indices."""
    return _ops.affine_select(pred, on_true_tile, on_false_value, mask, dtype)


def bn_stats(data: Tile, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    """Statistics of even and odd elements."""
    box = box_of(mask, data.shape)
    source = _ops.operand(data, data.shape, box)
    out, fixed = dtype_or(dtype, "float32")
    return _ops.generic("bn_stats", (data.shape[0], 6), out, fixed, box and [box[0], (0, 6)], data=source)


def bn_aggr(data: Tile, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    """Mean and variance from `bn_stats` results."""
    box = box_of(mask, data.shape)
    source = _ops.operand(data, data.shape, box)
    out, fixed = dtype_or(dtype, "float32")
    return _ops.generic("bn_aggr", (data.shape[0], 2), out, fixed, box and [box[0], (0, 2)], data=source)


def dropout(data: Tile, prob: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    """Replace elements by zero with a probability."""
    from opentrn.nki.classic import language

    return language.dropout(data, prob, dtype=dtype, mask=mask)


def max8(*, src: Tile, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    """The eight largest values."""
    box = box_of(mask, src.shape)
    source = _ops.operand(src, src.shape, box)
    out, fixed = dtype_or(dtype, source.dtype)
    return _ops.generic("max8", (src.shape[0], 8), out, fixed, box and [box[0], (0, 8)], src=source)


def nc_find_index8(*, data: Tile, vals: Tile, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    """Where the eight values are."""
    box = box_of(mask, data.shape)
    source = _ops.operand(data, data.shape, box)
    wanted = _ops.operand(vals, vals.shape, box and [box[0], (0, 8)])
    out, fixed = dtype_or(dtype, "uint32")
    return _ops.generic(
        "nc_find_index8", (data.shape[0], 8), out, fixed, box and [box[0], (0, 8)], data=source, vals=wanted
    )


def nc_match_replace8(
    *, data: Tile, vals: Tile, imm: float, dst_idx: Any = None, mask: Any = None, dtype: Any = None, **_: Any
) -> Tile:
    """Replace eight values."""
    box = box_of(mask, data.shape)
    source, wanted = (
        _ops.operand(data, data.shape, box),
        _ops.operand(vals, vals.shape, box and [box[0], (0, 8)]),
    )
    places = _ops.result_view(dst_idx)
    out, fixed = dtype_or(dtype, source.dtype)
    return _ops.generic(
        "nc_match_replace8",
        data.shape,
        out,
        fixed,
        box,
        data=source,
        vals=wanted,
        imm=float(imm),
        dst_idx=places,
    )


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


def range_select(
    *,
    on_true_tile: Tile,
    comp_op0: Any,
    comp_op1: Any,
    bound0: Tile,
    bound1: Tile,
    reduce_cmd: Any = reduce_cmd.idle,
    reduce_res: Any = None,
    reduce_op: Any = np.amax,
    range_start: Any = 0,
    on_false_value: Any = -3.4028235e38,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Tile:
    """Keep elements whose index is within bounds."""
    source = on_true_tile.as_nki_tensor()
    low, high = bound0.as_nki_tensor(), bound1.as_nki_tensor()
    sums = _ops.result_view(reduce_res)
    out, fixed = dtype_or(dtype, source.dtype)
    return _ops.generic(
        "range_select",
        on_true_tile.shape,
        out,
        fixed,
        on_true_tile=source,
        comp_op0=op_name(comp_op0),
        comp_op1=op_name(comp_op1),
        bound0=low,
        bound1=high,
        reduce_cmd=command(reduce_cmd),
        reduce_res=sums,
        reduce_op=reduction_name(reduce_op),
        range_start=int(range_start),
        on_false_value=float(on_false_value),
    )


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
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> None:
    """Select by a predicate tile, with the maximum of the result."""
    tracer = active()
    target, chosen, source = (tile.as_nki_tensor() for tile in (dst, predicate, on_true))
    other = on_false.as_nki_tensor() if isinstance(on_false, Tile) else on_false
    flush(tracer)
    tracer.locate()
    tracer.emit(
        "select_reduce",
        dst=tracer.write(target),
        predicate=tracer.read(chosen),
        on_true=tracer.read(source),
        on_false=tracer.scalar(other),
        reduce_res=_ops.result_view(reduce_res),
        reduce_cmd=command(reduce_cmd),
        reduce_op=reduction_name(reduce_op),
        reverse_pred=bool(reverse_pred),
        name=None,
    )


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
