"""What is attached to this process: an instance, its logical cores, and which of them are visible.

The names and meanings of the variables are those of the Neuron Runtime's configuration guide:
NEURON_LOGICAL_NC_CONFIG (physical cores per logical core; NEURON_RT_VIRTUAL_CORE_SIZE is its older name),
NEURON_RT_VISIBLE_CORES (indices or inclusive ranges of logical cores), NEURON_RT_NUM_CORES (how many; 0 is
all; the former wins), NEURON_PLATFORM_TARGET_OVERRIDE (which generation, where no instance is named).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from opentrn.chips import parameters
from opentrn.chips.load import chip_of_target, load_chip, load_instance
from opentrn.chips.model import Chip, Instance
from opentrn.errors import ConfigurationError

DEFAULT_INSTANCE = "trn2.48xlarge"
# PyTorch's device index is a signed byte.
MOST_DEVICES = 127

INSTANCE_VARIABLE = "OPENTRN_INSTANCE"
LOGICAL_VARIABLES = ("NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE")
VISIBLE_VARIABLE = "NEURON_RT_VISIBLE_CORES"
COUNT_VARIABLE = "NEURON_RT_NUM_CORES"
TARGET_VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"


class Machine:
    """One attached host. `device_ids`: the logical cores this process sees, in the order it named them."""

    __slots__ = ("_parameters", "chip", "cores_per_logical", "device_ids", "devices_per_chip", "instance")

    def __init__(
        self, chip: Chip, instance: Instance, cores_per_logical: int, device_ids: tuple[int, ...]
    ) -> None:
        self.chip = chip
        self.instance = instance
        self.cores_per_logical = cores_per_logical
        self.devices_per_chip: int = chip["cores.per_chip"] // cores_per_logical
        self.device_ids = device_ids
        self._parameters: dict[str, int | float | str] | None = None

    @property
    def name(self) -> str:
        return self.instance.name

    @property
    def device_count(self) -> int:
        return len(self.device_ids)

    @property
    def device_name(self) -> str:
        """Chip type as programs read it: the instance's where it has its own (trn1n, trn2u …)."""
        return str(self.instance.settings.get("device_name") or self.chip.settings["device_name"])

    @property
    def platform_target(self) -> str:
        targets = self.chip.platform_targets
        return targets[0] if targets else self.chip.name

    @property
    def share(self) -> parameters.Share:
        return parameters.Share(self.cores_per_logical, self.devices_per_chip, self.instance["machine.chips"])

    def device_parameters(self) -> dict[str, int | float | str]:
        """One logical device as a flat dict; units are in the names (docs/guide/chips.md lists them)."""
        if self._parameters is None:
            extent = self.instance["network.extent"]
            self._parameters = {
                "instance": self.instance.name,
                "chip": self.chip.name,
                "device_name": self.device_name,
                "platform_target": self.platform_target,
                "kind": self.chip.kind,
                "core_generation": str(self.chip.settings.get("core_generation", "")),
                "topology": str(self.instance["network.topology"]),
                "device_count": self.device_count,
                "devices_per_chip": self.devices_per_chip,
                "devices_per_instance": self.devices_per_chip * self.instance["machine.chips"],
                "cores_per_logical": self.cores_per_logical,
                "topology_x": extent[0],
                "topology_y": extent[1],
                "topology_z": extent[2],
                **parameters.device_parameters(self.chip, self.instance, self.share),
            }
        return dict(self._parameters)

    def provenance(self) -> dict[str, tuple[str, str]]:
        """parameter -> (status, source or reason)."""
        return parameters.provenance(self.chip, self.instance)

    def __repr__(self) -> str:
        return f"Machine({self.instance.name}, {self.device_count} devices of {self.cores_per_logical} cores)"


def machine(
    instance: str | None = None,
    lnc: int | None = None,
    platform_override: str | None = None,
    visible_cores: str | None = None,
    num_cores: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Machine:
    """Resolves what is attached; what is None is read from `environment` (os.environ).

    instance: an instance, an alias of one, or a chip (its usual instance).
    lnc: physical cores per logical core.
    platform_override: a compiler target; chooses the chip's usual instance where no instance is named, and
        must agree with the instance where one is.
    Raises ConfigurationError for anything impossible or contradictory.
    """
    values = os.environ if environment is None else environment
    named = instance or values.get(INSTANCE_VARIABLE) or None
    target = platform_override or values.get(TARGET_VARIABLE) or None
    found, chip = _instance_and_chip(named, target)
    per_logical = _logical_size(chip, lnc, values)
    total = found["machine.chips"] * (chip["cores.per_chip"] // per_logical)
    ids = _visible(found.name, total, visible_cores, num_cores, values)
    if len(ids) > MOST_DEVICES:
        raise ConfigurationError(
            f"{found.name} has {total} logical cores of {per_logical}, "
            f"and one process can hold {MOST_DEVICES} devices",
            cure=f"set {VISIBLE_VARIABLE} (e.g. one core per process), or raise {LOGICAL_VARIABLES[0]}",
        )
    return Machine(chip, found, per_logical, ids)


def _instance_and_chip(named: str | None, target: str | None) -> tuple[Instance, Chip]:
    if named is None and target is not None:
        chip = chip_of_target(target)
        return load_instance(chip.name), chip
    instance = load_instance(named or DEFAULT_INSTANCE)
    chip = load_chip(instance.chip)
    if target is not None and target not in chip.platform_targets:
        chip_of_target(target)  # an unknown target is the first thing to say
        raise ConfigurationError(
            f"{TARGET_VARIABLE}={target} contradicts {instance.name}, whose chip is {chip.name}",
            cure=f"unset one of {TARGET_VARIABLE} and {INSTANCE_VARIABLE}",
        )
    return instance, chip


def _logical_size(chip: Chip, lnc: int | None, values: Mapping[str, str]) -> int:
    """Physical cores per logical core: the argument, else the variables, else the chip's default."""
    asked = {f"lnc={lnc}": lnc} if lnc is not None else {}
    if lnc is None:
        for variable in LOGICAL_VARIABLES:
            text = values.get(variable)
            if text:
                asked[f"{variable}={text}"] = _whole(variable, text)
    if len(set(asked.values())) > 1:
        raise ConfigurationError(
            " and ".join(asked) + " contradict each other", cure=f"set only {LOGICAL_VARIABLES[0]}"
        )
    if not asked:
        return int(chip["cores.default_logical"])
    (name, size), *_ = asked.items()
    sizes = chip["cores.logical_sizes"]
    if size not in sizes:
        raise ConfigurationError(
            f"{name}: a logical core of {chip.name} has {' or '.join(map(str, sizes))} physical core"
            + ("s" if sizes[-1] > 1 else ""),
            cure=f"unset it (the default is {chip['cores.default_logical']})",
        )
    return int(size)


def _visible(
    name: str, total: int, visible: str | None, count: int | None, values: Mapping[str, str]
) -> tuple[int, ...]:
    """Indices of the logical cores this process sees. A range of cores wins over a number of them."""
    cores = visible if visible is not None else values.get(VISIBLE_VARIABLE)
    if cores:
        return _core_list(name, total, cores)
    text = values.get(COUNT_VARIABLE)
    wanted = count if count is not None else _whole(COUNT_VARIABLE, text) if text else 0
    if wanted < 0 or wanted > total:
        raise ConfigurationError(
            f"{COUNT_VARIABLE}={wanted}, but {name} has {total} logical cores",
            cure=f"give 0 (all) to {total}",
        )
    return tuple(range(wanted or total))


def _core_list(name: str, total: int, text: str) -> tuple[int, ...]:
    """ "0-3,8" -> (0, 1, 2, 3, 8)"""
    cure = f"give indices or inclusive ranges of 0 to {total - 1}, e.g. {VISIBLE_VARIABLE}=0-3,8"
    ids: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ConfigurationError(
                f"{VISIBLE_VARIABLE}={text!r}: {part.strip()!r} is no core or range", cure=cure
            )
        low, high = int(first), int(last if dash else first)
        if high < low:
            raise ConfigurationError(
                f"{VISIBLE_VARIABLE}={text!r}: the range {part.strip()!r} runs backwards", cure=cure
            )
        if high >= total:
            raise ConfigurationError(
                f"{VISIBLE_VARIABLE}={text!r} asks for core {high}; {name} has {total} logical cores",
                cure=cure,
            )
        ids.extend(range(low, high + 1))
    if len(set(ids)) != len(ids):
        raise ConfigurationError(f"{VISIBLE_VARIABLE}={text!r} names a core twice", cure=cure)
    return tuple(ids)


def _whole(variable: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(
            f"{variable}={text!r} is not a whole number", cure=f"unset {variable} or correct it"
        ) from None


def describe(subject: Chip | Instance) -> dict[str, Any]:
    """Everything a file says, as plain data for JSON."""
    constants = {}
    for key, constant in subject.constants.items():
        entry = {k: v for k, v in constant._asdict().items() if v not in ("", ())}
        if constant.conflicts:
            entry["conflicts"] = [c._asdict() for c in constant.conflicts]
        constants[key] = entry
    return {
        "settings": subject.settings,
        "path": subject.path,
        "constants": constants,
        "sources": {key: source._asdict() for key, source in subject.sources.items()},
        "absent": subject.absent,
    }
