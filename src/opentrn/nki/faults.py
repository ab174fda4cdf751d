"""What goes wrong while a kernel is traced, with the user's line, and as a category of `opentrn.errors`.

The functions of `nki.language` and `nki.isa` raise without a place where finding it would cost every call,
and leave to Python what it refuses itself. Both are put right here, once, where a kernel is called for
tracing. What the kernel's own code raises stays as it is.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from opentrn.errors import (
    ArgumentAttributeError,
    ArgumentTypeError,
    ArgumentValueError,
    CapacityError,
    OpenTRNError,
    OutOfBoundsError,
)

_HERE = Path(__file__).parent
_OURS = (str(_HERE), str(_HERE.parent / "core"))
_NOT_USERS = (*_OURS, str(Path(np.__file__).parent))
_PUBLIC = [
    f"opentrn.nki.{module}"
    for module in ("modern.isa", "modern.language", "modern.collectives", "classic.isa", "classic.language")
]
_REFUSED_CALL = re.compile(
    r"(?:NkiTensor\.)?(\w+)\(\) (?:got an unexpected|got multiple|got some|missing \d+ required|takes )"
)
_TRANSLATED: dict[type[Exception], type[OpenTRNError]] = {
    AttributeError: ArgumentAttributeError,
    IndexError: OutOfBoundsError,
    TypeError: ArgumentTypeError,
    ValueError: ArgumentValueError,
}
_PYTHONS = (AttributeError, IndexError, TypeError, ValueError)


class explained:
    """Errors of the block get a place, and those that Python raised in our functions a category.

    arguments: of the kernel, by name; where: the place of errors that no line of the kernel raised (None: the
    line that called it). A class, as a call of a kernel whose program is known passes here in microseconds.
    """

    __slots__ = ("arguments", "where")

    def __init__(self, arguments: Mapping[str, Any], where: str | None = None) -> None:
        self.arguments, self.where = arguments, where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, OpenTRNError):
            if error.where is None:
                error.reword(where=_user_line(error) or self.where or caller_line())
        elif isinstance(error, _PYTHONS):
            better = _translated(error, self.arguments)
            if better is not None:
                raise better from error


def _frames(error: BaseException) -> list[tuple[str, int, str]]:
    """(file, line, function) of the traceback below `explained`, outermost first."""
    found: list[tuple[str, int, str]] = []
    step = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        found.append((code.co_filename, step.tb_lineno, code.co_name))
        step = step.tb_next
    return found


def _user_line(error: BaseException) -> str | None:
    for file, line, _ in reversed(_frames(error)):
        if not file.startswith(_NOT_USERS):
            return f"{file}:{line}"
    return None


def caller_line() -> str | None:
    """The innermost line of the user on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_NOT_USERS):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def definition_line(function: Any) -> str | None:
    """Where a kernel is defined."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _translated(error: Exception, arguments: Mapping[str, Any]) -> OpenTRNError | None:
    """The error as one of ours; None where the kernel's own code raised it."""
    where, called = _user_line(error), _called(error)
    if where is None:
        return None
    text = (str(error).splitlines() or [""])[0].rstrip(".:")
    refused = _REFUSED_CALL.match(text)
    if refused and called is None:
        function = _public(refused[1])
        if function is None:
            return None
        return ArgumentTypeError(
            text, where=where, cure=f"its arguments: {refused[1]}{_parameters(function)}"
        )
    if called is not None:
        kind = next(ours for theirs, ours in _TRANSLATED.items() if isinstance(error, theirs))
        return kind(f"{called}: {text}", where=where, cure="check the kinds and the values of its arguments")
    return _of_an_argument(error, arguments, where)


def _called(error: Exception) -> str | None:
    """The function of ours that the user's innermost frame called and that raised; None without one."""
    inner: list[tuple[str, int, str]] = []
    for frame in reversed(_frames(error)):
        if not frame[0].startswith(_NOT_USERS):
            break
        inner.append(frame)
    ours = [name for file, _, name in inner if file.startswith(_OURS)]
    return ours[-1] if ours else None


def _public(name: str) -> Any:
    for module in _PUBLIC:
        found = getattr(sys.modules.get(module), name, None)
        if found is not None:
            return found
    from opentrn.nki.tensor import NkiTensor

    return getattr(NkiTensor, name, None)


def _parameters(function: Any) -> str:
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    return f"({', '.join(str(p.replace(annotation=p.empty, default=p.empty)) for p in parameters)})"


def _of_an_argument(error: Exception, arguments: Mapping[str, Any], where: str) -> OpenTRNError | None:
    """A kernel's argument was used as the tensor that it is not."""
    from opentrn.nki.tensor import NkiTensor

    if not isinstance(error, AttributeError) or not hasattr(NkiTensor, str(error.name)):
        return None
    for name, value in arguments.items():
        # Containers reach the kernel as copies.
        same = value is error.obj or (isinstance(value, (list, tuple)) and type(value) is type(error.obj))
        if same and (value is None or isinstance(value, (bool, int, float, str, list, tuple))):
            given = "None" if value is None else f"a {type(value).__name__}"
            return ArgumentAttributeError(
                f"argument '{name}' is {given}; the kernel uses it as a tensor (.{error.name})",
                where=where,
                cure="pass an array or a torch tensor",
            )
    return None


# -- full memories -------------------------------------------------------------------------------------------
@contextlib.contextmanager
def counted_holders(places: Mapping[str, tuple[str, int]]) -> Iterator[None]:
    """A CapacityError of the block says where the tensor was made that finds no room, and counts equal
    holders.

    places: tensor → file and line.
    """
    try:
        yield
    except CapacityError as error:
        head, held, tail = error.cause.partition(" held by ")
        needs = re.search(r"tensor '(.*?)' needs", head)
        place = places.get(needs[1]) if needs else None
        counts: dict[str, int] = {}
        for holder in tail.split(", "):
            counts[holder] = counts.get(holder, 0) + 1
        tail = ", ".join(name if count == 1 else f"{name} (x{count})" for name, count in counts.items())
        error.reword(cause=head + held + tail, where=f"{place[0]}:{place[1]}" if place else None)
        raise
