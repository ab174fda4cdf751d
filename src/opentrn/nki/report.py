"""What the command line prints about a kernel, and the trace file it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from opentrn.nki.classic.launch import CLASSIC, ClassicKernel
from opentrn.nki.enums import engine
from opentrn.nki.kernel import unwrap
from opentrn.nki.traced import MODERN, Traced, trace


def traced_call(kernel: Any, grid: Any, args: list[Any], kwargs: dict[str, Any], chip: str | None) -> Any:
    """(traced kernel, input arrays) of either generation's kernel."""
    function, own_grid = unwrap(kernel)
    grid = grid if grid is not None else own_grid
    dialect = CLASSIC if isinstance(kernel, ClassicKernel) else MODERN
    return trace(function, grid, tuple(args), kwargs, chip, dialect=dialect)


def summary(timing: Any, traced: Traced) -> dict[str, Any]:
    """The figures of a timing as one JSON object. Times in nanoseconds; everything simulated."""
    return {
        "kernel": timing.program,
        "chip": timing.chip,
        "cores": traced.lnc,
        "kind": "simulated",
        "nanoseconds": timing.nanoseconds,
        "cycles": {engine: timing.cycles(engine) for engine in ("tensor", "vector", "scalar", "gpsimd")},
        "utilisation": timing.utilisation,
        "instructions": timing.instructions,
        "bytes": timing.bytes,
        "flops": timing.flops,
        "bound": timing.bound,
        "stalls": [
            {
                "nanoseconds": stall.nanoseconds,
                "engine": stall.engine,
                "instruction": stall.instruction,
                "cause": stall.cause,
                "source": stall.source,
            }
            for stall in timing.stalls[:3]
        ],
        "assumptions": list(timing.assumptions),
    }


def describe_result(value: Any) -> list[str]:
    """One line per array of a kernel's result."""
    arrays = value if isinstance(value, (list, tuple)) else [value]
    lines = []
    for place, array in enumerate(arrays):
        if not isinstance(array, np.ndarray):
            continue
        numbers = array.astype(np.float32) if not array.dtype.names else array.view(array.dtype[0])
        lines.append(
            f"result {place}: {array.dtype} {array.shape}, min {np.nanmin(numbers):.6g}, "
            f"max {np.nanmax(numbers):.6g}, mean {np.nanmean(numbers):.6g}, "
            f"NaN {int(np.isnan(numbers).sum()) if numbers.dtype.kind == 'f' else 0}"
        )
    return lines


def write_trace(timing: Any, traced: Traced, path: Path) -> None:
    """The recorded intervals as a Chrome/Perfetto trace: one track per core and engine, times in µs."""
    tables = traced.program.tables()
    texts, sources, instructions = tables["texts"], tables["sources"], tables["instructions"]
    intervals = timing.intervals
    cores, engines = intervals["core"].tolist(), intervals["engine"].tolist()
    events: list[dict[str, Any]] = []
    for core in sorted(set(cores)):
        events.append({"ph": "M", "name": "process_name", "pid": core, "args": {"name": f"core {core}"}})
    for core, number in sorted(set(zip(cores, engines, strict=True))):
        events.append(
            {
                "ph": "M",
                "name": "thread_name",
                "pid": core,
                "tid": number,
                "args": {"name": engine(number).name},
            }
        )
    for place, index in enumerate(intervals["instruction"].tolist()):
        name, _, _, line, *_ = instructions[index]
        event: dict[str, Any] = {
            "ph": "X",
            "name": name,
            "pid": cores[place],
            "tid": engines[place],
            "ts": float(intervals["start_ns"][place]) / 1e3,
            "dur": float(intervals["end_ns"][place] - intervals["start_ns"][place]) / 1e3,
        }
        if line >= 0:
            file, number = sources[line]
            event["args"] = {"source": f"{texts[file]}:{number}"}
        events.append(event)
    path.write_text(
        json.dumps(
            {
                "traceEvents": events,
                "displayTimeUnit": "ns",
                "otherData": {"kernel": timing.program, "chip": timing.chip, "times": "simulated"},
            }
        )
    )
