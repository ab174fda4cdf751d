"""Which NKI the kernels are written for: `OPENTRN_NKI_VERSION`, by default 0.3.0.

The public interface only grew between 0.3 and 0.6; the few changes of meaning ask `at_least` at their place.
"""

from __future__ import annotations

import os

from opentrn.errors import ConfigurationError

KNOWN = ("0.3.0", "0.4.0", "0.5.0", "0.6.0")
DEFAULT = (0, 3, 0)
_current: tuple[int, ...] | None = None


def current() -> tuple[int, ...]:
    """(major, minor, patch) in force. Raises ConfigurationError for a malformed setting."""
    global _current
    if _current is None:
        text = os.environ.get("OPENTRN_NKI_VERSION", "")
        _current = _parsed(text, "OPENTRN_NKI_VERSION=") if text else DEFAULT
    return _current


def text() -> str:
    """The version in force as `nki.__version__` gives it."""
    return ".".join(map(str, current()))


def at_least(major: int, minor: int) -> bool:
    """True if kernels follow NKI `major.minor` or newer."""
    return current() >= (major, minor)


def use(text: str | None) -> None:
    """Choose the version in this process (None: back to the environment's). Raises ConfigurationError."""
    global _current
    _current = None if text is None else _parsed(text)


def _parsed(text: str, variable: str = "") -> tuple[int, ...]:
    for version in KNOWN:
        if text in (version, version.removesuffix(".0")):
            return tuple(int(part) for part in version.split("."))
    raise ConfigurationError(f"{variable}{text!r} is no version of NKI", cure=f"one of {', '.join(KNOWN)}")
