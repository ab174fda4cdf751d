"""torch.cuda.Stream, Event and the stream contexts, on the virtual time of neuron."""

from __future__ import annotations

from typing import Any

import torch

from opentrn.device import _C, streams
from opentrn.device.index import resolve
from opentrn.errors import UnsupportedError
from opentrn.port.cuda_devices import to_cuda, to_neuron
from opentrn.port.redirections import LEDGER


class Stream(streams.Stream):
    """A neuron stream with the attributes of a CUDA one."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        if "stream_id" not in kwargs:
            LEDGER.note("torch.cuda.Stream", "torch.neuron.Stream (orders virtual time)")
        return super().__new__(cls, to_neuron(device), priority, **kwargs)  # type: ignore[return-value]

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return to_cuda(torch.device("neuron", self.device_index))

    @classmethod
    def priority_range(cls) -> tuple[int, int]:
        return (0, -5)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class Event(streams.Event):
    """A point in virtual time."""

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> Any:
        LEDGER.note("torch.cuda.Event", "torch.neuron.Event (elapsed_time is device time)")
        return super().__new__(cls, enable_timing, blocking, interprocess)

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: Any) -> Event:
        raise UnsupportedError(
            "events cannot be shared between processes", cure="synchronize with torch.distributed"
        )

    @property
    def cuda_event(self) -> int:
        return self.event_id


class ExternalStream(Stream):
    """Refused: there is no stream that another library made."""

    def __new__(cls, *args: Any, **kwargs: Any) -> ExternalStream:
        raise UnsupportedError("a CUDA stream of another library cannot be used", cure="torch.cuda.Stream()")


def _of_id(index: int, stream_id: int) -> Stream:
    kind = streams._device_type()
    return Stream(stream_id=stream_id, device_index=index, device_type=kind)


def current_stream(device: Any = None) -> Stream:
    index = resolve(to_neuron(device), optional=True)
    return _of_id(index, _C.current_stream(index))


def default_stream(device: Any = None) -> Stream:
    return _of_id(resolve(to_neuron(device), optional=True), 0)


class StreamContext(streams.StreamContext):
    """`with torch.cuda.stream(s):`"""


def stream(stream: torch.Stream | None) -> StreamContext:
    LEDGER.note("torch.cuda.stream", "torch.neuron.stream")
    return StreamContext(stream)


def set_stream(stream: torch.Stream | None) -> None:
    if stream is not None:
        streams.set_stream(stream)
