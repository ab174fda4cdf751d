"""Matrix, reduction, selection, gather and DMA instructions: the core against the NumPy oracle."""

# ruff: noqa: B023 - kernels are defined and called in the same iteration
from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from engines import same
from test_isa_elementwise import FLOATS, array, draw, loaded, stored, strided

import nki


# -- matmul ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [*FLOATS, "float8_e4m3"])
def test_nc_matmul_accumulates(kind):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        k, m, n = (int(v) for v in rng.integers(1, [129, 129, 513]))

        @nki.jit
        def kernel(a, b):
            x, y = loaded(a), loaded(b)
            total = nl.ndarray((m, n), "float32", nl.psum)
            nisa.nc_matmul(total, x, y)
            nisa.nc_matmul(total, x, y)
            once = nl.ndarray((m, n), "float32", nl.psum)
            nisa.nc_matmul(once, x, y, accumulate=False)
            nisa.nc_matmul(once, x, y, accumulate=False)
            out, single = nl.ndarray((m, n), "float32", nl.sbuf), nl.ndarray((m, n), "float32", nl.sbuf)
            nisa.tensor_copy(out, total)
            nisa.tensor_copy(single, once)
            return stored(out), stored(single)

        x, y = array(rng, (k, m), kind), array(rng, (k, n), kind)
        both, single = same(kernel, x, y, rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(both, 2 * single, rtol=1e-4, atol=1e-3)


def test_nc_transpose_by_both_engines():
    rng = np.random.default_rng(0)
    for kind in FLOATS:

        @nki.jit
        def kernel(a, b):
            wide = nl.ndarray((96, 128), kind, nl.psum)
            nisa.nc_transpose(wide, loaded(a))
            small = nl.ndarray((32, 20), kind, nl.sbuf)
            nisa.nc_transpose(small, loaded(b), engine=nisa.vector_engine)
            out = nl.ndarray((96, 128), kind, nl.sbuf)
            nisa.tensor_copy(out, wide)
            return stored(out), stored(small)

        x, y = array(rng, (128, 96), kind), array(rng, (20, 32), kind)
        wide, small = same(kernel, x, y)
        np.testing.assert_array_equal(wide, x.T)
        np.testing.assert_array_equal(small, y.T)


def test_double_row_matmul():
    rng = np.random.default_rng(0)

    @nki.jit
    def kernel(a, b):
        total = nl.ndarray((64, 256), "float32", nl.psum)
        nisa.nc_matmul(total, loaded(a), loaded(b), perf_mode=nisa.matmul_perf_mode.double_row)
        out = nl.ndarray((64, 256), "float32", nl.sbuf)
        nisa.tensor_copy(out, total)
        return stored(out)

    x, y = array(rng, (128, 2, 64), "float8_e4m3"), array(rng, (128, 2, 256), "float8_e4m3")
    (result,) = same(kernel, x, y, rtol=1e-4)
    wide = np.einsum("kjm,kjn->mn", x.astype(np.float32), y.astype(np.float32))
    np.testing.assert_allclose(result, wide, rtol=1e-4, atol=1e-3)


# -- reductions ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("op", ["add", "maximum", "minimum", "multiply"])
@pytest.mark.parametrize("axes", [(3,), (2, 3), (1, 2, 3)])
def test_tensor_reduce(op, axes):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        p = int(rng.integers(1, 129))
        free = tuple(int(n) for n in rng.integers(1, 7, 3))
        sizes, view = strided(rng, free, "float32")
        kept = [n for a, n in enumerate((p, *free)) if a not in axes]

        @nki.jit
        def kernel(a):
            out = nl.ndarray(tuple(kept) if len(kept) > 1 else (p, 1), "float32", nl.sbuf)
            nisa.tensor_reduce(out, getattr(nl, op), view(loaded(a)), axis=axes, negate=bool(seed % 2))
            return stored(out)

        same(kernel, array(rng, (p, *sizes), low=0.5, high=1.5), rtol=1e-4)


def test_reductions_with_a_second_result():
    rng = np.random.default_rng(1)

    @nki.jit
    def kernel(a, c):
        tile = loaded(a)
        out, total = nl.ndarray(a.shape, "float32", nl.sbuf), nl.ndarray((a.shape[0], 1), "float32", nl.sbuf)
        nisa.tensor_scalar_reduce(out, tile, nl.multiply, loaded(c), nl.maximum, total)
        across = nl.ndarray((1, a.shape[1]), "float32", nl.sbuf)
        nisa.tensor_partition_reduce(across, nl.add, tile)
        return stored(out), stored(total), stored(across)

    same(kernel, array(rng, (90, 31)), array(rng, (90, 1)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ops", [("multiply", "add"), ("add", "maximum"), ("multiply", "subtract")])
@pytest.mark.parametrize("reverse", [False, True])
def test_tensor_tensor_scan(ops, reverse):
    rng = np.random.default_rng(2)

    @nki.jit
    def kernel(a, b, c):
        out = nl.ndarray(a.shape, "float32", nl.sbuf)
        nisa.tensor_tensor_scan(
            out, loaded(a), loaded(b), loaded(c), getattr(nl, ops[0]), getattr(nl, ops[1]), reverse1=reverse
        )
        return stored(out)

    same(
        kernel,
        array(rng, (60, 40), low=-0.9, high=0.9),
        array(rng, (60, 40)),
        array(rng, (60, 1)),
        rtol=1e-3,
        atol=1e-4,
    )


def test_scan_of_long_rows_in_any_number():
    """Rows are computed several at a time; what is left over goes alone."""
    rng = np.random.default_rng(2)

    @nki.jit
    def kernel(a, b):
        out = nl.ndarray(a.shape, "float32", nl.sbuf)
        nisa.tensor_tensor_scan(out, loaded(a), loaded(b), 0.5, nl.multiply, nl.add)
        return stored(out)

    a, b = array(rng, (7, 2100), low=-0.9, high=0.9), array(rng, (7, 2100))
    got = same(kernel, a, b, rtol=1e-3, atol=1e-4)[0]
    for row in range(7):
        np.testing.assert_array_equal(nki.simulate(kernel)(a[row : row + 1], b[row : row + 1])[0], got[row])


@pytest.mark.parametrize("op1", ["add", "maximum", "minimum"])
def test_tensor_scalar_cumulative(op1):
    rng = np.random.default_rng(2)

    @nki.jit
    def kernel(a):
        out = nl.ndarray(a.shape, "float32", nl.sbuf)
        nisa.tensor_scalar_cumulative(out, loaded(a), nl.multiply, getattr(nl, op1), 0.5)
        return stored(out)

    same(kernel, array(rng, (60, 40)), rtol=1e-4, atol=1e-4)


def test_bn_stats_and_aggregation():
    rng = np.random.default_rng(3)
    x = array(rng, (100, 700))

    @nki.jit
    def kernel(a):
        tile = loaded(a)
        stats = nl.ndarray((100, 2, 6), "float32", nl.sbuf)
        nisa.bn_stats(stats[:, 0], tile[:, 0:512])
        nisa.bn_stats(stats[:, 1], tile[:, 512:700])
        out = nl.ndarray((100, 2), "float32", nl.sbuf)
        nisa.bn_aggr(out, stats)
        return stored(stats), stored(out)

    _, out = same(kernel, x, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(out, np.stack([x.mean(1), x.var(1)], 1), rtol=1e-4, atol=1e-5)


# -- selection
@pytest.mark.parametrize("cmp", ["equal", "less", "greater_equal"])
def test_affine_select(cmp):
    rng = np.random.default_rng(4)

    @nki.jit
    def kernel(a):
        out = nl.ndarray(a.shape, "float32", nl.sbuf)
        nisa.affine_select(out, [[-3, 5], [1, 6]], 2, loaded(a), -99.0, cmp_op=getattr(nl, cmp), offset=-4)
        return stored(out)

    same(kernel, array(rng, (70, 5, 6)))


def test_range_select_and_its_maximum():
    rng = np.random.default_rng(5)

    @nki.jit
    def kernel(a, lo, hi):
        out, top = nl.ndarray(a.shape, "float32", nl.sbuf), nl.ndarray((a.shape[0], 1), "float32", nl.sbuf)
        nisa.range_select(
            dst=out,
            on_true_tile=loaded(a),
            comp_op0=nl.greater_equal,
            comp_op1=nl.less,
            bound0=loaded(lo),
            bound1=loaded(hi),
            reduce_res=top,
            range_start=3,
        )
        return stored(out), stored(top)

    low = rng.integers(0, 20, (64, 1)).astype(np.float32)
    same(kernel, array(rng, (64, 40)), low, low + rng.integers(0, 15, (64, 1)).astype(np.float32))


def test_predicated_copy_and_select_reduce():
    rng = np.random.default_rng(6)

    @nki.jit
    def kernel(a, b, mask, column):
        target, chosen = loaded(a), loaded(mask)
        nisa.tensor_copy_predicated(target, loaded(b), chosen)
        other = loaded(a)
        nisa.tensor_copy_predicated(other, loaded(b), chosen, reverse_pred=True)
        out, top = nl.ndarray(a.shape, "float32", nl.sbuf), nl.ndarray((a.shape[0], 1), "float32", nl.sbuf)
        nisa.select_reduce(
            out, chosen, loaded(b), loaded(column), reduce_res=top, reduce_cmd=nisa.reduce_cmd.reset_reduce
        )
        return stored(target), stored(other), stored(out), stored(top)

    same(
        kernel,
        array(rng, (80, 21)),
        array(rng, (80, 21)),
        rng.integers(0, 2, (80, 21)).astype(np.uint8),
        array(rng, (80, 1)),
    )


def test_the_eight_largest():
    rng = np.random.default_rng(7)
    x = rng.permutation(64 * 50).reshape(64, 50).astype(np.float32)
    x[:, 10] = x[:, 20]

    @nki.jit
    def kernel(a):
        tile = loaded(a)
        top = nl.ndarray((64, 8), "float32", nl.sbuf)
        nisa.max8(top, tile)
        where = nl.ndarray((64, 8), "uint32", nl.sbuf)
        nisa.nc_find_index8(where, tile, top)
        rest, places = nl.ndarray(a.shape, "float32", nl.sbuf), nl.ndarray((64, 8), "uint32", nl.sbuf)
        nisa.nc_match_replace8(rest, tile, top, -1.0, dst_idx=places)
        return stored(top), stored(where), stored(rest)

    same(kernel, x)


def test_shuffles_and_gathers():
    rng = np.random.default_rng(8)
    mask = [int(v) for v in rng.permutation(32)]
    mask[5] = 255

    @nki.jit
    def kernel(a, b, index, places):
        shuffled = loaded(b)
        nisa.nc_stream_shuffle(src=loaded(a), dst=shuffled, shuffle_mask=mask)
        gathered = nl.ndarray(index.shape, "float32", nl.sbuf)
        nisa.nc_n_gather(gathered, loaded(a), loaded(index))
        picked = nl.ndarray((128, 32, 2), "float32", nl.sbuf)
        nisa.local_gather(picked, loaded(a), loaded(places), num_elem_per_idx=2, num_valid_indices=32)
        return stored(shuffled), stored(gathered), stored(picked)

    same(
        kernel,
        array(rng, (128, 40)),
        array(rng, (128, 40)),
        rng.integers(0, 40, (128, 13)).astype(np.uint32),
        rng.integers(0, 20, (128, 2)).astype(np.uint16),
    )


def test_nonzero_with_count():
    rng = np.random.default_rng(9)

    @nki.jit
    def kernel(a):
        out = nl.ndarray((128, 41), "int32", nl.sbuf)
        nisa.memset(out, 7)
        nisa.nonzero_with_count(dst=out, src=loaded(a), index_offset=16)
        return stored(out)

    same(kernel, rng.integers(0, 2, (128, 40)).astype(np.float32))


# -- DMA
def test_dma_patterns_of_hbm():
    for seed in range(8):
        rng = np.random.default_rng(seed)
        p, free = draw(rng)
        steps = [int(s) for s in rng.integers(0, 5, 1 + len(free))]
        counts = [p, *free]
        size = 1 + sum(step * (count - 1) for step, count in zip(steps, counts, strict=True)) + 7

        @nki.jit
        def kernel(a):
            tile = nl.ndarray((p, *free), "float32", nl.sbuf)
            nisa.dma_copy(
                dst=tile, src=a.ap([list(pair) for pair in zip(steps, counts, strict=True)], offset=5)
            )
            return stored(tile)

        x = array(rng, (size,))
        (result,) = same(kernel, x)
        index = 5 + sum(
            np.arange(c).reshape([-1 if d == a else 1 for d in range(len(counts))]) * s
            for a, (s, c) in enumerate(zip(steps, counts, strict=True))
        )
        np.testing.assert_array_equal(result, x[index])


def test_gather_and_scatter_rows():
    rng = np.random.default_rng(0)
    rows = rng.permutation(50)[:32].astype(np.int32).reshape(32, 1)
    rows[3] = 77

    @nki.jit
    def kernel(a, index, target):
        place = loaded(index)
        tile = nl.ndarray((32, 12), "float32", nl.sbuf)
        nisa.memset(tile, -5.0)
        nisa.dma_copy(
            dst=tile,
            src=a.ap([[12, 32], [1, 12]], vector_offset=place, indirect_dim=0),
            oob_mode=nisa.oob_mode.skip,
        )
        nisa.dma_copy(
            dst=target.ap([[12, 32], [1, 12]], vector_offset=place, indirect_dim=0),
            src=tile,
            oob_mode=nisa.oob_mode.skip,
        )
        return stored(tile), target

    x = array(rng, (50, 12))
    tile, target = same(kernel, x, rows, np.zeros((50, 12), np.float32))
    keep = rows[:, 0] < 50
    np.testing.assert_array_equal(tile[keep], x[rows[keep, 0]])
    assert (tile[3] == -5).all()
    np.testing.assert_array_equal(target[rows[keep, 0]], x[rows[keep, 0]])


def test_scalar_offset_from_a_tile_and_a_register():
    rng = np.random.default_rng(0)

    @nki.jit
    def kernel(a, where):
        place = loaded(where)
        register = nisa.register_alloc()
        nisa.register_load(register, place)
        first, second = nl.ndarray((8, 12), "float32", nl.sbuf), nl.ndarray((8, 12), "float32", nl.sbuf)
        nisa.dma_copy(dst=first, src=a.ap([[12, 8], [1, 12]], scalar_offset=place, indirect_dim=0))
        nisa.dma_copy(dst=second, src=a.ap([[12, 8], [1, 12]], scalar_offset=register + 1, indirect_dim=0))
        return stored(first), stored(second)

    x = array(rng, (50, 12))
    first, second = same(kernel, x, np.array([[17]], np.int32))
    np.testing.assert_array_equal(first, x[17:25])
    np.testing.assert_array_equal(second, x[18:26])


@pytest.mark.parametrize(
    "shape,axes", [((24, 40), (1, 0)), ((6, 5, 7), (2, 1, 0)), ((4, 3, 2, 5), (3, 1, 2, 0))]
)
def test_dma_transpose(shape, axes):
    rng = np.random.default_rng(0)

    @nki.jit
    def kernel(a):
        out = nl.ndarray(tuple(shape[axis] for axis in axes), "bfloat16", nl.sbuf)
        nisa.dma_transpose(dst=out, src=a)
        return stored(out)

    x = array(rng, shape, "bfloat16")
    (result,) = same(kernel, x)
    np.testing.assert_array_equal(result, x.transpose(axes))


def test_dma_compute_adds():
    rng = np.random.default_rng(0)

    @nki.jit
    def kernel(a, b):
        x, y = loaded(a), loaded(b)
        out = nl.ndarray(a.shape, "float32", nl.sbuf)
        nisa.dma_compute(out, [x, y], nl.add, scales=[1.0, 1.0])
        return stored(out)

    same(kernel, array(rng, (64, 9)), array(rng, (64, 9), "bfloat16"))
