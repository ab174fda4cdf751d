"""Kernel arguments and results: host arrays in, `NkiTensor`s in the kernel, host arrays out."""

from __future__ import annotations

import copy
import dataclasses
import enum
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from opentrn.errors import UnsupportedError
from opentrn.nki.dtypes import ITEMSIZE, TABLE, name_of
from opentrn.nki.tensor import NKIObject, NkiTensor

_HOST_TYPE = {entry.name: entry.numpy for entry in TABLE.values()}


def is_array(value: Any) -> bool:
    """A NumPy array or a torch tensor."""
    return isinstance(value, np.ndarray) or (
        type(value).__module__.startswith("torch") and hasattr(value, "data_ptr")
    )


def to_numpy(value: Any) -> np.ndarray:
    """The host array of an argument. Torch tensors share their memory, whatever their strides."""
    if isinstance(value, np.ndarray):
        return value
    import torch

    value = value.detach().resolve_conj().resolve_neg()
    if value.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu):
        raw = value.view(torch.int16 if value.dtype is torch.bfloat16 else torch.int8).numpy()
        return raw.view(_HOST_TYPE[name_of(value.dtype)])
    return value.numpy()


def torch_type(name: str) -> Any:
    """The torch type of an NKI data type. Raises UnsupportedError where PyTorch has none."""
    import torch

    kind = getattr(torch, "float32" if name == "tfloat32" else name, None)
    if not isinstance(kind, torch.dtype):
        raise UnsupportedError(
            f"a kernel's result has data type {name!r}, which PyTorch lacks",
            cure="return a view of another type, e.g. .view(nl.uint8), or call the kernel on NumPy arrays",
        )
    return kind


def like_torch(array: np.ndarray) -> Any:
    """A torch tensor with the values and the data type of an array, sharing its memory."""
    import torch

    kind = torch_type(name_of(array.dtype))
    array = np.ascontiguousarray(array)
    if kind.is_floating_point and kind not in (torch.float32, torch.float16):
        words = {1: np.int8, 2: np.int16}[kind.itemsize]
        return torch.from_numpy(array.view(words)).view(kind)
    return torch.from_numpy(array)


def rebuild(value: Any, path: str, convert: Callable[[str, Any], Any]) -> Any:
    """`value` with every array in it replaced by ``convert(path, array)``; containers are copied."""
    if is_array(value):
        return convert(path, value)
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple):
        return type(value)(rebuild(item, f"{path}_{place}", convert) for place, item in enumerate(value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(rebuild(item, f"{path}_{place}", convert) for place, item in enumerate(value)))
    if type(value) is dict:
        return {key: rebuild(item, f"{path}_{key}", convert) for key, item in value.items()}
    if _holds_arrays(value):
        result = copy.copy(value)
        for name, item in vars(value).items():
            object.__setattr__(result, name, rebuild(item, f"{path}_{name}", convert))
        return result
    return value


def _holds_arrays(value: Any) -> bool:
    if not (isinstance(value, NKIObject) or dataclasses.is_dataclass(value)) or isinstance(value, type):
        return False
    fields = getattr(value, "__dict__", None)
    if not fields:
        return False
    return any(
        is_array(item) or isinstance(item, (list, tuple, dict)) or _holds_arrays(item)
        for item in fields.values()
    )


class NotCacheable(Exception):
    """An argument whose identity says nothing about its contents."""


def freeze(value: Any) -> Any:
    """A hashable stand-in: equal for arguments that give the same program. Raises NotCacheable."""
    if value is None or isinstance(value, (bool, int, float, str, bytes, enum.Enum, type)):
        return (type(value), value)
    if is_array(value):
        return ("array", tuple(value.shape), name_of(value.dtype))
    if isinstance(value, (list, tuple)):
        return (type(value), tuple(freeze(item) for item in value))
    if isinstance(value, dict):
        return (dict, tuple((key, freeze(item)) for key, item in value.items()))
    if isinstance(value, np.generic):
        return ("number", value.item())
    if isinstance(value, np.dtype):
        return ("dtype", str(value))
    if isinstance(value, types.FunctionType):
        return ("function", value)
    if isinstance(value, NKIObject) or dataclasses.is_dataclass(value):
        fields = getattr(value, "__dict__", None)
        if fields is not None:
            return (type(value), tuple((name, freeze(item)) for name, item in fields.items()))
    raise NotCacheable(type(value).__name__)


def flatten_result(value: Any) -> list[NkiTensor]:
    """All tensors of a kernel's result, in order."""
    if value is None:
        return []
    if isinstance(value, NkiTensor):
        return [value]
    inner = getattr(value, "as_nki_tensor", None)
    if inner is not None:
        return [inner()]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in flatten_result(item)]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in flatten_result(item)]
    raise UnsupportedError(
        f"a kernel returned {type(value).__name__}; it can return tensors of shared_hbm only"
    )


def restore_result(value: Any, arrays: list[np.ndarray]) -> Any:
    """The result again, with arrays (taken from the front of the list) in place of tensors."""
    if value is None:
        return None
    if isinstance(value, NkiTensor) or hasattr(value, "as_nki_tensor"):
        return arrays.pop(0)
    if isinstance(value, dict):
        return {key: restore_result(item, arrays) for key, item in value.items()}
    items = [restore_result(item, arrays) for item in value]
    return items if isinstance(value, list) else tuple(items)


def view_of(base: np.ndarray, tensor: NkiTensor) -> np.ndarray:
    """The host array of a view, given the array of its whole storage."""
    if tensor.whole and tensor.dtype == tensor._storage.dtype:
        return base.reshape(tensor.shape)
    host = _HOST_TYPE[tensor.dtype]
    size = ITEMSIZE[tensor.dtype]
    flat = np.ascontiguousarray(base).reshape(-1).view(np.uint8).view(f"<u{size}")
    strided = np.lib.stride_tricks.as_strided(
        flat[int(tensor.offset) :],
        tensor.shape,
        tuple(step * size for step in tensor._steps),
    )
    return np.ascontiguousarray(strided).view(host)


def host_array(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array as the core returns it, with the host type of its NKI type (packed words get their name)."""
    host = _HOST_TYPE[dtype]
    return array if array.dtype == host else np.ascontiguousarray(array).view(host)
