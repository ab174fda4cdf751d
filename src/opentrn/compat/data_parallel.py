"""nn.DataParallel and torch.nn.parallel.comm copy between devices with functions that only PyTorch's CUDA
builds have (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch


def copy_between_devices(module: ModuleType) -> None:
    """module: torch.nn.parallel.comm. Gives torch._C what it lacks; PyTorch's own checks stay in front."""
    for function in _FUNCTIONS:
        if not hasattr(torch._C, function.__name__):
            setattr(torch._C, function.__name__, function)


def _place(index: int) -> torch.device:
    return torch.device("neuron", index)


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    return [tensor.to(_place(index)) for index in devices]


def _broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [copy if copy is tensor else copy.copy_(tensor) for copy in out]


def _broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    return [[tensor.to(_place(index)) for tensor in tensors] for index in devices]


def _scatter(
    tensor: torch.Tensor, devices: Sequence[int], chunk_sizes: Sequence[int] | None, dim: int, streams: Any
) -> list[torch.Tensor]:
    pieces = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(list(chunk_sizes), dim)
    return [piece.to(_place(index)) for piece, index in zip(pieces, devices, strict=False)]


def _scatter_out(
    tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int, streams: Any
) -> list[torch.Tensor]:
    pieces = tensor.split([piece.shape[dim] for piece in out], dim)
    return [target.copy_(piece) for target, piece in zip(out, pieces, strict=True)]


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
    index = torch.accelerator.current_device_index() if destination is None else destination
    place = torch.device("cpu") if index == -1 else _place(index)
    return torch.cat([tensor.to(place) for tensor in tensors], dim)


def _gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.cat([tensor.to(out.device) for tensor in tensors], dim, out=out)


_FUNCTIONS = (
    _broadcast,
    _broadcast_out,
    _broadcast_coalesced,
    _scatter,
    _scatter_out,
    _gather,
    _gather_out,
)
