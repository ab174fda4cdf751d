"""`torch.profiler` gives a device no time of its own unless the device brings a Kineto plug-in (torch 2.13).

Its other way, markers around each operator, reads the virtual clock through the profiler stubs; this patch
chooses it for neuron. Each operator's device time is then in `key_averages()` and in the events' kernels.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any


def mark_operators(module: ModuleType) -> None:
    """Makes a profile of neuron use markers; profiles of other devices are as before."""
    original = module.profile.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if getattr(self, "use_device", None) == "neuron" and self.use_cpu:
            self.profiler_kind = module.ProfilerState.KINETO_PRIVATEUSE1_FALLBACK
            self.kineto_activities.discard(module.ProfilerActivity.PrivateUse1)

    module.profile.__init__ = __init__
