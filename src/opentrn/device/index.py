"""From what a user may pass as a device to an index."""

from __future__ import annotations

from typing import Any

import torch

from opentrn.device import _C


def resolve(device: Any, *, optional: bool = False) -> int:
    """The index of `device`: an int, "neuron", "neuron:1", a torch.device, an object with `.device`.

    optional: None means the current device. Raises ValueError for another device type.
    """
    if device is None and optional:
        return _C.current_device()
    if isinstance(device, bool) or device is None:
        raise ValueError(f"opentrn: expected a neuron device, got {device!r}")
    if isinstance(device, int):
        return _C.current_device() if device < 0 and optional else device
    if isinstance(device, str):
        device = torch.device(device)
    if not isinstance(device, torch.device):
        device = getattr(device, "device", device)
    if not isinstance(device, torch.device) or device.type != "neuron":
        raise ValueError(f"opentrn: expected a neuron device, got {device!r}")
    return _C.current_device() if device.index is None else device.index
