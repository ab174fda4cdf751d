"""What a strict call refuses and any other one warns of: results that nothing wrote, loops of `affine_range`
that carry values. And registers without a value."""

from __future__ import annotations

import warnings

import neuronxcc.nki as classic
import neuronxcc.nki.language as cl
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
import torch

import nki
from opentrn.errors import UndefinedBehaviourError, UndefinedBehaviourWarning
from opentrn.nki.traced import forget_programs

X = np.ones((128, 512), np.float32)
NEVER_WRITTEN = r"never written, the first is \[0, 0\] \(at .*test_findings\.py:\d+\)"


@pytest.fixture(autouse=True)
def _no_program_is_known():
    forget_programs()


def padded(x):
    """The first three columns of the result are left as they are."""
    tile, out = nl.load(x), nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="padded")
    nisa.dma_copy(dst=out[:, 3:], src=tile[:, 3:])
    return out


def classic_padded(x):
    out = cl.ndarray(x.shape, dtype=x.dtype, buffer=cl.shared_hbm)
    cl.store(out[:, 3:512], cl.load(x[:, 3:512]))
    return out


# -- results ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("call", [nki.jit(padded), nki.simulate(padded), nki.simulate(padded, check=False)])
def test_elements_that_nothing_wrote_are_nan_and_told_once(call):
    with pytest.warns(UndefinedBehaviourWarning, match="384 of 65536 .*'padded'.*" + NEVER_WRITTEN):
        result = call(X)
    assert np.isnan(result[:, :3]).all() and (result[:, 3:] == 1).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(call(X)).sum() == 384


@pytest.mark.parametrize(
    "call",
    [nki.jit(padded, strict=True), nki.simulate(padded, check=True), nki.simulate(padded, strict=True)],
)
def test_strict_calls_refuse_them(call):
    for _ in range(2):
        with pytest.raises(UndefinedBehaviourError, match=NEVER_WRITTEN):
            call(X)


def test_the_environment_makes_every_call_strict(monkeypatch):
    with pytest.warns(UndefinedBehaviourWarning):
        nki.simulate(padded)(X)
    monkeypatch.setenv("OPENTRN_STRICT", "1")
    for kernel, run in ((padded, nki.simulate(padded)), (classic_padded, classic.jit(classic_padded))):
        with pytest.raises(UndefinedBehaviourError, match=f"kernel {kernel.__name__}.*" + NEVER_WRITTEN):
            run(X)


def test_classic_kernels_too():
    with pytest.warns(UndefinedBehaviourWarning, match=NEVER_WRITTEN):
        result = classic.simulate_kernel(classic_padded, X)
    assert np.isnan(result).sum() == 384
    with pytest.raises(UndefinedBehaviourError, match=NEVER_WRITTEN):
        classic.simulate_kernel(classic_padded, X, check=True)


@pytest.mark.parametrize("device", ["cpu", "neuron"])
def test_tensors_too(device):
    x = torch.ones(128, 512).to(device)
    with pytest.warns(UndefinedBehaviourWarning, match=NEVER_WRITTEN):
        assert nki.jit(padded)(x).isnan().sum() == 384
    with pytest.raises(UndefinedBehaviourError, match=NEVER_WRITTEN):
        nki.jit(padded, strict=True)(x)


@pytest.mark.parametrize("dtype", [nl.bfloat16, nl.int32, nl.uint8, nl.float8_e5m2])
def test_only_what_is_returned_counts(dtype):
    def views(x):
        out = nl.ndarray(x.shape, dtype, nl.shared_hbm)
        nisa.dma_copy(dst=out[0:64], src=nl.copy(nl.load(x[0:64]), dtype=dtype))
        return out[0:64], out[:, ::2], out[0:32].view(nl.uint8)

    with pytest.warns(
        UndefinedBehaviourWarning, match=r"16384 of 32768 elements of result 1 .*first is \[64, 0\]"
    ) as told:
        _, half, _ = nki.simulate(views)(X)
    assert len(told) == 1
    four = half[64:].astype(np.float32)
    assert (four == 4).all() if "int" in dtype else np.isnan(four).all()


def test_two_cores_write_one_result():
    def halves(x, cores):
        out, me = nl.ndarray(x.shape, x.dtype, nl.shared_hbm), nl.program_id(0)
        for part in range(me, me + cores):
            nisa.dma_copy(dst=out[part * 64 : part * 64 + 64], src=x[part * 64 : part * 64 + 64])
        return out

    assert (nki.simulate(halves, check=True)[2](X, 1) == 1).all()

    def one_half(x):
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        if nl.program_id(0) == 0:
            nisa.dma_copy(dst=out[0:64], src=x[0:64])
        return out

    with pytest.raises(UndefinedBehaviourError, match=r"32768 of 65536 .*first is \[64, 0\]"):
        nki.simulate(one_half, check=True)[2](X)


# -- registers -------------------------------------------------------------------------------------------
def stored(x):
    out, register = nl.ndarray((1, 1), nl.int32, nl.shared_hbm), nisa.register_alloc()
    tile = nl.ndarray((1, 1), nl.int32, nl.sbuf)
    nisa.register_store(tile, register)
    nisa.dma_copy(dst=out, src=tile)
    return out


def counted(x):
    out, register = nl.ndarray(x.shape, x.dtype, nl.shared_hbm), nisa.register_alloc()
    tile = nl.load(x)
    for _ in nl.dynamic_range(register):
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


def offset(x):
    out, register = nl.ndarray(x.shape, x.dtype, nl.shared_hbm), nisa.register_alloc()
    nisa.dma_copy(dst=out, src=x.ap([[512, 128], [1, 512]], scalar_offset=register, indirect_dim=0))
    return out


def conditional(x):
    out, register = nl.ndarray(x.shape, x.dtype, nl.shared_hbm), nisa.register_alloc()
    tile = nl.load(x)
    while register:
        nisa.register_move(register, 0)
    nisa.dma_copy(dst=out, src=tile)
    return out


@pytest.mark.parametrize("kernel", [stored, counted, offset, conditional])
def test_a_register_is_read_before_it_has_a_value(kernel):
    with pytest.raises(UndefinedBehaviourError, match=r"reads register .*\(at .*test_findings\.py:\d+\)"):
        nki.simulate(kernel)(X)


def test_unchecked_registers_read_as_integers_do():
    assert nki.simulate(stored, check=False)(X) == 4
    assert (nki.simulate(counted, check=False)(X) == 5).all()


def test_a_loop_that_does_not_run_writes_no_register():
    def kernel(x, trips):
        out, register = nl.ndarray(x.shape, x.dtype, nl.shared_hbm), nisa.register_alloc()
        bound, tile = nisa.register_alloc(trips), nl.load(x)
        for _ in nl.dynamic_range(bound):
            nisa.register_move(register, 2)
        for _ in nl.dynamic_range(register):
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
        nisa.dma_copy(dst=out, src=tile)
        return out

    assert (nki.simulate(kernel)(X, 1) == 3).all()
    with pytest.raises(UndefinedBehaviourError, match="reads register"):
        nki.simulate(kernel)(X, 0)


# -- affine_range ----------------------------------------------------------------------------------------
def prefix(x, loop):
    out, sums = (cl.ndarray(x.shape, dtype=x.dtype, buffer=b) for b in (cl.shared_hbm, cl.sbuf))
    sums[...] = cl.load(x)
    for i in loop(1, 4):
        sums[:, cl.ds(128 * i, 128)] = cl.add(
            sums[:, cl.ds(128 * i, 128)], sums[:, cl.ds(128 * i - 128, 128)]
        )
    cl.store(out, sums)
    return out


def rescaled(x, loop):
    out = cl.ndarray((128, 128), dtype=x.dtype, buffer=cl.shared_hbm)
    total = cl.zeros((128, 128), dtype=x.dtype, buffer=cl.sbuf)
    for i in loop(4):
        total[...] = cl.add(cl.multiply(total, 0.5), cl.load(x[:, cl.ds(128 * i, 128)]))
    cl.store(out, total)
    return out


def rebound(x, loop):
    out, total = cl.ndarray((128, 128), dtype=x.dtype, buffer=cl.shared_hbm), cl.load(x[:, 0:128])
    for i in loop(1, 4):
        total = cl.exp(cl.add(total, cl.load(x[:, cl.ds(128 * i, 128)])))
    cl.store(out, total)
    return out


def partial_sums(x, loop):
    out, total = (
        cl.ndarray((512, 128), dtype=x.dtype, buffer=cl.shared_hbm),
        cl.zeros((128, 128), dtype=x.dtype),
    )
    for i in loop(4):
        total[...] = cl.add(total, cl.load(x[:, cl.ds(128 * i, 128)]))
        cl.store(out[cl.ds(128 * i, 128)], total)
    return out


def through_memory(x, loop):
    out = cl.ndarray((512, 128), dtype=x.dtype, buffer=cl.shared_hbm)
    cl.store(out[0:128], cl.load(x[:, 0:128]))
    for i in loop(1, 4):
        cl.store(out[cl.ds(128 * i, 128)], cl.load(out[cl.ds(128 * i - 128, 128)]))
    return out


def outer(x, loop):
    out, tile = cl.ndarray((512, 128), dtype=x.dtype, buffer=cl.shared_hbm), cl.load(x[:, 0:128])
    for i in loop(4):
        for _ in cl.sequential_range(2):
            tile[...] = cl.exp(tile)
        cl.store(out[cl.ds(128 * i, 128)], tile)
    return out


@pytest.mark.parametrize("kernel", [prefix, rescaled, rebound, partial_sums, through_memory, outer])
def test_what_an_affine_loop_carries(kernel):
    words = r"affine_range loop of \S*test_findings\.py:\d+ carries '.*' from one iteration to the next"
    with pytest.warns(UndefinedBehaviourWarning, match=words):
        result = classic.simulate_kernel(kernel, X, cl.affine_range)
    with pytest.raises(UndefinedBehaviourError, match=words):
        classic.simulate_kernel(kernel, X, cl.affine_range, check=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(classic.simulate_kernel(kernel, X, cl.affine_range), result)
        np.testing.assert_array_equal(
            classic.simulate_kernel(kernel, X, cl.sequential_range, check=True), result
        )


def accumulated(x):
    out, total = (
        cl.ndarray((128, 128), dtype=x.dtype, buffer=cl.shared_hbm),
        cl.zeros((128, 128), dtype=x.dtype),
    )
    product = cl.zeros((128, 128), dtype=cl.float32, buffer=cl.psum)
    for i in cl.affine_range(4):
        tile = cl.load(x[:, cl.ds(128 * i, 128)])
        total[...] = cl.maximum(total, tile)
        total += tile
        for _ in cl.affine_range(2):
            product[...] += cl.matmul(tile, tile)
    cl.store(out, cl.add(total, product))
    return out


def over_loops(x):
    out = cl.ndarray((128, 128), dtype=x.dtype, buffer=cl.shared_hbm)
    for i in cl.affine_range(4):
        total = cl.loop_reduce(cl.load(x[:, cl.ds(128 * i, 128)]), op=np.add, loop_indices=[i])
    cl.store(out, total)
    return out


def reused(x):
    """A tile of outside that every iteration fills, in pieces, before it reads them."""
    out, tile = (
        cl.ndarray((512, 128), dtype=x.dtype, buffer=cl.shared_hbm),
        cl.ndarray((128, 128), dtype=x.dtype),
    )
    for i in cl.affine_range(4):
        tile[:, 0:64] = cl.load(x[:, cl.ds(128 * i, 64)])
        tile[0:64, 64:128] = cl.load(x[0:64, cl.ds(128 * i + 64, 64)])
        tile[64:128, 64:128] = cl.load(x[64:128, cl.ds(128 * i + 64, 64)])
        for j in cl.affine_range(2):
            tile[cl.ds(64 * j, 64)] = cl.exp(tile[cl.ds(64 * j, 64)])
            cl.store(out[cl.ds(128 * i + 64 * j, 64)], tile[cl.ds(64 * j, 64)])
    return out


def columns(x):
    """Iterations that meet in no element, only in what encloses them."""
    out, tile = (cl.ndarray(x.shape, dtype=x.dtype, buffer=b) for b in (cl.shared_hbm, cl.sbuf))
    tile[...] = cl.load(x)
    for i in cl.affine_range(4):
        place = cl.mgrid[0:128, 0:128]
        tile[place.p, 4 * place.x + i] = cl.exp(tile[place.p, 4 * place.x + i])
    cl.store(out, tile)
    return out


def transposed(x):
    """The first iteration asks for the identity matrix that every one uses."""
    out = cl.ndarray((512, 128), dtype=x.dtype, buffer=cl.shared_hbm)
    for i in cl.affine_range(4):
        cl.store(out[cl.ds(128 * i, 128)], cl.transpose(cl.load(x[:, cl.ds(128 * i, 128)])))
    return out


@pytest.mark.parametrize("kernel", [accumulated, over_loops, reused, columns, transposed])
def test_what_is_no_dependence(kernel):
    assert np.isfinite(classic.simulate_kernel(kernel, X, check=True)).all()


def test_ranges_of_modern_kernels_promise_nothing():
    """They are unrolled in order, as NKI documents them since 0.3.0."""

    @nki.jit(strict=True)
    def kernel(x):
        out, tile = nl.ndarray((128, 128), x.dtype, nl.shared_hbm), nl.load(x[:, 0:128])
        for _ in nl.affine_range(3):
            nisa.activation(dst=tile, op=nl.sqrt, data=tile)
        nl.store(out, tile)
        return out

    assert (kernel(X) == 1).all()
