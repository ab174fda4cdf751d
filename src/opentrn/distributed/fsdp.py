"""FSDP with tensors of a dry run (torch 2.13).

FSDP2 and FSDP1 tell whether a parameter moved by comparing addresses of its storage. Unbacked tensors have
one too, in the device's address space; only reading bytes at it is refused.

FSDP1 makes the views of its flat parameter on the stream that gathers it. Their backward would run there, and
between streams autograd asks for the bytes of a gradient. Views take no time, so they may be made on the
default stream.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from opentrn.device import _C
from opentrn.device.replaced import Replacements


@contextlib.contextmanager
def unbacked_parameters() -> Iterator[None]:
    """Inside, FSDP works on unbacked parameters."""
    with Replacements() as changes:
        for module, path, context in _RUN_INSIDE:
            owner: Any = importlib.import_module(f"torch.distributed.fsdp.{module}")
            *outer, name = path.split(".")
            for part in outer:
                owner = getattr(owner, part)
            changes.replace(owner, name, _inside(context, getattr(owner, name)))
        yield


_Context = Callable[[], contextlib.AbstractContextManager[Any]]


def _inside(context: _Context, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with context():
            return function(*args, **kwargs)

    return run


def _default_stream() -> contextlib.AbstractContextManager[Any]:
    return torch.neuron.stream(torch.neuron.default_stream())


@contextlib.contextmanager
def _addresses() -> Iterator[None]:
    """Inside, data_ptr of what has no bytes is its address on the device."""
    storage_address, tensor_address = torch.UntypedStorage.data_ptr, torch.Tensor.data_ptr

    def of_storage(storage: torch.UntypedStorage) -> int:
        address = _C.unbacked_address(storage)
        return storage_address(storage) if address is None else address

    def of_tensor(tensor: torch.Tensor) -> int:
        address = _C.unbacked_address(tensor.untyped_storage())
        offset = tensor.storage_offset() * tensor.element_size()
        return tensor_address(tensor) if address is None else address + offset

    with Replacements() as changes:
        changes.replace(torch.UntypedStorage, "data_ptr", of_storage)
        changes.replace(torch.Tensor, "data_ptr", of_tensor)
        yield


# Module of torch.distributed.fsdp, a function of it, and the context that the function runs in.
_RUN_INSIDE: tuple[tuple[str, str, _Context], ...] = (
    ("_fully_shard._fsdp_param", "FSDPParam.reset_sharded_param", _addresses),
    ("_flat_param", "_same_storage", _addresses),
    ("_flat_param", "_data_ptr_allocated", _addresses),
    ("_flat_param", "FlatParamHandle._use_unsharded_views", _default_stream),
    ("_runtime_utils", "_catch_all_reshard", _addresses),
)
