"""Kernels and arguments in text, for the command line: ``FILE:KERNEL``, ``bfloat16[128,512]``."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from opentrn.errors import ConfigurationError
from opentrn.nki.dtypes import host_type, is_float, name_of
from opentrn.nki.kernel import Kernel

_ARRAY = re.compile(r"^(?:(zeros|ones|random|arange):)?([a-z][a-z0-9_]*)\[([0-9, ]*)\]$")


def load_kernel(text: str) -> Any:
    """The kernel of ``FILE:KERNEL``. Raises ConfigurationError for a missing file or name."""
    path, _, name = text.rpartition(":")
    if not path:
        raise ConfigurationError(
            f"{text!r} names no kernel", cure="write FILE:KERNEL, e.g. matmul.py:tiled_matmul"
        )
    file = Path(path)
    if not file.is_file():
        raise ConfigurationError(f"there is no file {path}")
    import opentrn.nki  # noqa: F401 - the file may import `nki` first

    specification = importlib.util.spec_from_file_location(f"kernel_file_{file.stem}", file)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    sys.path.insert(0, str(file.parent.resolve()))
    try:
        specification.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    kernel = getattr(module, name, None)
    if kernel is None:
        found = sorted(key for key, value in vars(module).items() if isinstance(value, Kernel))
        raise ConfigurationError(
            f"{path} has no kernel {name!r}", cure=f"it has: {', '.join(found) or 'none'}"
        )
    return kernel


def parse_argument(text: str, seed: int = 0) -> tuple[str | None, Any]:
    """(name or None, value): ``float32[128,512]``, ``zeros:int32[1,1]``, ``x.npy``, ``scale=0.5``, ``True``.

    Arrays are uniform in [-1, 1) (integers: 0 to 7) unless a prefix says zeros, ones or arange.
    """
    name: str | None = None
    head, sign, tail = text.partition("=")
    if sign and head.isidentifier():
        name, text = head, tail
    match = _ARRAY.match(text.strip())
    if match:
        return name, _array(match.group(1) or "random", match.group(2), match.group(3), seed)
    if text.endswith(".npy"):
        return name, np.load(text)
    try:
        return name, ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return name, text


def _array(kind: str, dtype: str, dims: str, seed: int) -> np.ndarray:
    shape = tuple(int(size) for size in dims.split(",") if size.strip())
    name = name_of(dtype)
    host = host_type(name)
    if kind == "arange":
        return np.arange(int(np.prod(shape))).reshape(shape).astype(host)
    if kind in ("zeros", "ones"):
        return np.full(shape, 0 if kind == "zeros" else 1).astype(host)
    generator = np.random.default_rng(seed)
    if host.names:
        return generator.integers(0, 255, shape).astype(host[0]).view(host)
    if is_float(name):
        return generator.uniform(-1, 1, shape).astype(np.float32).astype(host)
    return generator.integers(0, 8, shape).astype(host)


def parse_arguments(texts: list[str]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments of a kernel call."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for place, text in enumerate(texts):
        name, value = parse_argument(text, place)
        if name is None:
            positional.append(value)
        else:
            named[name] = value
    return positional, named


def parse_grid(text: str | None) -> Any:
    """The launch grid of ``2`` or ``1,3``; None for none."""
    if not text:
        return None
    sizes = tuple(int(size) for size in text.split(","))
    return sizes if len(sizes) > 1 else sizes[0]
