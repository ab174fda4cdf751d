"""NKI: the kernel language of NeuronCores, as a front end of the virtual core.

A kernel runs as plain Python against a program builder (`tracing`); the program gives values and cycles.
`modern` holds what is importable as `nki` (NKI 0.3 to 0.6), `classic` what is importable as
`neuronxcc.nki`; `finder` makes those names importable when the real packages are absent. Importing this
package does only that; everything else is loaded on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from opentrn.nki.finder import install

if TYPE_CHECKING:
    from opentrn.nki.kernel import Kernel, jit, simulate
    from opentrn.nki.torch_operators import nki_op, wrap_nki

install()

# Set by the device package when it registers itself: called at the first kernel that meets a `neuron` tensor,
# returns the device's side (`torch_calls.Connection`).
device_connector: Callable[[], Any] | None = None

_EXPORTS = {
    "Kernel": "opentrn.nki.kernel",
    "jit": "opentrn.nki.kernel",
    "simulate": "opentrn.nki.kernel",
    "nki_op": "opentrn.nki.torch_operators",
    "wrap_nki": "opentrn.nki.torch_operators",
}

__all__ = ["Kernel", "install", "jit", "nki_op", "simulate", "wrap_nki"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'opentrn.nki' has no attribute '{name}'")
    return getattr(import_module(_EXPORTS[name]), name)
