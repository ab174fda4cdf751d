"""`nki.collectives`: exchange between ranks, and the rank's place in a ring."""

from __future__ import annotations

from typing import Any

from opentrn.errors import UnsupportedError
from opentrn.nki.isa_common import reduction_name
from opentrn.nki.newer import keep_apart as _keep_apart
from opentrn.nki.tensor import NKIObject
from opentrn.nki.tracing import active


class ReplicaGroup(NKIObject):
    """Groups of ranks that take part; no rank in two groups."""

    def __init__(self, replica_groups: Any) -> None:
        self.groups = [[int(rank) for rank in group] for group in replica_groups]
        ranks = [rank for group in self.groups for rank in group]
        if len(set(ranks)) != len(ranks):
            raise UnsupportedError(f"ReplicaGroup({self.groups}): a rank is in more than one group")

    def of(self, rank: int) -> list[int]:
        """The group of a rank. Raises UnsupportedError if it is in none."""
        for group in self.groups:
            if rank in group:
                return group
        raise UnsupportedError(f"rank {rank} is in no group of {self.groups}")


def _groups(replica_group: Any) -> list[list[int]]:
    return (
        replica_group.groups
        if isinstance(replica_group, ReplicaGroup)
        else ReplicaGroup(replica_group).groups
    )


def _emit(name: str, srcs: Any, dsts: Any, **attributes: Any) -> None:
    t = active()
    t.locate()
    t.emit(
        name,
        srcs=[t.read(source) for source in srcs],
        dsts=[t.write(target) for target in dsts],
        **attributes,
    )


def all_gather(srcs: Any, dsts: Any, replica_group: Any, collective_dim: int) -> None:
    """Concatenate the tensors of all ranks."""
    _emit("all_gather", srcs, dsts, replica_group=_groups(replica_group), collective_dim=int(collective_dim))


def all_gather_v(srcs: Any, dsts: Any, replica_group: Any, collective_dim: int, **sizes: Any) -> None:
    """Concatenate tensors of different sizes (NKI 0.6.0)."""
    _emit(
        "all_gather",
        srcs,
        dsts,
        replica_group=_groups(replica_group),
        collective_dim=int(collective_dim),
        **sizes,
    )


def all_reduce(srcs: Any, dsts: Any, replica_group: Any, op: Any) -> None:
    """Reduce over the ranks."""
    _emit("all_reduce", srcs, dsts, replica_group=_groups(replica_group), op=reduction_name(op))


def reduce_scatter(srcs: Any, dsts: Any, replica_group: Any, collective_dim: int, op: Any) -> None:
    """Reduce over the ranks, each keeps its part."""
    _emit(
        "reduce_scatter",
        srcs,
        dsts,
        replica_group=_groups(replica_group),
        collective_dim=int(collective_dim),
        op=reduction_name(op),
    )


def all_to_all(srcs: Any, dsts: Any, replica_group: Any, collective_dim: int) -> None:
    """Each rank sends a part to each rank."""
    _emit("all_to_all", srcs, dsts, replica_group=_groups(replica_group), collective_dim=int(collective_dim))


def all_to_all_v(
    srcs: Any,
    dsts: Any,
    replica_group: Any,
    metadata_tensor: Any,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
) -> None:
    """All-to-all with counts and displacements read from a tensor."""
    t = active()
    _emit(
        "all_to_all_v",
        srcs,
        dsts,
        replica_group=_groups(replica_group),
        metadata=t.read(metadata_tensor),
        recv_counts_known=bool(recv_counts_known),
        has_rdispls=bool(has_rdispls),
    )


def collective_permute(srcs: Any, dsts: Any, source_target_pairs: Any) -> None:
    """Send along explicit pairs of ranks."""
    _emit(
        "collective_permute",
        srcs,
        dsts,
        source_target_pairs=[[int(a), int(b)] for a, b in source_target_pairs],
    )


def _ring_pairs(replica_group: Any) -> list[list[int]]:
    return [
        [group[place], group[(place + 1) % len(group)]]
        for group in _groups(replica_group)
        for place in range(len(group))
    ]


def collective_permute_implicit(
    srcs_by_channel: Any, dsts_by_channel: Any, replica_group: Any, channel_ids: Any = (0,)
) -> None:
    """Send to the successor in the ring of the group, on each channel."""
    pairs = _ring_pairs(replica_group)
    for sources, targets in zip(srcs_by_channel, dsts_by_channel, strict=True):
        _emit("collective_permute", sources, targets, source_target_pairs=pairs)


def collective_permute_implicit_reduce(
    srcs0_by_channel: Any,
    srcs1_by_channel: Any,
    dsts_by_channel: Any,
    replica_group: Any,
    op: Any,
    channel_ids: Any = (0,),
) -> None:
    """Reduce two sources and send the result to the successor in the ring."""
    from opentrn.nki import language_ops

    t = active()
    pairs = _ring_pairs(replica_group)
    for left, right, targets in zip(srcs0_by_channel, srcs1_by_channel, dsts_by_channel, strict=True):
        sums = []
        for first, second in zip(left, right, strict=True):
            scratch = language_ops.ndarray(first.shape, first.dtype, first.buffer, "ring_reduce")
            t.emit(
                "dma_compute",
                dst=t.write(scratch),
                srcs=[t.read(first), t.read(second)],
                reduce_op=reduction_name(op),
                scales=None,
                unique_indices=True,
                oob_mode="error",
                name=None,
            )
            sums.append(scratch)
        _emit("collective_permute", sums, targets, source_target_pairs=pairs)


def collective_permute_implicit_current_processing_rank_id(
    iteration_id: int, replica_group: Any, channel_id: int = 0
) -> int:
    """Whose data step `iteration_id` of the ring processes: known, since each rank is traced for itself."""
    tracer = active()
    group = ReplicaGroup(_groups(replica_group)).of(tracer.rank)
    return group[(group.index(tracer.rank) - int(iteration_id)) % len(group)]


def rank_id() -> int:
    """The rank that this kernel runs on."""
    return active().rank


__all__ = [
    "ReplicaGroup",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "collective_permute",
    "collective_permute_implicit",
    "collective_permute_implicit_current_processing_rank_id",
    "collective_permute_implicit_reduce",
    "rank_id",
    "reduce_scatter",
]
__getattr__ = _keep_apart("nki.collectives", globals())
