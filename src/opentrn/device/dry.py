"""Dry runs: shapes, memory and the virtual clock, without data.

Inside `dry_run()` large tensors of the device are *unbacked*: an address range and a shape. Operators on them
infer shapes, allocate and advance the clock (csrc/device/dry.h). This module is the Python side: the clock
that a script reads, host tensors whose initialisation is skipped, weight files whose bytes are not read, and
the ledger of stand-ins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from opentrn.device import _C
from opentrn.device.dry_clock import VirtualClock
from opentrn.device.dry_files import WeightFiles
from opentrn.device.dry_host import HostMode, host_ledger
from opentrn.device.replaced import Replacements

# Places that one line of a report names.
_PLACES_SHOWN = 2


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

    # Of all contexts together: they may be left in any order (generators that wait inside one).
    _depth = 0
    _modes = contextlib.ExitStack()

    def __init__(self, *, wall_clock: bool = False, clear: bool = True) -> None:
        self._wall_clock, self._clear = wall_clock, clear

    def _recreate_cm(self) -> dry_run:
        return dry_run(wall_clock=self._wall_clock, clear=self._clear)

    def __enter__(self) -> dry_run:
        if dry_run._depth == 0:
            if self._clear:
                clear_ledger()
            self._enter_modes()
        dry_run._depth += 1
        return self

    def __exit__(self, *error: Any) -> None:
        dry_run._depth -= 1
        if dry_run._depth == 0:
            dry_run._modes.close()

    def _enter_modes(self) -> None:
        with contextlib.ExitStack() as modes:
            if not self._wall_clock:
                modes.enter_context(VirtualClock())
            modes.enter_context(WeightFiles())
            modes.enter_context(HostMode())
            modes.enter_context(_storages_resize())
            modes.callback(_C.set_dry, _C.set_dry(True))
            dry_run._modes = modes.pop_all()


@contextlib.contextmanager
def _storages_resize() -> Iterator[None]:
    """Programs free and restore storages by `resize_` (FSDP does), whose Python form asks for the bytes."""
    original = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        if _C.unbacked_address(storage) is None:
            return original(storage, size)
        _C.resize_storage(storage, size)
        return storage

    with Replacements() as changes:
        changes.replace(torch.UntypedStorage, "resize_", resize_)
        yield


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
    """The ledger for a report: one line for each operator and rule with its first places, what reached the
    program before what only filled memory; the rest is summed up in the last line."""
    groups: dict[tuple[bool, str, str], list[StandIn]] = {}
    for entry in ledger():
        on_host = (entry.operator, entry.rule, entry.frame) in host_ledger
        groups.setdefault((on_host, entry.operator, entry.rule), []).append(entry)
    ordered = sorted(groups.items(), key=lambda item: item[0][0])
    lines = [
        f"stood in {sum(e.count for e in entries):,} ×: {operator}: {rule}{_places(entries)}"
        for (_, operator, rule), entries in ordered[:limit]
    ]
    if len(ordered) > limit:
        rest = sum(entry.count for _, entries in ordered[limit:] for entry in entries)
        lines.append(f"stood in {rest:,} × more, of {len(ordered) - limit} other kinds")
    return lines


def _places(entries: list[StandIn]) -> str:
    frames = [entry.frame for entry in entries if entry.frame]
    if not frames:
        return ""
    more = f" and {len(frames) - _PLACES_SHOWN} more places" if len(frames) > _PLACES_SHOWN else ""
    return f" (at {', '.join(frames[:_PLACES_SHOWN])}{more})"
