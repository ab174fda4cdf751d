"""Latency of kernels on the virtual clock: `nki.benchmark`, `nki.profile`.

A program takes the same time on every run of the virtual core, so all percentiles are equal: the
distribution that hardware shows (queueing, DVFS, host interference) is not modelled, and reports say so.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

from opentrn.nki import engine_hook
from opentrn.nki.kernel import Kernel, unwrap
from opentrn.nki.traced import collect_results, trace


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


class BenchmarkedKernel(Kernel):
    """A kernel whose calls also set `benchmark_result`."""

    benchmark_result: BenchmarkResult | None = None

    def __init__(self, func: Any, grid: Any = None, options: dict[str, Any] | None = None) -> None:
        super().__init__(func, grid, options)
        self._holder: dict[str, Any] = self.options.setdefault("_holder", {})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        traced, arrays = trace(self.func, self.grid, args, kwargs, self.options.get("chip"))
        self.benchmark_result = BenchmarkResult(traced.timing, self.options.get("iters", 10))
        self._holder["result"] = self.benchmark_result
        values = engine_hook.execute(traced.program, arrays, False)
        return collect_results(traced, values, arrays)

    def __getattribute__(self, name: str) -> Any:
        if name == "benchmark_result":
            return object.__getattribute__(self, "_holder").get("result")
        return object.__getattribute__(self, name)


def benchmark(kernel: Any = None, warmup: int = 10, iters: int = 100, **options: Any) -> Any:
    """Decorator: calls run the kernel and set ``.benchmark_result.nc_latency`` from the virtual clock.

    Options of the real tool (device counts, file names) are accepted; nothing is written unless
    `save_trace_name` is given (then a Perfetto trace, by `opentrn.cli`).
    """
    if kernel is None:
        return functools.partial(benchmark, warmup=warmup, iters=iters, **options)
    function, grid = unwrap(kernel)
    return BenchmarkedKernel(function, grid, {"warmup": warmup, "iters": iters, **options})


def profile(func: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorator like `benchmark`; ``working_directory`` and ``save_trace_name`` choose a trace file."""
    if func is None:
        return functools.partial(profile, **options)
    return benchmark(func, **options)
