"""`nki.language`: creation, element-wise math, reductions and the other high-level functions.

Every math function is two things: an operation token for `nki.isa` (compared by identity) and a function
that allocates a result tile and records the instruction for it. The engine is the one the public tables
give: functions of the Scalar engine's list go through `activation`, the rest through the Vector engine.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from opentrn.errors import UnsupportedError
from opentrn.nki.dtypes import ITEMSIZE, is_float, name_of
from opentrn.nki.enums import MemoryRegion
from opentrn.nki.tensor import DynamicSlice, NkiTensor
from opentrn.nki.tracing import active

_SBUF = MemoryRegion.sbuf
_RANK = {"bool": 0, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 3, "int32": 3}


def ndarray(shape: Any, dtype: Any, buffer: Any = _SBUF, name: str = "", address: Any = None) -> NkiTensor:
    """A new tensor with undefined contents. address: (start partition, byte offset) pins it on chip."""
    return active().allocate(shape, dtype, buffer, name, address, bool(name))


def full(shape: Any, fill_value: Any, dtype: Any, buffer: Any = _SBUF, name: str = "") -> NkiTensor:
    """A new tensor filled with one value."""
    tracer = active()
    result = tracer.allocate(shape, dtype, buffer, name, None, bool(name))
    if result._storage.on_chip:
        tracer.emit(
            "memset", dst=tracer.write(result), value=tracer.scalar(fill_value), engine="unknown", name=None
        )
        return result
    flat = result.reshape((1, result.size))
    step = 4096
    tile = tracer.allocate((1, builtins.min(step, result.size)), dtype, _SBUF, "fill", None)
    tracer.emit(
        "memset", dst=tracer.write(tile), value=tracer.scalar(fill_value), engine="unknown", name=None
    )
    for start in range(0, result.size, step):
        count = builtins.min(step, result.size - start)
        tracer.emit(
            "dma_copy", dst=tracer.write(flat[:, start : start + count]), src=tracer.read(tile[:, 0:count])
        )
    return result


def zeros(shape: Any, dtype: Any, buffer: Any = _SBUF, name: str = "") -> NkiTensor:
    """A new tensor of zeros."""
    return full(shape, 0 if not is_float(name_of(dtype)) else 0.0, dtype, buffer, name)


def ones(shape: Any, dtype: Any, buffer: Any = _SBUF, name: str = "") -> NkiTensor:
    """A new tensor of ones."""
    return full(shape, 1 if not is_float(name_of(dtype)) else 1.0, dtype, buffer, name)


def empty_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """A new tensor of the same shape."""
    return ndarray(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def zeros_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """A new tensor of zeros of the same shape."""
    return zeros(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def rand(shape: Any, dtype: Any, buffer: Any = _SBUF, name: str = "") -> NkiTensor:
    """Uniform random numbers in [0, 1): 16 random bits, scaled (the recipe of `nisa.rng`'s documentation)."""
    tracer = active()
    bits = tracer.allocate(shape, "uint16", _SBUF, "random_bits", None)
    result = tracer.allocate(shape, dtype, buffer, name, None)
    tracer.emit("rng", dst=tracer.write(bits), engine="unknown", name=None)
    tracer.emit(
        "tensor_scalar",
        dst=tracer.write(result),
        data=tracer.read(bits),
        op0="multiply",
        operand0=1.0 / 65536.0,
        engine="vector",
        name=None,
    )
    return result


def random_seed(seed: Any) -> None:
    """Seed `rand` with a [1, 1] tensor."""
    tracer = active()
    tracer.locate()
    tracer.emit("set_rng_seed", src_seeds=tracer.read(seed), name=None)


def shared_constant(constant: Any) -> NkiTensor:
    """Constant data in HBM: an array or the path of a .npy file."""
    array = np.load(constant) if isinstance(constant, str) else np.asarray(constant)
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    if array.dtype == np.int64:
        array = array.astype(np.int32)
    return active().constant(array)


def shared_identity_matrix(n: int, dtype: Any = "uint8", dst: Any = None) -> NkiTensor:
    """An identity matrix; one per data type and size is kept in SBUF."""
    tracer = active()
    tracer.locate()
    return tracer.identity(int(n), name_of(dtype), dst)


# -- memory --------------------------------------------------------------------------------------------
def ds(start: Any, size: int) -> DynamicSlice:
    """A slice of `size` elements from `start`, which may be a runtime integer."""
    return DynamicSlice(start, size)


def load(src: Any, dtype: Any = None) -> NkiTensor:
    """HBM to a new SBUF tile."""
    tracer = active()
    shape = src.shape if len(src.shape) > 1 else (*src.shape, 1)
    result = tracer.allocate(shape, dtype or src.dtype, _SBUF, "load", None)
    tracer.emit("dma_copy", dst=tracer.write(result), src=tracer.read(src))
    return result


def store(dst: Any, value: Any) -> None:
    """SBUF to HBM."""
    tracer = active()
    tracer.locate()
    if getattr(value, "buffer", None) is MemoryRegion.psum:
        value = on_sbuf(tracer, value)
    tracer.emit("dma_copy", dst=tracer.write(dst), src=tracer.read(value))


def load_transpose2d(src: Any, dtype: Any = None) -> NkiTensor:
    """HBM to a new SBUF tile, transposed."""
    tracer = active()
    rows, columns = src.shape
    result = tracer.allocate((columns, rows), dtype or src.dtype, _SBUF, "load_transpose2d", None)
    flipped = NkiTensor(src._storage, src.dtype, src.offset, (src._steps[1], src._steps[0]), (columns, rows))
    tracer.emit("dma_copy", dst=tracer.write(result), src=tracer.read(flipped))
    return result


def copy(x: Any, dtype: Any = None) -> NkiTensor:
    """A copy in the same memory, through the Scalar engine."""
    tracer = active()
    result = tracer.allocate(x.shape, dtype or x.dtype, x.buffer, "copy", None)
    tracer.emit("activation", dst=tracer.write(result), op="copy", data=tracer.read(x), scale=1.0, name=None)
    return result


def on_sbuf(tracer: Any, x: NkiTensor) -> NkiTensor:
    """A copy of a tile in SBUF."""
    result = tracer.allocate(x.shape, x.dtype, _SBUF, "copy", None)
    tracer.emit("tensor_copy", dst=tracer.write(result), src=tracer.read(x), engine="unknown", name=None)
    return result


# -- element-wise ----------------------------------------------------------------------------------------
def promoted(x: Any, y: Any) -> str:
    """The result type of two operands: floats win over integers, then the wider; scalars do not count."""
    if not isinstance(y, NkiTensor):
        return x.dtype
    if not isinstance(x, NkiTensor):
        return y.dtype
    if x.dtype == y.dtype:
        return x.dtype
    fx, fy = is_float(x.dtype), is_float(y.dtype)
    if fx != fy:
        return x.dtype if fx else y.dtype
    if fx:
        if {x.dtype, y.dtype} == {"bfloat16", "float16"}:
            return "float32"
        return x.dtype if ITEMSIZE[x.dtype] >= ITEMSIZE[y.dtype] else y.dtype
    return x.dtype if _RANK.get(x.dtype, 9) >= _RANK.get(y.dtype, 9) else y.dtype


def _binary_result(name: str, x: Any, y: Any, dtype: Any) -> NkiTensor:
    tracer = active()
    x_tile, y_tile = isinstance(x, NkiTensor), isinstance(y, NkiTensor)
    if not x_tile and not y_tile:
        raise UnsupportedError(f"nl.{name} needs a tile; {x!r} and {y!r} are numbers", where=tracer.where)
    out = dtype or promoted(x, y)
    if x_tile and y_tile:
        return _tile_tile(tracer, name, x, y, out)
    tile, number, reverse = (x, y, False) if x_tile else (y, x, True)
    result = tracer.allocate(tile.shape, out, _SBUF, name, None)
    tracer.emit(
        "tensor_scalar",
        dst=tracer.write(result),
        data=tracer.read(tile),
        op0=name,
        operand0=tracer.scalar(number),
        reverse0=reverse,
        engine="unknown",
        name=None,
    )
    return result


def _tile_tile(tracer: Any, name: str, x: NkiTensor, y: NkiTensor, out: str) -> NkiTensor:
    rank = builtins.max(x.ndim, y.ndim)
    x, y = _with_rank(x, rank), _with_rank(y, rank)
    shape = np.broadcast_shapes(x.shape, y.shape)
    result = tracer.allocate(shape, out, _SBUF, name, None)
    if (
        x.shape == shape
        and math.prod(y.shape[1:]) == 1
        and y.shape[0] == shape[0]
        and math.prod(shape[1:]) > 1
    ):
        tracer.emit(
            "tensor_scalar",
            dst=tracer.write(result),
            data=tracer.read(x),
            op0=name,
            operand0=tracer.read(_column(y)),
            reverse0=False,
            engine="unknown",
            name=None,
        )
        return result
    if (
        y.shape == shape
        and math.prod(x.shape[1:]) == 1
        and x.shape[0] == shape[0]
        and math.prod(shape[1:]) > 1
    ):
        tracer.emit(
            "tensor_scalar",
            dst=tracer.write(result),
            data=tracer.read(y),
            op0=name,
            operand0=tracer.read(_column(x)),
            reverse0=True,
            engine="unknown",
            name=None,
        )
        return result
    x, y = broadcast_view(tracer, x, shape), broadcast_view(tracer, y, shape)
    if x.buffer is MemoryRegion.psum and y.buffer is MemoryRegion.psum:
        y = on_sbuf(tracer, y)
    tracer.emit(
        "tensor_tensor",
        dst=tracer.write(result),
        data1=tracer.read(x),
        data2=tracer.read(y),
        op=name,
        engine="unknown",
        name=None,
    )
    return result


def _column(x: NkiTensor) -> NkiTensor:
    return NkiTensor(x._storage, x.dtype, x.offset, (x._steps[0], 1), (x._counts[0], 1))


def _with_rank(x: NkiTensor, rank: int) -> NkiTensor:
    while x.ndim < rank:
        x = x.expand(1)
    return x


def broadcast_view(tracer: Any, x: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    """`x` repeated to `shape`: free dimensions by stride 0, partitions by a DMA."""
    if x.shape == shape:
        return x
    if x.shape[0] != shape[0]:
        wide = tracer.allocate((shape[0], *x.shape[1:]), x.dtype, _SBUF, "broadcast", None)
        source = x if x.buffer is not MemoryRegion.psum else on_sbuf(tracer, x)
        repeated = NkiTensor(
            source._storage, source.dtype, source.offset, (0, *source._steps[1:]), wide.shape
        )
        tracer.emit("dma_copy", dst=tracer.write(wide), src=tracer.read(repeated))
        x = wide
    steps = tuple(
        0 if have == 1 and want != 1 else step
        for step, have, want in zip(x._steps, x._counts, shape, strict=True)
    )
    return NkiTensor(x._storage, x.dtype, x.offset, steps, tuple(shape))


def _unary_result(name: str, x: Any, dtype: Any, engine: str) -> NkiTensor:
    tracer = active()
    result = tracer.allocate(x.shape, dtype or x.dtype, _SBUF, name, None)
    if engine == "scalar":
        tracer.emit(
            "activation", dst=tracer.write(result), op=name, data=tracer.read(x), scale=1.0, name=None
        )
    elif engine == "reciprocal":
        tracer.emit("reciprocal", dst=tracer.write(result), data=tracer.read(x), name=None)
    else:
        raise AssertionError(engine)
    return result


def _binary(name: str, documentation: str) -> Callable[..., NkiTensor]:
    def operation(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
        return _binary_result(name, x, y, dtype)

    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = documentation
    operation.nki_op = name  # type: ignore[attr-defined]
    return operation


def _unary(name: str, documentation: str, engine: str = "scalar") -> Callable[..., NkiTensor]:
    def operation(x: Any, dtype: Any = None) -> NkiTensor:
        return _unary_result(name, x, dtype, engine)

    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = documentation
    operation.nki_op = name  # type: ignore[attr-defined]
    return operation


BINARY = {
    "add": "x + y",
    "subtract": "x - y",
    "multiply": "x * y",
    "divide": "x / y",
    "maximum": "max(x, y)",
    "minimum": "min(x, y)",
    "power": "x ** y",
    "mod": "x mod y, with the sign of y",
    "fmod": "remainder of x / y, with the sign of x",
    "equal": "x == y",
    "not_equal": "x != y",
    "less": "x < y",
    "less_equal": "x <= y",
    "greater": "x > y",
    "greater_equal": "x >= y",
    "logical_and": "x and y",
    "logical_or": "x or y",
    "logical_xor": "x xor y",
    "bitwise_and": "x & y",
    "bitwise_or": "x | y",
    "bitwise_xor": "x ^ y",
    "left_shift": "x << y",
    "right_shift": "x >> y, logical",
    "arithmetic_shift_right": "x >> y, with the sign",
    "abs_max": "max(|x|, |y|)",
    "abs_min": "min(|x|, |y|)",
}
UNARY = {
    "exp": "e ** x",
    "log": "natural logarithm",
    "square": "x * x",
    "sqrt": "square root",
    "rsqrt": "1 / sqrt(x)",
    "abs": "|x|",
    "sign": "sign of x",
    "sigmoid": "logistic function",
    "relu": "max(x, 0)",
    "gelu": "GELU",
    "gelu_dx": "derivative of GELU",
    "gelu_apprx_tanh": "GELU, tanh form",
    "gelu_apprx_sigmoid": "GELU, sigmoid form",
    "gelu_apprx_sigmoid_dx": "derivative of the sigmoid form",
    "silu": "x * sigmoid(x)",
    "silu_dx": "derivative of silu",
    "tanh": "hyperbolic tangent",
    "softplus": "log(1 + e ** x)",
    "mish": "x * tanh(softplus(x))",
    "erf": "error function",
    "erf_dx": "derivative of the error function",
    "sin": "sine",
    "cos": "cosine",
    "tan": "tangent",
    "arctan": "inverse tangent",
    "ceil": "smallest integer >= x",
    "floor": "largest integer <= x",
    "trunc": "integer part",
    "reciprocal": "1 / x",
    "negative": "-x",
    "logical_not": "not x",
    "invert": "bitwise complement",
}
OPERATIONS: dict[str, Callable[..., NkiTensor]] = {name: _binary(name, text) for name, text in BINARY.items()}
OPERATIONS.update({name: _unary(name, text) for name, text in UNARY.items()})
copy.nki_op = "copy"  # type: ignore[attr-defined]


def _composed(name: str) -> Callable[[Callable[..., NkiTensor]], Callable[..., NkiTensor]]:
    """Replace the generated function of an operation that the engines have under another form only."""

    def register(function: Callable[..., NkiTensor]) -> Callable[..., NkiTensor]:
        function.__name__ = function.__qualname__ = name
        function.__doc__ = UNARY[name]
        function.nki_op = name  # type: ignore[attr-defined]
        OPERATIONS[name] = function
        return function

    return register


@_composed("negative")
def _negative(x: Any, dtype: Any = None) -> NkiTensor:
    return _binary_result("multiply", x, -1 if not is_float(x.dtype) else -1.0, dtype)


@_composed("logical_not")
def _logical_not(x: Any, dtype: Any = None) -> NkiTensor:
    return _binary_result("equal", x, 0.0, dtype)


@_composed("invert")
def _invert(x: Any, dtype: Any = None) -> NkiTensor:
    return _binary_result("bitwise_xor", x, -1, dtype)


@_composed("reciprocal")
def _reciprocal(x: Any, dtype: Any = None) -> NkiTensor:
    return _unary_result("reciprocal", x, dtype, "reciprocal")


def _fmod(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    whole = _unary_result("trunc", _binary_result("divide", x, y, "float32"), "float32", "scalar")
    return _binary_result(
        "subtract", x, _binary_result("multiply", whole, y, "float32"), dtype or promoted(x, y)
    )


_fmod.__name__ = _fmod.__qualname__ = _fmod.nki_op = "fmod"  # type: ignore[attr-defined]
_fmod.__doc__ = BINARY["fmod"]
OPERATIONS["fmod"] = _fmod


# -- reductions ----------------------------------------------------------------------------------------------
def _axes(x: NkiTensor, axis: Any) -> tuple[int, ...]:
    axes = (axis,) if isinstance(axis, (int, np.integer)) else tuple(axis)
    return tuple(sorted(a if a >= 0 else a + x.ndim for a in axes))


def reduced(op: str, x: NkiTensor, axis: Any, dtype: Any, keepdims: bool, negate: bool = False) -> NkiTensor:
    """Reduce free dimensions into a new tile (kept as size 1 where fewer than two would remain)."""
    tracer = active()
    axes = _axes(x, axis)
    kept = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
    result = tracer.allocate(kept, dtype or x.dtype, _SBUF, op, None)
    tracer.emit(
        "tensor_reduce",
        dst=tracer.write(result),
        op=op,
        data=tracer.read(x),
        axis=axes,
        negate=negate,
        keepdims=True,
        name=None,
    )
    if keepdims:
        return result
    shape = tuple(n for a, n in enumerate(x.shape) if a not in axes)
    return result.reshape(shape if len(shape) > 1 else (*shape, 1))


def sum(x: Any, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Sum along free dimensions."""
    return reduced("add", x, axis, dtype, keepdims)


def prod(x: Any, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Product along free dimensions."""
    return reduced("multiply", x, axis, dtype, keepdims)


def max(x: Any, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Maximum along free dimensions."""
    return reduced("maximum", x, axis, dtype, keepdims)


def min(x: Any, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Minimum along free dimensions."""
    return reduced("minimum", x, axis, dtype, keepdims)


def all(x: Any, axis: Any, dtype: Any = None) -> NkiTensor:
    """1 where all elements along the free dimensions are nonzero."""
    return reduced("minimum", OPERATIONS["not_equal"](x, 0.0), axis, dtype, False)


def mean(x: Any, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Mean along free dimensions, with float32 intermediates."""
    count = math.prod(x.shape[a] for a in _axes(x, axis))
    total = reduced("add", x, axis, "float32", keepdims)
    return _binary_result("multiply", total, 1.0 / count, dtype or x.dtype)


def var(x: Any, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Variance along free dimensions; the reduced dimensions always stay as size 1."""
    count = math.prod(x.shape[a] for a in _axes(x, axis))
    center = _binary_result("multiply", reduced("add", x, axis, "float32", True), 1.0 / count, "float32")
    apart = _binary_result("subtract", x, center, "float32")
    total = reduced("add", _unary_result("square", apart, "float32", "scalar"), axis, "float32", True)
    return _binary_result("multiply", total, 1.0 / count, dtype or x.dtype)


for _name, _function in (
    ("max", max),
    ("min", min),
    ("sum", sum),
    ("prod", prod),
    ("all", all),
    ("mean", mean),
):
    _function.nki_op = _name  # type: ignore[attr-defined]
