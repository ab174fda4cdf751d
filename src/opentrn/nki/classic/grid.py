"""Launch grids of classic kernels: ``kernel[b, h]``, ``nl.spmd_dim(n, nl.nc(2))``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class nc:
    """Distribute a grid dimension over `count` cores."""

    count: int

    def __mul__(self, other: Any) -> spmd_dim:
        return spmd_dim(self.count * int(other), self)

    __rmul__ = __mul__


@dataclass(frozen=True)
class spmd_dim:
    """A grid dimension of `size` programs, distributed over cores."""

    size: int
    cores: nc | None = None


def sizes_of(grid: Any) -> tuple[tuple[int, ...], int]:
    """(programs along each dimension, cores)."""
    if grid is None:
        return (), 1
    dims = grid if isinstance(grid, (tuple, list)) else (grid,)
    sizes, cores = [], 1
    for dim in dims:
        if isinstance(dim, spmd_dim):
            sizes.append(dim.size)
            cores *= dim.cores.count if dim.cores else 1
        elif isinstance(dim, nc):
            sizes.append(dim.count)
            cores *= dim.count
        else:
            sizes.append(int(dim))
    return tuple(sizes), cores
