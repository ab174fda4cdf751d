"""Programs written by hand outside NKI: values against NumPy, over whole and ragged sizes; times that make
sense.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from opentrn.core import execute
from opentrn.core.execution import numpy_dtype
from opentrn.core.library.attention import flash_attention_program
from opentrn.core.library.fused import rmsnorm_matmul_silu_program
from opentrn.core.library.matmul import matmul_program
from opentrn.core.library.signatures import (
    attention_time,
    matmul_time,
    pointwise_time,
    reduction_time,
    softmax_time,
)

RNG = np.random.default_rng(7)
PEAK = {"bfloat16": 78.6, "float32": 19.7}  # TFLOP/s of one core of trn2


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    "sizes", ((1, 1, 1), (128, 512, 128), (130, 513, 129), (515, 70, 1100), (600, 1100, 700))
)
@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_matmul_of_any_size(sizes: tuple[int, int, int], dtype: str) -> None:
    m, n, k = sizes
    a, b = normal(m, k).astype(numpy_dtype(dtype)), normal(k, n).astype(numpy_dtype(dtype))
    expected = a.astype(np.float32) @ b.astype(np.float32)
    symbols = {"M": m, "N": n, "K": k}
    for transposed in (False, True):
        program = matmul_program(dtype, "trn2", transposed, "float32")
        left = np.ascontiguousarray(a.T) if transposed else a
        found = execute(program, {"a": left, "b": b}, symbols)["c"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_matmul_does_not_depend_on_threads() -> None:
    program, symbols = matmul_program("bfloat16"), {"M": 1100, "N": 600, "K": 300}
    inputs = {
        "a": normal(1100, 300).astype(numpy_dtype("bfloat16")),
        "b": normal(300, 600).astype(numpy_dtype("bfloat16")),
    }
    one, many = (execute(program, inputs, symbols, parallel=parallel)["c"] for parallel in (False, True))
    np.testing.assert_array_equal(one.view(np.uint16), many.view(np.uint16))


def test_fused_rmsnorm_matmul_silu() -> None:
    x, w = normal(200, 384), normal(384, 700) / 20
    h = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-6) @ w
    found = execute(rmsnorm_matmul_silu_program("float32"), {"x": x, "w": w}, {"M": 200, "N": 700, "K": 384})[
        "y"
    ]
    np.testing.assert_allclose(found, h / (1 + np.exp(-h)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("head", (64, 128))
def test_flash_attention(causal: bool, head: int) -> None:
    heads, length = 2, 1024
    q, k, v = (normal(heads, length, head) for _ in range(3))
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(head)
    if causal:
        scores = np.where(np.tril(np.ones((length, length), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v
    found = execute(
        flash_attention_program(head, "float32", causal),
        {"q": q, "k": k, "v": v},
        {"H": heads, "S": length, "T": length},
    )["o"]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype,least", (("bfloat16", 0.6), ("float32", 0.85)))
def test_large_matmuls_come_near_the_array_s_peak_and_never_above(dtype: str, least: float) -> None:
    for size in (1024, 2048, 4096):
        achieved = 2e-3 * size**3 / matmul_time(size, size, size, dtype)
        assert achieved <= PEAK[dtype]
        if size >= 4096:
            assert achieved >= least * PEAK[dtype]


def test_times_grow_with_the_work_and_follow_memory() -> None:
    assert matmul_time(512, 512, 512) < matmul_time(512, 512, 1024) < matmul_time(1024, 1024, 1024)
    assert matmul_time(256, 256, 20000) > matmul_time(256, 256, 8192) * 2
    big = 1 << 26
    assert 2 * 2 * big / pointwise_time(big, "bfloat16") <= 368  # one core's DMA engines, GB/s
    assert 2 * 2 * big / pointwise_time(big, "bfloat16") >= 250
    assert pointwise_time(big, "float32", 2) > 1.4 * pointwise_time(big, "float32", 1)
    assert softmax_time(4096, 4096) > pointwise_time(4096 * 4096)
    assert reduction_time(1, 1 << 22) < 10 * reduction_time(128, 1 << 15)
    assert 1.3 < attention_time(4, 2048, 2048, 128) / attention_time(4, 2048, 2048, 128, causal=True) < 2.2
    assert pointwise_time(0) == matmul_time(0, 5, 5) == 0
