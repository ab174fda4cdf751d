"""Element-wise operations and activation functions in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

F = np.float32


def _logical(function: Any) -> Any:
    return lambda x, y: function(x != 0, y != 0)


BINARY: dict[str, Any] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.fmax,
    "minimum": np.fmin,
    "max": np.fmax,
    "min": np.fmin,
    "power": np.power,
    "mod": np.mod,
    "fmod": np.fmod,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": _logical(np.logical_and),
    "logical_or": _logical(np.logical_or),
    "logical_xor": _logical(np.logical_xor),
    "abs_max": lambda x, y: np.fmax(np.abs(x), np.abs(y)),
    "abs_min": lambda x, y: np.fmin(np.abs(x), np.abs(y)),
    # As ALU operations with a (ignored) second operand.
    "rsqrt": lambda x, y: 1 / np.sqrt(x + y),
    "abs": lambda x, y: np.abs(x),
    "reciprocal": lambda x, y: 1 / x,
}
BITS: dict[str, Any] = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
    "arithmetic_shift_right": np.right_shift,
}
_ROOT_2 = F(np.sqrt(2.0))
_TANH_SCALE = F(np.sqrt(2.0 / np.pi))


def _sigmoid(x: Any) -> Any:
    return special.expit(x)


def _gelu_dx(x: Any) -> Any:
    return 0.5 * (1 + special.erf(x / _ROOT_2)) + x * np.exp(-0.5 * x * x) / F(np.sqrt(2 * np.pi))


def _silu_dx(x: Any) -> Any:
    s = _sigmoid(x)
    return s * (1 + x * (1 - s))


def _gelu_sigmoid_dx(x: Any) -> Any:
    s = _sigmoid(F(1.702) * x)
    return s * (1 + F(1.702) * x * (1 - s))


UNARY: dict[str, Any] = {
    "copy": lambda x: x,
    "exp": np.exp,
    "log": np.log,
    "square": np.square,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "abs": np.abs,
    "sign": np.sign,
    "sigmoid": _sigmoid,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + special.erf(x / _ROOT_2)),
    "gelu_dx": _gelu_dx,
    "gelu_apprx_tanh": lambda x: 0.5 * x * (1 + np.tanh(_TANH_SCALE * (x + F(0.044715) * x * x * x))),
    "gelu_apprx_sigmoid": lambda x: x * _sigmoid(F(1.702) * x),
    "gelu_apprx_sigmoid_dx": _gelu_sigmoid_dx,
    "silu": lambda x: x * _sigmoid(x),
    "silu_dx": _silu_dx,
    "tanh": np.tanh,
    "softplus": lambda x: np.logaddexp(x, 0),
    "mish": lambda x: x * np.tanh(np.logaddexp(x, 0)),
    "erf": special.erf,
    "erf_dx": lambda x: F(2 / np.sqrt(np.pi)) * np.exp(-x * x),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "arctan": np.arctan,
    "ceil": np.ceil,
    "floor": np.floor,
    "trunc": np.trunc,
    "reciprocal": lambda x: 1 / x,
}


def apply(name: str, x: Any, y: Any, reverse: bool = False) -> Any:
    """An ALU operation in the domain of its operands (float32, or integers for bit operations)."""
    if reverse:
        x, y = y, x
    function = BITS.get(name) or BINARY[name]
    with np.errstate(all="ignore"):
        return function(x, y)
