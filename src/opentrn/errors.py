"""What can go wrong, as classes: one line of cause, where, and what to do.

Each class is one category of the design. A category says whose fault it is: `UndefinedBehaviourError`
is the program's, `UnsupportedError` the chip's, `UnimplementedError` ours.
"""

from __future__ import annotations


class OpenTRNError(RuntimeError):
    """An error that names its cause, the place in the user's program, and the next step.

    cause: one line, no trailing full stop needed.
    where: "file.py:12" or an instruction; None where the cause says it already.
    cure: what the reader can do about it.
    """

    category = "error"

    def __init__(self, cause: str, *, where: str | None = None, cure: str | None = None) -> None:
        self.cause, self.where, self.cure = cause, where, cure
        super().__init__(self._text())

    def _text(self) -> str:
        first = self.cause if self.where is None else f"{self.cause} (at {self.where})"
        return f"{first}\n  what to do: {self.cure}" if self.cure else first

    def reword(self, *, cause: str | None = None, where: str | None = None) -> None:
        """Say more than was known where the error was raised."""
        self.cause, self.where = cause or self.cause, where or self.where
        self.args = (self._text(),)


class ConfigurationError(OpenTRNError):
    """An unknown instance, a malformed chip file, an environment variable with an impossible value."""

    category = "configuration"


class ArgumentTypeError(ConfigurationError, TypeError):
    """An argument of a kind that its function does not take: a TypeError, as Python's own."""


class ArgumentValueError(ConfigurationError, ValueError):
    """An argument whose value its function does not take: a ValueError, as Python's own."""


class ArgumentAttributeError(ConfigurationError, AttributeError):
    """An attribute of something that is no tensor: an AttributeError, as Python's own."""


class UnsupportedError(OpenTRNError):
    """What the real chip cannot do (docs/unsupported.md lists it with reasons)."""

    category = "unsupported"


class UnknownValueError(UnsupportedError, TypeError):
    """The values of a tensor are asked for while a kernel is traced, when there are none."""


class NewerNameError(UnsupportedError, AttributeError):
    """A name that a later release of NKI has than the chosen one: an AttributeError, as it would be there."""


class UnimplementedError(OpenTRNError):
    """What the real chip can do and OpenTRN does not do yet."""

    category = "unimplemented"


class UndefinedBehaviourError(OpenTRNError):
    """A program whose result the hardware does not define: a race, an uninitialised read."""

    category = "undefined behaviour"


class UndefinedBehaviourWarning(UserWarning):
    """What a strict run would raise as UndefinedBehaviourError; the text is the same."""


class OutOfBoundsError(OpenTRNError, IndexError):
    """An access outside its tensor or memory: an IndexError, as NumPy's own."""

    category = "out of bounds"


class CapacityError(OpenTRNError):
    """More SBUF, PSUM, HBM, registers or semaphores than the core has."""

    category = "capacity"


class CorruptFileError(OpenTRNError):
    """A program, trace or cache file that is damaged or of another version."""

    category = "corrupt file"


class UnbackedReadError(OpenTRNError):
    """A dry run was asked for bytes that do not exist."""

    category = "unbacked read"
