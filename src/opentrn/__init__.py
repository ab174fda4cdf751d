"""OpenTRN: native PyTorch on a virtual NeuronCore. `import torch` loads the device; this module is its own
API."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name → where it lives. Loaded on first use, so that `import torch` pays for none of it.
_EXPORTS = {
    "attach": "opentrn.device.attach",
    "dry_run": "opentrn.device.dry",
    "step": "opentrn.trace.steps",
}

if TYPE_CHECKING:
    from opentrn.device.attach import attach
    from opentrn.device.dry import dry_run
    from opentrn.trace.steps import step

__all__ = ["__version__", "attach", "dry_run", "step"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'opentrn' has no attribute '{name}'")
    from importlib import import_module

    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def _device_registered() -> None:
    """What the device calls when `import torch` has registered it: modes that the environment asks for."""
    if os.environ.get("OPENTRN_AS"):
        from opentrn.port.real_stack import install_from_environment

        install_from_environment()


# Light: makes `import nki` find ours where the real package is absent.
import opentrn.nki  # noqa: E402, F401
