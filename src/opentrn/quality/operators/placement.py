"""One sample put on one side of the comparison.

`.to(device)` makes a strided view dense and parts tensors that share memory, so a sample is moved by its
storages instead: sizes, strides, storage offsets, conjugate and negative bits, and which arguments
alias each other are the same on both sides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from opentrn.errors import ConfigurationError
from opentrn.quality.operators import faults


@dataclass(frozen=True)
class Side:
    """Where an operator runs, and under which conditions.

    device: a PyTorch device string.
    dry: under a dry run of the device (shapes only); the caller compares no values then.
    shift: elements by which each tensor's data is moved in its storage, to change its alignment.
    poison: byte written over freed host memory before a run, to expose results that were never written.
    seed: seeds the random generators before a run, if given.
    fault: a deliberate defect (faults.py), for controls.
    """

    device: str
    dry: bool = False
    shift: int = 0
    poison: int | None = None
    seed: int | None = None
    fault: str | None = None

    @property
    def device_type(self) -> str:
        return self.device.split(":")[0]

    def with_seed(self, seed: int) -> Side:
        return replace(self, seed=seed)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        if self.poison is not None:
            poison_free_memory(self.poison)
        with contextlib.ExitStack() as stack:
            if self.seed is not None:
                stack.enter_context(_seeded(self.seed))
            if self.dry:
                stack.enter_context(_dry_run())
            if self.fault is not None:
                stack.enter_context(faults.FaultyDevice(self.fault))
            yield

    @property
    def is_plain(self) -> bool:
        """Nothing to set up around a run; spares the context manager's microseconds."""
        return not self.dry and self.poison is None and self.seed is None and self.fault is None


def parse_side(text: str, *, dry: bool = False) -> Side:
    """`--device`: "neuron", "neuron:1", "cpu", "cpu-shifted" or "broken:FAULT" → the side under test."""
    if text == "cpu-shifted":
        return Side("cpu", shift=1, poison=0xA5)
    if text.startswith("broken:"):
        return Side("cpu", fault=faults.check_name(text.removeprefix("broken:")))
    try:
        torch.empty(0, device=text)
    except Exception as error:
        raise ConfigurationError(
            f"no device {text!r}: {str(error).splitlines()[0]}",
            cure="give neuron, or one of the controls cpu, cpu-shifted, broken:FAULT",
        ) from error
    return Side(text, dry=dry)


# The limits of a plain dry run, in bytes (csrc/device/dry.cpp).
_FLOAT_LIMIT, _INTEGER_LIMIT = 64 << 10, 8 << 20


@contextlib.contextmanager
def _dry_run() -> Iterator[None]:
    from opentrn.device import _C  # type: ignore[attr-defined]

    # No float has bytes, however small, or the small samples of the database would simply run.
    _C.set_backing_limits(0, _INTEGER_LIMIT)
    previous = _C.set_dry(True)
    try:
        yield
    finally:
        _C.set_dry(previous)
        _C.set_backing_limits(_FLOAT_LIMIT, _INTEGER_LIMIT)


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds the generators, and shifts the seeds that random entries of the database set for themselves."""
    original = torch.manual_seed
    original(seed)
    torch.manual_seed = lambda given: original(given + seed)  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        torch.manual_seed = original


def poison_free_memory(byte: int) -> None:
    """Leaves `byte` in the blocks that the host's allocator will hand out next."""
    blocks = [
        torch.empty(size, dtype=torch.uint8).fill_(byte)
        for size in (64, 128, 256, 512, 1024, 2048, 4096, 16384, 65536)
        for _ in range(6)
    ]
    del blocks


@dataclass
class Placed:
    """A sample's arguments on one side. `tensors` are all of them, in argument order."""

    input: Any = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    tensors: list[torch.Tensor] = field(default_factory=list)
    mover: Mover = field(default=None)  # type: ignore[assignment]

    @property
    def floats_free(self) -> bool:
        """Neither a tensor nor a device among the arguments: a factory that follows the default device."""
        return not self.mover.names_device and not self.mover.tensors


class Mover:
    """Moves values to one side; remembers storages, so that what was shared stays shared."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.tensors: list[torch.Tensor] = []
        self._storages: dict[int, torch.UntypedStorage] = {}
        # Sources are kept: an identity is unique only while its object lives.
        self._by_identity: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.names_device = False

    def move(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, tuple | list):
            moved = [self.move(item) for item in value]
            if isinstance(value, list):
                return moved
            return type(value)(*moved) if hasattr(value, "_fields") else tuple(moved)
        if isinstance(value, dict):
            return {key: self.move(item) for key, item in value.items()}
        if isinstance(value, torch.device) and value.type == "cpu":
            self.names_device = True
            return torch.device(self.side.device)
        if isinstance(value, str) and value == "cpu":
            self.names_device = True
            return self.side.device
        return value

    def tensor(self, source: torch.Tensor) -> torch.Tensor:
        found = self._by_identity.get(id(source))
        if found is not None:
            return found[1]
        plain = source.detach() if source.requires_grad else source
        if plain.layout == torch.strided:
            moved = self._strided(plain)
        else:
            moved = plain.to(self.side.device, copy=True)
        if source.requires_grad:
            moved.requires_grad_(True)
        self._by_identity[id(source)] = source, moved
        self.tensors.append(moved)
        return moved

    def _strided(self, source: torch.Tensor) -> torch.Tensor:
        side, storage = self.side, source.untyped_storage()
        key = storage._cdata
        moved_storage = self._storages.get(key)
        shifted = side.shift * source.element_size()
        if moved_storage is None:
            whole = storage.nbytes() == source.numel() * source.element_size()
            if whole and not shifted and source.is_contiguous() and not (source.is_conj() or source.is_neg()):
                moved = source.to(side.device, copy=True)
                self._storages[key] = moved.untyped_storage()
                return moved
            # A factory without a device follows the default device, which a form may have set.
            data = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
            if shifted:
                data = torch.cat([data.new_zeros(shifted), data])
            moved_storage = data.to(side.device, copy=True).untyped_storage()
            self._storages[key] = moved_storage
        moved = torch.empty(0, dtype=source.dtype, device=side.device)
        moved.set_(moved_storage, source.storage_offset() + side.shift, source.shape, source.stride())  # type: ignore[call-overload]
        if source.is_conj():
            moved = torch._conj(moved)
        if source.is_neg():
            moved = torch._neg_view(moved)
        return moved


def place(sample: Any, side: Side, host_arguments: frozenset[int] = frozenset()) -> Placed:
    """`sample` on `side`. Arguments whose positions are in `host_arguments` stay in host memory.

    Some operators want an argument on the CPU whatever the device (`tensor_split` its indices).
    """
    mover = Mover(side)
    host = Mover(Side("cpu")) if host_arguments else mover
    placed = Placed(mover=mover)
    placed.input = mover.move(sample.input)
    placed.args = tuple(
        (host if position in host_arguments else mover).move(value)
        for position, value in enumerate(sample.args)
    )
    placed.kwargs = mover.move(sample.kwargs)
    placed.tensors = mover.tensors
    return placed
