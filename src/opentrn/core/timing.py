"""Time: what a program costs on the virtual core, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opentrn.core import _C
from opentrn.core.machine import constants
from opentrn.core.program import Program
from opentrn.core.text import BINARY, CONSTANT, EXPRESSION, LOOPS, REGISTER

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma")


@dataclass(frozen=True)
class Stall:
    """Idle time of one engine in front of one instruction."""

    cause: str
    nanoseconds: float
    instruction: str
    source: str
    engine: str


@dataclass(frozen=True)
class PathStep:
    """A run of equal instructions on the critical path; times in ns."""

    instruction: str
    source: str
    start: float
    end: float
    engine: str
    count: int


@dataclass(frozen=True)
class Timing:
    """The simulated run of a program. Times in ns; `busy` is summed over the cores.

    bytes: path ("hbm->sbuf") → bytes moved. flops: multiply-adds that the program asked for, twice;
    hardware_flops: transposes too and fp32 twice, as the profiler of the real chip counts them. dma_issue:
    time in which the descriptors of the busiest queue were written, one transfer after another.
    """

    program: str
    chip: str
    nanoseconds: float
    busy: dict[str, float]
    counts: dict[str, int]
    bytes: dict[str, float]
    flops: float
    hardware_flops: float
    instructions: int
    stepped: int
    extrapolated_loops: int
    core_nanoseconds: list[float]
    stalls: list[Stall]
    critical_path: list[PathStep]
    assumptions: list[str]
    dma_issue: float
    intervals: dict[str, np.ndarray] = field(repr=False)

    @property
    def seconds(self) -> float:
        return self.nanoseconds * 1e-9

    @property
    def utilisation(self) -> dict[str, float]:
        """Busy share of each engine, averaged over the cores."""
        total = self.nanoseconds * len(self.core_nanoseconds)
        return {engine: busy / total if total else 0.0 for engine, busy in self.busy.items()}

    @property
    def bound(self) -> str:
        """The engine that is busy longest; "dma issue" where descriptors take longer to write than that."""
        busy = {**self.busy, "dma issue": self.dma_issue}
        return max(busy, key=lambda engine: busy[engine]) if any(busy.values()) else "nothing"

    @property
    def hbm_bytes(self) -> float:
        return sum(moved for path, moved in self.bytes.items() if "hbm" in path)

    def cycles(self, engine: str = "tensor") -> float:
        """The whole duration in cycles of an engine's clock."""
        return self.nanoseconds * constants(self.chip)[f"{engine}_ghz"]

    @property
    def roofline(self) -> dict[str, float]:
        """Arithmetic intensity (FLOP per HBM byte), achieved and attainable TFLOP/s (bf16 peak), and the
        rate of the DMA engines."""
        chip = constants(self.chip)
        cores = len(self.core_nanoseconds)
        peak = 2 * 128 * 128 * chip["tensor_ghz"] * 1e-3 * cores
        bandwidth = chip["dma_engines"] * chip["dma_engine_bytes_per_ns"] * 1e-3 * cores
        intensity = self.flops / self.hbm_bytes if self.hbm_bytes else float("inf")
        achieved = self.flops / self.nanoseconds * 1e-3 if self.nanoseconds else 0.0
        return {
            "flop_per_byte": intensity,
            "achieved_tflops": achieved,
            "attainable_tflops": min(peak, intensity * bandwidth),
            "peak_tflops": peak,
            "dma_gbytes_per_second": bandwidth * 1e3,
        }

    def _place_on_roofline(self) -> str:
        roofline = self.roofline
        if not self.flops:  # no products: what moves is what counts
            rate = self.hbm_bytes / self.nanoseconds if self.nanoseconds else 0.0
            peak = roofline["dma_gbytes_per_second"]
            return f"no products; HBM: {rate:.1f} of {peak:.1f} GB/s that the DMA engines move"
        return (
            f"{self.flops / 1e9:.3f} GFLOP, {roofline['achieved_tflops']:.2f} of {roofline['attainable_tflops']:.2f} "  # noqa: E501
            f"attainable TFLOP/s at {roofline['flop_per_byte']:.1f} FLOP per HBM byte"
        )

    def table(self) -> str:
        """What a kernel author wants to know, as lines of text; what the figures assume comes first."""
        lines = [
            *(f"assumed: {text}" for text in self.assumptions),
            f"{self.program} on {self.chip}: {self.nanoseconds / 1e3:.3f} µs simulated, {self.cycles():.0f} Tensor cycles, "  # noqa: E501
            f"{self.instructions} instructions, bound by {self.bound}",
            f"{'engine':<8}{'busy µs':>12}{'share':>8}{'instructions':>14}",
        ]
        for engine in ENGINES:
            lines.append(
                f"{engine:<8}{self.busy.get(engine, 0) / 1e3:>12.3f}{self.utilisation.get(engine, 0):>8.1%}"
                f"{self.counts.get(engine, 0):>14}"
            )
        if self.dma_issue:
            share = self.dma_issue / (self.nanoseconds * len(self.core_nanoseconds))
            lines.append(
                f"{'issue':<8}{self.dma_issue / 1e3:>12.3f}{share:>8.1%}   of DMAs, by the busiest queue"
            )
        lines += [f"{path}: {moved / 1e6:.3f} MB" for path, moved in sorted(self.bytes.items())]
        lines.append(self._place_on_roofline())
        for stall in self.stalls[:3]:
            lines.append(
                f"stall {stall.nanoseconds / 1e3:.3f} µs: {stall.engine} {stall.instruction} {stall.cause} ({stall.source})"  # noqa: E501
            )
        return "\n".join(lines)


def time(
    program: Program,
    symbols: Mapping[str, int] | None = None,
    *,
    extrapolate: bool = True,
    record: bool = False,
    registers: Mapping[str, int] | None = None,
    limit: int = 1 << 36,
    reorder: bool = False,
) -> Timing:
    """Simulates when every instruction runs; values are not needed.

    extrapolate: loops whose relative state repeats are not walked to their end. record: keep every interval
    and the critical path (walks everything). registers: assumed values of registers loaded from memory, and
    "while NAME" → passes of a while loop. limit: instructions after which a program counts as endless.
    reorder: instructions may start in earlier idle time of their engine, as a compiler that reschedules them
    would place them (modelled; the classic one does).
    """
    raw: dict[str, Any] = _C.time(
        program.base, dict(symbols or {}), dict(registers or {}), extrapolate, record, limit, reorder
    )
    cores = raw["cores"]
    total = {engine: sum(core["busy"][engine] for core in cores) for engine in ENGINES}
    counts = {engine: sum(core["counts"][engine] for core in cores) for engine in ENGINES}
    return Timing(
        program=program.name,
        chip=program.chip,
        nanoseconds=raw["nanoseconds"],
        busy=total,
        counts=counts,
        bytes=raw["bytes"],
        flops=raw["flops"],
        hardware_flops=raw["hardware_flops"],
        instructions=raw["instructions"],
        stepped=raw["stepped"],
        extrapolated_loops=raw["extrapolated_loops"],
        core_nanoseconds=[core["nanoseconds"] for core in cores],
        stalls=[Stall(*row) for row in raw["stalls"]],
        critical_path=[PathStep(*row) for row in raw["critical_path"]],
        assumptions=raw["assumptions"],
        dma_issue=sum(core["dma_issue"] for core in cores),
        intervals=raw["intervals"],
    )


def assume_trips(program: Program, trips: int) -> dict[str, int]:
    """The `registers` of `time` with which loops whose bound is loaded from memory, and while loops, run
    `trips` times.

    Bounds that are no linear function of one loaded register get the trip count as that register's value.
    """
    tables = program.tables()
    names = tables["registers"]
    moves = _register_moves(tables)
    assumed = {f"while {name}": trips for name in names}
    for _, start, stop, step, _, kind, _ in tables["loops"]:
        if LOOPS[kind] == "while":
            continue
        first, last, by = (_linear(tables, moves, index) for index in (start, stop, step))
        wanted = first.pop(None, 0) + trips * by.pop(None, 1) - last.pop(None, 0)
        for register, factor in last.items():
            known = not first and not by and len(last) == 1 and factor > 0
            assumed[names[register]] = -(-wanted // factor) if known else trips
    return assumed


def _register_moves(tables: dict[str, Any]) -> dict[int, int]:
    """Registers that are set once, by an expression, and that expression."""
    found: dict[int, list[int]] = {}
    for name, _, arguments, *_ in tables["instructions"]:
        if name == "register_move":
            (_, target), (kind, source) = tables["arguments"][arguments][:2]
            register = tables["expressions"][target][1]
            found.setdefault(register, []).append(source if kind == EXPRESSION else -1)
    return {
        register: sources[0] for register, sources in found.items() if len(sources) == 1 and sources[0] >= 0
    }


def _linear(tables: dict[str, Any], moves: dict[int, int], index: int) -> dict[int | None, int]:
    """An expression as register → factor, None → constant. What is not linear has factor 0."""
    kind, a, b, value = tables["expressions"][index]
    if kind == CONSTANT:
        return {None: value}
    if kind == REGISTER:
        rest = {register: source for register, source in moves.items() if register != a}
        return _linear(tables, rest, moves[a]) if a in moves else {a: 1}
    if kind < REGISTER:
        return {}
    left, right = _linear(tables, moves, a), _linear(tables, moves, b)
    if BINARY[kind] == "+":
        return {key: left.get(key, 0) + right.get(key, 0) for key in (*left, *right)}
    constant, other = (left, right) if left.keys() <= {None} else (right, left)
    if BINARY[kind] == "*" and constant.keys() <= {None}:
        return {key: factor * constant.get(None, 0) for key, factor in other.items()}
    return dict.fromkeys((key for key in (*left, *right) if key is not None), 0)
