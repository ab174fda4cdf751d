"""The package `neuronxcc.nki` (the generation before `nki`): tiles, masks, index grids."""

from opentrn.nki.classic import compiler, isa, language, typing
from opentrn.nki.classic.launch import baremetal, benchmark, jit, profile, simulate_kernel
from opentrn.nki.classic.launch import trace_only as trace
from opentrn.nki.classic.tile import Tile as tensor

__all__ = [
    "baremetal",
    "benchmark",
    "compiler",
    "isa",
    "jit",
    "language",
    "profile",
    "simulate_kernel",
    "tensor",
    "trace",
    "typing",
]
