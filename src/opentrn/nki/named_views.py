"""Views by method, as NKI 0.5.0 added them: slices, selections at run time, permutations, named
dimensions.
"""

from __future__ import annotations

import math
from typing import Any

from opentrn.errors import UnsupportedError
from opentrn.nki.newer import NewerMethod


class Indirect:
    """The runtime part of an access: `source` scaled by `step` elements moves the address.

    kind "scalar": one value for all elements (a register, or a 1x1 tensor); "vector": one value per row.
    `bound` is how many rows exist (None: unchecked by row).
    """

    __slots__ = ("bound", "dim", "kind", "source", "step")

    def __init__(self, kind: str, source: Any, step: int, dim: int, bound: int | None) -> None:
        self.kind, self.source, self.step, self.dim, self.bound = kind, source, step, dim, bound


def _names(entry: Any) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else tuple(entry)


def _infer(tensor: str, names: tuple[str, ...], count: int, sizes: dict[str, int]) -> None:
    """Sizes of the dimensions that make up one of `count` elements; at most one of them is not known yet."""
    open_ = [name for name in names if sizes.get(name, -1) == -1]
    known = math.prod(sizes[name] for name in names if name not in open_)
    if len(open_) > 1:
        raise UnsupportedError(
            f"{tensor}: the sizes of {open_} are not known", cure="pass them in fixed_sizes"
        )
    if open_:
        sizes[open_[0]] = count // known
    if math.prod(sizes[name] for name in names) != count:
        raise UnsupportedError(f"{tensor}: {names} do not make up a dimension of {count} elements")


class NamedViews:
    """What `NkiTensor` has beside indexing, `ap`, `reshape` and `view`. All share its memory."""

    __slots__ = ()

    @NewerMethod
    def slice(self: Any, dim: int, start: int, stop: int, step: int = 1) -> Any:
        key: list[Any] = [slice(None)] * self.ndim
        key[dim] = slice(start, stop, step)
        return self[tuple(key)]

    @NewerMethod
    def select(self: Any, dim: int, index: Any) -> Any:
        """One element along a dimension; a tensor as index names it when the kernel runs."""
        if isinstance(index, NamedViews):
            return self._select_at_run_time(dim % self.ndim, index)
        key: list[Any] = [slice(None)] * self.ndim
        key[dim] = index
        return self[tuple(key)]

    def _select_at_run_time(self: Any, dim: int, index: Any) -> Any:
        self._check_direct("select")
        if self._storage.on_chip and dim == 0:
            raise UnsupportedError(f"{self.name}: a partition cannot be selected at run time")
        steps, counts = list(self._steps), list(self._counts)
        step, _ = steps.pop(dim), counts.pop(dim)
        return self._like(self.offset, steps, counts, Indirect("scalar", index, step, dim, None))

    @NewerMethod
    def vector_select(self: Any, dim: int, vector_offset: Any) -> Any:
        """A row of HBM for each partition of `vector_offset`."""
        self._check_direct("vector_select")
        if dim != 0 or self._storage.on_chip:
            raise UnsupportedError(f"{self.name}: vector_select takes dimension 0 of a tensor in HBM only")
        chosen = Indirect("vector", vector_offset, self._steps[0], 0, self._counts[0])
        return self._like(self.offset, self._steps, (vector_offset.shape[0], *self._counts[1:]), chosen)

    def _check_direct(self: Any, method: str) -> None:
        if self.indirection is not None:
            raise UnsupportedError(f"{self.name}: {method} of a view that already has a runtime offset")

    @NewerMethod
    def indirect(self: Any, index: Any, num_elem: int | None = None) -> Any:
        raise UnsupportedError(
            f"{self.name}: tensor indirection (NeuronCore-v4) is not modelled",
            cure="gather with nisa.nc_n_gather or nisa.local_gather, or by DMA with vector_select",
        )

    @NewerMethod
    def is_indirect(self: Any) -> bool:
        return self.indirection is not None

    @NewerMethod
    def is_contiguous(self: Any) -> bool:
        """Whether the view's elements lie side by side, within a partition on chip."""
        expected, held = 1, self._storage.on_chip
        for step, count in reversed(list(zip(self._steps, self._counts, strict=True))[int(held) :]):
            if count != 1 and step != expected:
                return False
            expected *= count
        return self.indirection is None

    @NewerMethod
    def rearrange(
        self: Any, src_pattern: Any, dst_pattern: Any, fixed_sizes: dict[str, int] | None = None
    ) -> Any:
        """Splits dimensions into named ones, orders these, and merges them: ("b", ("h", "w")) → ("b", "w",
        "h").
        """
        sizes = dict(fixed_sizes or {})
        if len(src_pattern) != self.ndim:
            raise UnsupportedError(
                f"{self.name}: {src_pattern} names {len(src_pattern)} of {self.ndim} dimensions"
            )
        for entry, count in zip(src_pattern, self._counts, strict=True):
            _infer(self.name, _names(entry), count, sizes)
        names = [name for entry in src_pattern for name in _names(entry)]
        order = [name for entry in dst_pattern for name in _names(entry)]
        if sorted(names) != sorted(order) or len(set(names)) != len(names):
            raise UnsupportedError(
                f"{self.name}: {dst_pattern} does not have the dimensions of {src_pattern}"
            )
        split = self.reshape(tuple(sizes[name] for name in names))
        moved = split._permute(tuple(names.index(name) for name in order))
        return moved.reshape(tuple(math.prod(sizes[name] for name in _names(entry)) for entry in dst_pattern))

    def _permute(self: Any, *dims: Any) -> Any:
        order = tuple(dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims)
        if sorted(order) != list(range(self.ndim)):
            raise UnsupportedError(f"{self.name}: permute{order} is no permutation of {self.ndim} dimensions")
        if self._storage.on_chip and order[0] != 0:
            raise UnsupportedError(f"{self.name}: the partition dimension cannot be permuted by a view")
        return self._with([self._steps[d] for d in order], [self._counts[d] for d in order])

    def _broadcast(self: Any, dim: int, size: int) -> Any:
        if self._counts[dim] != 1:
            raise UnsupportedError(
                f"{self.name}: dimension {dim} has size {self._counts[dim]}, only 1 broadcasts"
            )
        steps, counts = list(self._steps), list(self._counts)
        if self._storage.on_chip and dim == 0:
            raise UnsupportedError(f"{self.name}: the partition dimension cannot be broadcast by a view")
        steps[dim], counts[dim] = 0, size
        return self._with(steps, counts)

    def broadcast_to(self: Any, shape: Any) -> Any:
        result = self
        for dim, size in enumerate(shape):
            if result.shape[dim] != size:
                result = result._broadcast(dim, size)
        return result

    def expand(self: Any, dim: int) -> Any:
        dim = dim if dim >= 0 else dim + self.ndim + 1
        steps, counts = list(self._steps), list(self._counts)
        steps.insert(dim, 1)
        counts.insert(dim, 1)
        return self._with(steps, counts)

    expand_dim = NewerMethod(expand)

    def squeeze(self: Any, dim: int) -> Any:
        if self._counts[dim] != 1:
            raise UnsupportedError(f"{self.name}: dimension {dim} has size {self._counts[dim]}, not 1")
        steps, counts = list(self._steps), list(self._counts)
        del steps[dim], counts[dim]
        return self._with(steps, counts)

    squeeze_dim = NewerMethod(squeeze)

    @NewerMethod
    def reshape_dim(self: Any, dim: int, shape: Any) -> Any:
        shape = [int(n) for n in shape]
        if -1 in shape:
            shape[shape.index(-1)] = self._counts[dim] // -math.prod(shape)
        return self.reshape((*self._counts[:dim], *shape, *self._counts[dim + 1 :]))

    def flatten(self: Any, start: int = 1, stop: int = -1) -> Any:
        stop = stop % self.ndim
        merged = math.prod(self._counts[start : stop + 1])
        return self.reshape((*self._counts[:start], merged, *self._counts[stop + 1 :]))

    flatten_dims = NewerMethod(flatten)

    permute, broadcast = NewerMethod(_permute), NewerMethod(_broadcast)

    def _with(self: Any, steps: Any, counts: Any) -> Any:
        return self._like(self.offset, steps, counts, self.indirection)

    def _like(self: Any, offset: Any, steps: Any, counts: Any, indirection: Indirect | None) -> Any:
        make: Any = type(self)
        return make(self._storage, self.dtype, offset, tuple(steps), tuple(counts), indirection)
