"""Classic sums: `loop_reduce` over one of several loops or all, PSUM blocks that begin with zeros."""

from __future__ import annotations

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import numpy as np

from opentrn.nki.classic.launch import CLASSIC
from opentrn.nki.traced import trace

rng = np.random.default_rng(0)


def uniform(*shape):
    return rng.uniform(-1, 1, shape).astype(np.float32)


@nki.jit
def over_two_loops(x):
    outer, inner, rows, columns = x.shape
    out = nl.ndarray((2, rows, columns), dtype=np.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(outer):
        for j in nl.affine_range(inner):
            tile = nl.load(x[i, j])
            total = nl.loop_reduce(tile, op=np.add, loop_indices=[i, j], dtype=np.float32)
            top = nl.loop_reduce(tile, op=np.max, loop_indices=[i, j], dtype=np.float32)
    nl.store(out[0], value=total)
    nl.store(out[1], value=top)
    return out


def test_a_sum_over_an_outer_loop_goes_on_in_its_inner_loop():
    x = uniform(3, 2, 128, 64)
    got = nki.simulate_kernel(over_two_loops, x, check=True)
    np.testing.assert_allclose(got, [x.sum((0, 1)), x.max((0, 1))], atol=1e-5)


def summed(tile, index):
    return nl.loop_reduce(tile, op=np.add, loop_indices=[index], dtype=np.float32)


@nki.jit
def over_the_outer_loop(x):
    outer, inner, rows, columns = x.shape
    out = nl.ndarray((inner, rows, columns), dtype=np.float32, buffer=nl.shared_hbm)
    sums = nl.ndarray((inner, nl.par_dim(rows), columns), dtype=np.float32, buffer=nl.sbuf)
    for i in nl.affine_range(outer):
        for j in nl.affine_range(inner):
            tile = nl.load(x[i, j])
            sums[j] = summed(tile, i)
    for j in nl.affine_range(inner):
        nl.store(out[j], value=sums[j])
    return out


def test_a_sum_lives_in_its_destination():
    x = uniform(3, 2, 128, 64)
    np.testing.assert_allclose(nki.simulate_kernel(over_the_outer_loop, x, check=True), x.sum(0), atol=1e-5)
    timing = trace(over_the_outer_loop.func, None, (x,), {}, dialect=CLASSIC)[0].timing
    assert timing.counts["vector"] + timing.counts["scalar"] == 6  # a copy and two sums of each


@nki.jit
def twice_in_one_iteration(x, y):
    out = nl.ndarray((2, *x.shape[1:]), dtype=np.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(x.shape[0]):
        first = summed(nl.load(x[i]), i)
        second = summed(nl.load(y[i]), i)
    nl.store(out[0], value=first)
    nl.store(out[1], value=second)
    return out


def test_a_function_of_the_kernel_makes_a_sum_per_call():
    x, y = uniform(3, 128, 64), uniform(3, 128, 64)
    got = nki.simulate_kernel(twice_in_one_iteration, x, y)
    np.testing.assert_allclose(got, [x.sum(0), y.sum(0)], atol=1e-5)


@nki.jit
def more_blocks_than_banks(a, b):
    out = nl.ndarray((10, 128, 512), dtype=np.float32, buffer=nl.shared_hbm)
    totals = nl.zeros((10, nl.par_dim(128), 512), dtype=np.float32, buffer=nl.psum)
    left, right = nl.load(a), nl.load(b)
    for i in nl.affine_range(10):
        for _ in nl.affine_range(i):
            totals[i] += nisa.nc_matmul(left, right)
        nl.store(out[i], value=nl.copy(totals[i]))
    return out


def test_zeros_of_more_blocks_than_banks_live_one_after_another():
    a, b = uniform(128, 128), uniform(128, 512)
    got = nki.simulate_kernel(more_blocks_than_banks, a, b, check=True)
    np.testing.assert_allclose(got, np.arange(10)[:, None, None] * (a.T @ b), atol=1e-4)


@nki.jit
def row_in_a_loop(x, row):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    line = nl.load(row)
    for i in nl.affine_range(x.shape[0]):
        nl.store(out[i], value=nl.multiply(nl.load(x[i]), line.broadcast_to(x.shape[1:])))
    return out


def test_the_ones_that_spread_a_row_are_no_iterations_own():
    x, row = uniform(3, 128, 64), uniform(1, 64)
    np.testing.assert_array_equal(nki.simulate_kernel(row_in_a_loop, x, row, check=True), x * row)
