"""Dry runs: shapes, memory and the virtual clock, without data.

Inside `dry_run()` large tensors of the device are *unbacked*: an address range and a shape. Operators on
them infer
shapes, allocate and advance the clock (csrc/device/dry.h). This module is the Python side: the clock that
a script reads,
host tensors whose initialisation is skipped, weight files whose bytes are not read, and the ledger of
stand-ins.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from opentrn.device import _C
from opentrn.device.dry_clock import VirtualClock
from opentrn.device.dry_files import WeightFiles
from opentrn.device.dry_host import HostMode, host_ledger


@dataclass(frozen=True)
class StandIn:
    """A value that an answer of a dry run depends on and that no computation gave.

    operator: overload or Python name. rule: what stood in. frame: the user's line, "" where unknown.
    """

    operator: str
    rule: str
    frame: str
    count: int


class dry_run(contextlib.ContextDecorator):
    """Context manager and decorator: what runs inside has shapes, memory and time, and no large data.

    wall_clock: True leaves `time.time`, `perf_counter`, `monotonic` and `sleep` alone; by default they
    read and advance
    the virtual clock, so that a script's own tokens per second are the chip's.
    clear: the ledger of stand-ins starts empty (only at the outermost level).

    Tensors made inside stay unbacked after the block: operators on them still only infer, reading their
    bytes raises.
    """

    _depth = 0

    def __init__(self, *, wall_clock: bool = False, clear: bool = True) -> None:
        self._wall_clock, self._clear = wall_clock, clear

    def _recreate_cm(self) -> dry_run:
        return dry_run(wall_clock=self._wall_clock, clear=self._clear)

    def __enter__(self) -> dry_run:
        if dry_run._depth == 0 and self._clear:
            clear_ledger()
        self._stack = contextlib.ExitStack()
        if dry_run._depth == 0:
            if not self._wall_clock:
                self._stack.enter_context(VirtualClock())
            self._stack.enter_context(WeightFiles())
            self._stack.enter_context(HostMode())
        self._before = _C.set_dry(True)
        dry_run._depth += 1
        return self

    def __exit__(self, *error: Any) -> None:
        dry_run._depth -= 1
        _C.set_dry(self._before)
        self._stack.close()


def is_dry() -> bool:
    """Whether a dry run is on."""
    return _C.is_dry()


def ledger() -> list[StandIn]:
    """Everything that stood in since the ledger was cleared, most frequent first."""
    device = [StandIn(e["operator"], e["rule"], e["frame"], e["count"]) for e in _C.stand_in_ledger()]
    host = [StandIn(name, rule, frame, count) for (name, rule, frame), count in host_ledger.items()]
    return sorted(device + host, key=lambda entry: (-entry.count, entry.operator, entry.rule, entry.frame))


def clear_ledger() -> None:
    """Forgets all stand-ins."""
    _C.clear_stand_in_ledger()
    host_ledger.clear()


def ledger_lines(limit: int = 20) -> list[str]:
    """The ledger for a report, one line an entry; the rest is summed up in the last line."""
    entries = ledger()
    lines = [
        f"stood in {entry.count:,} ×: {entry.operator}: {entry.rule}"
        + (f" (at {entry.frame})" if entry.frame else "")
        for entry in entries[:limit]
    ]
    if len(entries) > limit:
        rest = sum(entry.count for entry in entries[limit:])
        lines.append(f"stood in {rest:,} × more, at {len(entries) - limit} other places")
    return lines
