"""The c10d process group of backend "neuron": values come from an exchange (exchange.py), time from the model
of the network (cost.py), on a stream of the group's own.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from opentrn.device import _C
from opentrn.distributed.cost import collective_ns, span_of
from opentrn.distributed.exchange import (
    EqualRanks,
    Exchange,
    ReduceOp,
    Tensors,
    Transfer,
    has_bytes,
    host_memory,
)

BACKEND = "neuron"
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
            torch.accelerator.current_stream(self._event.device).wait_event(self._event)
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


class _TransferWork(_Work):
    """A send or a receive; a received tensor is there no earlier than it left its sender."""

    def __init__(
        self, results: list[torch.Tensor], event: torch.Event | None, transfer: Transfer, duration: int
    ) -> None:
        super().__init__(results, event)
        self._transfer, self._duration = transfer, duration

    def wait(self, timeout: timedelta | None = None) -> bool:
        left = self._transfer.wait()
        super().wait(timeout)
        if left and self._event is not None:
            stream = torch.neuron.current_stream(self._event.device)
            _C.stream_wait_until(stream.device_index, stream.stream_id, left + self._duration)
        return True

    def is_completed(self) -> bool:
        return self._transfer.done()

    def _source_rank(self) -> int:
        return self._transfer.source()


class NeuronGroup(_ProcessGroup):
    """A group of `size` ranks of which this process is `rank`; `exchange` brings the others' values."""

    def __init__(self, rank: int, size: int, exchange: Exchange) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._exchange = rank, size, exchange
        self._streams: dict[int, Any] = {}
        self._durations: dict[tuple[str, int], int] = {}
        self._span: Any = None

    # -- what c10d asks of a group, and of its backend for one device, which is the group itself

    supports_splitting = supports_coalescing = supports_tensor_alloc = False

    def _get_backend(self, device: torch.device) -> NeuronGroup:
        return self

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

    # -- collectives: `given` and `results` are host tensors over the bytes of inputs and outputs

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> _Work:
        def values(given: Tensors, results: Tensors) -> None:
            for result in results:
                self._exchange.all_reduce(result, _reduction(opts))

        return self._run("all_reduce", _bytes(tensors), [], tensors, values)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> _Work:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any = None) -> _Work:
        def values(given: Tensors, results: Tensors) -> None:
            for result in results:
                self._exchange.reduce(result, _reduction(opts), _root(opts))

        return self._run("reduce", _bytes(tensors), [], tensors, values)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> _Work:
        def values(given: Tensors, results: Tensors) -> None:
            for result in results:
                self._exchange.broadcast(result, _root(opts))

        return self._run("broadcast", _bytes(tensors), [], tensors, values)

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> _Work:
        def values(given: Tensors, results: Tensors) -> None:
            for number, tensor in enumerate(given):
                self._exchange.all_gather(results[number * self._size : (number + 1) * self._size], tensor)

        flat = [tensor for gathered in outputs for tensor in gathered]
        return self._run("all_gather", _bytes(flat), inputs, flat, values)

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> _Work:
        return self.all_gather_single_coalesced([output], [given], opts)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> _Work:
        def values(given: Tensors, results: Tensors) -> None:
            for result, tensor in zip(results, given, strict=True):
                self._exchange.all_gather(self._split(result.view(-1)), tensor.view(-1))

        return self._run("all_gather", _bytes(outputs), inputs, outputs, values)

    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None
    ) -> _Work:
        def values(given: Tensors, results: Tensors) -> None:
            for number, result in enumerate(results):
                parts = given[number * self._size : (number + 1) * self._size]
                self._exchange.reduce_scatter(result, parts, _reduction(opts))

        flat = [tensor for parts in inputs for tensor in parts]
        return self._run("reduce_scatter", _bytes(flat), flat, outputs, values)

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> _Work:
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> _Work:
        def values(given: Tensors, results: Tensors) -> None:
            for result, tensor in zip(results, given, strict=True):
                self._exchange.reduce_scatter(result.view(-1), self._split(tensor.view(-1)), _reduction(opts))

        return self._run("reduce_scatter", _bytes(inputs), inputs, outputs, values)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_split_sizes: list[int] | None = None,
        input_split_sizes: list[int] | None = None,
        opts: Any = None,
    ) -> _Work:
        def values(given: Tensors, results: Tensors) -> None:
            self._exchange.all_to_all(
                self._split(results[0], output_split_sizes), self._split(given[0], input_split_sizes)
            )

        return self._run("all_to_all", given.nbytes, [given], [output], values)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> _Work:
        def values(given: Tensors, results: Tensors) -> None:
            self._exchange.all_to_all(results, given)

        return self._run("all_to_all", _bytes(inputs), inputs, outputs, values)

    def gather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> _Work:
        def values(given: Tensors, results: Tensors) -> None:
            self._exchange.gather(results, given[0], _root(opts))

        flat = [tensor for gathered in outputs for tensor in gathered]
        return self._run("gather", _bytes(inputs) * self._size, inputs, flat, values)

    def scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None
    ) -> _Work:
        def values(given: Tensors, results: Tensors) -> None:
            self._exchange.scatter(results[0], given, _root(opts))

        flat = [tensor for parts in inputs for tensor in parts]
        return self._run("scatter", _bytes(outputs) * self._size, flat, outputs, values)

    def barrier(self, opts: Any = None) -> _Work:
        return self._run("all_reduce", 8, [], [], lambda given, results: self._exchange.barrier())

    # -- point to point

    def send(self, tensors: list[torch.Tensor], destination: int, tag: int = 0) -> _Work:
        event, leaves, duration = self._account("send", _bytes(tensors), tensors, [])
        transfer = None
        if has_bytes(tensors[0]):
            transfer = self._exchange.send(tensors[0], destination, tag, leaves - duration)
        return _Work([], event) if transfer is None else _TransferWork([], event, transfer, duration)

    def recv(self, tensors: list[torch.Tensor], source: int | None, tag: int = 0) -> _Work:
        transfer = self._exchange.receive(tensors[0], source, tag) if has_bytes(tensors[0]) else None
        event, _, duration = self._account("recv", _bytes(tensors), [], tensors)
        return (
            _Work(tensors, event) if transfer is None else _TransferWork(tensors, event, transfer, duration)
        )

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> _Work:
        return self.recv(tensors, None, tag)

    # -- how

    def _run(
        self,
        kind: str,
        payload: int,
        inputs: Tensors,
        outputs: Tensors,
        values: Callable[[Tensors, Tensors], None],
    ) -> _Work:
        """Exchanges values, then puts the collective on the clock: no member's begins before the last
        arrives.
        """
        if all(map(has_bytes, (*inputs, *outputs))):
            with host_memory(inputs, written=False) as given, host_memory(outputs, written=True) as results:
                values(given, results)
        event, _, _ = self._account(kind, payload, inputs, outputs, together=True)
        return _Work(list(outputs), event)

    def _account(
        self, kind: str, payload: int, inputs: Tensors, outputs: Tensors, together: bool = False
    ) -> tuple[torch.Event | None, int, int]:
        """(event at its end, end in ns of virtual time, duration in ns) of an operation on the group's
        stream.
        """
        tensors = [t for t in (*inputs, *outputs) if t.device.type == "neuron"]
        if not tensors and (inputs or outputs):
            return None, 0, 0  # host tensors go by the hosts' network, which takes none of the device's time
        index = tensors[0].device.index if tensors else _C.current_device()
        stream = self._streams.get(index)
        if stream is None:
            stream = self._streams[index] = torch.neuron.Stream(device=index)
        stream.wait_stream(torch.neuron.current_stream(index))
        if together:
            ready = max(_C.stream_time(index, stream.stream_id), _C.host_time())
            _C.stream_wait_until(index, stream.stream_id, self._exchange.latest(ready))
        duration = self._duration(kind, payload)
        _C.account_collective(
            f"c10d::{kind}", index, stream.stream_id, duration, payload, list(inputs), list(outputs)
        )
        return stream.record_event(), _C.stream_time(index, stream.stream_id), duration

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

    def _split(self, tensor: torch.Tensor, sizes: list[int] | None = None) -> list[torch.Tensor]:
        """One part per rank: of these sizes along the first dimension, or equal ones."""
        return list(tensor.split(sizes) if sizes else tensor.tensor_split(self._size))


def _bytes(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _reduction(options: Any) -> Any:
    return getattr(options, "reduceOp", ReduceOp.SUM)


def _root(options: Any) -> int:
    return getattr(options, "rootRank", 0)


def create_group(store: Any, rank: int, size: int, timeout: timedelta) -> NeuronGroup:
    """What c10d calls for backend "neuron"."""
    from opentrn.distributed import world
    from opentrn.distributed.gloo import GlooRanks

    torch.neuron.init()
    fake = world.active() is not None
    return NeuronGroup(rank, size, EqualRanks(rank, size) if fake else GlooRanks(store, rank, size, timeout))
