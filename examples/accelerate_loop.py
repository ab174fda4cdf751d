"""A loop with Hugging Face accelerate: gradient accumulation, clipping and a learning-rate schedule.

opentrn run examples/accelerate_loop.py
"""

from __future__ import annotations

import argparse
import json

import torch
from accelerate import Accelerator
from corpus import VOCABULARY, windows
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

CONFIG = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=192,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)
BATCH, LENGTH, ACCUMULATION = 4, 64, 2


def main() -> None:
    parser = argparse.ArgumentParser(description="A training loop with accelerate.")
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--steps", type=int, default=30, help="optimizer steps")
    options = parser.parse_args()

    accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATION, cpu=options.device == "cpu")
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rows = torch.cat(list(windows(options.steps * ACCUMULATION, BATCH, LENGTH)))
    loader = DataLoader(TensorDataset(rows), batch_size=BATCH)
    schedule = get_cosine_schedule_with_warmup(optimizer, 5, max(options.steps, 6))
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    losses = []
    for (tokens,) in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=tokens, labels=tokens).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
    device = str(accelerator.device)
    accelerator.end_training()
    print(json.dumps({"example": "accelerate_loop", "device": device, "losses": losses}))


if __name__ == "__main__":
    main()
