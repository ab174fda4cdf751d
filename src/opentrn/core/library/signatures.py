"""How long an operator takes on one core, from the programs of this library; cached by signature.

The eager device asks here when it meets a signature for the first time. Each function returns nanoseconds
(simulated); a split over several cores is the caller's.
"""

from __future__ import annotations

import functools

from opentrn.core.library.attention import KEYS_MAX, flash_attention_program
from opentrn.core.library.matmul import DEPTH_MAX, matmul_program
from opentrn.core.library.rows import ROW_MAX, pointwise_program, reduction_program, softmax_program
from opentrn.core.machine import DEFAULT_CHIP
from opentrn.core.timing import time

# dtypes that the elementwise engines do not move natively are timed as the next wider one they do.
_TIMED_AS = {
    "float64": "float32",
    "int64": "int32",
    "uint64": "int32",
    "bool": "uint8",
    "complex64": "float32",
}


def _kind(dtype: str) -> str:
    return _TIMED_AS.get(dtype, dtype)


@functools.lru_cache(maxsize=65536)
def matmul_time(
    m: int,
    n: int,
    k: int,
    dtype: str = "bfloat16",
    chip: str = DEFAULT_CHIP,
    batch: int = 1,
    transposed: bool = False,
) -> float:
    """ns of `batch` products [m, k] x [k, n]; longer contractions than 8192 are summed from parts."""
    if min(m, n, k, batch) <= 0:
        return 0.0
    program = matmul_program(_kind(dtype), chip, transposed)
    whole, rest = divmod(k, DEPTH_MAX)
    total = 0.0
    if whole:
        total += whole * time(program, {"M": m, "N": n, "K": DEPTH_MAX}).nanoseconds
    if rest:
        total += time(program, {"M": m, "N": n, "K": rest}).nanoseconds
    parts = whole + bool(rest)
    if parts > 1:
        total += (parts - 1) * pointwise_time(m * n, "float32", 2, chip=chip)
    return total * batch


@functools.lru_cache(maxsize=65536)
def pointwise_time(
    elements: int,
    dtype: str = "bfloat16",
    inputs: int = 1,
    function: str | None = None,
    out: str | None = None,
    chip: str = DEFAULT_CHIP,
) -> float:
    """ns of one elementwise operator on so many elements."""
    if elements <= 0:
        return 0.0
    return time(
        pointwise_program(_kind(dtype), inputs, function, _kind(out) if out else None, chip), {"E": elements}
    ).nanoseconds


@functools.lru_cache(maxsize=65536)
def reduction_time(
    rows: int, columns: int, dtype: str = "bfloat16", op: str = "add", chip: str = DEFAULT_CHIP
) -> float:
    """ns to reduce [rows, columns] over columns. Few long rows are first cut into as many rows as there
    are partitions.
    """
    if min(rows, columns) <= 0:
        return 0.0
    program = reduction_program(_kind(dtype), op, chip)
    if rows < 128 and columns > 4096:
        pieces = -(-128 // rows)
        second = time(program, {"M": rows, "N": pieces}).nanoseconds
        return time(program, {"M": rows * pieces, "N": -(-columns // pieces)}).nanoseconds + second
    return time(program, {"M": rows, "N": columns}).nanoseconds


@functools.lru_cache(maxsize=65536)
def softmax_time(rows: int, columns: int, dtype: str = "bfloat16", chip: str = DEFAULT_CHIP) -> float:
    """ns of a softmax over the last axis; longer rows than SBUF holds are two reductions and two
    elementwise passes.
    """
    if min(rows, columns) <= 0:
        return 0.0
    if columns <= ROW_MAX:
        return time(softmax_program(_kind(dtype), chip), {"M": rows, "N": columns}).nanoseconds
    count = rows * columns
    return (
        reduction_time(rows, columns, dtype, "maximum", chip)
        + reduction_time(rows, columns, dtype, "add", chip)
        + pointwise_time(count, dtype, 1, "exp", None, chip)
        + pointwise_time(count, dtype, 1, None, None, chip)
    )


@functools.lru_cache(maxsize=65536)
def attention_time(
    heads: int,
    queries: int,
    keys: int,
    head: int,
    dtype: str = "bfloat16",
    causal: bool = False,
    chip: str = DEFAULT_CHIP,
) -> float:
    """ns of flash attention forward over `heads` heads (batch included); lengths are padded to whole
    blocks.
    """
    if min(heads, queries, keys, head) <= 0:
        return 0.0
    size = min(128, head)
    program = flash_attention_program(size, _kind(dtype), causal and queries == keys, chip)
    s, t = -(-queries // 128) * 128, -(-keys // 512) * 512
    if causal and queries == keys:
        s = t
    parts = -(-t // KEYS_MAX)
    t = min(t, KEYS_MAX)
    return time(program, {"H": heads, "S": s, "T": t}).nanoseconds * parts * -(-head // 128)
