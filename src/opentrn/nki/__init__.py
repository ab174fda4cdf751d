"""NKI: the kernel language of NeuronCores, as a front end of the virtual core.

A kernel runs as plain Python against a program builder (`tracing`); the program gives values and cycles.
`modern` holds what is importable as `nki` (NKI 0.3 to 0.6), `classic` what is importable as
`neuronxcc.nki`; `finder` makes those names importable when the real packages are absent.
"""

from opentrn.nki.finder import install
from opentrn.nki.kernel import Kernel, jit, simulate

install()

__all__ = ["Kernel", "install", "jit", "simulate"]
