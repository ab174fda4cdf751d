"""`nki.compiler.frontend`."""

from __future__ import annotations

from typing import Any

from opentrn.nki.kernel import unwrap


class NKIFrontend:
    """A kernel to be traced: `kernel` and its launch grid."""

    def __init__(self, kernel: Any = None, *args: Any, **kwargs: Any) -> None:
        self.kernel: Any = None
        self.grid: Any = None
        if kernel is not None:
            self.kernel, self.grid = unwrap(kernel)
        self.options = kwargs


class ParserFrontend(NKIFrontend):
    """The same; the real one parses the source instead of running it."""
