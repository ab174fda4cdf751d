"""The part of `opentrn.device._C` that tracing reads, in the form the rest of this package uses.

Counters are summed by `counters`, buffers drained by `recorder`; a test puts a stand-in with the same methods
in its place.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
import torch

from opentrn.device import memory_log
from opentrn.trace.memory import EVENT_COLUMNS
from opentrn.trace.schema import CATEGORIES

_NAME_TABLES = ("operators", "signatures", "modules", "frames")


class DeviceSource:
    """Reads the extension of this process. All times are ns of virtual time."""

    def __init__(self) -> None:
        from opentrn.device import attach

        _C: Any = importlib.import_module("opentrn.device._C")
        self._device = _C
        self._machine = attach.attached()
        self._names: dict[str, list] = {name: [] for name in _NAME_TABLES}
        if list(_C.category_names()) != list(CATEGORIES):
            raise AssertionError("the memory categories of the extension and of the trace schema differ")
        self.host_time, self.device_count, self.device_time = _C.host_time, _C.device_count, _C.device_time
        self.totals, self.phase_totals = _C.totals, _C.phase_totals
        self.reset_operator_totals, self.operator_totals = _C.reset_operator_totals, _C.operator_totals
        self.enter_module, self.exit_module = _C.trace_module_enter, _C.trace_module_exit
        self.set_phase = _C.set_phase
        self.trace_drain = _C.trace_drain
        self.trace_stop, self.trace_pending = _C.trace_stop, _C.trace_pending

    def parameters(self) -> dict[str, Any]:
        """`Machine.device_parameters()` of the attached machine."""
        return dict(self._machine.device_parameters())

    def provenance(self, parameter: str) -> str:
        """Where a parameter of the machine comes from, in words."""
        status, source = self._machine.provenance()[parameter]
        return f"{status}: {source}"

    def memory_capacity(self) -> int:
        """Bytes of one device."""
        return int(self._device.memory_capacity(0))

    def program_failures(self) -> list[str]:
        """Operators whose program could not be built or timed, in words."""
        from opentrn.device import simulated

        return simulated.report_lines()

    def trace_start(self, frames: bool) -> None:
        """Starts the operator buffer; `frames`: with the user's Python line of each operator."""
        self._device.trace_start({"shapes": True, "frames": frames})

    def launches(self) -> list[tuple[int, str, int, int, int, int]]:
        """(program, name, device, stream, start, end) of the programs launched since the last call."""
        programs = sys.modules.get("opentrn.device.programs")
        return programs.log.drain() if programs is not None else []

    def engine_intervals(self, program: int) -> dict[str, Any]:
        """The busy intervals of a program's engines, as columns of `engine_intervals`."""
        return sys.modules["opentrn.device.programs"].log.intervals(program)

    def names(self) -> dict[str, list]:
        """Interned by identifier (−1: none): operators, signatures (shapes, dtypes), modules, frames."""
        known = self._names
        more = self._device.trace_names(**{name: len(known[name]) for name in _NAME_TABLES})
        for name in _NAME_TABLES:
            known[name].extend(more[name])
        return known

    def memory_start(self) -> None:
        """Starts the allocation log of every device."""
        for index in range(self.device_count()):
            memory_log.start(self, index)

    def memory_drain(self, stop: bool = False) -> dict[str, np.ndarray] | None:
        """Allocation events since the last drain (EVENT_COLUMNS), in order for each device; None without
        any."""
        parts = []
        for index in range(self.device_count()):
            if stop or self.totals(index)["operators"]:
                log = memory_log.drain(self, index, stop)
                if log is not None:
                    parts.append(log)
        if not parts:
            return None
        return {name: np.concatenate([part[name] for part in parts]) for name in EVENT_COLUMNS}

    def label(self, tensor: torch.Tensor, category: int) -> None:
        """Says what a tensor's memory is for (index of CATEGORIES); nothing for tensors elsewhere."""
        # A DTensor holds its share in a local tensor.
        self._device.set_category(getattr(tensor, "_local_tensor", tensor), category)
