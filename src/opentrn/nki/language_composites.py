"""`nki.language`: functions of several instructions, printing, and the launch grid."""

from __future__ import annotations

import math
from typing import Any

from opentrn.nki.dtypes import name_of
from opentrn.nki.enums import MemoryRegion
from opentrn.nki.language_ops import (
    _binary_result,
    _unary_result,
    _with_rank,
    broadcast_view,
    copy,
    on_sbuf,
    promoted,
    reduced,
)
from opentrn.nki.tensor import NkiTensor
from opentrn.nki.tracing import active

_SBUF = MemoryRegion.sbuf


def softmax(x: Any, axis: Any = -1, dtype: Any = None) -> NkiTensor:
    """Softmax along free dimensions."""
    top = reduced("maximum", x, axis, "float32", True)
    apart = _binary_result("subtract", x, top, "float32")
    powers = _unary_result("exp", apart, "float32", "scalar")
    total = reduced("add", powers, axis, "float32", True)
    inverse = _unary_result("reciprocal", total, "float32", "reciprocal")
    return _binary_result("multiply", powers, inverse, dtype or x.dtype)


def rms_norm(
    x: Any, w: Any, axis: Any, n: int, epsilon: float = 1e-6, dtype: Any = None, compute_dtype: Any = None
) -> NkiTensor:
    """``x / sqrt(sum(x ** 2) / n + epsilon) * w``."""
    compute = compute_dtype or "float32"
    squares = _unary_result("square", x, compute, "scalar")
    total = reduced("add", squares, axis, compute, True)
    tracer = active()
    shifted = tracer.allocate(total.shape, compute, _SBUF, "mean_square", None)
    tracer.emit(
        "tensor_scalar",
        dst=tracer.write(shifted),
        data=tracer.read(total),
        op0="multiply",
        operand0=1.0 / n,
        op1="add",
        operand1=float(epsilon),
        engine="vector",
        name=None,
    )
    scale = _unary_result("rsqrt", shifted, compute, "scalar")
    normed = _binary_result("multiply", x, scale, compute)
    return _binary_result("multiply", normed, w, dtype or x.dtype)


def matmul(x: Any, y: Any, transpose_x: bool = False) -> NkiTensor:
    """x @ y (x.T @ y with transpose_x) into PSUM."""
    tracer = active()
    if not transpose_x:
        flipped = _transposed(tracer, x)
        x = on_sbuf(tracer, flipped) if flipped.buffer is MemoryRegion.psum else flipped
    result = tracer.allocate((x.shape[1], y.shape[1]), "float32", MemoryRegion.psum, "matmul", None)
    tracer.emit(
        "nc_matmul", dst=tracer.write(result), stationary=tracer.read(x), moving=tracer.read(y), name=None
    )
    return result


def _transposed(tracer: Any, x: NkiTensor, dtype: Any = None) -> NkiTensor:
    rows, columns = x.shape[0], math.prod(x.shape[1:])
    if x.buffer is MemoryRegion.psum:
        x = on_sbuf(tracer, x)
    result = tracer.allocate((columns, rows), x.dtype, MemoryRegion.psum, "transpose", None)
    tracer.emit("nc_transpose", dst=tracer.write(result), data=tracer.read(x), engine="tensor", name=None)
    return result


def transpose(x: Any, dtype: Any = None) -> NkiTensor:
    """Swap the partition and the free dimension of a tile."""
    result = _transposed(active(), x)
    return result if dtype is None or name_of(dtype) == result.dtype else copy(result, dtype)


def where(condition: Any, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """Elements of x where the condition is nonzero, of y elsewhere."""
    tracer = active()
    out = dtype or promoted(x, y)
    shape = condition.shape
    result = tracer.allocate(shape, out, _SBUF, "where", None)
    predicate = condition
    if condition.dtype not in ("uint8", "uint16", "uint32"):
        predicate = tracer.allocate(shape, "uint8", _SBUF, "predicate", None)
        tracer.emit(
            "tensor_scalar",
            dst=tracer.write(predicate),
            data=tracer.read(condition),
            op0="not_equal",
            operand0=0.0,
            engine="vector",
            name=None,
        )
    for value, reverse in ((x, False), (y, True)):
        if isinstance(value, NkiTensor):
            value = broadcast_view(tracer, _with_rank(value, len(shape)), shape)
            if value.dtype != result.dtype:
                cast = tracer.allocate(shape, result.dtype, _SBUF, "cast", None)
                tracer.emit(
                    "tensor_copy", dst=tracer.write(cast), src=tracer.read(value), engine="unknown", name=None
                )
                value = cast
        tracer.emit(
            "tensor_copy_predicated",
            dst=tracer.write(result),
            src=tracer.scalar(value),
            predicate=tracer.read(predicate),
            reverse_pred=reverse,
            name=None,
        )
    return result


def dropout(x: Any, rate: Any, dtype: Any = None) -> NkiTensor:
    """Replace elements by zero with probability `rate`."""
    tracer = active()
    result = tracer.allocate(x.shape, dtype or x.dtype, _SBUF, "dropout", None)
    tracer.emit("dropout", dst=tracer.write(result), data=tracer.read(x), prob=tracer.scalar(rate), name=None)
    return result


def gather_flattened(data: Any, indices: Any, axis: int = 0, dtype: Any = None) -> NkiTensor:
    """Elements of each partition of `data` at the flattened positions `indices`."""
    tracer = active()
    result = tracer.allocate(indices.shape, data.dtype, _SBUF, "gather", None)
    if indices.dtype != "uint32":
        cast = tracer.allocate(indices.shape, "uint32", _SBUF, "indices", None)
        tracer.emit(
            "tensor_copy", dst=tracer.write(cast), src=tracer.read(indices), engine="unknown", name=None
        )
        indices = cast
    tracer.emit(
        "nc_n_gather",
        dst=tracer.write(result),
        data=tracer.read(data),
        indices=tracer.read(indices),
        name=None,
    )
    return result if dtype is None or name_of(dtype) == result.dtype else copy(result, dtype)


def broadcast_to(x: Any, shape: Any, dtype: Any = None) -> NkiTensor:
    """A tile of `shape` that repeats dimensions of size 1."""
    tracer = active()
    shape = tuple(int(n) for n in shape)
    if x.shape == shape and (dtype is None or name_of(dtype) == x.dtype):
        return x
    result = tracer.allocate(shape, dtype or x.dtype, _SBUF, "broadcast", None)
    tracer.emit(
        "tensor_copy",
        dst=tracer.write(result),
        src=tracer.read(broadcast_view(tracer, x, shape)),
        engine="unknown",
        name=None,
    )
    return result


def expand_dims(x: Any, axis: int) -> NkiTensor:
    """A view with a new dimension of size 1."""
    return x.expand(axis)


def device_print(print_prefix: str, tensor: Any) -> None:
    """Print a tile's values when the kernel runs."""
    tracer = active()
    tracer.locate()
    tracer.emit("device_print", prefix=str(print_prefix), src=tracer.read(tensor))


# -- the launch grid --------------------------------------------------------------------------------------
def program_id(axis: int = 0) -> int:
    """This program's place along an axis of the launch grid."""
    tracer = active()
    tracer.asked_for_place = True
    return tracer.place[axis] if axis < len(tracer.place) else 0


def num_programs(axes: Any = 0) -> int:
    """Programs along the given axes of the launch grid."""
    tracer = active()
    if axes is None:
        return math.prod(tracer.grid)
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    return math.prod(tracer.grid[a] if a < len(tracer.grid) else 1 for a in axes)


def program_ndim() -> int:
    """Dimensions of the launch grid; 0 without one."""
    return active().grid_rank


class no_reorder:
    """Keep program order in a block. Modern kernels always do, so it only refuses dynamic loops there; of a
    classic kernel with such a block the whole runs as written."""

    def __enter__(self) -> no_reorder:
        tracer = active()
        tracer.in_no_reorder += 1
        tracer.kept_order = True
        return self

    def __exit__(self, *details: object) -> None:
        active().in_no_reorder -= 1
