"""Storages: sharing, resizing, set_, and what out= does to a tensor that is too small."""

from __future__ import annotations

import itertools

import pytest
import torch
from device_helpers import NEURON, same


def test_storage_is_on_the_device_and_shared() -> None:
    base = torch.arange(10.0, device=NEURON)
    storage = base.untyped_storage()
    assert storage.device == torch.device("neuron:0") and storage.nbytes() == 40
    assert base[2:5].untyped_storage().data_ptr() == storage.data_ptr()
    window = torch.empty(0, device=NEURON).set_(storage, 2, (3,), (1,))
    base[2] = 77
    assert window[0].item() == 77
    storage.fill_(0)
    assert base.sum().item() == 0
    storage.copy_(torch.arange(10.0).untyped_storage())
    same(base, torch.arange(10.0))
    assert storage.clone().device.type == NEURON and storage.cpu().device.type == "cpu"


def test_storage_bytes_are_readable() -> None:
    storage = torch.UntypedStorage(8, device=NEURON)
    storage.fill_(1)
    storage[0] = 3
    assert storage.tolist() == [3] + [1] * 7


def test_storage_resize_keeps_bytes_and_gives_memory_back(clean_memory: None) -> None:
    base = torch.arange(1024.0, device=NEURON)
    storage = base.untyped_storage()
    storage.resize_(8192)
    same(torch.empty(0, device=NEURON).set_(storage)[:1024], torch.arange(1024.0))
    held = torch.neuron.memory_allocated()
    storage.resize_(0)  # what sharded training does to a parameter between uses
    assert held - torch.neuron.memory_allocated() == 8192 and base.shape == (1024,)
    storage.resize_(4096)
    base.fill_(3)
    same(base, torch.full((1024,), 3.0))


def test_resize_grows_in_place_and_keeps_values() -> None:
    tensor = torch.arange(6.0, device=NEURON)
    view = tensor[:2]
    tensor.resize_(3, 4)
    same(tensor.flatten()[:6], torch.arange(6.0))
    tensor[0, 0] = 9
    assert view[0].item() == 9  # one storage still
    tensor.resize_(2)
    assert tensor.tolist() == [9, 1]
    image = torch.empty(0, device=NEURON).resize_(2, 3, 4, 4, memory_format=torch.channels_last)
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert torch.empty(0, device=NEURON).resize_as_(image).shape == image.shape


OUT_OPERATORS = {
    "add": lambda x, out: torch.add(x, 1, out=out),
    "matmul": lambda x, out: torch.matmul(x, x, out=out),
    "cat": lambda x, out: torch.cat([x, x], out=out),
    "sum": lambda x, out: torch.sum(x, 0, out=out),
    "clone through abs": lambda x, out: torch.abs(x, out=out),
    "index_select": lambda x, out: torch.index_select(x, 0, torch.tensor([1, 0], device=x.device), out=out),
    "eye": lambda x, out: torch.eye(3, out=out),
    "arange": lambda x, out: torch.arange(5, out=out),
    "linspace": lambda x, out: torch.linspace(0, 1, 7, out=out),
    "where": lambda x, out: torch.where(x > 0, x, x * 2, out=out),
    "stack": lambda x, out: torch.stack([x, x], out=out),
    "triu": lambda x, out: torch.triu(x, out=out),
    "inverse": lambda x, out: torch.inverse(x + 9 * torch.eye(3, device=x.device), out=out),
}


@pytest.mark.parametrize("name", OUT_OPERATORS)
def test_out_of_no_elements_is_resized(name: str) -> None:
    host = torch.randn(3, 3)
    found, wanted = torch.empty(0, device=NEURON), torch.empty(0)
    returned = OUT_OPERATORS[name](host.to(NEURON), found)
    OUT_OPERATORS[name](host, wanted)
    assert returned is found
    same(found, wanted, rtol=1e-6, atol=1e-6)
    same(found + 1, wanted + 1, rtol=1e-6, atol=1e-6)


def test_out_resizes_a_view_inside_its_storage() -> None:
    big = torch.zeros(20, device=NEURON)
    window = big[4:4]
    torch.add(torch.ones(3, device=NEURON), 1, out=window)
    same(big[4:7], torch.full((3,), 2.0))
    assert window.data_ptr() == big.data_ptr() + 16 and big.sum().item() == 6


def test_several_outputs_are_resized() -> None:
    values, indices = torch.empty(0, device=NEURON), torch.empty(0, dtype=torch.long, device=NEURON)
    data = torch.tensor([3.0, 1.0, 2.0])
    torch.sort(data.to(NEURON), out=(values, indices))
    same((values, indices), tuple(torch.sort(data)))
    values.resize_(0), indices.resize_(0)
    torch.topk(data.to(NEURON), 2, out=(values, indices))
    same((values, indices), tuple(torch.topk(data, 2)))


def test_set_and_data() -> None:
    a, b = torch.ones(3, device=NEURON), torch.zeros(2, 2, device=NEURON)
    a.set_(b)
    assert a.is_set_to(b) and a.shape == (2, 2)
    a.set_()
    assert a.numel() == 0
    a.data = b
    a.fill_(4)
    assert b.sum().item() == 16
    with pytest.raises(RuntimeError, match="storage"):
        torch.empty(0, device=NEURON).set_(torch.ones(4).untyped_storage())


def test_no_storage_outlives_its_tensors(clean_memory: None) -> None:
    before = torch.neuron.memory_allocated()
    base = torch.ones(1 << 16, device=NEURON)
    view = base[:1]
    del base
    assert torch.neuron.memory_allocated() - before == 1 << 18  # the view holds the storage
    del view
    assert torch.neuron.memory_allocated() == before


def test_addresses_do_not_overlap(clean_memory: None) -> None:
    tensors = [
        torch.empty(size, dtype=torch.uint8, device=NEURON)
        for size in (1, 255, 256, 257, 5000, 1 << 20, 3 << 20)
    ]
    spans = sorted((t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in tensors)
    for (start, size), (following, _) in itertools.pairwise(spans):
        assert start + size <= following
    blocks = [
        (block["address"], block["size"])
        for segment in torch.neuron.memory_snapshot()
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    assert len(blocks) >= len(tensors)
    for (start, size), (following, _) in zip(sorted(blocks), sorted(blocks)[1:], strict=False):
        assert start + size <= following


def test_a_tensor_is_read_as_it_is_now() -> None:
    """An operator's view of its argument is kept for the next operator, which may see another geometry."""
    values = torch.arange(12.0).reshape(3, 4)
    tensor = values.to(NEURON)
    same(tensor + 0, values)
    same(tensor.t() + 0, values.t())
    tensor.t_()
    same(tensor + 0, values.t())
    tensor.resize_(2, 2)
    same(tensor + 0, torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
    tensor.set_(torch.full((5,), 7.0, device=NEURON))
    same(tensor + 0, torch.full((5,), 7.0))
    with torch.inference_mode():
        same(tensor + 1, torch.full((5,), 8.0))
    same(tensor.mul_(2) + 0, torch.full((5,), 14.0))


def test_complex_views_of_one_tensor() -> None:
    values = torch.tensor([1 + 2j, 3 - 4j])
    tensor = values.to(NEURON)
    for _ in range(2):
        same(tensor + 0, values + 0)
        same(tensor.conj() + 0, values.conj() + 0)
        same(tensor.conj().imag + 0, values.conj().imag + 0)


def test_a_kernel_may_keep_its_argument() -> None:
    """What a custom operator stores is its own: later operators on the device tensor leave it alone."""
    kept: list[torch.Tensor] = []

    @torch.library.custom_op("opentrn_tests::keep", mutates_args=(), device_types="cpu")
    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor + 1

    tensor = torch.zeros(4, device=NEURON)
    same(keep(tensor), torch.ones(4))
    kept[0].resize_(2)
    same(tensor + 0, torch.zeros(4))
    same(keep(tensor), torch.ones(4))
    assert kept[0] is not kept[1] and kept[0].shape == (2,) and kept[1].shape == (4,)
