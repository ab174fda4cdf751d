"""Scaled dot-product attention with any mask, against the CPU; and no S×S scores on the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from device_helpers import NEURON, agrees, gradients_agree, on_device, same
from torch.nn.attention import SDPBackend, sdpa_kernel

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def _inputs(shape: tuple[int, ...] = (2, 3, 6, 8), keys: int | None = None) -> list[torch.Tensor]:
    other = (*shape[:-2], keys or shape[-2], shape[-1])
    return [torch.randn(shape), torch.randn(other), torch.randn(other)]


def _causal(rows: int, keys: int) -> torch.Tensor:
    return torch.ones(rows, keys, dtype=torch.bool).tril()


MASKS: dict[str, Any] = {
    "none": None,
    "bool": _causal(6, 6),
    "bool per batch": torch.rand(2, 1, 6, 6) > 0.3,
    "bool per head": torch.rand(2, 3, 6, 6) > 0.3,
    "float bias": torch.randn(6, 6),
    "float per head": torch.randn(2, 3, 6, 6),
    "minus infinity": torch.zeros(6, 6).masked_fill(~_causal(6, 6), float("-inf")),
    "key padding": torch.tensor([True, True, True, False, False, False]).view(1, 1, 1, 6),
    "expanded": torch.rand(2, 1, 1, 6)
    .gt(0.2)
    .logical_or(torch.eye(6, dtype=torch.bool)[0])
    .expand(2, 3, 6, 6),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    query, key, value = _inputs()
    mask = MASKS[name]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=on_device(mask, q.device) if mask is not None else None
        )

    agrees(attend, query, key, value, **CLOSE)
    gradients_agree(attend, query, key, value, **CLOSE)


@pytest.mark.parametrize("kind", ["bool", "minus infinity"])
def test_a_fully_masked_row_is_zero_with_finite_gradients(kind: str) -> None:
    allowed = _causal(4, 4)
    allowed[2] = False
    mask = allowed if kind == "bool" else torch.zeros(4, 4).masked_fill(~allowed, float("-inf"))
    leaf = torch.randn(1, 1, 4, 8)
    found = leaf.to(NEURON).requires_grad_()
    output = F.scaled_dot_product_attention(found, found, found, attn_mask=mask.to(NEURON))
    same(output, F.scaled_dot_product_attention(leaf, leaf, leaf, attn_mask=mask), **CLOSE)
    assert output[0, 0, 2].abs().sum().item() == 0
    output.sum().backward()
    assert found.grad.isfinite().all().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("length", [5, 64, 67])
def test_causal_never_sees_the_future(dtype: torch.dtype, length: int) -> None:
    query, key, value = (torch.randn(1, 2, length, 64).to(dtype).to(NEURON) for _ in range(3))
    later_key, later_value = key.clone(), value.clone()
    half = length // 2
    later_key[:, :, half:] += 5
    later_value[:, :, half:] -= 5
    first = F.scaled_dot_product_attention(query, key, value, is_causal=True)[:, :, :half]
    same(F.scaled_dot_product_attention(query, later_key, later_value, is_causal=True)[:, :, :half], first)


OPTIONS: dict[str, tuple[list[torch.Tensor], dict[str, Any]]] = {
    "causal": (_inputs(), {"is_causal": True}),
    "causal, fewer rows than keys": (_inputs(keys=9), {"is_causal": True}),
    "scale": (_inputs(), {"scale": 0.3}),
    "scale and causal": (_inputs(), {"scale": 0.3, "is_causal": True}),
    "one row": (_inputs((2, 3, 1, 8), keys=7), {}),
    "three dimensions": (_inputs((3, 6, 8)), {"is_causal": True}),
    "two dimensions": (_inputs((6, 8)), {}),
    "five dimensions": (_inputs((2, 2, 3, 6, 8)), {}),
    "grouped": (
        [torch.randn(2, 6, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)],
        {"enable_gqa": True, "is_causal": True},
    ),
    "value of another width": (
        [torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 4)],
        {},
    ),
    "odd width": (_inputs((1, 2, 7, 5)), {}),
    "no rows": (_inputs((1, 2, 0, 8), keys=3), {}),
    "no batch": (_inputs((0, 2, 4, 8)), {}),
    "transposed heads": ([torch.randn(2, 6, 3, 8).transpose(1, 2) for _ in range(3)], {}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str) -> None:
    inputs, options = OPTIONS[name]

    def attend(*qkv: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(*qkv, **options)

    agrees(attend, *inputs, **CLOSE)
    gradients_agree(attend, *inputs, **CLOSE)


def test_gradient_of_the_mask() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).pow(2)

    gradients_agree(attend, *_inputs(), torch.randn(3, 6, 6), **CLOSE)


def test_dropout_repeats_and_backward_uses_the_same_mask() -> None:
    query, key, value = (tensor.to(NEURON) for tensor in _inputs((1, 2, 64, 16)))
    torch.manual_seed(3)
    first = F.scaled_dot_product_attention(query, key, value, dropout_p=0.5)
    torch.manual_seed(3)
    same(F.scaled_dot_product_attention(query, key, value, dropout_p=0.5), first)
    assert not torch.equal(F.scaled_dot_product_attention(query, key, value, dropout_p=0.5), first)
    # Linear in value: its gradient against a direction is the output's change along it.
    torch.manual_seed(3)
    leaf = value.clone().requires_grad_()
    output = F.scaled_dot_product_attention(query, key, leaf, dropout_p=0.5)
    output.sum().backward()
    same((leaf.grad * value).sum(), first.sum(), rtol=1e-3, atol=1e-3)


def test_dropout_keeps_the_mean() -> None:
    ones = torch.ones(1, 1, 512, 8, device=NEURON)
    output = F.scaled_dot_product_attention(ones, ones, ones, dropout_p=0.25)
    assert abs(output.mean().item() - 1) < 0.05 and output.std().item() > 0


def test_scores_are_never_held(clean_memory: None) -> None:
    length = 2048
    query, key, value = (torch.randn(1, 1, length, 16, device=NEURON, requires_grad=True) for _ in range(3))
    before = torch.neuron.memory_allocated()
    torch.neuron.reset_peak_memory_stats()
    F.scaled_dot_product_attention(query, key, value, is_causal=True).sum().backward()
    assert torch.neuron.max_memory_allocated() - before < length * length * 4 // 4


def test_backend_can_be_forced() -> None:
    inputs = _inputs()
    with sdpa_kernel(SDPBackend.MATH):
        math = agrees(F.scaled_dot_product_attention, *inputs, **CLOSE)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        same(F.scaled_dot_product_attention(*on_device(inputs)), math, **CLOSE)


def test_over_a_batch_dimension() -> None:
    attend = torch.vmap(lambda q: F.scaled_dot_product_attention(q, q, q))
    agrees(attend, torch.randn(4, 1, 2, 5, 8), **CLOSE)


def test_multihead_attention_weights() -> None:
    module = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    data = torch.randn(2, 5, 8)
    wanted = module(data, data, data, need_weights=True, average_attn_weights=False)
    moved = data.to(NEURON)
    same(
        module.to(NEURON)(moved, moved, moved, need_weights=True, average_attn_weights=False), wanted, **CLOSE
    )
