"""One reading of the device's always-on counters, summed over the devices in use."""

from __future__ import annotations

from dataclasses import dataclass, field

# Bound at import: a dry run replaces these names in `time` by the virtual clock.
from time import perf_counter_ns
from typing import Any

from opentrn.trace.schema import PHASES

# Keys of the extension's totals in the order of PhaseTotal.
_OF_A_PHASE = ("operators", "device_busy_ns", "flops", "hbm_bytes")


@dataclass(frozen=True)
class PhaseTotal:
    """Sums of one phase: operators, device time (ns), FLOPs, HBM bytes."""

    operators: int = 0
    device_ns: int = 0
    flops: int = 0
    bytes: int = 0

    def __sub__(self, other: PhaseTotal) -> PhaseTotal:
        return PhaseTotal(
            self.operators - other.operators,
            self.device_ns - other.device_ns,
            self.flops - other.flops,
            self.bytes - other.bytes,
        )


@dataclass(frozen=True)
class Counters:
    """A reading. Times are ns: host and completion virtual, wall measured on this host."""

    wall: int = 0
    host: int = 0
    completion: int = 0
    operators: int = 0
    busy: int = 0
    modelled: int = 0
    simulated: int = 0
    flops: int = 0
    bytes: int = 0
    phases: dict[str, PhaseTotal] = field(default_factory=dict)
    devices: int = 0


def read_counters(device: Any) -> Counters:
    """Reads a DeviceSource. `devices` counts those that ran anything; completion is when the last work
    issued ends."""
    sums = {
        "operators": 0,
        "device_busy_ns": 0,
        "modelled_ns": 0,
        "simulated_ns": 0,
        "flops": 0,
        "hbm_bytes": 0,
    }
    phases: dict[str, list[int]] = {}
    host = device.host_time()
    completion, used = host, 0
    for index in range(device.device_count()):
        totals = device.totals(index)
        if not totals["operators"]:
            continue
        used += 1
        completion = max(completion, device.device_time(index))
        for name in sums:
            sums[name] += totals[name]
        for phase, values in device.phase_totals(index).items():
            into = phases.setdefault(PHASES[phase], [0, 0, 0, 0])
            for i, name in enumerate(_OF_A_PHASE):
                into[i] += values[name]
    return Counters(
        wall=perf_counter_ns(),
        host=host,
        completion=completion,
        operators=sums["operators"],
        busy=sums["device_busy_ns"],
        modelled=sums["modelled_ns"],
        simulated=sums["simulated_ns"],
        flops=sums["flops"],
        bytes=sums["hbm_bytes"],
        phases={name: PhaseTotal(*values) for name, values in phases.items()},
        devices=used,
    )
