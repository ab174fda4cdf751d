"""Views repeated to a larger shape: one row over all partitions goes through the Tensor engine.

The classic compiler multiplies the row by ones. What one PSUM bank holds is read from there (the measured
Mamba kernels with rows of 512 leave Vector no time to read SBUF twice); wider rows are copied to SBUF
(with rows of 2048 they take that time). Other repetitions are those of `language_ops.broadcast_view`.
"""

from __future__ import annotations

import math
from typing import Any

from opentrn.errors import UnsupportedError
from opentrn.nki.dtypes import ITEMSIZE
from opentrn.nki.enums import MemoryRegion
from opentrn.nki.language_ops import broadcast_view as _broadcast_view
from opentrn.nki.language_ops import on_sbuf
from opentrn.nki.tensor import NkiTensor

_MOVING_MAX = 512  # columns of one product
_BANK_BYTES = 2048  # of a partition of PSUM
_FLOATS = ("float32", "bfloat16", "float16")


def broadcast_view(tracer: Any, view: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    """`view` repeated to `shape`, which has as many dimensions."""
    if view.shape[0] == 1 and shape[0] > 1 and view._storage.on_chip and view.dtype in _FLOATS:
        try:
            row = view.reshape((1, math.prod(view.shape)))
        except UnsupportedError:  # steps that no single row has
            return _broadcast_view(tracer, view, shape)
        view = _over_partitions(tracer, row, shape[0]).reshape((shape[0], *view.shape[1:]))
    return _broadcast_view(tracer, view, shape)


def _over_partitions(tracer: Any, row: NkiTensor, partitions: int) -> NkiTensor:
    if row.buffer is MemoryRegion.psum:  # the Tensor engine reads SBUF only
        row = on_sbuf(tracer, row)
    ones, width = tracer.ones(partitions, row.dtype), row.shape[1]
    if width * ITEMSIZE[row.dtype] <= _BANK_BYTES and width <= _MOVING_MAX:
        return _product(tracer, ones, row)
    wide = tracer.allocate((partitions, width), row.dtype, MemoryRegion.sbuf, "broadcast", None)
    for start in range(0, width, _MOVING_MAX):
        end = min(start + _MOVING_MAX, width)
        part = _product(tracer, ones, row[:, start:end])
        tracer.emit(
            "tensor_copy",
            dst=tracer.write(wide[:, start:end]),
            src=tracer.read(part),
            engine="unknown",
            name=None,
        )
    return wide


def _product(tracer: Any, ones: NkiTensor, row: NkiTensor) -> NkiTensor:
    result = tracer.allocate((ones.shape[1], row.shape[1]), row.dtype, MemoryRegion.psum, "broadcast", None)
    tracer.emit(
        "nc_matmul",
        dst=tracer.write(result),
        stationary=tracer.read(ones),
        moving=tracer.read(row),
        accumulate=False,
        is_stationary_onezero=True,
        name=None,
    )
    return result
