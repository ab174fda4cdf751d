"""What a strict call refuses and any other one is warned of, once for each program: outputs of which elements
were never written, and loops of classic `affine_range` that carry values from one iteration to the next.

A call is strict with an explicit ``check=True`` or ``strict=True``, and under OPENTRN_STRICT=1.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opentrn import settings
from opentrn.errors import UndefinedBehaviourError, UndefinedBehaviourWarning
from opentrn.nki.arguments import view_of
from opentrn.nki.dtypes import ITEMSIZE
from opentrn.nki.tensor import NkiTensor

_WRITE = "write every element (e.g. nisa.memset first), or return a view of what is written"
_KIND = re.compile(r"^(shared\d+_|private\d+_core\d+_|input_)")  # before the names of tensors in HBM
_SEQUENTIAL = "nl.sequential_range, where an iteration needs the one before it"


def is_strict(asked: bool) -> bool:
    """Whether findings are errors: where the call asks for it, or the environment does."""
    return asked or settings.get("OPENTRN_STRICT") == "1"


def tell(cause: str, where: str | None, cure: str, error: bool) -> None:
    """Raise UndefinedBehaviourError, or warn with the same words at the same line."""
    found = UndefinedBehaviourError(cause, where=where, cure=cure)
    if error:
        raise found
    file, _, line = (where or "").rpartition(":")
    number = int(line) if line.isdigit() else 0
    warnings.warn_explicit(str(found), UndefinedBehaviourWarning, file or "kernel", number)


def on_unwritten(traces: Sequence[Any], strict: bool) -> Callable[[int, dict[str, np.ndarray]], None]:
    """The receiver of outputs that are not all written (`on_unwritten` of the core), one trace per rank."""
    error = is_strict(strict)

    def receive(rank: int, masks: dict[str, np.ndarray]) -> None:
        traced = traces[rank]
        if traced.told and not error:
            return
        for place, tensor in enumerate(traced.outputs):
            mask = masks.get(tensor._storage.program_name)
            written = None if mask is None else _of_view(mask, tensor)
            if written is not None and not written.all():
                traced.told = True
                cause = _words(traced.kernel, place, len(traced.outputs), tensor, written)
                tell(cause, _made_at(tensor), _WRITE, error)

    return receive


def _of_view(mask: np.ndarray, tensor: NkiTensor) -> np.ndarray:
    """Which elements of a view are written, given that of each element of its storage."""
    storage = tensor._storage
    if tensor.whole and tensor.dtype == storage.dtype:
        return mask.reshape(tensor.shape)
    words = np.repeat(mask.view(np.uint8), ITEMSIZE[storage.dtype]) * np.uint8(0xFF)
    bits = np.ascontiguousarray(view_of(words, tensor))
    return (bits.view(np.uint8).reshape(*tensor.shape, ITEMSIZE[tensor.dtype]) == 0xFF).all(axis=-1)


def _words(kernel: str, place: int, results: int, tensor: NkiTensor, written: np.ndarray) -> str:
    which = f"result {place} of kernel {kernel}" if results > 1 else f"the result of kernel {kernel}"
    first = np.unravel_index(int(np.argmin(written)), written.shape)
    index = ", ".join(str(int(i)) for i in first)
    return (
        f"{written.size - np.count_nonzero(written)} of {written.size} elements of {which}, tensor "
        f"{tensor.name!r}, are never written, the first is [{index}]"
    )


def _made_at(tensor: NkiTensor) -> str | None:
    place = tensor._storage.owner.places.get(tensor._storage.program_name)
    return f"{place[0]}:{place[1]}" if place else None


def tell_carried(tracer: Any, error: bool) -> None:
    """The loops of `affine_range` that the trace found to carry values."""
    for loop, tensor, read, written in getattr(tracer.builder, "carried", ()):
        tell(
            f"the affine_range loop of {loop} carries {_KIND.sub('', tensor)!r} from one iteration to "
            f"the next: read at {read}, written in an earlier iteration at {written}",
            read,
            _SEQUENTIAL,
            error,
        )
