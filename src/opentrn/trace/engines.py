"""The engines of launched programs as tracks of an export.

A program's intervals lie once in the trace, relative to its start; each launch places them. Where intervals
of one engine overlap (the DMA queues do), they are spread over as few tracks as keep each free of overlap.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow.compute as pc

from opentrn.trace.reader import Trace

# A viewer that opens more than this is no longer usable; what is left out is said in the export.
MOST_SLICES = 1_000_000
ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma")
_LANES, _CORES = 64, 4
# Tracks of engines come after those of streams (trace/export.py numbers a device's streams below 1,000).
FIRST_TRACK = 10_000_000


@dataclass(frozen=True)
class Slice:
    """One instruction of one launch. Times in ns of virtual time."""

    track: int
    name: str
    start: int
    end: int
    details: dict[str, Any] = field(default_factory=dict)


def track_name(track: int) -> str:
    """`neuron:0 core 1 dma 3`: what a track of `slices` shows."""
    rest, lane = divmod(track - FIRST_TRACK, _LANES)
    rest, engine = divmod(rest, len(ENGINES))
    stream, core = divmod(rest, _CORES)
    device, stream = divmod(stream, 1000)
    where = f"neuron:{device}" + (f" stream {stream}" if stream else "")
    return f"{where} core {core} {ENGINES[engine]}" + (f" {lane + 1}" if lane else "")


def slices(trace: Trace, most: int = MOST_SLICES) -> Iterator[Slice]:
    """Every interval of every launch, in order of launch; the last slice says where `most` cut it short."""

    @lru_cache(maxsize=32)
    def intervals(program: int) -> list[tuple[int, str, int, int, dict[str, Any]]]:
        return _lanes(trace, program)

    count, left_out, since, until = 0, 0, 0, 0
    for launch in trace.table("launches").to_pylist():
        rows = intervals(launch["program"])
        if left_out or count + len(rows) > most:
            since = since if left_out else launch["device_start"]
            left_out, until = left_out + 1, launch["device_end"]
            continue
        count += len(rows)
        stream = launch["device"] * 1000 + launch["stream"]
        base = FIRST_TRACK + stream * _CORES * len(ENGINES) * _LANES
        for place, name, start, end, details in rows:
            yield Slice(
                base + place, name, launch["device_start"] + start, launch["device_start"] + end, details
            )
    if left_out:
        text = f"engines of {left_out:,} launches left out: the export holds at most {most:,} of their slices"
        yield Slice(FIRST_TRACK, text, since, until)


def _lanes(trace: Trace, program: int) -> list[tuple[int, str, int, int, dict[str, Any]]]:
    """(track within the launch, name, start, end, details) of a program's instructions, by start."""
    rows = []
    for batch in trace.batches("engine_intervals"):
        rows += batch.filter(pc.equal(batch.column("program"), program)).to_pylist()
    rows.sort(key=lambda row: row["start"])
    busy: dict[tuple[int, str], list[tuple[int, int]]] = {}
    placed = []
    for row in rows:
        start, end = round(row["start"]), round(row["end"])
        ends = busy.setdefault((row["core"], row["engine"]), [])
        if ends and ends[0][0] <= start:
            lane = heapq.heapreplace(ends, (end, ends[0][1]))[1]
        elif len(ends) < _LANES:
            lane = len(ends)
            heapq.heappush(ends, (end, lane))
        else:
            continue  # more at once than there are tracks
        place = (row["core"] * len(ENGINES) + ENGINES.index(row["engine"])) * _LANES + lane
        details = {"source": row["source"]} if row["source"] is not None else {}
        placed.append((place, row["instruction"], start, end, details))
    return placed
