"""The columns of a trace, once: the Parquet schemas and docs/trace-schema.md are both made from these tables.

Run `python -m opentrn.trace.schema` to print the documentation page.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

FORMAT = "opentrn-trace"
# Raised when a column is renamed, removed or changes its meaning; a new column at the end does not raise it.
VERSION = 1

KINDS = ("modelled", "simulated")
PHASES = ("outside", "forward", "backward", "optimizer", "recompute")
CATEGORIES = (
    "other",
    "parameter",
    "gradient",
    "optimizer state",
    "activation",
    "temporary",
    "input",
    "buffer",
    "kv cache",
)
MEMORY_EVENTS = ("alloc", "free", "relabel")

_TEXT = "text"
_TYPES: dict[str, pa.DataType] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "bool": pa.bool_(),
    "double": pa.float64(),
    # Repeated strings: stored once per file and read back as dictionary columns.
    _TEXT: pa.dictionary(pa.int32(), pa.string()),
}


@dataclass(frozen=True)
class Column:
    """One column: its name, type (a key of `_TYPES`), unit ("" where none applies) and meaning."""

    name: str
    type: str
    unit: str
    meaning: str


@dataclass(frozen=True)
class Table:
    """One table: rows of one kind of event, in files `<name>-NNNNNN.parquet`."""

    name: str
    meaning: str
    columns: tuple[Column, ...]

    def arrow(self) -> pa.Schema:
        """The Parquet schema of each file of this table."""
        fields = [pa.field(c.name, _TYPES[c.type]) for c in self.columns]
        return pa.schema(fields, metadata={"format": FORMAT, "version": str(VERSION), "table": self.name})


_HOST = "virtual host time since the machine was attached"
_DEVICE = "virtual device time, same origin as host time"

OPERATORS = Table(
    "operators",
    "One row per operator that ran on the device, in the order of issue.",
    (
        Column("name", _TEXT, "", "operator and overload, as in `aten::add.Tensor`"),
        Column(
            "shapes", _TEXT, "", "shapes of the tensor arguments, then of the results: `[2,3],[3]->[2,3]`"
        ),
        Column("dtypes", _TEXT, "", "dtypes of the same tensors: `float32,float32->float32`"),
        Column(
            "module",
            _TEXT,
            "",
            "path of the torch.nn module that issued it; in backward, of its forward; null outside",
        ),
        Column("frame", _TEXT, "", "`file.py:line` of the user's call; null unless frames were recorded"),
        Column("phase", _TEXT, "", "one of " + ", ".join(PHASES)),
        Column("kind", _TEXT, "", "how its device time is known: " + " or ".join(KINDS)),
        Column("device", "int16", "", "index of the `neuron` device"),
        Column("stream", "int32", "", "stream of that device; 0 is the default stream"),
        Column("host_start", "int64", "ns", _HOST + ": the operator is issued"),
        Column("host_end", "int64", "ns", _HOST + ": the host goes on"),
        Column("device_start", "int64", "ns", _DEVICE + ": it starts"),
        Column("device_end", "int64", "ns", _DEVICE + ": it ends"),
        Column("flops", "int64", "FLOP", "floating-point operations, a multiply-add counts two"),
        Column("bytes", "int64", "B", "bytes moved between HBM and the core"),
        Column("memory_allocated", "int64", "B", "bytes allocated on its device after it"),
    ),
)

MEMORY = Table(
    "memory",
    "One row per change of device memory, in order. The last row that names a storage has its category.",
    (
        Column("time", "int64", "ns", _HOST),
        Column("event", _TEXT, "", "one of " + ", ".join(MEMORY_EVENTS)),
        Column("storage", "int64", "", "identifies the storage; never reused within a run"),
        Column("address", "uint64", "", "device address of its first byte"),
        Column("size", "int64", "B", "bytes of its block"),
        Column("category", _TEXT, "", "one of " + ", ".join(CATEGORIES)),
        Column("module", _TEXT, "", "path of the module that allocated it; null outside"),
        Column("phase", _TEXT, "", "phase in which the event happened, as in `operators`"),
        Column("device", "int16", "", "index of the `neuron` device"),
    ),
)

STEPS = Table(
    "steps",
    "One row per step, from the end of the one before (the first: from the first module call) to its own.",
    (
        Column("index", "int32", "", "0 for the first step"),
        Column(
            "kind",
            _TEXT,
            "",
            "`optimizer`, `skipped` (the gradient scaler met an overflow), `manual` or `span`",
        ),
        Column("host_start", "int64", "ns", _HOST),
        Column("host_end", "int64", "ns", _HOST),
        Column(
            "completion_start", "int64", "ns", "virtual time when all work issued before the step had ended"
        ),
        Column("completion_end", "int64", "ns", "virtual time when all work issued in the step had ended"),
        Column(
            "measured_ns",
            "int64",
            "ns",
            "wall-clock time of this host for the step: measured, not the chip's",
        ),
        Column("tokens", "int64", "", "tokens of the step; -1 where unknown"),
        Column("tokens_from", _TEXT, "", "`embedding`, `given` or `unknown`"),
        Column(
            "sequence_length", "int64", "", "last dimension of the index that was counted; -1 where unknown"
        ),
        Column("operators", "int64", "", "operators issued"),
        Column("device_busy_ns", "int64", "ns", "sum of the operators' device times, all devices"),
        Column("modelled_ns", "int64", "ns", "part of it that is modelled"),
        Column("simulated_ns", "int64", "ns", "part of it that is simulated"),
        Column(
            "forward_ns",
            "int64",
            "ns",
            "device time of phases outside and forward",
        ),
        Column("backward_ns", "int64", "ns", "device time of phase backward"),
        Column("recompute_ns", "int64", "ns", "device time of phase recompute (activation checkpointing)"),
        Column("optimizer_ns", "int64", "ns", "device time of phase optimizer"),
        Column("flops", "int64", "FLOP", "counted floating-point operations, recomputation included"),
        Column("recompute_flops", "int64", "FLOP", "part of it that is recomputation"),
        Column("bytes", "int64", "B", "HBM traffic"),
        Column("peak_allocated", "int64", "B", "highest allocated memory within the step; -1 where unknown"),
    ),
)

TOTALS = Table(
    "totals",
    "One row per operator name: sums over the whole run.",
    (
        Column("name", _TEXT, "", "operator and overload"),
        Column("kind", _TEXT, "", "how its device time is known: " + " or ".join(KINDS)),
        Column("count", "int64", "", "times it ran"),
        Column("device_ns", "int64", "ns", "sum of device time"),
        Column("flops", "int64", "FLOP", "sum of floating-point operations"),
        Column("bytes", "int64", "B", "sum of HBM traffic"),
        Column(
            "operator_class",
            _TEXT,
            "",
            "class of the cost model, as matmul or pointwise; empty where unknown",
        ),
    ),
)

LAUNCHES = Table(
    "launches",
    "One row per run of a program of instructions (an NKI kernel), beside its row in `operators`.",
    (
        Column("program", "int64", "", "number of the program in this run, as in `engine_intervals`"),
        Column("name", _TEXT, "", "the program's name"),
        Column("device", "int16", "", "index of the `neuron` device"),
        Column("stream", "int32", "", "stream of that device"),
        Column("device_start", "int64", "ns", _DEVICE + ": it starts"),
        Column("device_end", "int64", "ns", _DEVICE + ": it ends"),
    ),
)

ENGINE_INTERVALS = Table(
    "engine_intervals",
    "One row per instruction of each program that was launched, once per program: when its engine was busy "
    "with it. Simulated. Add the launch's `device_start` to place it. None for programs of more than two "
    "million instructions.",
    (
        Column("program", "int64", "", "number of the program in this run"),
        Column("core", "int16", "", "core of the logical core"),
        Column("engine", _TEXT, "", "tensor, vector, scalar, gpsimd, sync or dma"),
        Column("instruction", _TEXT, "", "the instruction's name"),
        Column("source", _TEXT, "", "`file.py:line` of the kernel; null where unknown"),
        Column("start", "double", "ns", "since the program's start"),
        Column("end", "double", "ns", "since the program's start"),
    ),
)

TABLES: dict[str, Table] = {
    table.name: table for table in (OPERATORS, MEMORY, STEPS, TOTALS, LAUNCHES, ENGINE_INTERVALS)
}

_INTRODUCTION = f"""# The trace, table by table

<!-- Generated by `python -m opentrn.trace.schema`; do not edit. -->

A trace is a directory. `trace.json` says what ran on which machine and whether the run ended by itself
(`complete`); beside it lie Parquet files `<table>-NNNNNN.parquet`. Each file is whole in itself and appears
under its name only when it is finished, so a run that was killed leaves a readable trace. Any tool that reads
Parquet reads it, for example DuckDB:

    SELECT name, count(*), sum(device_end - device_start) AS device_ns
    FROM 'my-trace/operators-*.parquet' GROUP BY name ORDER BY device_ns DESC;

Format `{FORMAT}`, version {VERSION}. All times are integers in nanoseconds of virtual time unless a column
says measured. `text` columns are dictionary-encoded strings.
"""


def documentation() -> str:
    """docs/trace-schema.md as text."""
    lines = [_INTRODUCTION]
    for table in TABLES.values():
        lines += [
            f"## `{table.name}`",
            "",
            table.meaning,
            "",
            "| column | type | unit | meaning |",
            "|---|---|---|---|",
        ]
        lines += [f"| {c.name} | {c.type} | {c.unit} | {c.meaning} |" for c in table.columns]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(documentation(), end="")
