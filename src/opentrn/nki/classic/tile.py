"""`Tile`: what classic kernels compute with. Operations return tiles; assignment writes into views.

The last operation is held back until something else happens: if its result is assigned to a view at once
(``acc[...] = nl.add(…)``), the instruction writes there directly, as the classic compiler makes it do; else
it gets a tile of its own. ``psum[...] += nc_matmul(…)`` becomes an accumulating matmul the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from opentrn.errors import OutOfBoundsError, UnimplementedError, UnsupportedError
from opentrn.nki.classic.indexing import Index, Mask
from opentrn.nki.classic.views import (
    crop,
    engines_reach,
    fill_indices,
    index_view,
    note_filled,
    partition_first,
)
from opentrn.nki.dtypes import ITEMSIZE, host_type, name_of
from opentrn.nki.enums import MemoryRegion
from opentrn.nki.tensor import Indirect, NKIObject, NkiTensor, Storage
from opentrn.nki.tracing import Tracer, active


class par_dim(int):
    """Marks the partition dimension of a shape: ``nl.par_dim(128)``."""


class Pending:
    """An operation whose destination is not decided yet.

    emit: called with the destination's `NkiTensor`; shape and dtype of the result; `fixed`: the data type was
    asked for; box: which part of the destination it writes (None: all; []: nothing).
    """

    __slots__ = ("box", "dtype", "emit", "fixed", "matmul", "region", "shape")

    def __init__(
        self,
        emit: Callable[[NkiTensor], None],
        shape: tuple[int, ...],
        dtype: str,
        fixed: bool,
        region: MemoryRegion,
        box: Any,
        matmul: Callable[[NkiTensor], None] | None = None,
    ) -> None:
        self.emit, self.shape, self.dtype, self.fixed = emit, shape, dtype, fixed
        self.region, self.box, self.matmul = region, box, matmul


class Blocks:
    """A tensor with leading block dimensions whose blocks live apart: in PSUM, with direct allocation,
    and where all of them together exceed SBUF. Such kernels name the blocks of a whole loop nest, of which
    few live at a time.

    make: block index → its tensor; tile: the shape of one.
    """

    def __init__(
        self,
        make: Callable[[tuple[int, ...]], NkiTensor],
        dims: tuple[int, ...],
        tile: tuple[int, ...],
        dtype: str,
        region: MemoryRegion,
    ) -> None:
        self.make, self.dims, self.tile, self.dtype, self.region = make, dims, tile, dtype, region
        self.made: dict[tuple[int, ...], NkiTensor] = {}
        self.zeros = False  # each begins with zeros of PSUM, when it is made

    def at(self, place: tuple[int, ...]) -> NkiTensor:
        if place not in self.made:
            self.made[place] = self.make(place)
            self.made[place]._storage.zero_pending = self.zeros
        return self.made[place]


def flush(tracer: Tracer) -> None:
    """Give the operation that is held back a tile of its own."""
    tile = tracer.pending
    if tile is not None:
        tracer.pending = None
        tile.materialise()


class Tile(NKIObject):
    """A view of a tensor in any memory; see the module's documentation."""

    __slots__ = ("_pending", "_view", "block_place", "blocks", "index_tile", "same", "tracer")
    __array_priority__ = 2000.0

    def __init__(
        self,
        view: NkiTensor | None,
        pending: Pending | None = None,
        blocks: Blocks | None = None,
        block_place: tuple[int, ...] = (),
        index_tile: Any = None,
    ) -> None:
        self._view, self._pending = view, pending
        self.blocks, self.block_place, self.index_tile = blocks, block_place, index_tile
        self.same = False

    # -- what it is -------------------------------------------------------------------------------------
    @property
    def shape(self) -> tuple[int, ...]:
        if self._pending is not None:
            return self._pending.shape
        if self.blocks is not None:
            return (*self.blocks.dims[len(self.block_place) :], *self.blocks.tile)
        assert self._view is not None
        return self._view.shape

    @property
    def dtype(self) -> np.dtype:
        return host_type(self.dtype_name)

    @property
    def dtype_name(self) -> str:
        if self._pending is not None:
            return self._pending.dtype
        return self._view.dtype if self._view is not None else self.blocks.dtype  # type: ignore[union-attr]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype_name]

    @property
    def buffer(self) -> MemoryRegion:
        if self._pending is not None:
            return self._pending.region
        return self._view.buffer if self._view is not None else self.blocks.region  # type: ignore[union-attr]

    @property
    def on_chip(self) -> bool:
        return self.buffer in (MemoryRegion.sbuf, MemoryRegion.psum)

    def assert_shape(self, shape: Any) -> None:
        """Raises OutOfBoundsError unless the tile has this shape."""
        if tuple(shape) != self.shape:
            raise OutOfBoundsError(f"tile has shape {self.shape}, expected {tuple(shape)}")

    def __repr__(self) -> str:
        return f"Tile(shape={self.shape}, dtype={self.dtype_name}, buffer={self.buffer.value})"

    # -- to instructions --------------------------------------------------------------------------------
    def materialise(self) -> NkiTensor:
        """The view; a held-back operation is emitted into a new tile first."""
        pending = self._pending
        if pending is not None:
            tracer = active()
            if tracer.pending is self:
                tracer.pending = None
            view = tracer.allocate(_tile_shape(pending.shape), pending.dtype, pending.region, "tile", None)
            view = (
                view.reshape(pending.shape)
                if view.shape != pending.shape and len(pending.shape) > 1
                else view
            )
            self._view, self._pending = view, None
            if pending.box != []:
                note_filled(view, pending.box)
                pending.emit(view if pending.box is None else crop(view, pending.box))
        if self._view is None:
            assert self.blocks is not None
            if len(self.block_place) < len(self.blocks.dims):
                if math.prod(self.blocks.dims) == 1:
                    return self.blocks.at((0,) * len(self.blocks.dims))
                raise UnimplementedError(
                    f"a tensor with block dimensions {self.blocks.dims} is used as one tile",
                    cure="index its blocks",
                )
            self._view = self.blocks.at(self.block_place)
        if self._view._storage.zero_pending:
            _zero_now(active(), self._view._storage)
        return self._view

    def as_nki_tensor(self) -> NkiTensor:
        """The view with the partition dimension first."""
        return partition_first(self.materialise())

    # -- views ------------------------------------------------------------------------------------------
    def __getitem__(self, key: Any) -> Tile:
        items = list(key) if isinstance(key, tuple) else [key]
        if self.blocks is not None and len(self.block_place) < len(self.blocks.dims):
            return self._block(items)
        return (
            Tile(index_view(self._plain_view(), items))
            if not _has_tile(items)
            else _indirect(self._plain_view(), items)
        )

    def _plain_view(self) -> NkiTensor:
        """The view, without deciding what a matmul's first write does."""
        if self._pending is not None or self._view is None:
            return self.materialise()
        return self._view

    def _block(self, items: list[Any]) -> Tile:
        assert self.blocks is not None
        known = self._known_block(items)
        if known is not None:
            return known
        place = list(self.block_place)
        while items and len(place) < len(self.blocks.dims):
            item = items.pop(0)
            if item is Ellipsis:
                items.insert(0, Ellipsis)
                break
            if isinstance(item, slice) and item == slice(None) and self.blocks.dims[len(place)] == 1:
                item = 0
            if not isinstance(item, (int, np.integer)):
                raise UnimplementedError(
                    f"block dimensions of {self.blocks.dims} take integers, not {item!r}"
                )
            index = int(item)
            if not -self.blocks.dims[len(place)] <= index < self.blocks.dims[len(place)]:
                raise OutOfBoundsError(f"block {index} of {self.blocks.dims[len(place)]}")
            place.append(index % self.blocks.dims[len(place)])
        if len(place) < len(self.blocks.dims):
            if items and items != [Ellipsis]:
                raise UnimplementedError("index all block dimensions of this tensor first")
            return Tile(None, None, self.blocks, tuple(place))
        inner = Tile(self.blocks.at(tuple(place)))
        return inner[tuple(items)] if items else inner

    def _known_block(self, items: list[Any]) -> Tile | None:
        """A view of a block used before, by integers and then a tile's indices: the usual case."""
        assert self.blocks is not None
        rank = len(self.blocks.dims)
        if self.block_place or len(items) <= rank:
            return None
        try:
            view = self.blocks.made.get(tuple(items[:rank]))
        except TypeError:  # an index or a slice
            return None
        rest = items[rank:]
        return None if view is None or _has_tile(rest) else Tile(index_view(view, rest))

    def reshape(self, shape: Any = None, *more: Any) -> Tile:
        dims = tuple(shape) if isinstance(shape, (tuple, list)) else (shape, *more)
        return Tile(self.materialise().reshape(tuple(int(n) for n in dims)))

    def view(self, dtype: Any) -> Tile:
        return Tile(self.materialise().view(dtype))

    def expand_dims(self, axis: int) -> Tile:
        return Tile(self.materialise().expand(axis))

    def broadcast_to(self, shape: Any, **_: Any) -> Tile:
        from opentrn.nki.classic.operations import broadcast_to

        return broadcast_to(self, shape)

    def astype(self, dtype: Any) -> Tile:
        from opentrn.nki.classic.operations import copy

        return copy(self, dtype=dtype)

    # -- assignment -------------------------------------------------------------------------------------
    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, Tile) and value.same:
            value.same = False
            return
        assign(self[key], value)

    def __iadd__(self, other: Any) -> Tile:
        tracer = active()
        if (
            isinstance(other, Tile)
            and other._pending is not None
            and other._pending.matmul is not None
            and tracer.pending is other
            and self.buffer is MemoryRegion.psum
        ):
            tracer.pending = None
            pending, other._pending = other._pending, None
            target = partition_first(self._target_view())
            other._view = target
            if pending.box != [] and pending.matmul is not None:
                target._storage.zero_pending = False
                shaped = _shaped_like(target, pending.shape)
                pending.matmul(target if pending.box is None else crop(shaped, pending.box))
            return self._done()
        return self._in_place("add", other)

    def _target_view(self) -> NkiTensor:
        if self._view is None and self._pending is None:
            assert self.blocks is not None
            return self.blocks.at(self.block_place or (0,) * len(self.blocks.dims))
        return self._plain_view()

    def _done(self) -> Tile:
        self.same = True
        return self

    def _in_place(self, name: str, other: Any) -> Tile:
        from opentrn.nki.classic.operations import binary

        assign(self, binary(name, self, other))
        return self._done()

    def __neg__(self) -> Tile:
        from opentrn.nki.classic.operations import binary

        return binary("multiply", self, -1.0)

    def __isub__(self, other: Any) -> Tile:
        return self._in_place("subtract", other)

    def __imul__(self, other: Any) -> Tile:
        return self._in_place("multiply", other)

    def __itruediv__(self, other: Any) -> Tile:
        return self._in_place("divide", other)


def _operator(name: str, swapped: bool = False, integer: bool = False) -> Callable[[Tile, Any], Tile]:
    def apply(self: Tile, other: Any) -> Any:
        from opentrn.nki.classic.operations import binary

        if name == "add" and isinstance(other, Index):
            return RuntimeIndex(self, other)
        return binary(name, other, self) if swapped else binary(name, self, other)

    return apply


for _method, _name in (
    ("add", "add"),
    ("sub", "subtract"),
    ("mul", "multiply"),
    ("truediv", "divide"),
    ("pow", "power"),
    ("mod", "mod"),
    ("and", "bitwise_and"),
    ("or", "bitwise_or"),
    ("xor", "bitwise_xor"),
    ("lshift", "left_shift"),
    ("rshift", "right_shift"),
):
    setattr(Tile, f"__{_method}__", _operator(_name))
    setattr(Tile, f"__r{_method}__", _operator(_name, swapped=True))
for _method, _name in (
    ("lt", "less"),
    ("le", "less_equal"),
    ("gt", "greater"),
    ("ge", "greater_equal"),
    ("eq", "equal"),
    ("ne", "not_equal"),
):
    setattr(Tile, f"__{_method}__", _operator(_name))
Tile.__hash__ = object.__hash__  # type: ignore[method-assign, assignment]


def assign(target: Tile, value: Any) -> None:
    """Write a value into a view: a held-back operation directly, a tile by a copy, a number by a memset."""
    tracer = active()
    if isinstance(value, Tile) and value._pending is not None and tracer.pending is value:
        pending = value._pending
        view = target._target_view()
        name = view.dtype
        if pending.box == []:
            tracer.pending, value._pending, value._view = None, None, view
            return
        direct = (
            (not pending.fixed or pending.dtype == name)
            and not (pending.matmul is not None and view.buffer is not MemoryRegion.psum)
            and view._storage.on_chip
        )
        if direct and (pending.region is not MemoryRegion.psum or view.buffer is MemoryRegion.psum):
            tracer.pending, value._pending, value._view = None, None, view
            view._storage.zero_pending = False
            shaped = _shaped_like(view, pending.shape)
            note_filled(shaped, pending.box)
            pending.emit(partition_first(shaped if pending.box is None else crop(shaped, pending.box)))
            return
    flush(tracer)
    view = partition_first(target._target_view())
    view._storage.zero_pending = False
    tracer.locate()
    if isinstance(value, Tile):
        source = value.as_nki_tensor()
        if not _same_place(view, source):  # what loop_reduce has accumulated there
            copy_into(tracer, view, source)
    elif isinstance(value, (int, float, np.number)):
        reached = view
        if not engines_reach(view):
            reached = tracer.allocate(view.shape, view.dtype, MemoryRegion.sbuf, "fill", None)
        tracer.emit(
            "memset", dst=tracer.write(reached), value=tracer.scalar(value), engine="unknown", name=None
        )
        if reached is not view:
            tracer.emit("dma_copy", dst=tracer.write(view), src=tracer.read(reached))
    else:
        raise UnsupportedError(f"cannot assign {type(value).__name__} to a tile")


def copy_into(tracer: Tracer, dst: NkiTensor, src: NkiTensor) -> None:
    """A copy by the engine that can reach both memories; a DMA where an engine cannot reach the
    partitions."""
    if dst._storage.on_chip and src._storage.on_chip and engines_reach(dst) and engines_reach(src):
        if math.prod(src.shape) != math.prod(dst.shape) and len(src.shape) == len(dst.shape):
            from opentrn.nki.classic.spread import broadcast_view

            src = broadcast_view(tracer, src, dst.shape)
        tracer.emit("tensor_copy", dst=tracer.write(dst), src=tracer.read(src), engine="unknown", name=None)
    else:
        tracer.emit("dma_copy", dst=tracer.write(dst), src=tracer.read(src))


def _same_place(a: NkiTensor, b: NkiTensor) -> bool:
    return a._storage is b._storage and (a.dtype, a.offset, _extent(a)) == (b.dtype, b.offset, _extent(b))


def _extent(view: NkiTensor) -> list[tuple[Any, Any]]:
    return [pair for pair in zip(view._steps, view._counts, strict=True) if pair[1] != 1]


def _shaped_like(view: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    """The destination in the result's rank, so that a box of the result crops it."""
    if view.shape == shape or math.prod(view.shape) != math.prod(shape):
        return view
    try:
        return view.reshape(shape)
    except UnsupportedError:
        return view


def _tile_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if len(shape) > 1 else (*shape, 1) if shape else (1, 1)


def _zero_now(tracer: Tracer, storage: Storage) -> None:
    from opentrn.nki.tensor import whole_view

    storage.zero_pending = False
    tracer.emit("memset", dst=tracer.write(whole_view(storage)), value=0.0, engine="unknown", name=None)


# -- indexing --------------------------------------------------------------------------------------------
class RuntimeIndex:
    """A [1, 1] tile of an index plus an index expression: ``offsets[0, i] + nl.arange(4)[None, :]``."""

    __slots__ = ("expression", "tile")

    def __init__(self, tile: Tile, expression: Any) -> None:
        self.tile, self.expression = tile, expression

    def __add__(self, other: Any) -> RuntimeIndex:
        return RuntimeIndex(self.tile, self.expression + other)

    __radd__ = __add__


def _has_tile(items: list[Any]) -> bool:
    return any(isinstance(item, (Tile, RuntimeIndex)) for item in items)


def _indirect(view: NkiTensor, items: list[Any]) -> Tile:
    """One index is a tile: row numbers (a gather or scatter by DMA), or one number that moves the whole
    view."""
    items = fill_indices(items, view.ndim)
    at = next(place for place, item in enumerate(items) if isinstance(item, (Tile, RuntimeIndex)))
    item = items[at]
    moved = isinstance(item, RuntimeIndex)
    rows = (item.tile if moved else item).as_nki_tensor()
    rest = [(item.expression if moved else 0) if place == at else other for place, other in enumerate(items)]
    if moved or (view._storage.on_chip and math.prod(rows.shape) == 1):
        plain = index_view(view, rest)
        indirect = Indirect("scalar", rows, view._steps[at], at, view._counts[at])
        return Tile(NkiTensor(view._storage, view.dtype, plain.offset, plain._steps, plain._counts, indirect))
    plain = index_view(view, rest)
    others = [pair for pair in zip(plain._steps, plain._counts, strict=True) if pair[1] > 1] or [(1, 1)]
    return Tile(
        NkiTensor(
            view._storage,
            view.dtype,
            plain.offset,
            (view._steps[at], *(s for s, _ in others)),
            (rows.shape[0], *(c for _, c in others)),
            Indirect("vector", rows, view._steps[at], 0, view._counts[at]),
        )
    )


def tile_of(value: Any) -> Any:
    """A classic tile of any tensor."""
    return Tile(value) if isinstance(value, NkiTensor) else value


def box_of(mask: Any, shape: tuple[int, ...]) -> Any:
    """None: no mask; []: nothing; else (start, count) per dimension. Raises for other masks."""
    if mask is None or mask is True:
        return None
    if type(mask) is list:  # a box already
        return mask
    if isinstance(mask, (bool, np.bool_)):
        return None if mask else []
    if isinstance(mask, Mask):
        box = mask.box(shape)
        if box is None:
            raise UnimplementedError(
                "a mask that selects no box of the tile",
                cure="use nisa.affine_select or nl.where with an explicit predicate",
            )
        return None if box and all(pair == (0, n) for pair, n in zip(box, shape, strict=False)) else box
    raise UnsupportedError(f"mask must be a comparison of indices, not {type(mask).__name__}")


def dtype_or(dtype: Any, default: str) -> tuple[str, bool]:
    """(data type, whether it was asked for)."""
    return (default, False) if dtype is None else (name_of(dtype), True)
