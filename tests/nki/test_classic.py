"""The classic namespace: tiles, masks, index grids, accumulation, direct allocation, launch grids."""

from __future__ import annotations

import neuronxcc.nki as nki
import neuronxcc.nki.compiler as ncc
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import numpy as np
import pytest
from neuronxcc.nki.language import par_dim

from opentrn.errors import OutOfBoundsError, UnsupportedError
from opentrn.nki.classic.indexing import arange
from opentrn.nki.classic.launch import CLASSIC
from opentrn.nki.traced import trace

rng = np.random.default_rng(0)


def uniform(*shape):
    return rng.uniform(-1, 1, shape).astype(np.float32)


def test_ragged_tiles_by_masks():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        rows, columns = x.shape
        ip, jf = nl.mgrid[0:128, 0:columns]
        for i in nl.affine_range(-(-rows // 128)):
            inside = i * 128 + ip < rows
            tile = nl.load(x[i * 128 + ip, jf], mask=inside)
            total = nl.sum(nl.square(tile, mask=inside), axis=[1], mask=inside)
            scaled = tile * nl.rsqrt(total / columns + 1e-5, mask=inside)
            nl.store(out[i * 128 + ip, jf], value=scaled, mask=inside)
        return out

    x = uniform(300, 40)
    result = nki.simulate_kernel(kernel, x)
    np.testing.assert_allclose(result, x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5), rtol=1e-4)


def test_matmul_accumulates_into_psum_zeros():
    @nki.jit
    def kernel(lhs_t, rhs):
        k, m = lhs_t.shape
        out = nl.ndarray((m, rhs.shape[1]), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
        acc = nl.zeros((m, rhs.shape[1]), nl.float32, buffer=nl.psum)
        for i in nl.affine_range(k // 128):
            acc[...] += nl.matmul(
                nl.load(lhs_t[nl.ds(i * 128, 128), :]), nl.load(rhs[nl.ds(i * 128, 128), :]), transpose_x=True
            )
        nl.store(out, value=nl.copy(acc, dtype=out.dtype))
        return out

    a, b = uniform(384, 64), uniform(384, 200)
    np.testing.assert_allclose(nki.simulate_kernel(kernel, a, b), a.T @ b, rtol=1e-4, atol=1e-4)
    traced, _ = trace(kernel.func, None, (a, b), {}, dialect=CLASSIC)
    names = traced.program.text()
    assert "memset" not in names, "zeros of PSUM are the first matmul's overwrite"


def test_results_are_written_where_they_are_assigned():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((par_dim(128), 64), dtype=nl.float32)
        tile[...] = nl.load(x)
        tile[:, 0:32] = nl.exp(tile[:, 0:32])
        tile[:, 32:64] = nl.add(tile[:, 32:64], 1.0)
        nl.store(out, value=tile)
        return out

    x = uniform(128, 64)
    traced, _ = trace(kernel.func, None, (x,), {}, dialect=CLASSIC)
    assert traced.program.instruction_count == 4
    result = nki.simulate_kernel(kernel, x)
    np.testing.assert_allclose(result, np.concatenate([np.exp(x[:, :32]), x[:, 32:] + 1], 1), rtol=1e-5)


def test_block_dimensions_and_direct_allocation():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        address = 0
        for _ in nl.affine_range(2):
            blocks = nl.ndarray(
                (4, par_dim(128), 64),
                dtype=nl.float32,
                buffer=ncc.sbuf.mod_alloc(base_addr=address, num_free_tiles=(4,)),
            )
            address += 4 * 64 * 4
            psum = nl.ndarray(
                (4, par_dim(128), 64),
                dtype=nl.float32,
                buffer=ncc.psum.mod_alloc(base_bank=0, num_bank_tiles=(2,)),
            )
            identity = nl.load(nl.shared_constant(np.eye(128, dtype=np.float32)))
            for i in nl.affine_range(4):
                blocks[i] = nl.load(x[nl.ds(i * 128, 128), :])
                psum[i] = nisa.nc_matmul(identity, blocks[i])
                nl.store(out[nl.ds(i * 128, 128), :], value=nl.multiply(psum[i], 2.0))
        return out

    x = uniform(512, 64)
    np.testing.assert_allclose(nki.simulate_kernel(kernel, x), 2 * x, rtol=1e-6)
    traced, _ = trace(kernel.func, None, (x,), {}, dialect=CLASSIC)
    placed = {tuple(t.address) for t in traced.program.tensors if t.space == "sbuf" and t.address is not None}
    assert {(0, i * 256) for i in range(4)} <= placed, "the second iteration uses the first one's addresses"


def test_launch_grid_and_loop_reduce():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 3, 128, 1), dtype=x.dtype, buffer=nl.shared_hbm)
        a, b = nl.program_id(0), nl.program_id(1)
        for i in nl.affine_range(4):
            part = nl.sum(nl.load(x[a, b, :, nl.ds(i * 8, 8)]), axis=[1], keepdims=True)
            total = nl.loop_reduce(part, op=np.add, loop_indices=[i])
        nl.store(out[a, b], value=total)
        return out

    x = uniform(2, 3, 128, 32)
    np.testing.assert_allclose(nki.simulate_kernel(kernel[2, 3], x)[..., 0], x.sum(-1), rtol=1e-4, atol=1e-5)


def test_affine_select_iota_where_and_gather():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        picked = nl.ndarray((64, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
        ip, jf = nl.mgrid[0:128, 0 : x.shape[1]]
        tile = nisa.affine_select(pred=ip >= 2 * jf, on_true_tile=nl.load(x), on_false_value=-1.0)
        tile = nl.where(nl.greater(tile, 0.5), 0.0, tile)
        nl.store(out, value=tile)
        rows = nisa.iota(2 * nl.arange(64)[:, None], dtype=nl.int32)
        nl.store(picked, value=nl.load(x[rows, nl.arange(x.shape[1])[None, :]]))
        return out, picked

    x = uniform(128, 32)
    out, picked = nki.simulate_kernel(kernel, x)
    expected = np.where(np.arange(128)[:, None] >= 2 * np.arange(32), x, -1)
    np.testing.assert_allclose(out, np.where(expected > 0.5, 0, expected))
    np.testing.assert_array_equal(picked, x[::2])


def test_benchmark_reads_the_virtual_clock(tmp_path):
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, value=nl.exp(nl.load(x)))
        return out

    timed = nki.benchmark(warmup=1, iters=3, working_directory=str(tmp_path), save_trace_name="t.ntff")(
        kernel
    )
    timed(uniform(128, 512))
    latency = timed.benchmark_result.nc_latency
    assert 1 <= latency.get_latency_percentile(50) == latency.get_latency_percentile(99) < 100
    assert (tmp_path / "t.ntff").stat().st_size > 0
    np.testing.assert_allclose(nki.baremetal(kernel)(np.zeros((128, 8), np.float32)), 1)


def test_masks_and_indices_that_no_access_pattern_holds():
    i = arange(16)[:, None]
    assert ((i < 3) | (i > 10)).box((16, 4)) is None
    assert (i < 0).box((16, 4)) == []
    assert ((i >= 4) & (i < 9)).box((16, 4)) == [(4, 5), (0, 4)]
    assert (i // 2).coefs is None

    @nki.jit
    def kernel(x):
        return nl.load(x[nl.arange(16)[:, None] // 2, nl.arange(4)[None, :]])

    with pytest.raises(Exception, match="not an access pattern"):
        nki.simulate_kernel(kernel, uniform(16, 4))

    @nki.jit
    def sbuf_result(x):
        return nl.load(x)

    with pytest.raises(UnsupportedError, match="lives in sbuf"):
        nki.simulate_kernel(sbuf_result, uniform(16, 4))


def test_rows_beyond_a_tensor_raise_as_each_mode_does():
    """Ours names instruction and line; in simulation mode NumPy's own error comes, with ours as its cause."""

    def kernel(x):
        out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        rows, columns = nl.mgrid[0:64, 0:512]
        tile = nl.load(x[rows, columns])
        places = nisa.iota(3 * nl.arange(64)[:, None], dtype=np.int32)
        nisa.dma_copy(dst=out[places, columns], src=tile, oob_mode=nisa.oob_mode.error)
        return out

    x = uniform(64, 512)
    with pytest.raises(OutOfBoundsError, match=r"index 129 .* element 66048 of 65536") as ours:
        nki.jit(kernel)(x)
    assert "test_classic.py" in ours.value.where
    with pytest.raises(IndexError) as numpys:
        nki.jit(kernel, mode="simulation")(x)
    assert type(numpys.value) is IndexError
    assert str(numpys.value) == "index 66048 is out of bounds for axis 0 with size 65536"
    assert isinstance(numpys.value.__cause__, OutOfBoundsError)


def test_numpy_functions_are_operations_of_every_instruction():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.shared_hbm)
        largest = nl.ndarray((128, 1), dtype=x.dtype, buffer=nl.shared_hbm)
        running = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        chosen, best = nl.ndarray(x.shape, x.dtype), nl.ndarray((128, 1), x.dtype)
        nisa.select_reduce(
            dst=chosen,
            predicate=nl.greater(tile, 0.0, dtype=np.uint8),
            on_true=tile,
            on_false=-1.0,
            reduce_res=best,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
            reduce_op=np.amax,
        )
        total = nl.ndarray(x.shape, x.dtype)
        nisa.tensor_scalar_cumulative(src=tile, dst=total, op0=np.multiply, op1=np.add, imm0=2.0, imm1=0.0)
        for target, source in ((out, chosen), (largest, best), (running, total)):
            nl.store(target, value=source)
        return out, largest, running

    x = uniform(128, 64)
    chosen, best, total = nki.simulate_kernel(kernel, x)
    np.testing.assert_array_equal(chosen, np.where(x > 0, x, -1))
    np.testing.assert_array_equal(best[:, 0], np.where(x > 0, x, -1).max(1))
    np.testing.assert_allclose(total, np.cumsum(2 * x, 1), rtol=1e-4, atol=1e-5)
