"""Packed host arrays (``*_x4``: four elements in a word, the first in the lowest bits) and their elements."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from opentrn.errors import ConfigurationError
from opentrn.nki.dtypes import ELEMENT_OF, host_type

_FOUR_BIT = "float4_e2m1fn"


def pack(values: np.ndarray, name: str) -> np.ndarray:
    """Round [..., n] numbers to the elements of a packed type, four to a word: [..., n / 4].

    Raises ConfigurationError if n is no multiple of four.
    """
    if values.ndim == 0 or values.shape[-1] % 4:
        raise ConfigurationError(
            f"an array of shape {values.shape} cannot be packed as {name}",
            cure="its last dimension must be a multiple of 4",
        )
    element = getattr(ml_dtypes, ELEMENT_OF[name])
    codes = np.ascontiguousarray(values.astype(np.float32).astype(element)).view(np.uint8)
    codes = codes.reshape(*values.shape[:-1], values.shape[-1] // 4, 4)
    bits = 4 if ELEMENT_OF[name] == _FOUR_BIT else 8
    host = host_type(name)
    words = np.zeros(codes.shape[:-1], host[0])
    for place in range(4):
        words |= codes[..., place].astype(host[0]) << host[0].type(bits * place)
    return words.view(host)


def unpack(packed: np.ndarray, name: str) -> np.ndarray:
    """The elements of [..., n] words as float32: [..., 4 n]."""
    element = getattr(ml_dtypes, ELEMENT_OF[name])
    bits = 4 if ELEMENT_OF[name] == _FOUR_BIT else 8
    host = host_type(name)
    words = np.ascontiguousarray(packed).view(host[0])
    codes = [(words >> host[0].type(bits * place)) & host[0].type((1 << bits) - 1) for place in range(4)]
    flat = np.stack(codes, axis=-1).astype(np.uint8).view(element)
    return flat.astype(np.float32).reshape(*packed.shape[:-1], 4 * packed.shape[-1])
