"""`nki.jit`, `nki.simulate` and what a call of a kernel does.

A call binds its arguments, traces the function once per core of the launch (cached by function, shapes,
data types, scalars, launch grid and chip), executes the program on the virtual core, and hands the results
back in the kind of its arguments.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opentrn.errors import ConfigurationError, UnsupportedError
from opentrn.nki import engine_hook, target, version
from opentrn.nki.arguments import (
    NotCacheable,
    flatten_result,
    freeze,
    host_array,
    is_array,
    like_torch,
    rebuild,
    restore_result,
    to_numpy,
    view_of,
)
from opentrn.nki.enums import MemoryRegion
from opentrn.nki.tensor import NkiTensor
from opentrn.nki.tracing import Tracer, active_or_none


@dataclass
class Traced:
    """A kernel as a program, and how to feed it.

    inputs: program name -> path of the argument; result: what the function returned (tensors of the trace);
    updated: program name -> path of arguments that the kernel writes.
    """

    program: Any
    inputs: dict[str, str]
    result: Any
    updated: dict[str, str]
    chip: str
    lnc: int
    outputs: list[NkiTensor] = field(default_factory=list)


_caches: weakref.WeakKeyDictionary[Any, dict[Any, Traced]] = weakref.WeakKeyDictionary()


def launch_of(grid: Any) -> tuple[int, int]:
    """(cores, dimensions of the launch grid) of ``kernel[grid]``. Raises beyond two cores."""
    if grid is None:
        return 1, 0
    dims = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
    cores = 1
    for extent in dims:
        cores *= int(extent)
    if cores not in (1, 2):
        raise UnsupportedError(
            f"a launch grid of {dims}: a logical core has one or two cores", cure="kernel[1] or kernel[2]"
        )
    return cores, len(dims)


def trace(
    function: Callable[..., Any],
    grid: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    chip: str | None = None,
    rank: int = 0,
    world: int = 1,
    capacity: bool = True,
) -> tuple[Traced, dict[str, np.ndarray]]:
    """The program of one call and its input arrays by program name.

    capacity=False: automatic tensors may exceed SBUF, as in the official simulator.
    """
    chip = chip or target.chip()
    lnc, grid_rank = launch_of(grid)
    bound = _bind(function, args, kwargs)
    arrays: dict[str, np.ndarray] = {}

    def collect(path: str, array: Any) -> Any:
        arrays[f"input_{path}"] = to_numpy(array)
        return array

    for name, value in bound.items():
        rebuild(value, name, collect)
    key = None
    try:
        key = (
            freeze(list(bound.values())),
            grid_rank,
            lnc,
            chip,
            rank,
            world,
            version.current(),
            _closure(function),
            engine_hook.current(),
            capacity,
        )
        known = _caches.setdefault(function, {}).get(key)
        if known is not None:
            return known, arrays
    except (NotCacheable, TypeError):
        key = None
    traced = _trace(function, bound, lnc, grid_rank, chip, rank, world, capacity)
    if key is not None:
        _caches[function][key] = traced
    return traced, arrays


def _closure(function: Any) -> Any:
    cells = getattr(inspect.unwrap(function), "__closure__", None) or ()
    return tuple(freeze(cell.cell_contents) for cell in cells)


def _bind(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise ConfigurationError(f"kernel {_name(function)}: {error}") from error
    bound.apply_defaults()
    return dict(bound.arguments)


def _name(function: Any) -> str:
    inner = getattr(function, "func", None)
    return str(getattr(function, "__name__", None) or getattr(inner, "__name__", "kernel"))


def _trace(
    function: Callable[..., Any],
    bound: dict[str, Any],
    lnc: int,
    grid_rank: int,
    chip: str,
    rank: int,
    world: int,
    capacity: bool,
) -> Traced:
    parameters = inspect.signature(function).parameters
    tracer = Tracer(chip, lnc, grid_rank, _name(function), rank, world)
    region = MemoryRegion.shared_hbm if lnc > 1 else MemoryRegion.private_hbm
    tensors: dict[str, NkiTensor] = {}

    def bind_array(path: str, array: Any) -> NkiTensor:
        if path not in tensors:
            tensors[path] = tracer.bind_input(path, to_numpy(array), region)
        return tensors[path]

    result = None
    with tracer:
        for core in range(lnc):
            tracer.start_core(core)
            positional, named = _arguments(
                parameters, {k: rebuild(v, k, bind_array) for k, v in bound.items()}
            )
            returned = function(*positional, **named)
            tracer.end_core()
            if core == 0:
                result = returned
        outputs = flatten_result(result)
        updated = tracer.mark_outputs(outputs)
        program = tracer.builder.finish(capacity)
    inputs = {name: name.removeprefix("input_") for name in tracer.inputs}
    return Traced(program, inputs, result, updated, chip, lnc, outputs)


def _arguments(parameters: Any, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, value in values.items():
        kind = parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            positional.extend(value)
        elif kind is inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        elif kind is inspect.Parameter.POSITIONAL_ONLY or (
            not named and kind is not inspect.Parameter.KEYWORD_ONLY
        ):
            positional.append(value)
        else:
            named[name] = value
    return positional, named


def collect_results(traced: Traced, values: dict[str, np.ndarray], arrays: dict[str, np.ndarray]) -> Any:
    """The kernel's result as arrays; arguments that it wrote are updated in place."""
    for name in traced.updated:
        source = arrays[name]
        if source.flags.writeable:
            source[...] = host_array(values[name], traced_dtype(traced, name, source)).reshape(source.shape)
    results = []
    for tensor in traced.outputs:
        storage = tensor._storage
        key = storage.program_name
        base = arrays[key] if key in arrays and key not in values else values[key]
        results.append(view_of(host_array(np.asarray(base), storage.dtype), tensor))
    return restore_result(traced.result, results)


def traced_dtype(traced: Traced, name: str, array: np.ndarray) -> str:
    from opentrn.nki.dtypes import name_of

    return name_of(array.dtype)


def run(
    function: Callable[..., Any],
    grid: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    chip: str | None = None,
    **options: Any,
) -> Any:
    """Trace and execute; NumPy results. Options: check, step_limit, on_print (`opentrn.core.execute`)."""
    traced, arrays = trace(function, grid, args, kwargs, chip, capacity=options.get("check", True))
    values = engine_hook.execute(traced.program, arrays, **options)
    return collect_results(traced, values, arrays)


class Kernel:
    """What `@nki.jit` returns: a kernel that can be called, launched on a grid, simulated and timed."""

    def __init__(
        self, func: Callable[..., Any], grid: Any = None, options: dict[str, Any] | None = None
    ) -> None:
        functools.update_wrapper(self, func, updated=())
        self.func, self.grid, self.options = func, grid, options or {}

    def __getitem__(self, grid: Any) -> Kernel:
        return type(self)(self.func, grid, self.options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if active_or_none() is not None:
            return self.func(*args, **kwargs)
        return call(self.func, self.grid, args, kwargs)

    def __repr__(self) -> str:
        return f"<nki kernel {_name(self.func)}{'' if self.grid is None else f'[{self.grid}]'}>"


def call(function: Callable[..., Any], grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A direct call outside of any kernel: device tensors go to the device's hook, others are simulated."""
    found: list[Any] = []

    def note(path: str, array: Any) -> Any:
        found.append(array)
        return array

    for value in (*args, *kwargs.values()):
        rebuild(value, "", note)
    if any(getattr(getattr(item, "device", None), "type", "cpu") == "neuron" for item in found):
        hook = device_hook
        if hook is None:
            raise ConfigurationError(
                "a kernel got tensors of the neuron device, which is not loaded",
                cure="import torch before calling the kernel",
            )
        return hook(function, grid, args, kwargs)
    result = run(function, grid, args, kwargs)
    if found and not all(isinstance(item, np.ndarray) for item in found):
        return _to_torch(result)
    return result


# Set by the package that joins kernels to the `neuron` device: (function, grid, args, kwargs) -> tensors.
device_hook: Callable[..., Any] | None = None


def _to_torch(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return like_torch(value)
    if isinstance(value, dict):
        return {key: _to_torch(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_to_torch(item) for item in value)
    return value


def jit(func: Callable[..., Any] | None = None, mode: str = "auto", **kwargs: Any) -> Any:
    """Decorator of kernels. `mode` and the other options of the real compiler are accepted and ignored."""
    if func is None:
        return functools.partial(jit, mode=mode, **kwargs)
    if isinstance(func, Kernel):
        return func
    if not callable(func):
        raise ConfigurationError(f"nki.jit decorates functions, not {type(func).__name__}")
    return Kernel(func, None, {"mode": mode, **kwargs})


class Simulated:
    """``nki.simulate(kernel)``: NumPy arrays in, NumPy arrays out. ``[lnc]`` chooses the cores."""

    def __init__(self, function: Callable[..., Any], grid: Any, options: dict[str, Any]) -> None:
        self.function, self.grid, self.options = function, grid, options

    def __getitem__(self, grid: Any) -> Simulated:
        return Simulated(self.function, grid, self.options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return run(self.function, self.grid, args, kwargs, **self.options)


def simulate(kernel: Any, **options: Any) -> Simulated:
    """A callable that runs a kernel on the virtual core.

    check=False: uninitialised reads give NaN (4 for integers) and races pass, as in the official simulator;
    step_limit: instructions after which a kernel counts as endless; on_print: receives `device_print`.
    """
    function, grid = unwrap(kernel)
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


__all__ = ["Kernel", "Simulated", "Traced", "call", "is_array", "jit", "run", "simulate", "trace", "unwrap"]
