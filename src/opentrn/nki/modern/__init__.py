"""The package `nki`."""

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
__version__ = "0.3.0"
