"""Classic instructions made from index expressions: `iota`, `affine_select`."""

from __future__ import annotations

from typing import Any

from opentrn.errors import UnsupportedError
from opentrn.nki.classic.indexing import Index, Mask
from opentrn.nki.classic.operations import PSUM, SBUF, hold, operand
from opentrn.nki.classic.tile import Tile, box_of, dtype_or
from opentrn.nki.dtypes import name_of
from opentrn.nki.language_ops import on_sbuf
from opentrn.nki.tensor import NkiTensor
from opentrn.nki.tracing import active


def pattern_of(index: Index) -> tuple[list[list[int]], int, int, tuple[int, ...]]:
    """(free pattern, offset, channel multiplier, shape) of an index expression. Raises UnsupportedError."""
    if index.coefs is None:
        raise UnsupportedError("an index with // or % is no affine pattern")
    dims = index.dims if index.ndim > 1 else (*index.dims, 1)
    coefs = index.coefs if index.ndim > 1 else (*index.coefs, 0)
    free = [[factor, size] for factor, size in zip(coefs[1:], dims[1:], strict=True)]
    return free, index.const, coefs[0], dims


def iota(expr: Index, dtype: Any, mask: Any = None) -> Tile:
    """The values of an index expression."""
    tracer = active()
    pattern, offset, multiplier, shape = pattern_of(expr)
    return hold(
        tracer,
        lambda dst: tracer.emit(
            "iota",
            dst=tracer.write(dst),
            pattern=pattern,
            offset=offset,
            channel_multiplier=multiplier,
            name=None,
        ),
        shape,
        name_of(dtype),
        True,
    )


def affine_select(
    pred: Mask, on_true_tile: Tile, on_false_value: Any, mask: Any = None, dtype: Any = None
) -> Tile:
    """Select by a comparison of indices."""
    tracer = active()
    if not isinstance(pred, Mask) or pred.affine is None:
        raise UnsupportedError("affine_select needs one comparison of affine indices as pred")
    shape = on_true_tile.shape
    box = box_of(mask, shape)
    source = operand(on_true_tile, shape, box)
    affine = pred.affine
    if affine.coefs is None:
        raise UnsupportedError("affine_select needs an affine comparison")
    coefs = (0,) * (len(shape) - affine.ndim) + affine.coefs
    selected = box or [(0, size) for size in shape]
    free = [[factor, size] for factor, (_, size) in zip(coefs[1:], selected[1:], strict=True)]
    offset = affine.const + sum(factor * start for factor, (start, _) in zip(coefs, selected, strict=True))
    out, fixed = dtype_or(dtype, source.dtype)

    def emit(dst: NkiTensor) -> None:
        data = source if source.buffer is SBUF else on_sbuf(tracer, source)
        target = dst
        if dst.buffer is PSUM:
            target = tracer.allocate(dst.shape, dst.dtype, SBUF, "selected", None)
        tracer.emit(
            "affine_select",
            dst=tracer.write(target),
            pattern=free,
            channel_multiplier=coefs[0],
            on_true_tile=tracer.read(data),
            on_false_value=tracer.scalar(on_false_value),
            cmp_op=pred.comparison,
            offset=offset,
            name=None,
        )
        if target is not dst:
            tracer.emit(
                "tensor_copy", dst=tracer.write(dst), src=tracer.read(target), engine="unknown", name=None
            )

    return hold(tracer, emit, shape, out, fixed, box)
