"""`Tensor.__dlpack_device__` knows a renamed device only by its old name, "privateuse1" (torch 2.13)."""

from __future__ import annotations

import enum
import functools
from types import ModuleType


def name_device(module: ModuleType) -> None:
    """Neuron tensors answer (kDLExtDev, index); every other tensor answers as before."""
    original = module.Tensor.__dlpack_device__

    @functools.wraps(original)
    def __dlpack_device__(self) -> tuple[enum.IntEnum, int]:  # type: ignore[no-untyped-def]
        if self.device.type != "neuron":
            return original(self)
        from torch.utils.dlpack import DLDeviceType

        return DLDeviceType.kDLExtDev, self.device.index

    module.Tensor.__dlpack_device__ = __dlpack_device__
