"""Turns the figures of a report into what to try next: a rule gives one sentence with its figure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from opentrn.explorer import units

if TYPE_CHECKING:
    from opentrn.explorer.summary import Summary

# Shares from which a rule speaks.
IDLE = 0.4
COPIES = 0.15
FULL = 0.9
RECOMPUTED = 0.35
UNLISTED = "unlisted"


def _host_bound(summary: Summary) -> str | None:
    idle = next((part.share for part in summary.split if part.name == "device idle"), 0.0)
    if idle < IDLE:
        return None
    return (
        f"the device is idle for {units.percent(idle)} of a step, waiting for the host to issue operators: "
        "larger batches, foreach or fused optimizers, or torch.compile give it more to do per operator"
    )


def _copies(summary: Summary) -> str | None:
    share = next((c.share for c in summary.classes if c.name == "copy"), 0.0)
    if share < COPIES:
        return None
    return (
        f"copies and layout changes take {units.percent(share)} of device time: "
        "look for .contiguous(), dtype casts and transfers inside the step"
    )


def _memory_nearly_full(summary: Summary) -> str | None:
    if summary.peak is None or summary.memory_capacity <= 0:
        return None
    share = summary.peak.allocated / summary.memory_capacity
    if share < FULL:
        return None
    largest = max(summary.peak.categories, key=summary.peak.categories.__getitem__)
    cures = {
        "activation": "activation checkpointing or a smaller batch",
        "optimizer state": "a sharded (FSDP2) or 8-bit optimizer",
        "gradient": "sharding (FSDP2) or gradients in bfloat16",
        "parameter": "sharding (FSDP2), or parameters in bfloat16",
    }
    cure = cures.get(largest, "a smaller batch")
    return f"memory is {units.percent(share)} full, the largest part {largest}: {cure} would help"


def _recomputation(summary: Summary) -> str | None:
    share = next((part.share for part in summary.split if part.name == "recomputation"), 0.0)
    room = summary.peak is not None and summary.peak.allocated < summary.memory_capacity // 2
    if share < RECOMPUTED or not room:
        return None
    return (
        f"recomputation takes {units.percent(share)} of a step while more than half of the memory is free: "
        "checkpoint fewer layers"
    )


def _unlisted_operators(summary: Summary) -> str | None:
    share = next((c.share for c in summary.classes if c.name == UNLISTED), 0.0)
    if share == 0:
        return None
    return f"operators without a cost class take {units.percent(share)} of device time, costed as pointwise"


RULES: tuple[Callable[[Summary], str | None], ...] = (
    _host_bound,
    _copies,
    _memory_nearly_full,
    _recomputation,
    _unlisted_operators,
)


def advise(summary: Summary) -> list[str]:
    """What the rules have to say, in their order."""
    return [text for rule in RULES if (text := rule(summary)) is not None]
