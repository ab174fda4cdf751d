"""Copies between host and devices: layouts, types, pinned memory, who waits for whom."""

from __future__ import annotations

import copy
import ctypes

import pytest
import torch
from device_helpers import NEURON, same

LAYOUTS = {
    "contiguous": lambda: torch.randn(4, 5),
    "transposed": lambda: torch.randn(5, 4).t(),
    "sliced": lambda: torch.randn(8, 10)[::2, 1::2],
    "expanded": lambda: torch.randn(4, 1).expand(4, 5),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "offset": lambda: torch.randn(40)[7:27].view(4, 5),
    "zero-dimensional": lambda: torch.tensor(3.0),
    "empty": lambda: torch.empty(0, 5),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_round_trip(layout: str) -> None:
    host = LAYOUTS[layout]()
    device = host.to(NEURON)
    same(device, host)
    same(device.cpu(), host)
    assert device.stride() == host.to("cpu", copy=True).stride()
    same(device.to("neuron:1"), host)


@pytest.mark.parametrize(
    "source", ["contiguous", "transposed", "sliced", "expanded", "offset", "zero-dimensional"]
)
@pytest.mark.parametrize("target", ["contiguous", "transposed", "sliced", "offset"])
def test_copy_into_another_layout(source: str, target: str) -> None:
    value, place = LAYOUTS[source](), LAYOUTS[target]()
    for from_device, to_device in (
        (NEURON, NEURON),
        ("cpu", NEURON),
        (NEURON, "cpu"),
        ("neuron:0", "neuron:1"),
    ):
        whole = torch.zeros(80)
        wanted = whole.clone().as_strided(place.shape, place.stride(), 1).copy_(value)
        moved = whole.to(to_device).as_strided(place.shape, place.stride(), 1)
        same(moved.copy_(value.to(from_device)), wanted)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.bool, torch.complex64]
)
def test_copy_converts(dtype: torch.dtype) -> None:
    host = torch.tensor([0.0, 1.5, -2.25, 100.0])
    same(host.to(NEURON, dtype), host.to(dtype))
    same(host.to(NEURON).to(dtype), host.to(dtype))
    same(host.to(NEURON).to("cpu", dtype), host.to(dtype))
    same(torch.empty(4, dtype=dtype, device=NEURON).copy_(host), host.to(dtype))
    same(torch.empty(4, dtype=dtype).copy_(host.to(NEURON)), host.to(dtype))


def test_to_returns_itself_where_nothing_changes() -> None:
    tensor = torch.ones(2, device=NEURON)
    assert tensor.to(NEURON) is tensor and tensor.to("neuron:0") is tensor and tensor.neuron() is tensor
    assert tensor.to(NEURON, copy=True) is not tensor and tensor.to("neuron:1").device.index == 1


def test_broadcast_copy_between_devices() -> None:
    target = torch.empty(3, 4, device="neuron:2")
    target.copy_(torch.arange(4.0))
    same(target, torch.arange(4.0).expand(3, 4))
    target.copy_(torch.arange(3.0, device="neuron:1").view(3, 1))
    same(target, torch.arange(3.0).view(3, 1).expand(3, 4))


def test_copy_keeps_gradients() -> None:
    leaf = torch.randn(3, requires_grad=True)
    (leaf.to(NEURON).to("neuron:1").cpu() * 2).sum().backward()
    same(leaf.grad, torch.full((3,), 2.0))


def test_pinned_memory() -> None:
    pinned = torch.randn(4).pin_memory()
    assert pinned.is_pinned() and pinned[1:].is_pinned() and not torch.randn(4).is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned() and torch.zeros(2, 2, pin_memory=True).is_pinned()
    assert pinned.pin_memory() is pinned
    same(pinned.to(NEURON, non_blocking=True), pinned)
    back = torch.empty(4, pin_memory=True)
    back.copy_(pinned.to(NEURON), non_blocking=True)
    torch.neuron.synchronize()
    same(back, pinned)
    assert not torch.ones(2, device=NEURON).is_pinned()
    with pytest.raises(RuntimeError, match=r"CPU tensors can be pinned|cannot pin"):
        torch.ones(2, device=NEURON).pin_memory()


def test_freed_pinned_memory_is_not_pinned() -> None:
    size = 1 << 20
    address = torch.empty(size, dtype=torch.uint8, pin_memory=True).data_ptr()
    # Never read: only the address is asked about.
    assert not torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.uint8).is_pinned()


def test_blocking_copies_wait_in_virtual_time() -> None:
    big = torch.ones(2048, 2048, device=NEURON)
    torch.neuron.synchronize()
    stream = torch.neuron.current_stream()
    product = big @ big
    assert not stream.query()  # the host ran ahead
    product[0, 0].item()
    assert stream.query()


def test_deepcopy() -> None:
    parameter = torch.nn.Parameter(torch.ones(3, device=NEURON))
    copied = copy.deepcopy(parameter)
    copied.data.zero_()
    assert copied.is_neuron and copied.requires_grad and parameter.sum().item() == 3
    shared = torch.arange(4.0, device=NEURON)
    first, second = copy.deepcopy([shared, shared[1:3]])
    first[1] = 50
    assert second[0].item() == 50 and shared[1].item() == 1


def test_host_arithmetic_refuses_to_guess_the_device() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3).add_(torch.ones(3, device=NEURON))
    same(torch.ones(3, device=NEURON) * torch.tensor(2.0), torch.full((3,), 2.0))
    same(torch.tensor(2.0) * torch.ones(3, device=NEURON), torch.full((3,), 2.0))
