"""Registers, loops over them and the ranges of `nki.language`."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Iterator
from typing import Any

from opentrn.errors import ArgumentValueError, UnsupportedError
from opentrn.nki.affine import Affine, Symbol, whole_number
from opentrn.nki.tensor import NKIObject
from opentrn.nki.tracing import Tracer, active, active_or_none


class VirtualRegister(NKIObject):
    """A register of an engine: bound of a loop, condition of a `while`, or offset of an access."""

    __slots__ = ("_open", "symbol", "tracer")

    def __init__(self, tracer: Tracer, key: Any, name: str) -> None:
        self.tracer, self.symbol = tracer, Symbol(key, name, tracer)
        self._open: list[tuple[int, int]] = []

    @property
    def as_affine(self) -> Affine:
        return Affine(0, {self.symbol: 1})

    @property
    def key(self) -> Any:
        return self.symbol.key

    def __bool__(self) -> bool:
        """``while register:``: opens the loop at the first test and closes it at the second."""
        frame = sys._getframe(1)
        span = _while_at(frame.f_code.co_filename, frame.f_lineno)
        if span is None:
            raise UnsupportedError(
                "a register can be the condition of `while` only; its value exists on the device",
                where=f"{frame.f_code.co_filename}:{frame.f_lineno}",
            )
        place = (id(frame), span)
        self.tracer.locate()
        if self._open and self._open[-1] == place:
            self._open.pop()
            self.tracer.loops.pop()
            self.tracer.builder.loop_end()
            return False
        self._open.append(place)
        self.tracer.loops.append(self)
        self.tracer.builder.while_begin(self.symbol.key)
        return True

    def _arithmetic(self, other: Any, name: str) -> Any:
        result = getattr(self.as_affine, name)(getattr(other, "as_affine", other))
        return _into_register(self.tracer, result)

    def __add__(self, other: Any) -> Any:
        return self._arithmetic(other, "__add__")

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._arithmetic(other, "__sub__")

    def __rsub__(self, other: Any) -> Any:
        return self._arithmetic(other, "__rsub__")

    def __mul__(self, other: Any) -> Any:
        return self._arithmetic(other, "__mul__")

    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return _into_register(self.tracer, -self.as_affine)

    def __index__(self) -> int:
        return int(self.as_affine)

    def __repr__(self) -> str:
        return f"VirtualRegister({self.symbol.name})"


def _into_register(tracer: Tracer, value: Any) -> Any:
    """Arithmetic on a register is done when it is written: the result is a register of its own."""
    if not isinstance(value, Affine):
        return value
    result = new_register(tracer, None)
    tracer.locate()
    tracer.emit("register_move", dst=result.key, src=tracer.expression(value))
    return result


def new_register(tracer: Tracer, initial: int | None) -> VirtualRegister:
    tracer.locate()
    key = tracer.builder.register(initial)
    return VirtualRegister(tracer, key, f"register{key}" if not isinstance(key, str) else key)


@functools.lru_cache(maxsize=256)
def _whiles_of(filename: str) -> tuple[tuple[int, int], ...]:
    source = "".join(linecache.getlines(filename))
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ()
    return tuple(
        (node.test.lineno, node.test.end_lineno or node.test.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.While)
    )


def _while_at(filename: str, line: int) -> int | None:
    for first, last in _whiles_of(filename):
        if first <= line <= last:
            return first
    return None


def static_range(start: Any, stop: Any = None, step: int = 1, **_: Any) -> Iterator[int]:
    """A loop that is unrolled while the kernel is traced (also `affine_range`, `sequential_range`)."""
    bounds = (0, start, step) if stop is None else (start, stop, step)
    first, last, stride = (_constant(bound) for bound in bounds)
    if stride == 0:
        raise ArgumentValueError("the step of a range is not 0", cure="a positive or a negative integer")
    values = range(first, last, stride)
    tracer = active_or_none()
    if tracer is None or len(values) < 3:
        return iter(values)
    return _unrolled(tracer, values)


def _constant(bound: Any) -> int:
    if isinstance(bound, (VirtualRegister, Affine)):
        raise UnsupportedError(
            "a loop that unrolls while the kernel is traced has no register as bound: its value exists "
            "only on the device",
            cure="nl.dynamic_range takes registers",
        )
    return whole_number(bound, "a range")


def _unrolled(tracer: Tracer, values: range) -> Iterator[int]:
    builder = tracer.builder
    builder.unroll_begin()
    try:
        for value in values:
            builder.unroll_iteration()
            yield value
    finally:
        builder.unroll_end()


def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Iterator[Any]:
    """A loop of the device: the body is traced once, the variable is a register.

    Bounds are integers or registers, step is a positive constant. Raises UnsupportedError for a register as
    step, inside `nl.no_reorder()`, and for a `break` out of the loop.
    """
    if isinstance(step, (VirtualRegister, Affine)) or not isinstance(step, int) or step < 1:
        raise UnsupportedError(f"the step of dynamic_range must be a positive constant, not {step!r}")
    tracer = active()
    if tracer.in_no_reorder:
        raise UnsupportedError("dynamic_range is not supported inside nl.no_reorder()", where=tracer.where)
    first, last = (0, start) if stop is None else (start, stop)
    return _dynamic(tracer, _bound(tracer, first), _bound(tracer, last), step)


def _bound(tracer: Tracer, value: Any) -> Any:
    """A register as the builder's expression, or an integer."""
    if isinstance(value, (VirtualRegister, Affine)) or hasattr(value, "as_affine"):
        return tracer.expression(value)
    return whole_number(value, "dynamic_range")


def _dynamic(tracer: Tracer, first: Any, last: Any, step: int) -> Iterator[Any]:
    tracer.locate()
    variable = tracer.builder.loop_begin(first, last, step, kind="dynamic")
    tracer.loops.append(variable)
    finished = False
    try:
        yield Affine(0, {Symbol(variable, f"i{len(tracer.loops)}", tracer): 1})
        finished = True
    finally:
        tracer.loops.pop()
        tracer.builder.loop_end()
        if not finished and sys.exc_info()[0] is GeneratorExit and sys.exc_info()[1] is not None:
            tracer.broken_loop = tracer.where  # type: ignore[attr-defined]
