"""`torch.neuron.nvtx`: named ranges under the names of torch.cuda.nvtx; torch.profiler records them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_open = threading.local()  # CUDA keeps one stack of ranges a thread
_started: dict[int, Any] = {}
_handles = itertools.count(1)


def _enter(message: Any) -> Any:
    span = torch.profiler.record_function(str(message))
    span.__enter__()
    return span


def range_push(msg: Any) -> int:
    """Opens a range inside the thread's open ones; returns its depth, from 0."""
    stack = _open.__dict__.setdefault("stack", [])
    stack.append(_enter(msg))
    return len(stack) - 1


def range_pop() -> int:
    """Closes the thread's innermost range; returns its depth, or −1 where none is open."""
    stack = _open.__dict__.get("stack", [])
    if stack:
        stack.pop().__exit__(None, None, None)
        return len(stack)
    return -1


def range_start(msg: Any) -> int:
    """Opens a range that may end out of order; returns a handle for range_end."""
    handle = next(_handles)
    _started[handle] = _enter(msg)
    return handle


def range_end(range_id: int) -> None:
    """Closes the range of a handle; a handle that is closed already changes nothing, as on CUDA."""
    span = _started.pop(range_id, None)
    if span is not None:
        span.__exit__(None, None, None)


def mark(msg: Any) -> None:
    """A point in time: a range that ends at once."""
    _enter(msg).__exit__(None, None, None)


@contextmanager
def range(msg: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
    """Context manager and decorator: a range around the block. The arguments fill `msg`'s format fields."""
    range_push(str(msg).format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()
