"""Which differences are expected, and why: exceptions.toml, read and applied.

An exception excuses a difference only as far as its rule goes, and only where the cause can be shown on CPU:

    random          CPU gives other bits under another seed
    uninitialised   the result's elements are never written; shape, strides and aliasing are still compared
    irreproducible  CPU gives other bits on another run, with other addresses or other freed memory
    device_path     PyTorch's own code computes otherwise on an accelerator than on CPU; only bits may differ
    values          (dry runs) the answer depends on values by its nature; every kind of difference is excused
    unsupported     the device does not do it; every kind of difference is excused, and the reason says why
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from opentrn.errors import ConfigurationError

TABLE = Path(__file__).with_name("exceptions.toml")

# Rule → kinds of difference it covers, and the causes of which one must be shown on CPU (empty: no need).
RULES: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "random": (frozenset({"bits"}), frozenset({"seed"})),
    "uninitialised": (frozenset({"bits"}), frozenset()),
    "irreproducible": (frozenset({"bits"}), frozenset({"seed", "alignment", "memory"})),
    "device_path": (frozenset({"bits"}), frozenset()),
    "values": (frozenset({"error", "structure", "metadata", "aliasing"}), frozenset()),
    "unsupported": (frozenset({"error", "structure", "metadata", "aliasing", "bits"}), frozenset()),
}


@dataclass(frozen=True)
class ExceptionEntry:
    """One row of exceptions.toml. Empty `dtypes` or `checks` mean all of them."""

    operators: tuple[str, ...]
    rule: str
    reason: str
    dtypes: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()

    def covers(self, operator: str, dtype: str, check: str) -> bool:
        return (
            operator in self.operators
            and (not self.dtypes or dtype in self.dtypes)
            and (not self.checks or check in self.checks)
        )


@dataclass(frozen=True)
class Exceptions:
    """The table. `host_positions`: operator → positions in `args` that stay in host memory."""

    entries: tuple[ExceptionEntry, ...] = ()
    host_positions: tuple[tuple[str, frozenset[int]], ...] = ()

    def is_random(self, operator: str) -> bool:
        return any(entry.rule == "random" and operator in entry.operators for entry in self.entries)

    def host_arguments(self, operator: str) -> frozenset[int]:
        return dict(self.host_positions).get(operator, frozenset())

    def excuse(self, failure: Any, causes: list[str]) -> ExceptionEntry | None:
        """The entry that covers a failure. `causes`: conditions that change CPU's own bits."""
        for entry in self.entries:
            kinds, needed = RULES[entry.rule]
            covered = entry.covers(failure.operator, failure.dtype, failure.check) and failure.kind in kinds
            if covered and (not needed or needed.intersection(causes)):
                return entry
        return None


@cache
def load(path: Path = TABLE, *, dry: bool = False) -> Exceptions:
    """Reads the table; `dry` adds what holds of dry runs alone. ConfigurationError names a bad row."""
    try:
        document = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path.name} is not valid TOML: {error}") from error
    entries = []
    for section in ("exception", "dry") if dry else ("exception",):
        for number, row in enumerate(document.get(section, [])):
            entries.append(_entry(row, f"{path.name}, [[{section}]] number {number + 1}"))
    hosts = tuple((name, frozenset(where)) for name, where in document.get("host_arguments", {}).items())
    return Exceptions(tuple(entries), hosts)


def _entry(row: dict[str, Any], where: str) -> ExceptionEntry:
    unknown = set(row) - {"operators", "rule", "reason", "dtypes", "checks"}
    if unknown or not {"operators", "rule", "reason"} <= set(row):
        raise ConfigurationError(
            f"{where}: wants operators, rule and reason; unknown: {sorted(unknown) or 'none'}", where=where
        )
    if row["rule"] not in RULES:
        raise ConfigurationError(f"{where}: no rule {row['rule']!r}", cure=f"one of {', '.join(RULES)}")
    lists = {name: tuple(row.get(name, ())) for name in ("operators", "dtypes", "checks")}
    return ExceptionEntry(rule=row["rule"], reason=row["reason"], **lists)
