"""Programs of instructions on the device: kernels on its tensors, and what a trace shows of their engines."""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from opentrn.device import _C
from opentrn.device.attach import attached

if TYPE_CHECKING:
    from opentrn.nki.traced import Traced

# Beyond this many instructions a program's intervals are not recorded: they would fill the trace and the
# memory.
MOST_INTERVALS = 2_000_000


class KernelConnection:
    """The device's side of kernels on its tensors: see `opentrn.nki.torch_calls.Connection`."""

    def chip(self, device: Any) -> str:
        return attached().chip.name

    def cores(self, device: Any) -> int:
        return attached().cores_per_logical

    def open(self, kernel: str, device: Any, arguments: list[Any]) -> KernelCall:
        return KernelCall(kernel, device.index, arguments)


class KernelCall:
    """One kernel on its way through the device: csrc/device/program_call.h, with the trace's part."""

    def __init__(self, kernel: str, device: int, arguments: list[Any]) -> None:
        self._call = _C.ProgramCall(f"nki::{kernel}", device, arguments)
        self._device = device
        self.backed = self._call.backed
        self.gets_bytes, self.views = self._call.gets_bytes, self._call.views
        self.give, self.give_inferred = self._call.give, self._call.give_inferred
        self.write_inferred, self.close = self._call.write_inferred, self._call.close

    def finish(self, traced: Traced) -> None:
        """Puts the program's simulated time on the current stream, and into the trace where there is one."""
        timing = traced.timing
        for text in timing.assumptions if _C.is_dry() else ():
            self._call.note_assumption(text)
        start, end = self._call.finish(
            round(timing.nanoseconds), round(timing.flops), round(timing.hbm_bytes)
        )
        if _C.trace_active():
            log.launched(traced, self._device, _C.current_stream(self._device), start, end)


class ProgramLog:
    """What the trace asks for: launches since the last drain, and the intervals of each program by number."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._known: dict[int, tuple[Any, int]] = {}
        self._intervals: dict[int, dict[str, Any]] = {}
        self._launches: deque[tuple[int, str, int, int, int, int]] = deque()

    def launched(self, traced: Traced, device: int, stream: int, start: int, end: int) -> None:
        known = self._known.get(id(traced))
        if known is None or known[0] is not traced:
            known = self._known[id(traced)] = (traced, next(self._numbers))
            self._intervals[known[1]] = intervals_of(traced)
        self._launches.append((known[1], traced.program.name, device, stream, start, end))

    def drain(self) -> list[tuple[int, str, int, int, int, int]]:
        """(program, name, device, stream, start, end) of each launch, in order, once."""
        return [self._launches.popleft() for _ in range(len(self._launches))]

    def intervals(self, program: int) -> dict[str, Any]:
        """`intervals_of` a program by its number."""
        return self._intervals[program]

    def clear(self) -> None:
        """Forgets programs and launches: a trace has ended."""
        self._known.clear()
        self._intervals.clear()
        self._launches.clear()


log = ProgramLog()


def intervals_of(traced: Traced) -> dict[str, Any]:
    """When each instruction of a program ran: columns core, engine (names), instruction, source (texts),
    start, end (ns since the program's start). Empty for programs beyond MOST_INTERVALS instructions."""
    columns: dict[str, Any] = {
        name: [] for name in ("core", "engine", "instruction", "source", "start", "end")
    }
    if traced.timing.instructions > MOST_INTERVALS:
        return columns
    from opentrn.nki.enums import engine as engines

    recorded, tables = traced.recorded.intervals, traced.program.tables()
    texts, sources, instructions = tables["texts"], tables["sources"], tables["instructions"]
    names = {engine.value: engine.name for engine in engines}
    columns["core"] = recorded["core"].astype(np.int16)
    columns["engine"] = [names[number] for number in recorded["engine"].tolist()]
    columns["start"], columns["end"] = recorded["start_ns"], recorded["end_ns"]
    for index in recorded["instruction"].tolist():
        name, _, _, line, *_ = instructions[index]
        columns["instruction"].append(name)
        columns["source"].append(None if line < 0 else f"{texts[sources[line][0]]}:{sources[line][1]}")
    return columns
