"""Moves rows from the device's C++ buffers into Parquet files and into the memory ledger, in the background.

A thread wakes a few times a second, takes whatever waits and writes a file when enough has come together: the
run itself only pays for filling the buffers.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from opentrn.trace.memory import MemoryLedger
from opentrn.trace.schema import (
    CATEGORIES,
    ENGINE_INTERVALS,
    KINDS,
    LAUNCHES,
    MEMORY,
    MEMORY_EVENTS,
    OPERATORS,
    PHASES,
)
from opentrn.trace.writer import TraceWriter

if TYPE_CHECKING:
    from opentrn.trace.source import DeviceSource

_NUMERIC = {
    "device": np.int16,
    "stream": np.int32,
    "host_start": np.int64,
    "host_end": np.int64,
    "device_start": np.int64,
    "device_end": np.int64,
    "flops": np.int64,
    "bytes": np.int64,
    "memory_allocated": np.int64,
}
_IDENTIFIERS = ("operator", "signature", "module", "frame", "phase", "kind")

# The real clock: a dry run replaces the names in `time` by the virtual one.
_monotonic = time.monotonic


class Recorder:
    """Drains `source` while started.

    writer: None records memory for the ledger only and leaves operators untraced.
    frames: whether operators carry the Python frame that issued them (costs a stack walk per operator).
    chunk_rows, chunk_seconds: a file is written when either is reached.
    """

    def __init__(
        self,
        source: DeviceSource,
        writer: TraceWriter | None,
        frames: bool = False,
        chunk_rows: int = 250_000,
        chunk_seconds: float = 10.0,
        poll_seconds: float = 0.2,
    ) -> None:
        self.ledger = MemoryLedger()
        # Device ns by module id + 1 (0: outside any), so that a report needs no second look at the files.
        self.module_ns = np.zeros(0, np.float64)
        self._source, self._writer = source, writer
        self._frames = frames
        self._chunk_rows, self._chunk_seconds, self._poll_seconds = chunk_rows, chunk_seconds, poll_seconds
        self._lock = threading.RLock()
        self._operators: list[dict[str, np.ndarray]] = []
        self._memory: list[dict[str, np.ndarray]] = []
        self._launches: list[tuple[int, str, int, int, int, int]] = []
        self._programs_written: set[int] = set()
        self._rows = 0
        self._last_file = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def start(self) -> None:
        """Starts the device's buffers and the draining thread."""
        self._source.memory_start()
        if self._writer is not None:
            self._source.trace_start(self._frames)
        self._last_file = _monotonic()
        self._thread = threading.Thread(target=self._poll, name="opentrn-trace", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Takes what is left, writes it and stops the buffers."""
        if os.getpid() != self._process:
            return  # a forked child holds a copy of the buffers that are the parent's to write
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._writer is not None:
            self._source.trace_stop()
        self._take(stop=True)
        self._flush()

    def mark(self) -> int:
        """Ends a memory segment; returns its highest allocation in bytes."""
        with self._lock:
            self._take_memory()
            return self.ledger.mark(self._source.names()["modules"])

    def module_names(self) -> list[str]:
        """Paths by module id."""
        return self._source.names()["modules"]

    def _poll(self) -> None:
        while not self._stop.wait(self._poll_seconds):
            self._take()
            old = self._rows and _monotonic() - self._last_file > self._chunk_seconds
            if old or self._rows >= self._chunk_rows:
                self._flush()

    def _take(self, stop: bool = False) -> None:
        """By the draining thread, or by `stop` after it: the lock only guards what `mark` uses too."""
        with self._lock:
            self._take_memory(stop)
        if self._writer is None or not self._source.trace_pending():
            return
        self._launches += self._source.launches()
        rows = self._source.trace_drain()
        columns = {name: np.asarray(rows[name]) for name in (*_IDENTIFIERS, *_NUMERIC)}
        self._operators.append(columns)
        self._rows += len(columns["operator"])
        sums = np.bincount(columns["module"] + 1, weights=columns["device_end"] - columns["device_start"])
        if len(sums) > len(self.module_ns):
            self.module_ns = np.pad(self.module_ns, (0, len(sums) - len(self.module_ns)))
        self.module_ns[: len(sums)] += sums

    def _take_memory(self, stop: bool = False) -> None:
        columns = self._source.memory_drain(stop)
        if columns is None:
            return
        self.ledger.feed(columns, self._source.names()["modules"])
        if self._writer is not None and self._writer.stopped is None:
            self._memory.append(columns)
            self._rows += len(columns["time"])

    def _flush(self) -> None:
        """Writes one file per table from what has been taken."""
        with self._lock:
            operators, memory, names = self._operators, self._memory, self._source.names()
            launches, self._launches = self._launches, []
            self._operators, self._memory, self._rows = [], [], 0
        self._last_file = _monotonic()
        if self._writer is None or not (operators or memory):
            return
        if operators:
            self._writer.write("operators", operator_rows(_join(operators), names))
        if memory:
            self._writer.write("memory", memory_rows(_join(memory), names["modules"]))
        self._write_programs(self._writer, launches)
        if self._writer.stopped is not None:
            self._source.trace_stop()

    def _write_programs(
        self, writer: TraceWriter, launches: list[tuple[int, str, int, int, int, int]]
    ) -> None:
        """Launches, and the intervals of the programs that appear for the first time."""
        if not launches:
            return
        writer.write("launches", launch_rows(launches))
        for program in dict.fromkeys(row[0] for row in launches):
            if program not in self._programs_written:
                self._programs_written.add(program)
                writer.write(
                    "engine_intervals", interval_rows(program, self._source.engine_intervals(program))
                )


def launch_rows(launches: list[tuple[int, str, int, int, int, int]]) -> pa.Table:
    """Launches as the source gives them → rows of the `launches` table."""
    schema = LAUNCHES.arrow()
    columns = zip(*launches, strict=True)
    return pa.Table.from_arrays(
        [_column(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )


def interval_rows(program: int, columns: dict[str, Any]) -> pa.Table:
    """One program's intervals → rows of the `engine_intervals` table."""
    schema = ENGINE_INTERVALS.arrow()
    every = {"program": [program] * len(columns["start"]), **columns}
    return pa.Table.from_arrays([_column(every[field.name], field.type) for field in schema], schema=schema)


def _column(values: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    return pa.array(values, kind)


def _join(batches: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def _text(ids: np.ndarray, names: Sequence[str]) -> pa.DictionaryArray:
    """Identifiers to strings; −1 is null. Only the names in use go into the file."""
    used = np.unique(ids[ids >= 0])
    places = np.searchsorted(used, ids).astype(np.int32)
    texts = pa.array([names[i] for i in used], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(places, mask=ids < 0), texts)


def operator_rows(columns: dict[str, np.ndarray], names: dict[str, list]) -> pa.Table:
    """Drained columns and interned names → rows of the `operators` table."""
    arrays: dict[str, Any] = {
        "name": _text(columns["operator"], names["operators"]),
        "shapes": _text(columns["signature"], [shapes for shapes, _ in names["signatures"]]),
        "dtypes": _text(columns["signature"], [dtypes for _, dtypes in names["signatures"]]),
        "module": _text(columns["module"], names["modules"]),
        "frame": _text(columns["frame"], names["frames"]),
        "phase": _text(columns["phase"], PHASES),
        "kind": _text(columns["kind"], KINDS),
    }
    for name, dtype in _NUMERIC.items():
        arrays[name] = pa.array(columns[name].astype(dtype, copy=False))
    schema = OPERATORS.arrow()
    return pa.Table.from_arrays([arrays[name] for name in schema.names], schema=schema)


def memory_rows(columns: dict[str, np.ndarray], modules: list[str]) -> pa.Table:
    """Drained columns → rows of the `memory` table."""
    arrays: dict[str, Any] = {
        "time": pa.array(columns["time"].astype(np.int64)),
        "event": _text(columns["event"], MEMORY_EVENTS),
        "storage": pa.array(columns["storage"].astype(np.int64)),
        "address": pa.array(columns["address"].astype(np.uint64)),
        "size": pa.array(columns["size"].astype(np.int64)),
        "category": _text(columns["category"], CATEGORIES),
        "module": _text(columns["module"], modules),
        "phase": _text(columns["phase"], PHASES),
        "device": pa.array(columns["device"].astype(np.int16)),
    }
    schema = MEMORY.arrow()
    return pa.Table.from_arrays([arrays[name] for name in schema.names], schema=schema)
