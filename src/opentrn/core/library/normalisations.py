"""Operators on rows: softmax and its logarithm, layer and RMS normalisation, each with its backward.

128 rows at a time. *Resident* rows are loaded once and stay in SBUF while several passes go over their
columns, 2048 at a time; longer rows (the logits of a large vocabulary) are *streamed*: every pass loads
them again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from opentrn.core.builder import Builder
from opentrn.core.library.elementwise import CHUNK, TILE
from opentrn.core.library.reductions import BANK
from opentrn.core.machine import DEFAULT_CHIP
from opentrn.core.program import Program

_QUEUES = ("sync", "scalar")


@dataclass
class Chunk:
    """Columns of the current rows: access of each input, of each result, and a maker of temporaries."""

    x: list[Any]
    y: list[Any]
    temporary: Callable[[str], Any]
    row: Callable[[int], Any]  # an operand of one value per column, repeated over the rows
    columns: Any  # (first column, columns)


class Rows:
    """The rows of one program. inputs, outputs: (name, dtype) of [M, N] tensors; gains: of [N] tensors."""

    def __init__(
        self, b: Builder, inputs: list[str], outputs: list[str], gains: list[str], room: int | None
    ) -> None:
        self.b, self.room = b, room
        self.m, self.n = b.symbol("M"), b.symbol("N")
        self.input_types, self.output_types, self.gain_types = inputs, outputs, gains
        self.sources = [b.hbm(f"x{k}", (self.m, self.n), dtype) for k, dtype in enumerate(inputs)]
        self.results = [
            b.hbm(f"y{k}", (self.m, self.n), dtype, kind="output") for k, dtype in enumerate(outputs)
        ]
        self.gains = [b.hbm(f"w{k}", (self.n,), dtype) for k, dtype in enumerate(gains)]
        self.gain_tiles = [self._load_gain(k) for k in range(len(gains))] if room else []
        self.count = 0
        # [M, 1] tensors of what a forward pass hands to its backward pass, by name; sums over rows, of a
        # backward pass.
        self.statistics: dict[str, Any] = {}
        self.sums: list[Any] = []

    def _load_gain(self, k: int) -> Any:
        tile = self.b.sbuf(f"w{k}", (TILE, self.room), self.gain_types[k])
        source = self.b.access(self.gains[k], ((0, TILE), (1, self.n)))
        self.b.emit("dma_copy", dst=self.b.access(tile, ((self.room, TILE), (1, self.n))), src=source)
        return tile

    def blocks(self) -> Iterator[None]:
        """128 rows at a time; loads what is resident."""
        b = self.b
        with b.loop(0, b.ceildiv(self.m, TILE)) as i:
            self.first, self.rows = i * TILE, b.min(TILE, self.m - i * TILE)
            b.here()
            self.resident = []
            for k in range(len(self.sources)) if self.room else ():
                tile = b.sbuf(f"x{k}", (TILE, self.room), self.input_types[k])
                source = b.access(self.sources[k], ((self.n, self.rows), (1, self.n)), self.first * self.n)
                whole = b.access(tile, ((self.room, self.rows), (1, self.n)))
                b.emit("dma_copy", dst=whole, src=source, engine=_QUEUES[k % 2])
                self.resident.append(tile)
            yield

    def column(self, name: str, value: float | None = None) -> Any:
        """One fp32 value per row."""
        access = self.b.access(self.b.sbuf(name, (TILE, 1), "float32"), ((1, self.rows), (1, 1)))
        if value is not None:
            self.b.emit("memset", dst=access, value=value)
        return access

    def each(
        self, reads: tuple[int, ...], writes: tuple[int, ...] = (), overlapping: bool = False
    ) -> Iterator[Chunk]:
        """The columns of the current rows, 2048 at a time; what `writes` names is stored after the body.
        overlapping: the last chunk is as wide as the others, and begins within the one before.
        """
        b = self.b
        with b.loop(0, b.ceildiv(self.n, CHUNK)) as j:
            at, width = j * CHUNK, b.min(CHUNK, self.n - j * CHUNK)
            if overlapping:
                width = b.min(CHUNK, self.n)
                at = b.min(j * CHUNK, self.n - width)
            b.here()
            part = lambda tile: b.access(tile, ((CHUNK, self.rows), (1, width)))  # noqa: E731
            in_hbm = lambda tensor: b.access(  # noqa: E731
                tensor, ((self.n, self.rows), (1, width)), self.first * self.n + at
            )
            given: list[Any] = [None] * len(self.sources)
            for k in reads:
                if self.room:
                    given[k] = b.access(self.resident[k], ((self.room, self.rows), (1, width)), at)
                    continue
                given[k] = part(b.sbuf(f"x{k}", (TILE, CHUNK), self.input_types[k]))
                b.emit("dma_copy", dst=given[k], src=in_hbm(self.sources[k]), engine=_QUEUES[k % 2])
            made: list[Any] = [None] * len(self.results)
            for k in writes:
                made[k] = part(b.sbuf(f"y{k}", (TILE, CHUNK), self.output_types[k]))

            def row(k: int) -> Any:
                return b.access(self.gain_tiles[k], ((self.room, self.rows), (1, width)), at)

            yield Chunk(
                given, made, lambda name: part(b.sbuf(name, (TILE, CHUNK), "float32")), row, (at, width)
            )
            for k in writes:
                self.write(k, made[k], at, width)

    def write(self, k: int, chunk: Any, at: Any, width: Any) -> None:
        """Stores a chunk of result k, whose columns begin at `at`."""
        target = self.b.access(self.results[k], ((self.n, self.rows), (1, width)), self.first * self.n + at)
        self.b.emit("dma_copy", dst=target, src=chunk, engine=_QUEUES[(k + 1) % 2])

    # ---- the steps that several operators share --------------------------------------------------

    def accumulate(self, total: Any, part: Any, op: str = "add") -> None:
        self.b.emit("tensor_tensor", dst=total, data1=total, data2=part, op=op)

    def sum(self, into: Any, data: Any) -> None:
        part = self.column("part")
        self.b.emit("tensor_reduce", dst=part, op="add", data=data, axis=[1])
        self.accumulate(into, part)

    def sum_of(self, into: Any, op: str, chunk: Any, name: str, **more: Any) -> None:
        """Adds up op(x0) of a chunk, whose values go to the temporary `name`. more: of activation_reduce."""
        part = self.column("part")
        self.b.emit(
            "activation_reduce",
            dst=chunk.temporary(name),
            op=op,
            data=chunk.x[0],
            reduce_op="add",
            reduce_res=part,
            **more,
        )
        self.accumulate(into, part)

    def scaled(self, column: Any, factor: Any, op: str = "multiply") -> None:
        self.b.emit("tensor_scalar", dst=column, data=column, op0=op, operand0=factor)

    def negated(self, column: Any) -> Any:
        minus = self.column("minus")
        self.b.emit("tensor_scalar", dst=minus, data=column, op0="multiply", operand0=-1.0)
        return minus

    def store_column(self, tensor: Any, column: Any) -> None:
        self.b.emit(
            "dma_copy",
            dst=self.b.access(tensor, ((1, self.rows), (1, 1)), self.first),
            src=column,
            engine="scalar",
        )


def _maximum_and_sum(r: Rows) -> tuple[Any, Any]:
    """(negated maximum, sum of exponentials) of each row of x0."""
    b = r.b
    largest, total = r.column("max", -3.0e38), r.column("sum", 0.0)
    for chunk in r.each((0,)):
        part = r.column("part")
        b.emit("tensor_reduce", dst=part, op="maximum", data=chunk.x[0], axis=[1])
        r.accumulate(largest, part, "maximum")
    minus = r.negated(largest)
    for chunk in r.each((0,)):
        r.sum_of(total, "exp", chunk, "e", bias=minus)
    return minus, total


def _softmax(r: Rows) -> None:
    """y = exp(x - max) / sum."""
    b = r.b
    minus, total = _maximum_and_sum(r)
    b.emit("reciprocal", dst=total, data=total)
    for chunk in r.each((0,), (0,)):
        e = chunk.temporary("e")
        b.emit("activation", dst=e, op="exp", data=chunk.x[0], bias=minus)
        b.emit("tensor_scalar", dst=chunk.y[0], data=e, op0="multiply", operand0=total)


def _log_softmax(r: Rows) -> None:
    """y = x - max - log(sum)."""
    b = r.b
    minus, total = _maximum_and_sum(r)
    logarithm = r.column("log")
    b.emit("activation", dst=logarithm, op="log", data=total)
    for chunk in r.each((0,), (0,)):
        b.emit(
            "tensor_scalar",
            dst=chunk.y[0],
            data=chunk.x[0],
            op0="add",
            operand0=minus,
            op1="subtract",
            operand1=logarithm,
        )


def _softmax_backward(r: Rows) -> None:
    """x0 = gradient, x1 = softmax: y = x1 (x0 - sum(x0 x1))."""
    b = r.b
    total = r.column("sum", 0.0)
    for chunk in r.each((0, 1)):
        product = chunk.temporary("product")
        b.emit("tensor_tensor", dst=product, data1=chunk.x[0], data2=chunk.x[1], op="multiply")
        r.sum(total, product)
    for chunk in r.each((0, 1), (0,)):
        b.emit(
            "scalar_tensor_tensor",
            dst=chunk.y[0],
            data=chunk.x[0],
            op0="subtract",
            operand0=total,
            op1="multiply",
            operand1=chunk.x[1],
        )


def _log_softmax_backward(r: Rows) -> None:
    """x0 = gradient, x1 = log softmax: y = x0 - exp(x1) sum(x0)."""
    b = r.b
    total = r.column("sum", 0.0)
    for chunk in r.each((0,)):
        r.sum(total, chunk.x[0])
    minus = r.negated(total)
    for chunk in r.each((0, 1), (0,)):
        e = chunk.temporary("e")
        b.emit("activation", dst=e, op="exp", data=chunk.x[1])
        b.emit(
            "scalar_tensor_tensor",
            dst=chunk.y[0],
            data=e,
            op0="multiply",
            operand0=minus,
            op1="add",
            operand1=chunk.x[0],
        )


def _norm(r: Rows, centred: bool, epsilon: float = 1e-6) -> None:
    """y = (x - mean) rstd w0 + w1 (layer) or x rstd w0 (RMS); the statistics are stored too."""
    b = r.b
    square = r.column("square", 0.0)
    mean = r.column("mean", 0.0) if centred else None
    for chunk in r.each((0,)):
        r.sum_of(square, "square", chunk, "squares")
        if mean is not None:
            r.sum(mean, chunk.x[0])
    r.scaled(square, r.n, "divide")
    if mean is not None:
        r.scaled(mean, r.n, "divide")
        of_mean = r.column("mean_square")
        b.emit("activation", dst=of_mean, op="square", data=mean)
        b.emit("tensor_tensor", dst=square, data1=square, data2=of_mean, op="subtract")
    rstd = r.column("rstd")
    b.emit("tensor_scalar", dst=rstd, data=square, op0="add", operand0=epsilon)
    b.emit("activation", dst=rstd, op="rsqrt", data=rstd)
    for chunk in r.each((0,), (0,)):
        b.here()
        target = chunk.temporary("normal") if r.gains else chunk.y[0]
        if mean is not None:
            b.emit(
                "tensor_scalar",
                dst=target,
                data=chunk.x[0],
                op0="subtract",
                operand0=mean,
                op1="multiply",
                operand1=rstd,
            )
        else:
            b.emit("tensor_scalar", dst=target, data=chunk.x[0], op0="multiply", operand0=rstd)
        for k in range(len(r.gains)):
            last = k == len(r.gains) - 1
            into = chunk.y[0] if last else chunk.temporary("gained")
            b.emit("tensor_tensor", dst=into, data1=target, data2=chunk.row(k), op=("multiply", "add")[k])
            target = into
    for name, column in (("rstd", rstd), ("mean", mean)):
        if column is not None:
            r.store_column(r.statistics[name], column)


def _norm_backward(r: Rows, centred: bool) -> None:
    """x0 = gradient, x1 = input: y = rstd (g - mean(g) - xhat mean(g xhat)) with g = x0 w0; the gains'
    gradients add up over the rows, element by element, and over partitions by a product with ones at the
    end.
    """
    b, gained = r.b, bool(r.gains)
    rstd, mean = r.column("rstd"), r.column("mean") if centred else None
    for name, column in (("rstd", rstd), ("mean", mean)):
        if column is not None:
            b.emit("dma_copy", dst=column, src=b.access(r.statistics[name], ((1, r.rows), (1, 1)), r.first))
    first, second = r.column("first", 0.0), r.column("second", 0.0)
    for chunk in r.each((0, 1)):
        normal = _normal(r, chunk, mean, rstd)
        product = chunk.temporary("product")
        b.emit("tensor_tensor", dst=product, data1=normal, data2=chunk.x[0], op="multiply")
        for sum_, data in ((r.sums[0], product), (r.sums[1], chunk.x[0])) if gained else ():
            if sum_ is not None:
                part = b.access(sum_, ((r.room, r.rows), (1, chunk.columns[1])), chunk.columns[0])
                b.emit("tensor_tensor", dst=part, data1=part, data2=data, op="add")
        gradient = chunk.x[0]
        if gained:
            gradient = chunk.temporary("gradient")
            b.emit("tensor_tensor", dst=gradient, data1=chunk.x[0], data2=chunk.row(0), op="multiply")
            b.emit("tensor_tensor", dst=product, data1=product, data2=chunk.row(0), op="multiply")
        r.sum(second, product)
        if centred:
            r.sum(first, gradient)
    r.scaled(first, r.n, "divide")
    r.scaled(second, r.n, "divide")
    minus = r.negated(second)
    for chunk in r.each((0, 1), (0,)):
        normal = _normal(r, chunk, mean, rstd)
        gradient = chunk.x[0]
        if gained:
            gradient = chunk.temporary("gradient")
            b.emit("tensor_tensor", dst=gradient, data1=chunk.x[0], data2=chunk.row(0), op="multiply")
        b.emit(
            "scalar_tensor_tensor",
            dst=normal,
            data=normal,
            op0="multiply",
            operand0=minus,
            op1="add",
            operand1=gradient,
        )
        b.emit(
            "tensor_scalar",
            dst=chunk.y[0],
            data=normal,
            op0="subtract",
            operand0=first,
            op1="multiply",
            operand1=rstd,
        )


def _normal(r: Rows, chunk: Chunk, mean: Any, rstd: Any) -> Any:
    normal = chunk.temporary("normal")
    if mean is None:
        r.b.emit("tensor_scalar", dst=normal, data=chunk.x[1], op0="multiply", operand0=rstd)
    else:
        r.b.emit(
            "tensor_scalar",
            dst=normal,
            data=chunk.x[1],
            op0="subtract",
            operand0=mean,
            op1="multiply",
            operand1=rstd,
        )
    return normal


def _finish_sums(r: Rows, results: list[Any]) -> None:
    b = r.b
    ones = b.sbuf("ones", (TILE, 1), "float32")
    b.emit("memset", dst=ones, value=1.0)
    for tile, result, dtype in zip(r.sums, results, r.gain_types, strict=False):
        if tile is None:
            continue
        with b.loop(0, b.ceildiv(r.n, BANK)) as j:
            width = b.min(BANK, r.n - j * BANK)
            b.here()
            total = b.access(b.psum("total", (1, BANK), "float32"), ((BANK, 1), (1, width)))
            b.emit(
                "nc_matmul",
                dst=total,
                stationary=ones,
                moving=b.access(tile, ((r.room, TILE), (1, width)), j * BANK),
            )
            row = b.access(b.sbuf("sum_row", (1, BANK), dtype), ((BANK, 1), (1, width)))
            b.emit("tensor_copy", dst=row, src=total)
            b.emit("dma_copy", dst=b.access(result, ((r.n, 1), (1, width)), j * BANK), src=row)


_PLAIN: dict[str, Callable[[Rows], None]] = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "softmax_backward": _softmax_backward,
    "log_softmax_backward": _log_softmax_backward,
}


@functools.lru_cache(maxsize=64)
def softmax_like_program(
    kind: str, inputs: tuple[str, ...], output: str, room: int | None, chip: str = DEFAULT_CHIP
) -> Program:
    """kind: softmax, log_softmax or either with _backward; symbols M, N. inputs: dtypes of x0 (and x1).

    room: elements of a row that stays in SBUF (N <= room); None streams rows of any length.
    """
    b = Builder(chip=chip, name=kind)
    rows = Rows(b, list(inputs), [output], [], room)
    for _ in rows.blocks():
        _PLAIN[kind](rows)
    return b.finish()


@functools.lru_cache(maxsize=64)
def norm_program(
    centred: bool, dtype: str, gains: tuple[str, ...], room: int, chip: str = DEFAULT_CHIP
) -> Program:
    """Layer (centred) or RMS normalisation of x0 [M, N <= room]; gains w0 (and w1) of N elements. Stores
    y0, rstd, mean.
    """
    b = Builder(chip=chip, name="layer_norm" if centred else "rms_norm")
    rows = Rows(b, [dtype], [dtype], list(gains), room)
    _statistics(rows, centred, "output")
    for _ in rows.blocks():
        _norm(rows, centred)
    return b.finish()


@functools.lru_cache(maxsize=64)
def norm_backward_program(
    centred: bool, dtype: str, gains: tuple[str, ...], room: int, chip: str = DEFAULT_CHIP
) -> Program:
    """The same, backward: x0 gradient, x1 input, w0 the gain; y0, and the gains' gradients d0 (and d1)."""
    b = Builder(chip=chip, name="layer_norm_backward" if centred else "rms_norm_backward")
    rows = Rows(b, [dtype, dtype], [dtype], list(gains), room)
    _statistics(rows, centred, "input")
    rows.sums = [_zeros(b, f"sum{k}", room) for k in range(len(gains))] + [None] * (2 - len(gains))
    results = [b.hbm(f"d{k}", (1, rows.n), gain, kind="output") for k, gain in enumerate(gains)]
    for _ in rows.blocks():
        _norm_backward(rows, centred)
    _finish_sums(rows, results)
    return b.finish()


def _statistics(rows: Rows, centred: bool, kind: str) -> None:
    names = ("rstd", "mean") if centred else ("rstd",)
    rows.statistics = {name: rows.b.hbm(name, (rows.m, 1), "float32", kind=kind) for name in names}


def _zeros(b: Builder, name: str, room: int) -> Any:
    tile = b.sbuf(name, (TILE, room), "float32")
    b.emit("memset", dst=tile, value=0.0)
    return tile
