"""The box that a mask selects: bounds of single dimensions are computed, others found among the positions."""

from __future__ import annotations

import operator

import numpy as np
import pytest

from opentrn.errors import UnsupportedError
from opentrn.nki.classic.indexing import Mask, arange

COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge]


@pytest.mark.parametrize("compare", COMPARISONS)
@pytest.mark.parametrize("factor", [-3, -1, 0, 1, 2])
def test_bounds_are_those_of_the_positions(compare, factor):
    for const in range(-12, 13):
        for place in ((slice(None), None), (None, slice(None))):
            mask = compare(factor * arange(5)[place] + const, 0)
            assert mask.box((5, 5)) == Mask(mask.array).box((5, 5)), (const, place)


@pytest.mark.parametrize("compare", COMPARISONS)
def test_conjunctions_of_bounds(compare):
    rows, columns = arange(6)[:, None], arange(8)[None, :]
    for limit in range(-1, 9):
        mask = (limit - rows >= 1) & compare(2 * columns, limit) & (rows > 0)
        assert mask.parts
        assert mask.box((6, 8)) == Mask(mask.array).box((6, 8)), limit
        assert np.array_equal(~mask.array, (~mask).array)


def test_other_masks_are_found_among_the_positions():
    rows, columns = arange(4)[:, None], arange(4)[None, :]
    assert (rows == 2).box((4, 4)) == [(2, 1), (0, 4)]
    assert (rows - columns >= 0).box((4, 4)) is None
    assert ((rows < 2) | (rows < 3)).box((4, 4)) == [(0, 3), (0, 4)]


def test_ranks_are_aligned():
    mask = arange(4)[None, :, None] < 3
    assert mask.box((2, 4)) == Mask(mask.array).box((2, 4)) == [(0, 2), (0, 3)]
    assert (arange(4) < 3).box((2, 4)) == [(0, 2), (0, 3)]
    with pytest.raises(UnsupportedError, match="does not fit"):
        ((arange(4)[:, None, None] < 3) & (arange(4)[None, None, :] < 3)).box((4, 4))
