"""flex_attention without compilation: score and mask functions, block masks of any size."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from device_helpers import NEURON, same
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

CLOSE = {"rtol": 1e-3, "atol": 1e-4}


def _window(b, h, i, j):  # type: ignore[no-untyped-def]
    return (i - j).abs() <= 7


@pytest.mark.parametrize(("block", "length"), [(16, 48), (32, 96), (64, 100), (128, 130)])
def test_block_masks(block: int, length: int) -> None:
    query = torch.randn(1, 1, length, 16)
    mask = create_block_mask(_window, None, None, length, length, device=NEURON, BLOCK_SIZE=block)
    assert mask.kv_num_blocks.is_neuron
    index = torch.arange(length)
    wanted = F.scaled_dot_product_attention(
        query, query, query, attn_mask=(index[:, None] - index[None]).abs() <= 7
    )
    moved = query.to(NEURON)
    same(flex_attention(moved, moved, moved, block_mask=mask), wanted, **CLOSE)
    same(
        create_mask(_window, 1, 1, length, length, device=NEURON),
        create_mask(_window, 1, 1, length, length, device="cpu"),
    )


def test_score_function_with_a_captured_tensor() -> None:
    query, key, value = (torch.randn(2, 3, 20, 8) for _ in range(3))
    slopes = torch.tensor([0.1, 0.2, 0.3])
    index = torch.arange(20)
    bias = slopes.view(3, 1, 1) * (index[None] - index[:, None])
    moved = slopes.to(NEURON)
    found = flex_attention(
        query.to(NEURON), key.to(NEURON), value.to(NEURON), lambda s, b, h, i, j: s + moved[h] * (j - i)
    )
    same(found, F.scaled_dot_product_attention(query, key, value, attn_mask=bias), **CLOSE)


def test_backward_and_grouped_heads() -> None:
    query, key, value = torch.randn(1, 4, 24, 8), torch.randn(1, 2, 24, 8), torch.randn(1, 2, 24, 8)
    leaves = [tensor.to(NEURON).requires_grad_() for tensor in (query, key, value)]
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 24, 24, device=NEURON, BLOCK_SIZE=16)
    flex_attention(*leaves, block_mask=mask, enable_gqa=True).pow(2).sum().backward()
    plain = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    F.scaled_dot_product_attention(*plain, is_causal=True, enable_gqa=True).pow(2).sum().backward()
    same([leaf.grad for leaf in leaves], [leaf.grad for leaf in plain], **CLOSE)


def test_logsumexp_is_returned() -> None:
    query = torch.randn(1, 1, 16, 8, device=NEURON)
    output, logsumexp = flex_attention(query, query, query, return_lse=True)
    scores = query[0, 0] @ query[0, 0].T / 8**0.5
    same(logsumexp[0, 0], scores.logsumexp(-1), **CLOSE)
    assert output.is_neuron
