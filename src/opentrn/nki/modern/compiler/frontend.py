"""`nki.compiler.frontend`."""

from __future__ import annotations

from typing import Any

from opentrn.nki.kernel import unwrap


class NKIFrontend:
    """A kernel to be traced: `kernel` and its launch grid."""

    def __init__(self, kernel: Any = None, *args: Any, **kwargs: Any) -> None:
        self.kernel, self.grid = unwrap(kernel) if kernel is not None else (None, None)
        self.options = kwargs


class ParserFrontend(NKIFrontend):
    """The same; the real one parses the source instead of running it."""
