"""The package `neuronxcc`: only what kernels and their tests import from it."""

from __future__ import annotations

import importlib
from types import ModuleType

__path__: list[str] = []  # a package: `neuronxcc.nki` is found by `opentrn.nki.finder`


def __getattr__(name: str) -> ModuleType:
    # `from neuronxcc import nki` asks the module first and would then look below its true name.
    if name in ("nki", "starfish"):
        return importlib.import_module(f"neuronxcc.{name}")
    raise AttributeError(name)
