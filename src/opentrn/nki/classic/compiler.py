"""`neuronxcc.nki.compiler`: direct allocation and scheduling hints (which the virtual core does not need)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from opentrn.nki.classic import allocation as _allocation
from opentrn.nki.enums import MemoryRegion
from opentrn.nki.language_composites import no_reorder as _no_reorder


class _Allocator:
    """`sbuf` or `psum` with their allocation functions; usable as a buffer itself."""

    def __init__(
        self, region: MemoryRegion, modulo: Callable[..., Any], function: Callable[..., Any]
    ) -> None:
        self.region, self.mod_alloc, self.alloc = region, modulo, function

    def auto_alloc(self) -> MemoryRegion:
        """Let the builder choose."""
        return self.region


sbuf = _Allocator(MemoryRegion.sbuf, _allocation.sbuf_modulo, _allocation.sbuf_function)
psum = _Allocator(MemoryRegion.psum, _allocation.psum_modulo, _allocation.psum_function)


def _unchanged(func: Any = None, **_: Any) -> Any:
    """A decorator that changes nothing."""
    return func if func is not None else lambda inner: inner


skip_middle_end_transformations = enable_stack_allocator = force_auto_alloc = _unchanged


@contextlib.contextmanager
def _nothing(*_: Any, **__: Any) -> Any:
    yield


allocation_scope = multi_buffer = _nothing
no_reorder = _no_reorder
