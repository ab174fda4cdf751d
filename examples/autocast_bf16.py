"""Mixed precision: the forward pass in bfloat16 under autocast, weights and optimizer in float32.

opentrn run examples/autocast_bf16.py
"""

from __future__ import annotations

import argparse
import json

import torch
from corpus import VOCABULARY, windows
from torch import nn
from torch.nn import functional

WIDTH, LENGTH = 64, 64


class Mixer(nn.Module):
    """Predicts the next byte with a causal convolution and a gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.convolution = nn.Conv1d(WIDTH, 2 * WIDTH, kernel_size=4)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = functional.pad(self.embedding(tokens).transpose(1, 2), (3, 0))
        hidden = functional.glu(self.convolution(hidden), dim=1).transpose(1, 2)
        return self.head(self.norm(hidden))


def main() -> None:
    parser = argparse.ArgumentParser(description="Mixed-precision training.")
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()

    torch.manual_seed(0)
    model = Mixer().to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler(options.device, enabled=False)  # bfloat16 has float32's range: no scaling
    losses, dtypes = [], set()
    for tokens in windows(options.steps, batch=8, length=LENGTH):
        tokens = tokens.to(options.device)
        with torch.autocast(options.device, dtype=torch.bfloat16):
            logits = model(tokens)
            loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        dtypes |= {str(logits.dtype), str(loss.dtype)}
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    weights = {str(parameter.dtype) for parameter in model.parameters()}
    result = {"example": "autocast_bf16", "device": options.device, "losses": losses}
    print(json.dumps({**result, "computed_in": sorted(dtypes), "weights_in": sorted(weights)}))


if __name__ == "__main__":
    main()
