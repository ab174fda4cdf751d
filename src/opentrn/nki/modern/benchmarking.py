"""`nki.benchmark`, `nki.profile` and `nki.cpu_simulate`."""

from __future__ import annotations

from typing import Any

from opentrn.nki.kernel import Simulated, simulate
from opentrn.nki.timing import benchmark, profile


def cpu_simulate(kernel: Any) -> Simulated:
    """`nki.simulate` as the public test suites call it: uninitialised elements read as NaN.

    Outputs start as zeros, for these suites compare whole outputs, and expect zeros where a kernel writes
    nothing: their device runs get cleared buffers.
    """
    return simulate(kernel, check=False, zero_outputs=True)


__all__ = ["benchmark", "cpu_simulate", "profile"]
