"""How long the operators of `channels`, `statistics` and `indexed` take on one core; cached by signature.

As in `signatures`: simulated nanoseconds of an operator that runs alone.
"""

from __future__ import annotations

import functools

from opentrn.core.library import channels, indexed, statistics
from opentrn.core.library.elementwise import CHUNK, TILE, Operand
from opentrn.core.library.extended import Axis, program_ns
from opentrn.core.library.signatures import ROW_MAX, reduction_time, row_room, rows_time
from opentrn.core.machine import DEFAULT_CHIP

_CACHE = 1 << 14
Results = tuple[tuple[str, str], ...]
_ROWS = (Axis("M", TILE, 4, 4),)
_TURNED = (Axis("B", 1, 4, 4), Axis("L", TILE, 4, 4))
_BOTH: Results = (("y", "float32"), ("index", "int64"))


@functools.lru_cache(maxsize=_CACHE)
def statistic_time(
    rows: int, columns: int, dtype: str, kind: str, results: Results, chip: str = DEFAULT_CHIP, lanes: int = 0
) -> float | None:
    """ns of a statistic of each of `rows` rows; lanes: rows that lie across, so many side by side. Few long
    rows are first cut into as many as there are partitions.
    """
    extreme = kind in ("maximum", "minimum")
    columns = max(columns, statistics.LEAST_COLUMNS) if extreme else columns
    if lanes:
        return _turned_ns(rows, columns, dtype, kind, results, chip, lanes)
    if rows < TILE and columns > 2 * CHUNK:
        if extreme:
            return _picked_from_pieces(rows, columns, dtype, kind, results, chip)
        mean = reduction_time(rows, columns, dtype, "add", chip, "float32")
        return mean + reduction_time(rows, columns, dtype, "add", chip, results[0][1], "square")
    room = None if extreme else row_room(columns, 1)
    program = statistics.statistic_program(kind, dtype, results, room, False, chip)
    return program_ns(program, {"M": rows, "N": columns}, _ROWS)


def _turned_ns(
    rows: int, columns: int, dtype: str, kind: str, results: Results, chip: str, lanes: int
) -> float | None:
    if columns > ROW_MAX:
        return None
    room = _turned_room(columns)
    program = statistics.statistic_program(kind, dtype, results, room, True, chip)
    return program_ns(program, {"M": rows, "N": columns, "B": rows // lanes, "L": lanes}, _TURNED)


def _turned_room(columns: int) -> int:
    return max(512, 1 << (columns - 1).bit_length())


def _picked_from_pieces(
    rows: int, columns: int, dtype: str, kind: str, results: Results, chip: str
) -> float | None:
    pieces = TILE // rows
    size = -(-columns // pieces)
    first = statistic_time(rows * pieces, size, dtype, kind, _BOTH, chip)
    if first is None:
        return None
    program = statistics.pick_program(kind, results, pieces, chip)
    return first + program_ns(program, {"M": rows, "N": pieces, "S": size})


@functools.lru_cache(maxsize=_CACHE)
def scan_time(
    rows: int, columns: int, dtype: str, op: str, out: str, chip: str = DEFAULT_CHIP, lanes: int = 0
) -> float | None:
    """ns of running sums or products along `rows` rows; few long rows are cut, and each piece then takes
    what the pieces before it end with.
    """
    if lanes:
        if columns > ROW_MAX:
            return None
        program = statistics.scan_program(op, dtype, out, _turned_room(columns), True, chip)
        return program_ns(program, {"M": rows, "N": columns, "B": rows // lanes, "L": lanes}, _TURNED)
    if rows <= TILE // 2 and columns > 2 * CHUNK:
        pieces = TILE // rows
        size = -(-columns // pieces)
        parts = scan_time(rows * pieces, size, dtype, op, "float32", chip)
        ends = scan_time(rows, pieces, "float32", op, "float32", chip)
        assert parts is not None and ends is not None
        formula = "y0 = x0 + x1" if op == "add" else "y0 = x0 * x1"
        inputs = (Operand("float32"), Operand("float32", "column"))
        return parts + ends + rows_time(formula, inputs, (Operand(out),), rows * pieces, size, chip)
    program = statistics.scan_program(op, dtype, out, None, False, chip)
    return program_ns(program, {"M": rows, "N": columns}, _ROWS)


@functools.lru_cache(maxsize=_CACHE)
def channels_time(
    kind: str,
    batch: int,
    count: int,
    inner: int,
    group: int,
    dtype: str,
    gains: tuple[str, ...],
    running: str | None,
    chip: str = DEFAULT_CHIP,
) -> float | None:
    """ns of a batch or group normalisation of [batch, count, inner]; group: channels that share statistics.
    None where no tile holds whole groups.
    """
    lanes = channels.lanes(batch, count, group)
    if lanes is None or count // lanes.block > channels.TILES_MAX:
        return None
    program = channels.channels_program(kind, dtype, lanes.images, gains, running, chip)
    symbols = channels.symbols(batch, count, inner, group)
    period = lanes.images * (1 if kind.startswith("group") else symbols["F"])
    return program_ns(program, symbols, (Axis("N", period, 6, 6),))


@functools.lru_cache(maxsize=_CACHE)
def gather_time(
    indices: int, width: int, outer: int, table: int, dtype: str, index: str, chip: str = DEFAULT_CHIP
) -> float:
    """ns to take `indices` rows of `width` elements out of `table` rows, `outer` times."""
    program = indexed.gather_program(dtype, index, chip)
    return program_ns(program, *_indexed(indices, width, outer, table))


@functools.lru_cache(maxsize=_CACHE)
def scatter_time(
    indices: int,
    width: int,
    outer: int,
    table: int,
    dtype: str,
    index: str,
    add: bool,
    cleared: bool,
    chip: str = DEFAULT_CHIP,
) -> float:
    """ns to put so many rows, or to add them to those that are there; cleared: to a table of zeros."""
    program = indexed.scatter_program(dtype, index, add, cleared, chip)
    return program_ns(program, *_indexed(indices, width, outer, table))


def _indexed(indices: int, width: int, outer: int, table: int) -> tuple[dict[str, int], tuple[Axis, ...]]:
    fold = indexed.indices_per_partition(indices)
    symbols = {"R": indices, "I": fold, "D": width, "A": outer, "T": table}
    return symbols, (Axis("R", fold * TILE, 2, 2), Axis("A", 1, 3, 3))


@functools.lru_cache(maxsize=_CACHE)
def picked_time(
    targets: int, width: int, dtype: str, index: str, reduced: bool, backward: bool, chip: str = DEFAULT_CHIP
) -> float:
    """ns of nll_loss over `targets` rows of `width` scores."""
    make = indexed.picked_backward_program if backward else indexed.picked_program
    fold = indexed.indices_per_partition(targets)
    symbols = {"R": targets, "D": width, "I": fold}
    return program_ns(make(dtype, index, reduced, chip), symbols, (Axis("R", fold * TILE, 2, 2),))
