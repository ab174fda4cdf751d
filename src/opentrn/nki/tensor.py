"""`NkiTensor`: a piece of memory and a strided view of it.

A tensor is a storage (what was allocated), an element offset and a list of ``[step, count]``, all in
elements of its own data type and all relative to the *flattened* storage, exactly as `.ap()` defines it.
In SBUF and PSUM the first dimension is the partition; flattening runs over the free dimensions first, so
the step of the partition is the number of elements per partition of the storage.

Sources: the NKI language guide (tensor indexing) and the access-pattern guide of NKI 0.3.0; the
differences of 0.5.0 are marked at the place.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from opentrn.core._C import cut_view, describe_views, view_pattern
from opentrn.errors import ArgumentValueError, OutOfBoundsError, UnsupportedError
from opentrn.nki import version
from opentrn.nki.affine import Affine, whole_number
from opentrn.nki.dtypes import ITEMSIZE, name_of
from opentrn.nki.enums import HBM, ON_CHIP, MemoryRegion
from opentrn.nki.named_views import Indirect, NamedViews
from opentrn.nki.unvalued import refuse_values


class NKIObject:
    """Base class of objects that kernels build.

    The kernel compiler turns every plain class attribute into a field, annotated or not, and writes
    ``__init__`` and ``__post_init__`` where the class has none; both are reproduced here. (A `@dataclass`
    decorator runs after `__init_subclass__`, so it finds the added annotations.)
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in cls.__dict__ or "__slots__" in cls.__dict__:
            return
        annotations = vars(cls).get("__annotations__")
        for name, kind in (annotations or {}).items():
            if name not in cls.__dict__ and "ClassVar" not in str(kind):
                setattr(cls, name, None)  # a field that is not given is None
        added = {
            name: Any
            for name, value in cls.__dict__.items()
            if not name.startswith("__")
            and _is_field(value)
            and (annotations is None or name not in annotations)
        }
        if added:
            cls.__annotations__ = {**(annotations or {}), **added}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        names = [
            name for kind in reversed(type(self).__mro__) for name in vars(kind).get("__annotations__", {})
        ]
        if len(args) > len(names) or any(name not in names for name in kwargs):
            raise TypeError(f"{type(self).__name__}() takes the fields {names}, not {args} {kwargs}")
        values = {**dict(zip(names, args, strict=False)), **kwargs}
        for name in names:
            setattr(self, name, values[name] if name in values else getattr(type(self), name, None))
        post = getattr(self, "__post_init__", None)
        if post is not None:
            post()


def _is_field(value: Any) -> bool:
    return not (callable(value) or hasattr(value, "__get__")) and type(value).__hash__ is not None


class Storage:
    """One allocation.

    key: the builder's name of it. `partition_bytes` is the size of one partition (on chip) or of the whole
    (HBM). `free_shape` is the shape it was declared with.
    """

    __slots__ = (
        "address",
        "buffer",
        "core",
        "dtype",
        "filled",
        "key",
        "name",
        "on_chip",
        "owner",
        "partition_bytes",
        "partitions",
        "program_name",
        "shape",
        "where",
        "zero_pending",
    )

    def __init__(self, shape: tuple[int, ...], dtype: str, buffer: MemoryRegion, name: str) -> None:
        self.shape, self.dtype, self.buffer, self.name = shape, dtype, buffer, name
        self.on_chip = buffer is MemoryRegion.sbuf or buffer is MemoryRegion.psum
        self.partitions = shape[0] if self.on_chip else 1
        self.partition_bytes = math.prod(shape) // self.partitions * ITEMSIZE[dtype]
        self.key: Any = None
        self.owner: Any = None
        self.address: Any = None
        self.core = 0
        self.where: Any = None
        self.program_name = ""
        self.filled: list[tuple[int, int, tuple[int, int]]] = []  # classic, under masks: columns, rows
        self.zero_pending = False  # classic PSUM zeros: written when something but a matmul reads it


class DynamicSlice:
    """`nl.ds(start, size)`: a slice of constant size whose start may be a runtime integer."""

    __slots__ = ("size", "start")

    def __init__(self, start: Any, size: int) -> None:
        self.start, self.size = start, size


class NkiTensor(NamedViews, NKIObject):
    """A view of a storage; see the module's documentation. `shape`, `dtype`, `buffer`, `offset`, `name`."""

    __slots__ = ("_counts", "_steps", "_storage", "dtype", "indirection", "offset", "whole")

    def __init__(
        self,
        storage: Storage,
        dtype: str,
        offset: Any,
        steps: tuple[int, ...],
        counts: tuple[int, ...],
        indirect: Indirect | None = None,
        whole: bool = False,
    ) -> None:
        self._storage, self.dtype, self.offset = storage, dtype, offset
        self._steps, self._counts, self.indirection = steps, counts, indirect
        self.whole = whole  # the view covers the storage in order: what `.ap()` and `reshape` start from

    # -- what kernels ask for ------------------------------------------------------------------------
    @property
    def shape(self) -> tuple[int, ...]:
        return self._counts

    @property
    def strides(self) -> tuple[int, ...]:
        return self._steps

    @property
    def buffer(self) -> MemoryRegion:
        return self._storage.buffer

    @property
    def name(self) -> str:
        return self._storage.name

    @property
    def ndim(self) -> int:
        return len(self._counts)

    @property
    def size(self) -> int:
        return math.prod(self._counts)

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def address(self) -> Any:
        return self._storage.address

    def get_pattern(self) -> list[list[int]]:
        """The hardware access pattern as ``[[step, count], …]``, outermost first."""
        return [[step, count] for step, count in zip(self._steps, self._counts, strict=True)]

    @property
    def pattern(self) -> list[list[int]]:
        return self.get_pattern()

    def __len__(self) -> int:
        return self._counts[0]

    def __repr__(self) -> str:
        return f"NkiTensor({self.name!r}, shape={self.shape}, dtype={self.dtype}, buffer={self.buffer.value})"

    def __str__(self) -> str:
        owner = self._storage.owner
        return repr(self) if owner is None or not owner.can_peek() else f"{self!r}\n{self.numpy()}"

    def __format__(self, specification: str) -> str:
        return repr(self)  # f-strings of assertions are evaluated even where these hold

    def numpy(self) -> Any:
        """The values now, as a NumPy array: for `print` and `breakpoint()` inside a kernel."""
        return self._storage.owner.peek(self)

    # -- views -----------------------------------------------------------------------------------------
    def __getitem__(self, key: Any) -> NkiTensor:
        view = cut_view(self, key)
        if view is not None:
            return view
        if self.indirection is not None:
            raise UnsupportedError(f"{self.name}: a view with a runtime offset cannot be indexed again")
        if type(key) is not tuple:
            key = (key,)
        steps, counts = self._steps, self._counts
        rank = len(counts)
        if len(key) != rank or any(item is Ellipsis for item in key):
            key = _expand_ellipsis(key, rank, self)
        on_chip = self._storage.on_chip
        offset = self.offset
        new_steps: list[int] = []
        new_counts: list[int] = []
        dropped: list[int] = []
        for axis in range(rank):
            item, count, step = key[axis], counts[axis], steps[axis]
            kind = type(item)
            if kind is slice:
                start, length, stride = _slice(item, count, axis, self)
                offset = offset + start * step
                new_steps.append(step * stride)
                new_counts.append(length)
            elif kind is int:
                if item < 0:
                    item += count
                if not 0 <= item < count:
                    raise _outside(self, axis, key[axis])
                offset = offset + item * step
                if axis == 0 and on_chip:
                    new_steps.append(step)
                    new_counts.append(1)
                else:
                    dropped.append(step)
            else:
                start, size = _other_index(item, count, axis, self)
                offset = offset + start * step
                if size is None and not (axis == 0 and on_chip):
                    dropped.append(step)
                else:
                    new_steps.append(step)
                    new_counts.append(1 if size is None else size)
        least = 2 if on_chip else 1
        while len(new_counts) < least and dropped:
            new_steps.append(dropped.pop())
            new_counts.append(1)
        return NkiTensor(self._storage, self.dtype, offset, tuple(new_steps), tuple(new_counts))

    def ap(
        self,
        pattern: Any,
        offset: Any = None,
        scalar_offset: Any = None,
        vector_offset: Any = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> NkiTensor:
        """An access pattern over the flattened storage: ``offset + sum(step * index)`` in elements.

        Not composable: any earlier slicing is discarded (from 0.5.0 on, ``offset=None`` starts at this
        view's own offset). `dtype` reinterprets the bytes; pattern and offset count elements of it.
        scalar_offset: a register or 1x1 tensor, scaled by the elements right of `indirect_dim`;
        vector_offset: a column of row numbers, one per partition. Raises UnsupportedError; an instruction
        that uses a pattern which leaves the storage raises OutOfBoundsError.
        """
        storage = self._storage
        if offset is None:
            offset = self.offset if version.at_least(0, 5) else 0
        if dtype is None and scalar_offset is None and vector_offset is None:
            view = view_pattern(self, pattern, offset, ITEMSIZE[self.dtype])
            if view is not None:
                return view
        new_dtype = self.dtype if dtype is None else name_of(dtype)
        if not isinstance(offset, (Affine, int)):
            offset = int(offset)
        steps, counts = _pairs(pattern, self)
        if not counts or min(counts) < 1:
            raise OutOfBoundsError(f"{self.name}.ap(): the pattern {pattern} has an empty dimension")
        if storage.on_chip:
            width = storage.partition_bytes // ITEMSIZE[new_dtype]
            if steps[0] != width and self._is_tile_of(steps[0], new_dtype):
                offset = self._from_tile(offset, steps[0], width)
            elif counts[0] > 1 and steps[0] != width:
                raise UnsupportedError(
                    f"{self.name}.ap(): the partition step is {steps[0]}, but a partition holds "
                    f"{width} elements and engines read consecutive partitions",
                    cure=f"use [{width}, {counts[0]}] as the first pair of the pattern",
                )
            steps = (width, *steps[1:])
        indirect = None
        if scalar_offset is not None and vector_offset is not None:
            raise UnsupportedError(f"{self.name}.ap(): scalar_offset and vector_offset exclude each other")
        if scalar_offset is not None:
            step = math.prod(self._counts[indirect_dim + 1 :])
            scalar_offset = getattr(scalar_offset, "as_affine", scalar_offset)
            if isinstance(scalar_offset, (int, Affine)):
                offset = offset + scalar_offset * step
            else:
                indirect = Indirect("scalar", scalar_offset, step, indirect_dim, None)
        elif vector_offset is not None:
            if indirect_dim != 0:
                raise UnsupportedError(f"{self.name}.ap(): vector_offset works on indirect_dim=0 only")
            step = math.prod(self._counts[1:])
            indirect = Indirect("vector", vector_offset, step, 0, self._counts[0])
        return NkiTensor(storage, new_dtype, offset, steps, counts, indirect)

    def _is_tile_of(self, partition_step: int, dtype: str) -> bool:
        """Whether a partition step says that a pattern counts this view's elements, not the storage's.

        The documentation of 0.3.0 refuses `.ap()` on a tile; nki-library relies on it for tiles that are
        contiguous within a partition (a fused buffer of which helpers get a part).
        """
        free = self._counts[1:]
        return (
            dtype == self.dtype and partition_step == math.prod(free) and self._steps[1:] == contiguous(free)
        )

    def _from_tile(self, offset: Any, tile_width: int, width: int) -> Any:
        """The offset in the storage of an offset in this tile."""
        if not isinstance(offset, int):
            return self.offset + offset
        return self.offset + offset // tile_width * width + offset % tile_width

    def reshape(self, *shape: Any) -> NkiTensor:
        """The same memory in another shape; the elements must be the same number, and on chip the partition
        dimension stays. Raises UnsupportedError where strides do not permit a view."""
        new = tuple(
            int(n) for n in (shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
        )
        if -1 in new:
            known = -math.prod(new)
            new = tuple(self.size // known if n == -1 else n for n in new)
        if math.prod(new) != self.size:
            raise OutOfBoundsError(
                f"{self.name}: {self.shape} cannot be reshaped to {new}: {self.size} elements"
            )
        if self._storage.on_chip:
            if new[0] == self._counts[0]:
                free = _reshape_strides(self._counts[1:], self._steps[1:], new[1:])
                steps = None if free is None else (self._steps[0], *free)
            elif new[0] == 1 and self._counts[0] == 1:
                steps = None
            else:
                raise UnsupportedError(
                    f"{self.name}: reshape from {self.shape} to {new} would move data between partitions",
                    cure="keep the first dimension, or copy with dma_copy",
                )
        else:
            steps = _reshape_strides(self._counts, self._steps, new)
        if steps is None:
            raise UnsupportedError(
                f"{self.name}: a view with shape {self.shape} and strides {self._steps} cannot become {new} "
                "without a copy",
            )
        return NkiTensor(self._storage, self.dtype, self.offset, steps, new, self.indirection, self.whole)

    def view(self, dtype: Any) -> NkiTensor:
        """The same bytes as another data type; the last dimension is rescaled. Raises UnsupportedError."""
        new = name_of(dtype)
        old_size, new_size = ITEMSIZE[self.dtype], ITEMSIZE[new]
        if old_size == new_size:
            return NkiTensor(
                self._storage, new, self.offset, self._steps, self._counts, self.indirection, self.whole
            )
        if self._steps[-1] != 1 and self._counts[-1] != 1:
            raise UnsupportedError(f"{self.name}: view({new}) needs a contiguous last dimension")
        if self._counts[-1] * old_size % new_size:
            raise UnsupportedError(
                f"{self.name}: the last dimension of {self.shape} has {self._counts[-1] * old_size} bytes, "
                f"no multiple of {new_size}",
            )

        def scale(value: Any) -> Any:
            return (
                value * old_size // new_size
                if old_size >= new_size
                else _exact(value, old_size, new_size, self)
            )

        steps = (
            *(
                scale(step) if count > 1 else step * old_size // new_size
                for step, count in zip(self._steps[:-1], self._counts[:-1], strict=True)
            ),
            1,
        )
        if self._storage.on_chip:
            steps = (self._storage.partition_bytes // new_size, *steps[1:])
        counts = (*self._counts[:-1], self._counts[-1] * old_size // new_size)
        return NkiTensor(self._storage, new, scale(self.offset), steps, counts, self.indirection, self.whole)

    reinterpret_cast = view


refuse_values(NkiTensor)
describe_views(NkiTensor, Storage)


@functools.lru_cache(maxsize=4096)
def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major steps, in elements."""
    steps = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        steps[axis] = steps[axis + 1] * shape[axis + 1]
    return tuple(steps)


def whole_view(storage: Storage) -> NkiTensor:
    """The view of a storage as it was declared."""
    return NkiTensor(storage, storage.dtype, 0, contiguous(storage.shape), storage.shape, None, True)


def is_hbm(buffer: Any) -> bool:
    return buffer in HBM


def is_on_chip(buffer: Any) -> bool:
    return buffer in ON_CHIP


def _exact(value: Any, old: int, new: int, tensor: NkiTensor) -> Any:
    if isinstance(value, Affine):
        return value * old // new
    if value * old % new:
        raise UnsupportedError(f"{tensor.name}: the view starts at byte {value * old}, no multiple of {new}")
    return value * old // new


def _pairs(pattern: Any, tensor: NkiTensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Steps and counts of a pattern."""
    try:
        pairs = [(step, count) for step, count in pattern]
    except (TypeError, ValueError):
        raise ArgumentValueError(
            f"{tensor.name}.ap(): the pattern is pairs of [step, count], not {pattern!r}",
            cure="e.g. [[512, 128], [1, 512]]",
        ) from None
    what = f"{tensor.name}.ap()"
    return (
        tuple(whole_number(step, what) for step, _ in pairs),
        tuple(whole_number(count, what) for _, count in pairs),
    )


def _expand_ellipsis(key: tuple[Any, ...], rank: int, tensor: NkiTensor) -> tuple[Any, ...]:
    given = sum(1 for item in key if item is not Ellipsis)
    if given > rank:
        raise OutOfBoundsError(f"{tensor.name}: {given} indices for {rank} dimensions of {tensor.shape}")
    if given == len(key):
        return key + (slice(None),) * (rank - given)
    at = next(place for place, item in enumerate(key) if item is Ellipsis)
    return key[:at] + (slice(None),) * (rank - given) + key[at + 1 :]


def _bound(value: Any) -> Any:
    value = getattr(value, "as_affine", value)
    return value if isinstance(value, Affine) else whole_number(value, "a slice")


def _slice(item: slice, count: int, axis: int, tensor: NkiTensor) -> tuple[Any, int, int]:
    start, stop, stride = item.start, item.stop, item.step
    if stride is None:
        stride = 1
    elif whole_number(stride, "a slice") < 1:
        raise UnsupportedError(f"{tensor.name}: slices need a positive step, got {stride}")
    start = 0 if start is None else _bound(start)
    stop = count if stop is None else _bound(stop)
    if isinstance(start, Affine) or isinstance(stop, Affine):
        extent = stop - start
        if isinstance(extent, Affine):
            raise UnsupportedError(f"{tensor.name}: the size of slice {start}:{stop} must be a constant")
        return start, -(-extent // stride), stride
    if start < 0:
        start += count
    if stop < 0:
        stop += count
    if stop > count or start > count or start < 0:
        raise _outside(tensor, axis, f"{item.start}:{item.stop}")
    length = -(-(stop - start) // stride)
    if length < 1:
        raise OutOfBoundsError(f"{tensor.name}: slice {item.start}:{item.stop} of dimension {axis} is empty")
    return start, length, stride


def _other_index(item: Any, count: int, axis: int, tensor: NkiTensor) -> tuple[Any, int | None]:
    if isinstance(item, DynamicSlice):
        start = getattr(item.start, "as_affine", item.start)
        if not isinstance(start, Affine):
            start = int(start)
            if start < 0 or start + item.size > count:
                raise _outside(tensor, axis, f"ds({start}, {item.size})")
        return start, int(item.size)
    item = getattr(item, "as_affine", item)
    if isinstance(item, Affine):
        return item, None
    if hasattr(item, "__index__"):
        index = item.__index__()
        if index < 0:
            index += count
        if not 0 <= index < count:
            raise _outside(tensor, axis, item)
        return index, None
    raise UnsupportedError(f"{tensor.name}: cannot index with {type(item).__name__}")


def _outside(tensor: NkiTensor, axis: int, what: Any) -> OutOfBoundsError:
    return OutOfBoundsError(
        f"{tensor.name}: index {what} is outside dimension {axis} of shape {tensor.shape}",
        cure="tiles at the end of a dimension are often ragged: use min(size, remaining)",
    )


def _reshape_strides(
    counts: tuple[int, ...], steps: tuple[int, ...], new: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Steps of the reshaped view, or None if it needs a copy (the rule of `torch.Tensor.view`)."""
    old = [(count, step) for count, step in zip(counts, steps, strict=True) if count != 1]
    if not old:
        return (1,) * len(new)
    result = [0] * len(new)
    place = len(new) - 1
    index = len(old) - 1
    while index >= 0:
        chunk, base = old[index]
        index -= 1
        extent = chunk
        while index >= 0 and old[index][1] == base * extent:
            extent *= old[index][0]
            index -= 1
        done = 1
        while place >= 0 and (done < extent or new[place] == 1):
            result[place] = base * done
            done *= new[place]
            place -= 1
        if done != extent:
            return None
    return tuple(result)
