"""Checkpoints in three formats; training resumed from each gives the losses of the uninterrupted run.

opentrn run examples/checkpoint_and_resume.py

torch.save for everything, safetensors for the weights (the optimizer beside them), and PyTorch's distributed
checkpoint (DCP) on a single process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from corpus import VOCABULARY, windows
from safetensors.torch import load_model, save_model
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional


class Training:
    """A recurrent model of bytes and its optimizer."""

    def __init__(self, device: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.device = device
        self.model = nn.ModuleDict(
            {
                "embedding": nn.Embedding(VOCABULARY, 32),
                "cells": nn.GRU(32, 64, num_layers=2),
                "head": nn.Linear(64, VOCABULARY),
            }
        ).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-3)

    def run(self, batches: Iterable[torch.Tensor]) -> list[float]:
        """Trains on the batches; their losses."""
        losses = []
        for tokens in batches:
            tokens = tokens.t().to(self.device)
            hidden, _ = self.model["cells"](self.model["embedding"](tokens[:-1]))
            loss = functional.cross_entropy(self.model["head"](hidden).flatten(0, 1), tokens[1:].flatten())
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses


def torch_save(training: Training, folder: Path) -> None:
    state = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
    torch.save(state, folder / "all.pt")


def torch_load(training: Training, folder: Path) -> None:
    state = torch.load(folder / "all.pt", map_location=training.device, weights_only=True)
    training.model.load_state_dict(state["model"])
    training.optimizer.load_state_dict(state["optimizer"])


def safetensors_save(training: Training, folder: Path) -> None:
    save_model(training.model, str(folder / "model.safetensors"))
    torch.save(training.optimizer.state_dict(), folder / "optimizer.pt")


def safetensors_load(training: Training, folder: Path) -> None:
    load_model(training.model, str(folder / "model.safetensors"), device=training.device)
    training.optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))


def dcp_save(training: Training, folder: Path) -> None:
    model, optimizer = get_state_dict(training.model, training.optimizer)
    dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)


def dcp_load(training: Training, folder: Path) -> None:
    model, optimizer = get_state_dict(training.model, training.optimizer)
    state = {"model": model, "optimizer": optimizer}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(training.model, training.optimizer, model_state_dict=model, optim_state_dict=optimizer)


Handler = Callable[[Training, Path], None]
FORMATS: dict[str, tuple[Handler, Handler]] = {
    "torch.save": (torch_save, torch_load),
    "safetensors": (safetensors_save, safetensors_load),
    "dcp": (dcp_save, dcp_load),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Checkpoint and resume.")
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--steps", type=int, default=20, help="before the checkpoint, and again after it")
    options = parser.parse_args()

    def batches(start: int) -> Iterable[torch.Tensor]:
        return itertools.islice(windows(2 * options.steps, batch=8, length=32), start, start + options.steps)

    training = Training(options.device, seed=0)
    before = training.run(batches(0))
    with tempfile.TemporaryDirectory() as parent:
        for name, (save, _) in FORMATS.items():
            (Path(parent) / name).mkdir()
            save(training, Path(parent) / name)
        after = training.run(batches(options.steps))
        resumed = {}
        for seed, (name, (_, load)) in enumerate(FORMATS.items(), start=1):
            fresh = Training(options.device, seed)
            load(fresh, Path(parent) / name)
            resumed[name] = fresh.run(batches(options.steps))
    result = {"example": "checkpoint_and_resume", "device": options.device, "losses": before + after}
    print(json.dumps({**result, "resumed": resumed}))


if __name__ == "__main__":
    main()
