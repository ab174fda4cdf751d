"""Where the values of a collective come from.

Two ways: `EqualRanks` for a fake world, in which every other rank is taken to hold what this one holds, and
`GlooRanks` (gloo.py) for several real processes. Both work in place on contiguous host tensors; the bytes of
a device tensor are seen as one (`host_memory`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from opentrn.device import _C

ReduceOp = dist.ReduceOp
Tensors = Sequence[torch.Tensor]


class Transfer(Protocol):
    """A send or a receive on its way."""

    def wait(self) -> int:
        """Blocks until it is done; returns the virtual time at which the data left its sender, ns, or 0."""
        ...

    def done(self) -> bool: ...

    def source(self) -> int: ...


class Exchange(Protocol):
    """What a process group needs of its members. `op` is a `ReduceOp`; roots and sources are ranks of the
    group.
    """

    def all_reduce(self, tensor: torch.Tensor, op: Any) -> None: ...
    def reduce(self, tensor: torch.Tensor, op: Any, root: int) -> None: ...
    def broadcast(self, tensor: torch.Tensor, root: int) -> None: ...
    def all_gather(self, outputs: Tensors, given: torch.Tensor) -> None: ...
    def reduce_scatter(self, output: torch.Tensor, parts: Tensors, op: Any) -> None: ...
    def all_to_all(self, outputs: Tensors, inputs: Tensors) -> None: ...
    def gather(self, outputs: Tensors, given: torch.Tensor, root: int) -> None: ...
    def scatter(self, output: torch.Tensor, parts: Tensors, root: int) -> None: ...
    def send(self, tensor: torch.Tensor, to: int, tag: int, leaves: int) -> Transfer | None: ...
    def receive(self, tensor: torch.Tensor, source: int | None, tag: int) -> Transfer | None: ...
    def barrier(self) -> None: ...

    def latest(self, ready: int) -> int:
        """The latest virtual time, ns, at which a member arrives; this one arrives at `ready`."""
        ...


def has_bytes(tensor: torch.Tensor) -> bool:
    """Whether the tensor has values; in a dry run it may be an address and a shape only."""
    return tensor.device.type != "neuron" or _C.is_backed(tensor)


@contextlib.contextmanager
def host_memory(tensors: Tensors, written: bool) -> Iterator[list[torch.Tensor]]:
    """Contiguous host tensors with the values of `tensors`; with `written`, what is written to them reaches
    the originals. Nothing is copied where a tensor is contiguous already.
    """
    tensors = [tensor.detach() for tensor in tensors]
    device = [tensor for tensor in tensors if tensor.device.type == "neuron"]
    for tensor in device:
        _C.open_guard(tensor)
    try:
        aliases = [_C.host_alias(t) if t.device.type == "neuron" else t for t in tensors]
        dense = [alias.resolve_conj().resolve_neg().contiguous() for alias in aliases]
        yield dense
        if written:
            for alias, host in zip(aliases, dense, strict=True):
                if alias.data_ptr() != host.data_ptr() or alias.stride() != host.stride():
                    alias.copy_(host)
    finally:
        for tensor in device:
            _C.close_guard(tensor)


class EqualRanks:
    """Every other rank holds what this rank holds: a sum over N ranks is N times the value."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def all_reduce(self, tensor: torch.Tensor, op: Any) -> None:
        self._reduce(tensor, tensor, op)

    def reduce(self, tensor: torch.Tensor, op: Any, root: int) -> None:
        if self._rank == root:
            self.all_reduce(tensor, op)

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        pass

    def all_gather(self, outputs: Tensors, given: torch.Tensor) -> None:
        for output in outputs:
            _give(output, given)

    def reduce_scatter(self, output: torch.Tensor, parts: Tensors, op: Any) -> None:
        self._reduce(output, parts[self._rank], op)

    def all_to_all(self, outputs: Tensors, inputs: Tensors) -> None:
        # What rank r sends to this one is what this one sends to itself, where the sizes allow it.
        own = inputs[self._rank]
        for output, given in zip(outputs, inputs, strict=True):
            _give(output, own if own.shape == output.shape else given)

    def gather(self, outputs: Tensors, given: torch.Tensor, root: int) -> None:
        self.all_gather(outputs, given)

    def scatter(self, output: torch.Tensor, parts: Tensors, root: int) -> None:
        if parts:
            _give(output, parts[self._rank])

    def send(self, tensor: torch.Tensor, to: int, tag: int, leaves: int) -> Transfer | None:
        return None

    def receive(self, tensor: torch.Tensor, source: int | None, tag: int) -> Transfer | None:
        return None

    def barrier(self) -> None:
        pass

    def latest(self, ready: int) -> int:
        return ready

    def _reduce(self, output: torch.Tensor, given: torch.Tensor, op: Any) -> None:
        if output is not given:
            output.copy_(given)
        if op == ReduceOp.SUM and output.dtype is not torch.bool:
            output.mul_(self._size)


def _give(output: torch.Tensor, given: torch.Tensor) -> None:
    if output.shape == given.shape:
        output.copy_(given)
