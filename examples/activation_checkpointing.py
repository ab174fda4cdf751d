"""Activation checkpointing: the same losses with less memory, for one more forward pass.

opentrn run examples/activation_checkpointing.py

Trains twice from the same weights, without and with checkpoints, and prints the peak memory of each.
"""

from __future__ import annotations

import argparse
import json

import torch
from corpus import VOCABULARY, windows
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH, LAYERS, LENGTH = 64, 6, 64


class Layer(nn.Module):
    """Causal self-attention and a feed-forward part, both residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.projection, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.unflatten(-1, (4, WIDTH // 4)).transpose(1, 2)
            for part in self.projection(self.norms[0](hidden)).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.output(mixed.transpose(1, 2).flatten(2))
        return hidden + self.feed_forward(self.norms[1](hidden))


class Model(nn.Module):
    """Logits of the next byte; `checkpoints`: keep only the inputs of the layers for backward."""

    def __init__(self, checkpoints: bool) -> None:
        super().__init__()
        self.checkpoints = checkpoints
        self.embedding, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = checkpoint(layer, hidden, use_reentrant=False) if self.checkpoints else layer(hidden)
        return self.head(hidden)


def train(device: str, steps: int, checkpoints: bool) -> tuple[list[float], int]:
    """Losses, and the peak of device memory in bytes (0 on the CPU, which does not count it)."""
    torch.manual_seed(0)
    model = Model(checkpoints).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    counts = torch.accelerator.is_available() and device != "cpu"
    if counts:
        torch.accelerator.reset_peak_memory_stats()
    losses = []
    for tokens in windows(steps, batch=8, length=LENGTH):
        tokens = tokens.to(device)
        loss = functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, torch.accelerator.max_memory_allocated() if counts else 0


def main() -> None:
    parser = argparse.ArgumentParser(description="Activation checkpointing.")
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()

    plain, plain_peak = train(options.device, options.steps, checkpoints=False)
    losses, peak = train(options.device, options.steps, checkpoints=True)
    result = {"example": "activation_checkpointing", "device": options.device, "losses": losses}
    result |= {"losses_without": plain, "peak_bytes": peak, "peak_bytes_without": plain_peak}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
