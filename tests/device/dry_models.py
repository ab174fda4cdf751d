"""Small architectures of transformers for dry-run tests: large enough that activations and weights have no
bytes."""

from __future__ import annotations

from typing import Any

import torch

HIDDEN, LAYERS, HEADS, VOCABULARY, SEQUENCE, BATCH = 128, 2, 4, 512, 64, 4
_TEXT: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 256,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_GPT = {
    "n_embd": HIDDEN,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "vocab_size": VOCABULARY,
    "n_positions": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS = {"moe_intermediate_size": 64, "num_experts_per_tok": 2}

CAUSAL: dict[str, dict[str, Any]] = {
    "qwen3": _TEXT,
    "qwen2": _TEXT,
    "llama": _TEXT,
    "mistral": _TEXT,
    "gemma": _TEXT,
    "gemma2": _TEXT,
    "gemma3_text": _TEXT,
    "phi3": _TEXT,
    "phi": _TEXT,
    "stablelm": _TEXT,
    "starcoder2": _TEXT,
    "olmo": _TEXT,
    "olmo2": _TEXT,
    "cohere": _TEXT,
    "granite": _TEXT,
    "smollm3": _TEXT,
    "glm": _TEXT,
    "glm4": _TEXT,
    "gpt2": _GPT,
    "gptj": {**_GPT, "rotary_dim": 16},
    "codegen": {**_GPT, "rotary_dim": 16},
    "gpt_neox": _TEXT,
    "persimmon": _TEXT,
    "opt": {**_TEXT, "ffn_dim": 256, "word_embed_proj_dim": HIDDEN},
    "bloom": {"hidden_size": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": VOCABULARY},
    "falcon": {
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "vocab_size": VOCABULARY,
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
    },
    "gpt_bigcode": _GPT,
}
MASKED: dict[str, dict[str, Any]] = {
    "bert": _TEXT,
    "electra": {**_TEXT, "embedding_size": HIDDEN},
    "roberta": {**_TEXT, "max_position_embeddings": 130},
    "distilbert": {
        "dim": HIDDEN,
        "hidden_dim": 256,
        "n_layers": LAYERS,
        "n_heads": HEADS,
        "vocab_size": VOCABULARY,
    },
    "modernbert": {**_TEXT, "global_attn_every_n_layers": 2, "local_attention": 32},
}
OTHER: dict[str, dict[str, Any]] = {
    "t5": {
        "d_model": HIDDEN,
        "d_kv": 32,
        "d_ff": 256,
        "num_layers": LAYERS,
        "num_heads": HEADS,
        "vocab_size": VOCABULARY,
        "decoder_start_token_id": 0,
    },
    "vit": {
        "hidden_size": HIDDEN,
        "intermediate_size": 256,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "image_size": 64,
        "patch_size": 8,
    },
    "convnext": {"hidden_sizes": [32, 64], "depths": [1, 1], "num_stages": 2, "image_size": 64},
}
MIXTURES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {**_TEXT, **_EXPERTS, "num_experts": 4},
    "qwen2_moe": {**_TEXT, **_EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 128},
    "mixtral": {**_TEXT, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {**_TEXT, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32},
    "olmoe": {**_TEXT, "num_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {
        **_TEXT,
        **_EXPERTS,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "q_lora_rank": 64,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "first_k_dense_replace": 1,
        "head_dim": 16,
        "num_key_value_heads": HEADS,
        "n_shared_experts": 1,
    },
}
ALL = {**CAUSAL, **MASKED, **OTHER, **MIXTURES}


def make(
    kind: str, experts: str | None = None, dtype: torch.dtype = torch.float32
) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A model in train mode on neuron and its inputs. experts: Hugging Face's implementation of the
    experts."""
    import transformers

    config = transformers.AutoConfig.for_model(kind, **ALL[kind])
    if experts is not None:
        config._experts_implementation = experts
    name = {
        "t5": "AutoModelForSeq2SeqLM",
        "vit": "AutoModelForImageClassification",
        "convnext": "AutoModelForImageClassification",
    }.get(kind)
    name = name or ("AutoModelForMaskedLM" if kind in MASKED else "AutoModelForCausalLM")
    torch.manual_seed(0)
    model = getattr(transformers, name).from_config(config).train()
    if "Image" in name:
        inputs = {
            "pixel_values": torch.zeros(BATCH, 3, 64, 64),
            "labels": torch.zeros(BATCH, dtype=torch.long),
        }
    else:
        tokens = torch.arange(BATCH * SEQUENCE).reshape(BATCH, SEQUENCE) % (VOCABULARY - 3) + 3
        inputs = {"input_ids": tokens, "labels": tokens}
    on_device = {
        key: value.to("neuron", dtype if value.is_floating_point() else None) for key, value in inputs.items()
    }
    return model.to("neuron", dtype), on_device
