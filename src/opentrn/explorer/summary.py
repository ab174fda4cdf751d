"""Every figure of the report, computed once, each with how it is known."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from opentrn.explorer.advice import advise
from opentrn.explorer.utilization import Utilization, utilization
from opentrn.trace.memory import Peak, Stack, Timeline
from opentrn.trace.record import ModelFacts, OperatorTotal, RunRecord, Step
from opentrn.trace.shortage import Shortage

HEAVIEST = 10
MEASURED = "measured"
ASSUMED = "assumed"


@dataclass(frozen=True)
class StepRow:
    """One step as the report shows it. Times in ns; None where unknown."""

    index: int
    kind: str
    duration_ns: int
    measured_ns: int
    tokens: int | None
    tokens_per_s: float | None
    mfu_formula: float | None
    mfu_counted: float | None
    hfu: float | None
    peak_allocated: int | None


@dataclass(frozen=True)
class Share:
    """A named part of the device time. `note` is the class of an operator or empty."""

    name: str
    device_ns: int
    share: float
    count: int = 0
    how: str = ""
    note: str = ""


@dataclass
class Summary:
    """The report. `how_timed` qualifies every virtual time and all that follows from it.

    basis: what the headline stands for, in words. headline: the median step, or the whole run where there are
    no steps.
    """

    command: str
    ended: str
    dry: bool
    machine: str
    devices: int
    peak_tflops: float
    peak_how: str
    basis: str
    headline: StepRow | None
    how_timed: str
    modelled_share: float
    split: list[Share]
    steps: list[StepRow]
    operators: list[Share]
    classes: list[Share]
    modules: list[Share]
    memory_capacity: int
    peak: Peak | None
    shortage: Shortage | None
    timeline: Timeline
    stack: Stack
    facts: ModelFacts | None
    wall_ns: int
    operators_issued: int
    flops: int
    notes: list[str] = field(default_factory=list)
    trace_directory: str | None = None
    advice: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Plain data, with the word for how each group of figures is known."""
        data = asdict(self)
        data["fits"] = self.shortage is None if self.dry else None
        data["how"] = {
            "duration_ns": self.how_timed,
            "tokens_per_s": self.how_timed,
            "mfu_formula": self.how_timed,
            "mfu_counted": self.how_timed,
            "hfu": self.how_timed,
            "measured_ns": MEASURED + " on this host",
            "wall_ns": MEASURED + " on this host",
            "peak": "exact: allocator events",
            "peak_tflops": self.peak_how,
            "tokens": "counted from embedding indices unless given",
        }
        return data


def summarize(record: RunRecord) -> Summary:
    """The summary of a run that may have ended anywhere, also before its first operator."""
    span = record.span
    training = any(step.kind in ("optimizer", "skipped") for step in record.steps) or _has_backward(span)
    peak_tflops = float(record.machine.get("mfu_peak_tflops_bf16", 0.0))
    devices = max(record.devices, 1)

    def row(step: Step) -> StepRow:
        return _row(step, utilization(step, record.facts, peak_tflops * 1e12, devices, training))

    chosen, basis = _headline(record)
    how, modelled_share = _how_timed(span)
    total_ns = sum(total.device_ns for total in record.totals)
    notes = list(record.notes)
    if span is not None and span.operators == 0:
        notes.append(
            "nothing ran on the device: is the model on 'neuron'? Programs that this one starts are not "
            "watched: torchrun --no-python opentrn run SCRIPT watches each rank"
        )
    if chosen is not None and chosen.tokens < 0:
        notes.append("no nn.Embedding was called, so tokens are unknown: give --tokens-per-step")
    if record.facts is not None and not record.facts.recognised:
        notes.append(
            f"the configuration of {record.facts.name} is not recognised: MFU is by counted FLOPs alone"
        )
    notes += _modelled_notes(record.totals, total_ns)
    summary = Summary(
        command=record.command,
        ended=record.ended,
        dry=record.dry,
        machine=_machine(record),
        devices=record.devices,
        peak_tflops=peak_tflops,
        peak_how=record.peak_sources.get("mfu_peak_tflops_bf16", "bf16 peak of the attached device"),
        basis=basis,
        headline=row(chosen) if chosen is not None else None,
        how_timed=how,
        modelled_share=modelled_share,
        split=_split(chosen, devices) if chosen is not None else [],
        steps=[row(step) for step in record.steps],
        operators=_heaviest_operators(record.totals, total_ns),
        classes=_classes(record.totals, total_ns),
        modules=_modules(record.modules),
        memory_capacity=int(record.machine.get("hbm_bytes", 0))
        - int(record.machine.get("hbm_reserved_bytes", 0)),
        peak=record.peak,
        shortage=record.shortage,
        timeline=record.timeline,
        stack=record.stack,
        facts=record.facts,
        wall_ns=record.wall_ns,
        operators_issued=span.operators if span is not None else 0,
        flops=span.flops if span is not None else 0,
        notes=notes,
        trace_directory=record.trace_directory,
    )
    summary.advice = advise(summary)
    return summary


def _has_backward(span: Step | None) -> bool:
    return span is not None and span.backward_ns > 0


def _machine(record: RunRecord) -> str:
    machine = record.machine
    if not machine:
        return "no machine attached"
    cores, chip = machine.get("cores_per_logical", "?"), machine.get("chip", "?")
    return f"{machine.get('instance', '?')}, {cores} core(s) of {chip} per device"


def _headline(record: RunRecord) -> tuple[Step | None, str]:
    """The step that stands for the run. The first step pays one-time costs, so it counts only if it is
    alone."""
    done = [step for step in record.steps if step.kind != "skipped"] or record.steps
    steady = done[1:] or done
    if not steady:
        return record.span, "the whole run, from the first module call"
    ordered = sorted(steady, key=lambda step: step.duration_ns)
    words = "the only step" if len(done) == 1 else f"median of {len(steady)} steps, the first left out"
    return ordered[(len(ordered) - 1) // 2], words


def _how_timed(span: Step | None) -> tuple[str, float]:
    busy = span.device_busy_ns if span is not None else 0
    if span is None or not busy:
        return "nothing timed", 0.0
    share = span.modelled_ns / busy
    if share >= 1:
        return "modelled", 1.0
    if share <= 0:
        return "simulated", 0.0
    return f"simulated, {share * 100:.0f} % of device time modelled", share


def _row(step: Step, used: Utilization) -> StepRow:
    tokens = step.tokens if step.tokens >= 0 else None
    per_second = tokens / (step.duration_ns * 1e-9) if tokens is not None and step.duration_ns > 0 else None
    return StepRow(
        step.index,
        step.kind,
        step.duration_ns,
        step.measured_ns,
        tokens,
        per_second,
        used.formula,
        used.counted,
        used.hardware,
        step.peak_allocated if step.peak_allocated >= 0 else None,
    )


def _split(step: Step, devices: int) -> list[Share]:
    """Where the time of a step goes; idle is what the devices wait for the host, for each other or for
    nothing."""
    whole = step.duration_ns * devices
    parts = {
        "forward": step.forward_ns,
        "backward": step.backward_ns,
        "recomputation": step.recompute_ns,
        "optimizer": step.optimizer_ns,
        "device idle": whole - step.device_busy_ns,
    }
    # Streams that overlap are busy for longer than the clock runs.
    parts["device idle"] = max(parts["device idle"], 0)
    return [Share(name, ns, ns / whole if whole else 0.0) for name, ns in parts.items() if ns]


def _heaviest_operators(totals: list[OperatorTotal], total_ns: int) -> list[Share]:
    ordered = sorted(totals, key=lambda total: -total.device_ns)[:HEAVIEST]
    return [
        Share(
            t.name,
            t.device_ns,
            t.device_ns / total_ns if total_ns else 0.0,
            t.count,
            t.kind,
            t.operator_class,
        )
        for t in ordered
    ]


def _classes(totals: list[OperatorTotal], total_ns: int) -> list[Share]:
    sums: dict[str, list[int]] = {}
    for total in totals:
        entry = sums.setdefault(total.operator_class or "unknown", [0, 0])
        entry[0] += total.device_ns
        entry[1] += total.count
    ordered = sorted(sums.items(), key=lambda item: -item[1][0])
    return [Share(name, ns, ns / total_ns if total_ns else 0.0, count) for name, (ns, count) in ordered if ns]


def _modelled_notes(totals: list[OperatorTotal], total_ns: int) -> list[str]:
    """Which operators have no program, where some have: their share of calls and of time, and names."""
    modelled = [total for total in totals if total.kind == "modelled"]
    if not modelled or len(modelled) == len(totals):
        return []
    calls, every = sum(t.count for t in modelled), sum(t.count for t in totals)
    share = sum(t.device_ns for t in modelled) / total_ns if total_ns else 0.0
    names = ", ".join(
        f"{t.name.removeprefix('aten::')} ({t.count:,} ×, {t.device_ns / total_ns * 100:.1f} %)"
        for t in sorted(modelled, key=lambda t: -t.device_ns)[:HEAVIEST]
    )
    more = f" and {len(modelled) - HEAVIEST} more" if len(modelled) > HEAVIEST else ""
    part = f"{calls / every * 100:.0f} % of calls, {share * 100:.1f} % of device time"
    return [f"modelled, for no program computes them: {part}: {names}{more}"]


def _modules(modules: dict[str, int]) -> list[Share]:
    """Heaviest modules, equal ones of all layers together: "model.layers.*.mlp.down_proj"."""
    sums: dict[str, list[int]] = {}
    for path, ns in modules.items():
        entry = sums.setdefault(re.sub(r"(?<![^.])\d+(?![^.])", "*", path) or "outside any module", [0, 0])
        entry[0] += ns
        entry[1] += 1
    whole = sum(ns for ns, _ in sums.values())
    ordered = sorted(sums.items(), key=lambda item: -item[1][0])[:HEAVIEST]
    return [Share(name, ns, ns / whole if whole else 0.0, count) for name, (ns, count) in ordered]
