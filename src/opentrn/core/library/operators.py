"""Simulated time of an eager operator on a logical core: which program computes it, and how its cores share
the work.

A logical core of two physical cores halves what does not depend on each other: batches and heads, else
rows, else columns. Both halves start together, each core moves its half through its own DMA engines, and
the operator ends with the slower half; no barrier is needed between them. Only what the halves must add up
(a sum over everything, the gradient of a gain) is sent to the other core. What both cores read (the right
matrix of a product) each of them loads.
"""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentrn.core.builder import Builder
from opentrn.core.library import row_rules, signatures
from opentrn.core.library.elementwise import Operand, Operands
from opentrn.core.library.extended import program_ns
from opentrn.core.library.formula import reads
from opentrn.core.library.matmul import ADDENDS, COLUMNS, TILE
from opentrn.core.machine import DEFAULT_CHIP
from opentrn.core.program import Program
from opentrn.core.table import DATA

# dtypes that the engines have, and 64-bit integers, which move as words and are computed by no program here.
_DTYPES = {
    "Float": "float32",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Float8_e4m3fn": "float8_e4m3fn",
    "Float8_e5m2": "float8_e5m2",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "uint8",
    "Long": "int64",
}
_FLOATS = row_rules.FLOATS
_MOVES = ("y0 = x0", "y0 = value")  # formulas that only move
_LEAST_FLAT = 128 * 64  # elements that are not worth a second core


@functools.cache
def table() -> dict[str, Any]:
    """data/eager_operators.toml."""
    return tomllib.loads((DATA / "eager_operators.toml").read_text())


def plain_name(operator: str) -> str:
    """ "_foreach_add_" → "add"."""
    return operator.removeprefix("_foreach_").rstrip("_")


@dataclass(frozen=True)
class Call:
    """One signature (csrc/timeline/programs.h); dtypes by their NeuronCore names."""

    operator: str
    dims: tuple[int, ...]
    inputs: Operands
    outputs: Operands
    chip: str
    cores: int

    def parts(self, count: int, unit: int = 1) -> int:
        """What the core with most of `count` has, in whole units."""
        units = -(-count // unit)
        return min(count, -(-units // self.cores) * unit)


def operator_time(
    operator: str,
    operator_class: str,
    dims: Sequence[int],
    inputs: Sequence[tuple[str, str]],
    outputs: Sequence[tuple[str, str]],
    chip: str = DEFAULT_CHIP,
    cores: int = 1,
) -> float | None:
    """ns on a logical core of `cores` cores, or None where the operator has no program.

    operator: ATen's name without overload; dims, inputs and outputs: (dtype, layout) as
    csrc/timeline/programs.h has them. Errors of the builder and the verifier come through.
    """
    kind = _KINDS.get(operator_class)
    if kind is None:
        return None
    known = [_operands(side) for side in (inputs, outputs)]
    if known[0] is None or known[1] is None:
        return None
    return kind(Call(plain_name(operator), tuple(dims), known[0], known[1], chip, cores))


def _operands(given: Sequence[tuple[str, str]]) -> Operands | None:
    found = []
    for dtype, layout in given:
        name = "float32" if layout == "number" else _DTYPES.get(dtype)
        if name is None:
            return None
        found.append(Operand(name, layout))
    return tuple(found)


# ---- Products and attention ----------------------------------------------------------------------


def _product(call: Call) -> float | None:
    dtype = call.inputs[0].dtype
    if call.operator not in table()["products"]["names"] or not dtype.startswith(("float", "bfloat")):
        return None
    if call.inputs[1].dtype != dtype:
        return None
    batch, m, n, k, left, right, addend = call.dims[:7]
    if batch > 1:
        batch = call.parts(batch)
    elif m >= n:
        m = call.parts(m, TILE)
    else:
        n = call.parts(n, COLUMNS if n >= 2 * COLUMNS else TILE)
    return signatures.matmul_time(
        m, n, k, dtype, call.chip, batch, bool(left), bool(right), ADDENDS[addend], call.outputs[0].dtype
    )


def _attention(call: Call) -> float | None:
    heads, key_heads, queries, keys, size, value_size, causal, _mask = call.dims
    dtype = call.inputs[0].dtype
    backward = call.operator in table()["attention"]["backward"]
    if dtype not in _FLOATS or not (backward or call.operator in table()["attention"]["forward"]):
        return None
    shared = heads // max(key_heads, 1)
    if shared > 1 and heads % key_heads == 0 and queries * shared <= TILE and not (causal and queries > 1):
        heads, queries = key_heads, queries * shared  # the queries that share keys go together
    if heads > 1:
        heads = call.parts(heads)
    elif not (causal and queries == keys):
        queries = call.parts(queries, TILE)
    return signatures.attention_time(
        heads, queries, keys, max(size, value_size), dtype, bool(causal), call.chip, backward
    )


# ---- Elementwise ---------------------------------------------------------------------------------


def _elementwise(call: Call) -> float | None:
    formula = table()["elementwise"].get(call.operator)
    if formula is None:
        return None
    elements, period, extent, tensors = call.dims[:4]
    words = _words_moved(call, formula)
    if words is None:
        return None
    call, elements = words, elements * (2 if words is not call else 1)
    layouts = {o.layout for k, o in enumerate(call.inputs) if k in reads(formula)}
    if "column" not in layouts and "row" not in layouts:
        each = elements
        if elements * tensors > _LEAST_FLAT:
            each = call.parts(elements, TILE)
        return signatures.flat_time(formula, call.inputs, call.outputs, each, max(tensors, 1), call.chip)
    if tensors > 1:
        return None
    columns = extent if "column" in layouts else period
    if "column" in layouts and "row" in layouts and period % extent:
        return None  # neither rows of one nor of the other
    columns = max(columns, 1)
    rows = -(-elements // columns)
    if rows > 1:
        rows = call.parts(rows)
    else:
        columns = call.parts(columns, TILE)
    return signatures.rows_time(formula, call.inputs, call.outputs, rows, columns, call.chip)


def _words_moved(call: Call, formula: str) -> Call | None:
    """The call; of 64-bit integers that are only moved, the same of twice as many words; else None."""
    used = [o for k, o in enumerate(call.inputs) if k in reads(formula)] + list(call.outputs)
    long = [o for o in (*call.inputs, *call.outputs) if o.dtype == "int64"]
    if not long:
        return call
    if formula not in _MOVES or any(o.dtype != "int64" or o.layout != "whole" for o in used):
        return None
    word = (Operand("int32"),)
    return dataclasses.replace(call, inputs=word * len(call.inputs), outputs=word * len(call.outputs))


# ---- Reductions and rows -------------------------------------------------------------------------


def _reduction(call: Call) -> float | None:
    for kind, rule in _ROW_KINDS.items():
        if call.operator in table()[kind]:
            return rule(call, table()[kind][call.operator])
    return _by_rule(call, "channels", "picked", "statistics")


def _by_rule(call: Call, *kinds: str) -> float | None:
    for kind in kinds:
        if call.operator in table()[kind]:
            return row_rules.RULES[kind](call, table()[kind][call.operator], _combine_ns)
    return None


def _of_kind(kind: str) -> Callable[[Call], float | None]:
    return lambda call: _by_rule(call, kind)


def _plain_reduction(call: Call, entry: Mapping[str, str]) -> float | None:
    _, outer, reduced, inner, _, second, tensors, _ = call.dims
    if second or call.outputs[0].dtype == "int64" != call.inputs[0].dtype:
        return _by_rule(call, "extremes")
    dtype, out = call.inputs[0].dtype, call.outputs[0].dtype
    if len(call.inputs) != 1 or "int64" in (dtype, out):
        return None
    op, function = entry["op"], entry.get("function")
    if inner > 1:
        if op not in ("add", "maximum", "minimum"):
            return None
        if outer > 1:
            outer = call.parts(outer)
        else:
            inner = call.parts(inner, TILE)
        return signatures.column_reduction_time(outer, reduced, inner, dtype, op, call.chip, out, function)
    time = functools.partial(
        signatures.reduction_time,
        dtype=dtype,
        op=op,
        chip=call.chip,
        out=out,
        function=function,
        tensors=max(tensors, 1),
    )
    if outer > 1 or call.cores == 1:
        return time(call.parts(outer), reduced)
    halves = time(1, call.parts(reduced, TILE)) + max(tensors, 1) * _combine_ns(1, call.chip)
    return min(time(1, reduced), halves)


def _softmax(call: Call, kind: str) -> float | None:
    elements, _, _, _, columns, *_ = call.dims
    dtype = call.inputs[0].dtype
    if dtype not in _FLOATS or columns <= 0:
        return None
    rows = call.parts(elements // columns)
    return signatures.softmax_time(rows, columns, dtype, call.chip, kind, call.outputs[0].dtype)


def _norm(call: Call, entry: Mapping[str, bool]) -> float | None:
    elements, _, _, _, _, second, *_ = call.dims
    dtype = call.inputs[0].dtype
    if dtype not in _FLOATS or second <= 0:
        return None
    backward = entry["backward"]
    # Forward the second result is a statistic of each row, backward the gradient of a gain.
    columns = second if backward else elements // second
    rows = call.parts(elements // columns)
    count = 2 if entry["centred"] else 1
    gains = tuple(o.dtype for o in (call.outputs[1:] if backward else call.inputs[1:]) if o.layout == "row")[
        :count
    ]
    if any(gain not in _FLOATS for gain in gains):
        return None
    found = signatures.norm_time(rows, columns, dtype, entry["centred"], backward, gains, call.chip)
    if found is None or not backward or call.cores == 1:
        return found
    return found + len(gains) * _combine_ns(columns, call.chip)


@functools.lru_cache(maxsize=1024)
def _combine_ns(elements: int, chip: str) -> float:
    """Both cores exchange partial sums and add them."""
    width = 1 << (-(-elements // TILE) - 1).bit_length() if elements > TILE else 1
    return program_ns(_combine_program(min(elements, TILE), width, chip), {})


@functools.lru_cache(maxsize=64)
def _combine_program(rows: int, width: int, chip: str) -> Program:
    b = Builder(chip=chip, cores=2, name="combine")
    for core in range(2):
        b.core(core)
        b.here()
        mine, other = b.sbuf("mine", (rows, width), "float32"), b.sbuf("other", (rows, width), "float32")
        b.emit("memset", dst=mine, value=0.0)
        b.emit("sendrecv", src=mine, dst=other, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
        b.emit("tensor_tensor", dst=mine, data1=mine, data2=other, op="add")
    return b.finish()


_ROW_KINDS: dict[str, Callable[[Call, Any], float | None]] = {
    "reductions": _plain_reduction,
    "softmax": _softmax,
    "norms": _norm,
}
_KINDS: dict[str, Callable[[Call], float | None]] = {
    "matmul": _product,
    "attention": _attention,
    "attention backward": _attention,
    "pointwise": _elementwise,
    "copy": _elementwise,
    "random": _elementwise,
    "reduction": _reduction,
    "scan": _of_kind("scans"),
    "gather": _of_kind("gathers"),
    "scatter": _of_kind("scatters"),
}
