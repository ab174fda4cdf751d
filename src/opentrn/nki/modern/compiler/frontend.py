"""`nki.compiler.frontend`: trace a kernel into a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opentrn.nki import target as targets
from opentrn.nki.kernel import unwrap
from opentrn.nki.traced import trace


class NKIFrontend:
    """A kernel to be traced: `kernel` and its launch grid, or a kernel given to `compile`."""

    def __init__(self, kernel: Any = None, *args: Any, **kwargs: Any) -> None:
        self.kernel: Any = None
        self.grid: Any = None
        if kernel is not None:
            self.kernel, self.grid = unwrap(kernel)
        self.options = kwargs

    def compile(
        self,
        kernel: Any,
        inputs: dict[str, Any] | None = None,
        target: str | None = None,
        lnc: int = 1,
        artifacts_dir: str | None = None,
        **options: Any,
    ) -> Any:
        """Trace a kernel with the given arguments by name; the program is saved in `artifacts_dir` if given.

        Automatic tensors may exceed SBUF, as the real compiler would spill them. Other options are ignored.
        """
        from opentrn.nki.modern.compiler.ncc_driver import CompiledKernel

        function, grid = unwrap(kernel)
        chip = targets.named(str(target), "target") if target else None
        traced, _ = trace(function, grid if grid is not None else lnc, (), inputs or {}, chip, capacity=False)
        if artifacts_dir is not None:
            folder = Path(artifacts_dir)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "program.bin").write_bytes(traced.program.to_bytes())
        return CompiledKernel(traced)


class ParserFrontend(NKIFrontend):
    """The same; the real one parses the source instead of running it."""
