"""Check mode: what the kernel compiler refuses is found in all that a kernel names; `strict` refuses it."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest

import nki
from opentrn.errors import UnsupportedError
from opentrn.nki.check import check_kernel

HELPERS = """
def spread(dst, src, *more):
    return more

def plain(dst, src):
    return [len(part) for part in (dst, src)]
"""

KERNELS = """
import contextlib
import math
from dataclasses import dataclass
from enum import Enum

import nki
import nki.isa as nisa
import nki.language as nl
import check_helpers
from check_helpers import plain as renamed

class Mode(Enum):
    fast = 1

class Tiles(nl.NKIObject):
    def __init__(self, count):
        self.count = count

    def all(self):
        return self._each()

    def _each(self):
        return (i for i in range(self.count))

@dataclass
class Config(nl.NKIObject):
    width: int = 4

    def twice(self):
        return self.width * 2

class Mixed(Tiles, Config):
    pass

def apply(function, tile):
    return function(tile, tile)

def fails(dst, src):
    raise ValueError("no")

@nki.jit
def double(x):
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nl.store(out, nl.load(x) * 2.0 if False else nl.add(nl.load(x), nl.load(x)))
    return out

@nki.jit
def clean(x, config: Config):
    mode, sizes = Mode.fast, {"a": 1}
    width = config.twice() + math.ceil(1.5)
    with nl.no_reorder():
        pass
    for i in range(width):
        if mode == Mode.fast:
            continue
    return renamed(x, x)

def module_function(x):
    return check_helpers.spread(x, x)

def method(x):
    tiles = Tiles(2)
    return tiles.all()

def passed_on(x):
    return apply(fails, x)

def two_bases(x):
    return Mixed()

def a_lambda(x):
    return apply(lambda a, b: a, x)

def keywords(x, **more):
    return apply(fails=x, **more)

def starred(x):
    first, *rest = x.shape
    return rest

def call_starred(x):
    return apply(*x.shape)

def for_else(x):
    for i in range(3):
        pass
    else:
        return x

def with_open(x):
    with open("file") as stream:
        return stream

def other_context(x):
    with contextlib.suppress(ValueError):
        return x

def matmul(x):
    x = x @ x
    x @= x
    return x

def local_name(x, random):
    return random.plain(x)

@nki.jit(strict=True)
def strict_kernel(x):
    return passed_on(x)

def generator_of_a_library(x):
    return math.prod([1, 2])
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("check")
    (folder / "check_helpers.py").write_text(HELPERS)
    (folder / "check_kernels.py").write_text(KERNELS)
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module("check_kernels")
    finally:
        sys.path.remove(str(folder))
        for name in ("check_kernels", "check_helpers"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "file", "reasons"),
    [
        ("module_function", "check_helpers", ["*more"]),
        ("method", "check_kernels", ["generator expressions"]),
        ("passed_on", "check_kernels", ["cannot raise"]),
        ("two_bases", "check_kernels", ["nl.NKIObject and nothing else"]),
        ("a_lambda", "check_kernels", ["lambda"]),
        ("keywords", "check_kernels", ["**more: ", "**name is not expanded"]),
        ("starred", "check_kernels", ["*name is not expanded"]),
        ("call_starred", "check_kernels", ["*name is not expanded"]),
        ("for_else", "check_kernels", ["for … else"]),
        ("with_open", "check_kernels", ["with is not part", "open(): files"]),
        ("other_context", "check_kernels", ["with is not part"]),
        ("matmul", "check_kernels", ["operator @", "operator @"]),
    ],
)
def test_refusals_are_found_where_they_are(kernels, name, file, reasons):
    findings = check_kernel(getattr(kernels, name))
    assert len(findings) == len(reasons), findings
    for reason in reasons:
        found = [finding for finding in findings if reason in finding.reason]
        assert found and all(finding.file.endswith(f"{file}.py") for finding in found), findings
    source = (KERNELS if file == "check_kernels" else HELPERS).splitlines()
    marks = ("*", "(i for", "raise", "class Mixed", "lambda", "for i", "with", "@")
    assert all(any(mark in source[finding.line - 1] for mark in marks) for finding in findings)


@pytest.mark.parametrize("name", ["clean", "local_name", "generator_of_a_library", "double"])
def test_what_the_language_has_is_no_finding(kernels, name):
    assert check_kernel(getattr(kernels, name)) == []


def test_strict_raises_the_first_finding_with_its_line(kernels):
    line = KERNELS.splitlines().index('    raise ValueError("no")') + 1
    x = np.ones((128, 4), np.float32)
    where = rf"(?s)cannot raise.*check_kernels.py:{line}"
    with pytest.raises(UnsupportedError, match=where):
        nki.simulate(kernels.passed_on, strict=True)
    with pytest.raises(UnsupportedError, match=where):
        nki.simulate(kernels.strict_kernel)
    with pytest.raises(UnsupportedError, match=where):
        kernels.strict_kernel(x)
    assert (nki.simulate(kernels.double, strict=True)(x) == 2).all()
    assert (nki.jit(kernels.double.func, strict=True)(x) == 2).all()
