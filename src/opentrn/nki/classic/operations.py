"""The operations behind classic `nki.language` and `nki.isa`; each result's place is open until used."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from opentrn.errors import UnsupportedError
from opentrn.nki.classic.products import masked_product
from opentrn.nki.classic.spread import broadcast_view
from opentrn.nki.classic.tile import (
    Pending,
    Tile,
    box_of,
    crop,
    dtype_or,
    flush,
    partition_first,
    tile_of,
)
from opentrn.nki.dtypes import is_float
from opentrn.nki.enums import MemoryRegion
from opentrn.nki.language_ops import on_sbuf, promoted
from opentrn.nki.tensor import NkiTensor
from opentrn.nki.tracing import Tracer, active

SBUF, PSUM = MemoryRegion.sbuf, MemoryRegion.psum


def hold(
    tracer: Tracer,
    emit: Callable[[NkiTensor], None],
    shape: tuple[int, ...],
    dtype: str,
    fixed: bool,
    box: Any = None,
    region: MemoryRegion = SBUF,
    matmul: Callable[[NkiTensor], None] | None = None,
) -> Tile:
    """Hold an operation back until its destination is known."""
    flush(tracer)
    tracer.locate()
    line = tracer.line

    def emit_there(dst: NkiTensor) -> None:
        tracer.builder.source(*line)
        tracer.forget_line()
        emit(dst)

    def matmul_there(dst: NkiTensor) -> None:
        tracer.builder.source(*line)
        tracer.forget_line()
        assert matmul is not None
        matmul(dst)

    result = Tile(None, Pending(emit_there, shape, dtype, fixed, region, box, matmul and matmul_there))
    tracer.pending = result
    return result


def operand(value: Any, shape: tuple[int, ...] | None = None, box: Any = None) -> NkiTensor:
    """The view of an input tile, cropped to the mask's box."""
    view = tile_of(value).as_nki_tensor()
    return view if box in (None, []) else crop(view, box)


def spread(view: NkiTensor, arguments: dict[str, Any]) -> NkiTensor:
    """A view repeated to the shape of the first of `arguments`."""
    shape = next(iter(arguments.values())).shape
    return view if view.shape == shape else broadcast_view(active(), view, shape)


def number_or_column(tracer: Tracer, value: Any, box: Any = None) -> Any:
    """A Python number, or the access of a [P, 1] tile."""
    if isinstance(value, (Tile, NkiTensor)):
        return tracer.read(operand(value, None, [box[0], (0, 1)] if box else None))
    return tracer.scalar(value)


def unary(name: str, x: Any, dtype: Any = None, mask: Any = None, region: MemoryRegion = SBUF) -> Tile:
    """An activation function."""
    tracer = active()
    shape = x.shape
    box = box_of(mask, shape)
    source = operand(x, shape, box)
    out, fixed = dtype_or(dtype, source.dtype)
    return hold(
        tracer,
        lambda dst: tracer.emit(
            "activation", dst=tracer.write(dst), op=name, data=tracer.read(source), scale=1.0, name=None
        ),
        shape,
        out,
        fixed,
        box,
        region,
    )


def binary(name: str, x: Any, y: Any, dtype: Any = None, mask: Any = None) -> Tile:
    """x op y for tiles and numbers, with broadcasting."""
    tracer = active()
    x_tile, y_tile = isinstance(x, Tile), isinstance(y, Tile)
    if not x_tile and not y_tile:
        raise UnsupportedError(f"{name} needs a tile; got {type(x).__name__} and {type(y).__name__}")
    comparison = name in _COMPARISONS
    if not (x_tile and y_tile):
        tile, other, reverse = (x, y, False) if x_tile else (y, x, True)
        box = box_of(mask, tile.shape)
        data = operand(tile, tile.shape, box)
        out, fixed = dtype_or(dtype, "uint8" if comparison else data.dtype)
        if (
            not comparison
            and dtype is None
            and not is_float(out)
            and (isinstance(other, float) or name == "divide")
        ):
            out = "float32"
        value = tracer.scalar(other)
        return hold(
            tracer,
            lambda dst: _tensor_scalar(tracer, dst, data, name, value, reverse),
            tile.shape,
            out,
            fixed,
            box,
        )
    return _tile_binary(tracer, name, x, y, dtype, mask, comparison)


_COMPARISONS = (
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
)


def _tensor_scalar(
    tracer: Tracer, dst: NkiTensor, data: NkiTensor, name: str, value: Any, reverse: bool
) -> None:
    tracer.emit(
        "tensor_scalar",
        dst=tracer.write(dst),
        data=tracer.read(data),
        op0=name,
        operand0=value,
        reverse0=reverse,
        engine="unknown",
        name=None,
    )


def _tile_binary(
    tracer: Tracer, name: str, x: Tile, y: Tile, dtype: Any, mask: Any, comparison: bool
) -> Tile:
    left, right = x.as_nki_tensor(), y.as_nki_tensor()
    rank = max(left.ndim, right.ndim)
    left, right = _ranked(left, rank), _ranked(right, rank)
    shape = tuple(np.broadcast_shapes(left.shape, right.shape))
    box = box_of(mask, shape)
    out, fixed = dtype_or(dtype, "uint8" if comparison else promoted(left, right))
    if box:
        left, right = crop(left, box), crop(right, box)
    full = shape if not box else tuple(count for _, count in box)

    def emit(dst: NkiTensor) -> None:
        for data, column, reverse in ((left, right, False), (right, left, True)):
            if (
                data.shape == full
                and math.prod(column.shape[1:]) == 1
                and column.shape[0] == full[0]
                and math.prod(full[1:]) > 1
            ):
                _tensor_scalar(tracer, dst, data, name, tracer.read(_column(column)), reverse)
                return
        a, b = broadcast_view(tracer, left, full), broadcast_view(tracer, right, full)
        if a.buffer is PSUM and b.buffer is PSUM:
            b = on_sbuf(tracer, b)
        tracer.emit(
            "tensor_tensor",
            dst=tracer.write(dst),
            data1=tracer.read(a),
            data2=tracer.read(b),
            op=name,
            engine="unknown",
            name=None,
        )

    return hold(tracer, emit, shape, out, fixed, box)


def _column(view: NkiTensor) -> NkiTensor:
    return NkiTensor(view._storage, view.dtype, view.offset, (view._steps[0], 1), (view._counts[0], 1))


def _ranked(view: NkiTensor, rank: int) -> NkiTensor:
    while view.ndim < rank:
        view = view.expand(1)
    return view


def copy(
    x: Any, dtype: Any = None, mask: Any = None, engine: str = "unknown", name: str = "tensor_copy"
) -> Tile:
    """A copy of a tile, by the instruction `name`."""
    tracer = active()
    box = box_of(mask, x.shape)
    source = operand(x, x.shape, box)
    out, fixed = dtype_or(dtype, source.dtype)
    return hold(
        tracer,
        lambda dst: tracer.emit(
            name, dst=tracer.write(dst), src=tracer.read(source), engine=engine, name=None
        ),
        x.shape,
        out,
        fixed,
        box,
    )


def load(src: Tile, dtype: Any = None, mask: Any = None) -> Tile:
    """HBM to a new SBUF tile."""
    tracer = active()
    flush(tracer)
    view = src.as_nki_tensor()
    shape = view.shape if view.ndim > 1 else (view.shape[0], 1) if view.shape[0] > 1 else (1, 1)
    box = box_of(mask, view.shape)
    out, fixed = dtype_or(dtype, view.dtype)
    source = view if box in (None, []) else crop(view, box)
    return hold(
        tracer,
        lambda dst: tracer.emit("dma_copy", dst=tracer.write(dst), src=tracer.read(source)),
        shape,
        out,
        fixed,
        box,
    )


def store(dst: Tile, value: Any, mask: Any = None) -> None:
    """SBUF to HBM."""
    tracer = active()
    target = dst.as_nki_tensor()
    if not isinstance(value, Tile):
        filled = tracer.allocate(
            target.shape if target.ndim > 1 else (*target.shape, 1), target.dtype, SBUF, "fill", None
        )
        flush(tracer)
        tracer.locate()
        tracer.emit(
            "memset", dst=tracer.write(filled), value=tracer.scalar(value), engine="unknown", name=None
        )
        value = Tile(filled)
    source = value.as_nki_tensor()
    flush(tracer)
    tracer.locate()
    box = box_of(mask, target.shape)
    if box == []:
        return
    if source.buffer is PSUM:
        source = on_sbuf(tracer, source)
    if box:
        source = crop(source if source.ndim == target.ndim else source.reshape(target.shape), box)
        target = crop(target, box)
    if math.prod(source.shape) != math.prod(target.shape):
        source = broadcast_view(tracer, _ranked(source, target.ndim), target.shape)
    tracer.emit("dma_copy", dst=tracer.write(target), src=tracer.read(source))


def dma_copy(
    dst: Tile,
    src: Tile,
    mask: Any = None,
    dst_rmw_op: Any = None,
    oob_mode: str = "error",
    dge_mode: str = "unknown",
) -> None:
    """A copy between any two memories; `dst_rmw_op` accumulates into the destination."""
    tracer = active()
    target, source = dst.as_nki_tensor(), src.as_nki_tensor()
    flush(tracer)
    tracer.locate()
    box = box_of(mask, target.shape)
    if box == []:
        return
    if box:
        target, source = crop(target, box), crop(source, box)
    if dst_rmw_op is None:
        tracer.emit(
            "dma_copy",
            dst=tracer.write(target),
            src=tracer.read(source),
            oob_mode=oob_mode,
            dge_mode=dge_mode,
            engine="unknown",
            name=None,
        )
    else:
        tracer.emit(
            "dma_compute",
            dst=tracer.write(target),
            srcs=[tracer.read(target), tracer.read(source)],
            reduce_op="add",
            scales=None,
            unique_indices=True,
            oob_mode=oob_mode,
            name=None,
        )


# -- matmul ---------------------------------------------------------------------------------------------
def nc_matmul(stationary: Any, moving: Any, mask: Any = None, **options: Any) -> Tile:
    """``stationary.T @ moving`` into PSUM; accumulates under ``psum[...] +=``."""
    tracer = active()
    x, y = operand(stationary), operand(moving)
    double = options.get("perf_mode", "none") == "double_row"
    columns = math.prod(x.shape[2:] if double else x.shape[1:])
    shape: tuple[int, ...] = (columns, math.prod(y.shape[2:] if double else y.shape[1:]))
    x, y, shape, box = (x, y, shape, box_of(mask, shape)) if double else masked_product(x, y, shape, mask)

    def emit(dst: NkiTensor, accumulate: bool | None = False) -> None:
        # The Tensor engine reads SBUF only; the classic compiler moves what a transpose left in PSUM.
        left, right = (on_sbuf(tracer, view) if view.buffer is PSUM else view for view in (x, y))
        tracer.emit(
            "nc_matmul",
            dst=tracer.write(dst),
            stationary=tracer.read(left),
            moving=tracer.read(right),
            accumulate=accumulate,
            name=None,
            **options,
        )

    return hold(
        tracer,
        emit,
        shape,
        "float32",
        False,
        box,
        PSUM,
        lambda dst: emit(dst, None),
    )


def matmul(x: Tile, y: Tile, transpose_x: bool = False, mask: Any = None) -> Tile:
    """x @ y, or x.T @ y."""
    if not transpose_x:
        x = copy(nc_transpose(x))
    return nc_matmul(x, y, mask)


def nc_transpose(data: Any, dtype: Any = None, mask: Any = None, engine: str = "unknown") -> Tile:
    """Swap partition and free dimension: PSUM through the Tensor engine, SBUF through the Vector engine."""
    tracer = active()
    source = operand(data)
    rows, columns = source.shape[0], math.prod(source.shape[1:])
    vector = engine == "vector" or (engine == "unknown" and rows <= 32 and columns <= 32)
    if source.buffer is PSUM and not vector:
        source = on_sbuf(tracer, source)
    old = tracer.generation().value < 3
    natural = source.dtype if vector or not old or not is_float(source.dtype) else "float32"
    out, fixed = dtype_or(dtype, natural)

    def emit(dst: NkiTensor) -> None:
        if dst.dtype == source.dtype:
            tracer.emit(
                "nc_transpose",
                dst=tracer.write(dst),
                data=tracer.read(source),
                engine="vector" if vector else "tensor",
                name=None,
            )
            return
        identity = tracer.identity(rows, source.dtype, None)
        tracer.emit(
            "nc_matmul",
            dst=tracer.write(dst),
            stationary=tracer.read(source),
            moving=tracer.read(identity),
            accumulate=False,
            name=None,
        )

    return hold(
        tracer,
        emit,
        (columns, rows),
        out,
        fixed,
        [] if box_of(mask, (columns, rows)) == [] else None,
        SBUF if vector else PSUM,
    )


# -- reductions -------------------------------------------------------------------------------------------
def reduce(
    name: str,
    x: Any,
    axis: Any,
    dtype: Any = None,
    mask: Any = None,
    keepdims: bool = False,
    negate: bool = False,
) -> Tile:
    """Reduce free dimensions."""
    tracer = active()
    view = operand(x)
    axes = (axis,) if isinstance(axis, (int, np.integer)) else tuple(axis)
    axes = tuple(sorted(a if a >= 0 else a + view.ndim for a in axes))
    box = box_of(mask, view.shape)
    source = view if box in (None, []) else crop(view, box)
    if axes != tuple(range(view.ndim - len(axes), view.ndim)):
        order = [d for d in range(view.ndim) if d not in axes] + list(axes)
        source = source._permute(order)
        inner = tuple(range(view.ndim - len(axes), view.ndim))
    else:
        inner = axes
    kept = tuple(1 if a in axes else n for a, n in enumerate(view.shape))
    if not keepdims:
        kept = tuple(n for a, n in enumerate(view.shape) if a not in axes)
        kept = kept if len(kept) > 1 else (*kept, 1)
    out, fixed = dtype_or(dtype, source.dtype)
    partial = (
        None
        if box is None
        else []
        if box == []
        else [pair for a, pair in enumerate(box) if a not in axes]
        + ([(0, 1)] if len(kept) > len(box) - len(axes) else [])
    )
    return hold(
        tracer,
        lambda dst: tracer.emit(
            "tensor_reduce",
            dst=tracer.write(dst),
            op=name,
            data=tracer.read(source),
            axis=inner,
            negate=negate,
            keepdims=False,
            name=None,
        ),
        kept,
        out,
        fixed,
        partial,
    )


def box_left(held: Tile) -> Any:
    """What its mask leaves of the operation that is held back: a mask for what follows."""
    assert held._pending is not None
    return held._pending.box


def broadcast_to(x: Tile, shape: Any) -> Tile:
    """A view that repeats free dimensions; repeating partitions goes through the Tensor engine or a DMA."""
    tracer = active()
    view = x.as_nki_tensor()
    flush(tracer)
    tracer.locate()
    shape = tuple(int(n) for n in shape)
    return Tile(broadcast_view(tracer, _ranked(view, len(shape)), shape))


def where(condition: Any, x: Any, y: Any, dtype: Any = None, mask: Any = None) -> Tile:
    """Elements of x where the condition holds, of y elsewhere."""
    tracer = active()
    shape = condition.shape
    box = box_of(mask, shape)
    predicate = operand(condition, shape, box)
    tiles = [value for value in (x, y) if isinstance(value, Tile)]
    out, fixed = dtype_or(dtype, tiles[0].dtype_name if tiles else "float32")
    values = [operand(v, shape, box) if isinstance(v, Tile) else v for v in (x, y)]

    def emit(dst: NkiTensor) -> None:
        if predicate.dtype in ("uint8", "uint16", "uint32"):
            chosen = predicate
        else:
            chosen = tracer.allocate(predicate.shape, "uint8", SBUF, "predicate", None)
            _tensor_scalar(tracer, chosen, predicate, "not_equal", 0.0, False)
        for value, reverse in zip(values, (False, True), strict=True):
            if isinstance(value, NkiTensor):
                value = broadcast_view(tracer, _ranked(value, predicate.ndim), predicate.shape)
                if value.dtype != dst.dtype:
                    cast = tracer.allocate(value.shape, dst.dtype, SBUF, "cast", None)
                    tracer.emit(
                        "tensor_copy",
                        dst=tracer.write(cast),
                        src=tracer.read(value),
                        engine="unknown",
                        name=None,
                    )
                    value = cast
            tracer.emit(
                "tensor_copy_predicated",
                dst=tracer.write(dst),
                src=tracer.scalar(value),
                predicate=tracer.read(chosen),
                reverse_pred=reverse,
                name=None,
            )

    return hold(tracer, emit, shape, out, fixed, box)


def generic(
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    fixed: bool,
    box: Any = None,
    region: MemoryRegion = SBUF,
    **arguments: Any,
) -> Tile:
    """An instruction whose arguments are ready; views among them are read when it is emitted."""
    tracer = active()
    return hold(
        tracer,
        lambda dst: tracer.emit(
            name,
            dst=tracer.write(dst),
            name=None,
            **{
                key: tracer.read(value) if isinstance(value, NkiTensor) else value
                for key, value in arguments.items()
            },
        ),
        shape,
        dtype,
        fixed,
        box,
        region,
    )


def result_view(value: Any) -> Any:
    """The access of a tile that an instruction writes besides its result; None stays None."""
    if value is None:
        return None
    view = partition_first(value._target_view())
    view._storage.zero_pending = False
    return active().write(view)
