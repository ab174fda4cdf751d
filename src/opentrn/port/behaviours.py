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
# The release that commands take where none is named.
DEFAULT = "torchneuron-2.33"
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
    eager: str = ""  # outcome in eager mode, where it is another

    @property
    def in_eager(self) -> str:
        return self.eager or self.outcome


@dataclass(frozen=True)
class CompileTime:
    """Seconds that eager mode needs to compile one operator with its shapes, and how that is known."""

    seconds: float
    status: str
    text: str
    source: str


@dataclass(frozen=True)
class Release:
    """A release of the real stack."""

    name: str
    title: str
    source: str
    behaviours: tuple[Behaviour, ...]
    compile_time: CompileTime | None = None

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

    def as_json(self) -> dict[str, Any]:
        return {
            "behaviour": self.behaviour.name,
            "outcome": self.behaviour.outcome,
            "eager": self.behaviour.in_eager,
            "status": self.behaviour.status,
            "where": self.where,
            "operator": self.operator,
            "detail": self.detail,
            "count": self.count,
            "text": self.behaviour.text,
            "instead": self.behaviour.instead,
            "source": self.behaviour.source,
        }


# Places that one line of a report names; `opentrn check` lists all.
_PLACES_SHOWN = 3


def summary_line(found: list[Finding]) -> str:
    """All findings of one behaviour: what the stack does, where, and the link."""
    behaviour = found[0].behaviour
    eager = f" ({behaviour.eager} in eager mode)" if behaviour.eager else ""
    places = [
        f"{finding.operator}{f' ×{finding.count}' if finding.count > 1 else ''} at {finding.where}"
        for finding in found[:_PLACES_SHOWN]
    ]
    more = f" and {len(found) - _PLACES_SHOWN} more places" if len(found) > _PLACES_SHOWN else ""
    return f"{behaviour.outcome}{eager}: {'; '.join(places)}{more}: {behaviour.text} ({behaviour.source})"


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
    compile_time = CompileTime(**table["compile_time"]) if "compile_time" in table else None
    return Release(head["name"], head["title"], head["source"], behaviours, compile_time)


def _behaviour(name: str, fields: dict) -> Behaviour:
    lists = {"operators": frozenset, "dtypes": frozenset, "generations": tuple}
    values: dict[str, Any] = {key: lists.get(key, str)(value) for key, value in fields.items()}
    try:
        behaviour = Behaviour(name, **values)
    except TypeError as error:
        raise ConfigurationError(f"behaviour '{name}' of the stack's data file: {error}") from error
    if not {behaviour.outcome, behaviour.in_eager} <= set(OUTCOMES) or behaviour.status not in STATUSES:
        raise ConfigurationError(
            f"behaviour '{name}' has the outcome '{behaviour.outcome}' and the status '{behaviour.status}'",
            cure=f"outcomes: {', '.join(OUTCOMES)}; statuses: {', '.join(STATUSES)}",
        )
    return behaviour
