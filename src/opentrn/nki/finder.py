"""Makes `nki`, `neuronxcc.nki` and their submodules importable when the real packages are absent.

A package cannot ship top-level modules under another project's name: a later `pip install` of the real one
would collide. So `import opentrn.nki` (which the torch autoload entry point does) puts a finder on
`sys.meta_path`, and at the start of Python `opentrn_names` stands in for it. For the two top-level names it
first asks every other finder, so that a real `nki` always wins; below them it answers only if the parent is
ours, and before the path-based finder, which would load our files a second time. The modules live in
`opentrn.nki.modern` and `opentrn.nki.classic` and are the same objects under both names.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any

# Public name -> our module. Submodules follow by name.
_ROOTS = {"nki": "opentrn.nki.modern", "neuronxcc": "opentrn.nki.classic.root"}
_MODULES = {
    "neuronxcc.nki": "opentrn.nki.classic",
    "neuronxcc.nki.isa": "opentrn.nki.classic.isa",
    "neuronxcc.nki.isa.constants": "opentrn.nki.modern.isa.constants",
    "neuronxcc.nki.language": "opentrn.nki.classic.language",
    "neuronxcc.nki.typing": "opentrn.nki.classic.typing",
    "neuronxcc.nki.compiler": "opentrn.nki.classic.compiler",
    "neuronxcc.nki.compiler.backends": "opentrn.nki.classic.backends",
    "neuronxcc.nki.compiler.backends.neuron": "opentrn.nki.classic.backends",
    "neuronxcc.nki.compiler.backends.neuron.indexing": "opentrn.nki.classic.indexing",
    "neuronxcc.starfish": "opentrn.nki.classic.starfish",
    "neuronxcc.starfish.support": "opentrn.nki.classic.starfish",
    "neuronxcc.starfish.support.dtype": "opentrn.nki.classic.starfish",
    "neuronxcc.starfish.support.util": "opentrn.nki.classic.starfish",
}


def target_of(name: str) -> str | None:
    """Our module for a public name, or None."""
    if name in _MODULES:
        return _MODULES[name]
    root, _, rest = name.partition(".")
    if root == "nki":
        return _ROOTS[root] + (f".{rest}" if rest else "")
    if name == "neuronxcc":
        return _ROOTS[name]
    return None


class _Loader(importlib.abc.Loader):
    def __init__(self, ours: str) -> None:
        self.ours = ours

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = importlib.import_module(self.ours)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        # The import system has written the public spec into the module; the module's own is the true one.
        module.__spec__ = self.spec


class NkiFinder(importlib.abc.MetaPathFinder):
    """Answers for the public names above, and only if no other finder did."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        ours = target_of(fullname)
        if ours is None:
            return None
        parent = fullname.rpartition(".")[0]
        if parent:
            if getattr(sys.modules.get(parent), "__name__", None) != target_of(parent):
                return None
        elif self._real(fullname):
            return None
        if importlib.util.find_spec(ours) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, _Loader(ours), is_package=True)

    def _real(self, name: str) -> bool:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is not self and find is not None and find(name, None) is not None:
                return True
        return False


def install() -> None:
    """Put the finder first; calling it again changes nothing."""
    if not any(isinstance(finder, NkiFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, NkiFinder())
