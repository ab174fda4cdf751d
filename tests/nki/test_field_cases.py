"""Cases that kernel authors reported: agreement, repeated calls, compile time of unrolled loops."""

from __future__ import annotations

import threading
import time

import nki.isa as nisa
import nki.language as nl
import numpy as np

import nki
from opentrn.nki.traced import trace


@nki.jit
def running_sum(x):
    """[128, 8 * 64]: a sum over 8 blocks whose order matters, written in an affine_range."""
    out = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(total, 0.0)
    for i in nl.affine_range(8):
        tile = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[:, i * 64 : (i + 1) * 64])
        nisa.tensor_tensor(dst=total, data1=total, data2=tile, op=nl.add)
    nisa.dma_copy(dst=out, src=total)
    return out


def test_a_loop_carried_write_gives_the_sum():
    x = np.random.default_rng(0).normal(size=(128, 512)).astype(np.float32)
    np.testing.assert_allclose(
        nki.simulate(running_sum)(x), x.reshape(128, 8, 64).sum(1), rtol=1e-5, atol=1e-5
    )


@nki.jit
def double(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_a_kernel_may_be_called_many_times_with_other_shapes():
    for n in (64, 64, 512, 64):
        np.testing.assert_allclose(double(np.ones((128, n), np.float32)), 2)
    import torch

    result = double(torch.ones(128, 16, dtype=torch.bfloat16))
    assert result.dtype is torch.bfloat16 and (result == 2).all()


def test_a_kernel_may_be_called_from_threads():
    wrong = []

    def work(n):
        try:
            for _ in range(5):
                if not (double(np.full((128, n), n, np.float32)) == 2 * n).all():
                    wrong.append(n)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in (16, 32, 48, 64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@nki.jit
def tiled_matmul(lhs_t, rhs):
    k, m = lhs_t.shape
    n = rhs.shape[1]
    out = nl.ndarray((m, n), lhs_t.dtype, nl.shared_hbm)
    for i in nl.affine_range(m // 128):
        for j in nl.affine_range(n // 512):
            total = nl.ndarray((128, 512), nl.float32, nl.psum)
            for p in nl.affine_range(k // 128):
                a, b = (
                    nl.ndarray((128, 128), lhs_t.dtype, nl.sbuf),
                    nl.ndarray((128, 512), rhs.dtype, nl.sbuf),
                )
                nisa.dma_copy(dst=a, src=lhs_t[p * 128 : (p + 1) * 128, i * 128 : (i + 1) * 128])
                nisa.dma_copy(dst=b, src=rhs[p * 128 : (p + 1) * 128, j * 512 : (j + 1) * 512])
                nisa.nc_matmul(total, a, b)
            tile = nl.ndarray((128, 512), lhs_t.dtype, nl.sbuf)
            nisa.tensor_copy(tile, total)
            nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, j * 512 : (j + 1) * 512], src=tile)
    return out


def test_unrolled_loops_fold_so_that_programs_stay_small():
    rng = np.random.default_rng(0)
    small = rng.normal(size=(512, 512)).astype(np.float32)
    np.testing.assert_allclose(
        nki.simulate(tiled_matmul)(small, small), small.T @ small, rtol=1e-3, atol=1e-3
    )
    seconds, sizes = [], []
    for size in (1024, 2048):
        x = np.zeros((size, size), np.float32)
        start = time.process_time()
        traced, _ = trace(tiled_matmul.func, None, (x, x), {})
        seconds.append(time.process_time() - start)
        sizes.append(len(traced.program.to_bytes()))
    # Eight times the instructions: the program grows by its distinct parts only.
    assert sizes[1] < 2 * sizes[0], sizes
    assert seconds[1] < 12 * seconds[0] + 0.5, seconds


@nki.jit
def loop_bound_from_memory(x, count):
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    tile, bound = nl.load(x), nl.ndarray((1, 1), nl.int32, nl.sbuf)
    times, dead = nisa.register_alloc(), nisa.register_alloc()
    nisa.dma_copy(dst=bound, src=count)
    nisa.register_move(dead, 0)  # nothing reads it
    nisa.register_load(times, bound)
    for _ in nl.dynamic_range(0, times):
        nisa.tensor_scalar(tile, tile, nl.add, 1.0)
    nl.store(out, tile)
    return out


def test_a_register_load_waits_for_the_dma_that_fills_its_tile():
    """Whatever dead instruction stands between them: edges are derived from the data, not carried by
    instructions."""
    x = np.zeros((4, 8), np.float32)
    for count in (0, 3):
        assert (nki.simulate(loop_bound_from_memory)(x, np.array([[count]], np.int32)) == count).all()
    traced, _ = trace(loop_bound_from_memory.func, None, (x, np.zeros((1, 1), np.int32)), {})
    intervals = traced.recorded.intervals
    names = [traced.program.tables()["instructions"][index][0] for index in intervals["instruction"]]
    filled = intervals["end_ns"][names.index("dma_copy", names.index("dma_copy") + 1)]
    assert intervals["start_ns"][names.index("register_load")] >= filled
