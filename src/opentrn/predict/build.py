"""From a configuration to a Hugging Face model on the device, whole or sharded by FSDP2, and the work of
one step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn

from opentrn.device import _C
from opentrn.errors import ConfigurationError, OpenTRNError, UnsupportedError
from opentrn.predict import catalogue
from opentrn.predict.catalogue import Model
from opentrn.predict.plan import Plan
from opentrn.trace.schema import CATEGORIES

_KV_CACHE = CATEGORIES.index("kv cache")
# Beside sizes, fields that decide what a step costs.
_CHOICES = ("tie_word_embeddings", "num_experts_per_tok")
# Fields that say nothing about the model's work.
_METADATA = frozenset(
    {
        "model_type",
        "architectures",
        "torch_dtype",
        "dtype",
        "transformers_version",
        "quantization_config",
        "auto_map",
        "_name_or_path",
        "use_cache",
    }
)
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "amp": torch.float32}


def configuration(model: Model, plan: Plan) -> Any:
    """The transformers configuration. ConfigurationError for what transformers does not know or refuses."""
    from transformers import CONFIG_MAPPING, AutoConfig

    fields = {
        k: v
        for k, v in model.config.items()
        if k not in ("model_type", "quantization_config", "torch_dtype", "dtype")
    }
    if model.config["model_type"] not in CONFIG_MAPPING:
        raise ConfigurationError(
            f"transformers knows no model type '{model.config['model_type']}'",
            where=model.source,
            cure="check the field, or upgrade transformers",
        )
    with blaming(model, "configure"):
        config = AutoConfig.for_model(model.config["model_type"], **fields)
    longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if longest and not is_image(model) and plan.sequence > longest:
        raise ConfigurationError(
            f"a sequence of {plan.sequence} exceeds the model's {longest} positions",
            where=model.source,
            cure=f"give --sequence of at most {longest}",
        )
    return config


@contextlib.contextmanager
def blaming(model: Model, doing: str) -> Iterator[None]:
    """What PyTorch and transformers raise in here, as a ConfigurationError of the model. doing: a verb."""
    try:
        yield
    except (OpenTRNError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # theirs have no common class; the cause stays attached
        said = " ".join(str(error).split())
        raise ConfigurationError(
            f"transformers cannot {doing} the model: {type(error).__name__}: {said[:400]}",
            where=model.source,
            cure="correct the fields of the configuration that it names",
        ) from error


def guesses(model: Model, config: Any) -> list[str]:
    """Fields that the answer depends on and the configuration does not say, and those nobody reads."""
    known = type(config)().to_dict()
    used, given = config.to_dict(), model.config
    absent = [f"{n} = {used[n]}" for n in (*catalogue.SIZES, *_CHOICES) if n in used and n not in given]
    lines = [f"not in the configuration, so transformers' own: {', '.join(absent)}"] if absent else []
    # What a configuration converts (rope_theta) is gone from it; what it does not know it keeps as it came.
    unread = sorted(set(given) & set(used) - set(known) - set(config.attribute_map) - _METADATA)
    if unread:
        lines.append(
            f"fields that {type(config).__name__} does not have, without effect: {', '.join(unread)}"
        )
    return lines


def attention_of(factory: Any, config: Any, plan: Plan) -> str:
    """The plan's attention, or "eager" where the architecture has no other (gpt-oss has attention sinks)."""
    architecture = factory._model_mapping.get(type(config), None)
    if isinstance(architecture, tuple):
        architecture = architecture[0]
    return plan.attention if getattr(architecture, "_supports_sdpa", True) else "eager"


def is_image(model: Model) -> bool:
    """Whether the model classifies images."""
    names = model.config.get("architectures") or [""]
    return "ImageClassification" in names[0] or (
        "image_size" in model.config and "vocab_size" not in model.config
    )


def build(model: Model, plan: Plan) -> nn.Module:
    """The model on neuron:0, in the plan's precision; its values are never made."""
    from transformers import AutoModelForCausalLM, AutoModelForImageClassification

    config = configuration(model, plan)
    factory = AutoModelForImageClassification if is_image(model) else AutoModelForCausalLM
    if type(config) not in factory._model_mapping:
        raise UnsupportedError(
            f"'{config.model_type}' is neither a causal language model nor an image classifier",
            cure="run a script of your own with opentrn run --dry",
        )
    config._attn_implementation = attention_of(factory, config, plan)
    if plan.mode == "train" and hasattr(config, "use_cache"):
        config.use_cache = False
    before = torch.get_default_dtype()
    torch.set_default_dtype(_DTYPES[plan.precision])
    try:
        with torch.device("meta" if plan.cores > 1 else "neuron"), blaming(model, "build"):
            built = factory.from_config(config)
    finally:
        torch.set_default_dtype(before)
    built.train(plan.mode == "train")
    if plan.checkpointing and plan.mode == "train":
        if not getattr(built, "supports_gradient_checkpointing", False):
            raise UnsupportedError(
                f"{type(built).__name__} has no activation checkpointing", cure="leave it off"
            )
        built.gradient_checkpointing_enable({"use_reentrant": False})
    return _shard(built, plan) if plan.cores > 1 else built


def layers_of(model: nn.Module) -> nn.ModuleList:
    """The repeated layers: the longest list of modules."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len) if lists else nn.ModuleList()


def _shard(model: nn.Module, plan: Plan) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("neuron", (plan.cores,))
    options: dict[str, Any] = {"mesh": mesh}
    if plan.precision == "amp":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    # FSDP2 takes one type for all parameters; some architectures keep a few (router weights) in float32.
    model.to(_DTYPES[plan.precision])
    for layer in layers_of(model):
        fully_shard(layer, **options)
    fully_shard(model, **options)
    model.to_empty(device="neuron")
    for buffer in model.buffers():
        buffer.zero_()  # positions and the like have to be valid
    return model


class Workload:
    """What a step does. `step` runs one; `prepare` what comes before the first and is not timed."""

    def __init__(self, model: nn.Module, described: Model, plan: Plan) -> None:
        self.model, self.plan = model, plan
        self._image = is_image(described)
        self._cache: Any = None
        self._optimizer = self._make_optimizer() if plan.mode == "train" else None
        self._inputs = self._make_inputs()

    @property
    def tokens(self) -> int:
        """Tokens (images: samples) of one step on one core."""
        plan = self.plan
        return plan.batch if self._image or plan.mode == "decode" else plan.batch * plan.sequence

    def prepare(self) -> None:
        """Decoding starts with a cache that holds the prompt."""
        if self.plan.mode == "decode":
            if self._image:
                raise UnsupportedError("an image classifier does not decode", cure="--mode prefill")
            self._forward_cached(self._inputs["input_ids"])

    def step(self) -> None:
        """One step."""
        if self._optimizer is not None:
            with self._autocast():
                loss = self.model(**self._inputs).loss
            loss.backward()
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        elif self.plan.mode == "decode":
            self._forward_cached(self._inputs["input_ids"][:, :1])
        elif self._image:
            with torch.no_grad(), self._autocast():
                self.model(pixel_values=self._inputs["pixel_values"])
        else:
            self._cache = None
            self._forward_cached(self._inputs["input_ids"])

    def _forward_cached(self, tokens: torch.Tensor) -> None:
        """As generate() does: all of the cache, the logits of the last position, the next token chosen."""
        with torch.no_grad(), self._autocast():
            output = self.model(
                input_ids=tokens, past_key_values=self._cache, use_cache=True, logits_to_keep=1
            )
            output.logits[:, -1].argmax(-1)
        self._cache = output.past_key_values
        for layer in getattr(self._cache, "layers", ()):
            for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None)):
                if isinstance(tensor, torch.Tensor) and tensor.device.type == "neuron":
                    _C.set_category(tensor, _KV_CACHE)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.plan.precision == "amp" and self.plan.cores == 1:
            return torch.autocast("neuron", dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def _make_inputs(self) -> dict[str, torch.Tensor]:
        plan, config = self.plan, cast(Any, self.model.config)
        if self._image:
            size = (plan.batch, config.num_channels, config.image_size, config.image_size)
            dtype = torch.bfloat16 if plan.precision == "bf16" else torch.float32
            inputs = {"pixel_values": torch.zeros(size, dtype=dtype, device="neuron")}
            if plan.mode == "train":
                inputs["labels"] = torch.zeros(plan.batch, dtype=torch.long, device="neuron")
            return inputs
        # Ones rather than zeros: zero is padding in some models.
        tokens = torch.ones(plan.batch, plan.sequence, dtype=torch.long, device="neuron")
        return {"input_ids": tokens, **({"labels": tokens} if plan.mode == "train" else {})}

    def _make_optimizer(self) -> torch.optim.Optimizer:
        parameters = list(self.model.parameters())
        if self.plan.optimizer == "sgd":
            return torch.optim.SGD(parameters, lr=1e-3)
        fused = self.plan.optimizer == "adamw-fused"
        return torch.optim.AdamW(parameters, lr=1e-4, fused=fused, foreach=not fused)
