"""One function per instruction: ``(core, arguments) -> None``. A `Core` is a core and its view of memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from opentrn.nki.dtypes import is_integer

from . import mx
from .builder import Access, Expr
from .math_functions import BITS, UNARY, apply
from .memory import Memory, cast

F = np.float32
INIT = {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "maximum": -np.inf, "minimum": np.inf, "abs_max": 0.0}


class Core:
    """Memory, registers and accumulators of one core."""

    def __init__(self, memory: Memory, number: int, on_print: Any = None) -> None:
        self.memory, self.number, self.on_print = memory, number, on_print
        self.registers: dict[Any, int] = {}
        self.vector_accumulator = np.zeros(128, F)
        self.scalar_accumulator = np.zeros(128, F)
        self.random = np.random.default_rng(0)
        self.rank = 0

    def raw(self, access: Access) -> np.ndarray:
        return self.memory.read(access, self.registers)

    def value(self, access: Access) -> np.ndarray:
        """[partitions, elements] in float32."""
        raw = self.raw(access)
        return raw.reshape(raw.shape[0], -1).astype(F)

    def operand(self, item: Any) -> Any:
        """A number, or a [P, 1] (or same-size) array in float32."""
        if isinstance(item, Access):
            return self.value(item)
        if isinstance(item, Expr):
            return F(Expr.value(item, self.registers))
        return F(item)

    def store(self, access: Access, values: Any, rows: Any = None) -> None:
        values = np.asarray(values)
        if values.dtype == np.float64 or values.dtype == np.bool_:
            values = values.astype(F)
        self.memory.write(access, self.registers, cast(values, access.dtype), rows)


def _dtype_ints(*accesses: Any) -> bool:
    return all(access.dtype in ("int32", "uint32") for access in accesses)


# -- copies ---------------------------------------------------------------------------------------------
def tensor_copy(core: Core, dst: Access, src: Access, **_: Any) -> None:
    _convert(core, dst, src)


def _convert(core: Core, dst: Access, src: Access) -> None:
    raw = core.raw(src)
    if src.dtype == dst.dtype:
        core.memory.write(dst, core.registers, raw)
    elif is_integer(src.dtype) and is_integer(dst.dtype):
        core.store(dst, raw)
    else:
        core.store(dst, raw.astype(F))


def dma_copy(core: Core, dst: Access, src: Access, oob_mode: str = "error", **_: Any) -> None:
    if oob_mode == "skip" and (dst.scalar_offset is not None or src.scalar_offset is not None):
        _copy_inside(core, dst, src)
        return
    raw = core.raw(src)
    rows = None
    if src.vector_offset is not None:
        rows = core.memory.rows_inside(src, core.registers)
        if rows.all():
            rows = None
    if rows is not None and dst.vector_offset is None:
        target = core.memory.view(dst, core.registers)
        if target.shape[0] != rows.size:
            old = np.array(target).reshape(rows.size, -1)
            fresh = cast(raw if src.dtype == dst.dtype else raw.astype(F), dst.dtype).reshape(rows.size, -1)
            core.memory.write(dst, core.registers, np.where(rows[:, None], fresh, old))
            return
    values = (
        raw
        if src.dtype == dst.dtype
        else cast(raw if is_integer(src.dtype) and is_integer(dst.dtype) else raw.astype(F), dst.dtype)
    )
    core.memory.write(dst, core.registers, np.array(values), rows)


def _copy_inside(core: Core, dst: Access, src: Access) -> None:
    """Element by element: only what is inside of both tensors."""
    (to, to_inside), (come, come_inside) = (
        core.memory.flat(dst, core.registers),
        core.memory.flat(src, core.registers),
    )
    keep = to_inside & come_inside
    target, source = core.memory.elements(dst), core.memory.elements(src)
    values = source[come[keep]]
    target[to[keep]] = values if src.dtype == dst.dtype else cast(values.astype(F), dst.dtype)


def dma_transpose(core: Core, dst: Access, src: Access, axes: Any = None, **_: Any) -> None:
    raw = core.raw(src)
    axes = axes or {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}[raw.ndim]
    core.store(dst, np.ascontiguousarray(raw.transpose(axes)))


def dma_compute(
    core: Core, dst: Access, srcs: list[Access], reduce_op: str, scales: Any = None, **_: Any
) -> None:
    total = None
    for place, source in enumerate(srcs):
        term = core.raw(source).astype(F).reshape(-1)
        if scales is not None:
            term = term * F(scales[place])
        total = term if total is None else apply(reduce_op, total, term)
    core.store(dst, total)


def memset(core: Core, dst: Access, value: Any, **_: Any) -> None:
    view = core.memory.view(dst, core.registers)
    number = Expr.value(value, core.registers) if isinstance(value, Expr) else value
    view[...] = (
        cast(np.asarray(number), dst.dtype)
        if view.dtype.kind in "iu" and isinstance(number, float)
        else number
    )
    mark_written(core, dst)


# -- element-wise ------------------------------------------------------------------------------------------
def tensor_tensor(
    core: Core, dst: Access, data1: Access, data2: Access, op: str, engine: str = "unknown", **_: Any
) -> None:
    if op in BITS:
        x, y = core.raw(data1), core.raw(data2)
        x, y = x.reshape(x.shape[0], -1), y.reshape(y.shape[0], -1)
        result = apply(op, x, y)
    elif _dtype_ints(dst, data1, data2) and engine != "vector" and op not in ("power", "divide"):
        x = core.raw(data1).astype(np.int64)
        y = core.raw(data2).astype(np.int64)
        result = apply(op, x.reshape(x.shape[0], -1), y.reshape(y.shape[0], -1))
        if result.dtype == np.int64:
            result = result.astype(np.uint32 if dst.dtype == "uint32" else np.int32)
    else:
        result = apply(op, core.value(data1), core.value(data2))
    core.store(dst, result)


def _scalar_step(
    core: Core, data: np.ndarray, op: str, operand: Any, reverse: bool, bits: bool
) -> np.ndarray:
    if bits:
        other = core.raw(operand) if isinstance(operand, Access) else np.asarray(operand)
        if isinstance(operand, Access):
            other = other.reshape(other.shape[0], -1)
        return apply(
            op, data, other.astype(data.dtype) if other.dtype.kind != "f" else other.astype(np.int64), reverse
        )
    return np.asarray(apply(op, data, core.operand(operand), reverse)).astype(F)


def tensor_scalar(
    core: Core,
    dst: Access,
    data: Access,
    op0: str,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    **_: Any,
) -> None:
    bits = op0 in BITS
    if bits:
        raw = core.raw(data)
        value = raw.reshape(raw.shape[0], -1)
    else:
        value = core.value(data)
    value = _scalar_step(core, value, op0, operand0, reverse0, bits)
    if op1 is not None:
        value = _scalar_step(core, value, op1, operand1, reverse1, bits)
    core.store(dst, value)


def scalar_tensor_tensor(
    core: Core,
    dst: Access,
    data: Access,
    op0: str,
    operand0: Any,
    op1: str,
    operand1: Access,
    reverse0: bool = False,
    reverse1: bool = False,
    **_: Any,
) -> None:
    value = apply(op0, core.value(data), core.operand(operand0), reverse0)
    core.store(dst, apply(op1, np.asarray(value, F), core.value(operand1), reverse1))


def activation(
    core: Core,
    dst: Access,
    op: str,
    data: Access,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: Any = None,
    reduce_cmd: str = "idle",
    **_: Any,
) -> None:
    value = core.value(data)
    with np.errstate(all="ignore"):
        value = value * core.operand(scale)
        if bias is not None:
            value = value + core.operand(bias)
        value = np.asarray(UNARY[op](value), F)
    core.store(dst, value)
    rows = slice(0, value.shape[0])
    if reduce_cmd in ("reset", "reset_reduce"):
        core.scalar_accumulator[:] = 0
    if reduce_cmd in ("reduce", "reset_reduce"):
        core.scalar_accumulator[rows] += value.sum(axis=1)
    if reduce_res is not None:
        core.store(reduce_res, core.scalar_accumulator[rows].reshape(-1, 1))


def activation_reduce(
    core: Core,
    dst: Access,
    op: str,
    data: Access,
    reduce_op: str,
    reduce_res: Access,
    bias: Any = None,
    scale: Any = 1.0,
    **_: Any,
) -> None:
    activation(core, dst, op, data, bias, scale, reduce_op, reduce_res, "reset_reduce")


def reciprocal(core: Core, dst: Access, data: Access, **_: Any) -> None:
    with np.errstate(all="ignore"):
        core.store(dst, F(1) / core.value(data))


def _accumulate(core: Core, command: str, op: str, part: np.ndarray, initial: Any = None) -> np.ndarray:
    rows = slice(0, part.shape[0])
    state = core.vector_accumulator
    if command in ("reset", "reset_reduce"):
        state[:] = INIT[op]
    elif command == "load_reduce":
        state[rows] = np.broadcast_to(np.asarray(initial, F).reshape(-1), (part.shape[0],))
    if command != "idle" and command != "reset":
        state[rows] = apply(op, state[rows], part)
    return state[rows].reshape(-1, 1)


def tensor_scalar_reduce(
    core: Core,
    dst: Access,
    data: Access,
    op0: str,
    operand0: Any,
    reduce_op: str,
    reduce_res: Access,
    reverse0: bool = False,
    **_: Any,
) -> None:
    value = np.asarray(apply(op0, core.value(data), core.operand(operand0), reverse0), F)
    core.store(dst, value)
    core.store(reduce_res, _fold(reduce_op, value, (1,)))


def _fold(op: str, value: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    with np.errstate(all="ignore"):
        if op == "add":
            return value.sum(axis=axes, dtype=value.dtype)
        if op == "maximum":
            return np.fmax.reduce(value, axis=axes)
        if op == "minimum":
            return np.fmin.reduce(value, axis=axes)
        if op == "multiply":
            return value.prod(axis=axes, dtype=value.dtype)
        if op == "subtract":
            return -value.sum(axis=axes, dtype=value.dtype)
        if op == "abs_max":
            return np.abs(value).max(axis=axes)
        if op == "abs_min":
            return np.abs(value).min(axis=axes)
        if op in ("logical_and", "logical_or", "logical_xor"):
            return getattr(np, op).reduce(value != 0, axis=axes)
        return BITS[op].reduce(value, axis=axes)


def tensor_reduce(
    core: Core, dst: Access, op: str, data: Access, axis: tuple[int, ...], negate: bool = False, **_: Any
) -> None:
    raw = core.raw(data)
    result = _fold(op, raw if op in BITS else raw.astype(F), axis)
    core.store(dst, -result if negate else result)


def tensor_partition_reduce(core: Core, dst: Access, op: str, data: Access, **_: Any) -> None:
    raw = core.raw(data)
    core.store(dst, _fold(op, raw if op in BITS else raw.astype(F), (0,)))


def exponential(
    core: Core,
    dst: Access,
    src: Access,
    max_value: Any = 0.0,
    reduce_res: Any = None,
    reduce_cmd: str = "idle",
    reduce_init: Any = 0.0,
    **_: Any,
) -> None:
    value = np.exp(core.value(src) - core.operand(max_value)).astype(F)
    core.store(dst, value)
    result = _accumulate(core, reduce_cmd, "add", value.sum(axis=1), core.operand(reduce_init))
    if reduce_res is not None:
        core.store(reduce_res, result)


def tensor_scalar_cumulative(
    core: Core,
    dst: Access,
    src: Access,
    op0: str,
    op1: str,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: str = "reset_reduce",
    **_: Any,
) -> None:
    value = np.asarray(apply(op0, core.value(src), core.operand(imm0)), F)
    state = core.vector_accumulator[: value.shape[0]].copy()
    if reduce_cmd == "reset_reduce":
        state[:] = INIT[op1]
    elif reduce_cmd == "load_reduce":
        state[:] = np.broadcast_to(np.asarray(core.operand(imm1)).reshape(-1), state.shape)
    result = np.empty_like(value)
    for i in range(value.shape[1]):
        state = apply(op1, value[:, i], state)
        result[:, i] = state
    core.vector_accumulator[: value.shape[0]] = state
    core.store(dst, result)


def tensor_tensor_scan(
    core: Core,
    dst: Access,
    data0: Access,
    data1: Access,
    initial: Any,
    op0: str,
    op1: str,
    reverse0: bool = False,
    reverse1: bool = False,
    **_: Any,
) -> None:
    x, y = core.value(data0), core.value(data1)
    state = np.broadcast_to(np.asarray(core.operand(initial), F).reshape(-1), (x.shape[0],))
    result = np.empty_like(x)
    for i in range(x.shape[1]):
        state = apply(op1, apply(op0, x[:, i], state, reverse0), y[:, i], reverse1)
        result[:, i] = state
    core.store(dst, result)


# -- matmul ------------------------------------------------------------------------------------------------
def mark_written(core: Core, dst: Access) -> None:
    """PSUM elements of an access hold data: the next matmul with accumulate=None adds."""
    if dst.tensor.id in core.memory.fresh:
        core.memory.view(dst, core.registers, core.memory.fresh, np.dtype(np.bool_))[...] = False


def _accumulate_psum(core: Core, dst: Access, result: np.ndarray, accumulate: bool | None) -> None:
    target = core.memory.view(dst, core.registers)
    result = result.reshape(target.shape)
    if accumulate is None:
        fresh = core.memory.view(dst, core.registers, core.memory.fresh, np.dtype(np.bool_))
        old = np.where(fresh, F(0), target.astype(F))
        result = old + result
    elif accumulate:
        result = target.astype(F) + result
    target[...] = cast(result, dst.dtype)
    mark_written(core, dst)


def nc_matmul(
    core: Core,
    dst: Access,
    stationary: Access,
    moving: Access,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    perf_mode: str = "none",
    **_: Any,
) -> None:
    x, y = core.raw(stationary), core.raw(moving)
    if is_transpose:
        _accumulate_psum(core, dst, x.reshape(x.shape[0], -1).T.astype(F), False)
        return
    if perf_mode == "double_row":
        x = x.reshape(x.shape[0] * 2, -1)
        y = y.reshape(y.shape[0] * 2, -1)
    x = x.reshape(x.shape[0], -1).astype(F)
    y = y.reshape(y.shape[0], -1).astype(F)
    with np.errstate(all="ignore"):
        _accumulate_psum(core, dst, x.T @ y, accumulate)


def nc_matmul_mx(
    core: Core,
    dst: Access,
    stationary: Access,
    moving: Access,
    stationary_scale: Access,
    moving_scale: Access,
    accumulate: bool | None = None,
    **_: Any,
) -> None:
    x = mx.dequantise(core.raw(stationary), stationary.dtype, core.raw(stationary_scale))
    y = mx.dequantise(core.raw(moving), moving.dtype, core.raw(moving_scale))
    _accumulate_psum(core, dst, x.T @ y, accumulate)


def quantize_mx(core: Core, dst: Access, src: Access, dst_scale: Access, **_: Any) -> None:
    packed, scale = mx.quantise(core.value(src), dst.dtype)
    core.memory.write(dst, core.registers, packed)
    view = core.memory.view(dst_scale, core.registers)
    mx.place_scale(view, scale)


def nc_transpose(core: Core, dst: Access, data: Access, **_: Any) -> None:
    raw = core.raw(data)
    core.memory.write(
        dst,
        core.registers,
        np.ascontiguousarray(raw.reshape(raw.shape[0], -1).T).astype(
            core.memory.view(dst, core.registers).dtype
        ),
    )
    mark_written(core, dst)
