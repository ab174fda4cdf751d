"""`nki.language`."""
# ruff: noqa: F401 - this module is what it imports

from opentrn.nki import language_ops as _ops
from opentrn.nki import tile_sizes as _tile_sizes
from opentrn.nki.dtypes import TABLE as _TABLE
from opentrn.nki.enums import MemoryRegion
from opentrn.nki.language_composites import (
    broadcast_to,
    device_print,
    dropout,
    expand_dims,
    gather_flattened,
    matmul,
    no_reorder,
    num_programs,
    program_id,
    program_ndim,
    rms_norm,
    softmax,
    transpose,
    where,
)
from opentrn.nki.language_ops import (
    all,
    copy,
    ds,
    empty_like,
    full,
    load,
    load_transpose2d,
    max,
    mean,
    min,
    ndarray,
    ones,
    prod,
    rand,
    random_seed,
    shared_constant,
    shared_identity_matrix,
    store,
    sum,
    var,
    zeros,
    zeros_like,
)
from opentrn.nki.loops import fori_loop, while_loop
from opentrn.nki.modern import dtype as dtypes
from opentrn.nki.newer import keep_apart as _keep_apart
from opentrn.nki.registers import dynamic_range, static_range
from opentrn.nki.tensor import NKIObject, NkiTensor, is_hbm, is_on_chip

sbuf, psum = MemoryRegion.sbuf, MemoryRegion.psum
private_hbm, shared_hbm = MemoryRegion.private_hbm, MemoryRegion.shared_hbm
hbm = private_hbm
tile_size = _tile_sizes.tile_size
affine_range = sequential_range = static_range
range = static_range
bool_ = "bool"


def is_sbuf(buffer: object) -> bool:
    """Is the buffer SBUF?"""
    return buffer is sbuf


def is_psum(buffer: object) -> bool:
    """Is the buffer PSUM?"""
    return buffer is psum


globals().update({_name: _name for _name in _TABLE})
globals().update(_ops.OPERATIONS)

__getattr__ = _keep_apart("nki.language", globals())
__all__ = [_name for _name in globals() if not _name.startswith("_")]
