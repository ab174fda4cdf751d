"""`neuronxcc.nki.language`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes as _ml
import numpy as np

from opentrn.errors import UnsupportedError
from opentrn.nki import language_composites as _composites
from opentrn.nki import language_ops as _modern
from opentrn.nki import tile_sizes as _tile_sizes
from opentrn.nki.classic import allocation as _allocation
from opentrn.nki.classic import operations as _ops
from opentrn.nki.classic.grid import nc, spmd_dim
from opentrn.nki.classic.indexing import arange, mgrid
from opentrn.nki.classic.starfish import static_cast
from opentrn.nki.classic.tile import Tile, assign, flush, par_dim
from opentrn.nki.dtypes import host_type as _host_type
from opentrn.nki.dtypes import name_of as _name_of
from opentrn.nki.enums import MemoryRegion
from opentrn.nki.registers import static_range as _unrolled_range
from opentrn.nki.tensor import DynamicSlice
from opentrn.nki.tracing import active, active_or_none

float32, float16 = np.float32, np.float16
bfloat16 = np.dtype(_ml.bfloat16)
float8_e4m3, float8_e5m2 = np.dtype(_ml.float8_e4m3), np.dtype(_ml.float8_e5m2)
tfloat32 = "tfloat32"
int8, int16, int32 = np.int8, np.int16, np.int32
uint8, uint16, uint32 = np.uint8, np.uint16, np.uint32
bool_ = np.bool_
sbuf, psum = MemoryRegion.sbuf, MemoryRegion.psum
private_hbm, shared_hbm = MemoryRegion.private_hbm, MemoryRegion.shared_hbm
hbm = private_hbm
tile_size = _tile_sizes.tile_size
program_id, num_programs, program_ndim = (
    _composites.program_id,
    _composites.num_programs,
    _composites.program_ndim,
)
no_reorder = _composites.no_reorder


class fp32:
    """Limits of float32."""

    min = float(np.finfo(np.float32).min)
    max = float(np.finfo(np.float32).max)


class bfp16:
    """Limits of bfloat16."""

    min = float(_ml.finfo(_ml.bfloat16).min)
    max = float(_ml.finfo(_ml.bfloat16).max)


def finfo(dtype: Any) -> Any:
    """Limits of a floating-point type, as `numpy.finfo`."""
    info = _ml.finfo(_host_type(_name_of(dtype)))

    class _Limits:
        min, max, eps, tiny = float(info.min), float(info.max), float(info.eps), float(info.tiny)

    return _Limits


# -- loops ---------------------------------------------------------------------------------------------
class LoopIndex(int):
    """The variable of a loop: an integer that knows whether this is its first iteration."""

    first: bool
    loop: int

    def __new__(cls, value: int, first: bool, loop: int) -> LoopIndex:
        self = super().__new__(cls, value)
        self.first, self.loop = first, loop
        return self


def sequential_range(*bounds: Any, **_: Any) -> Iterator[LoopIndex]:
    """Iterations of a loop. Unrolled, with the first one's addresses."""
    tracer = active_or_none()
    if tracer is None:
        yield from _indices(bounds, 0)
        return
    tracer.loop_count += 1
    placements = _allocation.LoopPlacements()
    tracer.loop_placements.append(placements)
    try:
        for index in _indices(bounds, tracer.loop_count):
            if not index.first:
                placements.again()
            placements.index, placements.number = int(index), index.loop
            yield index
    finally:
        tracer.loop_placements.remove(placements)


def static_range(*bounds: Any, **_: Any) -> Iterator[LoopIndex]:
    """Iterations that the kernel itself unrolls."""
    return _indices(bounds, 0)


def _indices(bounds: tuple[Any, ...], number: int) -> Iterator[LoopIndex]:
    start, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    first = True
    for value in _unrolled_range(int(start), int(stop), int(step)):
        yield LoopIndex(value, first, number)
        first = False


def affine_range(*bounds: Any, **_: Any) -> Iterator[LoopIndex]:
    """As `sequential_range`; no iteration may need what an earlier one wrote, but accumulations may.

    Values are those of iterations in order. What one carries to the next is found where the trace ends: a
    warning, or in checked calls UndefinedBehaviourError.
    """
    tracer = active_or_none()
    if tracer is None:
        yield from _indices(bounds, 0)
        return
    flush(tracer)
    tracer.locate()
    tracer.builder.affine_begin()
    try:
        for index in sequential_range(*bounds):
            flush(tracer)
            tracer.builder.affine_iteration()
            yield index
        flush(tracer)
    finally:
        tracer.builder.affine_end()


def loop_reduce(x: Tile, op: Any, loop_indices: Any, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    """Reduce a tile over the iterations of enclosing loops; the result is complete after the loops.

    The first iteration copies the tile to the destination, the others accumulate there.
    """
    from opentrn.nki.isa_common import classic_reduction_name as reduction_name

    tracer = active()
    indices = list(loop_indices) if isinstance(loop_indices, (list, tuple)) else [loop_indices]
    key = _sum_of_loops(tracer, indices)
    kept = tracer.loop_sums.get(key)
    if kept is None or builtin_all(getattr(index, "first", False) for index in indices):
        tracer.loop_sums[key] = kept = _ops.copy(x, dtype=dtype, mask=mask)
        return kept
    assign(kept, _ops.binary(str(reduction_name(op)), kept, x, dtype=kept.dtype, mask=mask))
    flush(tracer)
    return kept


def _sum_of_loops(tracer: Any, indices: list[Any]) -> Any:
    """The key of a sum: its line, the loops that it runs over by their depths (an inner loop begins anew in
    every iteration of an outer one), and the iteration of the other loops."""
    numbers = {getattr(index, "loop", 0) for index in indices}
    loops = tracer.loop_placements
    over = tuple(depth for depth, loop in enumerate(loops) if loop.number in numbers)
    others = tuple(loop.index for loop in loops if loop.number not in numbers)
    line = tracer.user_line()
    return over, others, line, loops[-1].times(line) if loops else 0


def builtin_all(values: Any) -> bool:
    """Python's `all`, which this module's namespace hides."""
    return not [value for value in values if not value]


# -- creation -----------------------------------------------------------------------------------------------
def ndarray(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Tile:
    """A new tensor. One dimension may be `nl.par_dim`; those before it are blocks."""
    flush(active())
    return _allocation.allocate(shape, _name_of(dtype), buffer if buffer is not None else sbuf, name)


def full(shape: Any, fill_value: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Tile:
    """A new tensor filled with one value."""
    tile = ndarray(shape, dtype, buffer=buffer, name=name)
    _allocation.fill(tile, fill_value)
    return tile


def zeros(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Tile:
    """A new tensor of zeros; in PSUM the first matmul's overwrite stands for them."""
    return full(shape, 0.0, dtype, buffer=buffer, name=name)


def ones(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Tile:
    """A new tensor of ones."""
    return full(shape, 1.0, dtype, buffer=buffer, name=name)


def empty_like(a: Tile, dtype: Any = None, *, buffer: Any = None, name: str = "", **_: Any) -> Tile:
    """A new tensor of the same shape."""
    return ndarray(a.shape, dtype if dtype is not None else a.dtype, buffer=buffer or a.buffer, name=name)


def zeros_like(a: Tile, dtype: Any = None, *, buffer: Any = None, name: str = "", **_: Any) -> Tile:
    """A new tensor of zeros of the same shape."""
    return zeros(a.shape, dtype if dtype is not None else a.dtype, buffer=buffer or a.buffer, name=name)


def rand(shape: Any, dtype: Any = np.float32, **_: Any) -> Tile:
    """Uniform random numbers in [0, 1)."""
    flush(active())
    return Tile(_modern.rand(tuple(int(n) for n in shape), _name_of(dtype)))


def random_seed(seed: Any, *, mask: Any = None, **_: Any) -> None:
    """Seed the random generator with a [1, 1] tile or a number."""
    tracer = active()
    if not isinstance(seed, Tile):
        seed = full((1, 1), int(seed), np.int32)
    view = seed.as_nki_tensor()
    flush(tracer)
    tracer.emit("set_rng_seed", src_seeds=tracer.read(view), name=None)


def shared_constant(constant: Any, dtype: Any = None, **_: Any) -> Tile:
    """Constant data in HBM."""
    array = np.asarray(constant)
    if dtype is not None:
        array = array.astype(_host_type(_name_of(dtype)))
    flush(active())
    return Tile(active().constant(array))


def shared_identity_matrix(n: int, dtype: Any = np.uint8, **_: Any) -> Tile:
    """An identity matrix in HBM."""
    return shared_constant(np.eye(int(n), dtype=np.float32), dtype)


def ds(start: Any, size: int) -> DynamicSlice:
    """A slice of `size` elements from `start`."""
    return DynamicSlice(int(start), int(size))


# -- memory --------------------------------------------------------------------------------------------------
def load(src: Tile, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    """HBM to SBUF."""
    return _ops.load(src, dtype, mask)


def store(dst: Tile, value: Any, *, mask: Any = None, **_: Any) -> None:
    """SBUF to HBM."""
    _ops.store(dst, value, mask)


def load_transpose2d(src: Tile, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    """HBM to SBUF, transposed."""
    view = src.as_nki_tensor()
    return _ops.load(
        Tile(view._with((view._steps[1], view._steps[0]), (view._counts[1], view._counts[0]))), dtype, mask
    )


def copy(src: Tile, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    """A copy of a tile (HBM to HBM by DMA)."""
    return _ops.copy(src, dtype, mask) if src.on_chip else _ops.load(src, dtype, mask)


def atomic_rmw(dst: Tile, value: Tile, op: Any, *, mask: Any = None, **_: Any) -> None:
    """Read, modify and write HBM."""
    _ops.dma_copy(dst, value, mask, dst_rmw_op=op)


def broadcast_to(src: Tile, *, shape: Any, **_: Any) -> Tile:
    """A view that repeats dimensions of size 1."""
    return _ops.broadcast_to(src, shape)


def expand_dims(data: Tile, axis: int) -> Tile:
    """A view with a new dimension of size 1."""
    return data.expand_dims(axis)


def transpose(x: Tile, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    """Swap partition and free dimension."""
    return _ops.nc_transpose(x, dtype, mask)


def matmul(x: Tile, y: Tile, *, transpose_x: bool = False, mask: Any = None, **_: Any) -> Tile:
    """x @ y into PSUM."""
    return _ops.matmul(x, y, transpose_x, mask)


def gather_flattened(data: Tile, indices: Tile, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tile:
    """Elements of each partition at flattened positions."""
    flush(active())
    return Tile(_composites.gather_flattened(data.as_nki_tensor(), indices.as_nki_tensor(), dtype=dtype))


def where(condition: Tile, x: Any, y: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    """Elements of x where the condition holds, of y elsewhere."""
    return _ops.where(condition, x, y, dtype, mask)


def dropout(x: Tile, rate: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    """Replace elements by zero with a probability."""
    box = _ops.box_of(mask, x.shape)
    source = _ops.operand(x, x.shape, box)
    out, fixed = _ops.dtype_or(dtype, source.dtype)
    probability = rate.as_nki_tensor() if isinstance(rate, Tile) else float(rate)
    return _ops.generic("dropout", x.shape, out, fixed, box, data=source, prob=probability)


def device_print(prefix: str, x: Tile, *, mask: Any = None, **_: Any) -> None:
    """Print a tile's values when the kernel runs."""
    view = x.as_nki_tensor()
    flush(active())
    _composites.device_print(prefix, view)


# -- math ------------------------------------------------------------------------------------------
def _binary(name: str) -> Callable[..., Tile]:
    def operation(x: Any, y: Any, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
        return _ops.binary(name, x, y, dtype, mask)

    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = _modern.BINARY[name]
    operation.nki_op = name  # type: ignore[attr-defined]
    return operation


def _unary(name: str) -> Callable[..., Tile]:
    def operation(x: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
        return _ops.unary(name, x, dtype, mask)

    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = _modern.UNARY[name]
    operation.nki_op = name  # type: ignore[attr-defined]
    return operation


globals().update({_name: _binary(_name) for _name in _modern.BINARY})
globals().update({_name: _unary(_name) for _name in _modern.UNARY})
copy.nki_op = "copy"  # type: ignore[attr-defined]


def _reduction(name: str, op: str) -> Callable[..., Tile]:
    def operation(
        x: Tile, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False, **_: Any
    ) -> Tile:
        return _ops.reduce(op, x, axis, dtype, mask, keepdims)

    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = f"{op} along free dimensions."
    operation.nki_op = name  # type: ignore[attr-defined]
    return operation


max, min = _reduction("max", "maximum"), _reduction("min", "minimum")
sum, prod = _reduction("sum", "add"), _reduction("prod", "multiply")
all = _reduction("all", "logical_and")


def negative(x: Tile, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    """-x"""
    return _ops.binary("multiply", x, -1.0, dtype, mask)


def logical_not(x: Tile, *, dtype: Any = bool, mask: Any = None, **_: Any) -> Tile:
    """not x"""
    return _ops.binary("equal", x, 0.0, dtype, mask)


def invert(x: Tile, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    """Bitwise complement."""
    return _ops.binary("bitwise_xor", x, -1, dtype, mask)


def reciprocal(x: Tile, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    """1 / x on the Vector engine."""
    source = x.as_nki_tensor()
    out, fixed = _ops.dtype_or(dtype, source.dtype)
    box = _ops.box_of(mask, x.shape)
    return _ops.generic("reciprocal", x.shape, out, fixed, box, data=_ops.operand(x, x.shape, box))


for _function in (negative, logical_not, invert, reciprocal):
    _function.nki_op = _function.__name__  # type: ignore[attr-defined]


def _count(x: Tile, axis: Any) -> int:
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    return math.prod(x.shape[a] for a in axes)


def mean(
    x: Tile, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False, **_: Any
) -> Tile:
    """Mean along free dimensions."""
    total = _ops.reduce("add", x, axis, np.float32, mask, keepdims)
    out = dtype if dtype is not None else x.dtype
    return _ops.binary("multiply", total, 1.0 / _count(x, axis), out, _ops.box_left(total))


mean.nki_op = "mean"  # type: ignore[attr-defined]


def var(x: Tile, axis: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tile:
    """Variance along free dimensions."""
    center = mean(x, axis, dtype=np.float32, mask=mask, keepdims=True)
    apart = _ops.binary("subtract", x, center, np.float32, mask)
    squares = _ops.unary("square", apart, np.float32, mask)
    return mean(squares, axis, dtype=dtype if dtype is not None else x.dtype, mask=mask, keepdims=True)


def softmax(
    x: Tile, axis: Any, *, dtype: Any = None, compute_dtype: Any = None, mask: Any = None, **_: Any
) -> Tile:
    """Softmax along free dimensions."""
    top = _ops.reduce("maximum", x, axis, np.float32, mask, True)
    powers = _ops.unary("exp", _ops.binary("subtract", x, top, np.float32, mask), np.float32, mask)
    total = _ops.reduce("add", powers, axis, np.float32, mask, True)
    return _ops.binary("divide", powers, total, dtype if dtype is not None else x.dtype, mask)


def rms_norm(
    x: Tile,
    w: Tile,
    axis: Any,
    n: int,
    epsilon: float = 1e-6,
    *,
    dtype: Any = None,
    compute_dtype: Any = None,
    mask: Any = None,
    **_: Any,
) -> Tile:
    """x / RMS(x) * w."""
    squares = _ops.unary("square", x, np.float32, mask)
    total = _ops.reduce("add", squares, axis, np.float32, mask, True)
    left = _ops.box_left(total)
    squared = _ops.binary("multiply", total, 1.0 / n, mask=left)
    shifted = _ops.binary("add", squared, float(epsilon), mask=left)
    normed = _ops.binary("multiply", x, _ops.unary("rsqrt", shifted, np.float32, left), np.float32, mask)
    return _ops.binary("multiply", normed, w, dtype if dtype is not None else x.dtype, mask)


def all_reduce(x: Any, op: Any, program_axes: Any, **_: Any) -> Any:
    """Reduction over SPMD programs; one core runs them in turn, so only one can be reduced."""
    if num_programs(program_axes) > 1:
        raise UnsupportedError("nl.all_reduce over more than one program is not supported")
    return x


def gemm_grid() -> Any:
    """The index grid of a full moving tile."""
    return mgrid[0:128, 0:512]


def gemm_stationary_grid() -> Any:
    """The index grid of a full stationary tile."""
    return mgrid[0:128, 0:128]


__all__ = ["arange", "mgrid", "nc", "par_dim", "spmd_dim", "static_cast"]
