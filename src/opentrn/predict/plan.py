"""What to predict: a model, a piece of work and a machine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from opentrn.errors import ConfigurationError


class Mode(StrEnum):
    """What a step is."""

    train = "train"
    prefill = "prefill"
    decode = "decode"


class Precision(StrEnum):
    """Data types of parameters, gradients, optimizer state and computation; see Plan."""

    bf16 = "bf16"
    fp32 = "fp32"
    amp = "amp"


class Optimizer(StrEnum):
    """Optimizers and their implementations."""

    adamw_fused = "adamw-fused"
    adamw_foreach = "adamw-foreach"
    sgd = "sgd"


class Attention(StrEnum):
    """Hugging Face attention implementations."""

    sdpa = "sdpa"
    eager = "eager"


@dataclass(frozen=True)
class Plan:
    """One prediction.

    model: a name of the catalogue, or the path of a Hugging Face config.json.
    mode: "train" is forward, backward and optimizer; "prefill" reads a prompt; "decode" writes one token
    per step after
    a prompt of `sequence` tokens.
    batch: samples per logical core and step. sequence: tokens per sample (images: ignored).
    precision: "bf16" parameters, gradients and optimizer state in bfloat16; "fp32" all in float32; "amp"
    float32 master
    parameters and bfloat16 computation (autocast, or FSDP2's mixed-precision policy).
    cores: logical cores; more than one shards parameters, gradients and optimizer state over all of them
    (FSDP2).
    steps: timed steps; the first of a training run also makes the optimizer's state.
    attention: Hugging Face attention implementation, "sdpa" or "eager".
    """

    model: str
    mode: str = "train"
    batch: int = 1
    sequence: int = 4096
    precision: str = "bf16"
    checkpointing: bool = False
    optimizer: str = "adamw-fused"
    instance: str = "trn2.48xlarge"
    cores: int = 1
    steps: int = 2
    attention: str = "sdpa"

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("mode", self.mode, Mode),
            ("precision", self.precision, Precision),
            ("optimizer", self.optimizer, Optimizer),
            ("attention", self.attention, Attention),
        ):
            if value not in list(choices):
                raise ConfigurationError(
                    f"{name} '{value}' is not one of {', '.join(choices)}", cure="choose one"
                )
        for name, number in (
            ("batch", self.batch),
            ("sequence", self.sequence),
            ("cores", self.cores),
            ("steps", self.steps),
        ):
            if number < 1:
                raise ConfigurationError(f"{name} is {number}", cure=f"give a {name} of at least 1")

    def describe(self) -> str:
        """The plan in words."""
        work = f"{self.mode}, batch {self.batch} × {self.sequence} tokens per core, {self.precision}"
        if self.mode == "train":
            work += f", {self.optimizer}" + (", activation checkpointing" if self.checkpointing else "")
        where = f"{self.cores} logical core(s) of {self.instance}"
        return f"{work}, on {where}" + (", FSDP2" if self.cores > 1 else "")
