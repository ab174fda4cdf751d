"""Mistakes that show while a kernel is traced: each names the user's line, and is also Python's own error."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest

import nki
from opentrn.errors import (
    CapacityError,
    ConfigurationError,
    OpenTRNError,
    OutOfBoundsError,
    UndefinedBehaviourError,
    UnsupportedError,
)
from opentrn.nki import version

X = np.ones((128, 256), np.float32)


def line_of(function: Callable[..., Any], offset: int = 0) -> str:
    return f"test_tracing_errors.py:{function.__code__.co_firstlineno + offset}"


def with_tile(body: Callable[[Any, Any], Any]) -> Any:
    """A kernel that calls `body` with its argument and a loaded tile."""

    def kernel(x):
        out, tile = nl.ndarray(x.shape, x.dtype, nl.shared_hbm), nl.ndarray(x.shape, x.dtype, nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        body(x, tile)
        nisa.dma_copy(dst=out, src=tile)
        return out

    return nki.jit(kernel)


def truth_of_a_small_tile(x, a):
    if nl.zeros((1, 1), nl.int32):
        pass


def truth_of_an_element(x, a):
    if a[0, 0]:
        pass


WRONG: list[tuple[Callable[..., Any], type[OpenTRNError], type[Exception], str]] = [
    (lambda x, a: x[:, 256:257], OutOfBoundsError, IndexError, "256:257"),
    (lambda x, a: a[0, 0, 0], OutOfBoundsError, IndexError, "3 indices"),
    (lambda x, a: a[0:1.5], ConfigurationError, TypeError, "1.5"),
    (lambda x, a: a.reshape((128, 3)), OutOfBoundsError, IndexError, "cannot be reshaped"),
    (lambda x, a: a.ap("x"), ConfigurationError, ValueError, r"\[step, count\]"),
    (lambda x, a: a.ap([[256, 128], [1, 2.5]]), ConfigurationError, TypeError, "2.5"),
    (lambda x, a: nl.ndarray((128, 4.0), x.dtype), ConfigurationError, TypeError, "4.0"),
    (lambda x, a: nl.ndarray((128, 4), "float64"), UnsupportedError, RuntimeError, "float64"),
    (lambda x, a: nl.ndarray((128, 4), x.dtype, address="x"), ConfigurationError, ValueError, "address"),
    (lambda x, a: nisa.tensor_tensor(a, a, a, "add"), UnsupportedError, RuntimeError, "no NKI operation"),
    (lambda x, a: nisa.tensor_copy(a, a, engine="vector"), UnsupportedError, RuntimeError, "nisa.engine"),
    (lambda x, a: nisa.memset(dest=a, value=0.0), ConfigurationError, TypeError, "memset"),
    (lambda x, a: nisa.tensor_copy(dst=a), ConfigurationError, TypeError, r"missing.*'src'"),
    (lambda x, a: nisa.tensor_reduce(a, nl.add, a, "x"), ConfigurationError, TypeError, "tensor_reduce"),
    (lambda x, a: nl.load("x"), ConfigurationError, AttributeError, "load: 'str'"),
    (lambda x, a: nisa.register_alloc(2.5), ConfigurationError, TypeError, "2.5"),
    (lambda x, a: nisa.register_alloc("s"), ConfigurationError, TypeError, "'s'"),
    (lambda x, a: nl.dynamic_range(2.5), ConfigurationError, TypeError, "2.5"),
    (lambda x, a: nl.affine_range(0, 4, 0), ConfigurationError, ValueError, "step"),
    (lambda x, a: nl.affine_range(nisa.register_alloc(3)), UnsupportedError, RuntimeError, "register"),
    (truth_of_a_small_tile, UnsupportedError, TypeError, "Python condition"),
    (truth_of_an_element, UnsupportedError, TypeError, "Python condition"),
    (lambda x, a: a[0, 0] > 0, UnsupportedError, TypeError, "nl.greater"),
    (lambda x, a: a + a, UnsupportedError, TypeError, "nl.add"),
    (lambda x, a: np.float32(2) * a, UnsupportedError, TypeError, "not known while"),
    (lambda x, a: np.exp(a), UnsupportedError, TypeError, "nl.exp"),
    (lambda x, a: float(a), UnsupportedError, TypeError, "numpy"),
    (lambda x, a: int(a[0:1, 0:1]), UnsupportedError, TypeError, "numpy"),
    (lambda x, a: range(a), UnsupportedError, TypeError, "a Python integer"),
]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: inspect.getsource(case[0]).strip()[:60])
def test_a_mistake_has_a_category_and_a_line(case):
    body, category, python, text = case
    with pytest.raises(category, match=text) as caught:
        with_tile(body)(X)
    assert isinstance(caught.value, python)
    assert caught.value.where.endswith(line_of(body, int(body.__name__.startswith("truth"))))
    assert f"(at {caught.value.where})" in str(caught.value)


def test_a_tensor_is_true_as_it_is_given():
    def optional(x, bias=None):
        out, tile = nl.ndarray(x.shape, x.dtype, nl.shared_hbm), nl.load(x)
        if bias and tile:
            nisa.tensor_tensor(tile, tile, nl.load(bias), nl.add)
        nl.store(out, tile)
        return out

    kernel = nki.jit(optional)
    assert (kernel(X) == 1).all() and (kernel(X, X) == 2).all()


def test_errors_of_the_kernels_own_code_stay_as_they_are():
    class Own(ValueError):
        pass

    def own(x, a):
        raise Own("mine")

    def wrong_call(x, a):
        own(a)

    with pytest.raises(Own, match=r"^mine$"):
        with_tile(own)(X)
    with pytest.raises(TypeError, match="own") as caught:
        with_tile(wrong_call)(X)
    with pytest.raises(AttributeError) as other:
        with_tile(lambda x, a: a.no_such_name)(X)
    assert not isinstance(caught.value, OpenTRNError) and not isinstance(other.value, OpenTRNError)


@pytest.mark.parametrize("value", [None, "a", [1, 2], 3.5])
def test_an_argument_that_is_no_array(value):
    kernel = with_tile(lambda x, a: None)
    with pytest.raises(ConfigurationError, match=r"argument 'x' is .*\.shape") as caught:
        kernel(value)
    assert isinstance(caught.value, AttributeError)
    assert caught.value.where.endswith(line_of(kernel.func, 1))


def test_what_a_kernel_may_not_return():
    def number(x):
        return 3

    def on_chip(x):
        return nl.load(x)

    for function in (number, on_chip):
        with pytest.raises(UnsupportedError) as caught:
            nki.jit(function)(X)
        assert caught.value.where.endswith(line_of(function)), "no line returns it: the definition"


def test_calls_that_fail_before_the_kernel_runs():
    kernel = with_tile(lambda x, a: None)
    with pytest.raises(ConfigurationError, match="'a'") as caught:
        kernel["a"](X)
    assert isinstance(caught.value, TypeError) and "test_tracing_errors.py" in caught.value.where
    with pytest.raises(ConfigurationError, match="no option 'bogus'") as caught:
        nki.simulate(kernel, bogus=1)
    assert isinstance(caught.value, TypeError) and "test_tracing_errors.py" in caught.value.where


def test_a_full_memory_names_who_holds_it():
    def kernel(x):
        tiles = [nl.ndarray((128, 512), nl.float32, nl.psum) for _ in range(9)]
        for tile in tiles:
            nisa.memset(tile, 0.0)
        total = nl.full((128, 512), 0.0, nl.float32, name="total")
        for tile in tiles:
            nisa.tensor_tensor(total, total, tile, nl.add)
        return x

    line = line_of(kernel, 1)
    with pytest.raises(CapacityError, match=rf"psum_tensor of {line} 2048 \(x8\)") as caught:
        nki.jit(kernel)(X)
    assert caught.value.where.endswith(line), "where the tensor is made that finds no room"


def test_overlapping_tensors_without_names_are_told_apart():
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        first = nl.ndarray(x.shape, x.dtype, nl.sbuf, address=(0, 0))
        second = nl.ndarray(x.shape, x.dtype, nl.sbuf, address=(0, 512))
        nisa.dma_copy(dst=first, src=x)
        nisa.memset(second, 5.0)
        nisa.dma_copy(dst=out, src=first)
        return out

    text = f"'sbuf_tensor of {line_of(kernel, 2)}' is read where 'sbuf_tensor of {line_of(kernel, 3)}'"
    with pytest.raises(UndefinedBehaviourError, match=text):
        nki.simulate(nki.jit(kernel))(X)


def test_only_versions_that_exist_can_be_chosen(monkeypatch):
    try:
        for text in ("banana", "0.7", "0.9.0", "", "0.5.1"):
            with pytest.raises(ConfigurationError, match=r"0\.3\.0, 0\.4\.0, 0\.5\.0, 0\.6\.0"):
                version.use(text)
        version.use("0.5")
        assert nki.__version__ == "0.5.0" and version.at_least(0, 5) and not version.at_least(0, 6)
        version.use(None)
        monkeypatch.setenv("OPENTRN_NKI_VERSION", "0.7")
        with pytest.raises(ConfigurationError, match=r"OPENTRN_NKI_VERSION='0\.7'"):
            version.current()
        monkeypatch.delenv("OPENTRN_NKI_VERSION")
        assert nki.__version__ == "0.3.0"
    finally:
        version.use(None)
