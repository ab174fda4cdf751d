"""Rows that indices name: gathers, scatters that add or overwrite, and the loss that picks one score of
each row.

128 indices at a time, one on each partition, become the addresses of a DMA, whose descriptors GpSimd writes.
Indices of 64 bits are read as words, of which the lower one counts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from opentrn.core.builder import Builder
from opentrn.core.library.elementwise import CHUNK, TILE
from opentrn.core.machine import DEFAULT_CHIP
from opentrn.core.program import Program

WIDTH_MAX = 8192  # elements of a row that move in one DMA
INDICES_MAX = 64  # indices of a partition that one DMA loads


class _Indices:
    """The indices [R] of a program, `fold` of them on a partition: index k of partition p is p * fold + k
    of its block. Symbols R and I (indices of a partition, at most 64).
    """

    def __init__(self, b: Builder, dtype: str) -> None:
        self.b, self.words = b, 2 if dtype == "int64" else 1
        self.count, self.fold = b.symbol("R"), b.symbol("I")
        self.tensor = b.hbm("index", (self.count * self.words,), "int32")

    def blocks(self) -> Iterator[tuple[Any, Any, Any, Any]]:
        """(tile of indices, first index, partitions, indices of a partition); opens loops."""
        b, size = self.b, self.fold * TILE
        with b.loop(0, self.count // size) as i:
            yield self._load(i * size, TILE, self.fold), i * size, TILE, self.fold
        done = self.count // size * size
        with b.loop(0, b.ceildiv(self.count - done, TILE)) as i:
            first = done + i * TILE
            rows = b.min(TILE, self.count - first)
            yield self._load(first, rows, 1), first, rows, 1

    def _load(self, first: Any, rows: Any, fold: Any) -> Any:
        b = self.b
        b.here()
        tile = b.sbuf("index", (TILE, INDICES_MAX), "int32")
        source = b.access(self.tensor, ((fold * self.words, rows), (self.words, fold)), first * self.words)
        b.emit("dma_copy", dst=b.access(tile, ((INDICES_MAX, rows), (1, fold))), src=source)
        return tile

    def column(self, tile: Any, k: Any, rows: Any) -> Any:
        return self.b.access(tile, ((INDICES_MAX, rows), (1, 1)), k)


def indices_per_partition(count: int) -> int:
    """As many as leave every partition some."""
    return max(1, min(INDICES_MAX, count // TILE))


@functools.lru_cache(maxsize=64)
def gather_program(dtype: str, index: str, chip: str = DEFAULT_CHIP) -> Program:
    """y[A, R, D] = x[A, T, D] at rows index[R]. Symbols A, R, T, D, I (`indices_per_partition`)."""
    b = Builder(chip=chip, name="gather_rows")
    outer, table, width = (b.symbol(name) for name in "ATD")
    indices = _Indices(b, index)
    x = b.hbm("x", (outer, table, width), dtype)
    y = b.hbm("y", (outer, indices.count, width), dtype, kind="output")
    for tile, first, rows, fold in indices.blocks():
        with b.loop(0, fold) as k, b.loop(0, outer) as a, b.loop(0, b.ceildiv(width, WIDTH_MAX)) as j:
            part = b.min(WIDTH_MAX, width - j * WIDTH_MAX)
            b.here()
            row = b.access(b.sbuf("row", (TILE, WIDTH_MAX), dtype), ((WIDTH_MAX, rows), (1, part)))
            source = b.access(
                x,
                ((width, rows), (1, part)),
                a * table * width + j * WIDTH_MAX,
                vector_offset=indices.column(tile, k, rows),
                vector_stride=width,
            )
            b.emit("dma_copy", dst=row, src=source, dge_mode="swdge", engine="gpsimd")
            target = b.access(
                y,
                ((fold * width, rows), (1, part)),
                (a * indices.count + first + k) * width + j * WIDTH_MAX,
            )
            b.emit("dma_copy", dst=target, src=row)
    return b.finish()


@functools.lru_cache(maxsize=64)
def scatter_program(dtype: str, index: str, add: bool, cleared: bool, chip: str = DEFAULT_CHIP) -> Program:
    """y[A, T, D] at rows index[R] takes, or has added, x[A, R, D]. Symbols as `gather_program`; cleared: y is
    filled with zeros first.
    """
    b = Builder(chip=chip, name="scatter_rows")
    outer, table, width = (b.symbol(name) for name in "ATD")
    indices = _Indices(b, index)
    x = b.hbm("x", (outer, indices.count, width), dtype)
    y = b.hbm("y", (outer, table, width), dtype, kind="output")
    if cleared:
        clear(b, y, outer * table * width, dtype)
    for tile, first, rows, fold in indices.blocks():
        with b.loop(0, fold) as k, b.loop(0, outer) as a, b.loop(0, b.ceildiv(width, WIDTH_MAX)) as j:
            part = b.min(WIDTH_MAX, width - j * WIDTH_MAX)
            b.here()
            row = b.access(b.sbuf("row", (TILE, WIDTH_MAX), dtype), ((WIDTH_MAX, rows), (1, part)))
            source = b.access(
                x,
                ((fold * width, rows), (1, part)),
                (a * indices.count + first + k) * width + j * WIDTH_MAX,
            )
            b.emit("dma_copy", dst=row, src=source)
            target = b.access(
                y,
                ((width, rows), (1, part)),
                a * table * width + j * WIDTH_MAX,
                vector_offset=indices.column(tile, k, rows),
                vector_stride=width,
            )
            if add:
                b.emit("dma_compute", dst=target, srcs=[target, row], reduce_op="add", unique_indices=False)
            else:
                b.emit("dma_copy", dst=target, src=row, dge_mode="swdge", engine="gpsimd")
    return b.finish()


def clear(b: Builder, tensor: Any, elements: Any, dtype: str) -> None:
    """Zeros everywhere, from one tile of them."""
    zeros = b.sbuf("zeros", (TILE, CHUNK), dtype)
    b.emit("memset", dst=zeros, value=0.0)
    size = TILE * CHUNK
    with b.loop(0, elements // size) as i:
        b.emit("dma_copy", dst=b.access(tensor, ((CHUNK, TILE), (1, CHUNK)), i * size), src=zeros)
    done = elements // size * size
    width = (elements - done) // TILE
    with b.loop(0, b.min(1, width)):
        part = b.access(zeros, ((CHUNK, TILE), (1, width)))
        b.emit("dma_copy", dst=b.access(tensor, ((width, TILE), (1, width)), done), src=part)
    rest = elements - done - width * TILE
    with b.loop(0, b.min(1, rest)):
        target = b.access(tensor, ((CHUNK, 1), (1, rest)), done + width * TILE)
        b.emit("dma_copy", dst=target, src=b.access(zeros, ((CHUNK, 1), (1, rest))), engine="scalar")


# ---- nll_loss ------------------------------------------------------------------------------------


class _Picked:
    """One element of each row of [R, D], by its class; classes that are `ignored` count for nothing."""

    def __init__(self, b: Builder, indices: _Indices, width: Any, ignored: int) -> None:
        self.b, self.indices, self.width, self.ignored = b, indices, width, ignored

    def places(self, tile: Any, first: Any, rows: Any, fold: Any) -> tuple[Any, Any]:
        """(flat places of the classes, ones where they count)."""
        b = self.b
        part = lambda t: b.access(t, ((INDICES_MAX, rows), (1, fold)))  # noqa: E731
        counts, flat, base = (
            b.sbuf(name, (TILE, INDICES_MAX), dtype)
            for name, dtype in (("counts", "float32"), ("flat", "int32"), ("base", "int32"))
        )
        b.emit("tensor_scalar", dst=part(counts), data=part(tile), op0="not_equal", operand0=self.ignored)
        b.emit("tensor_scalar", dst=part(flat), data=part(tile), op0="maximum", operand0=0)
        b.emit(
            "iota",
            dst=part(base),
            pattern=[[self.width, fold]],
            offset=first * self.width,
            channel_multiplier=fold * self.width,
        )
        # GpSimd adds integers of 32 bits exactly, the Vector engine in fp32.
        b.emit("tensor_tensor", dst=part(flat), data1=part(flat), data2=part(base), op="add", engine="gpsimd")
        return flat, counts


@functools.lru_cache(maxsize=32)
def picked_program(
    dtype: str, index: str, reduced: bool, chip: str = DEFAULT_CHIP, ignored: int = -100
) -> Program:
    """y = - x[r, index[r]] of x [R, D]: their mean [1] and count t [1], or (not reduced) all [R]."""
    b = Builder(chip=chip, name="nll_loss")
    width, indices = b.symbol("D"), _Indices(b, index)
    x = b.hbm("x", (indices.count * width, 1), dtype)
    y = b.hbm("y", (1 if reduced else indices.count,), dtype, kind="output")
    count = b.hbm("t", (1,), dtype, kind="output")
    totals = b.sbuf("totals", (TILE, 2), "float32")
    b.emit("memset", dst=totals, value=0.0)
    work = _Picked(b, indices, width, ignored)
    for tile, first, rows, fold in indices.blocks():
        flat, counts = work.places(tile, first, rows, fold)
        found = b.sbuf("found", (TILE, INDICES_MAX), dtype)
        with b.loop(0, fold) as k:
            source = b.access(
                x, ((1, rows), (1, 1)), vector_offset=indices.column(flat, k, rows), vector_stride=1
            )
            b.emit(
                "dma_copy", dst=indices.column(found, k, rows), src=source, dge_mode="swdge", engine="gpsimd"
            )
        whole = lambda t: b.access(t, ((INDICES_MAX, rows), (1, fold)))  # noqa: B023, E731
        loss = b.sbuf("loss", (TILE, INDICES_MAX), "float32")
        b.emit(
            "scalar_tensor_tensor",
            dst=whole(loss),
            data=whole(found),
            op0="multiply",
            operand0=-1.0,
            op1="multiply",
            operand1=whole(counts),
        )
        if not reduced:
            out = b.sbuf("out", (TILE, INDICES_MAX), dtype)
            b.emit("tensor_copy", dst=whole(out), src=whole(loss))
            b.emit("dma_copy", dst=b.access(y, ((fold, rows), (1, fold)), first), src=whole(out))
        for at, data in enumerate((loss, counts)):
            part = b.access(b.sbuf(f"part{at}", (TILE, 1), "float32"), ((1, rows), (1, 1)))
            b.emit("tensor_reduce", dst=part, op="add", data=whole(data), axis=[1])
            total = b.access(totals, ((2, rows), (1, 1)), at)
            b.emit("tensor_tensor", dst=total, data1=total, data2=part, op="add")
    _store_totals(b, totals, y if reduced else None, count, dtype)
    return b.finish()


def _store_totals(b: Builder, totals: Any, mean: Any, count: Any, dtype: str) -> None:
    ones = b.sbuf("ones", (TILE, 1), "float32")
    b.emit("memset", dst=ones, value=1.0)
    sums, both = b.psum("sums", (1, 2), "float32"), b.sbuf("both", (1, 2), "float32")
    b.emit("nc_matmul", dst=sums, stationary=ones, moving=totals)
    b.emit("tensor_copy", dst=both, src=sums)
    first, second = (b.access(both, ((2, 1), (1, 1)), k) for k in range(2))
    b.emit("tensor_scalar", dst=first, data=first, op0="divide", operand0=second)
    for tensor, value in ((mean, first), (count, second)):
        if tensor is not None:
            out = b.sbuf("stored", (1, 1), dtype)
            b.emit("tensor_copy", dst=out, src=value)
            b.emit("dma_copy", dst=tensor, src=out)


@functools.lru_cache(maxsize=32)
def picked_backward_program(
    dtype: str, index: str, reduced: bool, chip: str = DEFAULT_CHIP, ignored: int = -100
) -> Program:
    """dx [R, D]: zeros, and - g (/ t where reduced) at the class of each row. g [1] (or [R]), t [1]."""
    b = Builder(chip=chip, name="nll_loss_backward")
    width, indices = b.symbol("D"), _Indices(b, index)
    gradient = b.hbm("g", (1 if reduced else indices.count,), dtype)
    dx = b.hbm("dx", (indices.count * width, 1), dtype, kind="output")
    clear(b, dx, indices.count * width, dtype)
    scale = b.sbuf("scale", (TILE, 1), "float32")
    b.emit("memset", dst=scale, value=-1.0)
    if reduced:
        for name, tensor, op in (("g", gradient, "multiply"), ("t", b.hbm("t", (1,), dtype), "divide")):
            raw, wide = b.sbuf(f"{name}_raw", (TILE, 1), dtype), b.sbuf(name, (TILE, 1), "float32")
            b.emit("dma_copy", dst=raw, src=b.access(tensor, ((0, TILE), (1, 1))))
            b.emit("tensor_copy", dst=wide, src=raw)
            b.emit("tensor_tensor", dst=scale, data1=scale, data2=wide, op=op)
    work = _Picked(b, indices, width, ignored)
    for tile, first, rows, fold in indices.blocks():
        flat, counts = work.places(tile, first, rows, fold)
        whole = lambda t: b.access(t, ((INDICES_MAX, rows), (1, fold)))  # noqa: B023, E731
        value = b.sbuf("value", (TILE, INDICES_MAX), dtype)
        column = b.access(scale, ((1, rows), (1, 1)))
        if not reduced:
            raw = b.sbuf("gradients", (TILE, INDICES_MAX), dtype)
            b.emit("dma_copy", dst=whole(raw), src=b.access(gradient, ((fold, rows), (1, fold)), first))
            b.emit("tensor_tensor", dst=whole(counts), data1=whole(counts), data2=whole(raw), op="multiply")
        b.emit("tensor_scalar", dst=whole(value), data=whole(counts), op0="multiply", operand0=column)
        with b.loop(0, fold) as k:
            target = b.access(
                dx, ((1, rows), (1, 1)), vector_offset=indices.column(flat, k, rows), vector_stride=1
            )
            b.emit(
                "dma_copy", dst=target, src=indices.column(value, k, rows), dge_mode="swdge", engine="gpsimd"
            )
    return b.finish()
