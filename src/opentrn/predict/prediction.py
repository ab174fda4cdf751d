"""One prediction: the plan run dry, its report, whether it fits and what would make it fit."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from opentrn.device import _C, dry
from opentrn.device.memory import without_limit
from opentrn.errors import ConfigurationError, OpenTRNError
from opentrn.explorer.summary import Summary, summarize
from opentrn.predict import build, catalogue
from opentrn.predict.plan import Plan
from opentrn.trace.session import Session, SessionOptions
from opentrn.trace.shortage import Shortage, WatchingSource


@dataclass
class Prediction:
    """The answer. Figures of `summary` are of one logical core; `shortage` is None where the plan fits.

    parameters: counted; published: by the model's card, None where unknown. fixes: changes that were tried,
    each with its outcome. ruled_out: changes that were not, with the bytes per core that they need at least.
    """

    plan: Plan
    model: catalogue.Model
    summary: Summary
    parameters: int
    sharded: int = 1
    fixes: list[tuple[str, Prediction]] = field(default_factory=list)
    ruled_out: list[tuple[str, int]] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)

    @property
    def shortage(self) -> Shortage | None:
        return self.summary.shortage

    @property
    def fits(self) -> bool:
        return self.shortage is None

    @property
    def tokens_per_s(self) -> float | None:
        """Of all cores together."""
        row = self.summary.headline
        return None if row is None or row.tokens_per_s is None else row.tokens_per_s * self.plan.cores

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        row = self.summary.headline
        return {
            "plan": asdict(self.plan),
            "model": {
                "name": self.model.name,
                "source": self.model.source,
                "published_parameters": self.model.parameters,
            },
            "parameters": self.parameters,
            "fits": self.fits,
            "shortage": None
            if self.shortage is None
            else {**asdict(self.shortage), "missing": self.shortage.missing},
            "step_s": None if row is None else row.duration_ns * 1e-9,
            "tokens_per_s": self.tokens_per_s,
            "mfu": None if row is None else row.mfu_formula,
            "fixes": [
                {
                    "change": change,
                    "fits": p.fits,
                    "tokens_per_s": p.tokens_per_s,
                    "peak_bytes": p.summary.peak.allocated if p.summary.peak else None,
                }
                for change, p in self.fixes
            ],
            "ruled_out": [{"change": change, "least_bytes": least} for change, least in self.ruled_out],
            "stood_in": [asdict(entry) for entry in dry.ledger()],
            "assumptions": self.assumptions,
            "report": self.summary.as_json(),
        }


def predict(plan: Plan, *, suggest: bool = True) -> Prediction:
    """Runs the plan dry. Not fitting is an answer, not an error.

    suggest: also try what could make it fit, each by a dry run of its own. Raises ConfigurationError for
    unknown models, contradictory configurations and impossible plans.
    """
    model = catalogue.find(plan.model)
    catalogue.check(model.config, model.source)
    _attach(plan)
    prediction = _run(plan, model)
    if not prediction.fits and suggest:
        _try_fixes(prediction)
    return prediction


def _attach(plan: Plan) -> None:
    from opentrn.chips.machine import machine
    from opentrn.device import attach

    found = machine(plan.instance)
    per_instance = int(found.device_parameters()["devices_per_instance"])
    if plan.cores > per_instance and plan.cores % per_instance:
        raise ConfigurationError(
            f"{plan.cores} cores are no whole number of {plan.instance}, "
            f"which has {per_instance} logical cores",
            cure=f"give at most {per_instance}, or a multiple of it",
        )
    if _C.is_attached() and _C.instance() == plan.instance:
        return
    gc.collect()
    attach.attach(plan.instance)


def _run(plan: Plan, model: catalogue.Model) -> Prediction:
    """One dry run without a memory limit, then whether its peak fits."""
    from opentrn.distributed import fake_world

    gc.collect()
    torch.neuron.empty_cache()
    torch.neuron.reset_peak_memory_stats()
    with warnings.catch_warnings(), dry.dry_run(), without_limit():
        warnings.simplefilter("ignore", FutureWarning)  # of transformers, about names it will change
        if plan.cores == 1:
            return _watched(plan, model)
        with fake_world(plan.cores):
            return _watched(plan, model)


def _watched(plan: Plan, model: catalogue.Model) -> Prediction:
    source = WatchingSource()
    session = Session(source, SessionOptions(f"predict {model.name}", by="manual", dry=True))
    session.start()
    try:
        built = build.build(model, plan)
        parameters = sum(parameter.numel() for parameter in built.parameters())
        work = build.Workload(built, model, plan)
        with build.blaming(model, "run"):
            _steps(work, plan)
    except OpenTRNError:
        session.stop("failed")
        raise
    config = built.config
    used = str(getattr(config, "_attn_implementation", "unknown"))
    record = session.stop("completed", dry.ledger_lines())
    del work, built
    summary = summarize(record)
    prediction = Prediction(plan, model, summary, parameters)
    prediction.assumptions = _assumptions(plan, model, parameters, config)
    if used != plan.attention:
        prediction.assumptions.append(f"attention: {used}, for the architecture has no {plan.attention}")
    return prediction


def _steps(work: build.Workload, plan: Plan) -> None:
    from opentrn.trace.steps import step

    work.prepare()
    # Work before the first step is no step: only what follows a mark is timed.
    for _ in range(plan.steps + (plan.mode != "train")):
        work.step()
        torch.neuron.synchronize()
        step(work.tokens)


def _assumptions(plan: Plan, model: catalogue.Model, parameters: int, config: Any) -> list[str]:
    lines = [f"configuration: {model.source}", *build.guesses(model, config)]
    if model.parameters is not None:
        agrees = "equal to" if model.parameters == parameters else "unlike"
        lines.append(
            f"{parameters:,} parameters, {agrees} the published {model.parameters:,} {model.note}".rstrip()
        )
    else:
        lines.append(f"{parameters:,} parameters (counted)")
    if plan.cores > 1:
        lines.append(
            "collectives are modelled: ring or direct exchange at the chip files' bandwidths and latencies; "
            "all ranks are taken to be equal to rank 0"
        )
    if any(model.config.get(n) for n in ("num_experts", "num_local_experts", "n_routed_experts")):
        lines.append("experts: assumed to be used equally often (stand-in indices are balanced)")
    return lines


# Core counts that are tried beyond one instance: so many times an instance's.
_MANY_INSTANCES = (2, 4, 8, 16, 32, 64)


def _try_fixes(prediction: Prediction) -> None:
    """The changes a user would try, alone and together, each run dry; then more instances until it fits.

    What `_least_bytes` rules out is not run: a dry run of a large sharded model takes half a minute.
    """
    plan = prediction.plan
    per_instance = _C.device_count()
    _try(prediction, _changes(plan, per_instance))
    checkpointing = plan.mode == "train" and not plan.checkpointing
    for instances in _MANY_INSTANCES:
        if any(found.fits for _, found in prediction.fixes):
            break
        cores = instances * per_instance
        if cores > plan.cores:
            change: dict[str, Any] = {"cores": cores} | ({"checkpointing": True} if checkpointing else {})
            words = "checkpointing and " if checkpointing else ""
            _try(prediction, [(f"{words}{cores} cores ({instances} instances)", change)])
    if not any(found.fits for _, found in prediction.fixes):
        prediction.assumptions.append(_what_sharding_leaves(prediction))


def _what_sharding_leaves(prediction: Prediction) -> str:
    """Why more cores do not help, and what would."""
    needed = [least for _, least in prediction.ruled_out]
    needed += [found.summary.peak.allocated for _, found in prediction.fixes if found.summary.peak]
    least = min(needed, default=0) / (1 << 30)
    return (
        f"a core needs {least:.1f} GiB or more in all that was tried: FSDP2 leaves activations, logits and "
        "the weights gathered for use whole; a shorter sequence, or tensor parallelism, which predict does "
        "not do yet, would help"
    )


def _least_bytes(prediction: Prediction, changed: Plan) -> int:
    """Bytes per core that the changed plan needs at least, told from arithmetic and from what has run.

    The training state, which FSDP2 shards; with it, what a run on other cores held beside it, or the
    activations that the first run held at its peak: sharding leaves both as they are.
    """
    state = _state_bytes(prediction.parameters, changed)
    least = state // changed.cores
    for found in (prediction, *(found for _, found in prediction.fixes)):
        peak = found.summary.peak
        if peak is None or replace(found.plan, cores=changed.cores, steps=changed.steps) != changed:
            continue
        if found.plan.cores > 1:
            beside = peak.allocated - state // found.plan.cores
            least = max(least, state // changed.cores + beside)
        elif changed.precision != "amp":  # autocast keeps its copies of the weights, FSDP2 gathers them again
            # Gradients and moments may not be there yet when activations peak; parameters are.
            shard = prediction.parameters * _element_bytes(changed) // changed.cores
            least = max(least, shard + peak.categories.get("activation", 0))
    return least


def _element_bytes(plan: Plan) -> int:
    return 2 if plan.precision == "bf16" else 4


def _state_bytes(parameters: int, plan: Plan) -> int:
    """Parameters; in training also gradients and AdamW's two moments, of all cores together."""
    copies = 1 if plan.mode != "train" else 2 if plan.optimizer == "sgd" else 4
    return parameters * _element_bytes(plan) * copies


def _changes(plan: Plan, per_instance: int) -> Iterator[tuple[str, dict[str, Any]]]:
    training = plan.mode == "train"
    if training and not plan.checkpointing:
        yield "activation checkpointing", {"checkpointing": True}
    if plan.batch > 1:
        yield f"batch {plan.batch // 2}", {"batch": plan.batch // 2}
    if plan.precision != "bf16":
        yield "bf16 parameters and optimizer state", {"precision": "bf16"}
    if training and plan.optimizer != "sgd":
        yield "SGD without momentum", {"optimizer": "sgd"}
    for cores in sorted({4, 16, per_instance}):
        if plan.cores < cores <= per_instance:
            yield f"{cores} cores (FSDP2)", {"cores": cores}
    if training and not plan.checkpointing and plan.cores < per_instance:
        yield f"checkpointing and {per_instance} cores", {"checkpointing": True, "cores": per_instance}


def _try(prediction: Prediction, changes: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """Runs each change, or notes that it cannot be enough."""
    for name, change in changes:
        changed = replace(prediction.plan, steps=1, **change)
        least = _least_bytes(prediction, changed)
        if least > prediction.summary.memory_capacity:
            prediction.ruled_out.append((name, least))
            continue
        # A change that does not apply to this model is no fix.
        with contextlib.suppress(OpenTRNError):
            prediction.fixes.append((name, _run(changed, prediction.model)))
