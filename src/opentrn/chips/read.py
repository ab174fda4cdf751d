"""Reads TOML, and keeps a parsed copy so that every process but the first starts in a millisecond.

Python's TOML reader is itself written in Python: about 15 ms for a chip and an instance, in every process
that touches the device. A parsed copy lives in the user's cache directory as JSON, under a name that contains
a checksum of the TOML's bytes: an edited file has another name, so a copy can be missing but never stale.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import Any

from opentrn.errors import ConfigurationError

# Raised whenever the parsed form changes.
_FORMAT = 1


def cache_directory() -> str:
    """Where parsed copies live: OPENTRN_CACHE_DIR, else XDG_CACHE_HOME/opentrn, else ~/.cache/opentrn."""
    chosen = os.environ.get("OPENTRN_CACHE_DIR")
    if not chosen:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        chosen = os.path.join(base, "opentrn")
    return os.path.join(chosen, "chips")


def read_toml(path: str) -> dict[str, Any]:
    """The tables of one TOML file. Raises ConfigurationError with file and line where it is malformed."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {path}: {error.strerror}", cure="check the file's path and mode"
        ) from error
    stem = os.path.splitext(os.path.basename(path))[0]
    copy = os.path.join(cache_directory(), f"{stem}-{_FORMAT}-{len(content)}-{zlib.crc32(content):08x}.json")
    tables = _read_copy(copy)
    if tables is None:
        tables = _parse(path, content)
        _write_copy(copy, tables)
    return tables


def _parse(path: str, content: bytes) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(
            "not UTF-8 text", where=f"{path}:{line}", cure="save the file as UTF-8"
        ) from error
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        line = line_of_toml_error(message, content)
        raise ConfigurationError(
            f"malformed TOML: {message}",
            where=f"{path}:{line}",
            cure="correct that line; https://toml.io describes the form",
        ) from error


def line_of_toml_error(message: str, content: bytes) -> int:
    """The line number in tomllib's message; its "end of document" is the last line."""
    _, found, rest = message.rpartition("(at line ")
    if found:
        return int(rest.split(",")[0])
    return content.count(b"\n") + 1


def _read_copy(path: str) -> dict[str, Any] | None:
    """The parsed copy, or None where there is none or it is damaged (a crash while writing, a full disk)."""
    try:
        with open(path, "rb") as file:
            checksum, _, body = file.read().partition(b"\n")
        if int(checksum, 16) != zlib.crc32(body):
            return None
        tables = json.loads(body)
    except (OSError, ValueError):
        return None
    return tables if isinstance(tables, dict) else None


def _write_copy(path: str, tables: dict[str, Any]) -> None:
    """Best effort: without a writable cache directory everything works, 15 ms later."""
    try:
        body = json.dumps(tables).encode()
    except TypeError:  # TOML dates: refused with a proper message when the tables are checked
        return
    partial = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(partial, "wb") as file:
            file.write(b"%08x\n" % zlib.crc32(body) + body)
        os.replace(partial, path)
    except OSError:
        pass
