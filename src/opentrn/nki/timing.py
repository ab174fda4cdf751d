"""Latency of kernels on the virtual clock: `nki.benchmark`, `nki.profile`.

A program takes the same time on every run of the virtual core, so all percentiles are equal: the
distribution that hardware shows (queueing, DVFS, host interference) is not modelled, and reports say so.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

from opentrn.nki.kernel import Kernel, call, unwrap
from opentrn.nki.traced import Traced
from opentrn.nki.tracing import active_or_none


class Latency:
    """`get_latency_percentile(p)`: microseconds, as existing performance tests read it (simulated)."""

    def __init__(self, seconds: float, runs: int) -> None:
        self.seconds, self.runs = seconds, runs

    def get_latency_percentile(self, percentile: float) -> int:
        """Latency in microseconds, at least 1; the same for every percentile."""
        return max(1, round(self.seconds * 1e6))

    @property
    def mean(self) -> float:
        """Microseconds."""
        return self.seconds * 1e6


class BenchmarkResult:
    """`nc_latency`, and `timing`: the virtual core's report of the last call."""

    def __init__(self, timing: Any, runs: int) -> None:
        self.timing, self.nc_latency = timing, Latency(timing.seconds, runs)
        measured.append(self)


# The latest results, for whoever runs other people's benchmarks (`opentrn quality nki`).
measured: deque[BenchmarkResult] = deque(maxlen=16)


class MeasuredKernel(Kernel):
    """A kernel whose calls set `benchmark_result`. Both generations; shared with ``kernel[grid]``."""

    def __init__(
        self, func: Callable[..., Any], grid: Any = None, options: dict[str, Any] | None = None
    ) -> None:
        super().__init__(func, grid, options)
        self._last: dict[str, BenchmarkResult] = self.options.setdefault("_last", {})

    @property
    def benchmark_result(self) -> BenchmarkResult | None:
        """Latency of the last call; None before it."""
        return self._last.get("result")

    def measure(self, traced: Traced) -> None:
        """Take the time of a traced kernel, and write the files that the options name."""
        from opentrn.nki.report import write_artifacts

        self._last["result"] = BenchmarkResult(traced.timing, self.options.get("iters", 100))
        write_artifacts(self.options, traced)


class BenchmarkedKernel(MeasuredKernel):
    """A kernel of `nki.benchmark` or `nki.profile`: calls run it, with results as those of `nki.jit`."""

    def launch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if active_or_none() is not None:
            return self.func(*args, **kwargs)
        chip = self.options.get("chip")
        return call(self.func, self.grid, args, kwargs, chip=chip, observe=self.measure)


def _measured(mode: str, kernel: Any, options: dict[str, Any]) -> Any:
    if kernel is None:
        return functools.partial(_decorate, mode, options)
    return _decorate(mode, options, kernel)


def _decorate(mode: str, options: dict[str, Any], kernel: Any) -> BenchmarkedKernel:
    function, grid = unwrap(kernel)
    return BenchmarkedKernel(function, grid, {**options, "mode": mode})


def benchmark(kernel: Any = None, **options: Any) -> Any:
    """Decorator: calls run the kernel and set ``.benchmark_result.nc_latency`` from the virtual clock.

    Options of the real tool (`warmup`, `iters`, device counts) are accepted. Nothing is written unless
    `save_trace_name` (a Perfetto trace) or `save_neff_name` (the program) is given: files of these names in
    `working_directory`, or in the current one.
    """
    return _measured("benchmark", kernel, options)


def profile(func: Any = None, **options: Any) -> Any:
    """Decorator like `benchmark`, which also writes a report of each profiled run (``num_execs``,
    ``profile_nth``) as JSON."""
    return _measured("profile", func, options)
