"""Dynamo would trace through the Python that traces a kernel; a kernel is one opaque call instead."""

from __future__ import annotations

from types import ModuleType


def do_not_trace(module: ModuleType) -> None:
    """Skip the frames that trace and run kernels: a graph breaks around a direct call."""
    for name in ("opentrn.nki", "opentrn.core", "opentrn.device.programs"):
        module.add(name)
