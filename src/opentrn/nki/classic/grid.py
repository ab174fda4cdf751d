"""Launch grids of classic kernels: ``kernel[b, h]``, ``nl.spmd_dim(nl.nc(2), n)``, ``2 * nl.nc(2)``."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from opentrn.errors import UnsupportedError
from opentrn.nki.traced import Launch


@dataclass(frozen=True)
class nc:
    """`count` cores, as a factor of a grid dimension."""

    count: int

    def __mul__(self, other: Any) -> spmd_dim:
        return spmd_dim(self, other)

    def __rmul__(self, other: Any) -> spmd_dim:
        return spmd_dim(other, self)


@dataclass(frozen=True)
class spmd_dim:
    """A grid dimension of outer · inner programs; the factor that is `nc` says which core runs which.

    ``spmd_dim(nc(2), n)``: the first n programs on core 0, the next on core 1; ``spmd_dim(n, nc(2))``: in
    turn.
    """

    outer: Any
    inner: Any = 1

    @property
    def size(self) -> int:
        return _count(self.outer) * _count(self.inner)

    @property
    def cores(self) -> int:
        return _cores(self.outer) * _cores(self.inner)

    def core(self, index: int) -> int:
        """The core of one program of this dimension."""
        outer, inner = divmod(index, _count(self.inner))
        return (outer if _cores(self.outer) > 1 else 0) * _cores(self.inner) + (
            inner if _cores(self.inner) > 1 else 0
        )


def _count(factor: Any) -> int:
    return factor.count if isinstance(factor, nc) else int(factor)


def _cores(factor: Any) -> int:
    return factor.count if isinstance(factor, nc) else 1


def launch_of(grid: Any) -> Launch:
    """The launch of a classic kernel: any number of programs on one or two cores.

    Raises UnsupportedError for more cores than a logical core has.
    """
    given = () if grid is None else grid if isinstance(grid, (tuple, list)) else (grid,)
    dims = [dim if isinstance(dim, spmd_dim) else spmd_dim(dim) for dim in given]
    cores = 1
    for dim in dims:
        cores *= dim.cores
    if cores > 2:
        raise UnsupportedError(f"a launch over {cores} cores: a logical core has one or two")
    spread: list[list[tuple[int, ...]]] = [[] for _ in range(cores)]
    for place in itertools.product(*(range(dim.size) for dim in dims)):
        core = 0
        for dim, index in zip(dims, place, strict=True):
            core = core * dim.cores + dim.core(index)
        spread[core].append(place or (0,))
    return Launch(tuple(dim.size for dim in dims), tuple(map(tuple, spread)))
