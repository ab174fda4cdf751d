"""FSDP2 with tensors of a dry run (torch 2.13).

It tells whether a parameter moved by comparing storage addresses (`FSDPParam.reset_sharded_param`). Unbacked
tensors have one too, in the device's address space; only reading bytes at it is refused. And it frees
parameters by `storage.resize_(0)`, whose Python form asks for the bytes first; the operator form does not.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch

from opentrn.device import _C


@contextlib.contextmanager
def unbacked_parameters() -> Iterator[None]:
    """Inside, FSDP2 works on unbacked parameters."""
    module: Any = importlib.import_module("torch.distributed.fsdp._fully_shard._fsdp_param")
    owner = module.FSDPParam
    storages = module.alloc_storage, module.free_storage
    module.alloc_storage, module.free_storage = _allocate, _free
    original = owner.reset_sharded_param

    def reset_sharded_param(parameter: Any) -> Any:
        info = parameter._module_info
        local = getattr(getattr(info.module, info.param_name), "_local_tensor", None)
        known = [
            t
            for t in (parameter._sharded_param_data, local)
            if type(t) is torch.Tensor and not _C.is_backed(t)
        ]
        with _addresses({t.untyped_storage()._cdata: _storage_address(t) for t in known}):
            return original(parameter)

    owner.reset_sharded_param = reset_sharded_param
    try:
        yield
    finally:
        owner.reset_sharded_param = original
        module.alloc_storage, module.free_storage = storages


def _allocate(tensor: torch.Tensor) -> None:
    _resize(tensor, tensor.numel() * tensor.itemsize)


def _free(tensor: torch.Tensor) -> None:
    _resize(tensor, 0)


def _resize(tensor: torch.Tensor, size: int) -> None:
    if tensor.untyped_storage().size() != size:
        torch.ops.inductor.resize_storage_bytes_(tensor, size)


def _storage_address(tensor: torch.Tensor) -> int:
    return _C.device_address(tensor) - tensor.storage_offset() * tensor.element_size()


@contextlib.contextmanager
def _addresses(known: dict[int, int]) -> Iterator[None]:
    """known: storage → its address on the device."""
    original = torch.UntypedStorage.data_ptr

    def data_ptr(storage: torch.UntypedStorage) -> int:
        address = known.get(storage._cdata)
        return original(storage) if address is None else address

    torch.UntypedStorage.data_ptr = data_ptr  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.UntypedStorage.data_ptr = original  # type: ignore[method-assign]
