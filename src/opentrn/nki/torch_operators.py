"""Kernels as PyTorch operators: `@nki_op`, `wrap_nki`, and direct calls on tensors of the `neuron` device.

The device package connects itself with `connect`: how to read and write a device tensor's bytes, and how to
charge a program's time to a stream. Without it a call copies through the host and charges nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from opentrn.errors import ConfigurationError
from opentrn.nki import engine_hook, kernel
from opentrn.nki.arguments import like_torch, rebuild
from opentrn.nki.kernel import Kernel, Traced, collect_results, trace, unwrap
from opentrn.nki.timing import time_traced


@dataclass
class Connection:
    """What the device gives: `host_view(tensor)` -> CPU tensor sharing the bytes (or None: copies are made);
    `launched(device, traced, nanoseconds)` is told of every execution."""

    host_view: Callable[[Any], Any] | None = None
    launched: Callable[[Any, Traced, float], None] | None = None


_connection = Connection()
_nanoseconds: dict[int, tuple[Any, float]] = {}


def connect(
    host_view: Callable[[Any], Any] | None = None,
    launched: Callable[[Any, Traced, float], None] | None = None,
) -> None:
    """Join kernels to the device; called by the device package."""
    _connection.host_view, _connection.launched = host_view, launched
    kernel.device_hook = run_on_device


def _host(tensor: Any) -> Any:
    if tensor.device.type == "cpu":
        return tensor
    if _connection.host_view is not None:
        return _connection.host_view(tensor)
    return tensor.cpu()


def run_on_device(
    function: Callable[..., Any], grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A kernel on device tensors: results are tensors of the same device; written arguments are updated."""
    originals: dict[str, Any] = {}

    def to_host(path: str, array: Any) -> Any:
        if isinstance(array, np.ndarray):
            return array
        originals[path] = array
        return _host(array)

    bound = {
        name: rebuild(value, name, to_host) for name, value in kernel._bind(function, args, kwargs).items()
    }
    devices = {tensor.device for tensor in originals.values() if tensor.device.type != "cpu"}
    if len(devices) != 1:
        raise ConfigurationError(
            f"a kernel got tensors of {len(devices)} devices: {sorted(map(str, devices))}",
            cure="move its tensors to one device",
        )
    device = devices.pop()
    traced, arrays = trace(function, grid, (), bound)
    values = engine_hook.execute(traced.program, arrays, check=False)
    result = _to_device(collect_results(traced, values, arrays), device)
    for path in traced.updated.values():
        tensor = originals.get(path)
        if tensor is not None and (_connection.host_view is None or tensor.device.type == "cpu"):
            tensor.copy_(like_torch(arrays[f"input_{path}"]))
    if _connection.launched is not None:
        _connection.launched(device, traced, duration(traced))
    return result


def duration(traced: Traced) -> float:
    """Simulated nanoseconds of a program, kept with the traced kernel."""
    known = _nanoseconds.get(id(traced))
    if known is None or known[0] is not traced:
        known = _nanoseconds[id(traced)] = (traced, float(time_traced(traced).nanoseconds))
    return known[1]


def _to_device(value: Any, device: Any) -> Any:
    if isinstance(value, np.ndarray):
        return like_torch(value).to(device)
    if isinstance(value, dict):
        return {key: _to_device(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_to_device(item, device) for item in value)
    return value


def nki_op(name: str, mutates_args: Any = (), **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: a typed Python launcher of kernels becomes the operator `name` ("namespace::operator").

    The result has `register_autograd` and `register_fake`, as `torch.library.custom_op` gives them. Unless a
    fake is registered, shapes are inferred by running the launcher on zeros, as the public stack does.
    """
    import torch

    def decorate(launcher: Callable[..., Any]) -> Any:
        operator = torch.library.custom_op(name, launcher, mutates_args=mutates_args, **options)

        def fake(*args: Any, **kwargs: Any) -> Any:
            def concrete(value: Any) -> Any:
                return (
                    torch.zeros(tuple(int(n) for n in value.shape), dtype=value.dtype)
                    if isinstance(value, torch.Tensor)
                    else value
                )

            with torch._subclasses.fake_tensor.unset_fake_temporarily():
                result = launcher(*(concrete(a) for a in args), **{k: concrete(v) for k, v in kwargs.items()})
            like = next(a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor))
            return _empty_like(result, like)

        operator.register_fake(fake)
        return operator

    return decorate


def _empty_like(value: Any, like: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_empty_like(item, like) for item in value)
    return like.new_empty(value.shape, dtype=value.dtype)


class WrappedKernel:
    """`wrap_nki(kernel)`: a kernel that is called with keywords inside and outside of compiled graphs."""

    def __init__(
        self, wrapped: Any, operand_output_aliases: dict[str, int] | None = None, grid: Any = None
    ) -> None:
        self.function, own = unwrap(wrapped)
        self.grid = grid if grid is not None else own
        self.operand_output_aliases = operand_output_aliases or {}

    def __getitem__(self, grid: Any) -> WrappedKernel:
        return WrappedKernel(self.function, self.operand_output_aliases, grid)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return Kernel(self.function, self.grid)(*args, **kwargs)


def wrap_nki(wrapped: Any, **options: Any) -> WrappedKernel:
    """A kernel as something that a traced graph may call; graphs break around it (it is one opaque call)."""
    import torch

    result = WrappedKernel(wrapped, options.get("operand_output_aliases"))
    return torch.compiler.disable(result, recursive=True) if options.get("graph_break") else result
