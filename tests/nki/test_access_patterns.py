"""Random `.ap()` patterns through the front end and the core, against NumPy's as_strided."""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

import nki

ROWS, WIDTH = 128, 48
KINDS = {nl.float32: np.float32, nl.int32: np.int32, nl.uint8: np.uint8}
# Traces, for each example is a kernel of its own.
few = settings(max_examples=40, deadline=None, derandomize=True)


@st.composite
def reads(draw: Any, room: int, most: int = 3) -> tuple[list[list[int]], int]:
    """(steps and counts of the free dimensions, offset) that stay within `room` elements; they may repeat
    elements."""
    dims = []
    left = room - 1
    for _ in range(draw(st.integers(1, most))):
        step = draw(st.integers(0, 7))
        count = draw(st.integers(1, min(6, left // step + 1 if step else 6)))
        left -= step * (count - 1)
        dims.append([step, count])
    return dims, draw(st.integers(0, left))


@st.composite
def writes(draw: Any, room: int, counts: list[int]) -> tuple[list[list[int]], int] | None:
    """A pattern of these counts that meets no element twice; None where the room is too small."""
    dims, reach = [], 0
    for count in reversed(counts):
        step = reach + draw(st.integers(1, 2))
        dims.append([step, count])
        reach += step * (count - 1)
    return (dims[::-1], draw(st.integers(0, room - 1 - reach))) if reach < room else None


def strided(base: np.ndarray, offset: int, pattern: list[list[int]]) -> np.ndarray:
    """The elements that a pattern names in a contiguous array."""
    flat = base.reshape(-1)[offset:]
    return as_strided(flat, [n for _, n in pattern], [step * base.itemsize for step, _ in pattern])


def data_of(kind: Any, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 200, (ROWS, WIDTH)).astype(KINDS[kind])


@few
@given(st.data(), st.sampled_from(list(KINDS)), st.integers(0, 1000))
def test_reads_from_sbuf(data: Any, kind: Any, seed: int) -> None:
    rows = data.draw(st.sampled_from((1, 5, 32, 64, 128)))
    dims, offset = data.draw(reads(WIDTH))
    pattern = [[WIDTH, rows], *dims]
    shape = (rows, *(count for _, count in dims))

    def kernel(x: Any) -> Any:
        out = nl.ndarray(shape, x.dtype, nl.shared_hbm)
        tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        view = tile.ap(pattern, offset=offset)
        assert view.shape == shape
        piece = nl.ndarray(shape, x.dtype, nl.sbuf)
        nisa.tensor_copy(dst=piece, src=view)
        nisa.dma_copy(dst=out, src=piece)
        return out

    x = data_of(kind, seed)
    np.testing.assert_array_equal(nki.simulate(kernel)(x), strided(x, offset, pattern))


@few
@given(st.data(), st.sampled_from(list(KINDS)), st.integers(0, 1000))
def test_reads_from_hbm(data: Any, kind: Any, seed: int) -> None:
    """HBM has no partitions: the first pair, too, is any step."""
    dims, offset = data.draw(reads(ROWS * WIDTH, 4))
    shape = tuple(count for _, count in dims)

    def kernel(x: Any) -> Any:
        out = nl.ndarray(shape, x.dtype, nl.shared_hbm)
        tile = nl.ndarray(shape, x.dtype, nl.sbuf)
        nisa.dma_copy(dst=tile, src=x.ap(dims, offset=offset))
        nisa.dma_copy(dst=out, src=tile)
        return out

    x = data_of(kind, seed)
    np.testing.assert_array_equal(nki.simulate(kernel)(x), strided(x, offset, dims))


@few
@given(st.data(), st.sampled_from(list(KINDS)), st.integers(0, 1000))
def test_writes_to_sbuf_and_hbm_leave_the_rest(data: Any, kind: Any, seed: int) -> None:
    rows = data.draw(st.sampled_from((1, 32, 128)))
    counts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    drawn, away = data.draw(writes(WIDTH, counts)), data.draw(writes(WIDTH, counts))
    if drawn is None or away is None:
        return
    inside, outside = [[WIDTH, rows], *drawn[0]], [[WIDTH, rows], *away[0]]
    shape = (rows, *counts)

    def kernel(x: Any, y: Any) -> Any:
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
        new = nl.ndarray(x.shape, x.dtype, nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        nisa.dma_copy(dst=new, src=y)
        values = nl.ndarray(shape, x.dtype, nl.sbuf)
        nisa.tensor_copy(dst=values, src=new.ap(outside, offset=away[1]))
        nisa.tensor_copy(dst=tile.ap(inside, offset=drawn[1]), src=values)
        nisa.dma_copy(dst=out, src=tile)
        nisa.dma_copy(dst=out.ap(outside, offset=away[1]), src=values)
        return out

    x, y = data_of(kind, seed), data_of(kind, seed + 1)
    values = strided(y, away[1], outside).copy()
    expected = x.copy()
    strided(expected, drawn[1], inside)[...] = values
    strided(expected, away[1], outside)[...] = values
    np.testing.assert_array_equal(nki.simulate(kernel)(x, y), expected)


@few
@given(st.data(), st.integers(0, 1000))
def test_patterns_of_another_dtype_count_its_elements(data: Any, seed: int) -> None:
    dims, offset = data.draw(reads(4 * WIDTH, 2))
    pattern = [[4 * WIDTH, ROWS], *dims]
    shape = (ROWS, *(count for _, count in dims))

    def kernel(x: Any) -> Any:
        out = nl.ndarray(shape, nl.uint8, nl.shared_hbm)
        tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        nisa.dma_copy(dst=out, src=tile.ap(pattern, offset=offset, dtype=nl.uint8))
        return out

    x = data_of(nl.float32, seed)
    np.testing.assert_array_equal(nki.simulate(kernel)(x), strided(x.view(np.uint8), offset, pattern))


@few
@given(st.data(), st.booleans(), st.integers(0, 1000))
def test_rows_chosen_by_a_register_or_a_column(data: Any, vector: bool, seed: int) -> None:
    """scalar_offset and vector_offset count rows of the tensor."""
    rows = data.draw(st.integers(1, 16))
    dims, offset = data.draw(reads(WIDTH, 2))
    picks = np.array(data.draw(st.lists(st.integers(0, ROWS - rows), min_size=rows, max_size=rows)), np.int32)
    shape = (rows, *(count for _, count in dims))
    pattern = [[WIDTH, rows], *dims]

    def kernel(x: Any, index: Any) -> Any:
        out = nl.ndarray(shape, x.dtype, nl.shared_hbm)
        tile, chosen = nl.ndarray(shape, x.dtype, nl.sbuf), nl.ndarray((rows, 1), nl.int32, nl.sbuf)
        nisa.dma_copy(dst=chosen, src=index)
        if vector:
            source = x.ap(pattern, offset=offset, vector_offset=chosen, indirect_dim=0)
        else:
            register = nisa.register_alloc()
            nisa.register_load(register, chosen[0:1, 0:1])
            source = x.ap(pattern, offset=offset, scalar_offset=register, indirect_dim=0)
        nisa.dma_copy(dst=tile, src=source)
        nisa.dma_copy(dst=out, src=tile)
        return out

    x = data_of(nl.float32, seed)
    if vector:
        expected = np.concatenate(
            [strided(x, offset + int(pick) * WIDTH, [[WIDTH, 1], *dims]) for pick in picks]
        )
    else:
        expected = strided(x, offset + int(picks[0]) * WIDTH, pattern)
    np.testing.assert_array_equal(nki.simulate(kernel)(x, picks[:, None]), expected)


@few
@given(st.data(), st.integers(1, 20))
def test_patterns_that_leave_the_tensor_are_refused(data: Any, beyond: int) -> None:
    dims, offset = data.draw(reads(WIDTH))
    reach = offset + sum(step * (count - 1) for step, count in dims)
    past = offset + WIDTH - 1 - reach + beyond

    def kernel(x: Any) -> Any:
        out = nl.ndarray((ROWS, *(count for _, count in dims)), x.dtype, nl.shared_hbm)
        tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        nisa.dma_copy(dst=out, src=tile.ap([[WIDTH, ROWS], *dims], offset=past))
        return out

    with pytest.raises(IndexError):
        nki.simulate(kernel)(data_of(nl.float32, 0))
