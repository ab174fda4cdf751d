"""Time: what a program costs on the virtual core, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opentrn.core import _C
from opentrn.core.machine import constants
from opentrn.core.program import Program

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
    hardware_flops: transposes too and fp32 twice, as the profiler of the real chip counts them.
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
        """The engine that is busy longest."""
        return max(self.busy, key=lambda engine: self.busy[engine]) if any(self.busy.values()) else "nothing"

    @property
    def hbm_bytes(self) -> float:
        return sum(moved for path, moved in self.bytes.items() if "hbm" in path)

    def cycles(self, engine: str = "tensor") -> float:
        """The whole duration in cycles of an engine's clock."""
        return self.nanoseconds * constants(self.chip)[f"{engine}_ghz"]

    @property
    def roofline(self) -> dict[str, float]:
        """Arithmetic intensity (FLOP per HBM byte), achieved and attainable TFLOP/s (bf16 array peak)."""
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
        }

    def table(self) -> str:
        """What a kernel author wants to know, as lines of text."""
        lines = [
            f"{self.program} on {self.chip}: {self.nanoseconds / 1e3:.3f} µs simulated, {self.cycles():.0f} Tensor cycles, "  # noqa: E501
            f"{self.instructions} instructions, bound by {self.bound}",
            f"{'engine':<8}{'busy µs':>12}{'share':>8}{'instructions':>14}",
        ]
        for engine in ENGINES:
            lines.append(
                f"{engine:<8}{self.busy.get(engine, 0) / 1e3:>12.3f}{self.utilisation.get(engine, 0):>8.1%}"
                f"{self.counts.get(engine, 0):>14}"
            )
        lines += [f"{path}: {moved / 1e6:.3f} MB" for path, moved in sorted(self.bytes.items())]
        roofline = self.roofline
        lines.append(
            f"{self.flops / 1e9:.3f} GFLOP, {roofline['achieved_tflops']:.2f} of {roofline['attainable_tflops']:.2f} "  # noqa: E501
            f"attainable TFLOP/s at {roofline['flop_per_byte']:.1f} FLOP per HBM byte"
        )
        for stall in self.stalls[:3]:
            lines.append(
                f"stall {stall.nanoseconds / 1e3:.3f} µs: {stall.engine} {stall.instruction} {stall.cause} ({stall.source})"  # noqa: E501
            )
        lines += [f"assumed: {text}" for text in self.assumptions]
        return "\n".join(lines)


def time(
    program: Program,
    symbols: Mapping[str, int] | None = None,
    *,
    extrapolate: bool = True,
    record: bool = False,
    registers: Mapping[str, int] | None = None,
    limit: int = 1 << 36,
) -> Timing:
    """Simulates when every instruction runs; values are not needed.

    extrapolate: loops whose relative state repeats are not walked to their end. record: keep every interval
    and the critical path (walks everything). registers: assumed values of registers loaded from memory, and
    "while NAME" → passes of a while loop. limit: instructions after which a program counts as endless.
    """
    raw: dict[str, Any] = _C.time(
        program.base, dict(symbols or {}), dict(registers or {}), extrapolate, record, limit
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
        intervals=raw["intervals"],
    )
