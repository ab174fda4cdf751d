"""Rows again: variances, extremes with their positions, running sums.

Where another dimension than the last is reduced, 128 x 128 elements at a time are turned on the Tensor engine
as they are loaded, and those of a running sum once more before they are stored.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from opentrn.core.builder import Builder
from opentrn.core.library.elementwise import CHUNK, TILE
from opentrn.core.library.matmul import identity_tile
from opentrn.core.library.normalisations import Rows
from opentrn.core.machine import DEFAULT_CHIP
from opentrn.core.program import Program

LEAST_COLUMNS = 8  # of max8
# (op0, op1) of tensor_tensor_scan, whether the data is its first operand, and the other operand's value.
SCANS: dict[str, tuple[str, str, bool, float]] = {
    "add": ("multiply", "add", False, 1.0),
    "multiply": ("multiply", "add", True, 0.0),
}
_START = {"add": 0.0, "multiply": 1.0}
_LOWEST = -3.4e38


class TurnedRows(Rows):
    """Rows of [B, K, N] tensors along K: the rows of M = B x N are not contiguous. Symbols B and L (the N); N
    of Rows is K.
    """

    def __init__(self, b: Builder, inputs: list[str], outputs: list[str], room: int) -> None:
        super().__init__(b, inputs, outputs, [], room)
        self.batch, self.lanes = b.symbol("B"), b.symbol("L")
        self.identity = identity_tile(b, inputs[0])

    def blocks(self) -> Iterator[None]:
        b = self.b
        with b.loop(0, self.batch) as outer, b.loop(0, b.ceildiv(self.lanes, TILE)) as j:
            self.rows = b.min(TILE, self.lanes - j * TILE)
            self.first = outer * self.lanes + j * TILE
            self.corner = outer * self.n * self.lanes + j * TILE
            tile = b.sbuf("x0", (TILE, self.room), self.input_types[0])
            self.resident = [tile]
            with b.loop(0, b.ceildiv(self.n, TILE)) as i:
                deep = b.min(TILE, self.n - i * TILE)
                b.here()
                raw = b.sbuf("raw", (TILE, TILE), self.input_types[0])
                given = b.access(raw, ((TILE, deep), (1, self.rows)))
                b.emit("dma_copy", dst=given, src=self._across(self.sources[0], i, deep))
                self._turn(
                    given, b.access(tile, ((self.room, self.rows), (1, deep)), i * TILE), deep, self.rows
                )
            yield

    def _across(self, tensor: Any, i: Any, deep: Any) -> Any:
        return self.b.access(
            tensor, ((self.lanes, deep), (1, self.rows)), self.corner + i * (TILE * self.lanes)
        )

    def _turn(self, data: Any, into: Any, rows: Any, columns: Any) -> None:
        """data [rows, columns] → into [columns, rows], through PSUM."""
        b = self.b
        turned = b.access(b.psum("turned", (TILE, TILE), data.dtype), ((TILE, columns), (1, rows)))
        square = b.access(self.identity, ((TILE, rows), (1, rows)))
        b.emit("nc_matmul", dst=turned, is_transpose=True, stationary=data, moving=square)
        b.emit("tensor_copy", dst=into, src=turned, engine="scalar")

    def write(self, k: int, chunk: Any, at: Any, width: Any) -> None:
        b = self.b
        with b.loop(0, b.ceildiv(width, TILE)) as i:
            deep = b.min(TILE, width - i * TILE)
            part = b.access(chunk.tensor, ((CHUNK, self.rows), (1, deep)), i * TILE)
            raw = b.access(b.sbuf("back", (TILE, TILE), self.output_types[k]), ((TILE, deep), (1, self.rows)))
            self._turn(part, raw, self.rows, deep)
            target = b.access(
                self.results[k],
                ((self.lanes, deep), (1, self.rows)),
                self.corner + (at + i * TILE) * self.lanes,
            )
            b.emit("dma_copy", dst=target, src=raw, engine="scalar")


# ---- one value of a row --------------------------------------------------------------------------


def _store(r: Rows, tensor: Any, column: Any, dtype: str) -> None:
    """A column, in the dtype of its tensor."""
    out = r.b.access(r.b.sbuf("stored", (TILE, 1), dtype), ((1, r.rows), (1, 1)))
    r.b.emit("tensor_copy", dst=out, src=column)
    r.store_column(tensor, out)


def _variance(r: Rows, results: dict[str, tuple[Any, str]], root: bool, correction: float = 1.0) -> None:
    """y = sum (x - mean)^2 / (N - correction), or its root; and the mean where it is asked for."""
    b = r.b
    mean, total = r.column("mean", 0.0), r.column("square", 0.0)
    for chunk in r.each((0,)):
        r.sum(mean, chunk.x[0])
    r.scaled(mean, r.n, "divide")
    minus = r.negated(mean)
    for chunk in r.each((0,)):
        r.sum_of(total, "square", chunk, "squares", bias=minus)
    r.scaled(total, r.n - int(correction), "divide")
    if root:
        b.emit("activation", dst=total, op="sqrt", data=total)
    for name, column in (("y", total), ("mean", mean)):
        if name in results:
            _store(r, results[name][0], column, results[name][1])


def _extreme(r: Rows, results: dict[str, tuple[Any, str]], op: str) -> None:
    """The largest (or smallest) of a row and its position: 64 bits, as PyTorch has them."""
    b = r.b
    best, index = r.column("best", _LOWEST), r.column("index", 0.0)
    for chunk in r.each((0,), overlapping=True):
        data = chunk.x[0]
        if op == "minimum":
            data = chunk.temporary("negative")
            b.emit("activation", dst=data, op="identity", data=chunk.x[0], scale=-1.0)
        eight = b.access(b.sbuf("eight", (TILE, 8), "float32"), ((8, r.rows), (1, 8)))
        places = b.sbuf("places", (TILE, 8), "uint32")
        b.emit("max8", dst=eight, src=data)
        b.emit("nc_find_index8", dst=b.access(places, ((8, r.rows), (1, 8))), data=data, vals=eight)
        found, better = r.column("found"), r.column("better")
        first = b.access(places, ((8, r.rows), (1, 1)))
        b.emit("tensor_scalar", dst=found, data=first, op0="add", operand0=chunk.columns[0])
        largest = b.access(eight.tensor, ((8, r.rows), (1, 1)))
        b.emit("tensor_tensor", dst=better, data1=largest, data2=best, op="greater")
        b.emit("tensor_copy_predicated", dst=index, src=found, predicate=better)
        r.accumulate(best, largest, "maximum")
    _store_index(r, results["index"][0], index)
    if "y" in results:
        if op == "minimum":
            r.scaled(best, -1.0)
        _store(r, results["y"][0], best, results["y"][1])


def _store_index(r: Rows, tensor: Any, index: Any) -> None:
    """Low word and a zero."""
    b = r.b
    words = b.sbuf("words", (TILE, 2), "int32")
    whole = b.access(words, ((2, r.rows), (1, 2)))
    b.emit("memset", dst=whole, value=0)
    b.emit("tensor_copy", dst=b.access(words, ((2, r.rows), (1, 1))), src=index)
    b.emit("dma_copy", dst=b.access(tensor, ((2, r.rows), (1, 2)), r.first * 2), src=whole, engine="scalar")


def _scan(r: Rows, op: str) -> None:
    """y[i] = x[0] op ... op x[i]; what a chunk ends with begins the next."""
    b = r.b
    first, second, data_first, value = SCANS[op]
    other = b.sbuf("other", (TILE, CHUNK), "float32")
    b.emit("memset", dst=other, value=value)
    last = r.column("last", _START[op])
    for chunk in r.each((0,), (0,)):
        running = chunk.temporary("running")
        steady = b.access(other, ((CHUNK, r.rows), (1, chunk.columns[1])))
        pair = (chunk.x[0], steady) if data_first else (steady, chunk.x[0])
        b.emit(
            "tensor_tensor_scan",
            dst=running,
            data0=pair[0],
            data1=pair[1],
            initial=last,
            op0=first,
            op1=second,
        )
        end = b.access(running.tensor, ((CHUNK, r.rows), (1, 1)), chunk.columns[1] - 1)
        b.emit("tensor_copy", dst=last, src=end)
        b.emit("tensor_copy", dst=chunk.y[0], src=running, engine="scalar")


KINDS = ("var", "std", "maximum", "minimum")


@functools.lru_cache(maxsize=128)
def statistic_program(
    kind: str,
    dtype: str,
    results: tuple[tuple[str, str], ...],
    room: int | None,
    turned: bool = False,
    chip: str = DEFAULT_CHIP,
) -> Program:
    """kind: of KINDS. results: (name, dtype) of [M] tensors: "y", "mean" of a variance, "index" of an extreme
    (64 bits: [M, 2] words). Symbols M, N, and B and L where x0 is [B, N, L] (turned). Extremes take at
    least 8 columns; room as `normalisations` has it.
    """
    b = Builder(chip=chip, name=f"rows_{kind}")
    rows = TurnedRows(b, [dtype], [], room or 0) if turned else Rows(b, [dtype], [], [], room)
    tensors = {
        name: (
            b.hbm(
                name,
                (rows.m, 2 if name == "index" else 1),
                "int32" if name == "index" else result,
                kind="output",
            ),
            result,
        )
        for name, result in results
    }
    for _ in rows.blocks():
        if kind in ("maximum", "minimum"):
            _extreme(rows, tensors, kind)
        else:
            _variance(rows, tensors, kind == "std")
    return b.finish()


@functools.lru_cache(maxsize=64)
def scan_program(
    op: str, dtype: str, out: str, room: int | None, turned: bool = False, chip: str = DEFAULT_CHIP
) -> Program:
    """Running sums ("add") or products ("multiply") of x0 [M, N] along N → y0; symbols as
    `statistic_program`.
    """
    b = Builder(chip=chip, name=f"scan_{op}")
    rows = TurnedRows(b, [dtype], [out], room or 0) if turned else Rows(b, [dtype], [out], [], room)
    for _ in rows.blocks():
        _scan(rows, op)
    return b.finish()


@functools.lru_cache(maxsize=16)
def pick_program(
    op: str, results: tuple[tuple[str, str], ...], pieces: int, chip: str = DEFAULT_CHIP
) -> Program:
    """The extreme of rows whose pieces are known: x0 [M, pieces] and the positions x1 [M, pieces] in them
    (words of 64 bits), with S elements in a piece → "y" and "index". Of equal values the first.
    """
    b = Builder(chip=chip, name=f"pick_{op}")
    rows, size = Rows(b, ["float32"], [], [], None), b.symbol("S")
    positions = b.hbm("x1", (rows.m, pieces, 2), "int32")
    names = dict(results)
    tensors = {
        name: b.hbm(
            name, (rows.m, 2 if name == "index" else 1), "int32" if name == "index" else dtype, kind="output"
        )
        for name, dtype in results
    }
    for _ in rows.blocks():
        whole = lambda tile: b.access(tile, ((pieces, rows.rows), (1, pieces)))  # noqa: E731
        values, places = (
            b.sbuf("values", (TILE, pieces), "float32"),
            b.sbuf("places", (TILE, pieces), "int32"),
        )
        b.emit(
            "dma_copy",
            dst=whole(values),
            src=b.access(rows.sources[0], ((pieces, rows.rows), (1, pieces)), rows.first * pieces),
        )
        b.emit(
            "dma_copy",
            dst=whole(places),
            src=b.access(positions, ((2 * pieces, rows.rows), (2, pieces)), rows.first * (2 * pieces)),
            engine="scalar",
        )
        base, flat = b.sbuf("base", (TILE, pieces), "float32"), b.sbuf("flat", (TILE, pieces), "float32")
        b.emit("iota", dst=base, pattern=[[1, pieces]])
        b.emit("tensor_scalar", dst=whole(base), data=whole(base), op0="multiply", operand0=size)
        b.emit("tensor_tensor", dst=whole(flat), data1=whole(base), data2=whole(places), op="add")
        best, index = rows.column("best"), rows.column("index")
        b.emit("tensor_reduce", dst=best, op=op, data=whole(values), axis=[1])
        others = b.sbuf("others", (TILE, pieces), "float32")
        b.emit("tensor_scalar", dst=whole(others), data=whole(values), op0="not_equal", operand0=best)
        b.emit(
            "scalar_tensor_tensor",
            dst=whole(flat),
            data=whole(others),
            op0="multiply",
            operand0=1.0e30,
            op1="add",
            operand1=whole(flat),
        )
        b.emit("tensor_reduce", dst=index, op="minimum", data=whole(flat), axis=[1])
        _store_index(rows, tensors["index"], index)
        if "y" in tensors:
            _store(rows, tensors["y"], best, names["y"])
    return b.finish()
