"""Trains a small Qwen3, then writes text with it: greedy decoding with a KV cache, and without as a check.

opentrn run examples/generation.py
"""

from __future__ import annotations

import argparse
import json

import torch
from corpus import VOCABULARY, decode, encode, windows
from transformers import Qwen3Config, Qwen3ForCausalLM

CONFIG = Qwen3Config(
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=192,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=256,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=0,
)
PROMPT = "JULIET:\n"


def train(model: Qwen3ForCausalLM, steps: int) -> list[float]:
    """Losses of `steps` optimizer steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses = []
    for tokens in windows(steps, batch=8, length=64):
        tokens = tokens.to(model.device)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description="Generation with a KV cache.")
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--new-tokens", type=int, default=32)
    options = parser.parse_args()

    torch.manual_seed(0)
    model = Qwen3ForCausalLM(CONFIG).to(options.device)
    losses = train(model, options.steps)
    model.eval()
    prompt = encode(PROMPT)[None].to(options.device)
    greedy = {"max_new_tokens": options.new_tokens, "do_sample": False}
    cached = model.generate(prompt, attention_mask=torch.ones_like(prompt), use_cache=True, **greedy)
    uncached = model.generate(prompt, attention_mask=torch.ones_like(prompt), use_cache=False, **greedy)
    result = {
        "example": "generation",
        "device": options.device,
        "losses": losses,
        "tokens": cached[0].tolist(),
        "same_without_cache": torch.equal(cached, uncached),
        "text": decode(cached[0]),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
