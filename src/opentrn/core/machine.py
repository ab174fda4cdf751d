"""The constants of one core of each chip: what the chip data says, and what only the timing of a core needs.

`opentrn.chips` holds the hardware; data/core_timing.toml adds fitted and assumed constants of the timing and
says which they are. Where both have a number, the chip data wins.
"""

from __future__ import annotations

import functools
import tomllib

from opentrn.chips.machine import machine
from opentrn.core import _C
from opentrn.core.table import DATA
from opentrn.errors import ConfigurationError

# Generation → an instance that has it, and every name by which users call it.
GENERATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "gen2": ("trn1.32xlarge", ("gen2", "trn1", "trn1n", "inf2", "v2")),
    "gen3": ("trn2.48xlarge", ("gen3", "trn2", "trn2n", "trn2u", "v3")),
    "gen4": ("trn3-gen1", ("gen4", "trn3", "trn3u", "v4")),
}
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
def timing_tables() -> dict[str, dict[str, float]]:
    return tomllib.loads((DATA / "core_timing.toml").read_text())


def canonical(chip: str) -> str:
    """trn2 → gen3. Raises ConfigurationError for a name that is no NeuronCore chip."""
    for generation, (_, names) in GENERATIONS.items():
        if chip.lower() in names:
            return generation
    raise ConfigurationError(
        f"'{chip}' is not a chip of NeuronCores", cure="use trn1, inf2, trn2 or trn3 (or gen2, gen3, gen4)"
    )


@functools.cache
def constants(chip: str) -> dict[str, float]:
    """Every constant of one core, by name; times in ns, rates in bytes per ns, clocks in GHz."""
    generation = canonical(chip)
    values = {key: float(value) for key, value in timing_tables()[generation].items()}
    # An empty environment: what is attached to this process does not change what a chip is.
    parameters = machine(GENERATIONS[generation][0], environment={}).device_parameters()
    for key, (parameter, factor) in FROM_CHIPS.items():
        values[key] = round(float(parameters[parameter]) * factor, 9)
    return values


def load() -> None:
    """Defines every chip name in the core."""
    for generation, (_, names) in GENERATIONS.items():
        for name in names:
            _C.define_chip(name, constants(generation))
