"""A straightforward NumPy interpretation of the instruction set: the reference of property tests and speed.

It has the surface of `opentrn.core` that the NKI front end uses (`Builder`, `execute`, `execute_ranks`), and
computes one instruction after the other with NumPy, in program order, each core until it has to wait.
"""

from .builder import Builder, Expr
from .run import execute, execute_ranks

__all__ = ["Builder", "Expr", "execute", "execute_ranks"]
