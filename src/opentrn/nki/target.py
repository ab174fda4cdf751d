"""Which chip kernels are built for when nobody says so.

`NKI_NC_VERSION` (gen2|gen3|gen4), then `NEURON_PLATFORM_TARGET_OVERRIDE` (trn1|trn2|trn3|gen…), then the
instance of `OPENTRN_INSTANCE`, then trn2. The official simulator's last resort is trn3; here it is the
default instance's chip, so that a kernel and the device around it agree.
"""

from __future__ import annotations

import os

from opentrn.errors import ConfigurationError

_CHIP = {
    "gen2": "trn1",
    "gen3": "trn2",
    "gen4": "trn3",
    "trn1": "trn1",
    "trn1n": "trn1",
    "inf2": "inf2",
    "trn2": "trn2",
    "trn2n": "trn2",
    "trn2u": "trn2",
    "trn3": "trn3",
    "trn3u": "trn3",
    "nc_v2": "trn1",
    "nc_v3": "trn2",
    "nc_v4": "trn3",
    "2": "trn1",
    "3": "trn2",
    "4": "trn3",
}


def asked_for() -> str | None:
    """The chip that a variable names for kernels, or None. Raises ConfigurationError for an unknown
    setting."""
    for variable in ("NKI_NC_VERSION", "NEURON_PLATFORM_TARGET_OVERRIDE"):
        text = os.environ.get(variable)
        if text:
            return named(text, variable)
    return None


def chip() -> str:
    """Name of the chip in `opentrn.chips`. Raises ConfigurationError for an unknown setting."""
    wanted = asked_for()
    if wanted is not None:
        return wanted
    instance = os.environ.get("OPENTRN_INSTANCE", "")
    if instance:
        family = instance.split(".")[0]
        if family in _CHIP:
            return _CHIP[family]
    return "trn2"


def named(text: str, variable: str = "target") -> str:
    """The chip of a target name."""
    try:
        return _CHIP[text.lower()]
    except KeyError:
        raise ConfigurationError(
            f"{variable}={text!r} names no target", cure=f"one of {', '.join(_CHIP)}"
        ) from None
