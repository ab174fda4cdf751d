"""Known facts of the named models at full size, to the byte: what dry runs hold, against the published
configurations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import opentrn
from opentrn.device.memory import without_limit
from opentrn.explorer.utilization import formula_flops_per_token
from opentrn.predict import Plan, build, catalogue, predict

BATCH, SEQUENCE, BF16, FP32 = 2, 256, 2, 4
TEXT = [name for name in catalogue.names() if name != "vit-base"]
DENSE = [
    name
    for name in TEXT
    if not catalogue.find(name).config.keys() & {"num_experts", "num_local_experts", "n_routed_experts"}
]


@pytest.fixture(autouse=True)
def dry() -> Iterator[None]:
    torch.neuron.init()
    with without_limit(), opentrn.dry_run(wall_clock=True):
        yield


def requested() -> int:
    """Bytes that live tensors asked for."""
    return torch.neuron.memory_stats()["requested_bytes.all.current"]


def built(name: str, **options: Any) -> tuple[dict[str, Any], torch.nn.Module, build.Workload]:
    model = catalogue.find(name)
    plan = Plan(name, batch=BATCH, sequence=SEQUENCE, optimizer="adamw-foreach", **options)
    module = build.build(model, plan)
    return model.config, module, build.Workload(module, model, plan)


def in_float32(config: dict[str, Any]) -> int:
    """Parameters that transformers keeps in float32: DeepSeek-V3's routers."""
    if config["model_type"] != "deepseek_v3":
        return 0
    sparse = config["num_hidden_layers"] - config["first_k_dense_replace"]
    return sparse * config["n_routed_experts"] * config["hidden_size"]


@pytest.mark.parametrize("name", catalogue.names())
def test_parameters_gradients_and_optimizer_state(name: str) -> None:
    """Each is as many elements as the model card says; AdamW keeps two moments of an element."""
    start = requested()
    config, module, work = built(name)
    published = catalogue.find(name).parameters
    assert published is not None
    once = BF16 * published + (FP32 - BF16) * in_float32(config)
    buffers = sum(buffer.nbytes for buffer in module.buffers())
    inputs = sum(value.nbytes for value in {id(v): v for v in work._inputs.values()}.values())
    assert requested() - start == once + buffers + inputs
    held = requested()
    module(**work._inputs).loss.backward()
    assert requested() - held == once
    held = requested()
    assert work._optimizer is not None
    work._optimizer.step()
    assert requested() - held == 2 * once


def cache_bytes(config: dict[str, Any]) -> int:
    """Keys and values of every layer, from the configuration alone."""
    if config["model_type"] == "gpt2":
        return config["n_layer"] * 2 * BATCH * SEQUENCE * config["n_embd"] * BF16
    if config["model_type"] == "deepseek_v3":  # the latent and the rotary part, for all heads together
        width = config["kv_lora_rank"] + config["qk_rope_head_dim"]
        return config["num_hidden_layers"] * BATCH * SEQUENCE * width * BF16
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    token = 2 * BATCH * config["num_key_value_heads"] * head * BF16
    kinds = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    # A sliding window's cache keeps one token less than the window: the next one completes it.
    lengths = [config["sliding_window"] - 1 if "sliding" in kind else SEQUENCE for kind in kinds]
    return sum(token * min(length, SEQUENCE) for length in lengths)


@pytest.mark.parametrize("name", TEXT)
def test_logits_and_key_value_cache(name: str) -> None:
    config, module, work = built(name, mode="prefill")
    with torch.no_grad():
        output = module(input_ids=work._inputs["input_ids"], use_cache=True)
    assert output.logits.nbytes == BATCH * SEQUENCE * config["vocab_size"] * BF16
    layers = output.past_key_values.layers
    assert sum(layer.keys.nbytes + layer.values.nbytes for layer in layers) == cache_bytes(config)


def matrix_bytes(config: dict[str, Any]) -> int:
    """What eager attention keeps of its score matrices for backward: the softmax, in float32 where the model
    computes it so, and its copy in bfloat16."""
    kind = config["model_type"]
    heads = config.get("num_attention_heads") or config["n_head"]
    layers = config.get("num_hidden_layers") or config["n_layer"]
    length = (config["image_size"] // config["patch_size"]) ** 2 + 1 if kind == "vit" else SEQUENCE
    # gpt-oss has one more column, its sinks.
    elements = layers * BATCH * heads * length * (length + (kind == "gpt_oss"))
    return elements * (BF16 if kind in ("gpt2", "gpt_oss") else FP32 + BF16)


@pytest.mark.parametrize("name", catalogue.names())
def test_attention_matrices(name: str) -> None:
    config, module, work = built(name, attention="eager")
    length = 197 if name == "vit-base" else SEQUENCE
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() >= 3 and tensor.shape[-2] == length and tensor.shape[-1] in (length, length + 1):
            storage = tensor.untyped_storage()
            storages[storage._cdata] = storage
        # A result kept by its own node would be a cycle that no collector sees.
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = module.eval()(**work._inputs).loss
    assert sum(storage.nbytes() for storage in storages.values()) == matrix_bytes(config)
    del loss


@pytest.mark.parametrize("name", DENSE)
def test_counted_flops_are_torchtitans_within_three_per_cent(name: str) -> None:
    """6·(N − N_embed) + 12·L·H·d·S a token; attention's backward counts four products, without those that a
    fused kernel computes again."""
    plan = Plan(name, sequence=1024, steps=1)
    summary = predict(plan, suggest=False).summary
    row, facts = summary.headline, summary.facts
    assert row is not None and facts is not None and row.mfu_counted and row.mfu_formula
    assert row.mfu_counted == pytest.approx(row.mfu_formula, rel=0.03)
    # The formula itself, from the configuration.
    config = catalogue.find(name).config
    heads = config.get("num_attention_heads") or config["n_head"]
    layers = config.get("num_hidden_layers") or config["n_layer"]
    width = config.get("hidden_size") or config["n_embd"]
    head = config.get("head_dim") or width // heads
    tied = config.get("tie_word_embeddings", name == "gpt2")
    tables = 0 if tied else config["vocab_size"] * width
    wanted = 6 * (catalogue.find(name).parameters - tables) + 12 * layers * heads * head * 1024
    assert formula_flops_per_token(facts, 1024) == wanted
