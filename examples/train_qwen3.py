"""Trains a small Qwen3 on Romeo and Juliet, byte by byte.

    opentrn run examples/train_qwen3.py                  on the virtual Trainium2, with the report
    python examples/train_qwen3.py --device cpu          the same losses, on the CPU

The model is transformers' own Qwen3ForCausalLM. Weights are made and batches drawn on the CPU, so that every
device starts from the same numbers. `make demo` runs both and compares them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path

import torch
from corpus import VOCABULARY, windows
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.optim.lr_scheduler import LinearLR
from transformers import Qwen3Config, Qwen3ForCausalLM

CONFIG = Qwen3Config(
    vocab_size=VOCABULARY,
    hidden_size=128,
    intermediate_size=384,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=256,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=None,
)
PEAK_LEARNING_RATE = 3e-3
WARM_UP_STEPS = 10


def make_model() -> Qwen3ForCausalLM:
    """The model with its initial weights, on the CPU."""
    torch.manual_seed(0)
    return Qwen3ForCausalLM(CONFIG)


def digest(model: torch.nn.Module) -> str:
    """Tells whether two runs began with the same weights."""
    sha = hashlib.sha256()
    for parameter in model.parameters():
        sha.update(parameter.detach().numpy().tobytes())
    return sha.hexdigest()[:16]


def train(model: Qwen3ForCausalLM, device: str, steps: int, batch: int, length: int) -> list[float]:
    """The losses of `steps` optimizer steps, nats per byte."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE)
    schedule = LinearLR(optimizer, start_factor=1 / WARM_UP_STEPS, total_iters=WARM_UP_STEPS)
    what, shown = TextColumn(f"training on {device}"), TextColumn("loss {task.fields[loss]}")
    columns = (what, BarColumn(), MofNCompleteColumn(), shown, TimeRemainingColumn())
    losses = []
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("train", total=steps, loss="")
        for tokens in windows(steps, batch, length):
            tokens = tokens.to(device)
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            progress.update(task, advance=1, loss=f"{losses[-1]:.3f}")
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small Qwen3 on Romeo and Juliet.")
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16, help="sequences a step")
    parser.add_argument("--length", type=int, default=64, help="bytes a sequence")
    parser.add_argument("--result", type=Path, help="write the JSON line to this file instead")
    options = parser.parse_args()

    model = make_model()
    result: dict[str, object] = {"device": options.device, "initial_weights": digest(model)}
    model.to(options.device)
    begin = time.perf_counter()
    result["losses"] = train(model, options.device, options.steps, options.batch, options.length)
    result["seconds"] = time.perf_counter() - begin
    line = json.dumps(result)
    if options.result is not None:
        options.result.write_text(line + "\n", encoding="utf-8")
    else:
        print(line)


if __name__ == "__main__":
    main()
