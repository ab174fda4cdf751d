"""Calls of classic kernels: every program of the launch grid is traced in turn, spread over the cores."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from opentrn.errors import UnsupportedError
from opentrn.nki import engine_hook, target
from opentrn.nki.arguments import flatten_result, is_array, rebuild, to_numpy
from opentrn.nki.classic.grid import sizes_of
from opentrn.nki.classic.tile import Tile, flush
from opentrn.nki.enums import MemoryRegion
from opentrn.nki.kernel import Kernel, Traced, _arguments, _bind, _name, collect_results
from opentrn.nki.timing import BenchmarkResult, time_traced
from opentrn.nki.tracing import Tracer, active_or_none


def trace(
    function: Callable[..., Any],
    grid: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    chip: str | None = None,
    capacity: bool = True,
) -> tuple[Traced, dict[str, np.ndarray]]:
    """The program of one call of a classic kernel, and its inputs."""
    sizes, cores = sizes_of(grid)
    if cores > 2:
        raise UnsupportedError(f"{cores} cores: a logical core has one or two")
    chip = chip or target.chip()
    bound = _bind(function, args, kwargs)
    tracer = Tracer(chip, cores, len(sizes), _name(function))
    tracer.grid = sizes
    arrays: dict[str, np.ndarray] = {}
    tensors: dict[str, Any] = {}

    def bind_array(path: str, array: Any) -> Tile:
        if path not in tensors:
            host = to_numpy(array)
            tensors[path] = tracer.bind_input(path, host, MemoryRegion.shared_hbm)
            arrays[f"input_{path}"] = host
        return Tile(tensors[path])

    parameters = inspect.signature(function).parameters
    places = list(itertools.product(*(range(size) for size in sizes))) or [()]
    per_core = -(-len(places) // cores)
    result = None
    with tracer:
        for core in range(cores):
            for place in places[core * per_core : (core + 1) * per_core]:
                tracer.start_core(core)
                tracer.place = place or (0,)
                positional, named = _arguments(
                    parameters, {k: rebuild(v, k, bind_array) for k, v in bound.items()}
                )
                returned = function(*positional, **named)
                flush(tracer)
                result = returned if result is None else result
        outputs = flatten_result(result)
        updated = tracer.mark_outputs(outputs)
        program = tracer.builder.finish(capacity)
    inputs = {name: name.removeprefix("input_") for name in tracer.inputs}
    return Traced(program, inputs, result, updated, chip, cores, outputs), arrays


class ClassicKernel(Kernel):
    """A kernel of `neuronxcc.nki.jit`, `baremetal`, `benchmark` or `profile`."""

    def __init__(
        self, func: Callable[..., Any], grid: Any = None, options: dict[str, Any] | None = None
    ) -> None:
        super().__init__(func, grid, options)
        self._shared = self.options.setdefault("_shared", {})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if active_or_none() is not None:
            return self.func(*args, **kwargs)
        return self.run(args, kwargs)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Trace and run; `benchmark` and `profile` only time, and set `benchmark_result`."""
        traced, arrays = trace(self.func, self.grid, args, kwargs, _chip_of(self.options), capacity=False)
        if self.options.get("mode") in ("benchmark", "profile"):
            timing = time_traced(traced)
            self._shared["benchmark_result"] = BenchmarkResult(timing, self.options.get("iters", 100))
            _write_artifacts(self.options, timing, traced)
            if self.options.get("mode") == "benchmark":
                return None
        values = engine_hook.execute(traced.program, arrays, False)
        return collect_results(traced, values, arrays)

    @property
    def benchmark_result(self) -> BenchmarkResult:
        """Latency of the last call."""
        return self._shared["benchmark_result"]


def _chip_of(options: dict[str, Any]) -> str | None:
    wanted = options.get("platform_target")
    return target.named(wanted, "platform_target") if wanted else None


def _write_artifacts(options: dict[str, Any], timing: Any, traced: Traced) -> None:
    """Files that perf tests look for: the program and the trace under the names they chose."""
    import json
    from pathlib import Path

    folder = Path(options.get("working_directory") or ".")
    for key, content in (
        ("save_neff_name", lambda: traced.program.to_bytes()),
        ("save_trace_name", lambda: json.dumps({"seconds": timing.seconds}).encode()),
    ):
        name = options.get(key)
        if name:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content())


def _decorator(mode: str, func: Any, options: dict[str, Any]) -> Any:
    if func is None:
        return functools.partial(_decorator_of, mode, options)
    return _decorator_of(mode, options, func)


def _decorator_of(mode: str, options: dict[str, Any], func: Any) -> ClassicKernel:
    inner = func.func if isinstance(func, Kernel) else func
    inherited = (
        {k: v for k, v in func.options.items() if k == "platform_target"} if isinstance(func, Kernel) else {}
    )
    return ClassicKernel(inner, getattr(func, "grid", None), {**inherited, **options, "mode": mode})


def jit(func: Any = None, mode: str = "auto", **kwargs: Any) -> Any:
    """Decorator of kernels."""
    return _decorator(mode, func, kwargs)


def baremetal(kernel: Any = None, **kwargs: Any) -> Any:
    """Decorator: calls run the kernel on NumPy arrays."""
    return _decorator("baremetal", kernel, kwargs)


def benchmark(kernel: Any = None, **kwargs: Any) -> Any:
    """Decorator: calls time the kernel on the virtual clock."""
    return _decorator("benchmark", kernel, kwargs)


def profile(func: Any = None, **kwargs: Any) -> Any:
    """Decorator: calls run and time the kernel, and write the named files."""
    return _decorator("profile", func, kwargs)


def simulate_kernel(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a kernel on NumPy arrays."""
    function = kernel.func if isinstance(kernel, Kernel) else kernel
    options = kernel.options if isinstance(kernel, Kernel) else {}
    traced, arrays = trace(
        function, getattr(kernel, "grid", None), args, kwargs, _chip_of(options), capacity=False
    )
    values = engine_hook.execute(traced.program, arrays, False)
    return collect_results(traced, values, arrays)


__all__ = [
    "ClassicKernel",
    "baremetal",
    "benchmark",
    "is_array",
    "jit",
    "profile",
    "simulate_kernel",
    "trace",
]
