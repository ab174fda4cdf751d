"""Views are views: strides, aliasing, conjugate and negative bits, in-place writes through any of them."""

from __future__ import annotations

import pytest
import torch
from device_helpers import NEURON, agrees, on_device, same

VIEWS = {
    "transpose": lambda t: t.transpose(0, 2),
    "permute": lambda t: t.permute(2, 0, 1),
    "slice": lambda t: t[:, 1::2],
    "negative slice": lambda t: t[-1:, :, -2:],
    "select": lambda t: t.select(1, 1),
    "narrow": lambda t: t.narrow(2, 1, 2),
    "unfold": lambda t: t.unfold(2, 2, 1),
    "expand": lambda t: t[:, :1].expand(2, 5, 4),
    "diagonal": lambda t: t.diagonal(0, 1, 2),
    "squeeze": lambda t: t[:1].squeeze(0),
    "unsqueeze": lambda t: t.unsqueeze(1),
    "view": lambda t: t.view(6, 4),
    "flatten": lambda t: t.flatten(1),
    "reshape of a view": lambda t: t.transpose(0, 1).reshape(3, 8),
    "as_strided": lambda t: t.as_strided((2, 3), (1, 4), 2),
    "view_as": lambda t: t.view_as(torch.empty(4, 6)),
    "movedim": lambda t: t.movedim(0, -1),
    "swapaxes": lambda t: t.swapaxes(0, 1),
    "unflatten": lambda t: t.unflatten(2, (2, 2)),
    "index with None": lambda t: t[None, ..., 0],
    "view dtype": lambda t: t.view(torch.int32),
    "split": lambda t: t.split(2, dim=1)[1],
    "chunk": lambda t: t.chunk(2, dim=2)[1],
    "unbind": lambda t: t.unbind(1)[2],
    "tensor_split": lambda t: t.tensor_split((1, 2), dim=1)[1],
    "mT": lambda t: t.mT,
    "broadcast_to": lambda t: t[:1].broadcast_to(5, 3, 4),
}


@pytest.mark.parametrize("name", VIEWS)
def test_view_has_the_geometry_of_cpu_and_shares_storage(name: str) -> None:
    host = torch.arange(24.0).view(2, 3, 4)
    device = host.to(NEURON)
    found, wanted = VIEWS[name](device), VIEWS[name](host)
    same(found, wanted)
    assert (found.stride(), found.storage_offset()) == (wanted.stride(), wanted.storage_offset())
    assert (found.untyped_storage().data_ptr() == device.untyped_storage().data_ptr()) == (
        wanted.untyped_storage().data_ptr() == host.untyped_storage().data_ptr()
    )
    assert found._is_view() == wanted._is_view()


@pytest.mark.parametrize("name", [name for name in VIEWS if name not in ("expand", "broadcast_to", "unfold")])
def test_writing_a_view_writes_the_base(name: str) -> None:
    host = torch.arange(24.0).view(2, 3, 4)
    device = host.to(NEURON)
    for base in (host, device):
        VIEWS[name](base).fill_(7)
    same(device, host)


def test_step_slice_assignment() -> None:
    host, device = torch.ones(4, 4), torch.ones(4, 4, device=NEURON)
    for base in (host, device):
        base[:, 0::2] = 2
        base[1::2, -1] += 5
        base[torch.tensor([0, 2])] *= 3
        base[base > 5] = -1
        base[0] = torch.arange(4.0)  # from the host
    same(device, host)


def test_pieces_alias_their_source() -> None:
    source = torch.arange(4.0, device=NEURON)
    first, second = source.split(2)
    elements = source.unbind()
    source[0] = -1
    assert first[0].item() == -1 and elements[0].item() == -1
    second.zero_()
    same(source, torch.tensor([-1.0, 1, 0, 0]))


def test_out_writes_where_the_view_points() -> None:
    base = torch.zeros(64, 128, device=NEURON)
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    torch.matmul(a.to(NEURON), b.to(NEURON), out=base[:, 32:96])
    same(base[:, 32:96], a @ b)
    assert base[:, :32].abs().sum().item() == 0 and base[:, 96:].abs().sum().item() == 0
    transposed = torch.empty(2, 2, device=NEURON).t()
    torch.neg(torch.arange(4.0, device=NEURON).view(2, 2), out=transposed)
    same(transposed, -torch.arange(4.0).view(2, 2))
    assert transposed.stride() == (1, 2)


def test_overlapping_writes_are_refused_as_on_cpu() -> None:
    expanded = torch.zeros(1, device=NEURON).expand(3)
    with pytest.raises(RuntimeError, match="single memory location"):
        expanded.add_(1)
    base = torch.zeros(5, device=NEURON)
    with pytest.raises(RuntimeError, match="memory location"):
        torch.add(base[1:], 1, out=base[:-1])


def test_conjugate_and_negative_bits() -> None:
    host = torch.randn(3, 4, dtype=torch.complex64)
    device = host.to(NEURON)
    assert device.conj().is_conj() and device.conj().imag.is_neg()
    for view in (
        torch.conj,
        lambda t: t.conj().imag,
        lambda t: t.conj().t(),
        torch.imag,
        torch.real,
        torch.view_as_real,
    ):
        agrees(view, host)
        same(view(device).clone(), view(host))
        same(view(device).contiguous(), view(host))
    agrees(lambda t: t.conj().t() @ t, host)
    same(host.conj().to(NEURON), host.conj())
    target = torch.empty(3, 4, dtype=torch.complex64, device=NEURON)
    target.conj().copy_(device)
    same(target, host.conj())
    device.conj().mul_(2)
    same(device, host * 2)


def test_negative_views_are_copied_both_ways() -> None:
    host = torch.randn(4, dtype=torch.complex64)
    device = host.to(NEURON)
    negative = device.conj().imag
    for target in (torch.empty(4, device=NEURON), torch.empty(4), torch.empty(4, device="neuron:1")):
        same(target.copy_(negative), -host.imag)
    negative.copy_(torch.ones(4))
    same(device.imag, -torch.ones(4))
    negative.copy_(torch.full((4,), 2.0, device=NEURON))
    same(device.imag, torch.full((4,), -2.0))


def test_gradient_through_views_and_in_place() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[:, 1::2].mul_(3)
        y.t()[0].add_(x[:, 0].detach())
        return (y.view(-1) * torch.arange(12.0, device=x.device)).sum()

    results = []
    for device in ("cpu", NEURON):
        leaf = torch.arange(12.0).view(3, 4).to(device).requires_grad_()
        run(leaf).backward()
        results.append(leaf.grad)
    same(results[1], results[0])


def test_tensor_lists() -> None:
    lists = [[torch.randn(2, 3), torch.randn(4).t(), torch.randn(3, 2).t()] for _ in range(2)]
    agrees(lambda a, b: torch._foreach_add(a, b), *lists)
    agrees(lambda a, b: torch._foreach_mul(a, 3.0), *lists)
    agrees(lambda a, _: torch._foreach_norm(a), *lists)
    agrees(lambda a, _: torch.cat([t.flatten() for t in a]), *lists)
    agrees(lambda a, _: torch.nn.utils.parameters_to_vector(a), [torch.randn(2, 2), torch.randn(3)], [])
    moved = on_device(lists[0])
    addresses = [tensor.data_ptr() for tensor in moved]
    torch._foreach_mul_(moved, 2.0)
    torch._foreach_copy_(moved, lists[1])
    same(moved, lists[1])
    assert addresses == [tensor.data_ptr() for tensor in moved]


def test_flat_gradient_buckets_and_their_views() -> None:
    flat = torch.zeros(12, device=NEURON)
    views = [flat[:6].view(2, 3), flat[6:].view(3, 2).t()]
    for view in views:
        view.add_(torch.ones(2, 3, device=NEURON))
    flat.mul_(4).div_(2)
    torch._foreach_mul_(views, 3.0)
    same(flat, torch.full((12,), 6.0))
    # And back out of the bucket, as data-parallel wrappers do it.
    same(
        torch._utils._unflatten_dense_tensors(torch._utils._flatten_dense_tensors(views), views), list(views)
    )


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 0, 4), (1,), (1, 1, 1)])
def test_empty_and_zero_dimensional(shape: tuple[int, ...]) -> None:
    host = torch.randn(shape)
    agrees(lambda t: t + 1, host)
    agrees(lambda t: t.sum(), host)
    agrees(lambda t: t.reshape(-1), host)
    agrees(lambda t: t.unsqueeze(0).transpose(0, -1), host)
    agrees(lambda t: torch.cat([t.reshape(-1), t.reshape(-1)]), host)
    agrees(lambda t: t.clone().zero_(), host)
    agrees(lambda t: t.nonzero(), host)
    agrees(lambda t: t.softmax(-1), host)
    agrees(lambda t: t.cumsum(-1), host)
    agrees(lambda t: t.expand(3, *t.shape), host)
    agrees(lambda t: torch.empty(0, device=t.device).copy_(t) if t.numel() == 0 and t.dim() == 1 else t, host)
    assert host.to(NEURON).shape == shape


def test_empty_index_scatter_and_gather() -> None:
    values, index = torch.rand(1, 1000), torch.empty(1, 0, dtype=torch.long)
    agrees(lambda s, i: s.scatter(1, i, torch.empty(1, 0, device=s.device)), values, index)
    assert values.to(NEURON).gather(1, index.to(NEURON)).shape == (1, 0)
