"""Which NKI the kernels are written for: `OPENTRN_NKI_VERSION`, by default 0.3.0.

The public interface only grew between 0.3 and 0.6; the few changes of meaning ask `at_least` at their place.
"""

from __future__ import annotations

import os

from opentrn.errors import ConfigurationError

DEFAULT = (0, 3, 0)
_current: tuple[int, ...] | None = None


def current() -> tuple[int, ...]:
    """(major, minor, patch) in force. Raises ConfigurationError for a malformed setting."""
    global _current
    if _current is None:
        text = os.environ.get("OPENTRN_NKI_VERSION", "")
        try:
            _current = tuple(int(part) for part in text.split(".")) if text else DEFAULT
        except ValueError as error:
            raise ConfigurationError(
                f"OPENTRN_NKI_VERSION={text!r} is no version", cure="e.g. 0.5.0"
            ) from error
    return _current


def at_least(major: int, minor: int) -> bool:
    """True if kernels follow NKI `major.minor` or newer."""
    return current() >= (major, minor)


def use(text: str | None) -> None:
    """Choose the version in this process (None: back to the environment's)."""
    global _current
    _current = None if text is None else tuple(int(part) for part in text.split("."))
