"""FlopCounterMode counts the attention operators of CUDA only (torch 2.13); neuron's is another one."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch


def count_attention(module: ModuleType) -> None:
    """Registers the FLOPs of neuron's attention, forward and backward, by the formulae CUDA's attention has.

    query [B, H, S, D], key [B, G, T, D], value [B, G, T, E] with G groups of heads dividing H.
    """
    aten = torch.ops.aten

    def forward(query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
        *batch, rows, inner = query
        heads = torch.Size(batch).numel()
        return 2 * heads * rows * key[-2] * (inner + value[-1])

    def backward(
        grad: Any, query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any
    ) -> int:
        # Scores again, then the gradients of value, of the probabilities, of query and of key.
        *batch, rows, inner = query
        heads = torch.Size(batch).numel()
        return 2 * heads * rows * key[-2] * (3 * inner + 2 * value[-1])

    module.register_flop_formula(aten._scaled_dot_product_fused_attention_overrideable)(forward)
    module.register_flop_formula(aten._scaled_dot_product_fused_attention_overrideable_backward)(backward)
