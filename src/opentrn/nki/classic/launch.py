"""Calls of classic kernels: every program of the launch grid is traced in turn, spread over the cores."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opentrn.errors import ConfigurationError
from opentrn.nki import target
from opentrn.nki.classic.grid import launch_of
from opentrn.nki.classic.mask_logic import with_mask_logic
from opentrn.nki.classic.tile import Tile, flush
from opentrn.nki.kernel import Kernel, call, run
from opentrn.nki.timing import BenchmarkResult
from opentrn.nki.traced import Dialect, Traced, trace
from opentrn.nki.tracing import active_or_none

CLASSIC = Dialect("neuronxcc.nki", launch_of, Tile, flush, shared_inputs=True, runs_equal_programs_once=True)


class ClassicKernel(Kernel):
    """A kernel of `neuronxcc.nki.jit`, `baremetal`, `benchmark` or `profile`."""

    def __init__(
        self, func: Callable[..., Any], grid: Any = None, options: dict[str, Any] | None = None
    ) -> None:
        super().__init__(with_mask_logic(func), grid, options)
        if self.options.get("mode") == "simulation":
            self.func = _with_stored_results(self.func)
        self._shared = self.options.setdefault("_shared", {})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if active_or_none() is not None:
            return self.func(*args, **kwargs)
        chip = _chip_of(self.options)
        if self.options.get("mode") in ("benchmark", "profile"):
            traced, _ = trace(self.func, self.grid, args, kwargs, chip, capacity=False, dialect=CLASSIC)
            self._shared["benchmark_result"] = BenchmarkResult(traced.timing, self.options.get("iters", 100))
            _write_artifacts(self.options, traced)
            if self.options.get("mode") == "benchmark":
                return None
        return call(self.func, self.grid, args, kwargs, CLASSIC, chip, check=False)

    @property
    def benchmark_result(self) -> BenchmarkResult:
        """Latency of the last call."""
        return self._shared["benchmark_result"]


def _with_stored_results(func: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel, with what it returns in SBUF or PSUM copied to HBM: the public simulator hands such tiles
    out, a compiled kernel cannot."""
    if hasattr(func, "stores_results"):
        return func

    @functools.wraps(func)
    def stored(*args: Any, **kwargs: Any) -> Any:
        return _store(func(*args, **kwargs))

    stored.stores_results = True  # type: ignore[attr-defined]
    return stored


def _store(value: Any) -> Any:
    from opentrn.nki.classic import language

    if isinstance(value, Tile) and value.on_chip:
        result = language.ndarray(value.shape, dtype=value.dtype, buffer=language.shared_hbm, name="result")
        language.store(result, value=value)
        return result
    return type(value)(_store(item) for item in value) if type(value) in (list, tuple) else value


def _chip_of(options: dict[str, Any]) -> str | None:
    wanted = options.get("platform_target")
    return target.named(wanted, "platform_target") if wanted else None


def _profiled_runs(options: dict[str, Any]) -> list[int]:
    """Which of the `num_execs` runs are profiled: every `profile_nth`, counted from one."""
    runs, every = int(options.get("num_execs") or 1), int(options.get("profile_nth") or 1)
    return list(range(every, runs + 1, every)) or [every]


def _write_artifacts(options: dict[str, Any], traced: Traced) -> None:
    """The files of `benchmark` and `profile` under the names that callers chose, where the public tools put
    them: the program, one Perfetto trace per profiled run (`NAME_exec_N`, all equal), and a report of each as
    JSON."""
    from opentrn.nki.report import summary, write_trace

    folder = Path(options.get("working_directory") or ".")
    program, trace_name = options.get("save_neff_name"), options.get("save_trace_name")
    if not program and not trace_name:
        return
    reports = folder / "json_reports"
    existing = [folder / name for name in (program, trace_name) if name and (folder / name).exists()]
    if options.get("overwrite") is False and existing:
        raise ConfigurationError(
            f"{existing[0]} exists", cure="pass overwrite=True, or another working_directory"
        )
    folder.mkdir(parents=True, exist_ok=True)
    if program:
        (folder / program).write_bytes(traced.program.to_bytes())
    if not trace_name:
        return
    profiling = options.get("mode") == "profile"
    for number in _profiled_runs(options) if profiling else [1]:
        stem = Path(trace_name)
        name = stem.name if number == 1 else f"{stem.stem}_exec_{number}{stem.suffix}"
        write_trace(traced.recorded, traced, folder / stem.parent / name)
        if profiling:
            reports.mkdir(exist_ok=True)
            report = json.dumps(summary(traced.timing, traced), indent=2)
            (reports / f"{Path(name).stem}.json").write_text(report + "\n")


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


def trace_only(func: Any = None, **kwargs: Any) -> Any:
    """Decorator of kernels for `simulate_kernel`, by the older name `nki.trace`."""
    return _decorator("trace", func, kwargs)


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
    return run(function, getattr(kernel, "grid", None), args, kwargs, _chip_of(options), CLASSIC, check=False)


__all__ = [
    "CLASSIC",
    "ClassicKernel",
    "baremetal",
    "benchmark",
    "jit",
    "profile",
    "simulate_kernel",
    "trace_only",
]
