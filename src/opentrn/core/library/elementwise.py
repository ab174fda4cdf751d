"""Elementwise programs: load tiles of every operand, evaluate a formula, store the results.

Two ways to lay elements on partitions. *Flat*: T tensors of E elements, 128 x W of them at a time; an
operand that repeats with period E is loaded once for all T. *Rows*: M rows of N columns; an operand of N
elements is loaded once per block of columns, one of M elements rides with its rows. Short rows are folded,
R of them on one partition, so that a DMA and an instruction have enough to do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from opentrn.core.builder import Builder
from opentrn.core.library.formula import LONG, Evaluation, Value, order, reads, results
from opentrn.core.machine import DEFAULT_CHIP
from opentrn.core.program import Program

TILE = 128
CHUNK = 2048  # most elements of a partition that one instruction works on
FOLD_MAX = 64  # most rows of a partition
STRIPS = 4  # of a tile, on which a long formula is evaluated side by side; widths are multiples of it
_QUEUES = ("sync", "scalar")


@dataclass(frozen=True)
class Operand:
    """dtype: of NeuronCore; layout: whole, scattered, scalar, row, column or number
    (csrc/timeline/programs.h).
    """

    dtype: str
    layout: str = "whole"

    @property
    def step(self) -> int:
        """Elements from one to the next: scattered ones never lie side by side."""
        return 2 if self.layout == "scattered" else 1


Operands = tuple[Operand, ...]
Constants = tuple[tuple[str, float], ...]


def _is_long(formula: str) -> bool:
    return len(reads(formula)) + len(results(formula)) > LONG


def _loaded(formula: str, inputs: Operands) -> dict[int, Operand]:
    """The operands that a program of the formula loads; a long one's, those first that it needs first."""
    used = order(formula) if _is_long(formula) else sorted(reads(formula))
    return {k: inputs[k] for k in used if k < len(inputs) and inputs[k].layout != "number"}


def _stored(formula: str, outputs: Operands) -> dict[int, Operand]:
    return {k: o for k, o in enumerate(outputs) if k in results(formula)}


@functools.lru_cache(maxsize=512)
def flat_program(
    formula: str, inputs: Operands, outputs: Operands, chip: str = DEFAULT_CHIP, constants: Constants = ()
) -> Program:
    """Symbols T (tensors), E (elements of one), W (elements per partition, at most `chunk`).

    Inputs x0, x1 … of T x E elements (twice as many where scattered), E where they repeat ("row"), 1 where
    they are scalars; outputs y0, y1 … of T x E.
    """
    b = Builder(chip=chip, name="elementwise_flat")
    t, e, w = b.symbol("T"), b.symbol("E"), b.symbol("W")
    tiles = _Tiles(b, CHUNK)
    loaded, stored = _loaded(formula, inputs), _stored(formula, outputs)
    sizes = {"row": (e,), "scalar": (1,)}
    sources = {k: b.hbm(f"x{k}", sizes.get(o.layout, (t * e * o.step,)), o.dtype) for k, o in loaded.items()}
    targets = {k: b.hbm(f"y{k}", (t * e * o.step,), o.dtype, kind="output") for k, o in stored.items()}
    scalars = _load_scalars(tiles, loaded, sources)

    for first, rows, width in _pieces(b, e, w):
        part = functools.partial(tiles.part, rows=rows, width=width)
        striped = _is_long(formula) and width is w
        cover = functools.partial(tiles.strip, rows=rows, width=w // STRIPS) if striped else None

        def lies(operand: Operand, tensor: Any, base: Any, rows: Any = rows, width: Any = width) -> Any:
            step = operand.step
            return b.access(tensor, ((w * step, rows), (step, width)), base * step)

        b.here()
        fixed = {}
        for k, operand in loaded.items():
            if operand.layout == "row":
                fixed[k] = tiles.new(f"x{k}", operand.dtype)
                _load(b, part(fixed[k]), lies(operand, sources[k], first), k)
        with b.loop(0, t) as tensor:
            base = tensor * e + first
            b.here()
            given = {}
            for k, operand in loaded.items():
                if operand.layout == "scalar":
                    given[k] = scalars[k](rows)
                    continue
                tile = fixed.get(k)
                if tile is None:
                    tile = tiles.new(f"x{k}", operand.dtype)
                    _load(b, part(tile), lies(operand, sources[k], base), k)
                given[k] = Value(part(tile))
            made = _evaluate(b, formula, given, stored, tiles, part, rows, constants, cover)
            for k, tile in made.items():
                _store(b, lies(stored[k], targets[k], base), tile, k)
    return b.finish()


@functools.lru_cache(maxsize=512)
def rows_program(
    formula: str,
    inputs: Operands,
    outputs: Operands,
    folded: bool = False,
    chip: str = DEFAULT_CHIP,
    constants: Constants = (),
) -> Program:
    """Symbols M (rows), N (columns), W (columns of one instruction), R (rows of a partition).

    folded: R may exceed 1, and W is N. Inputs of M x N elements, N ("row"), M ("column") or 1 ("scalar");
    outputs of M x N.
    """
    b = Builder(chip=chip, name="elementwise_rows")
    m, n, w, r = (b.symbol(name) for name in "MNWR")
    tiles = _Tiles(b, CHUNK)
    loaded, stored = _loaded(formula, inputs), _stored(formula, outputs)
    sizes = {"row": (n,), "column": (m,), "scalar": (1,)}
    sources = {k: b.hbm(f"x{k}", sizes.get(o.layout, (m * n * o.step,)), o.dtype) for k, o in loaded.items()}
    targets = {k: b.hbm(f"y{k}", (m * n * o.step,), o.dtype, kind="output") for k, o in stored.items()}
    scalars = _load_scalars(tiles, loaded, sources)
    with b.loop(0, b.ceildiv(n, w)) as j:
        width = b.min(w, n - j * w)
        b.here()
        fixed = {}
        for k, operand in loaded.items():
            if operand.layout == "row":
                fixed[k] = tiles.new(f"x{k}", operand.dtype)
                source = b.access(sources[k], ((0, TILE), (1, width)), j * w)
                _load(b, tiles.part(fixed[k], TILE, width), source, k)
        for first, rows, fold in _pieces(b, m, r):

            def part(tile: Any, rows: Any = rows, fold: Any = fold) -> Any:
                return b.access(tile, ((tiles.width, rows), (w, fold), (1, width)))

            def lies(
                operand: Operand, tensor: Any, rows: Any = rows, fold: Any = fold, first: Any = first
            ) -> Any:
                step = operand.step
                pattern = ((r * n * step, rows), (n * step, fold), (step, width))
                return b.access(tensor, pattern, (first * n + j * w) * step)

            b.here()
            given = {}
            for k, operand in loaded.items():
                if operand.layout == "scalar":
                    given[k] = scalars[k](rows)
                elif operand.layout == "row":
                    given[k] = Value(b.access(fixed[k], ((tiles.width, rows), (0, fold), (1, width))))
                elif operand.layout == "column":
                    given[k] = _column(b, tiles, k, operand, sources[k], first, rows, fold, r, width, folded)
                else:
                    tile = tiles.new(f"x{k}", operand.dtype)
                    _load(b, part(tile), lies(operand, sources[k]), k)
                    given[k] = Value(part(tile))
            made = _evaluate(b, formula, given, stored, tiles, part, rows, constants)
            for k, tile in made.items():
                _store(b, lies(stored[k], targets[k]), tile, k)
    return b.finish()


def _pieces(b: Builder, elements: Any, width: Any) -> Iterator[tuple[Any, Any, Any]]:
    """(first element, partitions, elements of a partition): whole tiles, whole rows of the last tile, then
    the rest of one row; opens loops.
    """
    with b.loop(0, elements // (width * TILE)) as i:
        yield i * (width * TILE), TILE, width
    done = elements // (width * TILE) * (width * TILE)
    with b.loop(0, b.ceildiv(elements - done, width * TILE)):
        yield done, (elements - done) // width, width
    rest = elements // width * width
    with b.loop(0, b.ceildiv(elements - rest, width)):
        yield rest, 1, elements - rest


def _column(
    b: Builder,
    tiles: _Tiles,
    k: int,
    operand: Operand,
    source: Any,
    first: Any,
    rows: Any,
    fold: Any,
    r: Any,
    width: Any,
    folded: bool,
) -> Value:
    """A value per row: beside one row of a partition it is an operand of tensor_scalar; folded, it
    repeats.
    """
    room = FOLD_MAX if folded else 1
    tile = b.sbuf(f"x{k}", (TILE, room), operand.dtype)
    loaded = b.access(tile, ((room, rows), (1, fold)))
    _load(b, loaded, b.access(source, ((r, rows), (1, fold)), first), k)
    if folded:
        return Value(b.access(tile, ((room, rows), (1, fold), (0, width))))
    return Value(tiles.widened(loaded, operand.dtype, rows), True)


def _load(b: Builder, tile: Any, source: Any, k: int) -> None:
    """The two queues that command descriptor engines take turns."""
    b.emit("dma_copy", dst=tile, src=source, engine=_QUEUES[k % 2])


def _store(b: Builder, target: Any, tile: Any, k: int) -> None:
    b.emit("dma_copy", dst=target, src=tile, engine=_QUEUES[(k + 1) % 2])


class _Tiles:
    """Makes the tiles of one program, `width` elements on a partition."""

    def __init__(self, b: Builder, width: int) -> None:
        self.b, self.width = b, width

    def new(self, name: str, dtype: str) -> Any:
        return self.b.sbuf(name, (TILE, self.width), dtype)

    def part(self, tile: Any, rows: Any, width: Any) -> Any:
        return self.b.access(tile, ((self.width, rows), (1, width)))

    def strip(self, tile: Any, number: int, rows: Any, width: Any) -> Any:
        return self.b.access(tile, ((self.width, rows), (1, width)), number * width)

    def widened(self, column: Any, dtype: str, rows: Any) -> Any:
        """A value per partition as fp32, which the operands of tensor_scalar are."""
        if dtype == "float32":
            return column
        wide = self.b.access(self.b.sbuf("wide", (TILE, 1), "float32"), ((1, rows), (1, 1)))
        self.b.emit("tensor_copy", dst=wide, src=column)
        return wide


def _load_scalars(
    tiles: _Tiles, loaded: dict[int, Operand], sources: dict[int, Any]
) -> dict[int, Callable[[Any], Value]]:
    """Scalar operands, each loaded once before the loops and repeated on every partition."""
    b = tiles.b
    values: dict[int, Callable[[Any], Value]] = {}
    for k, operand in loaded.items():
        if operand.layout != "scalar":
            continue
        tile, wide = b.sbuf(f"x{k}", (TILE, 1), operand.dtype), b.sbuf(f"wide{k}", (TILE, 1), "float32")
        b.emit("dma_copy", dst=tile, src=b.access(sources[k], ((0, TILE), (1, 1))))
        b.emit("tensor_copy", dst=wide, src=tile)
        values[k] = functools.partial(_scalar_value, b, wide)
    return values


def _scalar_value(b: Builder, tile: Any, rows: Any) -> Value:
    return Value(b.access(tile, ((1, rows), (1, 1))), True)


class _Recorder:
    """Keeps the instructions of one strip of a tile."""

    def __init__(self, b: Builder) -> None:
        self.chip, self.kept = b.chip, []  # type: ignore[var-annotated]

    def emit(self, instruction: str, **arguments: Any) -> None:
        self.kept.append((instruction, arguments))


def _numbered_strip(strip: Callable[[Any, int], Any], number: int, tile: Any) -> Any:
    return strip(tile, number)


def _evaluate(
    b: Builder,
    formula: str,
    given: dict[int, Value],
    stored: dict[int, Operand],
    tiles: _Tiles,
    part: Callable[[Any], Any],
    rows: Any,
    constants: Constants,
    strip: Callable[[Any, int], Any] | None = None,
) -> dict[int, Any]:
    """The formula's results, in tiles.

    strip: part of a tile, by number. An engine does its instructions in order, and waits where one needs
    what another engine is still at; with several strips, each step for all before the next one, it has
    something to do meanwhile.
    """
    made = {k: tiles.new(f"y{k}", operand.dtype) for k, operand in stored.items()}
    temporaries: list[Any] = []
    recorded = []
    for number in range(1 if strip is None else STRIPS):
        cover = part if strip is None else functools.partial(_numbered_strip, strip, number)
        count = iter(range(1 << 20))

        def temporary(dtype: str = "float32", cover: Any = cover, count: Any = count) -> Any:
            at = next(count)
            if at == len(temporaries):
                temporaries.append(tiles.new(f"t{at}", dtype))
            return cover(temporaries[at])

        def column(count: Any = count) -> Any:
            return b.access(b.sbuf("c", (TILE, 1), "float32"), ((1, rows), (1, 1)))

        recorder = _Recorder(b)
        inputs = {
            k: value if value.column or cover is part else Value(cover(value.access.tensor))
            for k, value in given.items()
        }
        outputs = {k: cover(tile) for k, tile in made.items()}
        evaluation = Evaluation(recorder, inputs, outputs, temporary, column, dict(constants))
        evaluation.run(formula)
        recorded.append(recorder.kept)
    for step in zip(*recorded, strict=True):
        for instruction, arguments in step:
            b.emit(instruction, **arguments)
    return {k: part(access.tensor) for k, access in evaluation.outputs.items()}
