"""Stands in for `opentrn.trace.source.DeviceSource` where a test needs counters and buffers but no device.

`run` issues an operator, `allocate` and `free` change memory; the virtual clocks move by what the test says.
"""

from __future__ import annotations

import threading
from collections import defaultdict

import numpy as np

OPERATOR_COLUMNS = (
    "operator", "signature", "stream", "host_start", "host_end", "device_start", "device_end", "flops",
    "bytes", "kind", "module", "frame", "phase", "memory_allocated", "device",
)  # fmt: skip
MEMORY_COLUMNS = ("time", "storage", "address", "size", "event", "category", "module", "phase", "device")
ALLOC, FREE, RELABEL = 0, 1, 2
SIGNATURE = ("[2]->[2]", "float32->float32")


class FakeDevice:
    """One or more devices; every operator takes `host_ns` on the host."""

    def __init__(self, devices: int = 1, host_ns: int = 10) -> None:
        self.lock = threading.Lock()
        self.host, self.host_ns = 0, host_ns
        self.ready = [0] * devices
        self.phase = 0
        self.stack = [-1]
        self.modules, self.operators, self.signatures = [], [], []
        self.tracing = self.logging = False
        self.rows: list[tuple] = []
        self.events: list[tuple] = []
        self.sizes: dict[int, tuple[int, int]] = {}
        self.allocated = [0] * devices
        self.next_storage = 1
        self.categories: dict[int, int] = {}
        self.sums = [defaultdict(int) for _ in range(devices)]
        self.phases = [defaultdict(lambda: [0, 0, 0, 0]) for _ in range(devices)]
        self.by_name: dict[str, list] = {}
        self.launched: list[tuple] = []
        self.programs: dict[int, dict[str, list]] = {}

    # -- what a test drives --

    def run(self, name="aten::mm", ns=100, flops=0, bytes=0, device=0, stream=0, phase=None, simulated=False):
        with self.lock:
            phase = self.phase if phase is None else phase
            issued = self.host
            self.host += self.host_ns
            start = max(self.ready[device], self.host)
            self.ready[device] = start + ns
            sums = self.sums[device]
            sums["operators"] += 1
            sums["device_busy_ns"] += ns
            sums["simulated_ns" if simulated else "modelled_ns"] += ns
            sums["flops"] += flops
            sums["hbm_bytes"] += bytes
            for i, value in enumerate((1, ns, flops, bytes)):
                self.phases[device][phase][i] += value
            total = self.by_name.setdefault(name, [0, 0, 0, 0, "simulated" if simulated else "modelled"])
            for i, value in enumerate((1, ns, flops, bytes)):
                total[i] += value
            if self.tracing:
                self.rows.append((
                    self._intern(self.operators, name), self._intern(self.signatures, SIGNATURE),
                    stream, issued, self.host, start, start + ns, flops, bytes, int(simulated),
                    self.stack[-1], -1, phase, self.allocated[device], device,
                ))  # fmt: skip

    def allocate(self, size, device=0, category=0):
        storage, self.next_storage = self.next_storage, self.next_storage + 1
        self.sizes[storage] = (size, device)
        self.allocated[device] += size
        self._event(storage, size, ALLOC, category, device)
        return storage

    def free(self, storage):
        size, device = self.sizes.pop(storage)
        self.allocated[device] -= size
        self._event(storage, size, FREE, 0, device)

    def relabel(self, storage, category):
        size, device = self.sizes[storage]
        self._event(storage, size, RELABEL, category, device)

    def _event(self, storage, size, event, category, device):
        with self.lock:
            if self.logging:
                self.events.append(
                    (
                        self.host,
                        storage,
                        storage << 20,
                        size,
                        event,
                        category,
                        self.stack[-1],
                        self.phase,
                        device,
                    )
                )

    @staticmethod
    def _intern(table, text):
        if text not in table:
            table.append(text)
        return table.index(text)

    # -- the surface of the extension --

    def host_time(self):
        return self.host

    def device_count(self):
        return len(self.ready)

    def device_time(self, index):
        return self.ready[index]

    def parameters(self):
        return {"instance": "fake.1", "chip": "fake", "cores_per_logical": 2, "mfu_peak_tflops_bf16": 158.0,
                "hbm_bytes": 24 << 30, "hbm_reserved_bytes": 0}  # fmt: skip

    def totals(self, index):
        names = (
            "operators",
            "device_busy_ns",
            "modelled_ns",
            "simulated_ns",
            "flops",
            "hbm_bytes",
            "host_ns",
        )
        return {name: self.sums[index][name] for name in names}

    def phase_totals(self, index):
        names = ("operators", "device_busy_ns", "flops", "hbm_bytes")
        return {phase: dict(zip(names, values, strict=True)) for phase, values in self.phases[index].items()}

    def operator_totals(self):
        names = ("count", "device_ns", "flops", "bytes")
        return {
            name: {
                **dict(zip(names, values, strict=False)),
                **{
                    f"simulated_{name.removeprefix('device_')}": value if values[4] == "simulated" else 0
                    for name, value in zip(names, values, strict=False)
                },
                "class": "matmul" if "mm" in name else "pointwise",
            }
            for name, values in self.by_name.items()
        }

    def program_failures(self):
        return []

    def reset_operator_totals(self):
        self.by_name = {}

    def provenance(self, parameter):
        return f"assumed: {parameter} of the fake"

    def set_phase(self, phase):
        self.phase = phase

    def label(self, tensor, category):
        assert tensor.device.type != "neuron"

    def enter_module(self, path):
        self.stack.append(self._intern(self.modules, path))

    def exit_module(self):
        self.stack.pop()

    def trace_start(self, frames):
        self.tracing = True

    def trace_stop(self):
        self.tracing = False

    def trace_pending(self):
        return len(self.rows)

    def trace_drain(self):
        with self.lock:
            rows, self.rows = self.rows, []
        return _columns(OPERATOR_COLUMNS, rows)

    def launches(self):
        launched, self.launched = self.launched, []
        return launched

    def engine_intervals(self, program):
        return self.programs[program]

    def names(self):
        tables = {"operators": self.operators, "signatures": self.signatures, "modules": self.modules}
        return {**{name: list(table) for name, table in tables.items()}, "frames": []}

    def memory_start(self):
        self.logging = True

    def memory_drain(self, stop=False):
        with self.lock:
            events, self.events = self.events, []
        if stop:
            self.logging = False
        return _columns(MEMORY_COLUMNS, events) if events else None


def _columns(names, rows):
    values = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    return {name: np.array(column, np.int64) for name, column in zip(names, values, strict=True)}
