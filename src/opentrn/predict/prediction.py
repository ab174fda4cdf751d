"""One prediction: the plan run dry, its report, whether it fits and what would make it fit."""

from __future__ import annotations

import gc
import warnings
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from opentrn.device import _C, dry
from opentrn.errors import ConfigurationError, OpenTRNError
from opentrn.explorer.summary import Summary, summarize
from opentrn.predict import build, catalogue
from opentrn.predict.plan import Plan
from opentrn.trace.memory import ALLOC, FREE
from opentrn.trace.schema import PHASES
from opentrn.trace.session import Session, SessionOptions
from opentrn.trace.source import DeviceSource

_GIB = 1 << 30
# Share of the device's memory that a run without limit may take: to know by how much a plan does not fit.
_NO_LIMIT = 1e4


@dataclass(frozen=True)
class Shortage:
    """Where a plan runs out of memory: the first allocation beyond the capacity (bytes)."""

    needed: int
    capacity: int
    module: str
    phase: str
    step: str
    held: list[tuple[str, int]]

    @property
    def missing(self) -> int:
        return self.needed - self.capacity

    def sentence(self) -> str:
        held = ", ".join(f"{name} {size / _GIB:.2f} GiB" for name, size in self.held)
        return (
            f"does not fit, by {self.missing / _GIB:.2f} GiB ({self.needed / _GIB:.2f} needed, "
            f"{self.capacity / _GIB:.2f} there), first at {self.module or 'outside any module'} "
            f"in {self.phase}, held by {held}"
        )


@dataclass
class Prediction:
    """The answer. Figures of `summary` are of one logical core; `shortage` is None where the plan fits.

    parameters: counted; published: by the model's card, None where unknown. fixes: changes that were
    tried, each with
    its outcome.
    """

    plan: Plan
    model: catalogue.Model
    summary: Summary
    parameters: int
    shortage: Shortage | None
    sharded: int = 1
    fixes: list[tuple[str, Prediction]] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)

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
            "stood_in": [asdict(entry) for entry in dry.ledger()],
            "assumptions": self.assumptions,
            "report": self.summary.as_json(),
        }


class _WatchingSource(DeviceSource):
    """Also notes the first allocation of device 0 beyond `capacity`."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity, self._allocated = capacity, 0
        self.crossing: tuple[int, int] | None = None  # (module id, phase)

    def memory_drain(self, stop: bool = False) -> dict[str, np.ndarray] | None:
        columns = super().memory_drain(stop)
        if columns is not None and self.crossing is None:
            first = columns["device"] == 0
            event, size = columns["event"][first], columns["size"][first].astype(np.int64)
            change = np.where(event == ALLOC, size, np.where(event == FREE, -size, 0))
            running = self._allocated + np.cumsum(change)
            over = np.flatnonzero(running > self._capacity)
            if len(over):
                self.crossing = (
                    int(columns["module"][first][over[0]]),
                    int(columns["phase"][first][over[0]]),
                )
            elif len(running):
                self._allocated = int(running[-1])
        return columns


def predict(plan: Plan, *, suggest: bool = True) -> Prediction:
    """Runs the plan dry. Not fitting is an answer, not an error.

    suggest: also try what could make it fit, each by a dry run of its own.
    Raises ConfigurationError for unknown models, contradictory configurations and impossible plans.
    """
    model = catalogue.find(plan.model)
    catalogue.check(model.config, model.source)
    _attach(plan)
    prediction = _run(plan, model)
    if not prediction.fits and suggest:
        prediction.fixes = _try_fixes(prediction)
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
    capacity = _C.memory_capacity(0)
    _C.set_memory_fraction(0, _NO_LIMIT)
    try:
        with warnings.catch_warnings(), dry.dry_run():
            warnings.simplefilter("ignore", FutureWarning)  # of transformers, about names it will change
            if plan.cores == 1:
                return _watched(plan, model, capacity)
            with fake_world(plan.cores):
                return _watched(plan, model, capacity)
    finally:
        _C.set_memory_fraction(0, 1.0)


def _watched(plan: Plan, model: catalogue.Model, capacity: int) -> Prediction:
    source = _WatchingSource(capacity)
    session = Session(source, SessionOptions(f"predict {model.name}", by="manual", dry=True))
    session.start()
    try:
        built = build.build(model, plan)
        parameters = sum(parameter.numel() for parameter in built.parameters())
        work = build.Workload(built, model, plan)
        work.prepare()
        from opentrn.trace.steps import step

        # Work before the first step is no step: only what follows a mark is timed.
        for _ in range(plan.steps + (plan.mode != "train")):
            work.step()
            torch.neuron.synchronize()
            step(work.tokens)
        ended = "completed"
    except OpenTRNError:
        session.stop("failed")
        raise
    used = str(getattr(built.config, "_attn_implementation", "unknown"))
    record = session.stop(ended, dry.ledger_lines())
    del work, built
    summary = summarize(record)
    prediction = Prediction(plan, model, summary, parameters, None)
    prediction.shortage = _shortage(source, summary, capacity)
    prediction.assumptions = _assumptions(plan, model, parameters)
    if used != plan.attention:
        prediction.assumptions.append(f"attention: {used}, for the architecture has no {plan.attention}")
    return prediction


def _shortage(source: _WatchingSource, summary: Summary, capacity: int) -> Shortage | None:
    peak = summary.peak
    if peak is None or peak.allocated <= capacity:
        return None
    module, phase = source.crossing or (-1, 0)
    held = sorted(peak.categories.items(), key=lambda item: -item[1])
    names = source.names()["modules"]
    return Shortage(
        peak.allocated,
        capacity,
        names[module] if module >= 0 else "",
        PHASES[phase],
        "",
        [(name, size) for name, size in held if size > 0][:4],
    )


def _assumptions(plan: Plan, model: catalogue.Model, parameters: int) -> list[str]:
    lines = [f"configuration: {model.source}"]
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


def _try_fixes(prediction: Prediction) -> list[tuple[str, Prediction]]:
    """The changes a user would try, alone and then together, each run dry."""
    plan, tried = prediction.plan, []
    per_instance = _C.device_count()
    changes: list[tuple[str, dict[str, Any]]] = []
    if plan.mode == "train" and not plan.checkpointing:
        changes.append(("activation checkpointing", {"checkpointing": True}))
    if plan.batch > 1:
        changes.append((f"batch {max(plan.batch // 2, 1)}", {"batch": max(plan.batch // 2, 1)}))
    if plan.precision != "bf16":
        changes.append(("bf16 parameters and optimizer state", {"precision": "bf16"}))
    if plan.mode == "train" and plan.optimizer != "sgd":
        changes.append(("SGD without momentum", {"optimizer": "sgd"}))
    for cores in (4, 16, per_instance):
        if plan.cores < cores <= per_instance:
            changes.append((f"{cores} cores (FSDP2)", {"cores": cores}))
    if plan.mode == "train" and not plan.checkpointing and plan.cores < per_instance:
        both = {"checkpointing": True, "cores": per_instance}
        changes.append((f"checkpointing and {per_instance} cores", both))
    for name, change in changes:
        try:
            tried.append((name, _run(replace(plan, steps=1, **change), prediction.model)))
        except OpenTRNError:
            continue  # the change does not apply to this model
    return tried
