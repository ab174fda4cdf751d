"""`nki.jit`, `nki.simulate` and what a call of a kernel does.

A call binds its arguments, traces the function once per program of the launch grid (`traced`), executes the
program on the virtual core, and hands the results back in the kind of its arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opentrn.errors import ArgumentTypeError, ConfigurationError
from opentrn.nki import engine_hook, torch_calls
from opentrn.nki.arguments import is_array, rebuild
from opentrn.nki.faults import caller_line
from opentrn.nki.findings import on_unwritten
from opentrn.nki.graph import Launchable
from opentrn.nki.traced import MODERN, Dialect, Traced, collect_results, name_of_kernel, trace
from opentrn.nki.tracing import active_or_none


def ignore(traced: Traced) -> None:
    """What a call does with its traced kernel where nobody asks for it."""


def run(
    function: Callable[..., Any],
    grid: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    chip: str | None = None,
    dialect: Dialect = MODERN,
    observe: Callable[[Traced], None] = ignore,
    strict: bool = False,
    **options: Any,
) -> Any:
    """Trace and execute; NumPy results. Options: check, step_limit, on_print (`opentrn.core.execute`).

    strict: what else only warns is an error (`opentrn.nki.findings`).
    """
    capacity = options.get("check", True)
    traced, arrays = trace(
        function, grid, args, kwargs, chip, capacity=capacity, dialect=dialect, strict=strict
    )
    values = engine_hook.execute(
        traced.program, arrays, on_unwritten=on_unwritten([traced], strict), **options
    )
    observe(traced)
    return collect_results(traced, values, arrays)


def run_ranks(
    function: Callable[..., Any],
    grid: Any,
    calls: Sequence[dict[str, Any]],
    chip: str | None = None,
    strict: bool = False,
    **options: Any,
) -> list[Any]:
    """Trace a kernel once per rank and run the ranks together, with collectives between them.

    calls: the arguments of each rank, by name. Returns each rank's NumPy results. Options as for `run`.
    """
    world, capacity = len(calls), options.get("check", True)
    traces = [
        trace(function, grid, (), call, chip, rank, world, capacity, strict=strict)
        for rank, call in enumerate(calls)
    ]
    values = engine_hook.execute_ranks(
        [traced.program for traced, _ in traces],
        [arrays for _, arrays in traces],
        on_unwritten=on_unwritten([traced for traced, _ in traces], strict),
        **options,
    )
    return [
        collect_results(traced, value, arrays) for (traced, arrays), value in zip(traces, values, strict=True)
    ]


class Kernel(Launchable):
    """What `@nki.jit` returns: a kernel that can be called, launched on a grid, simulated and timed."""

    def __init__(
        self, func: Callable[..., Any], grid: Any = None, options: dict[str, Any] | None = None
    ) -> None:
        functools.update_wrapper(self, func, updated=())
        self.func, self.grid, self.options = func, grid, options or {}

    def at(self, grid: Any) -> Kernel:
        """``kernel[grid]``."""
        return type(self)(self.func, grid, self.options)

    def launch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``kernel(*args, **kwargs)``."""
        if active_or_none() is not None:
            return self.func(*args, **kwargs)
        strict = bool(self.options.get("strict"))
        if strict:
            _refuse(self.func)
        return call(self.func, self.grid, args, kwargs, strict=strict)

    def __repr__(self) -> str:
        return f"<nki kernel {name_of_kernel(self.func)}{'' if self.grid is None else f'[{self.grid}]'}>"


def on_host_arrays(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call's arrays are all NumPy's."""
    found: list[Any] = []

    def note(path: str, array: Any) -> Any:
        found.append(array)
        return array

    for value in (*args, *kwargs.values()):
        rebuild(value, "", note)
    return all(isinstance(item, np.ndarray) for item in found)


def call(
    function: Callable[..., Any],
    grid: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dialect: Dialect = MODERN,
    chip: str | None = None,
    check: bool = True,
    observe: Callable[[Traced], None] = ignore,
    strict: bool = False,
) -> Any:
    """A direct call outside of any kernel: results are of the kind of the arguments, arrays or tensors.

    observe: receives the traced kernel.
    """
    if on_host_arrays(args, kwargs):
        return run(function, grid, args, kwargs, chip, dialect, observe, strict, check=check)
    return torch_calls.call(function, grid, args, kwargs, dialect, chip, check, observe, strict)


def jit(func: Callable[..., Any] | None = None, mode: str = "auto", **kwargs: Any) -> Any:
    """Decorator of kernels. `mode` and the other options of the real compiler are accepted and ignored.

    strict=True (ours): calls raise UnsupportedError for Python that the real compiler refuses, with its line,
    and UndefinedBehaviourError for results of which elements were never written.
    """
    if func is None:
        return functools.partial(jit, mode=mode, **kwargs)
    if isinstance(func, Kernel):
        return func
    if not callable(func):
        raise ConfigurationError(f"nki.jit decorates functions, not {type(func).__name__}")
    return Kernel(func, None, {"mode": mode, **kwargs})


# What `nki.simulate` takes: how the core runs a program, and the chip.
_OPTIONS = (
    "check",
    "step_limit",
    "on_print",
    "chip",
    "activation_ranges",
    "parallel",
    "uninitialised",
    "zero_outputs",
)


class Simulated:
    """``nki.simulate(kernel)``: NumPy arrays in, NumPy arrays out. ``[lnc]`` chooses the cores."""

    def __init__(self, function: Callable[..., Any], grid: Any, options: dict[str, Any]) -> None:
        self.function, self.grid, self.options = function, grid, options

    def __getitem__(self, grid: Any) -> Simulated:
        return Simulated(self.function, grid, self.options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return run(self.function, self.grid, args, kwargs, **self.options)

    def ranks(self, calls: Sequence[dict[str, Any]]) -> list[Any]:
        """Run the kernel on as many ranks as there are calls (arguments by name), joined by collectives.

        Returns each rank's results. Raises ConfigurationError without a call.
        """
        if not calls:
            raise ConfigurationError("no ranks to run", cure="pass the arguments of each rank")
        return run_ranks(self.function, self.grid, calls, **self.options)


def _refuse(function: Callable[..., Any]) -> None:
    from opentrn.nki.check import refuse  # which reads kernels of this module

    refuse(function)


def simulate(kernel: Any, strict: bool = False, **options: Any) -> Simulated:
    """A callable that runs a kernel on the virtual core.

    check=False: uninitialised reads give NaN (4 for integers) and races pass, as in the official simulator;
    step_limit: instructions after which a kernel counts as endless (10 million, or OPENTRN_STEP_LIMIT);
    on_print: receives `device_print`.
    activation_ranges=True: activation functions have the ranges that the hardware's tables cover, as NKI
    documents them: inputs outside raise UndefinedBehaviourError, and sin extrapolates beyond pi.
    Elements of a result that were never written are NaN (4 for integers); a warning names them, or with
    check=True, strict=True or OPENTRN_STRICT=1 an error.
    strict=True: raises UnsupportedError for Python that the real kernel compiler refuses, with its line
    (`opentrn.nki.check`).
    """
    function, grid = unwrap(kernel)
    if strict or getattr(kernel, "options", {}).get("strict"):
        _refuse(function)
    unknown = [name for name in options if name not in _OPTIONS]
    if unknown:
        raise ArgumentTypeError(
            f"nki.simulate has no option {unknown[0]!r}",
            where=caller_line(),
            cure=f"one of {', '.join(_OPTIONS)}",
        )
    options["strict"] = strict or bool(options.get("check"))
    return Simulated(function, grid, options)


def unwrap(kernel: Any) -> tuple[Callable[..., Any], Any]:
    """(function, grid) of a kernel or plain function."""
    if isinstance(kernel, Kernel):
        return kernel.func, kernel.grid
    if isinstance(kernel, Simulated):
        return kernel.function, kernel.grid
    if not callable(kernel):
        raise ConfigurationError(f"expected a kernel, got {type(kernel).__name__}")
    return kernel, None


__all__ = [
    "Kernel",
    "Simulated",
    "Traced",
    "call",
    "is_array",
    "jit",
    "run",
    "run_ranks",
    "simulate",
    "trace",
    "unwrap",
]
