"""Batch and group normalisation of [N, C, S] tensors, forward and backward: a channel of an image on a
partition.

A tile takes `images` whole images where their channels fit the partitions together, else up to 128 channels
of one. Statistics are first summed along each partition; what several partitions share (a channel of several
images, a group of several channels) a product with a matrix of zeros and ones adds up. Both passes read
HBM: a channel of a batch seldom fits SBUF.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opentrn.core.builder import Builder
from opentrn.core.library.elementwise import CHUNK, TILE
from opentrn.core.machine import DEFAULT_CHIP
from opentrn.core.program import Program

TILES_MAX = 64  # tiles of channels whose gradients of gains are added up over the images
KINDS = ("batch", "batch_fixed", "batch_backward", "group", "group_backward")
_QUEUES = ("sync", "scalar")


@dataclass(frozen=True)
class Lanes:
    """How channels lie on partitions: those of `images` images together, or `block` of one."""

    images: int
    block: int


def lanes(batch: int, channels: int, group: int = 1) -> Lanes | None:
    """group: channels that share statistics; None where no tile holds whole groups."""
    if channels <= TILE:
        return Lanes(max(1, min(batch, TILE // channels)), channels)
    if group == 1:
        return Lanes(1, TILE)
    fitting = [size for size in range(group, TILE + 1, group) if channels % size == 0]
    return Lanes(1, fitting[-1]) if fitting else None


def symbols(batch: int, channels: int, inner: int, group: int = 1) -> dict[str, int]:
    """Values of a program's symbols: images, channels, places, images and places of one instruction,
    group.
    """
    found = lanes(batch, channels, group)
    assert found is not None
    width = min(inner, CHUNK)
    fold = max(1, min(CHUNK // width, -(-batch // found.images)))
    return {"N": batch, "C": channels, "S": inner, "F": fold, "W": width, "Q": group, "P": found.block}


@functools.lru_cache(maxsize=128)
def channels_program(
    kind: str, dtype: str, images: int, gains: tuple[str, ...], running: str | None, chip: str = DEFAULT_CHIP
) -> Program:
    """Symbols as `symbols` gives them; images: of one tile (more than one: P is C).

    Forward: x0 [N, C, S] → y0; backward: x0 the gradient, x1 the input → y0. gains: dtypes of w0 (and w1)
    [C]; their gradients are d0 and d1. running: dtype of the statistics r0 and r1 [C], updated by "batch"
    and used by "batch_fixed". Batch statistics are [C], group statistics [N, C / Q].
    """
    b = Builder(chip=chip, name=f"{kind}_norm")
    work = _Channels(b, kind, dtype, images, gains, running)
    if kind.startswith("group"):
        work.each_group()
    else:
        work.each_channel()
    return b.finish()


@dataclass(frozen=True)
class _Column:
    """One fp32 value per partition, in column `at` of a tile of `step` columns."""

    tile: Any
    at: Any = 0
    step: int = 1


class _Channels:
    def __init__(
        self, b: Builder, kind: str, dtype: str, images: int, gains: tuple[str, ...], running: str | None
    ) -> None:
        self.b, self.dtype, self.images, self.gain_types = b, dtype, images, gains
        self.backward, self.fixed = kind.endswith("backward"), kind == "batch_fixed"
        self.groups = kind.startswith("group")
        self.n, self.c, self.s, self.f, self.w, self.q, self.p = (b.symbol(name) for name in "NCSFWQP")
        shape = (self.n, self.c, self.s)
        self.x = [b.hbm(f"x{k}", shape, dtype) for k in range(2 if self.backward else 1)]
        self.y = b.hbm("y0", shape, dtype, kind="output")
        self.gains = [b.hbm(f"w{k}", (self.c,), gain) for k, gain in enumerate(gains)]
        self.running_type = running or "float32"
        self.running = [b.hbm(f"r{k}", (self.c,), running) for k in range(2)] if running else []
        count = self.n * (self.c // self.q) if self.groups else self.c
        given = "input" if self.backward else "output"
        self.statistics = (
            [] if self.fixed else [b.hbm(name, (count,), "float32", kind=given) for name in ("mean", "rstd")]
        )
        self.slopes = (
            [b.hbm(f"d{k}", (self.c,), gain, kind="output") for k, gain in enumerate(gains)]
            if self.backward
            else []
        )
        self.updated = (
            [b.hbm(f"u{k}", (self.c,), running, kind="output") for k in range(2)]
            if running and kind == "batch"
            else []
        )
        # Elements that share statistics.
        self.shared = (self.q if self.groups else self.n) * self.s
        self.same_channel = self._matrix("same_channel", False) if images > 1 else None
        self.same_group = self._matrix("same_group", True) if self.groups else None

    # ---- partitions ------------------------------------------------------------------------------

    def _matrix(self, name: str, group: bool) -> Any:
        """Ones where two partitions share a channel (p mod C), or a group (p less p mod Q)."""
        b = self.b
        row, column = (
            b.sbuf(f"{name}_row", (TILE, TILE), "float32"),
            b.sbuf(f"{name}_c", (TILE, 1), "float32"),
        )
        b.emit("iota", dst=row, pattern=[[1, TILE]])
        b.emit("iota", dst=column, pattern=[[0, 1]], channel_multiplier=1)
        for tile, size in ((row, TILE), (column, 1)):
            rest = b.sbuf(f"{name}_rest", (TILE, size), "float32")
            b.emit("tensor_scalar", dst=rest, data=tile, op0="mod", operand0=self.q if group else self.c)
            if group:
                b.emit("tensor_tensor", dst=tile, data1=tile, data2=rest, op="subtract")
            else:
                b.emit("tensor_copy", dst=tile, src=rest)
        matrix = b.sbuf(name, (TILE, TILE), "float32")
        b.emit("tensor_scalar", dst=matrix, data=row, op0="equal", operand0=column)
        return matrix

    def column(self, name: str) -> _Column:
        return _Column(self.b.sbuf(name, (TILE, 1), "float32"))

    def pair(self, name: str) -> tuple[_Column, _Column]:
        """Two columns side by side, zeroed."""
        tile = self.b.sbuf(name, (TILE, 2), "float32")
        self.b.emit("memset", dst=tile, value=0.0)
        return _Column(tile, 0, 2), _Column(tile, 1, 2)

    def on(self, value: Any, rows: Any = None) -> Any:
        """Access of a column on the partitions of the current tile, or on the first `rows`."""
        if not isinstance(value, _Column):
            return value
        rows = self.rows if rows is None else rows
        return self.b.access(value.tile, ((value.step, rows), (1, 1)), value.at)

    def shared_sums(self, pair: tuple[_Column, _Column], matrix: Any) -> tuple[_Column, _Column]:
        """Each value of a pair summed over the partitions that share it."""
        if matrix is None:
            return pair
        b = self.b
        total = b.access(b.psum("shared", (TILE, 2), "float32"), ((2, self.rows), (1, 2)))
        ones = b.access(matrix, ((TILE, self.rows), (1, self.rows)))
        b.emit(
            "nc_matmul", dst=total, stationary=ones, moving=b.access(pair[0].tile, ((2, self.rows), (1, 2)))
        )
        tile = b.sbuf("sums", (TILE, 2), "float32")
        b.emit("tensor_copy", dst=b.access(tile, ((2, self.rows), (1, 2))), src=total)
        return _Column(tile, 0, 2), _Column(tile, 1, 2)

    def load_column(self, name: str, dtype: str, source: Any) -> _Column:
        b = self.b
        raw = b.sbuf(f"{name}_raw", (TILE, 1), dtype)
        b.emit("dma_copy", dst=b.access(raw, ((1, self.rows), (1, 1))), src=source, engine="scalar")
        if dtype == "float32":
            return _Column(raw)
        wide = self.column(name)
        b.emit("tensor_copy", dst=self.on(wide), src=b.access(raw, ((1, self.rows), (1, 1))))
        return wide

    def of_channels(self, tensor: Any) -> Any:
        """A [C] tensor on the partitions of the current tile, once for each image."""
        copies = self.rows // self.p if self.images > 1 else 1
        width = self.p if self.images > 1 else self.rows
        return self.b.access(tensor, ((0, copies), (1, width)), self.first)

    def store(self, tensor: Any, dtype: str, value: _Column, first: Any, rows: Any, step: Any = 1) -> None:
        """Every `step`th of `rows` partitions of a column → elements of a tensor from `first` on."""
        b = self.b
        out = b.sbuf("stored", (TILE, 1), dtype)
        b.emit("tensor_copy", dst=b.access(out, ((1, rows), (1, 1))), src=self.on(value, rows))
        source = b.access(out, ((step, rows // step), (1, 1)))
        b.emit(
            "dma_copy", dst=b.access(tensor, ((1, rows // step), (1, 1)), first), src=source, engine="scalar"
        )

    # ---- pieces of the data ----------------------------------------------------------------------

    def pieces(self, row: Any, tiles: Any, rows: Any) -> Iterator[None]:
        """Chunks of `rows` partitions from row `row` of [N * C, S] on and of `tiles` such tiles, images
        apart.
        """
        b, step = self.b, self.images * self.c * self.s
        with b.loop(0, b.ceildiv(tiles, self.f)) as i, b.loop(0, b.ceildiv(self.s, self.w)) as j:
            fold, width = b.min(self.f, tiles - i * self.f), b.min(self.w, self.s - j * self.w)
            self.in_tile = ((CHUNK, rows), (self.w, fold), (1, width))
            self.in_hbm = ((self.s, rows), (step, fold), (1, width))
            self.at = row * self.s + i * self.f * step + j * self.w
            self.part_rows = rows
            b.here()
            yield

    def given(self, k: int) -> Any:
        tile = self.temporary(f"x{k}", self.dtype)
        source = self.b.access(self.x[k], self.in_hbm, self.at)
        self.b.emit("dma_copy", dst=tile, src=source, engine=_QUEUES[k])
        return tile

    def temporary(self, name: str, dtype: str = "float32") -> Any:
        return self.b.access(self.b.sbuf(name, (TILE, CHUNK), dtype), self.in_tile)

    def add(self, total: Any, part: Any, rows: Any = None) -> None:
        total, part = self.on(total, rows), self.on(part, rows)
        self.b.emit("tensor_tensor", dst=total, data1=total, data2=part, op="add")

    # ---- the two passes --------------------------------------------------------------------------

    def sums(self, totals: tuple[_Column, _Column], mean: _Column | None) -> None:
        """Adds a piece's sums: of x and its square, or backward of (x - mean) gradient and of the
        gradient.
        """
        b, rows = self.b, self.part_rows
        parts = self.column("part0"), self.column("part1")
        first = self.given(0)
        if self.backward:
            product = self.temporary("product")
            b.emit(
                "scalar_tensor_tensor",
                dst=product,
                data=self.given(1),
                op0="subtract",
                operand0=self.on(mean, rows),
                op1="multiply",
                operand1=first,
            )
            self._summed("identity", product, parts[0])
            self._summed("identity", first, parts[1])
        else:
            b.emit("tensor_reduce", dst=self.on(parts[0], rows), op="add", data=first, axis=[1, 2])
            self._summed("square", first, parts[1])
        for total, part in zip(totals, parts, strict=True):
            self.add(total, part, rows)

    def _summed(self, function: str, data: Any, into: Any) -> None:
        self.b.emit(
            "activation_reduce",
            dst=self.temporary("mapped"),
            op=function,
            data=data,
            reduce_op="add",
            reduce_res=self.on(into, self.part_rows),
        )

    def apply(self, scale: _Column, shift: _Column, slope: _Column | None = None) -> None:
        """y = x0 scale + shift, or backward x0 slope + x1 scale + shift."""
        b, rows = self.b, self.part_rows
        out = self.temporary("y0", self.dtype)
        target = self.temporary("line") if self.backward else out
        first = self.given(0)
        data = self.given(1) if self.backward else first
        scale_, shift_ = self.on(scale, rows), self.on(shift, rows)
        b.emit("activation", dst=target, op="identity", data=data, scale=scale_, bias=shift_)
        if self.backward:
            b.emit(
                "scalar_tensor_tensor",
                dst=out,
                data=first,
                op0="multiply",
                operand0=self.on(slope, rows),
                op1="add",
                operand1=target,
            )
        b.emit("dma_copy", dst=b.access(self.y, self.in_hbm, self.at), src=out)

    # ---- values per partition --------------------------------------------------------------------

    def scalar(self, name: str | _Column, data: _Column, *steps: tuple[str, Any]) -> _Column:
        """A new column (or a given one): `data` through one or two operations."""
        made = self.column(name) if isinstance(name, str) else name
        arguments: dict[str, Any] = {}
        for number, (op, operand) in enumerate(steps):
            arguments |= {f"op{number}": op, f"operand{number}": self.on(operand)}
        self.b.emit("tensor_scalar", dst=self.on(made), data=self.on(data), **arguments)
        return made

    def root(self, variance: _Column, epsilon: float = 1e-5) -> _Column:
        rstd = self.scalar("rstd", variance, ("add", epsilon))
        self.b.emit("activation", dst=self.on(rstd), op="rsqrt", data=self.on(rstd))
        return rstd

    def moments(self, sums: tuple[_Column, _Column]) -> tuple[_Column, _Column, _Column]:
        """(mean, variance, 1 / standard deviation) from sums of x and of its square."""
        mean = self.scalar("mean", sums[0], ("divide", self.shared))
        square = self.scalar("of_mean", mean, ("multiply", mean))
        variance = self.scalar("variance", sums[1], ("divide", self.shared), ("subtract", square))
        return mean, variance, self.root(variance)

    def line(self, mean: _Column, rstd: _Column) -> tuple[_Column, _Column]:
        """(scale, shift) of the forward pass."""
        scale = self.scalar("scale", rstd, ("multiply", self.gain(0) if self.gains else 1.0))
        shift = self.scalar("shift", scale, ("multiply", mean), ("multiply", -1.0))
        if len(self.gains) > 1:
            self.add(shift, self.gain(1))
        return scale, shift

    def gain(self, k: int) -> _Column:
        return self.load_column(f"w{k}", self.gain_types[k], self.of_channels(self.gains[k]))

    def backward_line(
        self, sums: tuple[_Column, _Column], mean: _Column, rstd: _Column, gain: Any
    ) -> tuple[_Column, _Column, _Column]:
        """(scale, shift, slope): dx = rstd (w g - s1 / n - (x - mean) rstd^2 s0 / n), s of w g."""
        slope = self.scalar("slope", rstd, ("multiply", gain))
        cubed = self.scalar("cubed", rstd, ("multiply", rstd), ("multiply", rstd))
        scale = self.scalar("scale", sums[0], ("multiply", cubed), ("divide", self.shared))
        self.scalar(scale, scale, ("multiply", -1.0))
        shift = self.scalar("shift", sums[1], ("multiply", rstd), ("divide", self.shared))
        moved = self.scalar("moved", scale, ("multiply", mean))
        self.add(shift, moved)
        return scale, self.scalar(shift, shift, ("multiply", -1.0)), slope

    # ---- batch normalisation ---------------------------------------------------------------------

    def each_channel(self) -> None:
        b = self.b
        with b.loop(0, 1 if self.images > 1 else b.ceildiv(self.c, self.p)) as j:
            self.first = j * self.p
            self.rows = self.images * self.p if self.images > 1 else b.min(self.p, self.c - self.first)
            b.here()
            if self.fixed:
                mean, variance = (self._running(k) for k in range(2))
                line: Any = self.line(mean, self.root(variance))
            else:
                line = self._batch_backward() if self.backward else self._batch_statistics()
            for _ in self._batch():
                self.apply(*line)

    def _batch(self) -> Iterator[None]:
        """All images of the current channels: whole tiles, then what is left of the images."""
        whole = self.n // self.images
        yield from self.pieces(self.first, whole, self.rows)
        if self.images > 1:
            rest = self.n - whole * self.images
            with self.b.loop(0, self.b.min(1, rest)):
                yield from self.pieces(whole * self.images * self.c, 1, rest * self.c)

    def _batch_sums(self, mean: _Column | None) -> tuple[_Column, _Column]:
        totals = self.pair("totals")
        for _ in self._batch():
            self.sums(totals, mean)
        return self.shared_sums(totals, self.same_channel)

    def _running(self, k: int) -> _Column:
        return self.load_column(f"r{k}", self.running_type, self.of_channels(self.running[k]))

    def _store_channels(self, tensor: Any, dtype: str, value: _Column) -> None:
        self.store(tensor, dtype, value, self.first, self.p if self.images > 1 else self.rows)

    def _batch_statistics(self, momentum: float = 0.1) -> tuple[_Column, _Column]:
        mean, variance, rstd = self.moments(self._batch_sums(None))
        for tensor, value in zip(self.statistics, (mean, rstd), strict=True):
            self._store_channels(tensor, "float32", value)
        for k, tensor in enumerate(self.updated):
            new = self.scalar("new", self._running(k), ("multiply", 1 - momentum))
            self.add(new, self.scalar("weighed", (mean, variance)[k], ("multiply", momentum)))
            self._store_channels(tensor, self.running_type, new)
        return self.line(mean, rstd)

    def _batch_backward(self) -> tuple[_Column, _Column, _Column]:
        mean, rstd = (
            self.load_column(name, "float32", self.of_channels(tensor))
            for name, tensor in zip(("mean", "rstd"), self.statistics, strict=True)
        )
        sums = self._batch_sums(mean)
        slopes = self.scalar("d0", sums[0], ("multiply", rstd)), sums[1]
        for tensor, dtype, value in zip(self.slopes, self.gain_types, slopes, strict=False):
            self._store_channels(tensor, dtype, value)
        gain = self.gain(0) if self.gains else 1.0
        for value in sums:
            self.scalar(value, value, ("multiply", gain))
        return self.backward_line(sums, mean, rstd, gain)

    # ---- group normalisation ---------------------------------------------------------------------

    def each_group(self) -> None:
        b = self.b
        self.rows = self.images * self.p
        added = [b.sbuf(f"added{k}", (TILE, TILES_MAX), "float32") for k in range(len(self.slopes))]
        for tile in added:
            b.emit("memset", dst=tile, value=0.0)
        with b.loop(0, b.ceildiv(self.n, self.images)) as i, b.loop(0, self.c // self.p) as j:
            self.first, row = j * self.p, i * (self.images * self.c) + j * self.p
            if self.images > 1:
                self.rows = b.min(self.images * self.p, self.n * self.c - row)
            b.here()
            if self.backward:
                line: Any = self._group_backward(row, [_Column(tile, j, TILES_MAX) for tile in added])
            else:
                line = self._group_statistics(row)
            for _ in self.pieces(row, 1, self.rows):
                self.apply(*line)
        self._store_added(added)

    def _group_sums(self, row: Any, mean: _Column | None) -> tuple[_Column, _Column]:
        totals = self.pair("totals")
        for _ in self.pieces(row, 1, self.rows):
            self.sums(totals, mean)
        return totals

    def _group_statistics(self, row: Any) -> tuple[_Column, _Column]:
        sums = self.shared_sums(self._group_sums(row, None), self.same_group)
        mean, _, rstd = self.moments(sums)
        for tensor, value in zip(self.statistics, (mean, rstd), strict=True):
            self.store(tensor, "float32", value, row // self.q, self.rows, self.q)
        return self.line(mean, rstd)

    def _group_backward(self, row: Any, added: list[_Column]) -> tuple[_Column, _Column, _Column]:
        mean, rstd = (
            self.load_column(
                name, "float32", self.b.access(tensor, ((1, self.rows // self.q), (0, self.q)), row // self.q)
            )
            for name, tensor in zip(("mean", "rstd"), self.statistics, strict=True)
        )
        sums = self._group_sums(row, mean)
        slopes = self.scalar("d0", sums[0], ("multiply", rstd)), sums[1]
        for total, value in zip(added, slopes, strict=False):
            self.add(total, value)
        gain = self.gain(0) if self.gains else 1.0
        for value in sums:
            self.scalar(value, value, ("multiply", gain))
        return self.backward_line(self.shared_sums(sums, self.same_group), mean, rstd, gain)

    def _store_added(self, added: list[Any]) -> None:
        """The gradients of the gains, from what the images added up."""
        b = self.b
        if not added:
            return
        with b.loop(0, self.c // self.p) as j:
            self.first, self.rows = j * self.p, self.images * self.p
            b.here()
            totals = self.pair("gradients")
            for total, tile in zip(totals, added, strict=False):
                self.add(total, _Column(tile, j, TILES_MAX))
            sums = self.shared_sums(totals, self.same_channel)
            for tensor, dtype, value in zip(self.slopes, self.gain_types, sums, strict=False):
                self._store_channels(tensor, dtype, value)
