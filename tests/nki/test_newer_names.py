"""Names of later releases of NKI are refused with the release that has them; and what 0.3.0 takes no more."""

from __future__ import annotations

import importlib
import inspect

import neuronxcc.nki as classic
import neuronxcc.nki.isa as classic_isa
import neuronxcc.nki.language as cl
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest

import nki
from opentrn.errors import ArgumentTypeError, UnsupportedError
from opentrn.nki import newer, version
from opentrn.nki.tensor import NkiTensor

X = np.ones((128, 64), np.float32)


@pytest.fixture
def release():
    """Chooses a release until the test ends."""
    yield version.use
    version.use(None)


def test_the_table_names_what_exists():
    """But for what is not offered at all (docs/unsupported.md)."""
    for name in newer.table():
        place, _, rest = name.rpartition(".")
        function, _, parameter = rest.partition("(")
        if place == "NkiTensor":
            assert isinstance(inspect.getattr_static(NkiTensor, rest), newer.NewerMethod), name
        elif parameter:
            signature = inspect.signature(getattr(importlib.import_module(place), function))
            named = parameter[:-1] in signature.parameters
            assert named or any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()), name


NOT_OFFERED = ("nki.language.bypass", "nki.language.prelu")


@pytest.mark.parametrize("name", [n for n in newer.table() if n.startswith("nki.") and "(" not in n])
def test_names_of_modules(name, release):
    module, _, attribute = name.rpartition(".")
    public, since = importlib.import_module(module), newer.table()[name]
    text = ".".join(map(str, since))
    for chosen in version.KNOWN:
        release(chosen)
        there = version.current() >= since
        assert hasattr(public, attribute) == (there and name not in NOT_OFFERED)
        assert attribute not in public.__all__
        if there:
            if name not in NOT_OFFERED:
                exec(f"from {module} import {attribute}")
            continue
        for statement in (f"import {module}; {name}", f"from {module} import {attribute}"):
            with pytest.raises(UnsupportedError, match=f"{name} is of NKI {text}, .*written for {chosen}"):
                exec(statement)


def with_view(view):
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nisa.dma_copy(dst=out, src=view(x))
        return out

    return kernel


def test_methods_of_tensors(release):
    kernel = with_view(lambda x: x.permute((0, 1)))
    words = r"NkiTensor\.permute is of NKI 0\.5\.0.*test_newer_names\.py:\d+"
    with pytest.raises(UnsupportedError, match=words):
        nki.simulate(kernel)(X)
    with pytest.raises(AttributeError, match=words):
        nki.simulate(kernel)(X)
    release("0.5.0")
    assert (nki.simulate(kernel)(X) == 1).all()
    release("0.4.0")
    guarded = with_view(lambda x: x.permute((0, 1)) if hasattr(x, "permute") else x)
    assert (nki.simulate(guarded)(X) == 1).all()


def given(call):
    def kernel(x):
        out, tile = nl.ndarray(x.shape, x.dtype, nl.shared_hbm), nl.ndarray(x.shape, x.dtype, nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        call(tile, x)
        nisa.dma_copy(dst=out, src=tile)
        return out

    return kernel


@pytest.mark.parametrize(
    ("call", "parameter", "since"),
    [
        (lambda t, x: nisa.dma_copy(t, x, priority=1), "priority", "0.4.0"),
        (lambda t, x: nisa.dma_compute(t, [x, t], nl.add, oob_mode=nisa.oob_mode.skip), "oob_mode", "0.4.0"),
        (
            lambda t, x: nisa.tensor_scalar_reduce(
                t,
                t,
                nl.add,
                0.0,
                nl.add,
                nl.ndarray((128, 1), nl.float32),
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
            ),
            "reduce_cmd",
            "0.4.0",
        ),
        (
            lambda t, x: nisa.tensor_scalar_reduce(
                t, t, nl.add, 0.0, nl.add, nl.ndarray((128, 1), nl.float32), reduce_res_negate=True
            ),
            "reduce_res_negate",
            "0.6.0",
        ),
    ],
)
def test_parameters(call, parameter, since, release):
    with pytest.raises(
        UnsupportedError, match=rf"\({parameter}\) is of NKI {since}.*test_newer_names\.py:\d+"
    ):
        nki.simulate(given(call))(X)
    release(since)
    nki.simulate(given(call))(X)


def test_a_collective(release):
    assert not hasattr(ncc, "all_gather_v") and hasattr(ncc, "all_gather")
    release("0.6.0")
    assert hasattr(ncc, "all_gather_v")


# -- what NKI 0.3.0 takes no more ------------------------------------------------------------------------
def filled(dtype, value):
    def kernel():
        out, tile = (nl.ndarray((128, 8), dtype, buffer) for buffer in (nl.shared_hbm, nl.sbuf))
        nisa.memset(tile, value)
        nisa.dma_copy(dst=out, src=tile)
        return out

    return kernel


@pytest.mark.parametrize("dtype", [nl.int32, nl.uint8, nl.int16])
@pytest.mark.parametrize("value", [1.5, 2.0, np.float32(2)])
def test_integers_are_filled_with_integers(dtype, value):
    with pytest.raises(ArgumentTypeError, match=rf"memset of the float .* {dtype}.*test_newer_names\.py:\d+"):
        nki.simulate(filled(dtype, value))()
    assert (nki.simulate(filled(dtype, 2))() == 2).all()


def test_floats_are_filled_with_either():
    for dtype in (nl.float32, nl.bfloat16):
        assert (nki.simulate(filled(dtype, 2))() == 2).all()
        assert (nki.simulate(filled(dtype, 1.5))() == 1.5).all()


def test_packed_elements_are_filled_with_zero():
    with pytest.raises(ArgumentTypeError, match="float8_e5m2_x4"):
        nki.simulate(filled(nl.float8_e5m2_x4, 1), chip="trn3")()
    assert (nki.simulate(filled(nl.float8_e5m2_x4, 0), chip="trn3")().view(np.uint8) == 0).all()


def test_operations_are_functions_of_nki():
    call = given(lambda t, x: nisa.tensor_tensor(t, t, t, op=np.add))
    with pytest.raises(UnsupportedError, match=r"(?s)only classic kernels.*test_newer_names\.py.*nl\.add"):
        nki.simulate(call)(X)


def test_operations_of_classic_kernels_may_be_numpys():
    def kernel(x):
        out = cl.ndarray(x.shape, dtype=x.dtype, buffer=cl.shared_hbm)
        tile = cl.load(x)
        total = classic_isa.tensor_reduce(np.add, tile, axis=[1])
        tile = classic_isa.tensor_scalar(tile, op0=np.multiply, operand0=total, op1=np.maximum, operand1=3.0)
        cl.store(out, classic_isa.activation(np.square, classic_isa.tensor_tensor(tile, tile, np.add)))
        return out

    assert (classic.simulate_kernel(kernel, X) == (2 * 64) ** 2).all()
