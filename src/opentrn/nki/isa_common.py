"""What every `nki.isa` function does with its arguments before they go to the program builder."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np

from opentrn.errors import UnsupportedError
from opentrn.nki.enums import reduce_cmd

# Classic kernels (and a few modern ones) name ALU operations by NumPy functions.
_NUMPY_OPERATIONS = {
    np.add: "add",
    np.subtract: "subtract",
    np.multiply: "multiply",
    np.divide: "divide",
    np.maximum: "maximum",
    np.minimum: "minimum",
    np.amax: "maximum",
    np.max: "maximum",
    np.amin: "minimum",
    np.min: "minimum",
    np.sum: "add",
    np.power: "power",
    np.abs: "abs",
    np.absolute: "abs",
    np.equal: "equal",
    np.not_equal: "not_equal",
    np.greater: "greater",
    np.greater_equal: "greater_equal",
    np.less: "less",
    np.less_equal: "less_equal",
    np.logical_and: "logical_and",
    np.logical_or: "logical_or",
    np.logical_xor: "logical_xor",
    np.logical_not: "logical_not",
    np.bitwise_and: "bitwise_and",
    np.bitwise_or: "bitwise_or",
    np.bitwise_xor: "bitwise_xor",
    np.left_shift: "left_shift",
    np.right_shift: "right_shift",
    np.invert: "invert",
    np.square: "square",
    np.sqrt: "sqrt",
    np.exp: "exp",
    np.log: "log",
    np.tanh: "tanh",
    np.sin: "sin",
    np.cos: "cos",
    np.mod: "mod",
    np.fmod: "fmod",
    np.reciprocal: "reciprocal",
    np.sign: "sign",
    np.negative: "negative",
    np.copy: "copy",
    np.mean: "mean",
    np.arctan: "arctan",
    np.floor: "floor",
    np.ceil: "ceil",
    np.trunc: "trunc",
    np.prod: "multiply",
}
_AS_REDUCTION = {"max": "maximum", "min": "minimum", "sum": "add", "prod": "multiply", "all": "logical_and"}


def op_name(op: Any) -> str | None:
    """The builder's name of an operation token: an `nl` function or a NumPy one. None stays None.

    Raises UnsupportedError for anything else: since NKI 0.3.0 tokens are functions, not strings.
    """
    if op is None:
        return None
    name = getattr(op, "nki_op", None)
    if name is None:
        try:
            name = _NUMPY_OPERATIONS.get(op)
        except TypeError:
            name = None
    if name is None:
        raise UnsupportedError(
            f"{op!r} is no NKI operation",
            cure="pass a function of nki.language, e.g. nl.add",
        )
    return name


def reduction_name(op: Any) -> str | None:
    """As `op_name`, for the operation of a reduction (nl.max means nl.maximum)."""
    name = op_name(op)
    return None if name is None else _AS_REDUCTION.get(name, name)


def member(value: Any, kind: type[Enum], argument: str) -> str:
    """The name of an enumeration member. Raises UnsupportedError for other kinds of argument."""
    if type(value) is kind:
        return value._name_  # a plain attribute; `name` is a descriptor of enum's
    if value is None:
        return "unknown"
    if isinstance(value, Enum):
        return value.name
    try:
        return kind(value).name  # public kernels pass the number of a member in places
    except ValueError:
        pass
    raise UnsupportedError(f"{argument} must be a member of nisa.{kind.__name__}, not {value!r}")


def command(value: Any) -> str:
    """The name of a `reduce_cmd`."""
    return member(reduce_cmd.idle if value is None else value, reduce_cmd, "reduce_cmd")
