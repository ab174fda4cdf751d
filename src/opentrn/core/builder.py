"""The builder: what a compiler or a kernel front end emits instructions through."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from opentrn.core._C import BuilderBase, Expr
from opentrn.core.machine import DEFAULT_CHIP
from opentrn.core.program import Program

_FLOOR_DIV, _CEIL_DIV, _MODULO, _MINIMUM, _MAXIMUM = 6, 7, 8, 9, 10  # enum Node of csrc/core/expression.h

Index = Any  # int or Expr


class Builder(BuilderBase):
    """Creates tensors, access patterns, instructions and loops; `finish()` places tensors and verifies.

    chip: a chip of NeuronCores; cores: physical cores of the logical core (1 or 2). Errors are those of
    opentrn.errors and name the instruction, the limit and the source line set last.
    """

    def __init__(self, chip: str = DEFAULT_CHIP, cores: int = 1, name: str = "program") -> None:
        super().__init__(chip, cores, name)
        self._registers = 0
        self.chip = chip

    def register(self, initial: int | None = None, name: str | None = None) -> Any:
        """A 64-bit integer register; `initial` emits a register_move."""
        self._registers += 1
        register = self._register(name or f"r{self._registers - 1}")
        if initial is not None:
            self.emit("register_move", dst=register, src=initial)
        return register

    def min(self, x: Index, y: Index) -> Any:
        return self._binary(_MINIMUM, x, y)

    def max(self, x: Index, y: Index) -> Any:
        return self._binary(_MAXIMUM, x, y)

    def ceildiv(self, x: Index, y: Index) -> Any:
        return self._binary(_CEIL_DIV, x, y)

    @contextlib.contextmanager
    def loop(self, start: Index, stop: Index, step: Index = 1, kind: str = "sequential") -> Iterator[Any]:
        """A loop of the program; the value is its variable."""
        yield self.loop_begin(start, stop, step, kind)
        self.loop_end()

    @contextlib.contextmanager
    def while_loop(self, register: Expr) -> Iterator[None]:
        self.while_begin(register)
        yield
        self.loop_end()

    def here(self) -> None:
        """Records the caller's line as the source of what follows."""
        frame = sys._getframe(1)
        self.source(frame.f_code.co_filename, frame.f_lineno)

    def finish(self, capacity: bool = True) -> Program:
        """Places tensors, verifies, ends the builder. capacity=False: automatic tensors may exceed SBUF
        and PSUM.
        """
        return Program(super().finish() if capacity else super().finish(False))

    def snapshot(self, capacity: bool = True) -> Program:
        """The program so far; the builder goes on. Open loops are an error, open unrolled ones are not."""
        return Program(super().snapshot(capacity))
