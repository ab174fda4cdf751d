"""The instruction table, data/instructions.toml, as Python and as the core's own definitions."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentrn.core import _C
from opentrn.errors import ConfigurationError

DATA = Path(__file__).parent / "data"
ROLES = (
    "write",
    "read",
    "update",
    "accumulate",
    "begin",
    "any",
    "alu",
    "activation",
    "number",
    "bool",
    "list",
    "text",
    "register",
    "engine",
)
ACCESS_ROLES = ROLES[:6]
SPACES = ("hbm", "sbuf", "psum")


@dataclass(frozen=True)
class Parameter:
    """One argument of an instruction, read from "name: role memories or number = default"."""

    name: str
    role: str
    spaces: tuple[str, ...]
    or_number: bool
    optional: bool
    default: Any = ...

    @staticmethod
    def parse(text: str) -> Parameter:
        """Raises ConfigurationError where a word is neither role nor memory."""
        head, _, default_text = text.partition("=")
        name, _, words_text = head.partition(":")
        words = words_text.split()
        if not words or words[0] not in ROLES:
            raise ConfigurationError(f"cannot read parameter '{text}'", cure="correct data/instructions.toml")
        or_number = words[-2:] == ["or", "number"]
        spaces = tuple(words[1:-2] if or_number else words[1:])
        if any(space not in SPACES for space in spaces):
            raise ConfigurationError(f"parameter '{text}' names an unknown memory")
        default = _default(words[0], default_text.strip()) if default_text else ...
        return Parameter(name.strip(), words[0], spaces, or_number, default is None, default)


def _default(role: str, text: str) -> Any:
    if text == "none" and role != "text":
        return None
    if role == "bool":
        return text == "true"
    if role in ("text", "alu", "activation", "engine"):
        return text
    try:
        return int(text)
    except ValueError:
        return float(text)


@dataclass(frozen=True)
class Instruction:
    """One row of the table. cycles and limits keep the formulas as text."""

    name: str
    parameters: tuple[Parameter, ...]
    engines: tuple[str, ...]
    generation: int
    dma: bool
    collective: bool
    limits: tuple[tuple[str, str], ...]
    cycles: tuple[tuple[str, str], ...]
    compiler_engines: tuple[tuple[str, str], ...]
    source: str
    cost: str


@functools.cache
def instructions() -> dict[str, Instruction]:
    """name → row, in the order of the file."""
    rows = tomllib.loads((DATA / "instructions.toml").read_text())
    return {
        name: Instruction(
            name,
            tuple(Parameter.parse(text) for text in row["parameters"]),
            tuple(row["engines"]),
            row.get("generation", 2),
            row.get("dma", False),
            row.get("collective", False),
            tuple((condition, text) for condition, text in row.get("limits", [])),
            tuple((condition, cost) for condition, cost in row["cycles"]),
            tuple((condition, engine) for condition, engine in row.get("compiler_engines", [])),
            row["source"],
            row["cost"],
        )
        for name, row in rows.items()
    }


def load() -> None:
    """Hands every row to the core. ConfigurationError where the table and the core disagree."""
    rows = instructions()
    missing = set(_C.instruction_names()) - set(rows)
    if missing:
        raise ConfigurationError(f"the instruction table lacks {', '.join(sorted(missing))}")
    for row in rows.values():
        parameters = []
        for parameter in row.parameters:
            entry: dict[str, Any] = {
                "name": parameter.name,
                "role": parameter.role,
                "spaces": parameter.spaces,
                "or_number": parameter.or_number,
                "optional": parameter.optional,
            }
            if parameter.default is not ...:
                entry["default"] = parameter.default
            parameters.append(entry)
        _C.define_instruction(
            row.name,
            {
                "parameters": parameters,
                "engines": row.engines,
                "generation": row.generation,
                "dma": row.dma,
                "collective": row.collective,
                "limits": list(row.limits),
                "cycles": list(row.cycles),
                "compiler_engines": list(row.compiler_engines),
            },
        )
