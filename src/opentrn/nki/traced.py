"""From a kernel and its arguments to a program: binding, tracing once per program of the launch grid, the
cache.

Both generations of kernels are traced here; what differs between them is a `Dialect`. A program is cached by
function (with the values that its code takes from outside of it), shapes, data types, scalars, launch grid
and chip.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import inspect
import itertools
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from opentrn.errors import ConfigurationError, UnsupportedError
from opentrn.nki import engine_hook, target, version
from opentrn.nki.affine import whole_number
from opentrn.nki.arguments import (
    NotCacheable,
    flatten_result,
    freeze,
    host_array,
    rebuild,
    restore_result,
    to_numpy,
    view_of,
)
from opentrn.nki.dtypes import name_of
from opentrn.nki.enums import MemoryRegion
from opentrn.nki.faults import counted_holders, definition_line, explained
from opentrn.nki.findings import is_strict, tell_carried
from opentrn.nki.overlap import PinnedTensors
from opentrn.nki.tensor import NkiTensor
from opentrn.nki.tracing import Tracer

Place = tuple[int, ...]
# Instructions kept in all, the most recently traced programs first: a server that meets ever new shapes does
# not keep every program.
MOST_INSTRUCTIONS = 4_000_000


@dataclass(frozen=True)
class Launch:
    """A launch grid: programs along each dimension, and which of them each core runs, in order."""

    sizes: tuple[int, ...]
    places: tuple[tuple[Place, ...], ...]

    @property
    def cores(self) -> int:
        return len(self.places)


@dataclass(frozen=True)
class Dialect:
    """How one generation of kernels is traced.

    launch: grid of ``kernel[grid]`` → Launch; wrap: an argument as the kernel sees it; end: called after each
    program of the grid; shared_inputs: whether arguments count as shared between cores even on one core;
    runs_equal_programs_once: programs of the grid that do not ask for their place, and so do the same, run
    once. compiler_schedules: the compiler of these kernels chooses open engines and reorders instructions.
    """

    name: str
    launch: Callable[[Any], Launch]
    wrap: Callable[[NkiTensor], Any]
    end: Callable[[Tracer], None]
    shared_inputs: bool
    runs_equal_programs_once: bool = False
    compiler_schedules: bool = False


def launch_of(grid: Any) -> Launch:
    """The launch of a modern kernel: one program per core. Raises beyond two cores."""
    if grid is None:
        return Launch((), (((0,),),))
    extents = grid if isinstance(grid, (tuple, list)) else (grid,)
    sizes = tuple(whole_number(extent, "a launch grid") for extent in extents)
    cores = int(np.prod(sizes))
    if cores not in (1, 2):
        raise UnsupportedError(
            f"a launch grid of {sizes}: a logical core has one or two cores", cure="kernel[1] or kernel[2]"
        )
    return Launch(sizes, tuple((place,) for place in itertools.product(*map(range, sizes))))


MODERN = Dialect("nki", launch_of, lambda tensor: tensor, Tracer.end_core, False)


@dataclass
class Traced:
    """A kernel as a program, and how to feed it.

    inputs: program name -> path of the argument; result: what the function returned (tensors of the trace);
    updated: program name -> path of arguments that the kernel writes. reorder: as of opentrn.core.time.
    """

    program: Any
    inputs: dict[str, str]
    result: Any
    updated: dict[str, str]
    chip: str
    lnc: int
    outputs: list[NkiTensor] = field(default_factory=list)
    reorder: bool = False
    kernel: str = "kernel"
    told: bool = False  # that elements of its outputs are never written

    @cached_property
    def timing(self) -> Any:
        """The simulated run of the program; loops that repeat are extrapolated."""
        return engine_hook.current().time(self.program, reorder=self.reorder)

    @cached_property
    def recorded(self) -> Any:
        """The simulated run with the interval of every instruction and the critical path."""
        return engine_hook.current().time(self.program, record=True, extrapolate=False, reorder=self.reorder)


# Function → key → program. `_kept` lists the entries in the order of their making.
_caches: weakref.WeakKeyDictionary[Any, dict[Any, Traced]] = weakref.WeakKeyDictionary()
_kept: deque[tuple[weakref.ref[Any], dict[Any, Traced], Any, int]] = deque()
_keeping = threading.Lock()


def forget_programs() -> None:
    """Empty the cache of traced kernels: a long run over many shapes keeps none of them."""
    with _keeping:
        for _, entries, _, _ in _kept:
            entries.clear()
        _kept.clear()
        _caches.clear()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection: a trace makes only what it keeps; walking it again and again costs a fifth."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _keep(known: dict[Any, Traced], key: Any, traced: Traced) -> None:
    """Count a new entry, and drop the oldest where there are too many."""
    with _keeping:
        _kept.append((weakref.ref(traced), known, key, traced.program.instruction_count))
        total = sum(entry[3] for entry in _kept if entry[0]() is not None)
        while total > MOST_INSTRUCTIONS and len(_kept) > 1:
            made, entries, old, count = _kept.popleft()
            total -= count if made() is not None else 0
            entries.pop(old, None)


@dataclass
class Call:
    """One call of a kernel before it is traced. arguments: by parameter name, arrays where the caller has
    them."""

    function: Callable[..., Any]
    launch: Launch
    arguments: dict[str, Any]
    chip: str
    dialect: Dialect
    rank: int = 0
    world: int = 1
    capacity: bool = True  # checked: automatic tensors fit SBUF, pinned ones are not read where overwritten
    values: bool = True  # False: the arrays are placeholders, and the kernel may not look into them
    strict: bool = False  # what else only warns is an error

    def arrays(self) -> dict[str, np.ndarray]:
        """The input arrays by program name."""
        found: dict[str, np.ndarray] = {}

        def collect(path: str, array: Any) -> Any:
            found[f"input_{path}"] = to_numpy(array)
            return array

        for name, value in self.arguments.items():
            rebuild(value, name, collect)
        return found

    def traced(self) -> Traced:
        """The program of the call, from the cache where it is known."""
        try:
            key = self._key()
            known = _caches.setdefault(self.function, {})
        except (NotCacheable, TypeError):
            return self._trace()
        except UnsupportedError:
            self._check_types()
            raise
        traced = known.get(key)
        if traced is None:
            traced = known[key] = self._trace()
            _keep(known, key, traced)
        return traced

    def _check_types(self) -> None:
        """Raises UnsupportedError naming the argument whose data type no NeuronCore has."""

        def check(path: str, array: Any) -> Any:
            try:
                name_of(array.dtype)
            except UnsupportedError as error:
                raise UnsupportedError(
                    f"argument '{path}' of kernel {name_of_kernel(self.function)}: {error.cause}",
                    cure=error.cure,
                ) from error
            return array

        for name, value in self.arguments.items():
            rebuild(value, name, check)

    def _key(self) -> Any:
        return (
            freeze(list(self.arguments.values())),
            self.launch,
            self.chip,
            self.dialect.name,
            self.rank,
            self.world,
            version.current(),
            surroundings(self.function),
            engine_hook.current(),
            self.capacity,
            is_strict(self.strict),
        )

    def _trace(self) -> Traced:
        launch, parameters = self.launch, signature(self.function).parameters
        tracer = Tracer(
            self.chip, launch.cores, len(launch.sizes), name_of_kernel(self.function), self.rank, self.world
        )
        tracer.grid, tracer.values_known = launch.sizes, self.values
        tracer.builder.compiler_engines = self.dialect.compiler_schedules
        tracer.pinned = PinnedTensors() if self.capacity else None
        shared = launch.cores > 1 or self.dialect.shared_inputs
        region = MemoryRegion.shared_hbm if shared else MemoryRegion.private_hbm
        tensors: dict[str, NkiTensor] = {}

        def bind_array(path: str, array: Any) -> Any:
            if path not in tensors:
                tensors[path] = tracer.bind_input(path, to_numpy(array), region)
            return self.dialect.wrap(tensors[path])

        result = None
        with tracer, _no_collection():
            for core, places in enumerate(launch.places):
                for turn, place in enumerate(places):
                    if turn and self.dialect.runs_equal_programs_once and tracer.repeats():
                        break
                    tracer.start_core(core)
                    tracer.place = place
                    positional, named = _arguments(
                        parameters, {k: rebuild(v, k, bind_array) for k, v in self.arguments.items()}
                    )
                    with explained(self.arguments):
                        returned = self.function(*positional, **named)
                    self.dialect.end(tracer)
                    result = returned if result is None else result
            with explained({}, definition_line(self.function)), counted_holders(tracer.places):
                outputs = flatten_result(result)
                updated = tracer.mark_outputs(outputs)
                program = tracer.builder.finish(self.capacity)
            tell_carried(tracer, is_strict(self.strict))
        inputs = {name: name.removeprefix("input_") for name in tracer.inputs}
        tracer.release()
        return Traced(
            program,
            inputs,
            result,
            updated,
            self.chip,
            launch.cores,
            outputs,
            self.dialect.compiler_schedules and not tracer.kept_order,
            name_of_kernel(self.function),
        )


def trace(
    function: Callable[..., Any],
    grid: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    chip: str | None = None,
    rank: int = 0,
    world: int = 1,
    capacity: bool = True,
    dialect: Dialect = MODERN,
    strict: bool = False,
) -> tuple[Traced, dict[str, np.ndarray]]:
    """The program of one call and its input arrays by program name.

    capacity=False: automatic tensors may exceed SBUF, as in the official simulator.
    """
    with explained({}):
        call = Call(
            function,
            dialect.launch(grid),
            bind(function, args, kwargs),
            chip or target.chip(),
            dialect,
            rank,
            world,
            capacity,
            strict=strict,
        )
        return call.traced(), call.arrays()


# Function → its signature and, where every parameter takes one positional argument, their names.
_signatures: weakref.WeakKeyDictionary[Any, tuple[inspect.Signature, tuple[str, ...]]] = (
    weakref.WeakKeyDictionary()
)


def signature(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a kernel, read once."""
    return _read_signature(function)[0]


def _read_signature(function: Callable[..., Any]) -> tuple[inspect.Signature, tuple[str, ...]]:
    try:
        known = _signatures.get(function)
    except TypeError:  # no key of a dictionary
        return inspect.signature(function), ()
    if known is None:
        found = inspect.signature(function)
        places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        plain = all(parameter.kind in places for parameter in found.parameters.values())
        known = _signatures[function] = found, tuple(found.parameters) if plain else ()
    return known


def bind(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by parameter name, defaults included."""
    read, names = _read_signature(function)
    if not kwargs and names and len(args) == len(names):
        return dict(zip(names, args, strict=True))
    try:
        bound = read.bind(*args, **kwargs)
    except TypeError as error:
        raise ConfigurationError(f"kernel {name_of_kernel(function)}: {error}") from error
    bound.apply_defaults()
    return dict(bound.arguments)


def name_of_kernel(function: Any) -> str:
    inner = getattr(function, "func", None)
    return str(getattr(function, "__name__", None) or getattr(inner, "__name__", "kernel"))


# -- what a kernel's code takes from outside of it -----------------------------------------------------------
# Kernel → the (globals, name) that it reads, and which functions stood there when they were listed.
_outside: weakref.WeakKeyDictionary[Any, tuple[list[tuple[Any, str]], list[Any]]] = (
    weakref.WeakKeyDictionary()
)
_PLAIN = (bool, int, float, str, bytes, type(None))


class Same:
    """Equal to nothing but the same object, which it keeps alive."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value


def surroundings(function: Any) -> Any:
    """A hashable stand-in for the closure and the globals that a kernel, and the functions it names, read.

    Raises NotCacheable for a closure whose contents cannot be compared.
    """
    inner = inspect.unwrap(function)
    cells = getattr(inner, "__closure__", None) or ()
    closure = tuple(freeze(cell.cell_contents) for cell in cells)
    code = getattr(inner, "__code__", None)
    if code is None:
        return closure
    listed = _outside.get(inner)
    if listed is None or any(space.get(name) is not value for space, name, value in listed[1]):
        listed = _outside[inner] = _global_names(inner)
    return closure, tuple(_identity(space.get(name)) for space, name in listed[0])


def _global_names(function: types.FunctionType) -> tuple[list[tuple[Any, str]], list[Any]]:
    """(globals, name) of what `function` reads, and what the functions among it read; modules aside. And
    which of these are functions: (globals, name, function)."""
    found: list[tuple[Any, str]] = []
    functions: list[Any] = []
    waiting, seen = [function], {function}
    while waiting:
        current = waiting.pop()
        space = current.__globals__
        for name in sorted(_names(current.__code__)):
            value = space.get(name)
            if name not in space or isinstance(value, types.ModuleType):
                continue
            found.append((space, name))
            inner = getattr(value, "func", value)
            inner = inspect.unwrap(inner) if callable(inner) else None
            if isinstance(inner, types.FunctionType) and not _of_a_library(inner):
                functions.append((space, name, value))
                if inner not in seen:
                    seen.add(inner)
                    waiting.append(inner)
    return found, functions


def _of_a_library(function: types.FunctionType) -> bool:
    return str(function.__module__).split(".")[0] in ("opentrn", "numpy", "torch", "math")


def _names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _identity(value: Any) -> Any:
    """Data by value, anything else by identity."""
    if isinstance(value, _PLAIN):
        return (type(value), value)
    if isinstance(value, (tuple, list, dict)) or dataclasses.is_dataclass(value):
        try:
            return freeze(value)
        except NotCacheable:
            pass
    return Same(value)


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


# -- results -------------------------------------------------------------------------------------------------
def write_back(traced: Traced, values: dict[str, np.ndarray], arrays: dict[str, np.ndarray]) -> None:
    """Arguments that the kernel wrote are updated in place."""
    for name in traced.updated:
        source = arrays[name]
        if source.flags.writeable:
            source[...] = host_array(values[name], name_of(source.dtype)).reshape(source.shape)


def result_array(
    tensor: NkiTensor, values: dict[str, np.ndarray], arrays: dict[str, np.ndarray]
) -> np.ndarray:
    """One tensor of a kernel's result as an array."""
    storage = tensor._storage
    key = storage.program_name
    base = arrays[key] if key in arrays and key not in values else values[key]
    return view_of(host_array(np.asarray(base), storage.dtype), tensor)


def collect_results(traced: Traced, values: dict[str, np.ndarray], arrays: dict[str, np.ndarray]) -> Any:
    """The kernel's result as arrays; arguments that it wrote are updated in place."""
    write_back(traced, values, arrays)
    return restore_result(traced.result, [result_array(tensor, values, arrays) for tensor in traced.outputs])
