"""A RunRecord from a trace directory: as the run saved it, or, for a run that was killed, from the tables
that remain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opentrn.errors import CorruptFileError
from opentrn.trace.counters import Counters, PhaseTotal
from opentrn.trace.memory import MemoryLedger
from opentrn.trace.reader import Trace
from opentrn.trace.record import OperatorTotal, RunRecord, Step
from opentrn.trace.schema import CATEGORIES, MEMORY_EVENTS, PHASES
from opentrn.trace.steps import make_step


def rebuild(trace: Trace) -> RunRecord:
    """The record of a recorded run; CorruptFileError if its description does not fit its tables."""
    run = trace.metadata.get("run")
    if run is None:
        return _from_tables(trace)
    steps = [Step(**row) for row in trace.table("steps").to_pylist()]
    totals = [OperatorTotal(**row) for row in trace.table("totals").to_pylist()]
    try:
        return RunRecord.from_metadata(run, steps, totals)
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptFileError(
            f"'{trace.directory}' has a description that does not fit this version: {error}",
            cure="record it again",
        ) from error


_KILLED = "killed before its end"


def _why_partial(stopped: str | None) -> str:
    if stopped is None:
        return "the run was killed: steps and tokens are unknown, the last seconds may be missing"
    return f"the trace stopped before the run did ({stopped}): steps and tokens are unknown"


def _from_tables(trace: Trace) -> RunRecord:
    record = RunRecord(
        command=str(trace.metadata.get("command", "")),
        ended=str(trace.metadata.get("ended", _KILLED)),
        machine=trace.metadata.get("machine") or {},
        trace_directory=str(trace.directory),
        notes=[_why_partial(trace.metadata.get("stopped"))],
    )
    operators = trace.table("operators", [*_KEYS, *_SUMMED, "device", "module", "phase", "host_start"])
    if operators.num_rows:
        operators = operators.append_column(
            "ns", pc.subtract(operators["device_end"], operators["device_start"])
        )
        record.totals = _totals(operators)
        record.modules = _modules(operators)
        record.devices = len(pc.unique(operators["device"]))
        record.span = _span(operators)
    ledger = MemoryLedger()
    for batch, modules in _memory_batches(trace):
        ledger.feed(batch, modules)
        ledger.mark(modules)
    record.peak = ledger.peak()
    record.timeline, record.stack = ledger.fullest()
    return record


_KEYS = ["name", "kind"]
_SUMMED = ["flops", "bytes", "device_start", "device_end"]


def _plain(table: pa.Table, names: list[str]) -> pa.Table:
    """Dictionary columns as plain strings, which grouping takes in any version."""
    for name in names:
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(pa.string()))
    return table


def _totals(operators: pa.Table) -> list[OperatorTotal]:
    sums = [("ns", "count"), ("ns", "sum"), ("flops", "sum"), ("bytes", "sum")]
    grouped = _plain(operators, _KEYS).group_by(_KEYS).aggregate(sums)
    rows = grouped.to_pylist()
    totals = [
        OperatorTotal(r["name"], r["kind"], r["ns_count"], r["ns_sum"], r["flops_sum"], r["bytes_sum"])
        for r in rows
    ]
    return sorted(totals, key=lambda total: -total.device_ns)


def _modules(operators: pa.Table) -> dict[str, int]:
    grouped = _plain(operators, ["module"]).group_by("module").aggregate([("ns", "sum")])
    return {row["module"] or "": row["ns_sum"] for row in grouped.to_pylist()}


def _span(operators: pa.Table) -> Step:
    by_phase = (
        _plain(operators, ["phase"])
        .group_by("phase")
        .aggregate([("ns", "count"), ("ns", "sum"), ("flops", "sum")])
    )
    phases = {
        row["phase"]: PhaseTotal(row["ns_count"], row["ns_sum"], row["flops_sum"])
        for row in by_phase.to_pylist()
    }
    modelled = operators.filter(pc.equal(operators["kind"].cast(pa.string()), "modelled"))
    busy = pc.sum(operators["ns"]).as_py()
    modelled_ns = pc.sum(modelled["ns"]).as_py() or 0
    start = pc.min(operators["host_start"]).as_py()
    end = Counters(
        host=pc.max(operators["host_start"]).as_py(),
        completion=pc.max(operators["device_end"]).as_py(),
        operators=operators.num_rows,
        busy=busy,
        modelled=modelled_ns,
        simulated=busy - modelled_ns,
        flops=pc.sum(operators["flops"]).as_py(),
        bytes=pc.sum(operators["bytes"]).as_py(),
        phases=phases,
    )
    return make_step(0, "span", Counters(host=start, completion=start), end, -1, "unknown", -1, -1)


def _memory_batches(trace: Trace) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """The memory table in the form the recorder feeds the ledger, file by file."""
    modules: dict[str, int] = {}
    for batch in trace.batches("memory"):
        columns: dict[str, Any] = {
            name: batch.column(name).to_numpy(zero_copy_only=False)
            for name in ("time", "storage", "address", "size", "device")
        }
        for name, values in (("event", MEMORY_EVENTS), ("category", CATEGORIES), ("phase", PHASES)):
            columns[name] = np.array([values.index(text) for text in batch.column(name).to_pylist()], np.int8)
        paths = batch.column("module").to_pylist()
        columns["module"] = np.array(
            [-1 if path is None else modules.setdefault(path, len(modules)) for path in paths], np.int32
        )
        yield columns, list(modules)
