"""Hugging Face's Trainer, unmodified, on a small GPT-2. The Trainer finds the device by itself.

opentrn run examples/hugging_face_trainer.py
"""

from __future__ import annotations

import argparse
import json
import tempfile

import torch
from corpus import VOCABULARY, windows
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

CONFIG = GPT2Config(
    vocab_size=VOCABULARY,
    n_positions=64,
    n_embd=64,
    n_layer=2,
    n_head=4,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    bos_token_id=0,
    eos_token_id=0,
)
BATCH, LENGTH = 8, 64


class Windows(Dataset):
    """Windows of the text, each with itself as labels: the model shifts them."""

    def __init__(self, count: int) -> None:
        self.rows = torch.cat(list(windows(count // BATCH, BATCH, LENGTH)))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Hugging Face's Trainer on a small GPT-2.")
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()

    torch.manual_seed(0)
    model = GPT2LMHeadModel(CONFIG)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=options.steps,
            per_device_train_batch_size=BATCH,
            learning_rate=3e-3,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            seed=0,
            use_cpu=options.device == "cpu",
            disable_tqdm=True,
        )
        trainer = Trainer(model, arguments, train_dataset=Windows(options.steps * BATCH))
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    device = str(trainer.model.device)
    print(json.dumps({"example": "hugging_face_trainer", "device": device, "losses": losses}))


if __name__ == "__main__":
    main()
