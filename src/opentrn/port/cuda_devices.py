"""From a CUDA device to a neuron device and back, and the count of devices that a CUDA script sees."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from opentrn.device import _C

CUDA_VISIBLE = "CUDA_VISIBLE_DEVICES"
_CORE_VARIABLES = ("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES")

# Modules whose Python sees devices as they are. Everyone else, the script and its libraries, sees CUDA.
_INTERNAL_ROOTS = frozenset({"torch", "torchgen", "functorch", "opentrn"})
_is_internal: dict[Any, bool] = {}

_visible: int | None = None


def to_neuron(value: Any) -> Any:
    """`value` with the device type cuda replaced: "cuda", "cuda:1", torch.device; anything else as it is."""
    if isinstance(value, str):
        if value == "cuda" or value.startswith("cuda:"):
            return "neuron" + value[4:]
        return value
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("neuron") if value.index is None else torch.device("neuron", value.index)
    return value


def to_cuda(device: torch.device) -> torch.device:
    """The CUDA device that a script is shown for `device`."""
    if device.type != "neuron":
        return device
    return torch.device("cuda") if device.index is None else torch.device("cuda", device.index)


def called_by_library(depth: int = 2) -> bool:
    """Whether the caller of the caller is PyTorch's or our own Python."""
    return is_internal(sys._getframe(depth).f_globals.get("__name__"))


def is_internal(name: Any) -> bool:
    """Whether a module of this name is PyTorch's or ours."""
    internal = _is_internal.get(name)
    if internal is None:
        internal = _is_internal[name] = str(name).partition(".")[0] in _INTERNAL_ROOTS
    return internal


def device_count() -> int:
    """How many devices the script sees, fixed at the first question as on CUDA.

    CUDA_VISIBLE_DEVICES decides. Without it: the variables of the real stack if set, torchrun's processes on
    this host, else one: a script that finds 64 devices starts 64 replicas in one process.
    """
    global _visible
    if _visible is None:
        _visible = _count_visible()
    return _visible


def _count_visible() -> int:
    attached = _C.device_count()
    listed = os.environ.get(CUDA_VISIBLE)
    if listed is not None:
        return min(attached, _listed(listed))
    if any(os.environ.get(name) for name in _CORE_VARIABLES):
        return attached
    return min(attached, int(os.environ.get("LOCAL_WORLD_SIZE", "1") or "1"))


def _listed(text: str) -> int:
    """Entries of CUDA_VISIBLE_DEVICES up to the first that is no device, as CUDA reads it."""
    count = 0
    for entry in text.split(","):
        entry = entry.strip()
        if not (entry.isdigit() or entry.startswith(("GPU-", "MIG-"))):
            break
        count += 1
    return count
