"""Where a program that does not fit first runs out of memory, and who holds it; for runs without a limit."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from opentrn.trace.memory import ALLOC, FREE, Peak
from opentrn.trace.schema import PHASES
from opentrn.trace.source import DeviceSource

_GIB = 1 << 30
_OUTSIDE, _OPTIMIZER = PHASES.index("outside"), PHASES.index("optimizer")
_HOLDERS = 4


@dataclass(frozen=True)
class Shortage:
    """The first allocation beyond the capacity (bytes). module: its path, or of the parameter it was for;
    "" outside any. layer: the number in that path, None where it has none. held: at the peak, by category."""

    needed: int
    capacity: int
    module: str
    layer: int | None
    phase: str
    held: list[tuple[str, int]]

    @property
    def missing(self) -> int:
        return self.needed - self.capacity

    def sentence(self) -> str:
        held = ", ".join(f"{name} {size / _GIB:.2f} GiB" for name, size in self.held)
        return (
            f"does not fit, by {self.missing / _GIB:.2f} GiB ({self.needed / _GIB:.2f} needed, "
            f"{self.capacity / _GIB:.2f} there), first at {self.place()}, held by {held}"
        )

    def place(self) -> str:
        """Where, in words."""
        words = _WORDS.get(self.phase, f"in {self.phase}")
        if not self.module:
            return f"work outside any module, {words}"
        module = f"layer {self.layer} ({self.module})" if self.layer is not None else self.module
        return f"{module} {words}"


# Phase → words after the place.
_BUILDING = "building"
_WORDS = {
    _BUILDING: "while the model is built",
    "optimizer": "when the optimizer makes its state",
    "outside": "in the loss or the loop",
}


@dataclass(frozen=True)
class Crossing:
    """The first allocation beyond the capacity. room: what was left of it before what is made parameter by
    parameter (the model, the optimizer's state) began, bytes."""

    module: int
    phase: int
    room: int


class WatchingSource(DeviceSource):
    """Also notes the first allocation of a device beyond its capacity."""

    def __init__(self) -> None:
        super().__init__()
        self.capacity = self.memory_capacity()
        self._watches: dict[int, _Watch] = {}

    @property
    def crossing(self) -> Crossing | None:
        """Of the device with the lowest index that has one."""
        found = [watch.crossing for _, watch in sorted(self._watches.items()) if watch.crossing is not None]
        return found[0] if found else None

    def memory_drain(self, stop: bool = False) -> dict[str, np.ndarray] | None:
        columns = super().memory_drain(stop)
        for device in np.unique(columns["device"]) if columns is not None else ():
            assert columns is not None
            watch = self._watches.setdefault(int(device), _Watch(self.capacity))
            if watch.crossing is None:
                of_device = columns["device"] == device
                watch.look({name: values[of_device] for name, values in columns.items()})
        return columns


class _Watch:
    """One device."""

    def __init__(self, capacity: int) -> None:
        self._capacity, self._allocated, self._before_optimizer = capacity, 0, 0
        self.crossing: Crossing | None = None

    def look(self, columns: dict[str, np.ndarray]) -> None:
        event, size = columns["event"], columns["size"].astype(np.int64)
        change = np.where(event == ALLOC, size, np.where(event == FREE, -size, 0))
        running = self._allocated + np.cumsum(change)
        over = np.flatnonzero(running > self._capacity)
        end = int(over[0]) if len(over) else len(running)
        outside = np.flatnonzero(columns["phase"][:end] != _OPTIMIZER)
        if len(outside):
            self._before_optimizer = int(running[outside[-1]])
        self._allocated = int(running[-1])
        if len(over):
            phase = int(columns["phase"][end])
            room = self._capacity - (self._before_optimizer if phase == _OPTIMIZER else 0)
            self.crossing = Crossing(int(columns["module"][end]), phase, room)


def sizes_of(model: nn.Module) -> list[tuple[str, int]]:
    """Parameters in the order in which they are made, with their bytes on this core."""
    return [
        (name, getattr(value, "_local_tensor", value).nbytes)
        for name, value in model.named_parameters()
        if isinstance(value, torch.Tensor)
    ]


def shortage(source: DeviceSource, peak: Peak | None, sizes: list[tuple[str, int]]) -> Shortage | None:
    """None where the program fits, or where nobody watched. sizes: see sizes_of."""
    if not isinstance(source, WatchingSource) or peak is None or peak.allocated <= source.capacity:
        return None
    capacity = source.capacity
    crossing = source.crossing or Crossing(-1, 0, capacity)
    names = source.names()["modules"]
    module = names[crossing.module] if 0 <= crossing.module < len(names) else ""
    phase = PHASES[crossing.phase]
    if not module and crossing.phase == _OPTIMIZER:
        states = max(peak.categories.get("optimizer state", 0) // max(sum(s for _, s in sizes), 1), 1)
        module = _parameter_at(sizes, crossing.room, states)
    elif not module and crossing.phase == _OUTSIDE and (parameter := _parameter_at(sizes, crossing.room, 1)):
        module, phase = parameter, _BUILDING
    held = sorted(peak.categories.items(), key=lambda item: -item[1])
    return Shortage(
        peak.allocated,
        capacity,
        module,
        _layer(module),
        phase,
        [(name, size) for name, size in held if size > 0][:_HOLDERS],
    )


def _parameter_at(sizes: list[tuple[str, int]], room: int, copies: int) -> str:
    """The parameter whose `copies` no longer fit into `room` when they are made one by one."""
    used = 0
    for name, size in sizes:
        used += size * copies
        if used > room:
            return name
    return ""


def _layer(module: str) -> int | None:
    found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", module)
    return int(found.group(1)) if found else None
