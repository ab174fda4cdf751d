"""`nki.language`: the high-level functions against NumPy, loops, printing, both cores."""

from __future__ import annotations

import sys

import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from scipy import special

import nki

rng = np.random.default_rng(0)
X = rng.uniform(0.1, 2, (128, 64)).astype(np.float32)
Y = rng.uniform(0.1, 2, (128, 64)).astype(np.float32)


def evaluate(function, *arrays):
    @nki.jit
    def kernel(*inputs):
        result = function(*(nl.load(x) for x in inputs))
        out = nl.ndarray(result.shape, result.dtype, nl.shared_hbm)
        nl.store(out, result)
        return out

    return nki.simulate(kernel)(*arrays)


class Seen:
    """What a kernel was traced with; an object that the cache knows by identity only."""

    def __init__(self):
        self.scales = []

    def note(self, scale):
        self.scales.append(scale)


SEEN, FACTOR = Seen(), 1.0
BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "power": np.power,
    "mod": np.mod,
    "fmod": np.fmod,
    "greater": np.greater,
    "less_equal": np.less_equal,
}
UNARY = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "square": np.square,
    "tanh": np.tanh,
    "sigmoid": special.expit,
    "erf": special.erf,
    "reciprocal": lambda x: 1 / x,
    "negative": np.negative,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "sin": np.sin,
    "cos": np.cos,
}


@pytest.mark.parametrize("name", BINARY)
def test_binary_functions_broadcast(name):
    function = getattr(nl, name)
    np.testing.assert_allclose(evaluate(function, X, Y), BINARY[name](X, Y), rtol=2e-4)
    np.testing.assert_allclose(evaluate(function, X, Y[:, :1]), BINARY[name](X, Y[:, :1]), rtol=2e-4)
    np.testing.assert_allclose(
        evaluate(lambda x: function(x, 0.75), X), BINARY[name](X, np.float32(0.75)), rtol=2e-4
    )


@pytest.mark.parametrize("name", UNARY)
def test_unary_functions(name):
    np.testing.assert_allclose(evaluate(getattr(nl, name), X), UNARY[name](X), rtol=2e-4, atol=1e-5)


def test_reductions_and_composites():
    np.testing.assert_allclose(evaluate(lambda x: nl.sum(x, 1), X)[:, 0], X.sum(1), rtol=1e-5)
    np.testing.assert_allclose(evaluate(lambda x: nl.max(x, 1, keepdims=True), X), X.max(1, keepdims=True))
    np.testing.assert_allclose(evaluate(lambda x: nl.mean(x, 1), X)[:, 0], X.mean(1), rtol=1e-5)
    np.testing.assert_allclose(evaluate(lambda x: nl.var(x, 1), X)[:, 0], X.var(1), rtol=1e-4)
    np.testing.assert_allclose(evaluate(lambda x: nl.softmax(x, 1), X), special.softmax(X, 1), rtol=1e-4)
    want = X / np.sqrt((X * X).mean(1, keepdims=True) + 1e-6) * Y
    np.testing.assert_allclose(evaluate(lambda x, w: nl.rms_norm(x, w, 1, 64), X, Y), want, rtol=1e-4)
    np.testing.assert_allclose(evaluate(nl.transpose, X), X.T)
    np.testing.assert_allclose(evaluate(nl.matmul, X, Y[:64]), X @ Y[:64], rtol=1e-4)
    np.testing.assert_allclose(
        evaluate(lambda x, y: nl.where(nl.greater(x, y), x, y), X, Y), np.maximum(X, Y)
    )


def test_creation():
    @nki.jit
    def kernel():
        names = ("zeros", "ones", "full")
        tiles = [nl.zeros((4, 8), nl.float32), nl.ones((4, 8), nl.float32), nl.full((4, 8), 2.5, nl.float32)]
        outs = []
        for name, tile in zip(names, tiles, strict=True):
            out = nl.ndarray((4, 8), nl.float32, nl.shared_hbm, name=name)
            nl.store(out, tile)
            outs.append(out)
        eye = nl.ndarray((32, 32), nl.bfloat16, nl.shared_hbm)
        nl.store(eye, nl.shared_identity_matrix(32, dtype=nl.bfloat16))
        wide = nl.zeros((300, 7), nl.float32, buffer=nl.shared_hbm)
        return outs, eye, wide

    outs, eye, wide = nki.simulate(kernel)()
    assert [out[0, 0] for out in outs] == [0, 1, 2.5]
    np.testing.assert_array_equal(eye.astype(np.float32), np.eye(32))
    assert not wide.any()


def test_dynamic_loops():
    @nki.jit
    def kernel(x, count):
        out = nl.zeros(x.shape, x.dtype, buffer=nl.shared_hbm)
        trips = nisa.register_alloc()
        nisa.register_load(trips, nl.load(count))
        for i in nl.dynamic_range(trips):
            tile = nl.load(x[i * 16 : (i + 1) * 16])
            nl.store(out[nl.ds(i * 16, 16)], nl.multiply(tile, 3.0))
        left = nl.full((1, 1), 3, nl.int32)
        going, last = nisa.register_alloc(3), nl.ndarray((1, 1), nl.int32, nl.shared_hbm)
        passes = nl.zeros((1, 1), nl.int32)
        while going:
            nisa.tensor_scalar(left, left, nl.subtract, 1)
            nisa.tensor_scalar(passes, passes, nl.add, 1)
            nisa.register_load(going, left)
        nl.store(last, passes)
        return out, last

    for trips in (0, 1, 5, 8):
        out, passes = nki.simulate(kernel)(X, np.array([[trips]], np.int32))
        np.testing.assert_allclose(out[: 16 * trips], 3 * X[: 16 * trips])
        assert not out[16 * trips :].any() and passes == 3


def test_both_cores_exchange_tiles():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 128, 64), x.dtype, nl.shared_hbm)
        me = nl.program_id(0)
        mine = nl.multiply(nl.load(x), float(me + 1))
        theirs = nl.ndarray((128, 64), x.dtype, nl.sbuf)
        nisa.sendrecv(src=mine, dst=theirs, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
        nl.store(out[me], nl.add(mine, theirs))
        return out

    result = nki.simulate(kernel[2])(X)
    np.testing.assert_allclose(result, np.stack([3 * X, 3 * X]), rtol=1e-6)
    assert nki.simulate(kernel[2])(X).shape == (2, 128, 64)


def test_printing_during_the_trace_and_on_the_device(capsys):
    seen = {}

    @nki.jit
    def kernel(x):
        tile = nl.load(x)
        print(tile[0:1, 0:2])
        seen["now"] = tile[0:2, 0:3].numpy()
        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
        nl.device_print("doubled", tile[0:1, 0:3])
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nl.store(out, tile)
        return out

    printed = {}
    nki.simulate(kernel, on_print=lambda prefix, values: printed.update({prefix: np.array(values)}))(X)
    np.testing.assert_array_equal(seen["now"], X[0:2, 0:3])
    np.testing.assert_allclose(printed["doubled"].reshape(-1), 2 * X[0, 0:3])
    assert len(printed) == 1
    assert f"{X[0, 0]:.4f}"[:5] in capsys.readouterr().out


def test_programs_are_cached_by_shapes_scalars_and_grid():
    from opentrn.nki.traced import trace

    @nki.jit
    def kernel(x, scale, names=("a",)):
        SEEN.note(scale)
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nl.store(out, nl.multiply(nl.load(x), scale))
        return out

    for scale in (2.0, 2.0, 3.0, 2.0):
        np.testing.assert_allclose(nki.simulate(kernel)(X, scale), X * scale, rtol=1e-6)
    nki.simulate(kernel)(X[:64], 2.0)
    assert SEEN.scales == [2.0, 3.0, 2.0]
    trace(kernel.func, 2, (X, 2.0), {})
    assert SEEN.scales == [2.0, 3.0, 2.0, 2.0, 2.0]


def scaled(tile):
    return nl.multiply(tile, FACTOR)


@nki.jit
def uses_globals(x):
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nl.store(out, scaled(nl.load(x)))
    return out


def test_a_changed_global_is_another_program(monkeypatch):
    """Also where a function that the kernel calls reads it."""
    np.testing.assert_array_equal(uses_globals(X), X)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3.0)
    np.testing.assert_array_equal(uses_globals(X), 3 * X)
    monkeypatch.setattr(sys.modules[__name__], "scaled", lambda tile: nl.multiply(tile, 5.0))
    np.testing.assert_array_equal(uses_globals(X), 5 * X)


def test_written_arguments_are_updated_in_place():
    @nki.jit
    def kernel(x, state):
        nisa.dma_copy(dst=state, src=x)
        return state

    state = np.zeros_like(X)
    result = nki.simulate(kernel)(X, state)
    np.testing.assert_array_equal(state, X)
    np.testing.assert_array_equal(result, X)


def test_forgotten_programs_are_freed():
    import gc
    import weakref

    from opentrn.nki.traced import forget_programs, trace

    traced, _ = trace(uses_globals.func, None, (X,), {})
    assert trace(uses_globals.func, None, (X,), {})[0] is traced
    kept = weakref.ref(traced)
    del traced
    forget_programs()
    gc.collect()
    assert kept() is None
