"""`nki.compiler.ncc_driver`: compile a kernel to a program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from opentrn.nki.modern.compiler.frontend import NKIFrontend
from opentrn.nki.traced import Traced, trace


@dataclass
class CompileOptions:
    """Options of a compilation; `target` names the chip, `lnc` the cores. Others are kept, unused."""

    target: str | None = None
    lnc: int = 1
    extra: dict[str, Any] = field(default_factory=dict)

    def __init__(self, target: str | None = None, lnc: int = 1, **extra: Any) -> None:
        self.target, self.lnc, self.extra = target, lnc, extra


class CompiledKernel:
    """A traced kernel: `.program` is the virtual core's program."""

    def __init__(self, traced: Traced) -> None:
        self.traced, self.program = traced, traced.program

    @classmethod
    def from_frontend(
        cls, frontend: NKIFrontend, options: CompileOptions | None = None, *args: Any, **kwargs: Any
    ) -> CompiledKernel:
        """Trace `frontend.kernel` with the given arguments."""
        options = options or CompileOptions()
        grid = frontend.grid if frontend.grid is not None else options.lnc
        traced, _ = trace(frontend.kernel, grid, args, kwargs, options.target)
        return cls(traced)
