"""From the signature of an instruction to the function that kernels call.

The signatures in `isa_compute`, `isa_memory` and `classic/isa` are the table: the annotation of a parameter
says what it is, and the two decorators here write the body once for all of them. A modern instruction writes
into `dst`; a classic one returns a tile whose place is still open. The bodies are generated as code, because
a kernel records a hundred thousand instructions and each argument's conversion would cost a call; a modern
instruction whose arguments are tiles and plain values does not even run it (csrc/core/python/recorder.cpp).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from opentrn.core._C import recorder
from opentrn.nki import enums
from opentrn.nki.isa_common import (
    classic_op_name,
    classic_reduction_name,
    command,
    fill_value,
    member,
    op_name,
    reduction_name,
)
from opentrn.nki.newer import parameters_of, require_parameter
from opentrn.nki.tracing import active

# Kinds of parameters. To a type checker each is Any: kernels pass tiles, views, numbers, registers.
Write: TypeAlias = Any
WriteIfGiven: TypeAlias = Any
Read: TypeAlias = Any
ReadIfGiven: TypeAlias = Any
Scalar: TypeAlias = Any
Filling: TypeAlias = Any  # of the tile that is the first argument
Expression: TypeAlias = Any
Operation: TypeAlias = Any
OperationOrEqual: TypeAlias = Any
Reduction: TypeAlias = Any
ReductionOrMaximum: TypeAlias = Any
Command: TypeAlias = Any
Engine: TypeAlias = Any
DmaEngine: TypeAlias = Any
DgeMode: TypeAlias = Any
OobMode: TypeAlias = Any
PerfMode: TypeAlias = Any
Flag: TypeAlias = Any
Integer: TypeAlias = Any
IntegerIfGiven: TypeAlias = Any
Integers: TypeAlias = Any
Float: TypeAlias = Any
Sequence: TypeAlias = Any
Axes: TypeAlias = Any
Pattern: TypeAlias = Any
Plain: TypeAlias = Any
# Classic only: a tile with the rows of the first operand and its own columns; a tile that broadcasts to it.
ReadRows: TypeAlias = Any
ReadLikeFirst: TypeAlias = Any

# How each kind goes to the builder; {0} is the argument, t the tracer.
_MODERN: dict[str, str] = {
    "Write": "t.write({0})",
    "WriteIfGiven": "None if {0} is None else t.write({0})",
    "Read": "t.read({0})",
    "ReadIfGiven": "None if {0} is None else t.read({0})",
    "Scalar": "t.scalar({0})",
    "Filling": "fill_value(dst, {0})",
    "Expression": "t.expression({0})",
    "Operation": "op_name({0})",
    "OperationOrEqual": "op_name({0}) or 'equal'",
    "Reduction": "reduction_name({0})",
    "ReductionOrMaximum": "reduction_name({0}) or 'maximum'",
    "Command": "command({0})",
    "Engine": "member({0}, enums.engine, 'engine')",
    "DmaEngine": "member({0}, enums.dma_engine, 'dma_engine')",
    "DgeMode": "member({0}, enums.dge_mode, 'dge_mode')",
    "OobMode": "member({0}, enums.oob_mode, 'oob_mode')",
    "PerfMode": "member({0}, enums.matmul_perf_mode, 'perf_mode')",
    "Flag": "bool({0})",
    "Integer": "int({0})",
    "IntegerIfGiven": "None if {0} is None else int({0})",
    "Integers": "[int(value) for value in {0}]",
    "Float": "float({0})",
    "Sequence": "tuple({0} or ())",
    "Axes": "None if {0} is None else tuple({0})",
    "Pattern": "[[int(step), int(count)] for step, count in {0}]",
    "Plain": "{0}",
}
# Classic views are cropped to the mask's box, and read when the instruction finds its place.
_CLASSIC: dict[str, str] = {
    **_MODERN,
    "Write": "result_view({0})",
    "WriteIfGiven": "result_view({0})",
    "Read": "operand({0}, None, box)",
    "ReadRows": "operand({0}, None, box and [box[0], (0, {0}.shape[-1])])",
    "ReadLikeFirst": "spread(operand({0}, None, box), arguments)",
    "Scalar": "number_or_column(t, {0}, box)",
}


# What the core's builder reads itself of each kind; an instruction with another kind runs its body.
_READ_BY_BUILDER = {
    "Write": "write",
    "WriteIfGiven": "write_if_given",
    "Read": "read",
    "ReadIfGiven": "read_if_given",
    "Scalar": "scalar",
    "Filling": "filling",
    "Expression": "integer",
    "Flag": "flag",
    "Integer": "integer",
    "IntegerIfGiven": "integer_if_given",
    "Float": "real",
    "Sequence": "sequence",
    "Plain": "plain",
    "Any": "ignored",
}
# Kinds whose values are few and stay the same objects: the builder asks for the name of each once.
_TOKENS: dict[str, Callable[[Any], str | None]] = {
    "Operation": op_name,
    "OperationOrEqual": lambda op: op_name(op) or "equal",
    "Reduction": reduction_name,
    "ReductionOrMaximum": lambda op: reduction_name(op) or "maximum",
    "Command": command,
    "Engine": lambda value: member(value, enums.engine, "engine"),
    "DmaEngine": lambda value: member(value, enums.dma_engine, "dma_engine"),
    "DgeMode": lambda value: member(value, enums.dge_mode, "dge_mode"),
    "OobMode": lambda value: member(value, enums.oob_mode, "oob_mode"),
    "PerfMode": lambda value: member(value, enums.matmul_perf_mode, "perf_mode"),
}


def instruction(function: Callable[..., None]) -> Callable[..., None]:
    """A modern instruction: each annotated argument goes to the builder under its own name."""
    name = function.__name__
    later = parameters_of(f"nki.isa.{name}")
    checks = [f"require_parameter('nki.isa.{name}', {parameter!r}, {parameter})" for parameter in later]
    body = [*checks, "t = active()", "t.locate()", f"t.emit({name!r}, {_arguments(function, _MODERN)})"]
    in_python = _generate(function, body, {})
    arguments, defaults = [], {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        kind = parameter.annotation
        if kind not in _READ_BY_BUILDER and kind not in _TOKENS:
            return in_python
        taken = "absent" if parameter.name in later else _READ_BY_BUILDER.get(kind, "token")
        arguments.append((parameter.name, taken, _TOKENS.get(kind)))
        if parameter.default is not parameter.empty:
            defaults[parameter.name] = parameter.default
    recorded: Callable[..., None] = recorder(in_python, name, arguments, defaults)
    return functools.update_wrapper(recorded, function)


def tile_instruction(
    columns: int | None = None, dtype: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A classic instruction: its result has the shape and data type of its first operand, or `columns` per
    partition and `dtype`, and is written where it is used."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        from opentrn.nki.classic import operations, tile

        first = next(name for name, kind in function.__annotations__.items() if kind == "Read")
        shape = f"{first}.shape" if columns is None else f"({first}.shape[0], {columns})"
        result_box = "box" if columns is None else f"box and [box[0], (0, {columns})]"
        default = f"arguments[{first!r}].dtype" if dtype is None else repr(dtype)
        body = [
            "t = active()",
            f"box = box_of(mask, {first}.shape)",
            f"arguments = dict({first}=operand({first}, None, box))",
            f"arguments.update({_arguments(function, _CLASSIC, first)})",
            f"out, fixed = dtype_or(dtype, {default})",
            f"return generic({function.__name__!r}, {shape}, out, fixed, {result_box}, **arguments)",
        ]
        tokens = {"op_name": classic_op_name, "reduction_name": classic_reduction_name}
        return _generate(function, body, {**vars(tile), **vars(operations)}, tokens)

    return decorate


def _arguments(function: Callable[..., Any], conversions: dict[str, str], done: str = "") -> str:
    kinds = {name: kind for name, kind in function.__annotations__.items() if name != done}
    given = [
        f"{name}={conversions[kind].format(name)}" for name, kind in kinds.items() if kind in conversions
    ]
    return ", ".join(given)


def _generate(
    function: Callable[..., Any], body: list[str], names: dict[str, Any], tokens: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """`function` with another body; its signature, documentation and file stay. tokens: how operations are
    named, where not as in modern kernels."""
    signature = inspect.signature(function)
    defaults = {
        f"default_{name}": parameter.default
        for name, parameter in signature.parameters.items()
        if parameter.default is not parameter.empty
    }
    bare = [
        parameter.replace(annotation=parameter.empty, default=parameter.empty)
        for parameter in signature.parameters.values()
    ]
    text, star = [], False
    for parameter in bare:
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            text.append("*")
            star = True
        default = f"default_{parameter.name}"
        text.append(f"{parameter}={default}" if default in defaults else str(parameter))
    source = f"def {function.__name__}({', '.join(text)}):\n    " + "\n    ".join(body)
    helpers = {
        "active": active, "command": command, "enums": enums, "fill_value": fill_value, "member": member,
        "op_name": op_name, "reduction_name": reduction_name, "require_parameter": require_parameter,
        **(tokens or {}),
    }  # fmt: skip
    space: dict[str, Any] = {**names, **helpers, **defaults}
    exec(compile(source, function.__code__.co_filename, "exec"), space)
    return functools.wraps(function)(space[function.__name__])
