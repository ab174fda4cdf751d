"""What the value tests share: random patterns, a one-instruction program, comparison with the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from oracle_numpy import interpret

from opentrn.core import Builder, execute
from opentrn.core.execution import numpy_dtype

FLOATS = ("float32", "bfloat16", "float16")
SMALL_FLOATS = ("float8_e4m3", "float8_e4m3fn", "float8_e5m2")
INTEGERS = ("int32", "uint32", "int16", "uint16", "int8", "uint8")
TOLERANCE = {
    "float32": 2e-5,
    "tfloat32": 2e-3,
    "bfloat16": 1.6e-2,
    "float16": 2e-3,
    "float8_e4m3": 0.13,
    "float8_e4m3fn": 0.13,
    "float8_e5m2": 0.26,
}


@dataclass(frozen=True)
class Pattern:
    """Free dimensions of an on-chip access: (stride, count) each, an offset and the row length it needs."""

    dims: tuple[tuple[int, int], ...]
    offset: int

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(count for _, count in self.dims)

    @property
    def elements(self) -> int:
        return int(np.prod(self.counts))

    @property
    def row(self) -> int:
        return self.offset + sum(stride * (count - 1) for stride, count in self.dims) + 1


@st.composite
def counts(draw: Any, most: int = 3, largest: int = 7) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.integers(1, largest), min_size=1, max_size=most)))


@st.composite
def patterns(draw: Any, shape: Sequence[int], overlapping: bool = False) -> Pattern:
    """A pattern of that shape; overlapping ones may repeat elements (stride 0), as a source may."""
    dims: list[tuple[int, int]] = []
    reach = 0
    for count in reversed(shape):
        stride = reach + draw(st.integers(1, 3))
        if overlapping and draw(st.booleans()):
            stride = draw(st.integers(0, 2))
        dims.append((stride, count))
        reach = max(reach, reach + stride * (count - 1))
    return Pattern(tuple(reversed(dims)), draw(st.integers(0, 4)))


@st.composite
def partitions(draw: Any) -> tuple[int, int]:
    """(start, count) that obeys the partition-start rule."""
    count = draw(st.sampled_from((1, 2, 5, 31, 32, 33, 64, 65, 128)))
    starts = (0,) if count > 64 else (0, 64) if count > 32 else (0, 32, 64, 96)
    return draw(st.sampled_from([start for start in starts if start + count <= 128])), count


def values(dtype: str, shape: tuple[int, ...], seed: int, low: float = -4.0, high: float = 4.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype in INTEGERS:
        info = np.iinfo(numpy_dtype(dtype))
        return rng.integers(max(info.min, -1000), min(info.max, 1000), shape, endpoint=True).astype(
            numpy_dtype(dtype)
        )
    return rng.uniform(low, high, shape).astype(np.float32).astype(numpy_dtype(dtype))


class Case:
    """A program under construction whose tensors are filled from inputs and read back whole."""

    def __init__(self, chip: str = "trn2", seed: int = 0) -> None:
        self.builder = Builder(chip=chip, name="case")
        self.inputs: dict[str, np.ndarray] = {}
        self.read_back: list[tuple[Any, str]] = []
        self.seed = seed

    def tile(
        self,
        shape: tuple[int, ...],
        dtype: str,
        space: str = "sbuf",
        data: np.ndarray | None = None,
        low: float = -4.0,
        high: float = 4.0,
    ) -> Any:
        """An on-chip tensor filled with data (random where None)."""
        name = f"t{len(self.inputs)}"
        if data is None:
            self.seed += 1
            data = values(dtype, shape, self.seed, low, high)
        self.inputs[name] = data
        source = self.builder.hbm(name, shape, dtype)
        tile = getattr(self.builder, space)(name, shape, dtype)
        if space == "sbuf":
            self.builder.emit("dma_copy", dst=tile, src=source)
        else:
            staged = self.builder.sbuf(name + "_staged", shape, dtype)
            self.builder.emit("dma_copy", dst=staged, src=source)
            self.builder.emit("tensor_copy", dst=tile, src=staged)
        return tile

    def operand(
        self,
        pattern: Pattern,
        dtype: str,
        place: tuple[int, int] = (0, 128),
        space: str = "sbuf",
        data: np.ndarray | None = None,
        low: float = -4.0,
        high: float = 4.0,
    ) -> Any:
        """An access with that pattern into a tensor of its own."""
        row = pattern.row
        tile = self.tile((128, row), dtype, space, data, low, high)
        start, count = place
        return self.builder.access(tile, ((row, count), *pattern.dims), start * row + pattern.offset)

    def keep(self, access: Any) -> Any:
        """The access's whole tensor becomes an output."""
        self.read_back.append(
            (access.tensor if hasattr(access, "tensor") else access, f"out{len(self.read_back)}")
        )
        return access

    def run(
        self, exact: bool = True, tolerance: dict[str, float] | None = None, **options: Any
    ) -> dict[str, np.ndarray]:
        """Executes, compares every kept tensor with the oracle, returns the outputs."""
        for tensor, name in self.read_back:
            out = self.builder.hbm(name, tensor.shape, tensor.dtype, kind="output")
            if tensor.space == "psum":
                staged = self.builder.sbuf(name + "_staged", tensor.shape, tensor.dtype)
                self.builder.emit("tensor_copy", dst=staged, src=tensor)
                tensor = staged
            self.builder.emit("dma_copy", dst=out, src=tensor)
        program = self.builder.finish()
        found, expected = execute(program, self.inputs, **options), interpret(program, self.inputs)
        for tensor, name in self.read_back:
            compare(
                found[name],
                expected[name],
                None if exact else (tolerance or TOLERANCE).get(tensor.dtype, 0.0),
            )
        return found


def compare(found: np.ndarray, expected: np.ndarray, tolerance: float | None) -> None:
    """None: equal bit for bit (NaN equals NaN)."""
    if tolerance is None or found.dtype.kind in "iub":
        np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))
    else:
        np.testing.assert_allclose(
            found.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance
        )
