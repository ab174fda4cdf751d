"""Times of large sizes from small ones: a program is walked for a few periods of a loop and extended by
whole periods.

The loop extrapolation of the core stops at loops whose state does not repeat within a few iterations, as
the outer loops of tiled programs rarely do; their passes still take equally long once the pipeline is full.
tests/core/test_operators.py bounds the error against the full walk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opentrn.core import _C
from opentrn.core.program import Program

_LIMIT = 1 << 32  # instructions of one walk


@dataclass(frozen=True)
class Axis:
    """A symbol whose program repeats every `period`. `kept` periods fill the pipeline, `span` more give the
    slope: several, for tiles rotate through places and neighbouring periods differ.
    """

    symbol: str
    period: int
    kept: int
    span: int


def program_ns(program: Program, symbols: Mapping[str, int], axes: tuple[Axis, ...] = ()) -> float:
    """Simulated ns of a program on one core, or on its two; sizes along `axes` may be extended."""
    for number, axis in enumerate(axes):
        periods = symbols[axis.symbol] // axis.period
        more = periods - axis.kept - axis.span
        if more <= 0:
            continue
        rest = axes[number + 1 :]
        size = symbols[axis.symbol] - more * axis.period
        longer = program_ns(program, {**symbols, axis.symbol: size}, rest)
        shorter = program_ns(program, {**symbols, axis.symbol: size - axis.span * axis.period}, rest)
        return longer + more * max(0.0, longer - shorter) / axis.span
    return float(_C.time(program.base, dict(symbols), {}, True, False, _LIMIT)["nanoseconds"])
