"""Dynamo would trace through the Python that traces a kernel; a kernel is one opaque operator instead."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

# Set by the device package: makes the front end's calls operators of captured graphs.
connector: Callable[[], None] | None = None
_TRACED = "graph"  # the one file of the front end that Dynamo traces


def do_not_trace(module: ModuleType) -> None:
    """Skip the frames that trace and run kernels; define the operator that stands for a call."""
    for name in ("opentrn.core", "opentrn.device.programs", *_front_end()):
        module.add(name)
    if connector is not None:
        connector()


def _front_end() -> list[str]:
    """The modules of `opentrn.nki`, packages below it whole."""
    spec = importlib.util.find_spec("opentrn.nki")
    folder = Path(spec.origin or "").parent if spec is not None else Path()
    names = [path.stem for path in folder.glob("*.py") if path.stem not in ("__init__", _TRACED)]
    names += [path.parent.name for path in folder.glob("*/__init__.py")]
    return [f"opentrn.nki.{name}" for name in sorted(names)]
