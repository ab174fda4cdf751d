"""What the classic compiler decides for a kernel: engines, order, places of blocks, how a row is spread."""

from __future__ import annotations

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import neuronxcc.nki.typing as nt
import numpy as np
import pytest

from opentrn.errors import UnimplementedError
from opentrn.nki.classic.launch import CLASSIC
from opentrn.nki.traced import trace

rng = np.random.default_rng(0)


def uniform(*shape):
    return rng.uniform(-1, 1, shape).astype(np.float32)


def traced(kernel, *args):
    return trace(kernel.func, None, args, {}, "trn2", dialect=CLASSIC, capacity=False)[0]


def counts(kernel, *args):
    return traced(kernel, *args).timing.counts


BLOCKS = 64  # of 4 KiB per partition: more than SBUF holds


@nki.jit
def blocks_of_a_whole_loop(x):
    rows = x.shape[0] // 128
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    first = nl.ndarray((rows, nl.par_dim(128), 1024), dtype=x.dtype, buffer=nl.sbuf)
    second = nl.ndarray((rows, 2, nl.par_dim(128), 512), dtype=x.dtype, buffer=nl.sbuf)
    ip, jf, half = nl.arange(128)[:, None], nl.arange(1024)[None, :], nl.arange(512)[None, :]
    for i in nl.affine_range(rows):
        first[i, ip, jf] = nl.load(x[128 * i + ip, jf])
        for j in nl.affine_range(2):
            second[i, j, ip, half] = nl.multiply(first[i, ip, 512 * j + half], 2.0)
            nl.store(out[128 * i + ip, 512 * j + half], value=second[i, j, ip, half])
    return out


def test_blocks_that_exceed_sbuf_together_live_apart():
    x = uniform(128 * BLOCKS, 1024)
    np.testing.assert_array_equal(nki.simulate_kernel(blocks_of_a_whole_loop, x), 2 * x)


def test_blocks_of_such_a_tensor_are_not_one_tile():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tiles = nl.ndarray((BLOCKS, nl.par_dim(128), 1024), dtype=x.dtype, buffer=nl.sbuf)
        nl.store(out, value=nl.add(tiles, 1.0))
        return out

    with pytest.raises(UnimplementedError, match="block dimensions"):
        nki.simulate_kernel(kernel, uniform(128, 1024))


def test_a_benchmark_takes_types_in_place_of_data():
    bench = nki.benchmark(warmup=1, iters=2)(blocks_of_a_whole_loop)
    bench(nt.tensor[[128 * BLOCKS, 1024], np.float32])
    of_type = bench.benchmark_result.nc_latency.get_latency_percentile(50)
    bench(uniform(128 * BLOCKS, 1024))
    assert bench.benchmark_result.nc_latency.get_latency_percentile(50) == of_type > 1


@nki.jit
def one_of_each(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    tile = nl.copy(tile, dtype=np.float32)
    tile = nl.multiply(tile, 0.5)
    nl.store(out, value=nl.maximum(tile, 0.25))
    return out


def test_open_engines_are_the_compilers_choice():
    """Copies and scalings of floats go to Scalar, what it has no form for to Vector."""
    found = counts(one_of_each, uniform(128, 512))
    assert (found["scalar"], found["vector"]) == (2, 1)


def test_a_named_engine_and_integers_stay_where_they_are():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nisa.tensor_copy(nl.load(x), engine=nisa.vector_engine)
        nl.store(out, value=nl.copy(tile, dtype=x.dtype))
        return out

    assert counts(kernel, uniform(128, 512))["vector"] == 1
    assert counts(kernel, np.ones((128, 512), np.int32))["vector"] == 2


@pytest.mark.parametrize(("width", "tensor", "scalar"), [(512, 1, 0), (2048, 4, 4)])
def test_a_row_is_spread_by_the_tensor_engine(width, tensor, scalar):
    @nki.jit
    def kernel(x, row):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        wide = nl.load(row).broadcast_to(x.shape)
        nl.store(out, value=nl.multiply(nl.load(x), wide))
        return out

    x, row = uniform(128, width), uniform(1, width)
    np.testing.assert_array_equal(nki.simulate_kernel(kernel, x, row), x * row)
    found = counts(kernel, x, row)
    assert (found["tensor"], found["scalar"]) == (tensor, scalar)


def late_and_early(keep):
    """Vector waits for Scalar in every piece: pieces overlap if the compiler may reorder them."""

    def body(x, out):
        for i in nl.affine_range(32):
            tile = nl.load(x[:, nl.ds(i * 512, 512)])
            for _ in range(3):
                tile = nl.maximum(nl.exp(tile), 1.0)
            nl.store(out[:, nl.ds(i * 512, 512)], value=tile)

    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        if keep:
            with nl.no_reorder():
                body(x, out)
        else:
            body(x, out)
        return out

    return kernel


def test_instructions_are_reordered_unless_the_kernel_keeps_them():
    x = uniform(128, 32 * 512)
    free, kept = (traced(late_and_early(keep), x) for keep in (False, True))
    assert free.timing.seconds < 0.8 * kept.timing.seconds
    busiest = max(free.timing.busy.values())
    assert free.timing.nanoseconds >= busiest
    assert free.recorded.nanoseconds == pytest.approx(free.timing.nanoseconds, rel=0.01)
