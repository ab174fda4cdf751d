"""autocast and its questions for the device type cuda."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp import autocast_mode

from opentrn.port.redirections import LEDGER

_NEURON = "neuron"

_enabled, _set_enabled = torch.is_autocast_enabled, torch.set_autocast_enabled
_dtype, _set_dtype = torch.get_autocast_dtype, torch.set_autocast_dtype
_available = autocast_mode.is_autocast_available
_initialise = autocast_mode.autocast.__init__


def _is_cuda(device_type: Any) -> bool:
    return isinstance(device_type, str) and device_type.partition(":")[0] == "cuda"


def _init(
    self: Any,
    device_type: str,
    dtype: torch.dtype | None = None,
    enabled: bool = True,
    cache_enabled: bool | None = None,
) -> None:
    if _is_cuda(device_type):
        LEDGER.note("torch.autocast('cuda')", "torch.autocast('neuron')")
        # CUDA's default is float16; a script that gives none relies on it.
        dtype = _dtype("cuda") if dtype is None else dtype
        device_type = _NEURON
    _initialise(self, device_type, dtype, enabled, cache_enabled)


def is_autocast_enabled(device_type: str | None = None) -> bool:
    return _enabled(_NEURON if device_type is None or _is_cuda(device_type) else device_type)


def set_autocast_enabled(*args: Any) -> None:
    """(enabled), the old form for CUDA, or (device_type, enabled)."""
    device_type, enabled = args if len(args) == 2 else ("cuda", args[0])
    _set_enabled(_NEURON if _is_cuda(device_type) else device_type, enabled)


def get_autocast_dtype(device_type: str) -> torch.dtype:
    if not _is_cuda(device_type):
        return _dtype(device_type)
    return _dtype(_NEURON) if _enabled(_NEURON) else _dtype("cuda")


def set_autocast_dtype(device_type: str, dtype: torch.dtype) -> None:
    _set_dtype(device_type, dtype)
    if _is_cuda(device_type):
        _set_dtype(_NEURON, dtype)


def is_autocast_available(device_type: str) -> bool:
    return _available(_NEURON if _is_cuda(device_type) else device_type)


_custom_forward, _custom_backward = autocast_mode.custom_fwd, autocast_mode.custom_bwd


def custom_fwd(fwd: Any = None, *, device_type: str, cast_inputs: Any = None) -> Any:
    return _custom_forward(
        fwd, device_type=_NEURON if _is_cuda(device_type) else device_type, cast_inputs=cast_inputs
    )


def custom_bwd(bwd: Any = None, *, device_type: str) -> Any:
    return _custom_backward(bwd, device_type=_NEURON if _is_cuda(device_type) else device_type)


def install() -> None:
    """Patches torch.autocast and the functions that read and set its state."""
    autocast_mode.autocast.__init__ = _init  # type: ignore[method-assign]
    functions = {
        "is_autocast_enabled": is_autocast_enabled,
        "set_autocast_enabled": set_autocast_enabled,
        "get_autocast_dtype": get_autocast_dtype,
        "set_autocast_dtype": set_autocast_dtype,
        "get_autocast_gpu_dtype": lambda: get_autocast_dtype("cuda"),
        "set_autocast_gpu_dtype": lambda dtype: set_autocast_dtype("cuda", dtype),
    }
    for name, function in functions.items():
        setattr(torch, name, function)
    modules: tuple[Any, ...] = (torch.amp, autocast_mode)
    for module in modules:
        module.is_autocast_available = is_autocast_available
        module.custom_fwd, module.custom_bwd = custom_fwd, custom_bwd
    # GradScaler and autocast ask these before they do anything.
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    # torch.cuda.amp's decorators hold the type "cuda" in a partial.
    holders: tuple[Any, ...] = (torch.cuda.amp, torch.cuda.amp.autocast_mode)
    for holder in holders:
        holder.custom_fwd = lambda fwd=None, **kwargs: custom_fwd(fwd, device_type="cuda", **kwargs)
        holder.custom_bwd = lambda bwd: custom_bwd(bwd, device_type="cuda")
    # TorchScript finds these functions by identity.
    for name in ("is_autocast_enabled",):
        torch.jit._builtins._register_builtin(functions[name], f"aten::{name}")
