"""A DataLoader with worker processes and pinned memory feeds the device; copies to it are asynchronous.

opentrn run examples/data_loading.py
"""

from __future__ import annotations

import argparse
import json

import torch
from corpus import VOCABULARY, text
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

LENGTH, BATCH = 48, 16


class TextWindows(Dataset):
    """Overlapping windows of the play. Workers read it; only the training process touches the device."""

    def __init__(self, count: int) -> None:
        self.tokens, self.count = text(), count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        start = index * 37 % (len(self.tokens) - LENGTH)
        return self.tokens[start : start + LENGTH]


def main() -> None:
    parser = argparse.ArgumentParser(description="DataLoader workers and pinned memory.")
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    pinned = options.device != "cpu"

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, 32),
        nn.Flatten(),
        nn.Linear(32 * (LENGTH - 1), 128),
        nn.Tanh(),
        nn.Linear(128, VOCABULARY),
    ).to(options.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = DataLoader(
        TextWindows(options.steps * BATCH),
        batch_size=BATCH,
        shuffle=True,
        generator=torch.Generator().manual_seed(0),
        num_workers=2,
        persistent_workers=True,
        pin_memory=pinned,
    )
    losses, pinned_batches = [], 0
    for tokens in loader:
        pinned_batches += tokens.is_pinned()
        tokens = tokens.to(options.device, non_blocking=True)
        loss = functional.cross_entropy(model(tokens[:, :-1]), tokens[:, -1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    result = {"example": "data_loading", "device": options.device, "losses": losses}
    print(json.dumps({**result, "pinned_batches": int(pinned_batches)}))


if __name__ == "__main__":
    main()
