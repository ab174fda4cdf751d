"""Autograd runs a device's backward on a thread of that device (torch 2.13); neuron's belongs on the
caller's.

The virtual clock, dry runs and Python frames are per thread, so the device turns autograd's multithreading
off in each thread that runs an operator. Two things are left to do from Python.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch


def start_without_device_threads() -> None:
    """Starts autograd's engine before the device is registered, so that it makes no thread per device.

    With such threads even a CPU-only program could not call backward in a forked child after having called it
    in the parent, and the interpreter could abort at exit. A PyTorch built for another accelerator keeps that
    one's threads.
    """
    if (
        torch.version.cuda is None
        and torch.version.hip is None
        and getattr(torch.version, "xpu", None) is None
    ):
        torch.autograd.backward(torch.zeros((), requires_grad=True))


def stay_on_the_calling_thread(module: ModuleType) -> None:
    """Turns multithreading off in a thread whose first contact with the device is a backward pass."""
    original = module._engine_run_backward
    turn_off = torch._C._set_multithreading_enabled

    @functools.wraps(original)
    def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
        turn_off(False)
        return original(*args, **kwargs)

    module._engine_run_backward = _engine_run_backward  # type: ignore[attr-defined]
    torch.autograd._engine_run_backward = _engine_run_backward  # type: ignore[attr-defined]  # imported by name
