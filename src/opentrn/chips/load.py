"""Finds, reads and checks chip and instance files; a mistake in one is a ConfigurationError with its place.

Built-in files lie in data/. A user's own lie in the directories of OPENTRN_CHIPS_PATH, are named NAME.toml,
and come first, so that a corrected or a new chip needs no change to the package.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from opentrn.chips import schema as form
from opentrn.chips.model import STATUSES, Chip, Conflict, Constant, Description, Instance, Source, to_base
from opentrn.chips.parameters import required_of_chip, required_of_instance
from opentrn.chips.read import read_toml
from opentrn.chips.units import DIMENSIONS
from opentrn.errors import ConfigurationError

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
PATH_VARIABLE = "OPENTRN_CHIPS_PATH"
_FOLDERS = {"chip": "chips", "instance": "instances", "common": "common"}


# ---- finding --------------------------------------------------------------------------------------


def user_directories() -> list[str]:
    """The directories of OPENTRN_CHIPS_PATH, in order. Raises where one does not exist."""
    directories = [d for d in os.environ.get(PATH_VARIABLE, "").split(os.pathsep) if d]
    for directory in directories:
        if not os.path.isdir(directory):
            raise ConfigurationError(
                f"{PATH_VARIABLE} names {directory!r}, which is not a directory",
                cure=f"create it, or unset {PATH_VARIABLE}",
            )
    return directories


def _user_files(kind: str) -> dict[str, str]:
    """name -> path of the user's files of this kind; the first directory wins."""
    found: dict[str, str] = {}
    for directory in user_directories():
        for entry in sorted(os.listdir(directory)):
            name, extension = os.path.splitext(entry)
            path = os.path.join(directory, entry)
            if extension == ".toml" and name not in found and read_toml(path).get("schema") == kind:
                found[name] = path
    return found


def _names(kind: str) -> list[str]:
    built_in = os.listdir(os.path.join(DATA, _FOLDERS[kind]))
    names = {entry[:-5] for entry in built_in if entry.endswith(".toml")}
    return sorted(names | set(_user_files(kind)))


def chip_names() -> list[str]:
    """Names of all chips, the user's among them."""
    return _names("chip")


def instance_names() -> list[str]:
    """Names of all instances, the user's among them (without aliases)."""
    return _names("instance")


def _find(kind: str, name: str) -> str | None:
    """Path of the file called `name`, the user's first; None where there is none."""
    for directory in user_directories():
        path = os.path.join(directory, name + ".toml")
        if os.path.isfile(path) and read_toml(path).get("schema") == kind:
            return path
    path = os.path.join(DATA, _FOLDERS[kind], name + ".toml")
    # A name with a separator would leave the folder.
    return path if os.path.basename(name) == name and os.path.isfile(path) else None


def nearest(wrong: str, valid: Iterable[str]) -> str:
    """'did you mean …' with the closest names, or the whole list where it is short."""
    import difflib

    names = list(valid)
    folded = {name.lower(): name for name in names}
    close = [folded[match] for match in difflib.get_close_matches(wrong.lower(), folded, n=3, cutoff=0.5)]
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "valid names: " + ", ".join(names) if len(names) <= 40 else f"{len(names)} names are valid;"


def load_chip(name: str) -> Chip:
    """The chip called `name`. Raises ConfigurationError for an unknown name or a faulty file."""
    path = _find("chip", name)
    if path is None:
        raise ConfigurationError(
            f"unknown chip {name!r}", cure=nearest(name, chip_names()) + " `opentrn chips` lists them"
        )
    return _Reader(path, "chip").chip()


def chip_of_target(target: str) -> Chip:
    """The chip that compilers know as `target` (a generation's name or number)."""
    known: list[str] = []
    for name in chip_names():
        chip = load_chip(name)
        if target in chip.platform_targets:
            return chip
        known.extend(chip.platform_targets)
    raise ConfigurationError(f"unknown platform target {target!r}", cure=nearest(target, known))


def load_instance(name: str) -> Instance:
    """The instance called `name`, by name or alias, or a chip's usual instance where `name` is a chip's.

    A chip that names no usual instance is attached alone, on the bench described by data/common/bench.toml.
    """
    path = _find("instance", name) or _by_alias(name)
    if path is not None:
        return _Reader(path, "instance").instance()
    if _find("chip", name) is None:
        known = [*instance_names(), *chip_names()]
        raise ConfigurationError(
            f"unknown instance {name!r}", cure=nearest(name, known) + " `opentrn chips` lists them"
        )
    chip = load_chip(name)
    usual = chip.settings.get("default_instance")
    return load_instance(usual) if usual else _bench(chip)


def _by_alias(name: str) -> str | None:
    for other in instance_names():
        path = _find("instance", other)
        if path is not None and name in read_toml(path).get("aliases", ()):
            return path
    return None


def _bench(chip: Chip) -> Instance:
    """An instance with one chip and no network, for a chip whose file stands alone."""
    path = os.path.join(DATA, "common", "bench.toml")
    reader = _Reader(path, "common")
    own = {
        "schema": "instance",
        "name": chip.name,
        "title": f"one {chip.title} on a bench",
        "chip": chip.name,
    }
    reader.tables = {
        **reader.tables,
        **own,
        "include": ["neuron_host"] if chip.kind == "neuroncore" else ["gpu_host"],
    }
    reader.kind = "instance"
    return reader.instance(check_name=False)


# ---- checking -------------------------------------------------------------------------------------


class _Reader:
    """One file on its way from TOML tables to constants."""

    def __init__(self, path: str, kind: str) -> None:
        self.path = path
        self.kind = kind
        self.tables = read_toml(path)

    def chip(self) -> Chip:
        settings = self._settings(form.CHIP_SETTINGS)
        if settings["kind"] not in form.KINDS:
            self._refuse(f"unknown kind {settings['kind']!r}", "kind", nearest(settings["kind"], form.KINDS))
        chip = Chip(
            settings["name"], self.path, settings, *self._contents(form.CHIP_FIELDS, form.CHIP_SETTINGS)
        )
        self._check_required(chip, required_of_chip(chip.kind))
        sizes = chip["cores.logical_sizes"]
        if chip["cores.default_logical"] not in sizes or any(chip["cores.per_chip"] % size for size in sizes):
            self._refuse(
                "logical_sizes must divide per_chip and contain default_logical", "cores.logical_sizes", ""
            )
        return chip

    def instance(self, check_name: bool = True) -> Instance:
        settings = self._settings(form.INSTANCE_SETTINGS, check_name)
        parts = self._contents(form.INSTANCE_FIELDS, form.INSTANCE_SETTINGS)
        instance = Instance(settings["name"], self.path, settings, *parts)
        self._check_required(instance, required_of_instance())
        topology = instance["network.topology"]
        if topology not in form.TOPOLOGIES:
            self._refuse(
                f"unknown topology {topology!r}", "network.topology", nearest(topology, form.TOPOLOGIES)
            )
        extent = instance["network.extent"]
        if len(extent) != 3 or extent[0] * extent[1] * extent[2] != instance["machine.chips"]:
            self._refuse(
                f"extent {extent} does not multiply to machine.chips = {instance['machine.chips']}",
                "network.extent",
                "give three numbers, e.g. [4, 4, 1]",
            )
        return instance

    def _settings(self, allowed: Mapping[str, tuple[bool, str]], check_name: bool = True) -> dict[str, Any]:
        """The plain strings and lists at the top of the file."""
        settings = {}
        for key, (required, wanted) in allowed.items():
            value = self.tables.get(key)
            if value is None:
                if required:
                    self._refuse(f"missing setting {key!r}", key, "add it at the top of the file")
                continue
            good = isinstance(value, str) if wanted == "str" else _is_list_of(value, str)
            if not good:
                self._refuse(
                    f"{key} must be {'a string' if wanted == 'str' else 'a list of strings'}, not {value!r}",
                    key,
                    "",
                )
            settings[key] = value
        if settings["schema"] != self.kind:
            self._refuse(
                f"schema is {settings['schema']!r} where a file of schema {self.kind!r} is wanted",
                "schema",
                "",
            )
        stem = os.path.splitext(os.path.basename(self.path))[0]
        if check_name and settings["name"] != stem:
            self._refuse(
                f"name {settings['name']!r} differs from the file's name", "name", f"call it {stem!r}"
            )
        return settings

    def _contents(
        self, fields: Mapping[str, str], settings: Mapping[str, Any]
    ) -> tuple[dict[str, Constant], dict[str, Source], dict[str, str]]:
        """Constants, sources and absences, those of the included files first."""
        constants: dict[str, Constant] = {}
        sources: dict[str, Source] = {}
        absent: dict[str, str] = {}
        for name in self.tables.get("include", ()):
            path = _find("common", name)
            if path is None:
                self._refuse(f"unknown include {name!r}", "include", nearest(name, _names("common")))
            included = _Reader(path, "common")
            included._settings(form.COMMON_SETTINGS)
            included._add(constants, sources, absent, fields, form.COMMON_SETTINGS)
        self._add(constants, sources, absent, fields, settings)
        return constants, sources, absent

    def _add(
        self,
        constants: dict[str, Constant],
        sources: dict[str, Source],
        absent: dict[str, str],
        fields: Mapping[str, str],
        settings: Mapping[str, Any],
    ) -> None:
        own = self._sources()
        for key, source in own.items():
            if sources.setdefault(key, source) != source:
                self._refuse(
                    f"source {key!r} differs from the one of an included file", f"sources.{key}", "rename it"
                )
        for section, table in self.tables.items():
            if section in settings or section in ("sources", "absent"):
                continue
            if not isinstance(table, dict):
                self._refuse(f"unknown setting {section!r}", section, nearest(section, settings))
            for field, entry in table.items():
                name = f"{section}.{field}"
                if name not in fields:
                    self._refuse(f"unknown field {name!r}", name, nearest(name, fields))
                constants[name] = self._constant(name, fields[name], entry, sources)
        for name, why in self.tables.get("absent", {}).items():
            if name not in fields:
                self._refuse(f"unknown field {name!r}", f"absent.{name}", nearest(name, fields))
            if not isinstance(why, str):
                self._refuse(f"absent {name!r} wants the reason as a string", f"absent.{name}", "")
            absent[name] = why

    def _sources(self) -> dict[str, Source]:
        sources = {}
        for key, entry in self.tables.get("sources", {}).items():
            place = f"sources.{key}"
            if not isinstance(entry, dict):
                self._refuse(f"source {key!r} must be a table", place, "give it title, url and as_of")
            for wrong in entry.keys() - set(form.SOURCE_KEYS):
                self._refuse(
                    f"unknown key {wrong!r} in source {key!r}", place, nearest(wrong, form.SOURCE_KEYS)
                )
            for part in form.SOURCE_KEYS:
                if not isinstance(entry.get(part), str):
                    self._refuse(f"source {key!r} needs {part!r} as a string", place, "")
            sources[key] = Source(key, entry["title"], entry["url"], entry["as_of"])
        return sources

    def _constant(self, name: str, dimension: str, entry: Any, sources: Mapping[str, Source]) -> Constant:
        if not isinstance(entry, dict):
            self._refuse(f"{name} must be a table with a value and a source, not {entry!r}", name, "")
        for wrong in entry.keys() - set(form.CONSTANT_KEYS):
            self._refuse(f"unknown key {wrong!r} in {name}", name, nearest(wrong, form.CONSTANT_KEYS))
        value, unit = entry.get("value"), entry.get("unit", "")
        self._check_value(name, dimension, value, unit)
        status, source = entry.get("status", "sourced"), entry.get("source", "")
        if status not in STATUSES:
            self._refuse(f"unknown status {status!r} in {name}", name, nearest(str(status), STATUSES))
        if source and source not in sources:
            self._refuse(f"unknown source {source!r} in {name}", name, nearest(str(source), sources))
        if status == "sourced" and not source:
            self._refuse(
                f"{name} has no source", name, "name one of [sources], or status = 'assumed' with a reason"
            )
        if status != "sourced" and not entry.get("reason"):
            self._refuse(f"{name} is {status} without a reason", name, "add reason = '…'")
        conflicts = tuple(self._conflict(name, dimension, c, sources) for c in entry.get("conflicts", ()))
        if conflicts and not entry.get("choice"):
            self._refuse(f"{name} has conflicts and no choice", name, "add choice = '…': why this figure")
        return Constant(
            value,
            unit,
            to_base(value, unit, dimension),
            dimension,
            status,
            source,
            entry.get("reason", ""),
            entry.get("note", ""),
            conflicts,
            entry.get("choice", ""),
        )

    def _conflict(self, name: str, dimension: str, entry: Any, sources: Mapping[str, Source]) -> Conflict:
        if not isinstance(entry, dict):
            self._refuse(f"a conflict of {name} must be a table", name, "")
        for wrong in entry.keys() - set(form.CONFLICT_KEYS):
            self._refuse(
                f"unknown key {wrong!r} in a conflict of {name}", name, nearest(wrong, form.CONFLICT_KEYS)
            )
        self._check_value(name, dimension, entry.get("value"), entry.get("unit", ""))
        source = entry.get("source", "")
        if source not in sources:
            self._refuse(
                f"unknown source {source!r} in a conflict of {name}", name, nearest(str(source), sources)
            )
        return Conflict(entry["value"], entry.get("unit", ""), source, entry.get("note", ""))

    def _check_value(self, name: str, dimension: str, value: Any, unit: Any) -> None:
        """Type, sign and unit."""
        if value is None:
            self._refuse(
                f"{name} has no value", name, "put a figure nobody publishes under [absent], with the reason"
            )
        wanted = {"text": "a string", "counts": "a list of whole numbers", "count": "a whole number"}.get(
            dimension, "a number"
        )
        if dimension == "text":
            good = isinstance(value, str)
        elif dimension == "counts":
            good = _is_list_of(value, int) and all(v > 0 for v in value)
        elif dimension == "count":
            good = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        else:
            good = (
                isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")
            )
        if not good:
            self._refuse(f"{name} must be {wanted}, not {value!r}", name, "")
        units = DIMENSIONS[dimension][1]
        if not units and unit:
            self._refuse(f"{name} has no unit, but the file says {unit!r}", name, "remove the unit")
        if units and unit not in units:
            self._refuse(f"bad unit {unit!r} for {name}", name, "valid units: " + ", ".join(units))

    def _check_required(self, description: Description, required: Iterable[str]) -> None:
        missing = [field for field in required if field not in description]
        if missing:
            more = f" (and {len(missing) - 1} more: {', '.join(missing[1:4])} …)" if len(missing) > 1 else ""
            self._refuse(
                f"missing field {missing[0]!r}{more}",
                missing[0],
                "add it with its source, or include a common file that has it",
            )

    def _refuse(self, cause: str, place: str, cure: str) -> NoReturn:
        line = line_of_field(self.path, place)
        where = f"{self.path}:{line}" if line else self.path
        raise ConfigurationError(cause, where=where, cure=cure or None)


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(v, kind) and not isinstance(v, bool) for v in value)


def line_of_field(path: str, place: str) -> int | None:
    """The line that sets "section.field" (or a top-level key); None where the file has no such line.

    Looked up only when something is wrong: the TOML reader keeps no positions.
    """
    section, _, field = place.partition(".")
    current, opened = "", None
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, text in enumerate(file, 1):
            text = text.strip()
            if text.startswith("["):
                current = text.strip("[] ")
                if current in (place, f'{section}."{field}"'):
                    return number
                if current == section:
                    opened = number
            else:
                key = text.partition("=")[0].strip().strip('"')
                if (field and current == section and key == field) or (
                    not field and not current and key == place
                ):
                    return number
    return opened
