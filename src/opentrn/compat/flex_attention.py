"""`flex_attention` refuses device types that it does not list (torch 2.13, `_validate_device`)."""

from __future__ import annotations

from types import ModuleType


def accept_device(module: ModuleType) -> None:
    """Lets neuron tensors through `_validate_device`; every other device is judged as before."""
    original = module._validate_device

    def _validate_device(query, key, value):  # type: ignore[no-untyped-def]
        if query.device.type == "neuron":
            return None
        return original(query, key, value)

    module._validate_device = _validate_device
