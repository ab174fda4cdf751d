"""What is said of a kernel whose Python does not come to an end while it is traced."""

from __future__ import annotations

import ast
import functools
import linecache
from types import TracebackType

from opentrn.errors import OpenTRNError, UndefinedBehaviourError

_TOO_MANY = "instructions and goes on"  # of csrc/core/python/emit.cpp
_PACKAGE = __file__.rpartition("/")[0]


def explained(error: BaseException | None) -> OpenTRNError | None:
    """The error of a kernel that records too many instructions, with the loop it is in; None for others."""
    if not isinstance(error, UndefinedBehaviourError) or _TOO_MANY not in error.cause:
        return None
    loop = _loop_around(error.__traceback__)
    return UndefinedBehaviourError(
        error.cause if loop is None else f"{error.cause}, in the loop of {loop}",
        where=error.where,
        cure="let its Python loops end, or use nl.dynamic_range, which stays one loop; OPENTRN_STEP_LIMIT "
        "lets a larger kernel through",
    )


def _loop_around(trace: TracebackType | None) -> str | None:
    """Where the loop begins that a traceback stands in: the outermost `while`, else the outermost `for`."""
    found: dict[type[ast.stmt], str] = {}
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_PACKAGE):
            for kind, first, last in _loops_of(file):
                if first <= trace.tb_lineno <= last and kind not in found:
                    found[kind] = f"{file}:{first}"
        trace = trace.tb_next
    return found.get(ast.While) or found.get(ast.For)


@functools.lru_cache(maxsize=64)
def _loops_of(file: str) -> tuple[tuple[type[ast.stmt], int, int], ...]:
    """(kind, first line, last line) of a file's loops, outer ones first."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ()
    return tuple(
        (type(node), node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, (ast.While, ast.For))
    )
