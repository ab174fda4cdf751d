"""The constants of one core of each chip: what the chip data says, and what only the timing of a core needs.

`opentrn.chips` holds the hardware; data/core_timing.toml adds fitted and assumed constants of the timing and
says which they are. Where both have a number, the chip data wins.
"""

from __future__ import annotations

import functools
import tomllib
from typing import Any

from opentrn.chips.machine import machine
from opentrn.core import _C
from opentrn.core.table import DATA
from opentrn.errors import ConfigurationError

# Our name of a per-core constant → the device parameter of opentrn.chips and the factor to our unit.
FROM_CHIPS: dict[str, tuple[str, float]] = {
    "tensor_ghz": ("tensor_clock_ghz", 1.0),
    "vector_ghz": ("vector_clock_ghz", 1.0),
    "scalar_ghz": ("scalar_clock_ghz", 1.0),
    "gpsimd_ghz": ("gpsimd_clock_ghz", 1.0),
    "sync_ghz": ("sync_clock_ghz", 1.0),
    "sbuf_bytes_per_partition": ("sbuf_bytes_per_partition", 1.0),
    "psum_bytes_per_partition": ("psum_bytes_per_partition", 1.0),
    "psum_banks": ("psum_banks", 1.0),
    "dma_engine_bytes_per_ns": ("dma_engine_bytes_per_s", 1e-9),
    "fp32_passes": ("tensor_fp32_passes", 1.0),
    "min_ii": ("min_instruction_cycles", 1.0),
    "gpsimd_start": ("gpsimd_start_cycles", 1.0),
    "copy_speedup": ("vector_copy_speedup_16bit", 1.0),
    "tensor_tensor_speedup": ("vector_tensor_tensor_speedup_16bit", 1.0),
    "scalar_copy_speedup": ("scalar_copy_speedup_16bit", 1.0),
}


@functools.cache
def timing_tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads((DATA / "core_timing.toml").read_text())


@functools.cache
def default_chip() -> str:
    """The chip of the default instance."""
    return machine(environment={}).chip.name


def canonical(chip: str) -> str:
    """A chip's name to its generation. Raises ConfigurationError for a name that is no NeuronCore chip."""
    names = timing_tables()["names"]
    for generation, aliases in names.items():
        if chip.lower() in aliases:
            return generation
    known = ", ".join(alias for aliases in names.values() for alias in aliases)
    raise ConfigurationError(f"'{chip}' is not a chip of NeuronCores", cure=f"use one of {known}")


@functools.cache
def constants(chip: str) -> dict[str, float]:
    """Every constant of one core, by name; times in ns, rates in bytes per ns, clocks in GHz."""
    generation = canonical(chip)
    values = {key: float(value) for key, value in timing_tables()[generation].items()}
    # An empty environment: what is attached to this process does not change what a chip is.
    parameters = machine(timing_tables()["names"][generation][0], environment={}).device_parameters()
    for key, (parameter, factor) in FROM_CHIPS.items():
        values[key] = round(float(parameters[parameter]) * factor, 9)
    return values


def load() -> None:
    """Defines every chip name in the core."""
    for generation, aliases in timing_tables()["names"].items():
        for name in aliases:
            _C.define_chip(name, constants(generation))


DEFAULT_CHIP = default_chip()
