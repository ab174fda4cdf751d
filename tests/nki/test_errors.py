"""Wrong kernels are caught, each by its category and with the user's line; the process survives."""

from __future__ import annotations

import re
import signal

import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest

import nki
from opentrn.errors import (
    CapacityError,
    ConfigurationError,
    CorruptFileError,
    OpenTRNError,
    OutOfBoundsError,
    UndefinedBehaviourError,
    UnsupportedError,
)

X = np.ones((128, 256), np.float32)


def line_of(error: OpenTRNError) -> bool:
    """Does the error name a line of this file?"""
    return re.search(r"test_errors\.py:\d+", str(error)) is not None


def test_uninitialised_read():
    @nki.jit
    def kernel(x):
        out, tile = nl.ndarray(x.shape, x.dtype, nl.shared_hbm), nl.ndarray(x.shape, x.dtype, nl.sbuf)
        nisa.dma_copy(dst=tile[:, 0:255], src=x[:, 0:255])
        nisa.dma_copy(dst=out, src=tile)
        return out

    with pytest.raises(UndefinedBehaviourError) as caught:
        nki.simulate(kernel)(X)
    assert line_of(caught.value)
    relaxed = nki.simulate(kernel, check=False)(X)
    assert np.isnan(relaxed[:, 255]).all() and (relaxed[:, :255] == 1).all()


def test_race_between_the_cores():
    @nki.jit
    def kernel(x):
        shared, out = (nl.ndarray(x.shape, x.dtype, nl.shared_hbm) for _ in range(2))
        half = x.shape[0] // 2
        me = nl.program_id(0)
        tile = nl.ndarray((half, x.shape[1]), x.dtype, nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[me * half : (me + 1) * half])
        nisa.dma_copy(dst=shared[me * half : (me + 1) * half], src=tile)
        if barrier:
            nisa.core_barrier(shared, (0, 1))
        other = 1 - me
        nisa.dma_copy(dst=tile, src=shared[other * half : (other + 1) * half])
        nisa.dma_copy(dst=out[other * half : (other + 1) * half], src=tile)
        return out

    x = np.arange(128 * 16, dtype=np.float32).reshape(128, 16)
    barrier = False
    with pytest.raises(UndefinedBehaviourError, match=r"race|nothing has written") as caught:
        nki.simulate(kernel[2])(x)
    assert line_of(caught.value)
    barrier = True
    np.testing.assert_array_equal(nki.simulate(kernel[2])(x), x)


@nki.jit
def overlapping(x, read_second=False):
    out = nl.ndarray((128, 64), x.dtype, nl.shared_hbm)
    first = nl.ndarray((128, 64), x.dtype, nl.sbuf, name="first", address=(0, 1024))
    second = nl.ndarray((128, 64), x.dtype, nl.sbuf, name="second", address=(0, 1024 + 32 * 4))
    nisa.dma_copy(dst=first, src=x[:, 0:64])
    nisa.memset(second, 5.0)
    nisa.dma_copy(dst=out, src=second if read_second else first)
    return out


def test_an_overlapping_address_is_caught():
    with pytest.raises(
        UndefinedBehaviourError, match=r"'first' is read where 'second'.*bytes 1152 to 1279"
    ) as caught:
        nki.simulate(overlapping)(X)
    assert line_of(caught.value)
    relaxed = nki.simulate(overlapping, check=False)(X)
    assert (relaxed[:, :32] == 1).all() and (relaxed[:, 32:] == 5).all(), "pinned tensors alias"
    assert (nki.simulate(overlapping)(X, read_second=True) == 5).all(), "reuse of an address is no mistake"


def test_an_address_may_be_used_again():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((4, 128, 64), x.dtype, nl.shared_hbm)
        for i in range(4):
            tile = nl.ndarray((128, 64), x.dtype, nl.sbuf, address=(0, 512))
            other = nl.ndarray((128, 64), x.dtype, nl.sbuf, address=(0, 768))
            nisa.dma_copy(dst=tile, src=x[:, i * 64 : (i + 1) * 64])
            nisa.tensor_scalar(other, tile, nl.add, 1.0)
            nisa.dma_copy(dst=out[i], src=other)
            nisa.memset(tile[:, 0:8], 0.0)
            nisa.tensor_copy(other[:, 0:8], tile[:, 0:8])
        return out

    x = np.arange(128 * 256, dtype=np.float32).reshape(128, 256)
    expected = x.reshape(128, 4, 64).transpose(1, 0, 2) + 1
    np.testing.assert_array_equal(nki.simulate(kernel)(x), expected)


def test_off_by_one_in_a_loop_bound():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        for i in range(5):
            tile = nl.load(x[:, i * 64 : (i + 1) * 64])
            nl.store(out[:, i * 64 : (i + 1) * 64], tile)
        return out

    with pytest.raises(OutOfBoundsError, match="256:320"):
        nki.simulate(kernel)(X)


def test_runtime_index_out_of_bounds():
    @nki.jit
    def kernel(x, n):
        out = nl.ndarray((8, 16), x.dtype, nl.shared_hbm)
        place, tile = nl.ndarray((1, 1), "int32", nl.sbuf), nl.ndarray((8, 16), x.dtype, nl.sbuf)
        nisa.dma_copy(dst=place, src=n)
        nisa.dma_copy(dst=tile, src=x.ap([[16, 8], [1, 16]], scalar_offset=place, indirect_dim=0))
        nisa.dma_copy(dst=out, src=tile)
        return out

    x = np.arange(32 * 16, dtype=np.float32).reshape(32, 16)
    np.testing.assert_array_equal(nki.simulate(kernel)(x, np.array([[24]], np.int32)), x[24:])
    with pytest.raises(OutOfBoundsError) as caught:
        nki.simulate(kernel)(x, np.array([[25]], np.int32))
    assert line_of(caught.value)


def test_more_sbuf_than_there_is():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((128, 1), x.dtype, nl.shared_hbm)
        tiles = [nl.full((128, 20000), float(i), x.dtype, nl.sbuf, name=f"tile{i}") for i in range(4)]
        total = tiles[0]
        for tile in tiles[1:]:
            nisa.tensor_tensor(total, total, tile, nl.add)
        nisa.dma_copy(dst=out, src=total[:, 0:1])
        return out

    with pytest.raises(CapacityError, match="80000") as caught:
        nki.simulate(kernel)(X)
    assert "tile0" in str(caught.value)


def test_documented_limits_name_instruction_and_line():
    def big_partition(x):
        nl.ndarray((256, 8), x.dtype, nl.sbuf)

    def wide_moving(x):
        a, b = nl.load(x[:, 0:128]), nl.full((128, 600), 1.0, x.dtype)
        nisa.nc_matmul(nl.ndarray((128, 600), "float32", nl.psum), a, b)

    def matmul_into_sbuf(x):
        a = nl.load(x[:, 0:128])
        nisa.nc_matmul(nl.ndarray((128, 128), "float32", nl.sbuf), a, a)

    def start_partition(x):
        a = nl.load(x)
        nisa.memset(a[3:9], 0.0)

    for body in (big_partition, wide_moving, matmul_into_sbuf, start_partition):

        def kernel(x, body=body):
            out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
            body(x)
            nisa.dma_copy(dst=out, src=x)
            return out

        with pytest.raises(OpenTRNError) as caught:
            nki.simulate(nki.jit(kernel))(X)
        assert line_of(caught.value), body.__name__


def test_instruction_of_another_chip(monkeypatch):
    @nki.jit
    def kernel(x):
        out, tile = nl.ndarray(x.shape, x.dtype, nl.shared_hbm), nl.load(x)
        nisa.exponential(tile, tile)
        nl.store(out, tile)
        return out

    monkeypatch.setenv("NKI_NC_VERSION", "gen3")
    with pytest.raises(UnsupportedError):
        nki.simulate(kernel)(X)
    monkeypatch.setenv("NKI_NC_VERSION", "gen4")
    np.testing.assert_allclose(nki.simulate(kernel)(X), np.e, rtol=1e-5)


def test_a_kernel_that_never_ends_can_be_stopped():
    @nki.jit
    def kernel(x):
        out, tile = nl.ndarray(x.shape, x.dtype, nl.shared_hbm), nl.load(x)
        forever = nisa.register_alloc(1)
        while forever:
            nisa.tensor_scalar(tile[:, 0:1], tile[:, 0:1], nl.multiply, 1.0)
        nl.store(out, tile)
        return out

    with pytest.raises(UndefinedBehaviourError, match=r"20000 .* does not end") as caught:
        nki.simulate(kernel, step_limit=20_000)(X)
    line = kernel.func.__code__.co_firstlineno + 4
    assert caught.value.where == f"while loop of {__file__}:{line}"


@pytest.mark.parametrize("launch", [nki.simulate, lambda kernel: kernel])
def test_a_kernel_that_never_ends_is_stopped_by_default(monkeypatch, launch):
    from opentrn.core import execution

    monkeypatch.setattr(execution, "MOST_STEPS", 20_000)
    with pytest.raises(UndefinedBehaviourError, match=r"20000 .* does not end(.|\n)*OPENTRN_STEP_LIMIT"):
        launch(endless)(X)
    monkeypatch.setenv("OPENTRN_STEP_LIMIT", "50000")
    with pytest.raises(UndefinedBehaviourError, match=r"50000 .* does not end"):
        launch(endless)(X)


@nki.jit
def endless(x):
    out, tile = nl.ndarray(x.shape, x.dtype, nl.shared_hbm), nl.load(x)
    forever = nisa.register_alloc(1)
    while forever:
        nisa.tensor_scalar(tile[:, 0:1], tile[:, 0:1], nl.multiply, 1.0)
    nl.store(out, tile)
    return out


def test_ctrl_c_stops_a_kernel_that_never_ends():
    def interrupt(signum, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            nki.simulate(endless)(X)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    np.testing.assert_array_equal(nki.simulate(overlapping, check=False)(X)[:, 0], 1)


def test_python_that_never_ends_is_bounded(monkeypatch):
    from opentrn.nki import tracing

    @nki.jit
    def kernel(x):
        tile = nl.load(x)
        while True:
            nisa.tensor_scalar(tile, tile, nl.multiply, 1.0)

    monkeypatch.setattr(tracing, "MOST_INSTRUCTIONS", 1000)
    with pytest.raises(UndefinedBehaviourError, match="1,000 instructions and goes on") as caught:
        nki.simulate(kernel)(X)
    assert line_of(caught.value)
    line = kernel.func.__code__.co_firstlineno + 3
    assert f"in the loop of {__file__}:{line}" in caught.value.cause
    assert "OPENTRN_STEP_LIMIT" in caught.value.cure
    monkeypatch.setenv("OPENTRN_STEP_LIMIT", "2000")
    with pytest.raises(UndefinedBehaviourError, match="2,000 instructions and goes on"):
        nki.simulate(kernel)(X)


def test_a_corrupt_program_file(tmp_path):
    from opentrn.core.program import Program
    from opentrn.nki.traced import trace

    traced, _ = trace(overlapping.func, None, (X,), {}, capacity=False)
    data = bytearray(traced.program.to_bytes())
    assert Program.from_bytes(bytes(data)).to_bytes() == bytes(data)
    for damaged in (data[:-7], bytes(data[:40]) + bytes([data[40] ^ 1]) + bytes(data[41:]), b"", b"program"):
        with pytest.raises(CorruptFileError):
            Program.from_bytes(bytes(damaged))


def test_wrong_arguments():
    @nki.jit
    def kernel(x):
        return x

    with pytest.raises(ConfigurationError):
        kernel(X, X)
    with pytest.raises(UnsupportedError, match="complex64"):
        kernel(X.astype(np.complex64))
    with pytest.raises(ConfigurationError, match="outside of a kernel"):
        nisa.memset(None, 0)

    @nki.jit
    def number(x):
        return 3

    with pytest.raises(UnsupportedError, match="returned int"):
        number(X)

    @nki.jit
    def text_operation(x):
        tile = nl.load(x)
        nisa.tensor_tensor(tile, tile, tile, "add")

    with pytest.raises(UnsupportedError, match="no NKI operation"):
        text_operation(X)


def test_control_flow_that_a_device_cannot_do():
    @nki.jit
    def branch(x):
        register = nisa.register_alloc(1)
        if register:
            pass
        return x

    with pytest.raises(UnsupportedError, match="while"):
        branch(X)

    @nki.jit
    def escape(x):
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nisa.dma_copy(dst=out, src=x)
        for _ in nl.dynamic_range(3):
            break
        return out

    with pytest.raises(UnsupportedError, match="break"):
        escape(X)

    @nki.jit
    def compare(x):
        for i in nl.dynamic_range(3):
            if i == 0:
                return x
        return x

    with pytest.raises(UnsupportedError, match="exists only on the device"):
        compare(X)
