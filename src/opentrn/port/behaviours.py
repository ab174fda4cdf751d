"""The data file of a release of the real stack, read and checked."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from opentrn.errors import ConfigurationError

OUTCOMES = ("refuses", "falls back", "loses precision", "recompiles", "ignores")
STATUSES = ("documented", "reported", "inferred")
_DATA = "opentrn.port"


@dataclass(frozen=True)
class Behaviour:
    """One thing the real stack does otherwise. The fields are described at the top of the data file."""

    name: str
    outcome: str
    status: str
    text: str
    instead: str
    source: str
    operators: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset()
    operand: str = "any"
    generations: tuple[str, ...] = ()
    static: str | None = None


@dataclass(frozen=True)
class Release:
    """A release of the real stack."""

    name: str
    title: str
    source: str
    behaviours: tuple[Behaviour, ...]

    def static(self) -> dict[str, Behaviour]:
        """Pattern of the source text → behaviour."""
        return {behaviour.static: behaviour for behaviour in self.behaviours if behaviour.static}

    def named(self, name: str) -> Behaviour:
        return next(behaviour for behaviour in self.behaviours if behaviour.name == name)


@dataclass
class Finding:
    """One behaviour at one place. operator: "aten::mm", or what the source text says. count: uses."""

    behaviour: Behaviour
    where: str
    operator: str
    detail: str = ""
    count: int = 1

    def __str__(self) -> str:
        times = f" ×{self.count}" if self.count > 1 else ""
        behaviour = self.behaviour
        place = f"{behaviour.outcome} {self.operator}{times} at {self.where}"
        return f"{place}: {behaviour.text} ({behaviour.source})"

    def as_json(self) -> dict[str, Any]:
        return {
            "behaviour": self.behaviour.name,
            "outcome": self.behaviour.outcome,
            "status": self.behaviour.status,
            "where": self.where,
            "operator": self.operator,
            "detail": self.detail,
            "count": self.count,
            "text": self.behaviour.text,
            "instead": self.behaviour.instead,
            "source": self.behaviour.source,
        }


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda f: (OUTCOMES.index(f.behaviour.outcome), f.behaviour.name, f.where))


def releases() -> list[str]:
    """Names of the releases there is a file for."""
    folder = resources.files(_DATA).joinpath("data")
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in folder.iterdir()
        if entry.name.startswith("torchneuron-")
    )


@cache
def release(name: str) -> Release:
    """Reads a release. ConfigurationError for an unknown name or an entry with an impossible value."""
    if name not in releases():
        raise ConfigurationError(
            f"there is no stack '{name}' to behave as", cure=f"choose one of: {', '.join(releases())}"
        )
    table = tomllib.loads(resources.files(_DATA).joinpath(f"data/{name}.toml").read_text())
    behaviours = tuple(_behaviour(entry, fields) for entry, fields in table["behaviour"].items())
    head = table["release"]
    return Release(head["name"], head["title"], head["source"], behaviours)


def _behaviour(name: str, fields: dict) -> Behaviour:
    lists = {"operators": frozenset, "dtypes": frozenset, "generations": tuple}
    values: dict[str, Any] = {key: lists.get(key, str)(value) for key, value in fields.items()}
    try:
        behaviour = Behaviour(name, **values)
    except TypeError as error:
        raise ConfigurationError(f"behaviour '{name}' of the stack's data file: {error}") from error
    if behaviour.outcome not in OUTCOMES or behaviour.status not in STATUSES:
        raise ConfigurationError(
            f"behaviour '{name}' has the outcome '{behaviour.outcome}' and the status '{behaviour.status}'",
            cure=f"outcomes: {', '.join(OUTCOMES)}; statuses: {', '.join(STATUSES)}",
        )
    return behaviour
