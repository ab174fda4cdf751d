"""Memories of the oracle: bytes, and strided NumPy views of them."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from opentrn.nki.dtypes import ITEMSIZE, TABLE, is_float

from .builder import Access, Expr, Tensor

_SPACE_BYTES = {"sbuf": 262144, "psum": 16384}
WORD = {name: np.dtype(f"<u{entry.itemsize}") for name, entry in TABLE.items() if entry.kind == "packed"}
FP8_MAX = {"float8_e4m3": 240.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


def host(dtype: str) -> np.dtype:
    """NumPy type of an NKI type; packed types as their words."""
    return WORD.get(dtype) or TABLE[dtype].numpy


def cast(values: np.ndarray, dtype: str) -> np.ndarray:
    """Convert computed values: floats to integers round to nearest even and saturate."""
    target = host(dtype)
    if values.dtype == target:
        return values
    kind = TABLE[dtype].kind
    if kind in ("int", "uint"):
        if values.dtype.kind in "iub":
            info = np.iinfo(target)
            return np.clip(values.astype(np.int64), info.min, info.max).astype(target)
        info = np.iinfo(target)
        rounded = np.rint(values.astype(np.float64))
        rounded = np.where(np.isnan(rounded), 0, rounded)
        return np.clip(rounded, info.min, info.max).astype(np.int64).astype(target)
    if kind == "bool":
        return values != 0
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == "tfloat32":
            return values.astype(np.float32)
        return values.astype(np.float32).astype(target)


class Memory:
    """The memories of one logical core."""

    def __init__(self, tensors: list[Tensor], inputs: dict[str, np.ndarray], sentinel: bool = True) -> None:
        self.bytes: dict[int, np.ndarray] = {}
        self.fresh: dict[int, np.ndarray] = {}
        self._arrays: dict[tuple[int, str], np.ndarray] = {}
        for tensor in tensors:
            if tensor.space == "hbm":
                if tensor.kind in ("input", "inout", "constant"):
                    source = tensor.data if tensor.kind == "constant" else inputs[tensor.name]
                    raw = np.array(source, order="C", copy=True).reshape(-1).view(np.uint8)
                else:
                    raw = self._filled(math.prod(tensor.shape), tensor.dtype)
                self.bytes[tensor.id] = raw.reshape(1, -1)
            elif tensor.address is not None:
                key = (tensor.core, tensor.space)
                if key not in self._arrays:
                    whole = np.full((128, _SPACE_BYTES[tensor.space]), 0xFF, np.uint8)
                    self._arrays[key] = whole
                first, start = tensor.address
                self.bytes[tensor.id] = self._arrays[key][
                    first : first + tensor.shape[0], start : start + tensor.partition_bytes
                ]
            else:
                raw = self._filled(math.prod(tensor.shape), tensor.dtype)
                self.bytes[tensor.id] = raw.reshape(tensor.shape[0], -1)

    @staticmethod
    def _filled(count: int, dtype: str) -> np.ndarray:
        if is_float(dtype):
            return np.full(count, np.nan, np.float32).astype(host(dtype)).view(np.uint8)
        return np.full(count, 4).astype(host(dtype)).view(np.uint8)

    def begin(self, tensor: Tensor) -> None:
        """A tensor is created (again): PSUM forgets which elements matmuls have written."""
        if tensor.space == "psum":
            self.fresh[tensor.id] = np.ones((tensor.shape[0], tensor.partition_bytes), np.bool_)

    def view(
        self,
        access: Access,
        registers: dict[Any, int],
        plane: dict[int, np.ndarray] | None = None,
        dtype: np.dtype | None = None,
    ) -> np.ndarray:
        """A writable strided view. Only for accesses without a vector offset."""
        tensor = access.tensor
        base = (plane or self.bytes)[tensor.id]
        size = ITEMSIZE[access.dtype]
        width = base.shape[1] // size
        offset = Expr.value(access.offset, registers)
        if access.scalar_offset is not None:
            offset += self.scalar(access.scalar_offset, registers) * access.scalar_stride
        row, start = divmod(offset, width)
        counts, steps = [], []
        for place, (step, count) in enumerate(access.pattern):
            counts.append(Expr.value(count, registers))
            if tensor.space == "hbm" or place > 0:
                steps.append(step * size)
            else:
                steps.append(step // width * base.strides[0] if counts[0] > 1 else 0)
        last = start * size + sum(
            s * (c - 1) for s, c in zip(steps, counts, strict=True) if tensor.space == "hbm"
        )
        if tensor.space == "hbm" and (last >= base.shape[1] or offset < 0):
            raise IndexError(f"{tensor.name}: element {last // size} of {width}")
        if row >= base.shape[0]:
            raise IndexError(f"{tensor.name}: partition {row} of {base.shape[0]}")
        raw = base[row:, start * size :]
        if dtype is None:
            word = np.dtype(f"<u{size}")
            first = raw[:1, :size].view(word)
            return np.lib.stride_tricks.as_strided(first.reshape(-1), counts, steps).view(host(access.dtype))
        return np.lib.stride_tricks.as_strided(raw[:1, :1].reshape(-1), counts, steps)

    def elements(self, access: Access) -> np.ndarray:
        """The flattened storage; on chip this needs contiguous partitions (unpinned tensors)."""
        base = self.bytes[access.tensor.id]
        flat = base.reshape(-1).view(host(access.dtype))
        assert np.shares_memory(flat, base)
        return flat

    def flat(self, access: Access, registers: dict[Any, int]) -> tuple[np.ndarray, np.ndarray]:
        """(flat index, is it inside) of every element of an access without a vector offset."""
        index = np.asarray([Expr.value(access.offset, registers)], np.int64)
        if access.scalar_offset is not None:
            index = index + self.scalar(access.scalar_offset, registers) * access.scalar_stride
        for step, count in access.pattern:
            index = (index[:, None] + np.arange(Expr.value(count, registers)) * step).reshape(-1)
        return index, (index >= 0) & (index < self.bytes[access.tensor.id].size // ITEMSIZE[access.dtype])

    def scalar(self, source: Any, registers: dict[Any, int]) -> int:
        return (
            int(self.read(source, registers).reshape(-1)[0])
            if isinstance(source, Access)
            else Expr.value(source, registers)
        )

    def _rows(self, access: Access, registers: dict[Any, int]) -> tuple[np.ndarray, np.ndarray]:
        """(flat indices, which rows are inside) of an access with a vector offset."""
        values = self.read(access.vector_offset, registers)
        rows = (
            values.T.reshape(-1).astype(np.int64)
            if values.ndim == 2 and values.shape[1] > 1
            else values.reshape(-1).astype(np.int64)
        )
        counts = [Expr.value(count, registers) for _, count in access.pattern]
        rows = rows[: counts[0]]
        inside = (rows >= 0) & (rows < access.vector_bound) if access.vector_bound else rows >= 0
        index = (rows * access.vector_stride + Expr.value(access.offset, registers)).reshape(-1)
        for (step, _), count in zip(access.pattern[1:], counts[1:], strict=True):
            index = index[..., None] + np.arange(count) * step
        return index, inside

    def read(self, access: Access, registers: dict[Any, int]) -> np.ndarray:
        """A copy-free array where possible."""
        if access.vector_offset is None:
            return self.view(access, registers)
        index, inside = self._rows(access, registers)
        flat = self.bytes[access.tensor.id].reshape(-1).view(host(access.dtype))
        return flat[np.where(inside.reshape(-1, *[1] * (index.ndim - 1)), index, 0)]

    def rows_inside(self, access: Access, registers: dict[Any, int]) -> np.ndarray:
        return self._rows(access, registers)[1]

    def write(
        self, access: Access, registers: dict[Any, int], values: np.ndarray, rows: np.ndarray | None = None
    ) -> None:
        """Store values (cast already). rows: only these rows of the first dimension."""
        if access.vector_offset is None:
            target = self.view(access, registers)
            values = values.reshape(target.shape)
            if rows is None:
                target[...] = values
            else:
                target[rows] = values[rows]
            return
        index, inside = self._rows(access, registers)
        flat = self.bytes[access.tensor.id].reshape(-1).view(host(access.dtype))
        keep = inside if rows is None else inside & rows
        flat[index[keep]] = values.reshape(index.shape)[keep]


bfloat16 = ml_dtypes.bfloat16
