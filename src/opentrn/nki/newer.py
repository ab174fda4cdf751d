"""Names that a later NKI has than the one that is chosen: refused with the release that has them.

newer.toml lists them. Modules of the public interface keep such names apart and find them by `__getattr__`,
so that the choice can change in a process and `hasattr` answers as it would there.
"""

from __future__ import annotations

import dis
import functools
import sys
import tomllib
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opentrn.errors import NewerNameError, UnsupportedError
from opentrn.nki import version
from opentrn.nki.faults import caller_line

_IMPORT_FROM = dis.opmap["IMPORT_FROM"]


@functools.cache
def table() -> dict[str, tuple[int, ...]]:
    """Name → the release that added it."""
    listed = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {name: tuple(map(int, release.split("."))) for release, names in listed.items() for name in names}


def parameters_of(function: str) -> list[str]:
    """The later parameters of a function ("nki.isa.dma_copy")."""
    return [name[len(function) + 1 : -1] for name in table() if name.startswith(f"{function}(")]


def require(name: str, kind: type[UnsupportedError] = NewerNameError) -> None:
    """Raises unless the chosen release has the name; anything that is not listed is there."""
    since = table().get(name)
    if since is None or version.current() >= since:
        return
    release = ".".join(map(str, since))
    raise kind(
        f"{name} is of NKI {release}, and kernels are written for {version.text()}",
        where=caller_line(),
        cure=f"OPENTRN_NKI_VERSION={release}, or leave it out",
    )


def require_parameter(function: str, parameter: str, value: Any, default: Any = None) -> None:
    """`require` for a parameter that is given."""
    if value is not default:
        require(f"{function}({parameter})", UnsupportedError)


def keep_apart(module: str, names: dict[str, Any]) -> Callable[[str], Any]:
    """Take the listed names out of a module's globals; returns its `__getattr__`, which finds them.

    module: its public name, as the table has it.
    """
    later = {name: names.pop(name) for name in list(names) if f"{module}.{name}" in table()}

    def find(name: str) -> Any:
        if name not in later and f"{module}.{name}" not in table():
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        frame = sys._getframe(1)
        # An import statement would replace what an AttributeError says.
        imports = frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM
        require(f"{module}.{name}", UnsupportedError if imports else NewerNameError)
        if name not in later:
            raise NewerNameError(
                f"{module}.{name} is not offered", cure="docs/unsupported.md lists what is not"
            )
        return later[name]

    return find


class NewerMethod:
    """A method that exists from the listed release on."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"NkiTensor.{name}"

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self.function
        require(self.name)
        return types.MethodType(self.function, instance)
