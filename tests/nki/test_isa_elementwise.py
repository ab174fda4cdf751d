"""Element-wise instructions: the core against the NumPy oracle over random shapes, strides and dtypes."""

# ruff: noqa: B023 - kernels are defined and called in the same iteration
from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from engines import same

import nki

FLOATS = ["float32", "bfloat16", "float16"]
INTEGERS = ["int32", "uint32", "int16", "uint8"]
SEEDS = range(8)


def host(dtype):
    from opentrn.nki.dtypes import host_type

    return host_type(dtype)


def array(rng, shape, dtype="float32", low=-4.0, high=4.0):
    if dtype in INTEGERS:
        return rng.integers(0, 100, shape).astype(host(dtype))
    return rng.uniform(low, high, shape).astype(np.float32).astype(host(dtype))


def draw(rng):
    """(partitions, free dimensions)."""
    return int(rng.integers(1, 129)), tuple(int(n) for n in rng.integers(1, 9, int(rng.integers(1, 4))))


def strided(rng, free, dtype):
    """A tile wider than needed, and a function that gives a strided view of `free` elements of it."""
    steps = [int(rng.integers(1, 4)) for _ in free]
    sizes = tuple(size * step + int(rng.integers(0, 3)) for size, step in zip(free, steps, strict=True))

    def view(tile):
        return tile[
            (slice(None), *(slice(0, size * step, step) for size, step in zip(free, steps, strict=True)))
        ]

    return sizes, view


def loaded(x, dtype=None):
    tile = nl.ndarray(x.shape, dtype or x.dtype, nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    return tile


def stored(tile):
    out = nl.ndarray(tile.shape, tile.dtype, nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


BINARY = [
    "add",
    "subtract",
    "multiply",
    "maximum",
    "minimum",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
]


@pytest.mark.parametrize("op", BINARY)
def test_tensor_tensor(op):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        p, free = draw(rng)
        kinds = [FLOATS[i] for i in rng.integers(0, 3, 3)]
        (size1, view1), (size2, view2) = strided(rng, free, kinds[0]), strided(rng, free, kinds[1])

        @nki.jit
        def kernel(a, b):
            out = nl.ndarray((p, *free), kinds[2], nl.sbuf)
            nisa.tensor_tensor(out, view1(loaded(a)), view2(loaded(b)), getattr(nl, op))
            return stored(out)

        x, y = array(rng, (p, *size1), kinds[0]), array(rng, (p, *size2), kinds[1])
        if op in ("equal", "not_equal"):
            x, y = (
                np.round(x.astype(np.float32)).astype(x.dtype),
                np.round(y.astype(np.float32)).astype(y.dtype),
            )
        same(kernel, x, y)


@pytest.mark.parametrize(
    "op",
    [
        "add",
        "subtract",
        "multiply",
        "maximum",
        "minimum",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "left_shift",
        "right_shift",
    ],
)
@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_tensor_tensor_on_integers_is_exact(op, dtype):
    rng = np.random.default_rng(0)
    big = rng.integers(0, 2**30, (64, 33)).astype(host(dtype))
    other = rng.integers(0, 31 if "shift" in op else 2**30, (64, 33)).astype(host(dtype))
    if op == "multiply":
        big, other = big >> 15, other >> 17

    @nki.jit
    def kernel(a, b):
        out = nl.ndarray(a.shape, dtype, nl.sbuf)
        nisa.tensor_tensor(out, loaded(a), loaded(b), getattr(nl, op))
        return stored(out)

    same(kernel, big, other)


@pytest.mark.parametrize(
    "op0,op1",
    [
        ("multiply", "add"),
        ("subtract", "multiply"),
        ("maximum", None),
        ("add", "minimum"),
        ("greater", None),
        ("less_equal", "multiply"),
    ],
)
@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_tensor_scalar(op0, op1, column, reverse):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        p, free = draw(rng)
        kind = FLOATS[int(rng.integers(0, 3))]
        sizes, view = strided(rng, free, kind)

        @nki.jit
        def kernel(a, c):
            out = nl.ndarray((p, *free), "float32", nl.sbuf)
            operand = loaded(c) if column else 1.25
            nisa.tensor_scalar(
                out,
                view(loaded(a)),
                getattr(nl, op0),
                operand,
                reverse0=reverse,
                op1=None if op1 is None else getattr(nl, op1),
                operand1=None if op1 is None else -0.75,
                reverse1=reverse and op1 is not None,
            )
            return stored(out)

        same(kernel, array(rng, (p, *sizes), kind), array(rng, (p, 1)))


@pytest.mark.parametrize(
    "op0,op1", [("bitwise_and", "left_shift"), ("right_shift", "bitwise_and"), ("bitwise_xor", None)]
)
@pytest.mark.parametrize("dtype", ["int32", "uint32", "uint8"])
def test_tensor_scalar_bit_operations(op0, op1, dtype):
    rng = np.random.default_rng(3)

    @nki.jit
    def kernel(a):
        out = nl.ndarray(a.shape, dtype, nl.sbuf)
        nisa.tensor_scalar(
            out,
            loaded(a),
            getattr(nl, op0),
            3,
            op1=None if op1 is None else getattr(nl, op1),
            operand1=None if op1 is None else 2,
        )
        return stored(out)

    same(kernel, rng.integers(0, 120, (32, 17)).astype(host(dtype)))


def test_scalar_tensor_tensor():
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        p, free = draw(rng)
        sizes, view = strided(rng, free, "float32")
        ops = [("multiply", "add"), ("subtract", "multiply"), ("maximum", "subtract")][seed % 3]

        @nki.jit
        def kernel(a, b, c):
            out = nl.ndarray((p, *free), "bfloat16", nl.sbuf)
            nisa.scalar_tensor_tensor(
                dst=out,
                data=view(loaded(a)),
                op0=getattr(nl, ops[0]),
                operand0=loaded(c),
                op1=getattr(nl, ops[1]),
                operand1=loaded(b),
                reverse1=bool(seed % 2),
            )
            return stored(out)

        same(kernel, array(rng, (p, *sizes)), array(rng, (p, *free)), array(rng, (p, 1)), rtol=1e-2)


ACTIVATIONS = [
    "copy",
    "exp",
    "square",
    "sigmoid",
    "relu",
    "gelu",
    "gelu_apprx_tanh",
    "gelu_apprx_sigmoid",
    "silu",
    "silu_dx",
    "gelu_apprx_sigmoid_dx",
    "gelu_dx",
    "tanh",
    "softplus",
    "mish",
    "erf",
    "erf_dx",
    "sign",
    "abs",
    "sin",
    "arctan",
]


@pytest.mark.parametrize("op", ACTIVATIONS)
def test_activation(op):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        p, free = draw(rng)
        sizes, view = strided(rng, free, "float32")

        @nki.jit
        def kernel(a, b):
            out = nl.ndarray((p, *free), "float32", nl.sbuf)
            nisa.activation(
                out, getattr(nl, op), view(loaded(a)), bias=loaded(b) if seed else None, scale=0.5
            )
            return stored(out)

        same(
            kernel,
            array(rng, (p, *sizes), low=-3, high=3),
            array(rng, (p, 1), low=-0.5, high=0.5),
            rtol=2e-4,
            atol=1e-5,
        )


@pytest.mark.parametrize("op", ["log", "sqrt", "rsqrt", "reciprocal"])
def test_activation_of_positive_numbers(op):
    rng = np.random.default_rng(1)

    @nki.jit
    def kernel(a):
        out = nl.ndarray(a.shape, "float32", nl.sbuf)
        nisa.activation(out, getattr(nl, op), loaded(a))
        return stored(out)

    same(kernel, array(rng, (100, 40), low=0.1, high=9), rtol=1e-5)


def test_activation_accumulates_in_its_registers():
    rng = np.random.default_rng(2)

    @nki.jit
    def kernel(a):
        tile = loaded(a)
        out, total = nl.ndarray(a.shape, "float32", nl.sbuf), nl.ndarray((a.shape[0], 1), "float32", nl.sbuf)
        half = a.shape[1] // 2
        nisa.activation(
            out[:, :half], nl.exp, tile[:, :half], reduce_op=nl.add, reduce_cmd=nisa.reduce_cmd.reset_reduce
        )
        nisa.activation(
            out[:, half:],
            nl.exp,
            tile[:, half:],
            reduce_op=nl.add,
            reduce_res=total,
            reduce_cmd=nisa.reduce_cmd.reduce,
        )
        again = nl.ndarray((a.shape[0], 1), "float32", nl.sbuf)
        nisa.activation_reduce(out, nl.square, tile, reduce_op=nl.add, reduce_res=again)
        return stored(out), stored(total), stored(again)

    x = array(rng, (77, 48), low=-1, high=1)
    _, total, again = same(kernel, x, rtol=1e-4)
    np.testing.assert_allclose(total[:, 0], np.exp(x).sum(1), rtol=1e-4)
    np.testing.assert_allclose(again[:, 0], (x * x).sum(1), rtol=1e-4)


@pytest.mark.parametrize("src", [*FLOATS, *INTEGERS, "float8_e4m3", "float8_e5m2", "int8", "uint16"])
@pytest.mark.parametrize("dst", [*FLOATS, *INTEGERS, "float8_e4m3", "float8_e5m2", "int8", "uint16"])
def test_tensor_copy_and_dma_convert_alike(src, dst):
    rng = np.random.default_rng(5)

    @nki.jit
    def kernel(a):
        tile = loaded(a)
        first = nl.ndarray(a.shape, dst, nl.sbuf)
        nisa.tensor_copy(first, tile)
        second = nl.ndarray(a.shape, dst, nl.sbuf)
        nisa.dma_copy(dst=second, src=tile)
        return stored(first), stored(second)

    x = rng.uniform(0, 100, (50, 20)).astype(np.float32).astype(host(src))
    same(kernel, x)


def test_memset_reciprocal_iota():
    @nki.jit
    def kernel(a):
        tile = loaded(a)
        inverse, filled = nl.ndarray(a.shape, "float32", nl.sbuf), nl.ndarray(a.shape, "bfloat16", nl.sbuf)
        nisa.reciprocal(inverse, tile)
        nisa.memset(filled, 1.5)
        nisa.memset(filled[32:41, 2:5], -2.0)
        pattern = nl.ndarray((a.shape[0], 4, 5), "int32", nl.sbuf)
        nisa.iota(pattern, [[7, 4], [-2, 5]], offset=11, channel_multiplier=3)
        return stored(inverse), stored(filled), stored(pattern)

    same(kernel, array(np.random.default_rng(0), (64, 30), low=0.5, high=3))
