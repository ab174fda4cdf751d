"""Values of the NumPy oracle: operations, activation functions and casts as documented, on whole arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from opentrn.core.execution import numpy_dtype

F32 = np.float32
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "invert")
UNARY = ("rsqrt", "abs", "logical_not", "invert", "negative", "reciprocal", "square", "sqrt", "relu")
_erf = np.vectorize(math.erf, otypes=[np.float64])

ALU: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "max": np.maximum,
    "min": np.minimum,
    "power": lambda a, b: a**b,
    "mod": np.mod,
    "abs_max": lambda a, b: np.maximum(abs(a), abs(b)),
    "abs_min": lambda a, b: np.minimum(abs(a), abs(b)),
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "logical_and": lambda a, b: (a != 0) & (b != 0),
    "logical_or": lambda a, b: (a != 0) | (b != 0),
    "logical_xor": lambda a, b: (a != 0) ^ (b != 0),
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
    "bypass": lambda a, b: a,
    "rsqrt": lambda a, b: 1 / np.sqrt(a),
    "abs": lambda a, b: abs(a),
    "logical_not": lambda a, b: a == 0,
    "negative": lambda a, b: -a,
    "reciprocal": lambda a, b: 1 / a,
    "square": lambda a, b: a * a,
    "sqrt": lambda a, b: np.sqrt(a),
    "relu": lambda a, b: np.maximum(a, 0),
}


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _normal(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + _erf(x / math.sqrt(2)))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


# In float64: the core's fp32 results are compared with a tolerance of a few units in the last place.
ACTIVATION: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "copy": lambda x: x,
    "identity": lambda x: x,
    "exp": np.exp,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "gelu": lambda x: x * _normal(x),
    "gelu_apprx_tanh": _gelu_tanh,
    "gelu_apprx_sigmoid": lambda x: x * _sigmoid(1.702 * x),
    "gelu_dx": lambda x: _normal(x) + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi),
    "gelu_apprx_sigmoid_dx": lambda x: (
        _sigmoid(1.702 * x) + 1.702 * x * _sigmoid(1.702 * x) * (1 - _sigmoid(1.702 * x))
    ),
    "silu": lambda x: x * _sigmoid(x),
    "silu_dx": lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x))),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "erf": _erf,
    "erf_dx": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "square": lambda x: x * x,
    "abs": np.abs,
    "sign": np.sign,
    "sin": np.sin,
    "cos": np.cos,
    "arctan": np.arctan,
    "log": np.log,
    "tan": np.tan,
    "ceil": np.ceil,
    "floor": np.floor,
    "trunc": np.trunc,
    "rint": np.rint,
    "negative": np.negative,
    "expm1": np.expm1,
    "log1p": np.log1p,
    "exp2": np.exp2,
    "log2": np.log2,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "sigmoid_dx": lambda x: _sigmoid(x) * (1 - _sigmoid(x)),
    "tanh_dx": lambda x: 1 - np.tanh(x) ** 2,
    "relu_dx": lambda x: (x > 0).astype(np.float64),
}
IDENTITY = {
    "add": 0.0,
    "multiply": 1.0,
    "maximum": -np.inf,
    "max": -np.inf,
    "minimum": np.inf,
    "min": np.inf,
    "subtract": 0.0,
    "logical_or": 0.0,
    "logical_and": 1.0,
    "abs_max": 0.0,
}


def cast(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round to nearest even; integers saturate, NaN becomes 0."""
    values = np.asarray(values)
    target = numpy_dtype(dtype)
    if dtype in INTEGERS:
        info = np.iinfo(target)
        exact = values.astype(np.float64) if values.dtype.kind not in "iub" else values.astype(np.int64)
        rounded = (
            np.rint(np.nan_to_num(exact, nan=0.0, posinf=2.0**70, neginf=-(2.0**70)))
            if exact.dtype.kind == "f"
            else exact
        )
        return np.clip(
            rounded,
            float(info.min) if rounded.dtype.kind == "f" else info.min,
            float(info.max) if rounded.dtype.kind == "f" else info.max,
        ).astype(target)
    if dtype == "bool":
        return values != 0
    if dtype == "tfloat32":
        bits = values.astype(F32).view(np.uint32)
        return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~np.uint32(0x1FFF)).astype(np.uint32).view(F32)
    return values.astype(F32).astype(target)
