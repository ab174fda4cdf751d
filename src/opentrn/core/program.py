"""Program: the serialisable form of what a core executes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from opentrn.core._C import Expr, ProgramBase, Tensor


class Program:
    """Instructions, loops and tensors; equal programs have equal bytes.

    The base object (csrc/core/program.h) is immutable; plans for symbol values are cached in it.
    """

    def __init__(self, base: ProgramBase) -> None:
        self.base = base

    @property
    def name(self) -> str:
        return self.base.name

    @property
    def chip(self) -> str:
        return self.base.chip

    @property
    def cores(self) -> int:
        return self.base.cores

    @property
    def symbols(self) -> list[str]:
        return self.base.symbols

    @property
    def instruction_count(self) -> int:
        """Instructions as written (a loop's body counts once)."""
        return self.base.instruction_count

    def dynamic_count(self, symbols: Mapping[str, int] | None = None) -> int:
        """Instructions as executed; bodies of while loops count once."""
        return self.base.dynamic_count(dict(symbols or {}))

    @functools.cached_property
    def tensors(self) -> list[Tensor]:
        return self.base._buffers()

    @functools.cached_property
    def inputs(self) -> list[Tensor]:
        """Kernel arguments that must be given, in order of creation."""
        return [tensor for tensor in self.tensors if tensor.kind in ("input", "inout")]

    @functools.cached_property
    def outputs(self) -> list[Tensor]:
        """What execute returns: outputs and inouts, in order of creation."""
        return [tensor for tensor in self.tensors if tensor.kind in ("output", "inout")]

    def shape_of(self, tensor: Tensor, symbols: Mapping[str, int] | None = None) -> tuple[int, ...]:
        """The tensor's shape with symbols replaced."""
        if not any(isinstance(size, Expr) for size in tensor.shape):
            return tuple(tensor.shape)
        from opentrn.core.text import evaluate

        return tuple(
            evaluate(self, size, symbols or {}) if isinstance(size, Expr) else size for size in tensor.shape
        )

    def verify(self, symbols: Mapping[str, int] | None = None) -> None:
        """Raises where an instruction breaks a documented limit or an access leaves its tensor."""
        self.base.verify(dict(symbols or {}))

    def to_bytes(self) -> bytes:
        return self.base.to_bytes()

    @staticmethod
    def from_bytes(data: bytes) -> Program:
        """CorruptFileError where the bytes are damaged or of another version."""
        return Program(ProgramBase.from_bytes(data))

    def tables(self) -> dict[str, Any]:
        """Everything the program holds, as Python lists (the text form is made from them)."""
        return self.base.tables()

    def text(self) -> str:
        """The text form; `Program.parse` reads it back to equal bytes."""
        from opentrn.core.text import program_text

        return program_text(self)

    @staticmethod
    def parse(text: str) -> Program:
        from opentrn.core.text import parse_program

        return parse_program(text)
