"""From what a user may pass as a device to an index."""

from __future__ import annotations

from typing import Any

import torch

from opentrn.device import _C


def resolve(device: Any, *, optional: bool = False) -> int:
    """The index of `device`: an int, "neuron", "neuron:1", a torch.device, an object with `.device`.

    optional: None and negative indices mean the current device. Raises ValueError for another device type,
    and RuntimeError for an index that the attached machine does not have.
    """
    if device is None and optional:
        return _C.current_device()
    if isinstance(device, bool) or device is None:
        raise ValueError(f"opentrn: expected a neuron device, got {device!r}")
    if isinstance(device, int):
        if device < 0:
            return _C.current_device() if optional else device
        return _existing(device)
    if isinstance(device, str):
        device = torch.device(device)
    if not isinstance(device, torch.device):
        device = getattr(device, "device", device)
    if not isinstance(device, torch.device) or device.type != "neuron":
        raise ValueError(f"opentrn: expected a neuron device, got {device!r}")
    return _C.current_device() if device.index is None else _existing(device.index)


def _existing(index: int) -> int:
    count = _C.device_count()
    if not 0 <= index < count:
        raise RuntimeError(
            f"opentrn: there is no device neuron:{index}: {_C.instance()} has {count} "
            f"(neuron:0 to neuron:{count - 1})\n"
            "  what to do: use an index in that range, or attach a larger instance (OPENTRN_INSTANCE)"
        )
    return index
