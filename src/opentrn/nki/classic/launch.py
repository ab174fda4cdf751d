"""Calls of classic kernels: every program of the launch grid is traced in turn, spread over the cores."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

from opentrn import settings
from opentrn.errors import OutOfBoundsError
from opentrn.nki import target
from opentrn.nki.classic.grid import launch_of
from opentrn.nki.classic.mask_logic import with_mask_logic
from opentrn.nki.classic.tile import Tile, flush
from opentrn.nki.kernel import Kernel, call, ignore, on_host_arrays, run
from opentrn.nki.modern.typing import TensorType
from opentrn.nki.timing import MeasuredKernel
from opentrn.nki.traced import Dialect, signature, trace
from opentrn.nki.tracing import active_or_none

CLASSIC = Dialect(
    "neuronxcc.nki",
    launch_of,
    Tile,
    flush,
    shared_inputs=True,
    runs_equal_programs_once=True,
    compiler_schedules=True,
)


_OUTSIDE = re.compile(r"leaves tensor '.*': element (-?\d+) of (\d+)")


class ClassicKernel(MeasuredKernel):
    """A kernel of `neuronxcc.nki.jit`, `baremetal`, `benchmark` or `profile`."""

    def __init__(
        self, func: Callable[..., Any], grid: Any = None, options: dict[str, Any] | None = None
    ) -> None:
        super().__init__(with_mask_logic(func), grid, options)
        if self.options.get("mode") == "simulation":
            self.func = _with_stored_results(self.func)

    def launch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if active_or_none() is not None:
            return self.func(*args, **kwargs)
        chip, check, mode = _chip_of(self.options), _checked(self.options), self.options.get("mode")
        if mode in ("benchmark", "profile"):
            args, kwargs = tuple(map(_data, args)), {name: _data(value) for name, value in kwargs.items()}
        if mode == "benchmark" and on_host_arrays(args, kwargs):  # values are not asked for
            traced, _ = trace(
                self.func, self.grid, args, kwargs, chip, capacity=check, dialect=CLASSIC, strict=check
            )
            self.measure(traced)
            return None
        observe = self.measure if mode in ("benchmark", "profile") else ignore
        with _as_the_simulator_raises(mode):
            result = call(self.func, self.grid, args, kwargs, CLASSIC, chip, check, observe, check)
        return None if mode == "benchmark" else result


@contextlib.contextmanager
def _as_the_simulator_raises(mode: Any) -> Iterator[None]:
    """Kernels of ``mode="simulation"`` are NumPy programs in the public tools; callers test for NumPy's own
    error of an index beyond a tensor, by type and text. Ours, with instruction and line, is its cause."""
    try:
        yield
    except OutOfBoundsError as error:
        outside = _OUTSIDE.search(error.cause)
        if mode != "simulation" or outside is None:
            raise
        index, size = outside.groups()
        raise IndexError(f"index {index} is out of bounds for axis 0 with size {size}") from error


def _data(argument: Any) -> Any:
    """Zeros in place of ``nt.tensor[[rows, columns], dtype]``: a benchmark asks for no values."""
    return argument.zeros() if isinstance(argument, TensorType) else argument


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


def _checked(options: dict[str, Any]) -> bool:
    """Whether a kernel is checked: by its ``check=``, else under OPENTRN_STRICT=1.

    Unchecked, as under the public tools, memory that nothing has written reads as NaN. Nor is it an error
    that tiles in use at the same time need more SBUF than there is: the classic compiler moves such tiles to
    HBM and back (it does in the public batched matmul). A single tile that no partition holds always is one.
    In neither mode is the sum of all tiles a measure: the place of a tile is free after its last use.
    """
    wanted = options.get("check")
    return settings.get("OPENTRN_STRICT") == "1" if wanted is None else bool(wanted)


def _chip_of(options: dict[str, Any]) -> str | None:
    wanted = options.get("platform_target")
    return target.named(wanted, "platform_target") if wanted else None


def _decorator(mode: str, func: Any, options: dict[str, Any]) -> Any:
    if func is None:
        return functools.partial(_decorator_of, mode, options)
    return _decorator_of(mode, options, func)


def _decorator_of(mode: str, options: dict[str, Any], func: Any) -> ClassicKernel:
    inner = func.func if isinstance(func, Kernel) else func
    inherited = (
        {k: v for k, v in func.options.items() if k in ("platform_target", "check")}
        if isinstance(func, Kernel)
        else {}
    )
    return ClassicKernel(inner, getattr(func, "grid", None), {**inherited, **options, "mode": mode})


def jit(func: Any = None, mode: str = "auto", **kwargs: Any) -> Any:
    """Decorator of kernels. check=True (ours): as for `simulate_kernel`."""
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
    """Run a kernel on NumPy arrays.

    check=True (ours): reads of what nothing has written, results of which elements were never written, values
    that `affine_range` carries, and more SBUF in use than there is, raise. What a mask leaves out of a tile
    counts as not written. A kernel's own parameter of that name goes before it.
    """
    function = kernel.func if isinstance(kernel, Kernel) else kernel
    options = kernel.options if isinstance(kernel, Kernel) else {}
    if "check" in kwargs and "check" not in signature(function).parameters:
        options = {**options, "check": kwargs.pop("check")}
    grid, chip, check = getattr(kernel, "grid", None), _chip_of(options), _checked(options)
    return run(function, grid, args, kwargs, chip, CLASSIC, strict=check, check=check)


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
