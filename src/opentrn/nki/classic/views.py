"""Views of classic tiles: which dimension is the partition, what a mask leaves of one, what an index
selects."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from opentrn.errors import OutOfBoundsError, UnimplementedError
from opentrn.nki.affine import Affine
from opentrn.nki.classic.indexing import Index
from opentrn.nki.dtypes import ITEMSIZE
from opentrn.nki.tensor import DynamicSlice, Indirect, NkiTensor


def engines_reach(view: NkiTensor) -> bool:
    """Whether a compute engine may start at the view's first partition: up to 32 partitions start at 0, 32,
    64 or 96, up to 64 at 0 or 64, more at 0 (the NKI programming guide; DMAs have no such rule)."""
    storage = view._storage
    if not storage.on_chip or isinstance(view.offset, Affine):
        return True
    width = storage.partition_bytes // ITEMSIZE[view.dtype]
    first = (storage.address[0] if storage.address else 0) + view.offset // max(width, 1)
    count = view._counts[0]
    step = 32 if count <= 32 else 64 if count <= 64 else 128
    return first % step == 0


def partition_first(view: NkiTensor) -> NkiTensor:
    """Move the partition dimension of an on-chip view to the front."""
    storage = view._storage
    if not storage.on_chip:
        return view
    if len(view._counts) == 1:
        view = view._with((*view._steps, 1), (*view._counts, 1))
    width = storage.partition_bytes // ITEMSIZE[view.dtype]
    if width and view._counts[0] > 1 and view._steps[0] >= width and view._steps[0] % width == 0:
        return view  # almost always
    at = next(
        (
            d
            for d, (step, count) in enumerate(zip(view._steps, view._counts, strict=True))
            if count > 1 and width and step >= width and step % width == 0
        ),
        None,
    )
    if at is None or at == 0:
        if at is None and view._counts[0] > 1:
            return NkiTensor(
                storage, view.dtype, view.offset, (width, *view._steps), (1, *view._counts), view.indirection
            )
        if view._steps[0] % max(width, 1):
            return NkiTensor(
                storage, view.dtype, view.offset, (width, *view._steps[1:]), view._counts, view.indirection
            )
        return view
    order = [at, *(d for d in range(view.ndim) if d != at)]
    return NkiTensor(
        storage,
        view.dtype,
        view.offset,
        tuple(view._steps[d] for d in order),
        tuple(view._counts[d] for d in order),
        view.indirection,
    )


def crop(view: NkiTensor, box: list[tuple[int, int]]) -> NkiTensor:
    """The part of a view that a box selects; dimensions of size 1 stay (they broadcast)."""
    if len(box) != view.ndim:
        return (
            view
            if all(start == 0 for start, _ in box) and math.prod(c for _, c in box) == view.size
            else _crop_flexible(view, box)
        )
    offset, counts = view.offset, list(view._counts)
    for axis, (start, count) in enumerate(box):
        if counts[axis] == 1 and count > 1:
            continue
        offset = offset + min(start, counts[axis] - 1) * view._steps[axis] if counts[axis] > 1 else offset
        counts[axis] = min(count, counts[axis])
    indirect = view.indirection
    if indirect is not None and indirect.kind == "vector":
        source = indirect.source
        if isinstance(source, NkiTensor) and source.shape[0] != counts[0]:
            rows = NkiTensor(
                source._storage,
                source.dtype,
                source.offset + box[0][0] * source._steps[0],
                source._steps,
                (counts[0], *source._counts[1:]),
            )
            indirect = Indirect("vector", rows, indirect.step, indirect.dim, indirect.bound)
            offset = view.offset
    return NkiTensor(view._storage, view.dtype, offset, view._steps, tuple(counts), indirect)


def note_filled(dst: NkiTensor, box: list[tuple[int, int]] | None) -> None:
    """An operation writes all of `dst`, or what its mask's box leaves."""
    storage = dst._storage
    partial = box and box[0] != (0, dst._counts[0])
    if not (partial or storage.filled) or not storage.on_chip:
        return
    first, last = _columns(dst)
    storage.filled = [known for known in storage.filled if known[1] <= first or last <= known[0]]
    if box and partial:
        storage.filled.append((first, last, box[0]))


def filled_rows(view: NkiTensor) -> tuple[int, int] | None:
    """The partitions of a view that were written under a mask, if they were."""
    first, last = _columns(view) if view._storage.filled else (0, 0)
    return next((rows for start, end, rows in view._storage.filled if start < last and first < end), None)


def _columns(view: NkiTensor) -> tuple[int, int]:
    """From the first column of its tensor that a view covers to the one behind its last."""
    width = view._storage.partition_bytes // ITEMSIZE[view.dtype]
    first = view.offset % width
    dims = zip(view._steps, view._counts, strict=True)
    return first, first + 1 + sum(step * (count - 1) for step, count in dims if step < width)


def _crop_flexible(view: NkiTensor, box: list[tuple[int, int]]) -> NkiTensor:
    sizes = [pair for pair in box if pair != (0, 1)]
    if len(sizes) <= view.ndim:
        return crop(view, [*sizes, *((0, n) for n in view.shape[len(sizes) :])])
    raise UnimplementedError(f"a mask of rank {len(box)} on a tile of shape {view.shape}")


def fill_indices(items: list[Any], rank: int) -> list[Any]:
    given = [item for item in items if item is not Ellipsis]
    missing = rank - len(given)
    if missing < 0:
        raise OutOfBoundsError(f"{len(given)} indices for {rank} dimensions")
    if len(given) == len(items):
        return items + [slice(None)] * missing
    at = next(place for place, item in enumerate(items) if item is Ellipsis)
    return items[:at] + [slice(None)] * missing + items[at + 1 :]


def index_view(view: NkiTensor, items: list[Any]) -> NkiTensor:
    items = fill_indices([getattr(item, "index_value", item) for item in items], view.ndim)
    if any(isinstance(item, Index) for item in items):
        return _advanced(view, items)
    offset = view.offset
    kept: list[tuple[int, int, bool]] = []  # step, count, whether an integer chose it
    for axis, item in enumerate(items):
        step, size = view._steps[axis], view._counts[axis]
        if isinstance(item, (int, np.integer)):
            index = int(item) + (size if item < 0 else 0)
            if not 0 <= index < size:
                raise OutOfBoundsError(
                    f"{view.name}: index {item} is outside dimension {axis} of shape {view.shape}"
                )
            offset = offset + index * step
            kept.append((step, 1, True))
            continue
        start, length, stride = _range_of(item, size)
        offset = offset + start * step
        kept.append((step * stride, length, False))
    # An integer drops its dimension; a tile on chip keeps at least two.
    least = 2 if view._storage.on_chip else 1
    for place in reversed(range(len(kept))):
        if len(kept) > least and kept[place][2]:
            del kept[place]
    steps = tuple(1 if chosen and not view._storage.on_chip else step for step, _, chosen in kept)
    return NkiTensor(view._storage, view.dtype, offset, steps, tuple(count for _, count, _ in kept))


def _range_of(item: Any, size: int) -> tuple[int, int, int]:
    if isinstance(item, DynamicSlice):
        return int(item.start), int(item.size), 1
    if item.start is not None and item.stop is not None and 0 <= int(item.start) <= int(item.stop):
        # Not clamped: a mask may cut the tile; without one the builder reports the overrun.
        start, stop, stride = int(item.start), int(item.stop), int(item.step or 1)
    else:
        start, stop, stride = item.indices(size)
    return start, max(0, -(-(stop - start) // stride)), stride


def _advanced(view: NkiTensor, items: list[Any]) -> NkiTensor:
    rank = max(len(item.dims) for item in items if type(item) is Index)
    offset, dims, steps = view.offset, [1] * rank, [0] * rank
    rest: list[tuple[int, int]] = []
    for step, size, item in zip(view._steps, view._counts, items, strict=True):
        if type(item) is Index:
            if item.coefs is None:
                raise UnimplementedError(f"{view.name}: an index with // or % is not an access pattern")
            offset = offset + item.const * step
            place = rank - len(item.dims)
            for extent, factor in zip(item.dims, item.coefs, strict=True):
                if extent > dims[place]:
                    dims[place] = extent
                if factor:
                    steps[place] += factor * step
                place += 1
        elif isinstance(item, (int, np.integer)):
            offset = offset + int(item) * step
        else:
            start, length, stride = _range_of(item, size)
            offset = offset + start * step
            if length != 1:
                rest.append((step * stride, length))
    steps += [step for step, _ in rest]
    dims += [length for _, length in rest]
    return NkiTensor(view._storage, view.dtype, offset, tuple(steps), tuple(dims))
