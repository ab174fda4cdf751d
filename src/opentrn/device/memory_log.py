"""The allocation log of a device, for several readers: a script's own memory history beside a recorded trace.

The extension keeps one log and forgets what it has handed out, so what one reader takes is put aside for the
others.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from opentrn.device import _C

Columns = dict[str, np.ndarray]

# Device → reader → what has been handed out since the reader last asked.
_waiting: dict[int, dict[Hashable, list[Columns]]] = {}


def start(reader: Hashable, device: int) -> None:
    """Blocks alive now come first, as allocations."""
    _hand_out(device)
    _C.memory_log_start(device)
    _waiting.setdefault(device, {})[reader] = [_C.memory_log_drain(device)]


def drain(reader: Hashable, device: int, stop: bool = False) -> Columns | None:
    """Allocation events since the reader's last call, oldest first; None without any or before start()."""
    readers = _waiting.get(device, {})
    if reader not in readers:
        return None
    _hand_out(device)
    parts = [part for part in readers[reader] if len(part["time"])]
    if stop:
        del readers[reader]
        if not readers:
            _C.memory_log_drain(device, True)
    else:
        readers[reader] = []
    if not parts:
        return None
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _hand_out(device: int) -> None:
    readers: dict[Hashable, list[Any]] = _waiting.get(device, {})
    if readers:
        log = _C.memory_log_drain(device)
        for parts in readers.values():
            parts.append(log)
