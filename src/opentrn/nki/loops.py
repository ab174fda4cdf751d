"""`nl.fori_loop` and `nl.while_loop` (NKI 0.6.0): loops whose body is a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentrn.errors import UnsupportedError
from opentrn.nki.registers import VirtualRegister, dynamic_range
from opentrn.nki.tracing import active


def fori_loop(lower: Any, upper: Any, body: Callable[..., Any], *init: Any) -> Any:
    """Call ``body(i, *init)`` for i from lower to upper in a loop of the device; tensors carry the state."""
    result = None
    for i in dynamic_range(lower, upper):
        result = body(i, *init)
    return result


def while_loop(condition: Any, body: Callable[..., Any], *init: Any) -> None:
    """Call ``body(*init)`` while a register is not zero. The body must load the register again."""
    register = condition(*init) if callable(condition) else condition
    if not isinstance(register, VirtualRegister):
        raise UnsupportedError(f"while_loop needs a register as condition, got {type(register).__name__}")
    tracer = active()
    tracer.locate()
    tracer.builder.while_begin(register.key)
    body(*init)
    tracer.builder.loop_end()
