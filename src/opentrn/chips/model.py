"""What a chip file holds, as plain immutable objects.

Named tuples and slots rather than pydantic or dataclasses: this is read at first use of the device, in every
process, and importing pydantic alone would cost ten times the whole budget.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from opentrn.chips.units import DIMENSIONS, WHOLE
from opentrn.errors import ConfigurationError

# How a figure is known. A "derived" one follows by arithmetic from others, a "fitted" one from published
# measurements.
STATUSES = ("sourced", "derived", "fitted", "assumed")


class Source(NamedTuple):
    """A public document: `as_of` is the day (or month) at which it said so."""

    key: str
    title: str
    url: str
    as_of: str


class Conflict(NamedTuple):
    """Another public figure for the same constant."""

    value: Any
    unit: str
    source: str
    note: str


class Constant(NamedTuple):
    """One figure of a chip or instance file, in the unit its source uses.

    base: the value in the dimension's base unit (bytes, B/s, GHz, TFLOP/s, ns, cycles); text unchanged.
    source: key into the file's sources, "" where status is assumed.
    reason: why an assumed, derived or fitted figure is what it is.
    choice: why this figure and not one of `conflicts`.
    """

    value: Any
    unit: str
    base: Any
    dimension: str
    status: str
    source: str
    reason: str
    note: str
    conflicts: tuple[Conflict, ...]
    choice: str


def to_base(value: Any, unit: str, dimension: str) -> Any:
    """`value` in the base unit of `dimension`; whole dimensions come back as int."""
    factors = DIMENSIONS[dimension][1]
    if not factors:
        return value
    scaled = value * factors[unit]
    if dimension in WHOLE or (isinstance(scaled, float) and dimension == "cycles" and scaled.is_integer()):
        return int(scaled)
    return scaled


class Description:
    """A read chip or instance file: constants by "section.field", with their sources."""

    __slots__ = ("absent", "constants", "name", "path", "settings", "sources")

    def __init__(
        self,
        name: str,
        path: str,
        settings: dict[str, Any],
        constants: dict[str, Constant],
        sources: dict[str, Source],
        absent: dict[str, str],
    ) -> None:
        self.name = name
        self.path = path
        self.settings = settings
        self.constants = constants
        self.sources = sources
        self.absent = absent

    def __contains__(self, key: str) -> bool:
        return key in self.constants

    def __getitem__(self, key: str) -> Any:
        """The constant in its base unit. Raises ConfigurationError where the file has none."""
        try:
            return self.constants[key].base
        except KeyError:
            why = self.absent.get(key)
            raise ConfigurationError(
                f"{self.name} has no {key}" + (f" ({why})" if why else ""),
                where=self.path,
                cure=f"add {key} to the file, with its source or with status = 'assumed' and a reason",
            ) from None

    def get(self, key: str, default: Any = None) -> Any:
        constant = self.constants.get(key)
        return default if constant is None else constant.base

    @property
    def title(self) -> str:
        return str(self.settings["title"])


class Chip(Description):
    """One accelerator chip. `settings` holds kind, vendor, device_name, platform_targets …"""

    __slots__ = ()

    @property
    def kind(self) -> str:
        """neuroncore, gpu or tpu"""
        return str(self.settings["kind"])

    @property
    def platform_targets(self) -> list[str]:
        """Names under which compilers know this chip; the first is the canonical one."""
        return list(self.settings.get("platform_targets", ()))


class Instance(Description):
    """One machine a process can run on: a host with chips, and the networks it hangs on."""

    __slots__ = ()

    @property
    def chip(self) -> str:
        return str(self.settings["chip"])
