"""`nki.isa`."""
# ruff: noqa: F401 - this module is what it imports

from opentrn.nki import target as _target
from opentrn.nki.engine_hook import generation as _generation
from opentrn.nki.enums import (
    dge_mode,
    dma_engine,
    engine,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
)
from opentrn.nki.errors import NkiValidationError
from opentrn.nki.isa_compute import (
    activate2,
    activation,
    activation_reduce,
    bn_aggr,
    bn_stats,
    dropout,
    exponential,
    max8,
    memset,
    nc_find_index8,
    nc_match_replace8,
    nc_matmul,
    nc_matmul_mx,
    nc_stream_shuffle,
    nc_transpose,
    quantize_mx,
    range_select,
    reciprocal,
    scalar_tensor_tensor,
    select_reduce,
    tensor_copy,
    tensor_copy_predicated,
    tensor_partition_reduce,
    tensor_reduce,
    tensor_scalar,
    tensor_scalar_cumulative,
    tensor_scalar_reduce,
    tensor_tensor,
    tensor_tensor_scan,
    topk,
)
from opentrn.nki.isa_memory import (
    affine_select,
    core_barrier,
    dma_compute,
    dma_copy,
    dma_transpose,
    get_nc_sub_version,
    iota,
    local_gather,
    nc_n_gather,
    nonzero_with_count,
    rand2,
    rand_get_state,
    rand_set_state,
    register_alloc,
    register_load,
    register_move,
    register_store,
    rng,
    sendrecv,
    sequence_bounds,
    set_rng_seed,
)
from opentrn.nki.modern.isa import constants
from opentrn.nki.newer import keep_apart as _keep_apart
from opentrn.nki.registers import VirtualRegister
from opentrn.nki.tensor import NKIObject
from opentrn.nki.tracing import active_or_none as _active_or_none

tensor_engine, vector_engine = engine.tensor, engine.vector
scalar_engine, gpsimd_engine = engine.scalar, engine.gpsimd
unknown_engine = engine.unknown


def get_nc_version() -> nc_version:
    """The NeuronCore generation that the kernel is built for."""
    tracer = _active_or_none()
    return _generation(tracer.chip if tracer is not None else _target.chip())


__getattr__ = _keep_apart("nki.isa", globals())
__all__ = [_name for _name in globals() if not _name.startswith("_")]
