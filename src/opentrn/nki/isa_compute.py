"""`nki.isa`: the instructions of the Tensor, Vector and Scalar engines, with NKI 0.3.0's signatures.

Each function records one instruction; limits are checked by the builder, from the instruction table.
"""

from __future__ import annotations

from typing import Any

from opentrn.nki import enums
from opentrn.nki.enums import engine as engines
from opentrn.nki.enums import matmul_perf_mode
from opentrn.nki.isa_common import command, member, op_name, reduction_name
from opentrn.nki.tracing import active

_UNKNOWN = engines.unknown
_IDLE = enums.reduce_cmd.idle
_RESET_REDUCE = enums.reduce_cmd.reset_reduce


def _maximum() -> Any:
    from opentrn.nki.modern import language

    return language.__dict__["maximum"]


# -- Tensor engine -------------------------------------------------------------------------------------
def nc_matmul(
    dst: Any,
    stationary: Any,
    moving: Any,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: Any = (),
    tile_size: Any = (),
    perf_mode: Any = matmul_perf_mode.none,
    name: str | None = None,
) -> None:
    """``dst (+)= stationary.T @ moving`` into PSUM."""
    t = active()
    t.locate()
    t.emit(
        "nc_matmul",
        dst=t.write(dst),
        stationary=t.read(stationary),
        moving=t.read(moving),
        is_stationary_onezero=bool(is_stationary_onezero),
        is_moving_onezero=bool(is_moving_onezero),
        is_transpose=bool(is_transpose),
        accumulate=accumulate,
        tile_position=tuple(tile_position or ()),
        tile_size=tuple(tile_size or ()),
        perf_mode=member(perf_mode, matmul_perf_mode, "perf_mode"),
        name=name,
    )


def nc_matmul_mx(
    dst: Any,
    stationary: Any,
    moving: Any,
    stationary_scale: Any,
    moving_scale: Any,
    tile_position: Any = None,
    tile_size: Any = None,
    accumulate: bool | None = None,
    name: str | None = None,
) -> None:
    """Matrix product of MX-quantised tiles (NeuronCore-v4)."""
    t = active()
    t.locate()
    t.emit(
        "nc_matmul_mx",
        dst=t.write(dst),
        stationary=t.read(stationary),
        moving=t.read(moving),
        stationary_scale=t.read(stationary_scale),
        moving_scale=t.read(moving_scale),
        tile_position=tuple(tile_position or ()),
        tile_size=tuple(tile_size or ()),
        accumulate=accumulate,
        name=name,
    )


def nc_transpose(dst: Any, data: Any, engine: Any = _UNKNOWN, name: str | None = None) -> None:
    """Swap the partition and the (flattened) free dimension."""
    t = active()
    t.locate()
    t.emit(
        "nc_transpose",
        dst=t.write(dst),
        data=t.read(data),
        engine=member(engine, engines, "engine"),
        name=name,
    )


# -- Scalar engine -------------------------------------------------------------------------------------
def activation(
    dst: Any,
    op: Any,
    data: Any,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: Any = None,
    reduce_cmd: Any = _IDLE,
    name: str | None = None,
) -> None:
    """``dst = op(data * scale + bias)``, optionally summed along the free dimensions."""
    t = active()
    t.locate()
    t.emit(
        "activation",
        dst=t.write(dst),
        op=op_name(op),
        data=t.read(data),
        bias=t.scalar(bias),
        scale=t.scalar(scale),
        reduce_op=reduction_name(reduce_op),
        reduce_res=None if reduce_res is None else t.write(reduce_res),
        reduce_cmd=command(reduce_cmd),
        name=name,
    )


def activation_reduce(
    dst: Any,
    op: Any,
    data: Any,
    reduce_op: Any,
    reduce_res: Any,
    bias: Any = None,
    scale: Any = 1.0,
    name: str | None = None,
) -> None:
    """`activation` with ``reduce_cmd=reset_reduce`` and a result."""
    t = active()
    t.locate()
    t.emit(
        "activation_reduce",
        dst=t.write(dst),
        op=op_name(op),
        data=t.read(data),
        reduce_op=reduction_name(reduce_op),
        reduce_res=t.write(reduce_res),
        bias=t.scalar(bias),
        scale=t.scalar(scale),
        name=name,
    )


def activate2(
    dst: Any,
    op: Any,
    data: Any,
    imm0: Any,
    imm1: Any,
    op0: Any,
    op1: Any,
    relu_param: float = 0.0,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_op: Any = None,
    reduce_res: Any = None,
    reduce_cmd: Any = _IDLE,
    name: str | None = None,
) -> None:
    """``dst = op((data op0 imm0) op1 imm1)`` (NKI 0.4.0)."""
    t = active()
    t.locate()
    t.emit(
        "activate2",
        dst=t.write(dst),
        op=op_name(op),
        data=t.read(data),
        imm0=t.scalar(imm0),
        imm1=t.scalar(imm1),
        op0=op_name(op0),
        op1=op_name(op1),
        relu_param=float(relu_param),
        reverse0=bool(reverse0),
        reverse1=bool(reverse1),
        reduce_op=reduction_name(reduce_op),
        reduce_res=None if reduce_res is None else t.write(reduce_res),
        reduce_cmd=command(reduce_cmd),
        name=name,
    )


# -- element-wise ----------------------------------------------------------------------------------------
def tensor_copy(dst: Any, src: Any, engine: Any = _UNKNOWN, name: str | None = None, **ignored: Any) -> None:
    """Copy a tile within SBUF and PSUM, converting the data type."""
    t = active()
    t.locate()
    t.emit(
        "tensor_copy", dst=t.write(dst), src=t.read(src), engine=member(engine, engines, "engine"), name=name
    )


def tensor_tensor(
    dst: Any, data1: Any, data2: Any, op: Any, engine: Any = _UNKNOWN, name: str | None = None
) -> None:
    """``dst = data1 op data2``."""
    t = active()
    t.locate()
    t.emit(
        "tensor_tensor",
        dst=t.write(dst),
        data1=t.read(data1),
        data2=t.read(data2),
        op=op_name(op),
        engine=member(engine, engines, "engine"),
        name=name,
    )


def tensor_scalar(
    dst: Any,
    data: Any,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    engine: Any = _UNKNOWN,
    name: str | None = None,
) -> None:
    """``dst = (data op0 operand0) op1 operand1`` with scalars or [P, 1] columns."""
    t = active()
    t.locate()
    t.emit(
        "tensor_scalar",
        dst=t.write(dst),
        data=t.read(data),
        op0=op_name(op0),
        operand0=t.scalar(operand0),
        reverse0=bool(reverse0),
        op1=op_name(op1),
        operand1=t.scalar(operand1),
        reverse1=bool(reverse1),
        engine=member(engine, engines, "engine"),
        name=name,
    )


def scalar_tensor_tensor(
    dst: Any,
    data: Any,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
    **ignored: Any,
) -> None:
    """``dst = (data op0 operand0) op1 operand1`` with a tile as operand1."""
    t = active()
    t.locate()
    t.emit(
        "scalar_tensor_tensor",
        dst=t.write(dst),
        data=t.read(data),
        op0=op_name(op0),
        operand0=t.scalar(operand0),
        op1=op_name(op1),
        operand1=t.read(operand1),
        reverse0=bool(reverse0),
        reverse1=bool(reverse1),
        name=name,
    )


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
    """`tensor_scalar` with one operation, and its reduction along the free dimensions."""
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


def tensor_scalar_cumulative(
    dst: Any,
    src: Any,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: Any = _RESET_REDUCE,
    name: str | None = None,
) -> None:
    """Running reduction ``reg = op1(op0(src, imm0), reg)`` along the free dimensions."""
    t = active()
    t.locate()
    t.emit(
        "tensor_scalar_cumulative",
        dst=t.write(dst),
        src=t.read(src),
        op0=op_name(op0),
        op1=op_name(op1),
        imm0=t.scalar(imm0),
        imm1=t.scalar(imm1),
        reduce_cmd=command(reduce_cmd),
        name=name,
    )


def tensor_tensor_scan(
    dst: Any,
    data0: Any,
    data1: Any,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> None:
    """``dst[i] = op1(op0(data0[i], dst[i-1]), data1[i])`` along the free dimension."""
    t = active()
    t.locate()
    t.emit(
        "tensor_tensor_scan",
        dst=t.write(dst),
        data0=t.read(data0),
        data1=t.read(data1),
        initial=t.scalar(initial),
        op0=op_name(op0),
        op1=op_name(op1),
        reverse0=bool(reverse0),
        reverse1=bool(reverse1),
        name=name,
    )


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


def tensor_partition_reduce(dst: Any, op: Any, data: Any, name: str | None = None) -> None:
    """Reduce over the partitions (GpSimd)."""
    t = active()
    t.locate()
    t.emit("tensor_partition_reduce", dst=t.write(dst), op=reduction_name(op), data=t.read(data), name=name)


def reciprocal(dst: Any, data: Any, name: str | None = None) -> None:
    """``dst = 1 / data`` on the Vector engine."""
    t = active()
    t.locate()
    t.emit("reciprocal", dst=t.write(dst), data=t.read(data), name=name)


def exponential(
    dst: Any,
    src: Any,
    max_value: Any = 0.0,
    reduce_res: Any = None,
    reduce_cmd: Any = _IDLE,
    reduce_init: Any = 0.0,
    name: str | None = None,
) -> None:
    """``dst = exp(src - max_value)`` and its running sum (NeuronCore-v4)."""
    t = active()
    t.locate()
    t.emit(
        "exponential",
        dst=t.write(dst),
        src=t.read(src),
        max_value=t.scalar(max_value),
        reduce_res=None if reduce_res is None else t.write(reduce_res),
        reduce_cmd=command(reduce_cmd),
        reduce_init=t.scalar(reduce_init),
        name=name,
    )


def memset(dst: Any, value: Any, engine: Any = _UNKNOWN, name: str | None = None) -> None:
    """Fill a tile with a constant."""
    t = active()
    t.locate()
    t.emit(
        "memset", dst=t.write(dst), value=t.scalar(value), engine=member(engine, engines, "engine"), name=name
    )


def dropout(dst: Any, data: Any, prob: Any, name: str | None = None) -> None:
    """Replace elements by zero with probability `prob`."""
    t = active()
    t.locate()
    t.emit("dropout", dst=t.write(dst), data=t.read(data), prob=t.scalar(prob), name=name)


# -- statistics, selection ---------------------------------------------------------------------------------
def bn_stats(dst: Any, data: Any, name: str | None = None) -> None:
    """Count, mean and variance*count of even, then of odd elements."""
    t = active()
    t.locate()
    t.emit("bn_stats", dst=t.write(dst), data=t.read(data), name=name)


def bn_aggr(dst: Any, data: Any, name: str | None = None) -> None:
    """Mean and variance from `bn_stats` results."""
    t = active()
    t.locate()
    t.emit("bn_aggr", dst=t.write(dst), data=t.read(data), name=name)


def max8(dst: Any, src: Any, name: str | None = None) -> None:
    """The eight largest values per partition, descending."""
    t = active()
    t.locate()
    t.emit("max8", dst=t.write(dst), src=t.read(src), name=name)


def nc_find_index8(dst: Any, data: Any, vals: Any, name: str | None = None) -> None:
    """Where the eight values of each partition are."""
    t = active()
    t.locate()
    t.emit("nc_find_index8", dst=t.write(dst), data=t.read(data), vals=t.read(vals), name=name)


def nc_match_replace8(
    dst: Any, data: Any, vals: Any, imm: float, dst_idx: Any = None, name: str | None = None
) -> None:
    """Replace the first occurrence of each of eight values."""
    t = active()
    t.locate()
    t.emit(
        "nc_match_replace8",
        dst=t.write(dst),
        data=t.read(data),
        vals=t.read(vals),
        imm=t.scalar(imm),
        dst_idx=None if dst_idx is None else t.write(dst_idx),
        name=name,
    )


def topk(val_dst: Any, idx_dst: Any, src: Any, n: int, name: str | None = None) -> None:
    """The n largest values per partition and where they are (NKI 0.6.0)."""
    t = active()
    t.locate()
    t.emit("topk", val_dst=t.write(val_dst), idx_dst=t.write(idx_dst), src=t.read(src), n=int(n), name=name)


def range_select(
    dst: Any,
    on_true_tile: Any,
    comp_op0: Any,
    comp_op1: Any,
    bound0: Any,
    bound1: Any,
    reduce_cmd: Any = _RESET_REDUCE,
    reduce_res: Any = None,
    reduce_op: Any = None,
    range_start: int = 0,
    on_false_value: float = -3.4028235e38,
    name: str | None = None,
) -> None:
    """Keep the elements whose index is within two bounds; their maximum in `reduce_res`."""
    t = active()
    t.locate()
    t.emit(
        "range_select",
        dst=t.write(dst),
        on_true_tile=t.read(on_true_tile),
        comp_op0=op_name(comp_op0),
        comp_op1=op_name(comp_op1),
        bound0=t.read(bound0),
        bound1=t.read(bound1),
        reduce_cmd=command(reduce_cmd),
        reduce_res=None if reduce_res is None else t.write(reduce_res),
        reduce_op=reduction_name(reduce_op or _maximum()),
        range_start=t.scalar(range_start),
        on_false_value=float(on_false_value),
        name=name,
    )


def select_reduce(
    dst: Any,
    predicate: Any,
    on_true: Any,
    on_false: Any,
    reduce_res: Any = None,
    reduce_cmd: Any = _IDLE,
    reduce_op: Any = None,
    reverse_pred: bool = False,
    name: str | None = None,
) -> None:
    """``where(predicate, on_true, on_false)`` and the maximum of the result."""
    t = active()
    t.locate()
    t.emit(
        "select_reduce",
        dst=t.write(dst),
        predicate=t.read(predicate),
        on_true=t.read(on_true),
        on_false=t.scalar(on_false),
        reduce_res=None if reduce_res is None else t.write(reduce_res),
        reduce_cmd=command(reduce_cmd),
        reduce_op=reduction_name(reduce_op or _maximum()),
        reverse_pred=bool(reverse_pred),
        name=name,
    )


def tensor_copy_predicated(
    dst: Any, src: Any, predicate: Any, reverse_pred: bool = False, name: str | None = None
) -> None:
    """Copy where the predicate holds, leave the rest of `dst`."""
    t = active()
    t.locate()
    t.emit(
        "tensor_copy_predicated",
        dst=t.write(dst),
        src=t.scalar(src),
        predicate=t.read(predicate),
        reverse_pred=bool(reverse_pred),
        name=name,
    )


def nc_stream_shuffle(dst: Any, src: Any, shuffle_mask: Any, name: str | None = None) -> None:
    """Permute the partitions within each quadrant of 32."""
    t = active()
    t.locate()
    t.emit(
        "nc_stream_shuffle",
        dst=t.write(dst),
        src=t.read(src),
        shuffle_mask=[int(m) for m in shuffle_mask],
        name=name,
    )


def quantize_mx(dst: Any, src: Any, dst_scale: Any, name: str | None = None) -> None:
    """Quantise to an MX format: packed data and one scale per 8 partitions x 4 elements."""
    t = active()
    t.locate()
    t.emit("quantize_mx", dst=t.write(dst), src=t.read(src), dst_scale=t.write(dst_scale), name=name)
