"""Reads from a torch.nn model what TorchTitan's FLOPs formula needs: parameters, layers, heads and head
sizes.

The names of the configuration's fields differ by family; the table below lists the ones in use (Hugging Face,
TorchTitan, GPT-2). What the table does not recognise is reported as such, and the report uses counted FLOPs.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from opentrn.trace.record import ModelFacts

# Field of ModelFacts → names in configurations, the first present one counts.
FIELD_NAMES: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_heads", "n_head", "num_heads"),
    "width": ("hidden_size", "dim", "n_embd", "d_model"),
    "head": ("head_dim",),
    "latent_qk_plain": ("qk_nope_head_dim",),
    "latent_qk_rotary": ("qk_rope_head_dim",),
    "latent_v": ("v_head_dim",),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "active_experts": ("num_experts_per_tok", "top_k", "experts_per_token"),
}
# Attributes that hold the configuration, and configurations that hold the text model's.
CONFIG_ATTRIBUTES = ("config", "model_args")
NESTED_CONFIGS = ("text_config", "decoder", "llm_config")
EXPERTS_MARK = "experts."
SHARED_MARK = "shared_expert"


def model_facts(model: nn.Module) -> ModelFacts:
    """Facts of one model; never raises for an unknown configuration."""
    config = _find_config(model)
    parameters = trainable = expert_parameters = 0
    for name, parameter in model.named_parameters():
        parameters += parameter.numel()
        trainable += parameter.numel() if parameter.requires_grad else 0
        if EXPERTS_MARK in name and SHARED_MARK not in name:
            expert_parameters += parameter.numel()
    embedding, tied = _embeddings(model)
    experts, active = _field(config, "experts"), _field(config, "active_experts")
    routed = expert_parameters * active // experts if experts > 0 and active > 0 else expert_parameters
    return ModelFacts(
        name=type(model).__name__,
        parameters=parameters,
        trainable_parameters=trainable,
        active_parameters=parameters - expert_parameters + routed,
        embedding_parameters=embedding,
        tied_embedding=tied,
        layers=_field(config, "layers"),
        heads=_field(config, "heads"),
        head_dimensions=_head_dimensions(config),
    )


def _embeddings(model: nn.Module) -> tuple[int, bool]:
    """Elements of distinct embedding tables, and whether one of them is also a Linear's weight."""
    tables = {id(m.weight): m.weight.numel() for m in model.modules() if isinstance(m, nn.Embedding)}
    tied = any(isinstance(m, nn.Linear) and id(m.weight) in tables for m in model.modules())
    return sum(tables.values()), tied


def _find_config(model: nn.Module) -> Any:
    """The configuration of the model or of the outermost module inside it that has one with layers; None if
    none has."""
    for module in model.modules():
        for attribute in CONFIG_ATTRIBUTES:
            config = getattr(module, attribute, None)
            for candidate in (config, *(getattr(config, nested, None) for nested in NESTED_CONFIGS)):
                if candidate is not None and _field(candidate, "layers") > 0:
                    return candidate
    return None


def _field(config: Any, name: str) -> int:
    for candidate in FIELD_NAMES[name]:
        value = config.get(candidate) if isinstance(config, dict) else getattr(config, candidate, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return -1


def _head_dimensions(config: Any) -> int:
    """d_qk + d_v of one head; −1 where unknown."""
    plain, rotary, value = (
        _field(config, name) for name in ("latent_qk_plain", "latent_qk_rotary", "latent_v")
    )
    if plain > 0 and rotary > 0 and value > 0:
        return plain + rotary + value
    head = _field(config, "head")
    if head < 0:
        width, heads = _field(config, "width"), _field(config, "heads")
        if width < 0 or heads < 0:
            return -1
        head = width // heads
    return 2 * head
