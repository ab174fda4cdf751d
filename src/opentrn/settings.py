"""Every environment variable that OpenTRN reads, in one table; a test holds the list frozen.

Variables of the real stack keep their documented meaning; ours begin with OPENTRN_.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from opentrn.errors import ConfigurationError


@dataclass(frozen=True)
class Variable:
    name: str
    default: str
    choices: tuple[str, ...]  # empty: any text
    meaning: str


VARIABLES: tuple[Variable, ...] = (
    Variable("OPENTRN_INSTANCE", "trn2.48xlarge", (), "instance type the process is attached to"),
    Variable("OPENTRN_CHIPS_PATH", "", (), "directory of your own chip files, read first"),
    Variable("OPENTRN_CACHE_DIR", "", (), "where parsed chip files are kept"),
    Variable(
        "OPENTRN_NKI_VERSION", "", (), "nki release whose behaviour kernels get: 0.3.0 (the default) to 0.6.0"
    ),
    Variable(
        "OPENTRN_STRICT",
        "0",
        ("0", "1"),
        "1: raise what the real chip cannot do and what kernels are warned of; check classic kernels",
    ),
    Variable("OPENTRN_NUMERICS", "host", ("host",), "where eager values come from: PyTorch's CPU kernels"),
    Variable("OPENTRN_AS", "", ("", "torchneuron-2.33"), "behave as this release of the real stack"),
    Variable("OPENTRN_GUARD", "0", ("0", "1"), "1 (tests): device memory is closed outside operators"),
    Variable("OPENTRN_STEP_LIMIT", "", (), "instructions after which a kernel counts as endless"),
    Variable("NEURON_RT_VISIBLE_CORES", "", (), "logical cores this process sees: indices and ranges, 0-3,8"),
    Variable("NEURON_RT_NUM_CORES", "", (), "how many logical cores this process sees"),
    Variable("NEURON_LOGICAL_NC_CONFIG", "", (), "physical cores per logical core"),
    Variable("NEURON_RT_VIRTUAL_CORE_SIZE", "", (), "older name of NEURON_LOGICAL_NC_CONFIG"),
    Variable("NEURON_PLATFORM_TARGET_OVERRIDE", "", (), "chip generation, where no instance is named"),
    Variable("NKI_SIMULATOR", "0", ("0", "1"), "1: nki kernels on host arrays run on the virtual core"),
    Variable("NKI_NC_VERSION", "", (), "core generation nki kernels are traced for: gen2, gen3, gen4"),
)

_BY_NAME = {variable.name: variable for variable in VARIABLES}


def get(name: str) -> str:
    """The value of a variable of the table, its default if unset. Raises ConfigurationError outside its
    choices."""
    variable = _BY_NAME[name]
    value = os.environ.get(name, variable.default)
    if variable.choices and value not in variable.choices:
        raise ConfigurationError(
            f"{name}={value} is not one of {', '.join(repr(choice) for choice in variable.choices)}",
            cure=f"unset it, or choose one; it means: {variable.meaning}",
        )
    return value


def step_limit(default: int) -> int:
    """OPENTRN_STEP_LIMIT, or `default` where it is unset. Raises ConfigurationError for what is no count."""
    text = get("OPENTRN_STEP_LIMIT")
    if not text:
        return default
    if not text.isdecimal() or not int(text):
        raise ConfigurationError(f"OPENTRN_STEP_LIMIT={text} is no count of instructions", cure="10000000")
    return int(text)
