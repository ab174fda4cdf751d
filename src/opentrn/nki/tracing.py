"""Running a kernel as plain Python while a program is built.

One `Tracer` exists per kernel call. It creates storages, turns `NkiTensor` views into access patterns of
the program builder, keeps the user's source line current, and knows the launch grid. The cores of a
logical core are traced one after the other into one program; what they share is matched by order of
allocation, as the LNC guide of NKI defines it.
"""

from __future__ import annotations

import functools
import sys
import threading
from operator import index
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from opentrn import settings
from opentrn.core._C import record_into
from opentrn.errors import ArgumentValueError, ConfigurationError, OutOfBoundsError, UnsupportedError
from opentrn.nki import endless, engine_hook
from opentrn.nki.affine import Affine, Symbol, whole_number
from opentrn.nki.dtypes import ITEMSIZE, name_of
from opentrn.nki.enums import MemoryRegion, nc_version
from opentrn.nki.overlap import PinnedTensors
from opentrn.nki.tensor import NkiTensor, Storage, whole_view

_PACKAGE = str(Path(__file__).parent)
_local = threading.local()
PARTITIONS = 128
# A kernel that records more is taken for endless: four times the largest public ones. Classic operations
# reach it in about a minute on one slow processor. OPENTRN_STEP_LIMIT goes before it.
MOST_INSTRUCTIONS = 8_000_000


def active() -> Tracer:
    """The tracer of the running kernel. Raises ConfigurationError outside of one."""
    tracer = getattr(_local, "tracer", None)
    if tracer is None:
        raise ConfigurationError(
            "an NKI instruction was called outside of a kernel",
            cure="call it from a function decorated with @nki.jit, and call that or nki.simulate of it",
        )
    return tracer


def active_or_none() -> Tracer | None:
    return getattr(_local, "tracer", None)


def _work_with(tracer: Tracer | None) -> None:
    _local.tracer = tracer
    record_into(tracer.builder if tracer is not None and tracer._takes_views else None)


class Tracer:
    """Everything one kernel call needs while its program is built.

    chip: name of the chip (`opentrn.chips`); lnc: cores; grid_rank: dimensions of the launch grid (0: none);
    rank, world: place among the ranks of a multi-rank run.
    """

    def __init__(self, chip: str, lnc: int, grid_rank: int, name: str, rank: int = 0, world: int = 1) -> None:
        self.chip, self.lnc, self.grid_rank = chip, lnc, grid_rank
        self.grid: tuple[int, ...] = (lnc,) if grid_rank else ()
        self.place: tuple[int, ...] = (0,)
        self.asked_for_place = False
        self.rank, self.world = rank, world
        self.builder = engine_hook.builder(chip, lnc, name)
        self.emit = self.builder.emit
        self._make_access = self.builder.access
        self.core = 0
        self.shared: list[Storage] = []
        self._shared_used = 0
        self._private_count = 0
        self._constants: dict[Any, Storage] = {}
        self._identities: dict[Any, NkiTensor] = {}
        self.written: set[Storage] = set()
        # The core's builder reads views itself and finds the user's line; other engines are told both.
        self._takes_views = hasattr(self.builder, "take_views")
        self._line: tuple[str, int] = ("", 0)
        if self._takes_views:
            most = settings.step_limit(MOST_INSTRUCTIONS)
            self.builder.take_views(self._access, self.written, _PACKAGE, most)
        self.inputs: dict[str, tuple[Storage, np.ndarray]] = {}
        self.loops: list[Any] = []
        self.in_no_reorder = 0
        self.kept_order = False  # the kernel asked for the order of its source somewhere
        self.broken_loop: str | None = None
        self.places: dict[str, tuple[str, int]] = {}  # of tensors on chip, by their names in the program
        self.pending: Any = None  # the classic operation that is held back
        self.peeks = 0
        self.values_known = True  # False: the arguments are placeholders without values
        self.pinned: PinnedTensors | None = None  # follows overlapping addresses in checked calls
        self.loop_count = 0
        self.loop_sums: dict[Any, Any] = {}
        self.loop_placements: list[Any] = []

    # -- life cycle ------------------------------------------------------------------------------------
    def __enter__(self) -> Tracer:
        self._outer = active_or_none()
        _work_with(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, place: object) -> None:
        _work_with(self._outer)
        better = endless.explained(error)
        if better is not None:
            raise better from None

    def release(self) -> None:
        """Drop what only the trace needed: results of a kernel refer to their tracer for as long as its
        program is kept."""
        self._line, self._takes_views = self.line, False
        self.builder = self.emit = self._make_access = None
        self.inputs, self.shared, self.written = {}, [], set()
        self._constants, self._identities, self.loop_sums = {}, {}, {}
        self.pending = None

    def start_core(self, core: int) -> None:
        """Begin the trace of one core of the logical core."""
        self.core = core
        self.place = (core,)
        self._shared_used = 0
        self._identities = {}
        self.builder.core(core)

    def repeats(self) -> bool:
        """Whether another program of the grid would only write the same again: none has asked for its place,
        and no argument is written."""
        inputs = {storage for storage, _ in self.inputs.values()}
        return not self.asked_for_place and not inputs & self.written

    def end_core(self) -> None:
        """Check that the core's trace is complete. Raises UnsupportedError for a loop left by `break`."""
        if self.broken_loop is not None:
            raise UnsupportedError(
                "a dynamic loop was left with `break`",
                where=self.broken_loop,
                cure="let the bound, or a `while` over a register, end the loop",
            )
        if self.loops:
            raise UnsupportedError(
                "a loop over a register was left before its condition became false",
                where=self.where,
                cure="no break or return inside `while register:`",
            )

    def mark_outputs(self, outputs: list[NkiTensor]) -> dict[str, str]:
        """Tell the builder which tensors leave the kernel; returns the inputs that it writes."""
        for tensor in outputs:
            if tensor._storage.on_chip:
                raise UnsupportedError(
                    f"the kernel returns {tensor.name!r}, which lives in {tensor.buffer.value}",
                    cure="copy it to a tensor of buffer nl.shared_hbm and return that",
                )
        updated = {}
        for name, (storage, _) in self.inputs.items():
            if storage in self.written:
                self.builder.set_kind(storage.key, "inout")
                updated[name] = name.removeprefix("input_")
        inputs = {storage for storage, _ in self.inputs.values()}
        for storage in {tensor._storage for tensor in outputs}:
            if storage not in inputs:
                self.builder.set_kind(storage.key, "output")
        return updated

    # -- where we are ------------------------------------------------------------------------------------
    def locate(self) -> None:
        """Tell the builder the user's line: the innermost frame outside of this package."""
        if self._takes_views:
            self.builder.locate()
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
            frame = frame.f_back
        if frame is not None and self._line != (frame.f_code.co_filename, frame.f_lineno):
            self._line = (frame.f_code.co_filename, frame.f_lineno)
            self.builder.source(*self._line)

    @property
    def line(self) -> tuple[str, int]:
        """The user's file and line of the last `locate`."""
        return self.builder.line if self._takes_views else self._line

    def forget_line(self) -> None:
        """The builder was told another line: tell it again next time."""
        self._line = ("", 0)

    def user_line(self) -> tuple[str, int]:
        """Where the user's code is now."""
        self.locate()
        return self.line

    @property
    def where(self) -> str:
        file, line = self.line
        return f"{file}:{line}"

    # -- tensors ---------------------------------------------------------------------------------------------
    def allocate(
        self,
        shape: Any,
        dtype: Any,
        buffer: MemoryRegion,
        name: str,
        address: Any,
        users_name: bool = False,
    ) -> NkiTensor:
        """A new tensor. address: (start partition, byte offset) or None. users_name: the kernel gave the
        name, so that no line is added to it. Raises OutOfBoundsError."""
        self.locate()
        try:
            dims = (shape,) if isinstance(shape, int) else tuple(map(index, shape))
        except TypeError:
            dims = tuple(whole_number(extent, "the shape of a tensor") for extent in shape)
        if not dims or min(dims) < 1:
            raise OutOfBoundsError(f"a tensor of shape {dims} has no elements", where=self.where)
        dtype = name_of(dtype)
        if not isinstance(buffer, MemoryRegion):
            raise UnsupportedError(
                f"buffer must be nl.sbuf, nl.psum, nl.hbm or nl.shared_hbm, not {buffer!r}", where=self.where
            )
        storage = Storage(dims, dtype, buffer, name or f"{buffer._value_}_tensor")
        storage.owner = self
        if storage.on_chip:
            if dims[0] > PARTITIONS:
                raise UnsupportedError(
                    f"tensor {storage.name!r}: partition dimension {dims[0]} exceeds maximum {PARTITIONS}",
                    where=self.where,
                    cure="tile the first dimension by nl.tile_size.pmax",
                )
            make = self.builder.sbuf if buffer is MemoryRegion.sbuf else self.builder.psum
            storage.address = None if address is None else _address(address)
            place = self.builder.line if self._takes_views else self._line
            storage.program_name = storage.name if users_name else _with_line(storage.name, place)
            self.places[storage.program_name] = place
            storage.key = make(
                storage.program_name,
                dims if len(dims) > 1 else (dims[0], 1),
                dtype,
                address=storage.address,
            )
        elif buffer is MemoryRegion.shared_hbm:
            return self._allocate_shared(storage)
        else:
            self._private_count += 1
            self.places[f"private{self._private_count}_core{self.core}_{storage.name}"] = self.line
            storage.program_name = f"private{self._private_count}_core{self.core}_{storage.name}"
            storage.key = self.builder.hbm(storage.program_name, dims, dtype, kind="private")
        return whole_view(storage)

    def _allocate_shared(self, storage: Storage) -> NkiTensor:
        place = self._shared_used
        self._shared_used += 1
        if place < len(self.shared):
            known = self.shared[place]
            if known.shape != storage.shape or known.dtype != storage.dtype:
                raise ConfigurationError(
                    f"the cores disagree on shared tensor {place}: {known.shape} {known.dtype} on core 0, "
                    f"{storage.shape} {storage.dtype} on core {self.core}",
                    where=self.where,
                    cure="allocate shared_hbm tensors in the same order on every core",
                )
            return whole_view(known)
        storage.program_name = f"shared{place}_{storage.name}"
        self.places[storage.program_name] = self.line
        storage.key = self.builder.hbm(
            storage.program_name,
            storage.shape,
            storage.dtype,
            kind="internal",
        )
        self.shared.append(storage)
        return whole_view(storage)

    def bind_input(self, name: str, array: np.ndarray, buffer: MemoryRegion) -> NkiTensor:
        """An argument of the kernel."""
        storage = Storage(tuple(array.shape) or (1,), name_of(array.dtype), buffer, name)
        storage.owner = self
        storage.program_name = f"input_{name}"
        storage.key = self.builder.hbm(storage.program_name, storage.shape, storage.dtype, kind="input")
        self.inputs[storage.program_name] = (storage, array)
        return whole_view(storage)

    def constant(self, array: np.ndarray) -> NkiTensor:
        """Constant data in HBM, shared by the cores."""
        key = (array.shape, str(array.dtype), array.tobytes())
        storage = self._constants.get(key)
        if storage is None:
            storage = Storage(tuple(array.shape), name_of(array.dtype), MemoryRegion.shared_hbm, "constant")
            storage.owner = self
            storage.key = self.builder.hbm(
                f"constant{len(self._constants)}",
                storage.shape,
                storage.dtype,
                kind="constant",
                data=np.ascontiguousarray(array).reshape(-1).view(np.uint8),
            )
            self._constants[key] = storage
        return whole_view(storage)

    # -- access patterns --------------------------------------------------------------------------------
    def read(self, tensor: Any) -> Any:
        """A view in the form that `emit` takes: itself, or the builder's access pattern of it."""
        if type(tensor) is not NkiTensor:
            tensor = self._as_tensor(tensor)
        storage = tensor._storage
        if storage.address is not None and self.pinned is not None:
            self.pinned.read(tensor, self.where)
        if self._takes_views:
            return tensor
        if (
            tensor.whole
            and tensor._counts is storage.shape
            and tensor.dtype == storage.dtype
            and len(tensor._counts) > 1
        ):
            return self._make_access(tensor._storage.key)
        return self._access(tensor)

    def write(self, tensor: Any) -> Any:
        """As `read`, for a destination."""
        if type(tensor) is not NkiTensor:
            tensor = self._as_tensor(tensor)
        storage = tensor._storage
        if not storage.on_chip:
            self.written.add(storage)
        elif storage.address is not None and self.pinned is not None:
            self.pinned.write(tensor, self.core, self.where)
        return tensor if self._takes_views else self._access(tensor)

    def _as_tensor(self, value: Any) -> NkiTensor:
        inner = getattr(value, "as_nki_tensor", None)
        if inner is not None:
            return inner()
        raise UnsupportedError(f"expected a tensor, got {type(value).__name__}", where=self.where)

    def _access(self, tensor: NkiTensor) -> Any:
        steps, counts = tensor._steps, tensor._counts
        if len(counts) > 5:
            steps, counts = squeeze_pattern(steps, counts, tensor._storage.on_chip)
        offset = tensor.offset
        if type(offset) is Affine:
            offset = self.expression(offset)
        pattern = tuple(zip(steps, counts, strict=True))
        indirect = tensor.indirection
        if indirect is None:
            return self._make_access(tensor._storage.key, pattern, offset, tensor.dtype)
        if indirect.kind == "scalar":
            return self._make_access(
                tensor._storage.key,
                pattern,
                offset,
                tensor.dtype,
                scalar_offset=self.read(indirect.source),
                scalar_stride=indirect.step,
            )
        return self._make_access(
            tensor._storage.key,
            pattern,
            offset,
            tensor.dtype,
            vector_offset=self.read(indirect.source),
            vector_stride=indirect.step,
            vector_bound=indirect.bound,
        )

    def expression(self, value: Any) -> Any:
        """A runtime integer as the builder's expression."""
        value = getattr(value, "as_affine", value)
        if not isinstance(value, Affine):
            return int(value)
        result = value.const
        for symbol, factor in value.terms.items():
            result = symbol.key * factor + result
        return result

    def scalar(self, value: Any) -> Any:
        """An operand that may be a Python number, a register or a [P, 1] tile."""
        kind = type(value)
        if kind is float or kind is int:
            return value
        if kind is NkiTensor:
            return self.read(value)
        if value is None:
            return None
        if isinstance(value, Affine) or hasattr(value, "as_affine"):
            return self.expression(value)
        if isinstance(value, (bool, np.bool_)):
            return int(value)
        if isinstance(value, np.generic):
            return value.item() if value.dtype.kind in "iufb" else float(value)
        if isinstance(value, (int, float)):
            return value
        return self.read(value)

    # -- identity matrices -------------------------------------------------------------------------------
    def identity(self, size: int, dtype: str, dst: NkiTensor | None) -> NkiTensor:
        """An identity matrix in SBUF, loaded once per core, size and dtype."""
        key = (size, dtype)
        known = self._identities.get(key)
        if known is not None and dst is None:
            return known
        from opentrn.nki.dtypes import host_type

        self.builder.keep_begin()  # no iteration's own, though one may be the first to ask
        source = self.constant(np.eye(size, dtype=np.float32).astype(host_type(dtype)))
        result = dst
        if result is None:
            result = self.allocate((size, size), dtype, MemoryRegion.sbuf, f"identity_{size}_{dtype}", None)
            self._identities[key] = result
        self.emit("dma_copy", dst=self.write(result), src=self.read(source))
        self.builder.keep_end()
        return result

    def ones(self, columns: int, dtype: str) -> NkiTensor:
        """A row of ones in SBUF, filled once per core, size and dtype."""
        key = ("ones", columns, dtype)
        result = self._identities.get(key)
        if result is None:
            self.builder.keep_begin()  # as for an identity
            result = self.allocate((1, columns), dtype, MemoryRegion.sbuf, f"ones_{columns}_{dtype}", None)
            self._identities[key] = result
            self.emit("memset", dst=self.write(result), value=1.0, engine="unknown", name=None)
            self.builder.keep_end()
        return result

    # -- values during the trace -----------------------------------------------------------------------
    def can_peek(self) -> bool:
        return self.builder is not None and getattr(_local, "tracer", None) is self

    def peek(self, tensor: NkiTensor) -> np.ndarray:
        """The values of a view after the instructions traced so far (of the cores traced so far)."""
        return engine_hook.peek(self, tensor)

    def generation(self) -> nc_version:
        return engine_hook.generation(self.chip)

    # -- registers and loops ---------------------------------------------------------------------------
    def new_symbol(self, key: Any, name: str) -> Symbol:
        return Symbol(key, name, self)


@functools.lru_cache(maxsize=4096)
def _with_line(name: str, place: tuple[str, int]) -> str:
    """The name in the program of a tensor that the kernel gives none."""
    return f"{name} of {Path(place[0]).name}:{place[1]}"


def _address(address: Any) -> tuple[int, int]:
    try:
        partition, byte = address
    except (TypeError, ValueError):
        raise ArgumentValueError(
            f"address must be (start partition, byte offset), not {address!r}", cure="e.g. (0, 1024)"
        ) from None
    return whole_number(partition, "address"), whole_number(byte, "address")


def squeeze_pattern(steps: tuple[int, ...], counts: tuple[int, ...], on_chip: bool) -> tuple[Any, Any]:
    """Merge and drop dimensions until at most five remain where possible; the partition stays apart."""
    first = 1 if on_chip else 0
    merged: list[list[int]] = []
    for step, count in zip(steps[first:], counts[first:], strict=True):
        if count == 1:
            continue
        if merged and merged[-1][0] == step * count:
            merged[-1] = [step, merged[-1][1] * count]
        else:
            merged.append([step, count])
    if not merged:
        merged.append([1, 1])
    head = [[steps[0], counts[0]]] if on_chip else []
    pairs = head + merged
    return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)


def element_bytes(tensor: NkiTensor) -> int:
    return ITEMSIZE[tensor.dtype]
