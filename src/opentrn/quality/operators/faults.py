"""Deliberate defects, so that the sweep can be seen to find them.

`--device broken:FAULT` runs the second side on CPU under one of these. Each stands for a kind of defect
that a device plug-in really has. A control that finds nothing proves nothing.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from opentrn.errors import ConfigurationError


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _flip_last_bit(name: str, result: Any) -> Any:
    """A kernel that rounds differently: the lowest bit of each first element of a float result."""
    for tensor in _tensors(result):
        if tensor.dtype == torch.float32 and tensor.numel() and not tensor.is_conj():
            first = tensor.as_strided((1,), (1,), tensor.storage_offset()).view(torch.int32)
            first.bitwise_xor_(1)
    return result


def _lose_negative_zero(name: str, result: Any) -> Any:
    """-0.0 becomes +0.0 (float32): equal for `==`, not bit for bit."""
    for tensor in _tensors(result):
        if tensor.dtype == torch.float32 and tensor.numel():
            tensor.masked_fill_(tensor == 0, 0.0)
    return result


def _part_views(name: str, result: Any) -> Any:
    """Views come back as copies: values are right, writes through them are lost."""
    if name in {
        "aten::view",
        "aten::transpose.int",
        "aten::select.int",
        "aten::expand",
        "aten::slice.Tensor",
    }:
        return torch.clone(result, memory_format=torch.preserve_format)
    return result


def _make_dense(name: str, result: Any) -> Any:
    """Strided results come back contiguous: values are right, strides are not."""
    if isinstance(result, torch.Tensor) and not result.is_contiguous():
        return result.contiguous()
    return result


def _refuse(name: str, result: Any) -> Any:
    """A kernel that was never registered."""
    raise NotImplementedError(f"{name} is not implemented (deliberate fault)")


def _crash(name: str, result: Any) -> Any:
    """A segmentation fault."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return result


def _hang(name: str, result: Any) -> Any:
    """A kernel that never returns."""
    time.sleep(3600)
    return result


# Fault name → what happens after an operator ran. "NAME@aten::op" confines it to one operator.
FAULTS: dict[str, Callable[[str, Any], Any]] = {
    "last-bit": _flip_last_bit,
    "negative-zero": _lose_negative_zero,
    "views": _part_views,
    "strides": _make_dense,
    "refuse": _refuse,
    "crash": _crash,
    "hang": _hang,
}


def check_name(text: str) -> str:
    if text.split("@")[0] not in FAULTS:
        raise ConfigurationError(
            f"no fault {text!r}", cure=f"one of {', '.join(FAULTS)}, or FAULT@aten::operator to confine it"
        )
    return text


class FaultyDevice(TorchDispatchMode):
    """While active, results of operators pass through a fault."""

    def __init__(self, text: str) -> None:
        super().__init__()
        name, _, self._only = text.partition("@")
        self._fault = FAULTS[name]

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.name()
        if self._only and name.split(".")[0] != self._only:
            return result
        return self._fault(name, result)
