"""Tensors pinned to overlapping addresses: what one wrote, another overwrote, and the first reads all the
same.

Such tensors alias, as on the chip, and reuse of an address is what pinning is for: so only the mistake is an
error, a read of bytes that another tensor has written since. Extents are bounding boxes of (partition, byte);
a later write into the box ends the suspicion, so that nothing right is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from opentrn.errors import UndefinedBehaviourError
from opentrn.nki.dtypes import ITEMSIZE
from opentrn.nki.tensor import NkiTensor, Storage

Range = tuple[int, int]


@dataclass(frozen=True)
class Box:
    """Half-open ranges of partitions, and of bytes within each of them."""

    partitions: Range
    bytes: Range

    def __str__(self) -> str:
        (first, last), (start, stop) = self.partitions, self.bytes
        return f"partitions {first} to {last - 1}, bytes {start} to {stop - 1}"

    def meets(self, other: Box) -> Box | None:
        """What both cover, or None."""
        first = _common(self.partitions, other.partitions)
        second = _common(self.bytes, other.bytes)
        return Box(first, second) if first and second else None


def _common(a: Range, b: Range) -> Range | None:
    low, high = max(a[0], b[0]), min(a[1], b[1])
    return (low, high) if low < high else None


def box_of(tensor: NkiTensor) -> Box:
    """Where a view of a pinned tensor lies; the whole tensor where its offset is known at run time only."""
    storage = tensor._storage
    first, start = (int(part) for part in storage.address)
    size = ITEMSIZE[tensor.dtype]
    width = storage.partition_bytes // size
    if type(tensor.offset) is not int or tensor.indirection is not None or not width:
        return Box((first, first + storage.partitions), (start, start + storage.partition_bytes))
    row, column = divmod(tensor.offset, width)
    rows = row + (tensor._counts[0] - 1) * (tensor._steps[0] // width) + 1
    reach = sum((n - 1) * step for n, step in zip(tensor._counts[1:], tensor._steps[1:], strict=True))
    return Box(
        (first + row, first + rows), (start + column * size, start + (column + max(reach, 0) + 1) * size)
    )


def _name(storage: Storage) -> str:
    """Its name in the program: one that says where it was made if the user gave it none."""
    return storage.program_name or storage.name


class PinnedTensors:
    """Follows the pinned tensors of one kernel; told of every read and write of them, in program order."""

    def __init__(self) -> None:
        self._written: dict[Storage, list[Box]] = {}
        # Tensor → what another one has written over it: where, which, and on which line.
        self._lost: dict[Storage, list[tuple[Box, Storage, str]]] = {}

    def write(self, tensor: NkiTensor, core: int, where: str) -> None:
        storage, box = tensor._storage, box_of(tensor)
        if storage in self._lost:
            self._lost[storage] = [entry for entry in self._lost[storage] if not entry[0].meets(box)]
        for other, boxes in self._written.items():
            if other is storage or other.buffer is not storage.buffer or other.core != core:
                continue
            for earlier in boxes:
                lost = earlier.meets(box)
                if lost is not None:
                    self._lost.setdefault(other, []).append((lost, storage, where))
        storage.core = core
        boxes = self._written.setdefault(storage, [])
        if box not in boxes:
            boxes.append(box)

    def read(self, tensor: NkiTensor, where: str) -> None:
        """Raises UndefinedBehaviourError where another tensor has written over what is read."""
        entries = self._lost.get(tensor._storage)
        if not entries:
            return
        box = box_of(tensor)
        for lost, by, line in entries:
            common = lost.meets(box)
            if common is not None:
                raise UndefinedBehaviourError(
                    f"{_name(tensor._storage)!r} is read where {_name(by)!r}, pinned over it, has written "
                    f"since ({common}; written at {line})",
                    where=where,
                    cure=f"place them apart, or read {_name(by)!r} where that is meant",
                )
