"""Tensors, storages and generators as a CUDA script sees them.

The script and its libraries see devices of type cuda (`x.device`, `x.is_cuda`, `x.type()`); PyTorch's own
Python and ours see the device as it is, so that no CUDA-only route of theirs is taken. The one test is whose
module asks.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from opentrn.port.cuda_devices import called_by_library, to_cuda, to_neuron
from opentrn.port.redirections import LEDGER

# Type name of torch.cuda → dtype.
TENSOR_TYPES: dict[str, torch.dtype] = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}
_NAMES = {dtype: name for name, dtype in TENSOR_TYPES.items()}

_device_of = torch._C.TensorBase.device.__get__
_is_cuda_of = torch._C.TensorBase.is_cuda.__get__  # type: ignore[attr-defined]
_SHOWN = {torch.device("neuron", index): torch.device("cuda", index) for index in range(127)}

# A module of torch whose public answer is is_cuda itself.
_ASKS_FOR_THE_SCRIPT = frozenset({"torch.nn.utils.rnn"})


def _device(self: torch.Tensor) -> torch.device:
    device = _device_of(self)
    shown = _SHOWN.get(device)
    return device if shown is None or called_by_library() else shown


def _is_cuda(self: torch.Tensor) -> bool:
    if _device_of(self) not in _SHOWN:
        return _is_cuda_of(self)
    return not called_by_library() or sys._getframe(1).f_globals.get("__name__") in _ASKS_FOR_THE_SCRIPT


def _cuda(
    self: torch.Tensor,
    device: Any = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> torch.Tensor:
    """As Tensor.cuda: without a device, a tensor that is on one stays there."""
    LEDGER.note("Tensor.cuda", "Tensor.neuron")
    if device is None:
        if _device_of(self) in _SHOWN:
            return self
        device = "neuron"
    elif isinstance(device, int):
        device = torch.device("neuron", device)
    target = torch.device(to_neuron(device))
    if target.type != "neuron":
        raise RuntimeError(f"Invalid device, must be cuda device, not {target}")
    return self.to(target, non_blocking=non_blocking, memory_format=memory_format)


class _TensorType(type):
    """torch.cuda.FloatTensor and its kin: they test and make neuron tensors of one dtype."""

    dtype: torch.dtype

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.dtype == cls.dtype and value.device.type == "neuron"

    def __call__(cls, *args: Any, device: Any = None) -> torch.Tensor:
        """Sizes make an uninitialised tensor, a sequence or tensor a copy of its values."""
        LEDGER.note(f"torch.cuda.{cls.__name__}", "a tensor on neuron")
        place = "neuron" if device is None else to_neuron(device)
        sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args
        if all(isinstance(size, int) for size in sizes):
            return torch.empty(tuple(sizes) if sizes else 0, dtype=cls.dtype, device=place)
        return torch.tensor(args[0], dtype=cls.dtype, device=place)

    def __repr__(cls) -> str:
        return f"<class 'torch.cuda.{cls.__name__}'>"


def _tensor_type(name: str, dtype: torch.dtype) -> _TensorType:
    return _TensorType(name, (), {"dtype": dtype, "is_cuda": True, "__module__": "torch.cuda"})


_tensor_type_of = torch.Tensor.type


def _cuda_type(value: Any) -> str | None:
    """ "FloatTensor" where `value` is a tensor type of torch.cuda or its name."""
    if isinstance(value, _TensorType):
        return value.__name__
    if isinstance(value, str) and value.startswith("torch.cuda."):
        return value.removeprefix("torch.cuda.")
    return None


def _type(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    if dtype is None:
        if _device_of(self) in _SHOWN and self.dtype in _NAMES and not called_by_library():
            return f"torch.cuda.{_NAMES[self.dtype]}"
        return _tensor_type_of(self)
    name = _cuda_type(dtype)
    if name is None:
        return _tensor_type_of(self, dtype, non_blocking, **kwargs)
    return self.to(device="neuron", dtype=TENSOR_TYPES[name], non_blocking=non_blocking)


_set_default_tensor_type = torch.set_default_tensor_type


def _set_default_type(kind: Any) -> None:
    name = _cuda_type(kind)
    if name is None:
        if not isinstance(kind, torch.dtype):
            torch.set_default_device(None)
        _set_default_tensor_type(kind)
        return
    LEDGER.note("torch.set_default_tensor_type", "torch.set_default_device('neuron')")
    torch.set_default_dtype(TENSOR_TYPES[name])
    torch.set_default_device("cuda")


_pin_memory, _is_pinned = torch.Tensor.pin_memory, torch.Tensor.is_pinned


def _pin(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    return _pin_memory(self) if device is None else _pin_memory(self, to_neuron(device))


def _pinned(self: torch.Tensor, device: Any = None) -> bool:
    return _is_pinned(self) if device is None else _is_pinned(self, to_neuron(device))


class _GeneratorType(type):
    """torch.Generator with its device translated. Generators that torch makes are instances too."""

    def __instancecheck__(cls, value: Any) -> bool:
        return type.__instancecheck__(torch._C.Generator, value)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, torch._C.Generator)

    def __call__(cls, device: Any = "cpu") -> torch._C.Generator:
        if str(device).startswith("cuda"):
            LEDGER.note("torch.Generator('cuda')", "a neuron generator (random values differ from a GPU's)")
        return torch._C.Generator(to_neuron(device))


def _generator() -> type:
    return _GeneratorType("Generator", (), {"__module__": "torch", "__doc__": torch._C.Generator.__doc__})


def _restore(storage: Any, location: str) -> Any:
    """torch.load: storages of a CUDA checkpoint."""
    if location != "cuda" and not location.startswith("cuda:"):
        return None
    LEDGER.note("torch.load(map_location='cuda')", "neuron")
    return torch.serialization._deserialize("neuron", storage, str(to_neuron(location)))


def _tag(storage: Any) -> str | None:
    """torch.save: the checkpoint is the one that the script writes on a GPU."""
    return str(to_cuda(storage.device)) if storage.device.type == "neuron" else None


def _new_storage(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> Any:
    if device is not None:
        kwargs["device"] = to_neuron(device)
    return torch._C.StorageBase.__new__(cls, *args, **kwargs)


def install() -> None:
    """Patches torch.Tensor, torch.Generator, the tensor types and the checkpoint locations."""
    torch.Tensor.device = property(_device)  # type: ignore[assignment,method-assign]
    torch.Tensor.is_cuda = property(_is_cuda)  # type: ignore[assignment,method-assign]
    torch.Tensor.cuda = _cuda  # type: ignore[assignment,method-assign]
    torch.Tensor.type = _type  # type: ignore[assignment,method-assign]
    torch.Tensor.pin_memory = _pin  # type: ignore[assignment,method-assign]
    torch.Tensor.is_pinned = _pinned  # type: ignore[assignment,method-assign]
    torch.UntypedStorage.__new__ = _new_storage  # type: ignore[method-assign,assignment]
    torch.Generator = _generator()  # type: ignore[misc,assignment]
    torch.set_default_tensor_type = _set_default_type
    for name, dtype in TENSOR_TYPES.items():
        setattr(torch.cuda, name, _tensor_type(name, dtype))
    # Before PyTorch's own entry for cuda, whose number is 20.
    torch.serialization.register_package(15, _tag, _restore)
