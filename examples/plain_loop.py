"""A plain PyTorch training loop: a small transformer encoder learns to predict the next byte.

opentrn run examples/plain_loop.py
"""

from __future__ import annotations

import argparse
import json

import torch
from corpus import VOCABULARY, windows
from torch import nn
from torch.nn import functional

WIDTH, HEADS, LAYERS, LENGTH = 64, 4, 2, 64


class ByteTransformer(nn.Module):
    """Logits of the next byte, [batch, length, 256], for tokens [batch, length]."""

    def __init__(self) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.position_embedding = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        positions = torch.arange(length, device=tokens.device)
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        hidden = self.token_embedding(tokens) + self.position_embedding(positions)
        return self.head(self.encoder(hidden, mask=mask, is_causal=True))


def main() -> None:
    parser = argparse.ArgumentParser(description="A plain PyTorch training loop.")
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()

    torch.manual_seed(0)
    model = ByteTransformer().to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for tokens in windows(options.steps, batch=8, length=LENGTH):
        tokens = tokens.to(options.device)
        logits = model(tokens)
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    print(json.dumps({"example": "plain_loop", "device": options.device, "losses": losses}))


if __name__ == "__main__":
    main()
