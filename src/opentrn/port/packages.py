"""Packages that need a GPU: an import of one says in one line what to use instead.

A script that probes (`try: import flash_attn`, `importlib.util.find_spec`) goes on as without the package.
"""

from __future__ import annotations

import importlib.abc
import sys
import tomllib
from functools import cache
from importlib import resources
from typing import Any

from opentrn.port.redirections import LEDGER


class CudaPackageError(ModuleNotFoundError):
    """A package that is absent and would need a GPU. An ImportError, so that scripts that probe go on."""


@cache
def replacements() -> dict[str, str]:
    """Import name → what to use instead."""
    text = resources.files("opentrn.port").joinpath("data/packages.toml").read_text()
    return {name: entry["use"] for name, entry in tomllib.loads(text).items()}


# PyTorch probes for some of these itself; importlib.util.find_spec expects None and not an error.
_PROBING = frozenset({"torch", "importlib", "pkgutil"})


def _probed() -> bool:
    """Whether the search is not an import statement of the script or of its libraries."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib._bootstrap"):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is None or str(frame.f_globals.get("__name__")).partition(".")[0] in _PROBING


class _Last(importlib.abc.MetaPathFinder):
    """Asked when no other finder has the module."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        use = replacements().get(fullname)
        if use is None or _probed():
            return None
        refusal = LEDGER.refuse(fullname, f"use {use}")
        raise CudaPackageError(
            f"No module named '{fullname}': it needs a GPU; use {use} (imported at {refusal.where})",
            name=fullname,
        )


def install() -> None:
    """Adds the finder behind all others, once."""
    if not any(isinstance(finder, _Last) for finder in sys.meta_path):
        sys.meta_path.append(_Last())
