"""Streams and events order virtual time."""

from __future__ import annotations

from typing import Any

import torch

from opentrn.device import _C
from opentrn.device.index import resolve


class Stream(torch.Stream):
    """An in-order queue of one device; work in different streams overlaps in virtual time."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        if "stream_id" in kwargs:
            return super().__new__(cls, **kwargs)
        index = resolve(device, optional=True)
        return super().__new__(cls, device=torch.device("neuron", index), priority=priority)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """(lowest, highest) priority. There is one: queues of a core take no precedence over each other."""
        return 0, 0

    @property
    def priority(self) -> int:
        """What was asked for, clamped to priority_range() as CUDA does: 0."""
        return 0

    def wait_event(self, event: torch.Event) -> None:
        event.wait(self)

    def wait_stream(self, stream: torch.Stream) -> None:
        self.wait_event(stream.record_event())

    def __repr__(self) -> str:
        return f"torch.neuron.Stream(device=neuron:{self.device_index}, id={self.stream_id})"


class _EventType(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, torch.Event)
            and instance.device is not None
            and instance.device.type == "neuron"
        )


class Event(torch.Event, metaclass=_EventType):
    """A point in virtual time of a stream.

    A plain torch.Event of the device comes out: torch.Event.elapsed_time takes no subclass beside it
    (torch 2.13).
    """

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        return torch.Event(
            "neuron", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
        )


class StreamContext:
    """Context manager: the current stream (and its device) inside the block. None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self.before: torch.Stream | None = None
        self.device_before = -1

    def __enter__(self) -> None:
        if self.stream is None:
            return
        self.device_before = _C.current_device()
        self.before = current_stream(self.stream.device_index)
        set_stream(self.stream)

    def __exit__(self, *_: Any) -> None:
        if self.stream is None or self.before is None:
            return
        set_stream(self.before)
        _C.set_device(self.device_before)


def stream(stream: torch.Stream | None) -> StreamContext:
    return StreamContext(stream)


def set_stream(stream: torch.Stream) -> None:
    torch.accelerator.set_stream(stream)


def current_stream(device: Any = None) -> Stream:
    index = resolve(device, optional=True)
    return Stream(stream_id=_C.current_stream(index), device_index=index, device_type=_device_type())


def default_stream(device: Any = None) -> Stream:
    return Stream(stream_id=0, device_index=resolve(device, optional=True), device_type=_device_type())


def _device_type() -> int:
    return int(torch._C._autograd.DeviceType.PrivateUse1)  # type: ignore[call-overload]
