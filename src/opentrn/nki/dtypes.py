"""The data types of NKI, as one table.

Since NKI 0.3.0 a data type is its name, a plain string: kernels compare them with ``==``, use them as
dictionary keys and print them. Classic kernels pass NumPy or ml_dtypes types instead; `name_of` maps both.
Packed types (``*_x4``) hold four elements in one word; on the host they are one-field structured arrays,
so that their name survives (the public test suites look for it in ``str(dtype)``).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from opentrn.errors import UnsupportedError


@dataclass(frozen=True)
class DataType:
    """name; bytes per element; kind: "float", "int", "uint", "bool" or "packed"; the host's NumPy type."""

    name: str
    itemsize: int
    kind: str
    numpy: np.dtype


def _packed(name: str, word: str) -> DataType:
    host = np.dtype([(name, word)])
    return DataType(name, host.itemsize, "packed", host)


_ALL = [
    DataType("float32", 4, "float", np.dtype(np.float32)),
    DataType("tfloat32", 4, "float", np.dtype(np.float32)),
    DataType("bfloat16", 2, "float", np.dtype(ml_dtypes.bfloat16)),
    DataType("float16", 2, "float", np.dtype(np.float16)),
    DataType("float8_e4m3", 1, "float", np.dtype(ml_dtypes.float8_e4m3)),
    DataType("float8_e4m3fn", 1, "float", np.dtype(ml_dtypes.float8_e4m3fn)),
    DataType("float8_e5m2", 1, "float", np.dtype(ml_dtypes.float8_e5m2)),
    DataType("float8_e3m4", 1, "float", np.dtype(ml_dtypes.float8_e3m4)),
    DataType("float8_e8m0fnu", 1, "float", np.dtype(ml_dtypes.float8_e8m0fnu)),
    DataType("int32", 4, "int", np.dtype(np.int32)),
    DataType("int16", 2, "int", np.dtype(np.int16)),
    DataType("int8", 1, "int", np.dtype(np.int8)),
    DataType("uint32", 4, "uint", np.dtype(np.uint32)),
    DataType("uint16", 2, "uint", np.dtype(np.uint16)),
    DataType("uint8", 1, "uint", np.dtype(np.uint8)),
    DataType("bool", 1, "bool", np.dtype(np.bool_)),
    _packed("float8_e4m3fn_x4", "<u4"),
    _packed("float8_e5m2_x4", "<u4"),
    _packed("float4_e2m1fn_x4", "<u2"),
]
TABLE: dict[str, DataType] = {entry.name: entry for entry in _ALL}
ITEMSIZE: dict[str, int] = {entry.name: entry.itemsize for entry in _ALL}
# The element types inside a packed word.
ELEMENT_OF = {
    "float8_e4m3fn_x4": "float8_e4m3fn",
    "float8_e5m2_x4": "float8_e5m2",
    "float4_e2m1fn_x4": "float4_e2m1fn",
}
# NumPy finds the packed types by name, as it finds those of ml_dtypes: np.zeros(shape, nl.float8_e4m3fn_x4).
for _name in ELEMENT_OF:
    np.sctypeDict.setdefault(_name, TABLE[_name].numpy)  # type: ignore[arg-type]
_ALIASES = {"bool_": "bool", "float8e4": "float8_e4m3", "float8e5": "float8_e5m2", "fp32": "float32"}
_KNOWN: dict[Any, str] = {}


def name_of(dtype: Any) -> str:
    """The NKI name of a data type given as a name, a NumPy, ml_dtypes or torch type.

    Raises UnsupportedError for types that no NeuronCore has (float64, int64, complex).
    """
    try:
        found = _KNOWN.get(dtype)
    except TypeError:
        found = None
    if found is not None:
        return found
    found = _resolve(dtype)
    with contextlib.suppress(TypeError):  # not hashable
        _KNOWN[dtype] = found
    return found


def _resolve(dtype: Any) -> str:
    if isinstance(dtype, str):
        name = dtype
    elif type(dtype).__module__ == "torch":
        name = str(dtype).removeprefix("torch.")
    else:
        host = np.dtype(dtype)
        name = host.names[0] if host.names else host.name
    name = _ALIASES.get(name, name)
    if name not in TABLE:
        raise UnsupportedError(
            f"the data type {name!r} does not exist on a NeuronCore",
            cure=f"convert to one of {', '.join(TABLE)}",
        )
    return name


def host_type(name: str) -> np.dtype:
    """The NumPy type that holds a tensor of this NKI type on the host."""
    return TABLE[name].numpy


def is_float(name: str) -> bool:
    return TABLE[name].kind == "float"


def is_integer(name: str) -> bool:
    return TABLE[name].kind in ("int", "uint", "bool")


def sentinel(name: str) -> Any:
    """What an uninitialised element reads as when kernels run with `uninitialised="nan"`.

    NaN for floats, 4 for integers: the documented behaviour of `nki.simulate` (NKI 0.3.0 simulator guide).
    """
    return np.nan if is_float(name) else 4
