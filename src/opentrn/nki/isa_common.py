"""What every `nki.isa` function does with its arguments before they go to the program builder."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np

from opentrn.errors import ArgumentTypeError, UnsupportedError
from opentrn.nki.dtypes import ELEMENT_OF
from opentrn.nki.enums import reduce_cmd
from opentrn.nki.tracing import active

# Classic kernels name operations by NumPy functions, too; the modern documentation lists none.
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
    """The builder's name of an operation token, an `nl` function. None stays None.

    Raises UnsupportedError for anything else: since NKI 0.3.0 tokens are functions, not strings.
    """
    if op is None:
        return None
    name = getattr(op, "nki_op", None)
    if name is None:
        numpys = _of_numpy(op)
        raise UnsupportedError(
            f"{op!r} is no NKI operation"
            + (": only classic kernels take NumPy's functions" if numpys else ""),
            cure=f"pass a function of nki.language, e.g. nl.{numpys or 'add'}",
        )
    return str(name)


def _of_numpy(op: Any) -> str | None:
    try:
        return _NUMPY_OPERATIONS.get(op)
    except TypeError:  # not hashable
        return None


def classic_op_name(op: Any) -> str | None:
    """As `op_name`, for classic kernels: NumPy functions are tokens as well."""
    return _of_numpy(op) or op_name(op)


def classic_reduction_name(op: Any) -> str | None:
    """As `reduction_name`, for classic kernels."""
    name = classic_op_name(op)
    return None if name is None else _AS_REDUCTION.get(name, name)


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


def fill_value(dst: Any, value: Any) -> Any:
    """What `memset` writes. Raises ArgumentTypeError for a float in a tile of integers, and for what is not 0
    in one of packed elements."""
    dtype = getattr(dst, "dtype", "")
    if dtype in ELEMENT_OF and value != 0:
        raise ArgumentTypeError(
            f"memset of {value!r} into a tile of {dtype}", cure="only 0 fills packed elements"
        )
    if str(dtype).startswith(("int", "uint", "bool")) and isinstance(value, (float, np.floating)):
        raise ArgumentTypeError(
            f"memset of the float {value!r} into a tile of {dtype}: NKI 0.3.0 casts no value",
            cure=f"pass an integer, e.g. {round(value) if np.isfinite(value) else 0}",
        )
    return active().scalar(value)


def command(value: Any) -> str:
    """The name of a `reduce_cmd`."""
    return member(reduce_cmd.idle if value is None else value, reduce_cmd, "reduce_cmd")
