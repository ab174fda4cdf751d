"""Watches one run from start to end: the recorder, the module observer and the step recorder together.

`opentrn run` makes one Session around the user's script; its result is a RunRecord.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn

from opentrn.trace import steps as step_marks
from opentrn.trace.counters import read_counters
from opentrn.trace.model_facts import model_facts
from opentrn.trace.modules import ModuleObserver
from opentrn.trace.record import ModelFacts, OperatorTotal, RunRecord, steps_table, totals_table
from opentrn.trace.recorder import Recorder
from opentrn.trace.schema import CATEGORIES, PHASES
from opentrn.trace.shortage import shortage, sizes_of
from opentrn.trace.source import DeviceSource
from opentrn.trace.steps import StepRecorder
from opentrn.trace.writer import TraceWriter

_PARAMETER, _GRADIENT, _STATE, _BUFFER = (
    CATEGORIES.index(name) for name in ("parameter", "gradient", "optimizer state", "buffer")
)
_OUTSIDE, _OPTIMIZER = PHASES.index("outside"), PHASES.index("optimizer")
_PEAKS = ("mfu_peak_tflops_bf16",)


@dataclass(frozen=True)
class SessionOptions:
    """trace: directory to write, None for no trace. by, tokens_per_step: see StepRecorder. frames,
    limit_bytes: see Recorder and TraceWriter. command: what ran, for the report."""

    command: str
    trace: Path | None = None
    frames: bool = False
    by: str = "auto"
    tokens_per_step: int | None = None
    limit_bytes: int = 8 << 30
    dry: bool = False


class Session:
    """Watches what runs between `start` and `stop`. ConfigurationError if the trace cannot be written."""

    def __init__(
        self, source: DeviceSource, options: SessionOptions, metadata: dict[str, Any] | None = None
    ) -> None:
        self._source, self._options = source, options
        self._writer = None
        if options.trace is not None:
            described = {"command": options.command, "machine": source.parameters(), **(metadata or {})}
            self._writer = TraceWriter(options.trace, described, options.limit_bytes)
        self._recorder = Recorder(source, self._writer, options.frames)
        self._facts: ModelFacts | None = None
        self._sizes: list[tuple[str, int]] = []
        self._labelled_states: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def start(self) -> None:
        """Begins to watch. What ran before is not part of the run."""
        self._wall = perf_counter_ns()
        self._source.reset_operator_totals()
        self._recorder.start()
        self._steps = StepRecorder(
            lambda: read_counters(self._source),
            self._recorder.mark,
            self._options.by,
            self._options.tokens_per_step,
            self._before_optimizer,
            self._after_optimizer,
        )
        self._modules = ModuleObserver(
            self._source.enter_module,
            self._source.exit_module,
            self._steps.module_called,
            self._steps.embedding_called,
            self._learn_model,
        )
        self._steps.install()
        self._modules.install()
        step_marks.activate(self._steps)

    def stop(self, ended: str, notes: list[str] | None = None) -> RunRecord:
        """Stops watching, finishes the trace and returns the record.

        ended: "completed", "interrupted" or the error that ended the script.
        """
        step_marks.activate(None)
        self._modules.remove()
        self._steps.remove()
        span = self._steps.finish()
        self._recorder.stop()
        peak = self._recorder.ledger.peak()
        timeline, stack = self._recorder.ledger.fullest()
        record = RunRecord(
            command=self._options.command,
            ended=ended,
            dry=self._options.dry,
            wall_ns=perf_counter_ns() - self._wall,
            devices=read_counters(self._source).devices,
            machine=self._source.parameters(),
            peak_sources={name: self._source.provenance(name) for name in _PEAKS},
            steps=self._steps.steps,
            span=span,
            totals=operator_totals(self._source),
            modules=self._module_times(),
            facts=self._facts,
            peak=peak,
            shortage=shortage(self._source, peak, self._sizes),
            timeline=timeline,
            stack=stack,
            notes=[*(notes or []), *self._source.program_failures()],
        )
        if self._writer is not None:
            self._finish_trace(record)
        return record

    def _finish_trace(self, record: RunRecord) -> None:
        writer = self._writer
        assert writer is not None
        record.trace_directory = str(writer.directory)
        writer.write("steps", steps_table(record.steps), last=True)
        writer.write("totals", totals_table(record.totals), last=True)
        if writer.stopped is not None:
            record.notes.append(f"the trace is partial: {writer.stopped}")
        writer.close(record.ended == "completed", ended=record.ended, run=record.as_metadata())

    def _module_times(self) -> dict[str, int]:
        names, sums = self._recorder.module_names(), self._recorder.module_ns
        return {names[i - 1] if i else "": int(sums[i]) for i in range(len(sums)) if sums[i]}

    # ---- labels for memory ---------------------------------------------------------------------------------

    def _learn_model(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            self._source.label(parameter, _PARAMETER)
        for buffer in model.buffers():
            self._source.label(buffer, _BUFFER)
        facts = model_facts(model)
        if self._facts is None or facts.parameters > self._facts.parameters:
            self._facts, self._sizes = facts, sizes_of(model)

    def _before_optimizer(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._source.label(parameter.grad, _GRADIENT)
        self._source.set_phase(_OPTIMIZER)

    def _after_optimizer(self, optimizer: Any) -> None:
        self._source.set_phase(_OUTSIDE)
        count = len(optimizer.state)
        if self._labelled_states.get(optimizer) == count:
            return
        self._labelled_states[optimizer] = count
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    self._source.label(value, _STATE)


def operator_totals(source: DeviceSource) -> list[OperatorTotal]:
    """The device's totals per operator and per kind of time, heaviest first."""
    sums = ("count", "device_ns", "flops", "bytes")
    of_simulated = ("simulated_count", "simulated_ns", "simulated_flops", "simulated_bytes")
    totals = []
    for name, entry in source.operator_totals().items():
        simulated = [entry[key] for key in of_simulated]
        modelled = [entry[key] - part for key, part in zip(sums, simulated, strict=True)]
        for kind, values in (("simulated", simulated), ("modelled", modelled)):
            if values[0]:
                totals.append(OperatorTotal(name, kind, *values, entry["class"]))  # type: ignore[call-arg]
    return sorted(totals, key=lambda total: (-total.device_ns, -total.count, total.name))
