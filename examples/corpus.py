"""Romeo and Juliet (public domain, see data/README.md) as bytes: the text that the examples train on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

TEXT_FILE = Path(__file__).parent / "data" / "romeo_and_juliet.txt"
VOCABULARY = 256  # a token is a byte


def encode(text: str) -> torch.Tensor:
    """int64 [len(text) in UTF-8]: one token a byte."""
    return torch.tensor(list(text.encode("utf-8")), dtype=torch.int64)


def decode(tokens: torch.Tensor) -> str:
    """The text of a 1-D tensor of tokens; bytes that are no UTF-8 become �."""
    return bytes(tokens.tolist()).decode("utf-8", errors="replace")


def text() -> torch.Tensor:
    """The whole play, int64 [133465]."""
    return encode(TEXT_FILE.read_text(encoding="utf-8"))


def windows(steps: int, batch: int, length: int, seed: int = 0) -> Iterator[torch.Tensor]:
    """`steps` batches of random windows, int64 [batch, length] on the CPU. Equal seeds give equal batches,
    whatever device they are used on."""
    tokens = text()
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(0, len(tokens) - length, (batch,), generator=generator)
        yield torch.stack([tokens[start : start + length] for start in starts.tolist()])
