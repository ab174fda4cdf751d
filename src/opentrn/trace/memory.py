"""Device memory over a run: the timeline, its peaks, and who held them, from the device's log of allocations.

Events arrive in batches and are folded at step ends, when the labels of the step (gradient, optimizer state)
are known. What no one labelled is told by its life: memory of the forward pass that lives into the backward
pass is activation, the rest temporary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opentrn.trace.schema import CATEGORIES, PHASES

ALLOC, FREE, RELABEL = 0, 1, 2
_OTHER, _ACTIVATION, _TEMPORARY = (CATEGORIES.index(name) for name in ("other", "activation", "temporary"))

_OUTSIDE = PHASES.index("outside")
_BACKWARD = PHASES.index("backward")
_OPTIMIZER = PHASES.index("optimizer")

EVENT_COLUMNS = ("time", "storage", "address", "size", "event", "category", "module", "phase", "device")

# Folded early when a step is longer than this, so that memory stays bounded without steps.
FOLD_EVENTS = 2_000_000
TIMELINE_POINTS = 1024
STACK_POINTS = 400
HOLDERS = 12


@dataclass
class Peak:
    """The fullest moment of a device: bytes by category and the largest holders (module, category, bytes,
    storages)."""

    device: int = 0
    time: int = 0
    allocated: int = 0
    categories: dict[str, int] = field(default_factory=dict)
    holders: list[tuple[str, str, int, int]] = field(default_factory=list)


@dataclass
class Timeline:
    """Allocated bytes of one device over virtual host time (ns): of each interval the highest point and the
    last, which holds until the next."""

    times: list[int] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)


@dataclass
class Stack:
    """Bytes by category over the segment that holds the run's peak: `categories[name][i]` at `times[i]`."""

    times: list[int] = field(default_factory=list)
    categories: dict[str, list[int]] = field(default_factory=dict)


@dataclass
class _Live:
    """Storages alive at the end of the last fold, one row each."""

    storage: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    size: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    category: np.ndarray = field(default_factory=lambda: np.empty(0, np.int8))
    module: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    phase: np.ndarray = field(default_factory=lambda: np.empty(0, np.int8))
    # Backward events seen on this device when it was allocated, to tell whether it lived into a backward
    # pass.
    backwards: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))


class _Device:
    """The memory of one device; see MemoryLedger."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.live = _Live()
        self.allocated = 0
        self.backwards = 0
        self.peak = Peak(device=index)
        self.timeline = Timeline()
        self.stack = Stack()

    def fold(self, events: dict[str, np.ndarray], modules: list[str]) -> int:
        """Takes the events of one segment in order; returns the highest allocation within it."""
        kind, size = events["event"], events["size"].astype(np.int64)
        delta = np.where(kind == ALLOC, size, np.where(kind == FREE, -size, 0))
        running = self.allocated + np.cumsum(delta)
        backwards = self.backwards + np.cumsum(events["phase"] == _BACKWARD)
        rows = self._storages(events, backwards)
        highest = int(running.max()) if len(running) else self.allocated
        if highest > self.peak.allocated:
            at = int(running.argmax())
            self._take_peak(rows, at, int(events["time"][at]), highest, modules)
            self._take_stack(rows, events["time"])
        self._extend_timeline(events["time"], running)
        alive = rows["freed_at"] < 0
        self.live = _Live(
            **{name: rows[name][alive] for name in ("storage", "size", "module", "phase", "backwards")},
            category=rows["label"][alive],
        )
        if len(running):
            self.allocated = int(running[-1])
            self.backwards = int(backwards[-1])
        return max(highest, 0)

    def _storages(self, events: dict[str, np.ndarray], backwards: np.ndarray) -> dict[str, np.ndarray]:
        """One row per storage of the segment: carried over or allocated in it, with its final category."""
        made = np.flatnonzero(events["event"] == ALLOC)
        live, carried = self.live, len(self.live.storage)
        rows = {
            "storage": np.concatenate([live.storage, events["storage"][made]]),
            "size": np.concatenate([live.size, events["size"][made].astype(np.int64)]),
            "label": np.concatenate([live.category, events["category"][made]]).astype(np.int8),
            "module": np.concatenate([live.module, events["module"][made]]),
            "phase": np.concatenate([live.phase, events["phase"][made]]),
            "backwards": np.concatenate([live.backwards, backwards[made]]),
            "made_at": np.concatenate([np.full(carried, -1, np.int64), made]),
        }
        count = len(rows["storage"])
        rows["freed_at"] = np.full(count, -1, np.int64)
        order = np.argsort(rows["storage"], kind="stable")
        ids = rows["storage"][order]

        def rows_of(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """Rows of the storages of the events `at`, without those the log never saw allocated."""
            place = np.minimum(np.searchsorted(ids, events["storage"][at]), max(count - 1, 0))
            known = ids[place] == events["storage"][at] if count else np.zeros(len(at), bool)
            return order[place[known]] if count else place[:0], at[known]

        freed, freed_at = rows_of(np.flatnonzero(events["event"] == FREE))
        rows["freed_at"][freed] = freed_at
        relabelled, relabelled_at = rows_of(np.flatnonzero(events["event"] == RELABEL))
        # Repeated indices: NumPy keeps the last assignment, and the last label is the right one.
        rows["label"][relabelled] = events["category"][relabelled_at]
        rows["category"] = self._categories(rows, backwards)
        return rows

    def _categories(self, rows: dict[str, np.ndarray], backwards: np.ndarray) -> np.ndarray:
        """Labels, and for the unlabelled what their life says."""
        last = int(backwards[-1]) if len(backwards) else self.backwards
        freed = rows["freed_at"] >= 0
        until = np.full(len(freed), last)
        until[freed] = backwards[rows["freed_at"][freed]]
        early = (rows["phase"] != _BACKWARD) & (rows["phase"] != _OPTIMIZER)
        # What a script made outside any module in an earlier step and still holds is its own, not an
        # activation.
        held_by_script = (rows["phase"] == _OUTSIDE) & (rows["made_at"] < 0) & ~freed
        saved = early & ~held_by_script & (until > rows["backwards"])
        guess = np.where(saved, _ACTIVATION, np.where(freed, _TEMPORARY, _OTHER))
        return np.where(rows["label"] == _OTHER, guess, rows["label"]).astype(np.int8)

    def _take_peak(
        self, rows: dict[str, np.ndarray], at: int, time: int, allocated: int, modules: list[str]
    ) -> None:
        held = (rows["made_at"] <= at) & ((rows["freed_at"] < 0) | (rows["freed_at"] > at))
        category, size, module = rows["category"][held], rows["size"][held], rows["module"][held]
        by_category = np.bincount(category, weights=size, minlength=len(CATEGORIES))
        key = (module.astype(np.int64) + 1) * len(CATEGORIES) + category
        keys, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
        sums = np.bincount(inverse, weights=size, minlength=len(keys))
        holders = []
        for i in np.argsort(-sums, kind="stable")[:HOLDERS]:
            module_id = int(keys[i]) // len(CATEGORIES) - 1
            name = modules[module_id] if 0 <= module_id < len(modules) else ""
            holders.append((name, CATEGORIES[int(keys[i]) % len(CATEGORIES)], int(sums[i]), int(counts[i])))
        self.peak = Peak(
            self.index,
            time,
            allocated,
            {CATEGORIES[i]: int(value) for i, value in enumerate(by_category) if value},
            holders,
        )

    def _take_stack(self, rows: dict[str, np.ndarray], times: np.ndarray) -> None:
        """Bytes by category, sampled at STACK_POINTS events of the segment."""
        at = np.unique(np.linspace(0, len(times) - 1, min(STACK_POINTS, len(times))).astype(np.int64))
        self.stack = Stack([int(t) for t in times[at]])
        for index, name in enumerate(CATEGORIES):
            mine = rows["category"] == index
            if not mine.any():
                continue
            change = np.zeros(len(times) + 1, np.int64)
            np.add.at(change, np.maximum(rows["made_at"][mine], 0), rows["size"][mine])
            freed = mine & (rows["freed_at"] >= 0)
            np.subtract.at(change, rows["freed_at"][freed], rows["size"][freed])
            self.stack.categories[name] = [int(value) for value in np.cumsum(change)[at]]

    def _extend_timeline(self, times: np.ndarray, running: np.ndarray) -> None:
        if len(times):
            line = self.timeline
            self.timeline = _thin(
                np.concatenate([np.asarray(line.times, np.int64), times]),
                np.concatenate([np.asarray(line.allocated, np.int64), running]),
            )


def _thin(times: np.ndarray, allocated: np.ndarray) -> Timeline:
    """The highest and the last point of each interval. Intervals are equal in time, however many events each
    has, and powers of two long: as a run goes on, they join in pairs and never shift."""
    span = int(times[-1] - times[0])
    interval = times // (1 << max((span // (TIMELINE_POINTS // 2 - 1)).bit_length(), 0))
    ends = np.flatnonzero(np.append(interval[1:] != interval[:-1], True))
    highest = np.lexsort((allocated, interval))[ends]
    keep = np.unique(np.concatenate([highest, ends]))
    return Timeline(times[keep].tolist(), allocated[keep].tolist())


class MemoryLedger:
    """Folds the device's allocation log. Not thread-safe: the recorder holds its lock around it.

    feed: batches of events in order (columns EVENT_COLUMNS, `module` an index into the recorder's module
    names).
    mark: ends a segment (a step).
    """

    def __init__(self) -> None:
        self._waiting: list[dict[str, np.ndarray]] = []
        self._waiting_events = 0
        self._segment_peak = 0
        self._devices: dict[int, _Device] = {}

    def feed(self, events: dict[str, Any], modules: list[str]) -> None:
        """Takes a batch; folds at once only if the segment has become too long to hold."""
        if not len(events["time"]):
            return
        self._waiting.append({name: np.asarray(events[name]) for name in EVENT_COLUMNS})
        self._waiting_events += len(events["time"])
        if self._waiting_events > FOLD_EVENTS:
            self._fold(modules)

    def mark(self, modules: list[str]) -> int:
        """Ends the segment; returns the highest allocation (bytes, one device) within it."""
        self._segment_peak = max([self._segment_peak, *(d.allocated for d in self._devices.values())])
        self._fold(modules)
        peak, self._segment_peak = self._segment_peak, 0
        return peak

    def peak(self) -> Peak | None:
        """The fullest moment of the fullest device so far; None if nothing was ever allocated."""
        return max((d.peak for d in self._devices.values()), key=lambda p: p.allocated, default=None)

    def fullest(self) -> tuple[Timeline, Stack]:
        """Timeline and category stack of the fullest device."""
        peak = self.peak()
        if peak is None:
            return Timeline(), Stack()
        device = self._devices[peak.device]
        return device.timeline, device.stack

    def _fold(self, modules: list[str]) -> None:
        if not self._waiting:
            return
        joined = {name: np.concatenate([batch[name] for batch in self._waiting]) for name in EVENT_COLUMNS}
        self._waiting, self._waiting_events = [], 0
        for index in np.unique(joined["device"]):
            mine = joined["device"] == index
            events = joined if mine.all() else {name: column[mine] for name, column in joined.items()}
            device = self._devices.setdefault(int(index), _Device(int(index)))
            self._segment_peak = max(self._segment_peak, device.fold(events, modules))
