"""What the command line prints about a kernel, and the files that it, `benchmark` and `profile` write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from opentrn.errors import ConfigurationError
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


def _profiled_runs(options: dict[str, Any]) -> list[int]:
    """Which of the `num_execs` runs are profiled: every `profile_nth`, counted from one."""
    runs, every = int(options.get("num_execs") or 1), int(options.get("profile_nth") or 1)
    return list(range(every, runs + 1, every)) or [every]


def write_artifacts(options: dict[str, Any], traced: Traced) -> None:
    """The files of `benchmark` and `profile` under the names that callers chose, where the public tools put
    them: the program, one Perfetto trace per profiled run (`NAME_exec_N`, all equal), and a report of each as
    JSON."""
    folder = Path(options.get("working_directory") or ".")
    program, trace_name = options.get("save_neff_name"), options.get("save_trace_name")
    if not program and not trace_name:
        return
    reports = folder / "json_reports"
    existing = [folder / name for name in (program, trace_name) if name and (folder / name).exists()]
    if options.get("overwrite") is False and existing:
        raise ConfigurationError(
            f"{existing[0]} exists", cure="pass overwrite=True, or another working_directory"
        )
    folder.mkdir(parents=True, exist_ok=True)
    if program:
        (folder / program).write_bytes(traced.program.to_bytes())
    if not trace_name:
        return
    profiling = options.get("mode") == "profile"
    for number in _profiled_runs(options) if profiling else [1]:
        stem = Path(trace_name)
        name = stem.name if number == 1 else f"{stem.stem}_exec_{number}{stem.suffix}"
        write_trace(traced.recorded, traced, folder / stem.parent / name)
        if profiling:
            reports.mkdir(exist_ok=True)
            report = json.dumps(summary(traced.timing, traced), indent=2)
            (reports / f"{Path(name).stem}.json").write_text(report + "\n")
