"""Run a kernel on the virtual core and on the NumPy oracle, and compare."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle

import nki
from opentrn.nki import engine_hook


def on_oracle(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """The kernel's results as the oracle computes them."""
    old = engine_hook.use(oracle)
    try:
        return nki.simulate(kernel, check=False)(*args, **kwargs)
    finally:
        engine_hook.use(old)


def as_list(value: Any) -> list[np.ndarray]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def same(kernel: Any, *args: Any, rtol: float = 1e-5, atol: float = 1e-6) -> list[np.ndarray]:
    """Run on both engines; raises AssertionError where they differ. Returns the core's results."""
    got = as_list(nki.simulate(kernel)(*args))
    expected = as_list(on_oracle(kernel, *args))
    assert len(got) == len(expected)
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.shape == theirs.shape
        assert mine.dtype == theirs.dtype
        if mine.dtype.kind in "iub" or mine.dtype.names:
            np.testing.assert_array_equal(mine, theirs)
        else:
            np.testing.assert_allclose(
                mine.astype(np.float32), theirs.astype(np.float32), rtol=rtol, atol=atol
            )
    return got
