"""transformers and accelerate know the device `neuron`, but ask for the package torch_neuronx to believe
in it."""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType


def believe_in_device(module: ModuleType) -> None:
    """Makes the library's availability check answer for the virtual device too.

    transformers 5.24 `is_torch_neuron_available`, accelerate 1.15 `is_neuron_available`: with them the
    Trainer, PartialState, Accelerator and RNG checkpoints choose `neuron`. Other modules copy the name at
    import, so this runs right after the module's own execution.
    """
    for name in ("is_torch_neuron_available", "is_neuron_available"):
        original = getattr(module, name, None)
        if original is None:
            continue

        def available(check_device: bool = False) -> bool:
            import torch

            return hasattr(torch, "neuron") and torch.neuron.is_available()

        # torch.compile reads this mark of transformers: the answer is constant for the process.
        available._dynamo_marked_constant = True  # type: ignore[attr-defined]
        setattr(module, name, lru_cache(available))
