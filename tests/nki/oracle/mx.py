"""MX formats: groups of 8 partitions x 4 packed elements share one power-of-two scale (OCP MX 1.0)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

F = np.float32
_LARGEST_EXPONENT = {"float8_e4m3fn_x4": 8, "float8_e5m2_x4": 15, "float4_e2m1fn_x4": 2}
_LARGEST = {"float8_e4m3fn_x4": 448.0, "float8_e5m2_x4": 57344.0, "float4_e2m1fn_x4": 6.0}
_ELEMENT = {"float8_e4m3fn_x4": ml_dtypes.float8_e4m3fn, "float8_e5m2_x4": ml_dtypes.float8_e5m2}


def unpack(words: np.ndarray, dtype: str) -> np.ndarray:
    """[P, W] words to [P, 4 W] float32."""
    words = np.ascontiguousarray(words.reshape(words.shape[0], -1))
    if dtype == "float4_e2m1fn_x4":
        nibbles = np.stack([(words >> shift) & 15 for shift in (0, 4, 8, 12)], axis=-1).astype(np.uint8)
        return nibbles.view(ml_dtypes.float4_e2m1fn).astype(F).reshape(words.shape[0], -1)
    return words.view(np.uint8).view(_ELEMENT[dtype]).astype(F).reshape(words.shape[0], -1)


def scale_row(partition: int) -> int:
    """Partition of the scale of a data partition: four per quadrant of 32."""
    return partition // 32 * 32 + partition % 32 // 8


def dequantise(words: np.ndarray, dtype: str, scale: np.ndarray) -> np.ndarray:
    """[4 * P, W]: contraction rows by columns, scaled."""
    values = unpack(words, dtype)
    partitions, width = values.shape[0], values.shape[1] // 4
    scale = scale.reshape(scale.shape[0], -1)
    rows = [scale_row(p) for p in range(partitions)]
    factors = np.exp2(scale[rows].astype(F) - 127)
    return (values.reshape(partitions, width, 4) * factors[:, :, None]).transpose(0, 2, 1).reshape(-1, width)


def quantise(values: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """(packed [P, N/4], scale bytes [P/8, N/4])."""
    partitions, count = values.shape
    groups = values.reshape(partitions // 8, 8, count // 4, 4)
    top = np.abs(groups).max(axis=(1, 3))
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log2(top)) - _LARGEST_EXPONENT[dtype]
    exponent = np.clip(np.where(top == 0, -127, exponent), -127, 127)
    scaled = groups / np.exp2(exponent)[:, None, :, None]
    limit = _LARGEST[dtype]
    cells = np.clip(scaled, -limit, limit).astype(F).astype(_ELEMENT[dtype])
    packed = np.ascontiguousarray(cells.reshape(partitions, count)).view(np.uint8).view(np.uint32)
    return packed, (exponent + 127).astype(np.uint8)


def place_scale(view: Any, scale: np.ndarray) -> None:
    """Write the scales of each group into its row of the scale tile."""
    flat = view.reshape(view.shape[0], -1)
    if flat.shape[0] == scale.shape[0] and scale.shape[0] <= 4:
        view[...] = scale.reshape(view.shape)
        return
    if flat.shape[0] % 32 == 0:  # whole quadrants: zeros beside the scales
        for partition in range(flat.shape[0]):
            if partition % 32 >= 4:
                view[partition] = 0
    for group in range(scale.shape[0]):
        view[scale_row(group * 8)] = scale[group].reshape(view[0].shape)
