"""Device memory: statistics, summary, snapshots in PyTorch's memory-visualiser format.

Counters are bytes of virtual HBM. reserved ≥ allocated ≥ active (here allocated = active: a freed block is
reusable at once, for streams order virtual time and values are ready when an operator returns).
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

from opentrn.device import _C, absent, memory_log
from opentrn.device.index import resolve

# The reader's name in the allocation log, and by device what it has read, as the visualiser's records.
_HISTORY = "memory history"
_history: dict[int, deque[dict[str, Any]]] = {}


# CUDA's allocator counts blocks above a limit of splitting. Here, as by default there, no limit is set, so
# that no block is above it; and freeing needs no wait for streams.
_UNLIMITED = {
    "max_split_size": -1,
    "num_sync_all_streams": 0,
    **{
        f"{what}.{kind}": 0
        for what in ("oversize_allocations", "oversize_segments")
        for kind in ("current", "peak", "allocated", "freed")
    },
}


def __getattr__(name: str) -> Any:
    absent.refuse("torch.neuron.memory", name)


def memory_stats(device: Any = None) -> dict[str, Any]:
    """Flat statistics with the key names of torch.cuda.memory_stats; zeros before the first use."""
    if not _C.is_attached():
        return {}
    stats = _C.memory_stats(resolve(device, optional=True))
    stats.update(_UNLIMITED, num_device_alloc=stats["segment.all.allocated"])
    stats["num_device_free"] = stats["segment.all.freed"]
    return dict(sorted(stats.items()))


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in memory_stats(device).items():
        *path, last = key.split(".")
        level = nested
        for part in path:
            level = level.setdefault(part, {})
        level[last] = value
    return nested


def _stat(key: str, device: Any) -> int:
    return memory_stats(device).get(key, 0)


def memory_allocated(device: Any = None) -> int:
    """Bytes of the blocks that tensors hold."""
    return _stat("allocated_bytes.all.current", device)


def max_memory_allocated(device: Any = None) -> int:
    return _stat("allocated_bytes.all.peak", device)


def memory_reserved(device: Any = None) -> int:
    """Bytes of the segments held from the runtime."""
    return _stat("reserved_bytes.all.current", device)


def max_memory_reserved(device: Any = None) -> int:
    return _stat("reserved_bytes.all.peak", device)


def get_allocator_backend() -> str:
    return "opentrn"


def device_memory_used(device: Any = None) -> int:
    """Bytes that this process holds of the device: its segments."""
    return memory_reserved(device)


def host_memory_stats() -> dict[str, Any]:
    """Pinned memory is ordinary host memory here; there is no cache of it to count."""
    return {}


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    return {}


def reset_accumulated_host_memory_stats() -> None:
    """Nothing to reset: pinned memory is not cached."""


def reset_peak_host_memory_stats() -> None:
    """Nothing to reset: pinned memory is not cached."""


def reset_peak_memory_stats(device: Any = None) -> None:
    if _C.is_attached():
        _C.reset_peak_memory_stats(resolve(device, optional=True))


def reset_max_memory_allocated(device: Any = None) -> None:
    """The old name of reset_peak_memory_stats."""
    reset_peak_memory_stats(device)


def reset_accumulated_memory_stats(device: Any = None) -> None:
    if _C.is_attached():
        _C.reset_accumulated_memory_stats(resolve(device, optional=True))


def empty_cache() -> None:
    """Gives segments without live blocks back, on every device."""
    if _C.is_attached():
        for index in range(_C.device_count()):
            _C.empty_cache(index)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of the logical core's HBM share, reserved segments being not free."""
    index = resolve(device, optional=True)
    capacity = _C.memory_capacity(index)
    return max(capacity - _C.memory_stats(index)["reserved_bytes.all.current"], 0), capacity


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Allocations beyond this share of the device's memory raise torch.OutOfMemoryError."""
    if not isinstance(fraction, float):
        raise TypeError("opentrn: the memory fraction must be a float")
    if not 0 <= fraction <= 1:
        raise ValueError(f"opentrn: the memory fraction must lie between 0 and 1, not {fraction}")
    _C.set_memory_fraction(resolve(device, optional=True), fraction)


def get_per_process_memory_fraction(device: Any = None) -> float:
    index = resolve(device, optional=True)
    return _C.memory_limit(index) / _C.memory_capacity(index)


# Share of the device's memory that stands for no limit.
_NO_LIMIT = 1e4


@contextlib.contextmanager
def without_limit() -> Iterator[None]:
    """Allocations beyond the capacity succeed inside, on every device: to learn by how much a program does
    not fit. Its capacity is reported as ever."""
    devices = range(_C.device_count())
    for index in devices:
        _C.set_memory_fraction(index, _NO_LIMIT)
    try:
        yield
    finally:
        for index in devices:
            _C.set_memory_fraction(index, 1.0)


_SUMMARY_ROWS = (
    ("Allocated memory", "allocated_bytes", True),
    ("Active memory", "active_bytes", True),
    ("Requested memory", "requested_bytes", True),
    ("Reserved memory", "reserved_bytes", True),
    ("Inactive split memory", "inactive_split_bytes", True),
    ("Allocations", "allocation", False),
    ("Active allocations", "active", False),
    ("Segments", "segment", False),
    ("Inactive splits", "inactive_split", False),
)


def _format(value: int, is_bytes: bool) -> str:
    if not is_bytes:
        return str(value)
    scaled = float(value)
    for unit in ("B  ", "KiB", "MiB", "GiB"):
        if abs(scaled) < 1024 or unit == "GiB":
            return f"{scaled:.0f} {unit}" if unit == "B  " else f"{scaled:.1f} {unit}"
        scaled /= 1024
    raise AssertionError


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """A table of the statistics, as torch.cuda.memory_summary has it. The figures are the allocator's own
    counts."""
    index = resolve(device, optional=True)
    stats = _C.memory_stats(index)
    line = "|" + "=" * 91 + "|"
    out = [
        line,
        "|" + f"opentrn memory summary, device neuron:{index}".center(91) + "|",
        "|"
        + f"out-of-memory errors: {stats['num_ooms']}   retries: {stats['num_alloc_retries']}".center(91)
        + "|",
        line,
        f"| {'Metric':<29} | {'Current':>12} | {'Peak':>12} | {'Allocated':>12} | {'Freed':>12} |",
        line,
    ]
    pools = (
        (("all", ""),)
        if abbreviated
        else (("all", ""), ("large_pool", "  from large pool"), ("small_pool", "  from small pool"))
    )
    for title, key, is_bytes in _SUMMARY_ROWS:
        for pool, label in pools:
            cells = (
                _format(stats[f"{key}.{pool}.{kind}"], is_bytes)
                for kind in ("current", "peak", "allocated", "freed")
            )
            out.append(f"| {label or title:<29} | " + " | ".join(f"{cell:>12}" for cell in cells) + " |")
    out.append(line)
    return "\n".join(out) + "\n"


# ---- Snapshots ---------------------------------------------------------------------------------------------


def _record_memory_history(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: Any = None,
    clear_history: bool = False,
    **ignored: Any,
) -> None:
    """Starts (or with None stops) recording allocations and the Python frame of each, for snapshots and OOM
    messages. The last `max_entries` events are kept; of `context` and `stacks` there is one kind.
    """
    index = resolve(device, optional=True)
    _C.record_frames(enabled is not None)
    if enabled is None:
        memory_log.drain(_HISTORY, index, stop=True)
        _history.pop(index, None)
        return
    memory_log.start(_HISTORY, index)
    before = () if clear_history else _history.get(index, ())
    _history[index] = deque(before, maxlen=min(max_entries, 1 << 31))


def _frames(text: str) -> list[dict[str, Any]]:
    """ "file.py:12 function" → the visualiser's frame records."""
    if not text:
        return []
    place, _, function = text.rpartition(" ")
    filename, _, line = place.rpartition(":")
    return [{"filename": filename, "line": int(line or 0), "name": function}]


def _segments(index: int) -> list[dict[str, Any]]:
    segments = _C.memory_snapshot(index)
    for segment in segments:
        blocks = segment["blocks"]
        for block in blocks:
            block["frames"] = _frames(block["frame"])
        held = [block for block in blocks if block["state"] == "active_allocated"]
        segment["allocated_size"] = segment["active_size"] = sum(block["size"] for block in held)
        segment["requested_size"] = sum(block["requested_size"] for block in held)
        segment.update(stream=0, frames=[], segment_pool_id=(0, 0), is_expandable=False)
    return segments


def _traces(index: int) -> list[dict[str, Any]]:
    from opentrn.device._C import trace_names

    history = _history.get(index)
    if history is None:
        return []
    log = memory_log.drain(_HISTORY, index)
    if log is None:
        return list(history)
    names = trace_names()["frames"]
    action = {0: "alloc", 1: "free_completed"}
    for i in range(len(log["time"])):
        event = int(log["event"][i])
        if event not in action:
            continue
        frame = int(log["frame"][i])
        history.append(
            {
                "action": action[event],
                "addr": int(log["address"][i]),
                "size": int(log["size"][i]),
                "stream": 0,
                "time_us": int(log["time"][i]) // 1000,
                "frames": _frames(names[frame]) if frame >= 0 else [],
            }
        )
    return list(history)


def _snapshot(device: Any = None) -> dict[str, Any]:
    """Every segment and block, and the recorded allocations, in the schema of torch.cuda.memory._snapshot."""
    count = _C.device_count()
    return {
        "segments": [segment for index in range(count) for segment in _segments(index)],
        "device_traces": [_traces(index) for index in range(count)],
        "allocator_settings": {"backend": "opentrn segment allocator (virtual addresses)"},
    }


def memory_snapshot(device: Any = None) -> list[dict[str, Any]]:
    return _snapshot(device)["segments"]


def _dump_snapshot(filename: str = "dump_snapshot.pickle") -> None:
    """Writes a snapshot that pytorch.org/memory_viz opens."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)
