"""Several processes: values are exchanged through Gloo on host memory, in place on the bytes of device
tensors.

Collectives block until the values are there, as a tensor's bytes must be right for the next operator; their
virtual time does not depend on that. Sends and receives do not block, for either side may come first.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from opentrn.distributed.exchange import ReduceOp, Tensors, host_memory
from opentrn.errors import UnsupportedError

# Gloo's own reductions; an average is a sum that is divided afterwards.
_GLOO_REDUCTIONS = (
    ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR,
)  # fmt: skip


class GlooRanks:
    """The members of one group, each a process of its own. `store`: a c10d store that all of them reach."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self._rank, self._size = rank, size
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        self._sent: list[_Sent] = []

    def all_reduce(self, tensor: torch.Tensor, op: Any) -> None:
        options = dist.AllreduceOptions()
        average = bool(op == ReduceOp.AVG)
        if not average and not any(op == known for known in _GLOO_REDUCTIONS):
            raise UnsupportedError(
                f"the reduction {op} has no counterpart on the host",
                cure="scale the tensor, then reduce with SUM",
            )
        options.reduceOp = ReduceOp.SUM if average else op  # type: ignore[assignment]
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        if real.numel():
            self._gloo.allreduce([real], options).wait()
        if average:
            # As NCCL: the average of integers is a floor division of the sum.
            real.div_(self._size, rounding_mode=None if real.is_floating_point() else "floor")

    def reduce(self, tensor: torch.Tensor, op: Any, root: int) -> None:
        # Gloo's own reduce leaves partial sums behind on the other ranks; CUDA leaves their tensors as they
        # were.
        self.all_reduce(tensor if self._rank == root else tensor.clone(), op)

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = root
        self._gloo.broadcast([tensor], options).wait()

    def all_gather(self, outputs: Tensors, given: torch.Tensor) -> None:
        if all(output.shape == given.shape for output in outputs):
            self._gloo.allgather([list(outputs)], [given]).wait()
            return
        # Each rank's part may have a size of its own, which Gloo's all-gather lacks.
        outputs[self._rank].copy_(given)
        for rank, output in enumerate(outputs):
            self.broadcast(output, rank)

    def reduce_scatter(self, output: torch.Tensor, parts: Tensors, op: Any) -> None:
        sums = torch.cat([part.reshape(-1) for part in parts])
        self.all_reduce(sums, op)
        own = sums.split([part.numel() for part in parts])[self._rank]
        output.copy_(own.view(output.shape))

    def all_to_all(self, outputs: Tensors, inputs: Tensors) -> None:
        sizes = [output.numel() for output in outputs]
        flat = torch.cat([given.reshape(-1) for given in inputs])
        received = flat.new_empty(sum(sizes))
        self._gloo.alltoall_base(received, flat, sizes, [given.numel() for given in inputs]).wait()
        for output, part in zip(outputs, received.split(sizes), strict=True):
            output.copy_(part.view(output.shape))

    def gather(self, outputs: Tensors, given: torch.Tensor, root: int) -> None:
        options = dist.GatherOptions()
        options.rootRank = root
        self._gloo.gather([list(outputs)] if self._rank == root else [], [given], options).wait()

    def scatter(self, output: torch.Tensor, parts: Tensors, root: int) -> None:
        options = dist.ScatterOptions()
        options.rootRank = root
        self._gloo.scatter([output], [list(parts)] if self._rank == root else [], options).wait()

    def send(self, tensor: torch.Tensor, to: int, tag: int, leaves: int) -> _Sent:
        self._sent = [sent for sent in self._sent if not sent.done()]  # they own what is being read
        self._sent.append(_Sent(self._gloo, tensor, to, tag, leaves))
        return self._sent[-1]

    def receive(self, tensor: torch.Tensor, source: int | None, tag: int) -> _Received:
        return _Received(self._gloo, tensor, source, tag)

    def barrier(self) -> None:
        self._gloo.barrier(dist.BarrierOptions()).wait()

    def latest(self, ready: int) -> int:
        time = torch.tensor([ready])
        self.all_reduce(time, ReduceOp.MAX)
        return int(time)


# A message and the virtual time at which it leaves travel under neighbouring tags.
def _tags(tag: int) -> tuple[int, int]:
    return 2 * tag, 2 * tag + 1


class _Sent:
    def __init__(self, gloo: Any, tensor: torch.Tensor, to: int, tag: int, leaves: int) -> None:
        value_tag, time_tag = _tags(tag)
        with host_memory([tensor], written=False) as (host,):
            self._value = host.clone()  # the sender may overwrite the tensor as soon as its stream allows
        self._time = torch.tensor([leaves])
        self._works = [gloo.send([self._value], to, value_tag), gloo.send([self._time], to, time_tag)]

    def wait(self) -> int:
        self._works[
            0
        ].wait()  # the time is taken when the receiver waits, which may be after this sender receives
        return 0

    def done(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def source(self) -> int:
        return -1


# Where the source is not known before the value has come, its time cannot be asked for.
_NOT_YET: Any = None


class _Received:
    def __init__(self, gloo: Any, tensor: torch.Tensor, source: int | None, tag: int) -> None:
        value_tag, self._time_tag = _tags(tag)
        self._gloo, self._tensor, self._left = gloo, tensor, -1
        self._value = torch.empty(tensor.shape, dtype=tensor.dtype)
        self._time = torch.empty(1, dtype=torch.int64)
        self._source = source
        if source is None:
            self._work, self._time_work = gloo.recv_anysource([self._value], value_tag), _NOT_YET
        else:
            self._work = gloo.recv([self._value], source, value_tag)
            self._time_work = gloo.recv([self._time], source, self._time_tag)

    def wait(self) -> int:
        if self._left < 0:
            self._work.wait()
            if self._source is None:
                self._source = self._work._source_rank()
                self._time_work = self._gloo.recv([self._time], self._source, self._time_tag)
            with host_memory([self._tensor], written=True) as (host,):
                host.copy_(self._value)
            self._time_work.wait()
            self._left = int(self._time)
        return self._left

    def done(self) -> bool:
        return self._left >= 0 or self._work.is_completed()

    def source(self) -> int:
        self.wait()
        assert self._source is not None
        return self._source
