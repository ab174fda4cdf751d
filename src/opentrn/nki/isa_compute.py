"""`nki.isa`: the instructions of the Tensor, Vector and Scalar engines, with NKI 0.3.0's signatures.

Each function records one instruction; `instruction` makes its body from the signature, and limits are checked
by the builder, from the instruction table.
"""

from __future__ import annotations

from typing import Any

from opentrn.nki import enums
from opentrn.nki.enums import matmul_perf_mode
from opentrn.nki.instruction import (
    Command,
    Engine,
    Filling,
    Flag,
    Float,
    Integer,
    Integers,
    Operation,
    PerfMode,
    Plain,
    Read,
    Reduction,
    ReductionOrMaximum,
    Scalar,
    Sequence,
    Write,
    WriteIfGiven,
    instruction,
)
from opentrn.nki.isa_common import command, op_name, reduction_name
from opentrn.nki.newer import require_parameter
from opentrn.nki.tracing import active

_UNKNOWN = enums.engine.unknown
_IDLE = enums.reduce_cmd.idle
_RESET_REDUCE = enums.reduce_cmd.reset_reduce


# -- Tensor engine -------------------------------------------------------------------------------------
@instruction
def nc_matmul(
    dst: Write,
    stationary: Read,
    moving: Read,
    is_stationary_onezero: Flag = False,
    is_moving_onezero: Flag = False,
    is_transpose: Flag = False,
    accumulate: Plain = None,
    tile_position: Sequence = (),
    tile_size: Sequence = (),
    perf_mode: PerfMode = matmul_perf_mode.none,
    name: Plain = None,
) -> None:
    """``dst (+)= stationary.T @ moving`` into PSUM."""


@instruction
def nc_matmul_mx(
    dst: Write,
    stationary: Read,
    moving: Read,
    stationary_scale: Read,
    moving_scale: Read,
    tile_position: Sequence = None,
    tile_size: Sequence = None,
    accumulate: Plain = None,
    name: Plain = None,
) -> None:
    """Matrix product of MX-quantised tiles (NeuronCore-v4)."""


@instruction
def nc_transpose(dst: Write, data: Read, engine: Engine = _UNKNOWN, name: Plain = None) -> None:
    """Swap the partition and the (flattened) free dimension."""


# -- Scalar engine -------------------------------------------------------------------------------------
@instruction
def activation(
    dst: Write,
    op: Operation,
    data: Read,
    bias: Scalar = None,
    scale: Scalar = 1.0,
    reduce_op: Reduction = None,
    reduce_res: WriteIfGiven = None,
    reduce_cmd: Command = _IDLE,
    name: Plain = None,
) -> None:
    """``dst = op(data * scale + bias)``, optionally summed along the free dimensions."""


@instruction
def activation_reduce(
    dst: Write,
    op: Operation,
    data: Read,
    reduce_op: Reduction,
    reduce_res: Write,
    bias: Scalar = None,
    scale: Scalar = 1.0,
    name: Plain = None,
) -> None:
    """`activation` with ``reduce_cmd=reset_reduce`` and a result."""


@instruction
def activate2(
    dst: Write,
    op: Operation,
    data: Read,
    imm0: Scalar,
    imm1: Scalar,
    op0: Operation,
    op1: Operation,
    relu_param: Float = 0.0,
    reverse0: Flag = False,
    reverse1: Flag = False,
    reduce_op: Reduction = None,
    reduce_res: WriteIfGiven = None,
    reduce_cmd: Command = _IDLE,
    name: Plain = None,
) -> None:
    """``dst = op((data op0 imm0) op1 imm1)`` (NKI 0.4.0)."""


# -- element-wise ----------------------------------------------------------------------------------------
@instruction
def tensor_copy(dst: Write, src: Read, engine: Engine = _UNKNOWN, name: Plain = None, **ignored: Any) -> None:
    """Copy a tile within SBUF and PSUM, converting the data type."""


@instruction
def tensor_tensor(
    dst: Write, data1: Read, data2: Read, op: Operation, engine: Engine = _UNKNOWN, name: Plain = None
) -> None:
    """``dst = data1 op data2``."""


@instruction
def tensor_scalar(
    dst: Write,
    data: Read,
    op0: Operation,
    operand0: Scalar,
    reverse0: Flag = False,
    op1: Operation = None,
    operand1: Scalar = None,
    reverse1: Flag = False,
    engine: Engine = _UNKNOWN,
    name: Plain = None,
) -> None:
    """``dst = (data op0 operand0) op1 operand1`` with scalars or [P, 1] columns."""


@instruction
def scalar_tensor_tensor(
    dst: Write,
    data: Read,
    op0: Operation,
    operand0: Scalar,
    op1: Operation,
    operand1: Read,
    reverse0: Flag = False,
    reverse1: Flag = False,
    name: Plain = None,
    **ignored: Any,
) -> None:
    """``dst = (data op0 operand0) op1 operand1`` with a tile as operand1."""


def tensor_scalar_reduce(
    dst: Any,
    data: Any,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: Any,
    reverse0: bool = False,
    name: str | None = None,
    **later: Any,
) -> None:
    """`tensor_scalar` with one operation, and its reduction along the free dimensions.

    later: reduce_cmd and reduce_init (NKI 0.4.0), reduce_res_negate (0.6.0).
    """
    for parameter in later:
        require_parameter("nki.isa.tensor_scalar_reduce", parameter, True)
    t = active()
    t.locate()
    if "reduce_cmd" in later:
        later["reduce_cmd"] = command(later["reduce_cmd"])
    t.emit(
        "tensor_scalar_reduce",
        dst=t.write(dst),
        data=t.read(data),
        op0=op_name(op0),
        operand0=t.scalar(operand0),
        reduce_op=reduction_name(reduce_op),
        reduce_res=t.write(reduce_res),
        reverse0=bool(reverse0),
        name=name,
        **later,
    )


@instruction
def tensor_scalar_cumulative(
    dst: Write,
    src: Read,
    op0: Operation,
    op1: Operation,
    imm0: Scalar,
    imm1: Scalar = None,
    reduce_cmd: Command = _RESET_REDUCE,
    name: Plain = None,
) -> None:
    """Running reduction ``reg = op1(op0(src, imm0), reg)`` along the free dimensions."""


@instruction
def tensor_tensor_scan(
    dst: Write,
    data0: Read,
    data1: Read,
    initial: Scalar,
    op0: Operation,
    op1: Operation,
    reverse0: Flag = False,
    reverse1: Flag = False,
    name: Plain = None,
) -> None:
    """``dst[i] = op1(op0(data0[i], dst[i-1]), data1[i])`` along the free dimension."""


def tensor_reduce(
    dst: Any,
    op: Any,
    data: Any,
    axis: Any,
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> None:
    """Reduce the last free dimensions given by `axis`."""
    t = active()
    t.locate()
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    axes = tuple(sorted(a if a >= 0 else a + data.ndim for a in axes))
    t.emit(
        "tensor_reduce",
        dst=t.write(dst),
        op=reduction_name(op),
        data=t.read(data),
        axis=axes,
        negate=bool(negate),
        keepdims=bool(keepdims),
        name=name,
    )


@instruction
def tensor_partition_reduce(dst: Write, op: Reduction, data: Read, name: Plain = None) -> None:
    """Reduce over the partitions (GpSimd)."""


@instruction
def reciprocal(dst: Write, data: Read, name: Plain = None) -> None:
    """``dst = 1 / data`` on the Vector engine."""


@instruction
def exponential(
    dst: Write,
    src: Read,
    max_value: Scalar = 0.0,
    reduce_res: WriteIfGiven = None,
    reduce_cmd: Command = _IDLE,
    reduce_init: Scalar = 0.0,
    name: Plain = None,
) -> None:
    """``dst = exp(src - max_value)`` and its running sum (NeuronCore-v4)."""


@instruction
def memset(dst: Write, value: Filling, engine: Engine = _UNKNOWN, name: Plain = None) -> None:
    """Fill a tile with a constant."""


@instruction
def dropout(dst: Write, data: Read, prob: Scalar, name: Plain = None) -> None:
    """Replace elements by zero with probability `prob`."""


# -- statistics, selection ---------------------------------------------------------------------------------
@instruction
def bn_stats(dst: Write, data: Read, name: Plain = None) -> None:
    """Count, mean and variance*count of even, then of odd elements."""


@instruction
def bn_aggr(dst: Write, data: Read, name: Plain = None) -> None:
    """Mean and variance from `bn_stats` results."""


@instruction
def max8(dst: Write, src: Read, name: Plain = None) -> None:
    """The eight largest values per partition, descending."""


@instruction
def nc_find_index8(dst: Write, data: Read, vals: Read, name: Plain = None) -> None:
    """Where the eight values of each partition are."""


@instruction
def nc_match_replace8(
    dst: Write, data: Read, vals: Read, imm: Scalar, dst_idx: WriteIfGiven = None, name: Plain = None
) -> None:
    """Replace the first occurrence of each of eight values."""


@instruction
def topk(val_dst: Write, idx_dst: Write, src: Read, n: Integer, name: Plain = None) -> None:
    """The n largest values per partition and where they are (NKI 0.6.0)."""


@instruction
def range_select(
    dst: Write,
    on_true_tile: Read,
    comp_op0: Operation,
    comp_op1: Operation,
    bound0: Read,
    bound1: Read,
    reduce_cmd: Command = _RESET_REDUCE,
    reduce_res: WriteIfGiven = None,
    reduce_op: ReductionOrMaximum = None,
    range_start: Scalar = 0,
    on_false_value: Float = -3.4028235e38,
    name: Plain = None,
) -> None:
    """Keep the elements whose index is within two bounds; their maximum in `reduce_res`."""


@instruction
def select_reduce(
    dst: Write,
    predicate: Read,
    on_true: Read,
    on_false: Scalar,
    reduce_res: WriteIfGiven = None,
    reduce_cmd: Command = _IDLE,
    reduce_op: ReductionOrMaximum = None,
    reverse_pred: Flag = False,
    name: Plain = None,
) -> None:
    """``where(predicate, on_true, on_false)`` and the maximum of the result."""


@instruction
def tensor_copy_predicated(
    dst: Write, src: Scalar, predicate: Read, reverse_pred: Flag = False, name: Plain = None
) -> None:
    """Copy where the predicate holds, leave the rest of `dst`."""


@instruction
def nc_stream_shuffle(dst: Write, src: Read, shuffle_mask: Integers, name: Plain = None) -> None:
    """Permute the partitions within each quadrant of 32."""


@instruction
def quantize_mx(dst: Write, src: Read, dst_scale: Write, name: Plain = None) -> None:
    """Quantise to an MX format: packed data and one scale per 8 partitions x 4 elements."""
