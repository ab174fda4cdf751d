"""How long an operator takes on one core, from the programs of this library; cached by signature.

Each function returns simulated nanoseconds of an operator that runs alone: operands come from HBM and
results go back. A division over the cores of a logical core is the caller's (operators.py).
"""

from __future__ import annotations

import functools

from opentrn.core.library import elementwise, normalisations, reductions
from opentrn.core.library.attention import KEYS_MAX, flash_attention_program
from opentrn.core.library.attention_backward import QUERIES_MAX, flash_attention_backward_program
from opentrn.core.library.elementwise import CHUNK, TILE, Operand, Operands
from opentrn.core.library.extended import Axis, program_ns
from opentrn.core.library.formula import reads
from opentrn.core.library.matmul import COLUMNS, DEPTH_MAX, matmul_program
from opentrn.core.machine import DEFAULT_CHIP

BLOCK_ROWS = 4 * TILE  # of the matrix product and of attention
NARROWEST = 64  # elements of a partition below which fewer partitions are used
ROW_MAX = 16384  # longest row that stays in SBUF
_FLAT_PERIOD = 128 * 256  # a repeated operand this long is walked over flat
_WIDE_ROW = 256  # columns from which one row is enough for a partition
_CACHE = 1 << 14


@functools.lru_cache(maxsize=_CACHE)
def matmul_time(
    m: int,
    n: int,
    k: int,
    dtype: str = "bfloat16",
    chip: str = DEFAULT_CHIP,
    batch: int = 1,
    transposed: bool = False,
    right_transposed: bool = False,
    addend: str = "none",
    out: str | None = None,
) -> float:
    """ns of `batch` products [m, k] x [k, n]; longer contractions than 8192 are summed from parts."""
    if min(m, n, k, batch) <= 0:
        return 0.0
    program = matmul_program(
        dtype, chip, transposed, out, right_transposed=right_transposed, addend=addend, batched=True
    )
    axes = (Axis("B", 1, 4, 4), Axis("M", BLOCK_ROWS, 3, 4), Axis("N", COLUMNS, 6, 6))
    whole, rest = divmod(k, DEPTH_MAX)
    total = 0.0
    for depth, times in ((DEPTH_MAX, whole), (rest, bool(rest))):
        if times:
            total += times * program_ns(program, {"B": batch, "M": m, "N": n, "K": depth}, axes)
    parts = whole + bool(rest)
    if parts > 1:
        total += (parts - 1) * pointwise_time(batch * m * n, "float32", 2, chip=chip)
    return total


def pointwise_time(
    elements: int,
    dtype: str = "bfloat16",
    inputs: int = 1,
    function: str | None = None,
    out: str | None = None,
    chip: str = DEFAULT_CHIP,
) -> float:
    """ns of one elementwise operator on so many elements: an activation, or the sum of its inputs."""
    formula = f"y0 = {function}(x0)" if function else "y0 = " + " + ".join(f"x{k}" for k in range(inputs))
    return flat_time(formula, (Operand(dtype),) * inputs, (Operand(out or dtype),), elements, 1, chip)


@functools.lru_cache(maxsize=_CACHE)
def flat_time(
    formula: str,
    inputs: Operands,
    outputs: Operands,
    elements: int,
    tensors: int = 1,
    chip: str = DEFAULT_CHIP,
) -> float:
    """ns of a formula on `tensors` tensors of so many elements; "row" operands have as many elements."""
    if min(elements, tensors) <= 0:
        return 0.0
    program = elementwise.flat_program(formula, inputs, outputs, chip)
    width = max(NARROWEST, min(CHUNK, -(-elements // TILE)))
    width = -(-width // elementwise.STRIPS) * elementwise.STRIPS
    return program_ns(program, {"T": tensors, "E": elements, "W": width})


@functools.lru_cache(maxsize=_CACHE)
def rows_time(
    formula: str, inputs: Operands, outputs: Operands, rows: int, columns: int, chip: str = DEFAULT_CHIP
) -> float:
    """ns of a formula on rows, some of whose operands repeat from row to row or along a row."""
    if min(rows, columns) <= 0:
        return 0.0
    repeats = any(o.layout == "column" for k, o in enumerate(inputs) if k in reads(formula))
    if not repeats and columns >= _FLAT_PERIOD:
        return flat_time(formula, inputs, outputs, columns, rows, chip)
    folded = columns < _WIDE_ROW and rows > TILE
    width = min(CHUNK, columns)
    fold = max(1, min(elementwise.FOLD_MAX, CHUNK // columns, -(-rows // TILE))) if folded else 1
    program = elementwise.rows_program(formula, inputs, outputs, folded, chip)
    axes = (Axis("N", width, 4, 4),)
    return program_ns(program, {"M": rows, "N": columns, "W": width, "R": fold}, axes)


@functools.lru_cache(maxsize=_CACHE)
def reduction_time(
    rows: int,
    columns: int,
    dtype: str = "bfloat16",
    op: str = "add",
    chip: str = DEFAULT_CHIP,
    out: str | None = None,
    function: str | None = None,
    tensors: int = 1,
) -> float:
    """ns to reduce [rows, columns] over columns, `tensors` times. Few long rows are first cut into as many
    rows as there are partitions.
    """
    if min(rows, columns, tensors) <= 0:
        return 0.0
    if rows < TILE and columns > 2 * CHUNK:
        pieces = -(-TILE // rows)
        first = reduction_time(rows * pieces, -(-columns // pieces), dtype, op, chip, "float32", function)
        return tensors * (first + reduction_time(rows, pieces, "float32", op, chip, out or dtype))
    fold = reductions.row_folding(rows, columns)
    program = reductions.rows_program(dtype, out or dtype, op, function, fold > 1, chip)
    axes = (Axis("M", TILE * fold, 8, 8),)
    return tensors * program_ns(program, {"M": rows, "N": columns, "R": fold}, axes)


@functools.lru_cache(maxsize=_CACHE)
def column_reduction_time(
    batch: int,
    rows: int,
    columns: int,
    dtype: str = "bfloat16",
    op: str = "add",
    chip: str = DEFAULT_CHIP,
    out: str | None = None,
    function: str | None = None,
) -> float:
    """ns to reduce [batch, rows, columns] over rows. Products other than sums and extremes have no
    program.
    """
    if op == "add":
        program = reductions.columns_program(dtype, out or dtype, function, chip)
    else:
        program = reductions.extremes_program(dtype, op, chip)
    axes = (Axis("B", 1, 4, 4), Axis("N", CHUNK, 4, 4))
    return program_ns(program, {"B": batch, "K": rows, "N": columns}, axes)


@functools.lru_cache(maxsize=_CACHE)
def softmax_time(
    rows: int,
    columns: int,
    dtype: str = "bfloat16",
    chip: str = DEFAULT_CHIP,
    kind: str = "softmax",
    out: str | None = None,
) -> float:
    """ns of softmax, log_softmax or either's backward over the last axis; long rows are read once per
    pass.
    """
    if min(rows, columns) <= 0:
        return 0.0
    inputs = (dtype, dtype) if kind.endswith("backward") else (dtype,)
    program = normalisations.softmax_like_program(
        kind, inputs, out or dtype, row_room(columns, len(inputs)), chip
    )
    return program_ns(program, {"M": rows, "N": columns}, (Axis("M", TILE, 4, 4),))


@functools.lru_cache(maxsize=_CACHE)
def norm_time(
    rows: int,
    columns: int,
    dtype: str,
    centred: bool,
    backward: bool,
    gains: tuple[str, ...],
    chip: str = DEFAULT_CHIP,
) -> float | None:
    """ns of layer or RMS normalisation; None where a row does not fit."""
    room = row_room(columns, 4 if backward else 2)
    if room is None:
        return None
    make = normalisations.norm_backward_program if backward else normalisations.norm_program
    return program_ns(
        make(centred, dtype, gains, room, chip), {"M": rows, "N": columns}, (Axis("M", TILE, 8, 8),)
    )


def row_room(columns: int, tiles: int) -> int | None:
    """The next power of two in which rows stay resident, if `tiles` of them fit."""
    room = max(512, 1 << (columns - 1).bit_length())
    return room if room * tiles <= 2 * ROW_MAX and columns <= ROW_MAX else None


@functools.lru_cache(maxsize=_CACHE)
def attention_time(
    heads: int,
    queries: int,
    keys: int,
    head: int,
    dtype: str = "bfloat16",
    causal: bool = False,
    chip: str = DEFAULT_CHIP,
    backward: bool = False,
) -> float:
    """ns of flash attention over `heads` heads (batch included).

    Lengths are padded to 128 (backward: 512), heads of more than 128 count as so many of 128, and longer
    sequences are put together from parts of 8192: those below a causal diagonal whole, those on it causal.
    """
    if min(heads, queries, keys, head) <= 0:
        return 0.0
    causal = causal and queries == keys
    block = BLOCK_ROWS if backward else TILE
    s, t = (-(-length // block) * block for length in (queries, keys))
    most = QUERIES_MAX if backward else KEYS_MAX
    widths = -(-head // TILE)
    if max(s, t) <= most:
        return widths * _attention_part(
            heads, queries if s == TILE else s, t, min(head, TILE), dtype, causal, chip, backward
        )
    rows, columns = (_parts(length, most) for length in (s, t))
    total = 0.0
    for i, some in enumerate(rows):
        for j, others in enumerate(columns):
            if not causal or j <= i:
                part = causal and i == j
                total += _attention_part(heads, some, others, min(head, TILE), dtype, part, chip, backward)
    return widths * total


def _parts(length: int, most: int) -> list[int]:
    return [min(most, length - first) for first in range(0, length, most)]


@functools.lru_cache(maxsize=_CACHE)
def _attention_part(
    heads: int, queries: int, keys: int, head: int, dtype: str, causal: bool, chip: str, backward: bool
) -> float:
    if backward:
        room = max(BLOCK_ROWS, 1 << (queries - 1).bit_length())
        program = flash_attention_backward_program(head, dtype, causal, chip, room)
        axes = (
            Axis("H", 1, 2, 2) if queries > 1024 else Axis("H", 1, 6, 6)
        )  # short ones overlap with their neighbours
        return program_ns(program, {"H": heads, "S": queries, "T": keys}, (axes,))
    if queries <= TILE and not causal and heads >= 4:
        program = flash_attention_program(head, dtype, False, chip, across_heads=True)
        axes = Axis("H", 4, 2, 2)
    else:
        program = flash_attention_program(head, dtype, causal, chip)
        axes = Axis("H", 1, 2, 2)
    return program_ns(program, {"H": heads, "S": queries, "T": keys}, (axes,))
