"""What one run has to say about itself: the input of every report, taken live or read back from a trace
directory."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from opentrn.trace.memory import Peak, Stack, Timeline
from opentrn.trace.schema import STEPS, TOTALS
from opentrn.trace.shortage import Shortage


@dataclass(frozen=True)
class Step:
    """One row of the `steps` table; units and meanings in `schema.STEPS`."""

    index: int
    kind: str
    host_start: int
    host_end: int
    completion_start: int
    completion_end: int
    measured_ns: int
    tokens: int
    tokens_from: str
    sequence_length: int
    operators: int
    device_busy_ns: int
    modelled_ns: int
    simulated_ns: int
    forward_ns: int
    backward_ns: int
    recompute_ns: int
    optimizer_ns: int
    flops: int
    recompute_flops: int
    bytes: int
    peak_allocated: int

    @property
    def duration_ns(self) -> int:
        """Virtual time the step took: until all its work had ended."""
        return self.completion_end - self.completion_start


@dataclass(frozen=True)
class OperatorTotal:
    """One row of the `totals` table, with the operator's class for reports ("" where unknown)."""

    name: str
    kind: str
    count: int
    device_ns: int
    flops: int
    bytes: int
    operator_class: str = ""


@dataclass(frozen=True)
class ModelFacts:
    """What TorchTitan's formula needs of a model. Counts are elements of distinct parameters.

    heads, head_dimensions, layers: -1 where the configuration does not say; head_dimensions is d_qk + d_v.
    active_parameters: those a token passes (all but the experts it is not routed to).
    """

    name: str
    parameters: int
    trainable_parameters: int
    active_parameters: int
    embedding_parameters: int
    tied_embedding: bool
    layers: int = -1
    heads: int = -1
    head_dimensions: int = -1

    @property
    def recognised(self) -> bool:
        """Whether the formula can be applied."""
        return min(self.layers, self.heads, self.head_dimensions) > 0


@dataclass
class RunRecord:
    """Everything a report reads.

    machine: the attached machine's parameters (`Machine.device_parameters()`); provenance of the two peaks in
    `peak_sources`.
    span: the whole run from its first module call. modules: device ns by module path; empty without a trace.
    shortage: of a run without a memory limit that would not have fitted.
    notes: lines for the reader (redirections, stand-ins, why a trace stopped).
    """

    command: str = ""
    ended: str = "completed"
    dry: bool = False
    wall_ns: int = 0
    devices: int = 0
    machine: dict[str, Any] = field(default_factory=dict)
    peak_sources: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    span: Step | None = None
    totals: list[OperatorTotal] = field(default_factory=list)
    modules: dict[str, int] = field(default_factory=dict)
    facts: ModelFacts | None = None
    peak: Peak | None = None
    timeline: Timeline = field(default_factory=Timeline)
    stack: Stack = field(default_factory=Stack)
    shortage: Shortage | None = None
    notes: list[str] = field(default_factory=list)
    trace_directory: str | None = None

    def as_metadata(self) -> dict[str, Any]:
        """For `trace.json`: all but what is in the tables."""
        return {name: value for name, value in asdict(self).items() if name not in ("steps", "totals")}

    @classmethod
    def from_metadata(cls, data: dict[str, Any], steps: list[Step], totals: list[OperatorTotal]) -> RunRecord:
        """The inverse of `as_metadata`; KeyError or TypeError if `data` is not one."""
        data = dict(data)
        data["span"] = Step(**data["span"]) if data["span"] else None
        data["facts"] = ModelFacts(**data["facts"]) if data["facts"] else None
        data["timeline"], data["stack"] = Timeline(**data["timeline"]), Stack(**data["stack"])
        if data.get("shortage"):
            data["shortage"]["held"] = [tuple(holder) for holder in data["shortage"]["held"]]
            data["shortage"] = Shortage(**data["shortage"])
        if data["peak"]:
            data["peak"]["holders"] = [tuple(holder) for holder in data["peak"]["holders"]]
            data["peak"] = Peak(**data["peak"])
        return cls(**data, steps=steps, totals=totals)


def steps_table(steps: list[Step]) -> pa.Table:
    """The `steps` table."""
    return pa.Table.from_pylist([asdict(step) for step in steps], schema=STEPS.arrow())


def totals_table(totals: list[OperatorTotal]) -> pa.Table:
    """The `totals` table."""
    return pa.Table.from_pylist([asdict(total) for total in totals], schema=TOTALS.arrow())
