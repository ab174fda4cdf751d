"""Classic kernels over ragged sizes: what masks leave of products and reductions."""

from __future__ import annotations

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import numpy as np
import pytest

from opentrn.nki.classic.launch import CLASSIC
from opentrn.nki.traced import trace

rng = np.random.default_rng(0)


def uniform(*shape):
    return rng.uniform(-1, 1, shape).astype(np.float32)


def column(size=128):
    return nl.arange(size)[:, None]


def row(size):
    return nl.arange(size)[None, :]


@nki.jit
def product(a, b, mask_contraction=True):
    """a.T @ b, ragged in all three dimensions."""
    contraction, rows = a.shape
    columns = b.shape[1]
    deep, high, wide = -(-contraction // 128), -(-rows // 128), -(-columns // 512)
    out = nl.ndarray((rows, columns), dtype=np.float32, buffer=nl.shared_hbm)
    left = nl.ndarray((deep, nl.par_dim(128), rows), dtype=np.float32, buffer=nl.sbuf)
    right = nl.ndarray((deep, nl.par_dim(128), columns), dtype=np.float32, buffer=nl.sbuf)
    total = nl.zeros((high, wide, nl.par_dim(128), 512), dtype=np.float32, buffer=nl.psum)
    result = nl.ndarray((high, wide, nl.par_dim(128), 512), dtype=np.float32, buffer=nl.sbuf)
    for k in nl.affine_range(deep):
        inside = -128 * k + -1 * column() + contraction - 1 >= 0
        left[k, column(), row(rows)] = nl.load(a[128 * k + column(), row(rows)], mask=inside)
        right[k, column(), row(columns)] = nl.load(b[128 * k + column(), row(columns)], mask=inside)
    for m in nl.affine_range(high):
        for n in nl.affine_range(wide):
            in_rows = -128 * m + -1 * column() + rows - 1 >= 0
            in_columns = -512 * n + -1 * row(512) + columns - 1 >= 0
            height = min(128, rows - 128 * m)
            for k in nl.affine_range(deep):
                depth = 128 if mask_contraction else min(128, contraction - 128 * k)
                inside = -128 * k + -1 * column() + contraction - 1 >= 0
                mask = inside & in_columns if mask_contraction else in_rows & in_columns
                taken = height if mask_contraction else 128
                total[m, n, column(taken), row(512)] += nisa.nc_matmul(
                    left[k, column(depth), 128 * m + row(taken)],
                    right[k, column(depth), 512 * n + row(512)],
                    mask=mask,
                )
            inside = in_rows & in_columns
            result[m, n, column(), row(512)] = nl.copy(total[m, n, column(), row(512)], mask=inside)
            place = out[128 * m + column(), 512 * n + row(512)]
            nl.store(place, value=result[m, n, column(), row(512)], mask=inside)
    return out


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("mask_contraction", [False, True])
def test_a_mask_of_a_product_cuts_rows_columns_or_the_contraction(mask_contraction, check):
    a, b = uniform(200, 150), uniform(200, 700)
    got = nki.simulate_kernel(product, a, b, mask_contraction, check=check)
    np.testing.assert_allclose(got, a.T @ b, atol=1e-4)


def test_columns_that_a_mask_leaves_out_take_no_time():
    def busy(columns):
        args = (np.zeros((128, 128), np.float32), np.zeros((128, columns), np.float32))
        return trace(product.func, None, args, {}, dialect=CLASSIC, capacity=False)[0].timing.busy["tensor"]

    assert busy(512 + 128) < 0.7 * busy(1024)


@nki.jit
def transposed_rows(x):
    """x.T by products with an identity; the last rows are ragged and come from an engine."""
    rows = x.shape[0]
    out = nl.ndarray((128, rows), dtype=np.float32, buffer=nl.shared_hbm)
    ones = nl.load(nl.shared_constant(np.identity(128, dtype=np.float32)))
    for t in nl.affine_range(-(-rows // 128)):
        inside = -128 * t + -1 * column() + rows - 1 >= 0
        tile = nl.multiply(nl.load(x[128 * t + column(), row(128)], mask=inside), 2.0, mask=inside)
        turned = nisa.nc_matmul(tile, ones, is_moving_onezero=True, is_transpose=True, mask=inside)
        left = -128 * t + -1 * row(128) + rows - 1 >= 0
        nl.store(out[column(), 128 * t + row(128)], value=nl.copy(turned, mask=left), mask=left)
    return out


def test_a_mask_over_rows_that_an_engine_has_left_out():
    x = uniform(200, 128)
    np.testing.assert_array_equal(nki.simulate_kernel(transposed_rows, x, check=True), 2 * x.T)


@nki.jit
def convolution(x, weight):
    """A valid 3 x 3 convolution whose masks have the dimensions of the moving tile."""
    channels, height, width = x.shape
    features = weight.shape[3]
    out = nl.ndarray((features, height - 2, width - 2), dtype=np.float32, buffer=nl.shared_hbm)
    image = nl.load(x)
    rows = nl.arange(16)[None, :, None]
    columns = nl.arange(width - 2)[None, None, :]
    places = nl.arange(128)[:, None, None]
    inputs = nl.arange(channels)[:, None, None]
    for r in nl.affine_range(-(-(height - 2) // 16)):
        inside = (-16 * r - rows + height - 3 >= 0) & (features - 1 - places >= 0)
        total = nl.zeros((nl.par_dim(128), 16, width - 2), dtype=np.float32, buffer=nl.psum)
        for i in nl.affine_range(3):
            for j in nl.affine_range(3):
                moving = image[inputs, 16 * r + i + rows, j + columns]
                total[places, rows, columns] += nisa.nc_matmul(
                    nl.load(weight[i, j]), moving, mask=-16 * r - rows + height - 3 >= 0
                )
        value = nl.copy(total[places, rows, columns], mask=inside)
        nl.store(out[places, 16 * r + rows, columns], value=value, mask=inside)
    return out


def test_a_mask_with_the_dimensions_of_the_moving_tile():
    x, weight = uniform(32, 22, 20), uniform(3, 3, 32, 128)
    parts = [
        np.einsum("chw,co->ohw", x[:, i : i + 20, j : j + 18], weight[i, j])
        for i in range(3)
        for j in range(3)
    ]
    np.testing.assert_allclose(nki.simulate_kernel(convolution, x, weight), sum(parts), atol=1e-4)


ROWS = {
    "mean": (
        lambda x, m: nl.subtract(x, nl.mean(x, axis=[1], mask=m), mask=m),
        lambda x: x - x.mean(1, keepdims=True),
    ),
    "var": (
        lambda x, m: nl.add(x, nl.var(x, axis=[1], mask=m), mask=m),
        lambda x: x + x.var(1, keepdims=True),
    ),
    "rms_norm": (
        lambda x, m: nl.rms_norm(x, nl.full(x.shape, 1.5, np.float32), [1], x.shape[1], mask=m),
        lambda x: 1.5 * x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6),
    ),
    "dropout": (lambda x, m: nl.dropout(x, 0.0, mask=m), lambda x: x),
    "affine_select": (
        lambda x, m: nisa.affine_select(column() - 2 * row(x.shape[1]) + 100 >= 0, x, 0.0, mask=m),
        lambda x: np.where(
            np.arange(len(x))[:, None] % 128 - 2 * np.arange(x.shape[1]) + 100 >= 0, x, np.float32(0)
        ),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_operations_read_what_their_mask_leaves(name):
    operation, reference = ROWS[name]

    @nki.jit
    def kernel(x):
        rows, columns = x.shape
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        for t in nl.affine_range(-(-rows // 128)):
            inside = 128 * t + column() < rows
            tile = nl.load(x[128 * t + column(), row(columns)], mask=inside)
            nl.store(out[128 * t + column(), row(columns)], operation(tile, inside), mask=inside)
        return out

    x = uniform(200, 96)
    np.testing.assert_allclose(nki.simulate_kernel(kernel, x, check=True), reference(x), atol=1e-5)
