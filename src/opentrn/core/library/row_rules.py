"""Which of the programs of `row_times` computes an operator of rows, channels or indices, and how two cores
share it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opentrn.core.library import row_times
from opentrn.core.library.elementwise import Operand
from opentrn.core.library.matmul import TILE
from opentrn.core.library.signatures import flat_time

if TYPE_CHECKING:
    from opentrn.core.library.operators import Call

FLOATS = ("float32", "float16", "bfloat16")
INDICES = ("int64", "int32")
_CHANNELS_PER_CORE = 16  # of a batch normalisation; fewer are not worth a second core
_LEAST_WIDTH = 16  # elements: nobody would gather single columns by DMA, row after row

Rule = Callable[["Call", Any, Callable[[int, str], float]], "float | None"]


def _across(call: Call) -> tuple[int, int] | None:
    """(rows, how many of them lie side by side; 0 for rows that are contiguous) of the busier core."""
    _, outer, _, inner, *_ = call.dims
    if inner <= 1:
        return call.parts(outer), 0
    if call.inputs[0].dtype not in FLOATS:
        return None  # the Tensor engine turns floating point only
    if outer > 1:
        return call.parts(outer) * inner, inner
    lanes = call.parts(inner, TILE)
    return lanes, lanes


def statistic(call: Call, kind: str, combine: Callable[[int, str], float]) -> float | None:
    """Variances and the like; a pair of results where the operator has one."""
    rows = _across(call)
    if (
        rows is None
        or len(call.inputs) != 1
        or any(o.dtype not in FLOATS for o in call.inputs + call.outputs)
    ):
        return None
    names = ("y", "mean")
    results = tuple((names[k], o.dtype) for k, o in enumerate(call.outputs))
    return row_times.statistic_time(
        rows[0], call.dims[2], call.inputs[0].dtype, kind, results, call.chip, rows[1]
    )


def extreme(call: Call, kind: str, combine: Callable[[int, str], float]) -> float | None:
    """argmax and max with a dimension; a whole tensor's is one row."""
    rows = _across(call)
    outputs = {o.dtype for o in call.outputs}
    if rows is None or len(call.inputs) != 1 or call.inputs[0].dtype == "int64" or "int64" not in outputs:
        return None
    results = tuple(("index" if o.dtype == "int64" else "y", o.dtype) for o in call.outputs)
    return row_times.statistic_time(
        rows[0], call.dims[2], call.inputs[0].dtype, kind, results, call.chip, rows[1]
    )


def scan(call: Call, op: str, combine: Callable[[int, str], float]) -> float | None:
    """Running sums and products."""
    rows, dtype, out = _across(call), call.inputs[0].dtype, call.outputs[0].dtype
    if rows is None or len(call.outputs) != 1 or "int64" in (dtype, out):
        return None
    return row_times.scan_time(rows[0], call.dims[2], dtype, op, out, call.chip, rows[1])


def channel_norm(call: Call, kind: str, combine: Callable[[int, str], float]) -> float | None:
    """Batch and group normalisation. Cores halve channels of a batch, and images (else groups) of groups."""
    _, batch, count, inner, _, statistics, *_ = call.dims
    data = 2 if kind.endswith("backward") else 1
    dtype = call.inputs[0].dtype
    operands = call.inputs + call.outputs
    if any(o.dtype not in FLOATS for o in operands) or any(o.layout == "scattered" for o in call.inputs):
        return None
    if kind.startswith("group"):
        return _group_norm(call, kind, batch, count, inner, statistics, combine)
    vectors = [o.dtype for o in call.inputs[data:]]
    if kind == "batch" and not statistics:
        kind = "batch_fixed"
    running = None
    if kind != "batch_backward" and len(vectors) in (2, 4):
        running, vectors = vectors[-1], vectors[:-2]
    gains = tuple(vectors[:2])
    if kind == "batch_backward":
        gains = tuple(o.dtype for o in call.outputs[1:])
    part = call.parts(count) if count >= _CHANNELS_PER_CORE * call.cores else count
    return row_times.channels_time(kind, batch, part, inner, 1, dtype, gains, running, call.chip)


def _group_norm(
    call: Call,
    kind: str,
    batch: int,
    count: int,
    inner: int,
    statistics: int,
    combine: Callable[[int, str], float],
) -> float | None:
    if statistics <= 0 or statistics % batch:
        return None
    group, backward = count * batch // statistics, kind.endswith("backward")
    gains = tuple(o.dtype for o in (call.outputs[1:] if backward else call.inputs[1:]))
    exchanged = 0.0
    if batch > 1:
        batch = call.parts(batch)
        exchanged = len(gains) * combine(count, call.chip) if backward and call.cores > 1 else 0.0
    else:
        count = call.parts(count, group)
    dtype = call.inputs[0].dtype
    found = row_times.channels_time(kind, batch, count, inner, group, dtype, gains, None, call.chip)
    return None if found is None else found + exchanged


def picked(call: Call, kind: str, combine: Callable[[int, str], float]) -> float | None:
    """nll_loss: without weights of classes."""
    _, targets, width, _, weighted, results, *_ = call.dims
    dtype, index = call.inputs[0].dtype, call.inputs[1].dtype
    backward = kind == "backward"
    if weighted or dtype not in FLOATS or index not in INDICES:
        return None
    reduced = backward or results == 1
    found = row_times.picked_time(call.parts(targets), width, dtype, index, reduced, backward, call.chip)
    return found + (combine(2, call.chip) if call.cores > 1 and reduced and not backward else 0.0)


def gathered(call: Call, entry: Any, combine: Callable[[int, str], float]) -> float | None:
    """Rows by their numbers: cores halve the indices."""
    indices, width, outer, table, *_ = call.dims
    dtype, index = call.inputs[0].dtype, call.inputs[1].dtype
    if index not in INDICES or width <= 0 or (outer > 1 and width < _LEAST_WIDTH):
        return None
    words, dtype = _words(dtype)
    return row_times.gather_time(call.parts(indices), width * words, outer, table, dtype, index, call.chip)


def scattered(call: Call, entry: Any, combine: Callable[[int, str], float]) -> float | None:
    """Rows to their places: cores halve the columns, for two indices may be equal. A result that is fresh
    begins as zeros, or as a copy of what was given.
    """
    indices, width, outer, table, fresh, *_ = call.dims
    dtype, index = call.inputs[0].dtype, call.inputs[1].dtype
    if index not in INDICES or dtype not in FLOATS or width <= 0 or (outer > 1 and width < _LEAST_WIDTH):
        return None
    width = call.parts(width, 64)
    cleared = bool(fresh) and entry["zeros"]
    found = row_times.scatter_time(
        indices, width, outer, table, dtype, index, entry["add"], cleared, call.chip
    )
    if fresh and not cleared:
        one = (Operand(dtype),)
        found += flat_time("y0 = x0", one, one, outer * table * width, 1, call.chip)
    return found


def _words(dtype: str) -> tuple[int, str]:
    """Elements of 64 bits move as two words."""
    return (2, "int32") if dtype == "int64" else (1, dtype)


RULES: dict[str, Rule] = {
    "statistics": statistic,
    "extremes": extreme,
    "scans": scan,
    "channels": channel_norm,
    "picked": picked,
    "gathers": gathered,
    "scatters": scattered,
}
