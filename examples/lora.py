"""Low-rank adaptation with Hugging Face peft: the base model is frozen, small adapters learn.

opentrn run examples/lora.py
"""

from __future__ import annotations

import argparse
import json
import tempfile

import torch
from corpus import VOCABULARY, windows
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM

CONFIG = Qwen3Config(
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=192,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=64,
)
ADAPTER = LoraConfig(
    task_type="CAUSAL_LM",
    r=8,
    lora_alpha=32,
    lora_dropout=0.0,
    target_modules=["q_proj", "v_proj", "down_proj"],
)


def base_model() -> Qwen3ForCausalLM:
    """The frozen model, with the same weights each time."""
    torch.manual_seed(0)
    return Qwen3ForCausalLM(CONFIG)


def main() -> None:
    parser = argparse.ArgumentParser(description="LoRA with peft.")
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()

    model = get_peft_model(base_model(), ADAPTER).to(options.device)
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=2e-2)
    losses = []
    for tokens in windows(options.steps, batch=8, length=64):
        tokens = tokens.to(options.device)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    model.eval()
    tokens = next(windows(1, batch=4, length=64, seed=1)).to(options.device)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        adapted = model(input_ids=tokens, labels=tokens).loss.item()
        model.save_pretrained(folder)
        loaded = PeftModel.from_pretrained(base_model(), folder).to(options.device).eval()
        reloaded = loaded(input_ids=tokens, labels=tokens).loss.item()
        merged = model.merge_and_unload()(input_ids=tokens, labels=tokens).loss.item()
    result = {
        "example": "lora",
        "device": options.device,
        "losses": losses,
        "learning_share": sum(p.numel() for p in learning) / sum(p.numel() for p in model.parameters()),
        "evaluation": {"adapted": adapted, "reloaded": reloaded, "merged": merged},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
