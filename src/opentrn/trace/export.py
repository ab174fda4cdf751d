"""Streams a trace into one file for Perfetto (protobuf) or chrome://tracing (JSON).

Tracks: the host thread, each stream of each device, the steps, a counter of allocated memory per device, and
the engines of the programs (NKI kernels) that ran.
An operator appears twice, issued on the host and running on its stream, joined by a flow. Memory stays
bounded: rows are read in batches and written as they come.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from opentrn.errors import ConfigurationError, UnsupportedError
from opentrn.trace import engines
from opentrn.trace.reader import Trace

FORMATS = ("perfetto", "chrome")
_encode = json.JSONEncoder(separators=(",", ":")).encode

_PROCESS = 1
_HOST_THREAD = 1
_STEP_THREAD = 2
# Stream s of device d is thread _FIRST_STREAM + d·_STREAMS_PER_DEVICE + s.
_FIRST_STREAM = 1000
_STREAMS_PER_DEVICE = 1000

_COLUMNS = [
    "name",
    "shapes",
    "dtypes",
    "module",
    "phase",
    "kind",
    "frame",
    "device",
    "stream",
    "host_start",
    "host_end",
    "device_start",
    "device_end",
    "flops",
    "bytes",
    "memory_allocated",
]


def export(
    trace: Trace, output: Path, format: str, progress: Callable[[int], None] = lambda rows: None
) -> int:
    """Writes `output` whole or not at all; returns the number of operators.

    format: one of FORMATS. progress: called with the operators written so far.
    """
    if format not in FORMATS:
        raise ConfigurationError(f"unknown export format '{format}'", cure=f"use one of {', '.join(FORMATS)}")
    # Before the file is opened: the library may be missing.
    make_sink = _perfetto_sink() if format == "perfetto" else _ChromeSink
    temporary = output.with_name(output.name + ".unfinished")
    try:
        with open(temporary, "wb") as file:
            sink = make_sink(file, str(trace.metadata.get("command", "")))
            count = _write(trace, sink, progress)
            sink.close()
        os.replace(temporary, output)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write '{output}': {error.strerror or error}",
            cure="name a file that can be written with -o",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _write(trace: Trace, sink: Any, progress: Callable[[int], None]) -> int:
    for step in trace.table("steps").to_pylist():
        details = {"tokens": step["tokens"], "flops": step["flops"], "peak_allocated": step["peak_allocated"]}
        start, end = step["completion_start"], step["completion_end"]
        sink.slice(_STEP_THREAD, f"step {step['index'] + 1}", start, end, details, None)
    count = 0
    allocated: dict[int, int] = {}
    for row in _rows(trace):
        count += 1
        thread = _FIRST_STREAM + row["device"] * _STREAMS_PER_DEVICE + row["stream"]
        sink.slice(_HOST_THREAD, row["name"], row["host_start"], row["host_end"], _host_details(row), count)
        sink.slice(thread, row["name"], row["device_start"], row["device_end"], _device_details(row), count)
        if allocated.get(row["device"]) != row["memory_allocated"]:
            allocated[row["device"]] = row["memory_allocated"]
            sink.memory(row["device"], row["host_end"], row["memory_allocated"])
        if count % 100_000 == 0:
            progress(count)
    for one in engines.slices(trace):
        sink.slice(one.track, one.name, one.start, one.end, one.details, None)
    return count


def _rows(trace: Trace) -> Iterator[dict[str, Any]]:
    for batch in trace.batches("operators", _COLUMNS):
        columns = [batch.column(name).to_pylist() for name in _COLUMNS]
        for values in zip(*columns, strict=True):
            yield dict(zip(_COLUMNS, values, strict=True))


def _host_details(row: dict[str, Any]) -> dict[str, Any]:
    """The rest is on the device's slice, one flow away."""
    return {"frame": row["frame"]} if row["frame"] is not None else {}


def _device_details(row: dict[str, Any]) -> dict[str, Any]:
    details = {name: row[name] for name in ("shapes", "dtypes", "module", "phase", "flops", "bytes")}
    details["time is"] = row["kind"]
    return {name: value for name, value in details.items() if value is not None}


def _thread_name(thread: int) -> str:
    if thread >= engines.FIRST_TRACK:
        return engines.track_name(thread)
    if thread < _FIRST_STREAM:
        return {_HOST_THREAD: "host thread (virtual time)", _STEP_THREAD: "steps"}[thread]
    device, stream = divmod(thread - _FIRST_STREAM, _STREAMS_PER_DEVICE)
    return f"neuron:{device} stream {stream}"


class _ChromeSink:
    """The JSON object form of the Trace Event Format; times are microseconds."""

    def __init__(self, file: IO[bytes], command: str) -> None:
        self._file = file
        self._threads: set[int] = set()
        self._file.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
        self._event(
            {"ph": "M", "pid": _PROCESS, "name": "process_name", "args": {"name": f"opentrn {command}"}},
            first=True,
        )

    def _event(self, event: dict[str, Any], first: bool = False) -> None:
        self._file.write((b"" if first else b",\n") + _encode(event).encode())

    def _declare(self, thread: int) -> None:
        if thread in self._threads:
            return
        self._threads.add(thread)
        common = {"ph": "M", "pid": _PROCESS, "tid": thread}
        self._event({**common, "name": "thread_name", "args": {"name": _thread_name(thread)}})
        self._event({**common, "name": "thread_sort_index", "args": {"sort_index": thread}})

    def slice(
        self, thread: int, name: str, start: int, end: int, details: dict[str, Any], flow: int | None
    ) -> None:
        self._declare(thread)
        common = {"pid": _PROCESS, "tid": thread, "ts": start / 1000}
        self._event({**common, "ph": "X", "name": name, "dur": (end - start) / 1000, "args": details})
        if flow is not None:
            kind = {"ph": "s"} if thread == _HOST_THREAD else {"ph": "f", "bp": "e"}
            self._event({**common, **kind, "name": "issue", "cat": "issue", "id": flow})

    def memory(self, device: int, time: int, allocated: int) -> None:
        name = f"neuron:{device} memory allocated"
        self._event(
            {"ph": "C", "pid": _PROCESS, "name": name, "ts": time / 1000, "args": {"bytes": allocated}}
        )

    def close(self) -> None:
        self._file.write(b"\n]}\n")


def _perfetto_sink() -> Callable[[IO[bytes], str], Any]:
    """The class that writes Perfetto's protobuf, or UnsupportedError where the `perfetto` package is
    missing."""
    try:
        from opentrn.trace.perfetto_sink import PerfettoSink
    except ImportError as error:
        raise UnsupportedError(
            f"the Perfetto export needs the Python package 'perfetto' ({error})",
            cure="pip install 'opentrn[trace]', or use --format chrome",
        ) from error

    def make(file: IO[bytes], command: str) -> Any:
        return PerfettoSink(file, command, _thread_name)

    return make
