"""The c10d process group of a fake world: collectives infer their results and take modelled time on their
own stream.

Every other rank is taken to hold what this rank holds. Results with bytes follow that (a sum over N equal
ranks is N
times the value); large unbacked results have no values anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from opentrn.device import _C
from opentrn.distributed.cost import collective_ns, span_of

BACKEND = "neuron"
_ReduceOp = dist.ReduceOp
# Untyped: the stub lists overloads of each collective that Python code never calls.
_ProcessGroup: Any = dist.ProcessGroup


class _Work(dist._Work):
    """Done at a point of virtual time: waiting makes the current stream wait for it, the host goes on."""

    def __init__(self, results: list[torch.Tensor], event: torch.Event | None) -> None:
        super().__init__()
        self._results, self._event = results, event
        self._future: torch.futures.Future = torch.futures.Future()
        self._future.set_result(results)

    def wait(self, timeout: timedelta | None = None) -> bool:
        if self._event is not None:
            torch.accelerator.current_stream().wait_event(self._event)
        return True

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def result(self) -> list[torch.Tensor]:
        return self._results

    def get_future(self) -> torch.futures.Future:
        return self._future


class FakeWorldGroup(_ProcessGroup):
    """A group of `size` ranks of which this process plays `rank`."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._streams: dict[int, Any] = {}
        self._durations: dict[tuple[str, int], int] = {}
        self._span: Any = None

    # -- what c10d asks of a group

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    def getBackendName(self) -> str:
        return BACKEND

    def name(self) -> str:
        return BACKEND

    @property
    def pg_name(self) -> str:
        return dist.distributed_c10d._world.pg_names[self]

    @property
    def group_name(self) -> str:
        return self.pg_name

    # -- collectives

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> _Work:
        for tensor in tensors:
            self._reduce_equal(tensor, tensor, opts)
        return self._run("all_reduce", _bytes(tensors), tensors, tensors)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> _Work:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any = None) -> _Work:
        for tensor in tensors:
            self._reduce_equal(tensor, tensor, opts)
        return self._run("reduce", _bytes(tensors), tensors, tensors)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> _Work:
        return self._run("broadcast", _bytes(tensors), tensors, tensors)

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> _Work:
        for gathered, given in zip(outputs, inputs, strict=True):
            for output in gathered:
                _give(output, given)
        flat = [tensor for gathered in outputs for tensor in gathered]
        return self._run("all_gather", _bytes(flat), inputs, flat)

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> _Work:
        if _has_bytes(output):
            for part in output.view(-1).chunk(self._size):
                _give(part, given.reshape(-1))
        return self._run("all_gather", output.nbytes, [given], [output])

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> _Work:
        for output, given in zip(outputs, inputs, strict=True):
            if _has_bytes(output):
                for part in output.view(-1).chunk(self._size):
                    _give(part, given.reshape(-1))
        return self._run("all_gather", _bytes(outputs), inputs, outputs)

    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None
    ) -> _Work:
        for output, parts in zip(outputs, inputs, strict=True):
            self._reduce_equal(output, parts[self._rank], opts)
        flat = [tensor for parts in inputs for tensor in parts]
        return self._run("reduce_scatter", _bytes(flat), flat, outputs)

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> _Work:
        if _has_bytes(output):
            self._reduce_equal(output.view(-1), given.reshape(-1).chunk(self._size)[self._rank], opts)
        return self._run("reduce_scatter", given.nbytes, [given], [output])

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> _Work:
        works = [self.reduce_scatter_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)]
        return works[-1]

    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_split_sizes: list[int] | None = None,
        input_split_sizes: list[int] | None = None,
        opts: Any = None,
    ) -> _Work:
        if _has_bytes(output) and output.shape == given.shape:
            _give(output, given)
        return self._run("all_to_all", given.nbytes, [given], [output])

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> _Work:
        for output, given in zip(outputs, inputs, strict=True):
            if output.shape == given.shape:
                _give(output, given)
        return self._run("all_to_all", _bytes(inputs), inputs, outputs)

    def gather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> _Work:
        for gathered, given in zip(outputs, inputs, strict=False):
            for output in gathered:
                _give(output, given)
        return self._run("gather", _bytes(inputs) * self._size, inputs, [t for g in outputs for t in g])

    def scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None
    ) -> _Work:
        for output, parts in zip(outputs, inputs, strict=False):
            _give(output, parts[self._rank])
        return self._run(
            "scatter", _bytes(outputs) * self._size, [t for parts in inputs for t in parts], outputs
        )

    def send(self, tensors: list[torch.Tensor], destination: int, tag: int = 0) -> _Work:
        return self._run("send", _bytes(tensors), tensors, [])

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> _Work:
        return self._run("recv", _bytes(tensors), [], tensors)

    def barrier(self, opts: Any = None) -> _Work:
        return self._run("all_reduce", 8, [], [])

    # -- how

    def _reduce_equal(self, output: torch.Tensor, given: torch.Tensor, opts: Any) -> None:
        """The reduction over ranks that all hold `given`."""
        if not _has_bytes(output):
            return
        op = getattr(opts, "reduceOp", _ReduceOp.SUM)
        if output.data_ptr() != given.data_ptr() if _has_bytes(given) else True:
            output.copy_(given)
        if op == _ReduceOp.SUM and output.dtype is not torch.bool:
            output.mul_(self._size)

    def _run(
        self, kind: str, payload: int, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> _Work:
        tensors = [t for t in (*inputs, *outputs) if t.device.type == "neuron"]
        results = list(outputs)
        if not tensors and (inputs or outputs):
            # of host tensors: by the hosts' network, which takes none of the device's time
            return _Work(results, None)
        index = tensors[0].device.index if tensors else _C.current_device()
        current = torch.neuron.current_stream(index)
        stream = self._streams.get(index)
        if stream is None:
            stream = self._streams[index] = torch.neuron.Stream(device=index)
        stream.wait_stream(current)
        account = getattr(_C, "account_collective", None)
        duration = self._duration(kind, payload)
        if account is not None:
            account(f"c10d::{kind}", index, stream.stream_id, duration, payload, list(inputs), results)
        else:
            _C.occupy(index, stream.stream_id, duration)
        return _Work(results, stream.record_event())

    def _duration(self, kind: str, payload: int) -> int:
        key = (kind, payload)
        if key not in self._durations:
            from opentrn.device.attach import attached

            parameters = attached().device_parameters()
            if self._span is None:
                self._span = span_of(self._members(), parameters)
            self._durations[key] = collective_ns(kind, payload, self._span, parameters)
        return self._durations[key]

    def _members(self) -> list[int]:
        """Global ranks of the group."""
        ranks = dist.distributed_c10d._world.pg_group_ranks.get(self)
        return sorted(ranks) if ranks else list(range(self._size))


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _has_bytes(tensor: torch.Tensor) -> bool:
    return tensor.device.type != "neuron" or _C.is_backed(tensor)


def _give(output: torch.Tensor, given: torch.Tensor) -> None:
    if _has_bytes(output) and output is not given:
        output.copy_(given)


def create_group(store: Any, rank: int, size: int, timeout: timedelta) -> FakeWorldGroup:
    """What c10d calls for backend "neuron"."""
    from opentrn.distributed import world
    from opentrn.errors import UnimplementedError

    if world.active() is None:
        raise UnimplementedError(
            "backend 'neuron' has no several processes yet: it plays one rank of a fake world",
            cure="use opentrn.distributed.fake_world(size) in a dry run, or backend 'gloo' with host tensors",
        )
    return FakeWorldGroup(rank, size)
