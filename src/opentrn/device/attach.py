"""Which virtual machine the process is attached to."""

from __future__ import annotations

import threading

from opentrn.device import _C, random, simulated


def attach(instance: str | None = None, *, lnc: int | None = None, visible_cores: str | None = None) -> None:
    """Attaches an instance type, before the first use of the device.

    instance: a name of `opentrn chips`, else OPENTRN_INSTANCE, else the default instance.
    lnc: physical cores per logical core, else NEURON_LOGICAL_NC_CONFIG, else the chip's default.
    visible_cores: "0-3,8", else NEURON_RT_VISIBLE_CORES, else all.
    Raises ConfigurationError for names and values that the chip files do not have, and RuntimeError once the
    attached machine holds tensors.
    """
    from opentrn import settings
    from opentrn.chips.machine import machine

    for variable in settings.VARIABLES:
        settings.get(variable.name)
    found = machine(instance, lnc=lnc, visible_cores=visible_cores)
    _C.attach(found.device_parameters())
    simulated.install(found)
    global _attached
    _attached = found
    random.apply_waiting_seed()


def attach_configured() -> None:
    """What the first use of the device does: attaches what the environment names. Threads that come first
    at the same time attach once."""
    with _attaching:
        if _attached is None:
            attach()


def attached():
    """The attached `Machine`, attaching the configured one if there is none yet."""
    if _attached is None:
        attach_configured()
    return _attached


_attached = None
_attaching = threading.RLock()
