"""Kinds of classic kernels that the public documentation shows: each small, each with an oracle of its
own."""

from __future__ import annotations

import json

import neuronxcc.nki as nki
import neuronxcc.nki.compiler as ncc
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import numpy as np
import pytest
from neuronxcc.nki.isa.constants import dge_mode

from opentrn.errors import ConfigurationError, UnsupportedError
from opentrn.nki.classic.grid import launch_of
from opentrn.nki.classic.launch import CLASSIC
from opentrn.nki.traced import trace

rng = np.random.default_rng(0)


def uniform(*shape):
    return rng.uniform(-1, 1, shape).astype(np.float32)


def test_a_traced_kernel_writes_its_arguments():
    @nki.trace
    def double(x, out):
        nl.store(out, value=nl.multiply(nl.load(x), 2.0))

    x, out = uniform(16, 8), np.zeros((16, 8), np.float32)
    nki.simulate_kernel(double, x, out)
    np.testing.assert_array_equal(out, 2 * x)


def test_launch_grids_spread_over_cores():
    assert launch_of((4, 2)).cores == 1
    in_a_row = launch_of((nl.spmd_dim(nl.nc(2), 2), 2))
    assert in_a_row.sizes == (4, 2)
    assert in_a_row.places[0] == ((0, 0), (0, 1), (1, 0), (1, 1)), "the first programs on core 0"
    in_turn = launch_of((2 * nl.nc(2), 2))
    assert in_turn.places[0] == ((0, 0), (0, 1), (2, 0), (2, 1))
    assert launch_of((nl.nc(2) * 2,)) == launch_of(nl.spmd_dim(nl.nc(2), 2))
    with pytest.raises(UnsupportedError, match="4 cores"):
        launch_of((nl.nc(2), nl.nc(2)))

    @nki.jit
    def copy(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out[nl.program_id(0)], nl.load(x[nl.program_id(0)]))
        return out

    x = uniform(4, 8, 2)
    for grid in (4, nl.nc(2) * 2, 2 * nl.nc(2)):
        np.testing.assert_array_equal(nki.simulate_kernel(copy[grid], x), x)


def test_programs_that_do_the_same_run_once():
    """A kernel that does not ask for its place on the grid is the same program for every place."""

    @nki.jit
    def everything(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(x.shape[0]):
            nl.store(out[i], value=nl.exp(nl.load(x[i])))
        return out

    @nki.jit
    def accumulate(x):
        nl.store(x, value=nl.add(nl.load(x), 1.0))
        return x

    x = uniform(3, 8, 2)
    np.testing.assert_allclose(nki.simulate_kernel(everything[3], x), np.exp(x), rtol=1e-5)
    one, three = (trace(everything.func, grid, (x,), {}, dialect=CLASSIC)[0] for grid in (None, 3))
    assert three.program.dynamic_count() == one.program.dynamic_count() == 9
    np.testing.assert_array_equal(nki.simulate_kernel(accumulate[3], np.zeros((8, 2), np.float32)), 3)


def test_offsets_that_are_known_at_run_time():
    @nki.jit
    def gather(x, offsets):
        columns = nl.ndarray((128, 5), dtype=x.dtype, buffer=nl.shared_hbm)
        blocks = nl.ndarray((128, 5, 4), dtype=x.dtype, buffer=nl.shared_hbm)
        tile, places = nl.load(x), nl.load(offsets)
        first = nl.ndarray((128, 5), dtype=x.dtype, buffer=nl.sbuf)
        second = nl.ndarray((128, 5, 4), dtype=x.dtype, buffer=nl.sbuf)
        ip, jf = nl.mgrid[0:128, 0:1]
        iq, _, kf = nl.mgrid[0:128, 0:1, 0:4]
        for i in nl.affine_range(5):
            first[ip, i] = nisa.tensor_copy_dynamic_src(tile[ip, 2, places[0, i] + jf])
            second[iq, i, kf] = nisa.tensor_copy_dynamic_src(tile[iq, places[0, i], kf])
        nl.store(columns, value=first)
        nl.store(blocks, value=second)
        return columns, blocks

    x, offsets = uniform(128, 8, 4), np.array([[3, 0, 2, 1, 3]], np.int32)
    columns, blocks = nki.simulate_kernel(gather, x, offsets)
    np.testing.assert_array_equal(columns, x[:, 2, offsets[0]])
    np.testing.assert_array_equal(blocks, x[:, offsets[0]])
    traced, _ = trace(gather.func, None, (x, offsets), {}, dialect=CLASSIC)
    assert "tensor_copy_dynamic_src" in traced.program.text()


def test_running_reductions():
    @nki.jit
    def cumulative(x):
        out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
        dst = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar_cumulative(src=nl.load(x), dst=dst, op0=nl.multiply, op1=nl.add, imm0=2.0)
        nl.store(out, value=dst)
        return out

    x = uniform(16, 20)
    np.testing.assert_allclose(nki.simulate_kernel(cumulative, x), np.cumsum(2 * x, 1), rtol=1e-5, atol=1e-5)


def test_elements_of_any_partition_can_be_set():
    """Where no engine may start at the partition, a DMA writes it."""

    @nki.jit
    def fill():
        out = nl.ndarray((8, 4), dtype=nl.int32, buffer=nl.shared_hbm)
        tile = nl.zeros((8, 4), dtype=nl.int32)
        for i in nl.static_range(8):
            tile[i, 1] = 10 * i
        tile[3:5, 2:4] = tile[0:2, 0:2]
        nl.store(out, value=tile)
        return out

    expected = np.zeros((8, 4), np.int32)
    expected[:, 1] = 10 * np.arange(8)
    expected[3:5, 2:4] = expected[0:2, 0:2]
    np.testing.assert_array_equal(nki.simulate_kernel(fill), expected)


def test_an_integer_index_keeps_two_dimensions_on_chip():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 3), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        for i in nl.affine_range(3):
            column = tile[:, i]
            assert column.shape == (128, 1)
            column[:, 0] = nl.add(column[:, 0], 1.0)
        nl.store(out, value=tile)
        return out

    x = uniform(128, 3)
    np.testing.assert_allclose(nki.simulate_kernel(kernel, x), x + 1)


def test_matmul_takes_a_transpose_from_psum():
    @nki.jit
    def kernel(x, y):
        out = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, value=nl.copy(nisa.nc_matmul(nisa.nc_transpose(nl.load(x)), nl.load(y))))
        return out

    x, y = uniform(128, 128), uniform(128, 64)
    np.testing.assert_allclose(nki.simulate_kernel(kernel, x, y), x @ y, rtol=1e-4, atol=1e-4)


@nki.jit
def masked(x, limit=None):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows, columns = x.shape
    nl.store(out, value=nl.zeros(x.shape, dtype=x.dtype))
    ip, jf = nl.mgrid[0:rows, 0:columns]
    half = limit and limit > 2
    nl.store(out[ip, jf], value=nl.load(x), mask=(ip < rows // 2 and jf < (3 if half else 2)))
    return out


def test_and_between_masks_is_meant_for_every_element():
    x = uniform(8, 6)
    for limit, width in ((None, 2), (1, 2), (5, 3)):
        expected = np.zeros_like(x)
        expected[:4, :width] = x[:4, :width]
        np.testing.assert_array_equal(nki.simulate_kernel(masked, x, limit), expected)
    line = masked.func.__wrapped__.__code__.co_firstlineno
    assert masked.func.__code__.co_firstlineno >= line and masked[1].func is masked.func


def test_simulation_hands_out_tiles_on_chip():
    def kernel(x):
        return nl.load(x), nl.multiply(nl.load(x), 2.0)

    x = uniform(16, 4)
    one, two = nki.jit(kernel, mode="simulation")(x)
    np.testing.assert_array_equal(one, x)
    np.testing.assert_array_equal(two, 2 * x)
    with pytest.raises(UnsupportedError, match="lives in sbuf"):
        nki.baremetal(kernel)(x)


def test_an_index_out_of_bounds_is_an_index_error():
    @nki.jit
    def scatter(x, step):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        rows, columns = x.shape
        nisa.dma_copy(dst=out, src=x, dge_mode=dge_mode.swdge)
        places = nisa.iota(step * nl.arange(rows)[:, None], dtype=np.int32)
        nisa.dma_copy(
            dst=out[places, nl.arange(columns)[None, :]], src=nl.load(x), oob_mode=nisa.oob_mode.error
        )
        return out

    np.testing.assert_array_equal(nki.simulate_kernel(scatter, np.ones((8, 4), np.float32), 1), 1)
    with pytest.raises(IndexError, match="index 8"):
        nki.simulate_kernel(scatter, uniform(8, 4), 2)


def test_local_gather_counts_elements():
    @nki.jit
    def kernel(x, places):
        out = nl.ndarray((32, 32, 2), dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, value=nisa.local_gather(nl.load(x), nl.load(places), num_elem_per_idx=2))
        return out

    x, places = (
        rng.integers(0, 1 << 30, (32, 40)).astype(np.int32),
        rng.integers(0, 39, (32, 2)).astype(np.uint16),
    )
    got = nki.simulate_kernel(kernel, x, places)
    for partition in range(32):
        group = partition // 16 * 16
        order = places[group : group + 16].flatten(order="F")
        np.testing.assert_array_equal(
            got[partition], np.stack([x[partition, order], x[partition, order + 1]], 1)
        )


def test_profiles_leave_their_files(tmp_path):
    folder = tmp_path / "profile"

    @nki.profile(
        working_directory=str(folder), save_neff_name="program.neff", save_trace_name="run.ntff",
        overwrite=False, num_execs=20, profile_nth=10,
    )  # fmt: skip
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, value=nl.exp(nl.load(x)))
        return out

    x = uniform(128, 64)
    np.testing.assert_allclose(kernel(x), np.exp(x), rtol=1e-5)
    assert sorted(path.name for path in folder.iterdir()) == [
        "json_reports", "program.neff", "run_exec_10.ntff", "run_exec_20.ntff",
    ]  # fmt: skip
    reports = [json.loads(path.read_text()) for path in sorted((folder / "json_reports").iterdir())]
    assert len(reports) == 2 and reports[0]["nanoseconds"] > 0
    assert json.loads((folder / "run_exec_10.ntff").read_text())["traceEvents"]
    from opentrn.core.program import Program

    assert Program.from_bytes((folder / "program.neff").read_bytes()).instruction_count == 3
    with pytest.raises(ConfigurationError, match="overwrite"):
        kernel(x)


def test_direct_allocation_by_a_function():
    """The documentation's own modulo allocator, as an allocation function."""

    def slots(idx, pdim_size, fdim_size):
        return 0, 1024 + idx[0] % 2 * fdim_size

    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        blocks = nl.ndarray((4, nl.par_dim(128), 16), dtype=x.dtype, buffer=ncc.sbuf.alloc(slots))
        for i in nl.affine_range(4):
            blocks[i] = nl.load(x[i])
            nl.store(out[i], value=blocks[i])
        return out

    x = uniform(4, 128, 16)
    np.testing.assert_array_equal(nki.simulate_kernel(kernel, x), x)
