"""Tensors of classic kernels: block dimensions, direct allocation in SBUF and PSUM."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from opentrn.errors import UnsupportedError
from opentrn.nki.classic.tile import Blocks, Tile, flush, par_dim, partition_first
from opentrn.nki.dtypes import ITEMSIZE
from opentrn.nki.enums import MemoryRegion
from opentrn.nki.tensor import NkiTensor, whole_view
from opentrn.nki.tile_sizes import tile_size
from opentrn.nki.tracing import active, active_or_none

PSUM_BANK_BYTES = 2048


class Placement:
    """Where the blocks of a tensor go: block index -> (start partition, byte offset)."""

    def __init__(
        self, region: MemoryRegion, address: Callable[[tuple[int, ...], int, int], tuple[int, int]]
    ) -> None:
        self.region, self.address = region, address


class LoopPlacements:
    """Placements made in one loop: its body is traced once, so later iterations get those of the first.

    Kernels compute addresses with Python integers that they advance inside the body (``cur_addr += …``);
    unrolling would advance them in every iteration.
    """

    def __init__(self) -> None:
        self.made: list[Placement] = []
        self.next = 0
        self.replaying = False
        self.index = self.number = 0  # of the current iteration, and of the loop
        self.calls: dict[tuple[str, int], int] = {}

    def again(self) -> None:
        """A further iteration begins."""
        self.replaying, self.next = True, 0
        self.calls.clear()

    def times(self, line: tuple[str, int]) -> int:
        """How often this iteration has been at a line, which a function of the kernel may be repeatedly."""
        self.calls[line] = self.calls.get(line, 0) + 1
        return self.calls[line]

    def take(self) -> Placement | None:
        """The next placement of the first iteration; None if it made fewer."""
        self.next += 1
        return self.made[self.next - 1] if self.next <= len(self.made) else None


def _placed(new: Placement) -> Placement:
    """`new`, or what the first iteration of the outermost repeated loop placed here."""
    tracer = active_or_none()
    loops: list[LoopPlacements] = tracer.loop_placements if tracer is not None else []
    chosen: Placement | None = None
    for loop in loops:
        if loop.replaying:
            known = loop.take()
            chosen = chosen if chosen is not None else known
    chosen = chosen if chosen is not None else new
    for loop in loops:
        if not loop.replaying:
            loop.made.append(chosen)
    return chosen


def _slot(place: tuple[int, ...], tiles: tuple[int, ...]) -> int:
    """Row-major number of a block, each coordinate modulo the number of tiles along it (missing: 1)."""
    tiles = tuple(tiles) + (1,) * (len(place) - len(tiles))
    number = 0
    for index, count in zip(place, tiles, strict=True):
        number = number * count + index % count
    return number


def sbuf_modulo(
    *, base_addr: int, base_partition: int = 0, num_par_tiles: Any = (), num_free_tiles: Any = ()
) -> Placement:
    """`sbuf.mod_alloc`: blocks in a ring of `num_free_tiles` slots from byte `base_addr`."""

    def address(place: tuple[int, ...], partitions: int, size: int) -> tuple[int, int]:
        return (
            base_partition + _slot(place, num_par_tiles) * partitions,
            base_addr + _slot(place, num_free_tiles) * size,
        )

    return _placed(Placement(MemoryRegion.sbuf, address))


def psum_modulo(
    *,
    base_bank: int,
    base_addr: int = 0,
    base_partition: int = 0,
    num_bank_tiles: Any = (),
    num_par_tiles: Any = (),
    num_free_tiles: Any = (),
) -> Placement:
    """`psum.mod_alloc`: blocks in a ring of banks, partitions and byte offsets."""

    def address(place: tuple[int, ...], partitions: int, size: int) -> tuple[int, int]:
        bank = base_bank + _slot(place, num_bank_tiles)
        return (
            base_partition + _slot(place, num_par_tiles) * partitions,
            bank * PSUM_BANK_BYTES + base_addr + _slot(place, num_free_tiles) * size,
        )

    return _placed(Placement(MemoryRegion.psum, address))


def sbuf_function(func: Callable[..., Any]) -> Placement:
    """`sbuf.alloc`: the kernel's own function gives (start partition, byte address)."""
    return _placed(
        Placement(
            MemoryRegion.sbuf,
            lambda place, partitions, size: tuple(func(idx=place, pdim_size=partitions, fdim_size=size)),
        )
    )  # type: ignore[arg-type, return-value]


def psum_function(func: Callable[..., Any]) -> Placement:
    """`psum.alloc`: the kernel's own function gives (bank, start partition, byte address in the bank)."""

    def address(place: tuple[int, ...], partitions: int, size: int) -> tuple[int, int]:
        bank, partition, offset = func(idx=place, pdim_size=partitions, fdim_size=size)
        return partition, bank * PSUM_BANK_BYTES + offset

    return _placed(Placement(MemoryRegion.psum, address))


def allocate(shape: Any, dtype: str, buffer: Any, name: str) -> Tile:
    """A new tensor of a classic kernel."""
    tracer = active()
    dims = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    region = buffer.region if isinstance(buffer, Placement) else buffer
    at = next((axis for axis, size in enumerate(dims) if isinstance(size, par_dim)), 0)
    dims = tuple(int(size) for size in dims)
    if not isinstance(region, MemoryRegion):
        raise UnsupportedError(f"buffer must be a memory of nki.language or an allocator, not {buffer!r}")
    if region not in (MemoryRegion.sbuf, MemoryRegion.psum):
        return Tile(tracer.allocate(dims, dtype, region, name, None))
    blocks, tile = dims[:at], dims[at:]
    tile = tile if len(tile) > 1 else (*tile, 1)
    size = math.prod(tile[1:]) * ITEMSIZE[dtype]
    fits = size * math.prod(blocks) <= tile_size.total_available_sbuf_size
    if not isinstance(buffer, Placement) and ((region is MemoryRegion.sbuf and fits) or not blocks):
        return Tile(_together(tracer, blocks, tile, dtype, region, name))

    def make(place: tuple[int, ...]) -> NkiTensor:
        address = buffer.address(place, tile[0], size) if isinstance(buffer, Placement) else None
        return tracer.allocate(tile, dtype, region, name, address)

    return Tile(None, None, Blocks(make, blocks, tile, dtype, region)) if blocks else Tile(make((0,)))


def _together(
    tracer: Any, blocks: tuple[int, ...], tile: tuple[int, ...], dtype: str, region: MemoryRegion, name: str
) -> NkiTensor:
    """One storage; block dimensions lie beside each other in the free dimension."""
    view = tracer.allocate((tile[0], *blocks, *tile[1:]), dtype, region, name, None)
    rank = len(blocks)
    if not rank:
        return view
    order = [*range(1, rank + 1), 0, *range(rank + 1, view.ndim)]
    return NkiTensor(
        view._storage,
        dtype,
        view.offset,
        tuple(view._steps[d] for d in order),
        tuple(view._counts[d] for d in order),
    )


def fill(tile: Tile, value: Any) -> None:
    """Set all elements. Zeros of PSUM wait for the first matmul's overwrite."""
    tracer = active()
    if tile.blocks is not None and tile.buffer is MemoryRegion.psum and value == 0:
        tile.blocks.zeros = True
        return
    views = [tile._view] if tile._view is not None else _all_blocks(tile)
    for view in views:
        assert view is not None
        if view._storage.on_chip and view.buffer is MemoryRegion.psum and value == 0:
            view._storage.zero_pending = True
            continue
        flush(tracer)
        tracer.locate()
        target = view if view._storage.on_chip else None
        if target is None:
            _fill_hbm(tracer, view, value)
            continue
        tracer.emit(
            "memset",
            dst=tracer.write(partition_first(whole_view(view._storage))),
            value=tracer.scalar(value),
            engine="unknown",
            name=None,
        )


def _fill_hbm(tracer: Any, view: NkiTensor, value: Any) -> None:
    rows = view.shape[0] if view.ndim > 1 and view.shape[0] <= 128 else 1
    flat = view.reshape((rows, view.size // rows))
    chunk = min(4096, flat.shape[1])
    tile = tracer.allocate((rows, chunk), view.dtype, MemoryRegion.sbuf, "fill", None)
    tracer.emit("memset", dst=tracer.write(tile), value=tracer.scalar(value), engine="unknown", name=None)
    for start in range(0, flat.shape[1], chunk):
        count = min(chunk, flat.shape[1] - start)
        tracer.emit(
            "dma_copy", dst=tracer.write(flat[:, start : start + count]), src=tracer.read(tile[:, 0:count])
        )


def _all_blocks(tile: Tile) -> list[NkiTensor]:
    import itertools

    assert tile.blocks is not None
    return [tile.blocks.at(place) for place in itertools.product(*(range(n) for n in tile.blocks.dims))]
