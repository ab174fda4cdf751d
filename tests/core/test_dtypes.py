"""Conversions are ml_dtypes' bit for bit: every code decoded, every rounding boundary encoded."""

from __future__ import annotations

import numpy as np
import pytest
from oracle_values import cast

from opentrn.core import _C
from opentrn.core.execution import numpy_dtype

EIGHT_BIT = ("float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float8_e3m4")


def bits(array: np.ndarray) -> np.ndarray:
    return array.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[array.dtype.itemsize])


def hard_values(dtype: str) -> np.ndarray:
    """Every value of the format, the midpoints between neighbours, and what lies just beside them."""
    size = numpy_dtype(dtype).itemsize
    if size == 1:
        codes = np.arange(256, dtype=np.uint8)
    else:
        codes = np.random.default_rng(0).integers(0, 1 << 16, 20000).astype(np.uint16)
    exact = codes.view(numpy_dtype(dtype)).astype(np.float32)
    exact = np.sort(exact[np.isfinite(exact)])
    middle = ((exact[1:].astype(np.float64) + exact[:-1]) / 2).astype(np.float32)
    beside = [np.nextafter(x, np.float32(sign * np.inf)) for x in (exact, middle) for sign in (1, -1)]
    rng = np.random.default_rng(1)
    anything = rng.integers(0, 1 << 32, 50000, dtype=np.uint32).view(np.float32)
    special = np.array(
        [
            0.0,
            -0.0,
            np.inf,
            -np.inf,
            np.nan,
            1e-45,
            -1e-45,
            3.4e38,
            65504,
            65519.9,
            65520,
            448,
            464,
            240,
            248,
        ],
        np.float32,
    )
    return np.concatenate([exact, middle, *beside, anything, special])


@pytest.mark.parametrize("dtype", ("bfloat16", "float16", *EIGHT_BIT))
def test_rounding_agrees_with_ml_dtypes(dtype: str) -> None:
    values = hard_values(dtype)
    with np.errstate(all="ignore"):
        expected = values.astype(numpy_dtype(dtype))
    found = _C.encode(dtype, values).view(numpy_dtype(dtype))
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(bits(found)[numbers], bits(expected)[numbers])
    assert np.isnan(found[~numbers].astype(np.float32)).all()


@pytest.mark.parametrize("dtype", (*EIGHT_BIT, "float8_e8m0fnu"))
def test_every_code_decodes(dtype: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(_C.decode(dtype, codes), codes.view(numpy_dtype(dtype)).astype(np.float32))


def test_every_half_decodes() -> None:
    codes = np.arange(1 << 16, dtype=np.uint16)
    for dtype in ("float16", "bfloat16"):
        np.testing.assert_array_equal(
            _C.decode(dtype, codes.view(np.uint8)), codes.view(numpy_dtype(dtype)).astype(np.float32)
        )


@pytest.mark.parametrize("dtype", ("int8", "int16", "int32", "uint8", "uint16", "uint32"))
def test_integers_round_to_even_and_saturate(dtype: str) -> None:
    rng = np.random.default_rng(2)
    info = np.iinfo(dtype)
    values = np.concatenate(
        [
            np.arange(-6, 6, 0.25),
            rng.uniform(-1e3, 1e3, 5000),
            rng.uniform(-1e10, 1e10, 5000),
            [
                np.inf,
                -np.inf,
                np.nan,
                float(info.max),
                float(info.min),
                float(info.max) + 1,
                float(info.min) - 1,
                2.0**31 - 128,
            ],
        ]
    ).astype(np.float32)
    np.testing.assert_array_equal(_C.encode(dtype, values).view(dtype), cast(values, dtype))
    assert _C.encode(dtype, np.array([0.5, 1.5, 2.5], np.float32)).view(dtype).tolist() == [0, 2, 2]


def test_tfloat32_keeps_ten_mantissa_bits() -> None:
    values = hard_values("bfloat16")
    finite = values[np.isfinite(values) & (np.abs(values) < 3e38)]
    found = _C.encode("tfloat32", finite).view(np.float32)
    np.testing.assert_array_equal(found, cast(finite, "tfloat32"))
    assert (found.view(np.uint32) & 0x1FFF == 0).all()
