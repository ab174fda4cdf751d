"""`neuronxcc.starfish.support`: data types and comparisons that public tests import."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np

from opentrn.nki.dtypes import TABLE as _TABLE
from opentrn.nki.dtypes import host_type, is_float, name_of
from opentrn.nki.packed import pack, unpack

globals().update({_name: _entry.numpy for _name, _entry in _TABLE.items()})
dtype = util = sys.modules[__name__]


def static_cast(array: Any, dtype: Any) -> np.ndarray:
    """An array converted to an NKI type, by rounding to nearest even.

    To a packed type: four numbers of the last dimension become one word (unsigned words are taken as they
    are); from one: each word becomes four numbers.
    """
    name = name_of(dtype)
    host = host_type(name)
    array = np.asarray(array)
    if array.dtype == host:
        return array
    if host.names:
        return array.view(host) if array.dtype == host[0] else pack(array, name)
    if array.dtype.names:
        return unpack(array, name_of(array.dtype)).astype(host)
    return array.astype(np.float32).astype(host) if array.dtype.kind == "V" else array.astype(host)


def sizeinbytes(dtype: Any) -> int:
    """Bytes of one element."""
    return host_type(name_of(dtype)).itemsize


def finfo(dtype: Any) -> Any:
    """Limits of a floating-point type, and the type as arrays hold it, as `numpy.finfo`."""
    return ml_dtypes.finfo(host_type(name_of(dtype)))


def is_float_type(dtype: Any) -> bool:
    """Is it a floating-point type (packed ones included)?"""
    name = name_of(dtype)
    return is_float(name) or name.endswith("_x4")


def allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, verbose: int = 0, **_: Any) -> bool:
    """`np.allclose` in float32; `verbose` prints the largest difference."""
    left, right = np.asarray(a).astype(np.float32), np.asarray(b).astype(np.float32)
    same = bool(np.allclose(left, right, rtol=rtol, atol=atol))
    if verbose and not same:
        print(f"largest difference {np.abs(left - right).max()}")
    return same
