"""Calls of kernels with PyTorch tensors: on the host, on the device `neuron`, and with shapes only.

The device is a layer of its own that this package does not know: it connects itself through
`opentrn.nki.device_connector`, and lends the bytes of its tensors to one call at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from opentrn import nki
from opentrn.errors import ConfigurationError, UnsupportedError
from opentrn.nki import engine_hook, target
from opentrn.nki.arguments import (
    like_torch,
    rebuild,
    restore_result,
    torch_type,
)
from opentrn.nki.dtypes import host_type, name_of
from opentrn.nki.findings import on_unwritten
from opentrn.nki.tensor import NkiTensor
from opentrn.nki.traced import Call, Dialect, Traced, bind, name_of_kernel, result_array, write_back


class DeviceCall(Protocol):
    """A program's way through the device (csrc/device/program_call.h)."""

    backed: bool

    def gets_bytes(self, bytes: int, dtype: Any) -> bool: ...
    def views(self) -> list[Any]: ...
    def give(self, host: Any) -> Any: ...
    def give_inferred(self, sizes: list[int], dtype: Any) -> Any: ...
    def write_inferred(self, argument: Any) -> None: ...
    def finish(self, traced: Traced) -> None: ...
    def close(self) -> None: ...


class Connection(Protocol):
    """What the device gives to kernels; `device` is a torch.device of its type."""

    def chip(self, device: Any) -> str: ...
    def cores(self, device: Any) -> int: ...
    def open(self, kernel: str, device: Any, arguments: list[Any]) -> DeviceCall: ...


_connection: Connection | None = None


def connection() -> Connection:
    """The device's side. Raises ConfigurationError where no device is registered."""
    global _connection
    if _connection is None:
        connector = nki.device_connector
        if connector is None:
            raise ConfigurationError(
                "a kernel got tensors of the neuron device, which is not loaded",
                cure="import torch before calling the kernel",
            )
        _connection = connector()
    return _connection


def call(
    function: Callable[..., Any],
    grid: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dialect: Dialect,
    chip: str | None,
    check: bool,
    observe: Callable[[Traced], None],
    strict: bool = False,
) -> Any:
    """A kernel on tensors; see `opentrn.nki.kernel.call`. Written arguments are updated in place."""
    import torch

    arguments = {name: _plain_number(value) for name, value in bind(function, args, kwargs).items()}
    originals: dict[str, Any] = {}

    def note(path: str, array: Any) -> Any:
        originals[path] = array
        return array

    for name, value in arguments.items():
        rebuild(value, name, note)
    name = name_of_kernel(function)
    device = _device_of(originals, name)
    one = Call(function, dialect.launch(grid), arguments, chip or "", dialect, capacity=check, strict=strict)
    tensors = [item for item in originals.values() if isinstance(item, torch.Tensor)]
    shapes_only = device.type == "meta" or any(_is_fake(tensor) for tensor in tensors)
    if device.type == "neuron":
        _attach(one, device, chip)
    else:
        one.chip = chip or target.chip()
    with torch.no_grad():
        if shapes_only:
            results = _infer(one, originals, device)
        elif device.type == "cpu":
            results = _run_on_host(one, originals, check)
        else:
            with _profiled(name):
                results = _run_on_device(one, originals, device, check)
    traced, made = results
    observe(traced)
    _count_writes(traced, originals)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        made = _without_backward(name, tensors, made)
    return restore_result(traced.result, made)


def _profiled(kernel: str) -> Any:
    """An event of torch.profiler around the call, as operators have."""
    import torch

    if not torch.autograd._profiler_enabled():
        return contextlib.nullcontext()
    return torch.profiler.record_function(f"nki::{kernel}")


def _plain_number(value: Any) -> Any:
    """Symbolic numbers of a graph capture become numbers: a program is made for one size."""
    import torch

    kinds = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    return kinds[type(value)](value) if type(value) in kinds else value


def _is_fake(tensor: Any) -> bool:
    return hasattr(tensor, "fake_mode")


def _device_of(originals: dict[str, Any], kernel: str) -> Any:
    """The one device of a call's arrays. Raises ConfigurationError for two, and for NumPy arrays beside a
    device."""
    import torch

    places: dict[Any, str] = {}
    for path, item in originals.items():
        if hasattr(item, "to_local"):
            raise UnsupportedError(
                f"argument '{path}' of kernel {kernel} is distributed (a {type(item).__name__})",
                cure="pass its local part: .to_local()",
            )
        device = torch.device("cpu") if isinstance(item, np.ndarray) else item.device
        places.setdefault(device, path)
    if len(places) > 1:
        where = ", ".join(f"'{path}' on {device}" for device, path in places.items())
        raise ConfigurationError(
            f"kernel {kernel} got arguments on {len(places)} devices: {where}",
            cure="move its tensors to one device",
        )
    device = next(iter(places))
    if device.type not in ("cpu", "neuron", "meta"):
        raise ConfigurationError(
            f"kernel {kernel} got tensors on {device}", cure="kernels run on neuron and cpu tensors"
        )
    return device


def _attach(one: Call, device: Any, chip: str | None) -> None:
    """Make the program for the attached chip. Raises ConfigurationError where the kernel wants another
    one."""
    ours = connection()
    attached = ours.chip(device)
    wanted = chip or target.asked_for()
    if wanted and engine_hook.generation(wanted) is not engine_hook.generation(attached):
        raise ConfigurationError(
            f"the kernel is to be built for {wanted}, and {device} is a {attached}",
            cure="attach an instance of that chip (OPENTRN_INSTANCE), or do not name a target",
        )
    if one.launch.cores > ours.cores(device):
        raise ConfigurationError(
            f"a launch grid of {one.launch.cores} cores, and {device} has {ours.cores(device)} "
            f"(one logical core)",
            cure="kernel[1], or NEURON_LOGICAL_NC_CONFIG=2",
        )
    one.chip = attached


def _with(one: Call, replace: dict[str, Any], values: bool) -> Call:
    arguments = {
        name: rebuild(value, name, lambda path, array: replace[path]) for name, value in one.arguments.items()
    }
    return dataclasses.replace(one, arguments=arguments, values=values)


def _shapes(originals: dict[str, Any]) -> dict[str, Any]:
    """Arrays of the arguments' shapes and types that take no memory."""
    return {
        path: np.broadcast_to(
            np.zeros((), host_type(name_of(item.dtype))), tuple(int(size) for size in item.shape)
        )
        for path, item in originals.items()
    }


def _execute(one: Call, check: bool) -> tuple[Traced, dict[str, np.ndarray], dict[str, np.ndarray]]:
    traced, arrays = one.traced(), one.arrays()
    values = engine_hook.execute(
        traced.program, arrays, check=check, on_unwritten=on_unwritten([traced], one.strict)
    )
    write_back(traced, values, arrays)
    return traced, arrays, values


def _given_back(tensor: NkiTensor, originals: dict[str, Any]) -> Any:
    """The argument that a result is, or None: a kernel may return what it wrote into."""
    name = tensor._storage.program_name
    return originals.get(name.removeprefix("input_")) if name.startswith("input_") and tensor.whole else None


def _run_on_host(one: Call, originals: dict[str, Any], check: bool) -> tuple[Traced, list[Any]]:
    traced, arrays, values = _execute(one, check)
    made = []
    for tensor in traced.outputs:
        known = _given_back(tensor, originals)
        result = like_torch(result_array(tensor, values, arrays)) if known is None else known
        made.append(like_torch(result) if isinstance(result, np.ndarray) else result)
    return traced, made


def _run_on_device(
    one: Call, originals: dict[str, Any], device: Any, check: bool
) -> tuple[Traced, list[Any]]:
    paths = list(originals)
    opened = connection().open(name_of_kernel(one.function), device, [originals[path] for path in paths])
    try:
        if opened.backed:
            lent = _with(one, dict(zip(paths, opened.views(), strict=True)), True)
        else:
            lent = _with(one, _shapes(originals), False)
        traced = lent.traced()
        kinds = [torch_type(tensor.dtype) for tensor in traced.outputs]
        if opened.backed and all(
            opened.gets_bytes(int(np.prod(tensor.shape)) * kind.itemsize, kind)
            for tensor, kind in zip(traced.outputs, kinds, strict=True)
        ):
            traced, arrays, values = _execute(lent, check)
            made = []
            for tensor in traced.outputs:
                known = _given_back(tensor, originals)
                host = None if known is not None else like_torch(result_array(tensor, values, arrays))
                made.append(known if host is None else opened.give(host))
        else:
            made = []
            for tensor, kind in zip(traced.outputs, kinds, strict=True):
                known = _given_back(tensor, originals)
                made.append(opened.give_inferred(list(tensor.shape), kind) if known is None else known)
            for path in traced.updated.values():
                opened.write_inferred(originals[path])
        opened.finish(traced)
    finally:
        opened.close()
    return traced, made


def _infer(one: Call, originals: dict[str, Any], device: Any) -> tuple[Traced, list[Any]]:
    """Results of a call in a graph capture: fake or meta tensors, from the traced program."""
    import torch

    traced = _with(one, _shapes(originals), False).traced()
    fake = next((item for item in originals.values() if _is_fake(item)), None)
    made = []
    for tensor in traced.outputs:
        known = _given_back(tensor, originals)
        if known is None:
            shape, kind = list(tensor.shape), torch_type(tensor.dtype)
            if fake is None:
                known = torch.empty(shape, dtype=kind, device=device)
            else:
                with fake.fake_mode:
                    known = torch.empty(shape, dtype=kind, device=device)
        made.append(known)
    return traced, made


# -- autograd ------------------------------------------------------------------------------------------------
def _count_writes(traced: Traced, originals: dict[str, Any]) -> None:
    """Tell autograd which arguments changed, as every in-place operator does."""
    import torch

    for path in traced.updated.values():
        tensor = originals[path]
        if not isinstance(tensor, torch.Tensor):
            continue
        if torch.is_grad_enabled() and tensor.requires_grad:
            raise ConfigurationError(
                f"the kernel writes into argument '{path}', which requires a gradient",
                cure="pass .detach() of it, or call the kernel under torch.no_grad()",
            )
        if tensor.is_neg():
            raise UnsupportedError(
                f"the kernel writes into argument '{path}', a lazily negated view",
                cure="pass .resolve_neg() of it",
            )
        torch.autograd.graph.increment_version(tensor)


def _without_backward(kernel: str, inputs: list[Any], results: list[Any]) -> list[Any]:
    """The results as part of the graph, with a backward that says what is missing, instead of constants."""
    import torch

    class KernelWithoutBackward(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, *tensors: Any) -> Any:
            return tuple(result.view_as(result) for result in results)

        @staticmethod
        def backward(context: Any, *gradients: Any) -> Any:
            raise ConfigurationError(
                f"kernel {kernel} has no backward: it was called directly",
                cure='wrap it with @nki_op("namespace::name") and give that register_autograd, '
                "or call it under torch.no_grad()",
            )

    floats = [place for place, result in enumerate(results) if result.is_floating_point()]
    if not floats:
        return results
    differentiable = KernelWithoutBackward.apply(*inputs)
    return [differentiable[place] if place in floats else result for place, result in enumerate(results)]
