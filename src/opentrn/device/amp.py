"""`torch.neuron.amp`: mixed precision with the device filled in, for scripts that spell it as
torch.cuda.amp."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


class autocast(torch.autocast):
    """torch.autocast("neuron"): float16 where no type is named, as on CUDA."""

    def __init__(
        self, enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool = True
    ) -> None:
        super().__init__("neuron", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler for neuron tensors."""

    def __init__(self, **options: Any) -> None:
        super().__init__("neuron", **options)


custom_fwd: Callable[..., Any] = functools.partial(torch.amp.custom_fwd, device_type="neuron")
custom_bwd: Callable[..., Any] = functools.partial(torch.amp.custom_bwd, device_type="neuron")
