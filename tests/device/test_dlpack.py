"""DLPack: the same memory under another framework's name, owned until the last holder lets go."""

from __future__ import annotations

import gc

import pytest
import torch
from device_helpers import NEURON, same
from torch.utils.dlpack import DLDeviceType


def test_device_and_sharing() -> None:
    tensor = torch.arange(6.0, device=NEURON).view(2, 3)
    assert tensor.__dlpack_device__() == (DLDeviceType.kDLExtDev, 0)
    assert torch.ones(1, device="neuron:2").__dlpack_device__()[1] == 2
    other = torch.from_dlpack(tensor)
    assert other.device == tensor.device and other.data_ptr() == tensor.data_ptr()
    other[0, 0] = 9
    assert tensor[0, 0].item() == 9
    same(other @ other.T, tensor @ tensor.T)


def test_strides_offset_and_index() -> None:
    tensor = torch.arange(20.0, device="neuron:1").view(4, 5)[1:, ::2].t()
    other = torch.from_dlpack(tensor)
    assert other.stride() == tensor.stride() and other.device.index == 1
    same(other, tensor)
    same(torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(tensor)), tensor)


def test_exported_memory_lives_as_long_as_it_is_held(clean_memory: None) -> None:
    before = torch.neuron.memory_allocated()
    tensor = torch.arange(1024.0, device=NEURON)
    other = torch.from_dlpack(tensor)
    del tensor
    gc.collect()
    same(other * 2, torch.arange(1024.0) * 2)
    assert torch.neuron.memory_allocated() - before == 4096
    del other
    gc.collect()
    assert torch.neuron.memory_allocated() == before


def test_to_the_host() -> None:
    same(torch.from_dlpack(torch.arange(3.0, device=NEURON), device="cpu"), torch.arange(3.0))


def test_what_cannot_be_exported() -> None:
    with pytest.raises(BufferError, match="require gradient"):
        torch.from_dlpack(torch.ones(3, device=NEURON, requires_grad=True))
    numpy = pytest.importorskip("numpy")
    with pytest.raises((RuntimeError, BufferError, TypeError), match=r"(?i)device"):
        numpy.from_dlpack(torch.ones(3, device=NEURON))
    foreign = torch.from_dlpack(torch.ones(3, device=NEURON))
    with pytest.raises(RuntimeError, match="resiz"):
        foreign.resize_(100)
