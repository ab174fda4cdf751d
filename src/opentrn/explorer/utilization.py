"""How much of the chip's peak was used, by TorchTitan's formula and by counted FLOPs.

Formula per token (TorchTitan 0.3.0, torchtitan/models/utils.py): 6·(N − N_embed) + 6·L·H·(d_qk + d_v)·S. N
counts distinct parameters, routed experts by the share a token uses; with tied embeddings N_embed is not
subtracted, for the same table is the output matrix. Attention is not halved for causality. Without gradients
the factor 6 is 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from opentrn.trace.record import ModelFacts, Step

_TRAINING_FACTOR = 6
_INFERENCE_FACTOR = 2


@dataclass(frozen=True)
class Utilization:
    """Shares of the peak, None where they cannot be told.

    formula: MFU by the formula. counted: MFU by counted FLOPs without recomputation. hardware: HFU,
    recomputation included.
    """

    formula: float | None
    counted: float | None
    hardware: float | None


def formula_flops_per_token(facts: ModelFacts, sequence_length: int, training: bool = True) -> float:
    """FLOP per token by TorchTitan's formula; `facts` must be recognised."""
    factor = _TRAINING_FACTOR if training else _INFERENCE_FACTOR
    parameters = facts.active_parameters - (0 if facts.tied_embedding else facts.embedding_parameters)
    attention = facts.layers * facts.heads * facts.head_dimensions * sequence_length
    return float(factor * (parameters + attention))


def utilization(
    step: Step, facts: ModelFacts | None, peak_flops_per_s: float, devices: int, training: bool = True
) -> Utilization:
    """Utilization of one step on `devices` devices of `peak_flops_per_s` each."""
    available = peak_flops_per_s * devices * step.duration_ns * 1e-9
    if available <= 0:
        return Utilization(None, None, None)
    formula = None
    if facts is not None and facts.recognised and step.tokens > 0 and step.sequence_length > 0:
        formula = step.tokens * formula_flops_per_token(facts, step.sequence_length, training) / available
    return Utilization(formula, (step.flops - step.recompute_flops) / available, step.flops / available)
