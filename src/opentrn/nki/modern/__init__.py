"""The package `nki`."""

from opentrn.nki import version
from opentrn.nki.kernel import jit, simulate
from opentrn.nki.modern import collectives, compiler, dtype, isa, language, typing
from opentrn.nki.modern.benchmarking import benchmark, cpu_simulate, profile

__all__ = [
    "benchmark",
    "collectives",
    "compiler",
    "cpu_simulate",
    "dtype",
    "isa",
    "jit",
    "language",
    "profile",
    "simulate",
    "typing",
]


def __getattr__(name: str) -> str:
    if name == "__version__":  # follows OPENTRN_NKI_VERSION
        return version.text()
    raise AttributeError(f"module 'nki' has no attribute '{name}'")
