"""Selection, statistics, gathers and patterns."""

from __future__ import annotations

from typing import Any

import numpy as np

from .builder import Access, Expr
from .instructions import Core, F, _accumulate
from .math_functions import apply
from .memory import cast


def _pattern_values(
    pattern: Any, offset: Any, channel_multiplier: int, partitions: int, core: Core
) -> np.ndarray:
    index = np.full((1,), Expr.value(offset, core.registers), np.int64)
    for step, count in pattern:
        index = (index[:, None] + np.arange(count) * step).reshape(-1)
    return index[None, :] + np.arange(partitions)[:, None] * channel_multiplier


def iota(
    core: Core, dst: Access, pattern: Any, offset: Any = 0, channel_multiplier: int = 0, **_: Any
) -> None:
    core.store(dst, _pattern_values(pattern, offset, channel_multiplier, dst.shape[0], core).astype(np.int32))


def affine_select(
    core: Core,
    dst: Access,
    pattern: Any,
    channel_multiplier: int,
    on_true_tile: Access,
    on_false_value: Any,
    cmp_op: str = "equal",
    offset: Any = 0,
    **_: Any,
) -> None:
    where = apply(cmp_op, _pattern_values(pattern, offset, channel_multiplier, dst.shape[0], core), 0)
    core.store(dst, np.where(where, core.value(on_true_tile), core.operand(on_false_value)))


def range_select(
    core: Core,
    dst: Access,
    on_true_tile: Access,
    comp_op0: str,
    comp_op1: str,
    bound0: Access,
    bound1: Access,
    reduce_cmd: str = "reset_reduce",
    reduce_res: Any = None,
    reduce_op: str = "maximum",
    range_start: Any = 0,
    on_false_value: float = -3.4028235e38,
    **_: Any,
) -> None:
    value = core.value(on_true_tile)
    index = (Expr.value(range_start, core.registers) + np.arange(value.shape[1]))[None, :].astype(F)
    mask = apply(comp_op0, index, core.value(bound0)) & apply(comp_op1, index, core.value(bound1))
    result = np.where(mask, value, F(on_false_value))
    core.store(dst, result)
    state = _accumulate(core, reduce_cmd, reduce_op, result.max(axis=1))
    if reduce_res is not None:
        core.store(reduce_res, state)


def select_reduce(
    core: Core,
    dst: Access,
    predicate: Access,
    on_true: Access,
    on_false: Any,
    reduce_res: Any = None,
    reduce_cmd: str = "idle",
    reduce_op: str = "maximum",
    reverse_pred: bool = False,
    **_: Any,
) -> None:
    mask = core.raw(predicate)
    mask = (mask.reshape(mask.shape[0], -1) != 0) ^ reverse_pred
    result = np.where(mask, core.value(on_true), core.operand(on_false))
    core.store(dst, result)
    state = _accumulate(core, reduce_cmd, reduce_op, result.max(axis=1))
    if reduce_res is not None:
        core.store(reduce_res, state)


def tensor_copy_predicated(
    core: Core, dst: Access, src: Any, predicate: Access, reverse_pred: bool = False, **_: Any
) -> None:
    target = core.memory.view(dst, core.registers)
    mask = (core.raw(predicate).reshape(target.shape) != 0) ^ reverse_pred
    if isinstance(src, Access):
        source = core.raw(src)
        value = (source if source.dtype == target.dtype else cast(source.astype(F), dst.dtype)).reshape(
            target.shape
        )
    else:
        value = cast(np.full(target.shape, core.operand(src), F), dst.dtype)
    target[...] = np.where(mask, value, target)


def bn_stats(core: Core, dst: Access, data: Access, **_: Any) -> None:
    value = core.value(data)
    parts = []
    for part in (value[:, 0::2], value[:, 1::2]):
        count = part.shape[1]
        mean = part.mean(axis=1) if count else np.zeros(value.shape[0], F)
        spread = ((part - mean[:, None]) ** 2).sum(axis=1)
        parts += [np.full(value.shape[0], count, F), mean, spread]
    core.store(dst, np.stack(parts, axis=1))


def bn_aggr(core: Core, dst: Access, data: Access, **_: Any) -> None:
    value = core.value(data)
    value = value.reshape(value.shape[0], -1, 3)
    count, mean, spread = value[..., 0], value[..., 1], value[..., 2]
    total = count.sum(axis=1)
    center = (count * mean).sum(axis=1) / total
    squares = spread.sum(axis=1) + (count * (mean - center[:, None]) ** 2).sum(axis=1)
    core.store(dst, np.stack([center, squares / total], axis=1))


def max8(core: Core, dst: Access, src: Access, **_: Any) -> None:
    core.store(dst, -np.sort(-core.value(src), axis=1, kind="stable")[:, :8])


def _match(value: np.ndarray, wanted: np.ndarray, order: Any) -> np.ndarray:
    """Index of the first not yet taken occurrence of each of eight values; -1 where there is none."""
    result = np.full(wanted.shape, -1, np.int64)
    for row in range(value.shape[0]):
        taken: set[int] = set()
        for place in order:
            for index in np.flatnonzero(value[row] == wanted[row, place]):
                if int(index) not in taken:
                    taken.add(int(index))
                    result[row, place] = index
                    break
    return result


def nc_find_index8(core: Core, dst: Access, data: Access, vals: Access, **_: Any) -> None:
    found = _match(core.value(data), core.value(vals), range(8))
    ones = 0xFFFF if dst.dtype == "uint16" else 0xFFFFFFFF
    core.memory.write(
        dst,
        core.registers,
        np.where(found < 0, ones, found).astype(np.uint16 if dst.dtype == "uint16" else np.uint32),
    )


def nc_match_replace8(
    core: Core, dst: Access, data: Access, vals: Access, imm: float, dst_idx: Any = None, **_: Any
) -> None:
    value, wanted = core.value(data).copy(), core.value(vals)
    found = _match(value, wanted, range(8))
    for row in range(value.shape[0]):
        for index in found[row]:
            if index >= 0:
                value[row, index] = imm
    core.store(dst, value)
    if dst_idx is not None:
        ones = 0xFFFF if dst_idx.dtype == "uint16" else 0xFFFFFFFF
        core.memory.write(
            dst_idx,
            core.registers,
            np.where(found < 0, ones, found).astype(np.uint16 if dst_idx.dtype == "uint16" else np.uint32),
        )


def nc_stream_shuffle(core: Core, dst: Access, src: Access, shuffle_mask: list[int], **_: Any) -> None:
    source = np.array(core.raw(src))
    source = source.reshape(source.shape[0], -1)
    view = core.memory.view(dst, core.registers)
    target = np.array(view).reshape(view.shape[0], -1)
    for row in range(target.shape[0]):
        quadrant, lane = divmod(row, 32)
        pick = shuffle_mask[lane]
        if pick != 255 and quadrant * 32 + pick < source.shape[0]:
            target[row] = source[quadrant * 32 + pick]
    view[...] = target.reshape(view.shape)


def local_gather(
    core: Core,
    dst: Access,
    src_buffer: Access,
    index: Access,
    num_elem_per_idx: int = 1,
    num_valid_indices: Any = None,
    **_: Any,
) -> None:
    source, indices = core.raw(src_buffer), core.raw(index)
    source = source.reshape(source.shape[0], -1)
    view = core.memory.view(dst, core.registers)
    target = np.array(view).reshape(view.shape[0], -1)
    for group in range(source.shape[0] // 16):
        rows = slice(group * 16, group * 16 + 16)
        picks = indices[rows].reshape(16, -1).T.reshape(-1).astype(np.int64)
        picks = picks if num_valid_indices is None else picks[:num_valid_indices]
        columns = (picks[:, None] + np.arange(num_elem_per_idx)).reshape(-1)
        target[rows, : columns.size] = source[rows][:, columns]
    view[...] = target.reshape(view.shape)


def nc_n_gather(core: Core, dst: Access, data: Access, indices: Access, **_: Any) -> None:
    raw, index = core.raw(data), core.raw(indices)
    core.memory.write(
        dst,
        core.registers,
        np.take_along_axis(
            raw.reshape(raw.shape[0], -1), index.reshape(index.shape[0], -1).astype(np.int64), axis=1
        ),
    )


def nonzero_with_count(
    core: Core, dst: Access, src: Access, index_offset: Any = 0, padding_val: int = -1, **_: Any
) -> None:
    value = core.value(src)
    view = core.memory.view(dst, core.registers)
    target = np.array(view).reshape(view.shape[0], -1)
    for row in range(0, value.shape[0], 16):
        found = np.flatnonzero(value[row]) + Expr.value(index_offset, core.registers)
        target[row] = padding_val
        target[row, : found.size] = found
        target[row, -1] = found.size
    view[...] = target.reshape(view.shape)


def sequence_bounds(core: Core, dst: Access, segment_ids: Access, **_: Any) -> None:
    ids = core.value(segment_ids)
    count = ids.shape[1]
    result = np.empty((ids.shape[0], 2, count), F)
    for row in range(ids.shape[0]):
        for i, segment in enumerate(ids[row]):
            same = np.flatnonzero(ids[row] == segment)
            result[row, :, i] = (count, -1) if segment == 0 else (same[0], same[-1] + 1)
    core.store(dst, result)


def topk(core: Core, val_dst: Access, idx_dst: Access, src: Access, n: int, **_: Any) -> None:
    value = core.value(src)
    order = np.argsort(-value, axis=1, kind="stable")[:, :n]
    core.store(val_dst, np.take_along_axis(value, order, axis=1))
    core.store(idx_dst, order.astype(np.int32))


# -- random numbers ------------------------------------------------------------------------------------
def rng(core: Core, dst: Access, **_: Any) -> None:
    view = core.memory.view(dst, core.registers)
    view[...] = core.random.integers(0, 2**32, view.shape, np.uint32).astype(view.dtype)


def rand2(core: Core, dst: Access, min: Any, max: Any, **_: Any) -> None:
    low, high = core.operand(min), core.operand(max)
    shape = core.value(dst).shape
    core.store(dst, low + core.random.random(shape, F) * (high - low))


def set_rng_seed(core: Core, src_seeds: Access, **_: Any) -> None:
    core.random = np.random.default_rng(abs(int(core.raw(src_seeds).reshape(-1)[0])))


def rand_set_state(core: Core, src_seeds: Access, **_: Any) -> None:
    core.random = np.random.default_rng(core.raw(src_seeds).reshape(-1).astype(np.uint64).tolist())


def rand_get_state(core: Core, dst: Access, **_: Any) -> None:
    rng(core, dst)


def dropout(core: Core, dst: Access, data: Access, prob: Any, **_: Any) -> None:
    value = core.value(data)
    core.store(dst, np.where(core.random.random(value.shape, F) < core.operand(prob), F(0), value))


# -- registers ---------------------------------------------------------------------------------------------
def register_load(core: Core, dst: Expr, src: Access, **_: Any) -> None:
    core.registers[dst.key] = int(core.raw(src).reshape(-1)[0])


def register_move(core: Core, dst: Expr, src: Any, **_: Any) -> None:
    core.registers[dst.key] = Expr.value(src, core.registers)


def register_store(core: Core, dst: Access, src: Any, **_: Any) -> None:
    core.store(dst, np.asarray([Expr.value(src, core.registers)]))


def device_print(core: Core, prefix: str, src: Access, **_: Any) -> None:
    (core.on_print or print)(prefix, np.array(core.raw(src)))
