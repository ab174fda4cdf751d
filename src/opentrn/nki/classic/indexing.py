"""Index expressions of classic kernels: `nl.arange`, `nl.mgrid`, masks.

Loops are unrolled while a kernel is traced, so an index is an affine function of the positions in the tile:
``const + sum(coefficient[d] * position[d])`` over the dimensions of the result. What is not affine (``//``,
``%``) falls back to an array of values. A comparison gives a `Mask`; masks that select a box become smaller
access patterns.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from opentrn.errors import UnsupportedError

_ALL = slice(None)


class Index:
    """An integer per position of a tile of shape `dims` (sizes of 1 broadcast)."""

    __slots__ = ("array", "coefs", "const", "dims", "spread")
    __array_priority__ = 1000.0

    def __init__(
        self,
        dims: tuple[int, ...],
        coefs: tuple[int, ...] | None,
        const: int,
        array: np.ndarray | None = None,
    ) -> None:
        self.dims, self.coefs, self.const, self.array = dims, coefs, const, array
        self.spread: list[Index | None] = [None, None]  # itself as a column, and as a row, once asked for

    @property
    def shape(self) -> tuple[int, ...]:
        return self.dims

    @property
    def ndim(self) -> int:
        return len(self.dims)

    def values(self) -> np.ndarray:
        """The integers, in an array that broadcasts to the tile."""
        if self.array is not None:
            return self.array
        result = np.full((1,) * len(self.dims), self.const, np.int64)
        for axis, (size, factor) in enumerate(zip(self.dims, self.coefs or (), strict=True)):
            if factor:
                line = np.arange(size) * factor
                result = result + line.reshape([-1 if d == axis else 1 for d in range(len(self.dims))])
        return result

    def __getitem__(self, key: Any) -> Index:
        if len(self.dims) == 1 and type(key) is tuple and len(key) == 2:
            place = 1 if key[0] is None else 0  # of ':'
            if key[1 - place] is None and key[place] == _ALL:
                if self.spread[place] is None:
                    self.spread[place] = self._extended(key)
                return self.spread[place]  # type: ignore[return-value]
        return self._extended(key)

    def _extended(self, key: Any) -> Index:
        items = key if isinstance(key, tuple) else (key,)
        dims: list[int] = []
        coefs: list[int] = []
        source = 0
        for item in items:
            if item is None:
                dims.append(1)
                coefs.append(0)
            elif isinstance(item, slice) and item == slice(None):
                dims.append(self.dims[source])
                coefs.append(self.coefs[source] if self.coefs is not None else 0)
                source += 1
            else:
                raise UnsupportedError(f"an index can be extended with None and ':' only, not {item!r}")
        if self.array is not None:
            return Index(tuple(dims), None, 0, self.array[key])
        return Index(tuple(dims), tuple(coefs), self.const)

    def _with(self, other: Any, function: Callable[[Any, Any], Any]) -> Index:
        array = np.asarray(function(self.values(), other.values() if isinstance(other, Index) else other))
        return Index(array.shape, None, 0, array)

    def _linear(self, other: Any, sign: int) -> Index:
        if isinstance(other, Index):
            if self.coefs is None or other.coefs is None:
                return self._with(other, operator.add if sign > 0 else operator.sub)
            rank = max(self.ndim, other.ndim)
            a, b = _aligned(self, rank), _aligned(other, rank)
            dims = tuple(np.broadcast_shapes(a[0], b[0]))
            return Index(
                dims,
                tuple(x + sign * y for x, y in zip(a[1], b[1], strict=True)),
                self.const + sign * other.const,
            )
        other = int(other)
        if self.coefs is None:
            return Index(self.dims, None, 0, self.values() + sign * other)
        return Index(self.dims, self.coefs, self.const + sign * other)

    def __add__(self, other: Any) -> Any:
        return self._linear(other, 1) if _indexable(other) else NotImplemented

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._linear(other, -1) if _indexable(other) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return (self * -1)._linear(other, 1) if _indexable(other) else NotImplemented

    def __neg__(self) -> Index:
        return self * -1

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Index):
            return self._with(other, operator.mul)
        if not _indexable(other):
            return NotImplemented
        factor = int(other)
        if self.coefs is None:
            return Index(self.dims, None, 0, self.values() * factor)
        return Index(self.dims, tuple(c * factor for c in self.coefs), self.const * factor)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Index:
        return self._with(other, operator.floordiv)

    def __mod__(self, other: Any) -> Index:
        return self._with(other, operator.mod)

    def _compare(self, other: Any, name: str) -> Mask:
        difference = self - other
        if difference.coefs is not None and name in _HALF_SPACES and len(_axes(difference)) < 2:
            return Mask(None, difference, name, ((difference, name),))
        return Mask(getattr(np, name)(difference.values(), 0), difference, name)

    def __lt__(self, other: Any) -> Mask:
        return self._compare(other, "less")

    def __le__(self, other: Any) -> Mask:
        return self._compare(other, "less_equal")

    def __gt__(self, other: Any) -> Mask:
        return self._compare(other, "greater")

    def __ge__(self, other: Any) -> Mask:
        return self._compare(other, "greater_equal")

    def __eq__(self, other: Any) -> Any:
        return self._compare(other, "equal")

    def __ne__(self, other: Any) -> Any:
        return self._compare(other, "not_equal")

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Index(dims={self.dims}, coefs={self.coefs}, const={self.const})"


def _indexable(value: Any) -> bool:
    return isinstance(value, (int, np.integer, Index))


def _aligned(index: Index, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    extra = rank - index.ndim
    return (1,) * extra + index.dims, (0,) * extra + (index.coefs or ())


_HALF_SPACES = ("less", "less_equal", "greater", "greater_equal")


def _axes(index: Index) -> list[int]:
    """The dimensions along which an affine index changes."""
    pairs = zip(index.dims, index.coefs or (), strict=True)
    return [axis for axis, (size, factor) in enumerate(pairs) if factor and size > 1]


def _varied(index: Index) -> tuple[int, ...]:
    """The shape of an affine index's values: 1 where it does not change."""
    return tuple(size if factor else 1 for size, factor in zip(index.dims, index.coefs or (), strict=True))


def _interval(index: Index, name: str) -> tuple[int | None, int, int]:
    """(axis, first, end) of the positions where an index along one dimension compares with zero."""
    flip = -1 if name.startswith("less") else 1
    const = flip * index.const - (0 if name.endswith("equal") else 1)  # holds where const + factor * i >= 0
    axes = _axes(index)
    if not axes:
        return None, 0, int(const >= 0)
    factor, size = flip * (index.coefs or ())[axes[0]], index.dims[axes[0]]
    if factor > 0:
        return axes[0], max(0, -(const // factor)), size
    return axes[0], 0, min(size, const // -factor + 1)


class Mask:
    """A boolean per position; `affine` and `comparison` say how it arose, if by one comparison with zero.

    parts: the comparisons that all hold, where each bounds one dimension; then nothing is made per position.
    """

    __slots__ = ("_array", "affine", "comparison", "parts")
    __array_priority__ = 1000.0

    def __init__(
        self,
        array: np.ndarray | None,
        affine: Index | None = None,
        comparison: str = "",
        parts: tuple[tuple[Index, str], ...] = (),
    ) -> None:
        self._array, self.affine, self.comparison, self.parts = array, affine, comparison, parts

    @property
    def array(self) -> np.ndarray:
        """The booleans, in an array that broadcasts to the tile."""
        if self._array is None:
            self._array = functools.reduce(
                operator.and_, (getattr(np, name)(index.values(), 0) for index, name in self.parts)
            )
        return self._array

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape of `array`."""
        if self._array is not None:
            return self._array.shape
        if len(self.parts) == 1:
            return _varied(self.parts[0][0])
        return tuple(np.broadcast_shapes(*(_varied(index) for index, _ in self.parts)))

    def _combine(self, other: Any, function: Callable[[Any, Any], Any]) -> Mask:
        return Mask(function(self.array, other.array if isinstance(other, Mask) else bool(other)))

    def __and__(self, other: Any) -> Mask:
        if self.parts and isinstance(other, Mask) and other.parts:
            return Mask(None, parts=self.parts + other.parts)
        return self._combine(other, operator.and_)

    __rand__ = __and__

    def __or__(self, other: Any) -> Mask:
        return self._combine(other, operator.or_)

    __ror__ = __or__

    def __invert__(self) -> Mask:
        return Mask(~self.array)

    def __bool__(self) -> bool:
        if self.array.size == 1:
            return bool(self.array)
        raise UnsupportedError("a mask over a tile has no single truth value", cure="pass it as mask=")

    def box(self, shape: tuple[int, ...]) -> list[tuple[int, int]] | None:
        """(start, count) per dimension of a tile; [] if nothing is selected; None if it is no box."""
        if self.parts:
            return self._bounds(shape)
        array = self.array
        if array.ndim < len(shape):
            array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
        while array.ndim > len(shape):
            if array.shape[-1] != 1 and array.shape[0] != 1:
                raise UnsupportedError(
                    f"a mask of shape {self.array.shape} does not fit a tile of shape {shape}"
                )
            array = array[..., 0] if array.shape[-1] == 1 else array[0]
        if not array.any():
            return []
        ranges = []
        inside: Any = True
        for axis, size in enumerate(shape):
            if array.shape[axis] == 1:
                ranges.append((0, size))
                continue
            line = array.any(axis=tuple(d for d in range(len(shape)) if d != axis))
            hits = np.flatnonzero(line)
            first, last = int(hits[0]), int(hits[-1])
            ranges.append((first, last - first + 1))
            edge = np.zeros(array.shape[axis], bool)
            edge[first : last + 1] = True
            inside = inside & edge.reshape([-1 if d == axis else 1 for d in range(len(shape))])
        return (
            ranges
            if np.array_equal(
                np.broadcast_to(array & inside, np.broadcast_shapes(array.shape)),
                np.broadcast_to(inside, array.shape),
            )
            else None
        )

    def _bounds(self, shape: tuple[int, ...]) -> list[tuple[int, int]]:
        """`box` of a mask that bounds single dimensions."""
        dims = self.dims
        first, end = [0] * len(dims), list(dims)
        for index, name in self.parts:
            axis, start, stop = _interval(index, name)
            if start >= stop:
                first = end
                break
            if axis is not None:
                axis += len(dims) - len(index.dims)
                first[axis], end[axis] = max(first[axis], start), min(end[axis], stop)
        bounds = list(zip(dims, first, end, strict=True))
        empty = any(start >= stop for _, start, stop in bounds)
        bounds = [(1, 0, 1)] * (len(shape) - len(bounds)) + bounds
        while len(bounds) > len(shape):
            if bounds[-1][0] != 1 and bounds[0][0] != 1:
                raise UnsupportedError(f"a mask of shape {dims} does not fit a tile of shape {shape}")
            del bounds[-1 if bounds[-1][0] == 1 else 0]
        if empty:
            return []
        return [
            (0, size) if extent == 1 else (start, stop - start)
            for size, (extent, start, stop) in zip(shape, bounds, strict=True)
        ]


def arange(*bounds: Any) -> Index:
    """Consecutive integers as a one-dimensional index."""
    return _arange(*map(int, bounds))


@functools.lru_cache(maxsize=4096)
def _arange(*bounds: int) -> Index:  # loops make the same few again and again; an index does not change
    values = range(*bounds)
    return Index((len(values),), (values.step,), values.start)


class Grid(tuple):
    """The indices of `nl.mgrid`, also by name: p, x, y, z, w."""

    @property
    def p(self) -> Index:
        return self[0]

    @property
    def x(self) -> Index:
        return self[1]

    @property
    def y(self) -> Index:
        return self[2]

    @property
    def z(self) -> Index:
        return self[3]

    @property
    def w(self) -> Index:
        return self[4]


class _MeshGrid:
    """``nl.mgrid[0:P, 0:F, …]``."""

    def __getitem__(self, key: Any) -> Grid:
        slices = key if isinstance(key, tuple) else (key,)
        rank = len(slices)
        result = []
        for axis, item in enumerate(slices):
            values = range(int(item.start or 0), int(item.stop), int(item.step or 1))
            dims = tuple(len(values) if d == axis else 1 for d in range(rank))
            coefs = tuple(values.step if d == axis else 0 for d in range(rank))
            result.append(Index(dims, coefs, values.start))
        return Grid(result)


mgrid = _MeshGrid()
TileIndex = Index
