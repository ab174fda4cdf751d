"""A straightforward NumPy interpretation of programs: the oracle of the property tests.

It follows the meaning of each instruction as documented, one instruction after the other, on whole arrays; it
knows nothing of time, host threads or uninitialised memory. `oracle_machine` holds memories and control,
`oracle_pointwise` the elementwise instructions, this file the others.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from oracle_machine import Operand
from oracle_pointwise import Pointwise
from oracle_values import F32, INTEGERS

from opentrn.core.execution import numpy_dtype
from opentrn.core.program import Program


class Oracle(Pointwise):
    """One rank with one core, or two cores without communication."""

    def do_select_reduce(
        self,
        dst: Any,
        predicate: Any,
        on_true: Any,
        on_false: Any,
        reduce_res: Any,
        reduce_cmd: str,
        reduce_op: str,
        reverse_pred: bool,
        engine: str,
    ) -> None:
        mask = (self.read(predicate.access) != 0) ^ reverse_pred
        other = self.floats(on_false.access) if isinstance(on_false, Operand) else F32(on_false)
        result = np.where(mask, self.floats(on_true.access), other)
        total = self.accumulate(
            "vector",
            reduce_op,
            reduce_cmd,
            result,
            self.floats(reduce_res.access) if reduce_cmd == "load_reduce" else 0,
        )
        self.write(dst.access, result)
        if reduce_res is not None:
            self.write(reduce_res.access, total)

    def do_range_select(
        self,
        dst: Any,
        on_true_tile: Any,
        comp_op0: str,
        comp_op1: str,
        bound0: Any,
        bound1: Any,
        reduce_cmd: str,
        reduce_res: Any,
        reduce_op: str,
        range_start: Any,
        on_false_value: float,
        engine: str,
    ) -> None:
        values = self.floats(on_true_tile.access)
        index = (np.arange(values.shape[1]) + self.number(range_start)).astype(F32)[None]
        mask = self.alu(comp_op0, index, self.scalar(bound0)) & self.alu(comp_op1, index, self.scalar(bound1))
        result = np.where(mask, values, F32(on_false_value))
        total = self.accumulate(
            "vector",
            reduce_op,
            reduce_cmd,
            result,
            self.floats(reduce_res.access) if reduce_cmd == "load_reduce" else 0,
        )
        self.write(dst.access, result)
        if reduce_res is not None:
            self.write(reduce_res.access, total)

    def do_affine_select(
        self,
        dst: Any,
        pattern: Any,
        channel_multiplier: Any,
        on_true_tile: Any,
        on_false_value: Any,
        cmp_op: str,
        offset: Any,
        engine: str,
    ) -> None:
        values = self.floats(on_true_tile.access)
        affine = (
            self.number(offset)
            + np.arange(values.shape[0])[:, None] * channel_multiplier
            + self.pattern(pattern)[None]
        )
        self.write(
            dst.access,
            np.where(self.alu(cmp_op, affine.astype(F32), F32(0)), values, F32(self.number(on_false_value))),
        )

    def do_bn_stats(self, dst: Any, data: Any, engine: str) -> None:
        values = self.floats(data.access).astype(np.float64)
        halves = []
        for half in (values[:, 0::2], values[:, 1::2]):
            count = np.full(len(values), half.shape[1], np.float64)
            halves += [
                count,
                half.mean(1) if half.shape[1] else count * 0,
                half.var(1) * count if half.shape[1] else count * 0,
            ]
        self.write(dst.access, np.stack(halves, 1))

    def do_bn_aggr(self, dst: Any, data: Any, engine: str) -> None:
        values = (
            self.floats(data.access).astype(np.float64).reshape(-1, self.floats(data.access).shape[1] // 3, 3)
        )
        count, mean, spread = values[..., 0], values[..., 1], values[..., 2]
        total = (count * mean).sum(1) / count.sum(1)
        variance = (spread + count * (mean - total[:, None]) ** 2).sum(1) / count.sum(1)
        self.write(dst.access, np.stack([total, variance], 1))

    def do_max8(self, dst: Any, src: Any, engine: str) -> None:
        self.write(dst.access, -np.sort(-self.floats(src.access), axis=1)[:, :8])

    def do_nc_find_index8(self, dst: Any, data: Any, vals: Any, engine: str) -> None:
        values, wanted = self.floats(data.access), self.floats(vals.access)
        missing = np.iinfo(numpy_dtype(self.dtype(dst))).max
        out = np.full(wanted.shape, missing, np.int64)
        for p in range(len(values)):
            seen: dict[float, int] = {}
            for k in range(8):
                hits = np.flatnonzero(values[p] == wanted[p, k])
                nth = seen.get(float(wanted[p, k]), 0)
                if nth < len(hits):
                    out[p, k] = hits[nth]
                seen[float(wanted[p, k])] = nth + 1
        self.write(dst.access, out)

    def do_nc_match_replace8(
        self, dst: Any, data: Any, vals: Any, imm: Any, dst_idx: Any, engine: str
    ) -> None:
        values, wanted = self.floats(data.access), self.floats(vals.access)
        result, taken = values.copy(), np.zeros(values.shape, bool)
        found = np.full(
            wanted.shape,
            np.iinfo(numpy_dtype(self.dtype(dst_idx))).max if dst_idx is not None else 0,
            np.int64,
        )
        for p in range(len(values)):
            for k in reversed(range(8)):
                hits = np.flatnonzero((values[p] == wanted[p, k]) & ~taken[p])
                if len(hits):
                    taken[p, hits[0]], result[p, hits[0]], found[p, k] = True, imm, hits[0]
        self.write(dst.access, result)
        if dst_idx is not None:
            self.write(dst_idx.access, found)

    def do_topk(self, val_dst: Any, idx_dst: Any, src: Any, n: int, engine: str) -> None:
        values = self.floats(src.access)
        order = np.argsort(-values, axis=1, kind="stable")[:, :n]
        self.write(val_dst.access, np.take_along_axis(values, order, 1))
        self.write(idx_dst.access, order)

    def do_nc_stream_shuffle(self, dst: Any, src: Any, shuffle_mask: list[int], engine: str) -> None:
        values, result = self.read(src.access), self.read(dst.access)
        for group in range(0, len(result), 32):
            for k in range(min(32, len(result) - group)):
                if shuffle_mask[k] != 255:
                    result[group + k] = values[group + shuffle_mask[k]].astype(F32).astype(result.dtype)
        self.write(dst.access, result, raw=True)

    def do_nc_transpose(self, dst: Any, data: Any, engine: str) -> None:
        self.write(dst.access, self.floats(data.access).T)

    def into_psum(self, dst: Any, product: np.ndarray, accumulate: Any) -> None:
        _, address, _ = self.place(dst.access)
        begun = self.begun_of(dst.access)[address].reshape(product.shape)
        add = begun if accumulate is None else np.full(product.shape, bool(accumulate))
        self.write(dst.access, np.where(add, self.floats(dst.access) + product, product))

    def do_nc_matmul(
        self,
        dst: Any,
        stationary: Any,
        moving: Any,
        is_stationary_onezero: bool,
        is_moving_onezero: bool,
        is_transpose: bool,
        accumulate: Any,
        tile_position: Any,
        tile_size: Any,
        perf_mode: str,
        engine: str,
    ) -> None:
        a, b = self.floats(stationary.access), self.floats(moving.access)
        if perf_mode.startswith("double_row"):
            a, b = np.concatenate(np.split(a, 2, axis=1)), np.concatenate(np.split(b, 2, axis=1))
        self.into_psum(dst, (a.astype(np.float64).T @ b.astype(np.float64)).astype(F32), accumulate)

    def unpack(self, operand: Any, scale: Any) -> np.ndarray:
        """[4 partitions, columns] floats of a packed operand and its scales."""
        packed, kind = self.read(operand.access), self.dtype(operand)
        if kind == "float4_e2m1fn_x4":
            codes = (packed[..., None] >> (4 * np.arange(4))).astype(np.uint8) & 15
            values = codes.view(ml_dtypes.float4_e2m1fn).astype(F32)
        else:
            small = ml_dtypes.float8_e4m3fn if kind == "float8_e4m3fn_x4" else ml_dtypes.float8_e5m2
            values = np.ascontiguousarray(packed)[..., None].view(small).reshape(*packed.shape, 4).astype(F32)
        rows = np.arange(len(packed))
        codes = self.read(scale.access)[rows // 32 * 32 + rows % 32 // 8].view(np.uint8)
        factor = np.exp2(codes.astype(np.float64) - 127)
        return (values * factor[..., None]).transpose(0, 2, 1).reshape(-1, packed.shape[1])

    def do_nc_matmul_mx(
        self,
        dst: Any,
        stationary: Any,
        moving: Any,
        stationary_scale: Any,
        moving_scale: Any,
        tile_position: Any,
        tile_size: Any,
        accumulate: Any,
        engine: str,
    ) -> None:
        a, b = self.unpack(stationary, stationary_scale), self.unpack(moving, moving_scale)
        self.into_psum(dst, (a.astype(np.float64).T @ b).astype(F32), accumulate)

    def do_quantize_mx(self, dst: Any, src: Any, dst_scale: Any, engine: str) -> None:
        values, kind = self.floats(src.access).astype(np.float64), self.dtype(dst)
        largest, limit = {
            "float8_e4m3fn_x4": (8, 448.0),
            "float8_e5m2_x4": (15, 57344.0),
            "float4_e2m1fn_x4": (2, 6.0),
        }[kind]
        rows, columns = values.shape[0], values.shape[1] // 4
        blocks = np.abs(values).reshape(rows // 8, 8, columns, 4).max(axis=(1, 3))
        exponent = np.where(
            blocks > 0, np.clip(np.floor(np.log2(np.where(blocks > 0, blocks, 1))) - largest, -127, 127), -127
        )
        scaled = np.clip(values / np.exp2(np.repeat(np.repeat(exponent, 8, 0), 4, 1)), -limit, limit).astype(
            F32
        )
        if kind == "float4_e2m1fn_x4":
            codes = (
                scaled.astype(ml_dtypes.float4_e2m1fn)
                .view(np.uint8)
                .reshape(rows, columns, 4)
                .astype(np.uint16)
            )
            packed = (codes << (4 * np.arange(4, dtype=np.uint16))).sum(-1).astype(np.uint16)
        else:
            small = ml_dtypes.float8_e4m3fn if kind == "float8_e4m3fn_x4" else ml_dtypes.float8_e5m2
            packed = np.ascontiguousarray(scaled.astype(small)).view(np.uint32).reshape(rows, columns)
        self.write(dst.access, packed, raw=True)
        scale = self.read(dst_scale.access)
        if len(scale) % 32 == 0:  # whole quadrants: the rows that hold no scale are zeroed
            scale[np.arange(len(scale)) % 32 >= 4] = 0
        block = np.arange(rows // 8)
        scale[block * 8 // 32 * 32 + block % 4] = (exponent + 127).astype(np.uint8)
        self.write(dst_scale.access, scale, raw=True)

    def do_local_gather(
        self,
        dst: Any,
        src_buffer: Any,
        index: Any,
        num_elem_per_idx: int,
        num_valid_indices: Any,
        engine: str,
    ) -> None:
        values, indices = self.floats(src_buffer.access), self.read(index.access).astype(np.int64)
        out = []
        for group in range(0, len(values), 16):
            order = indices[group : group + 16].flatten(order="F")[:num_valid_indices]
            columns = (order[:, None] + np.arange(num_elem_per_idx)).reshape(-1)
            out.append(values[group : group + 16][:, columns])
        self.write(dst.access, np.concatenate(out))

    def do_nc_n_gather(self, dst: Any, data: Any, indices: Any, engine: str) -> None:
        self.write(
            dst.access,
            np.take_along_axis(self.floats(data.access), self.read(indices.access).astype(np.int64), 1),
        )

    def do_nonzero_with_count(
        self, dst: Any, src: Any, index_offset: int, padding_val: int, engine: str
    ) -> None:
        values = self.floats(src.access)
        self.read(dst.access).shape[1]
        out = self.read(dst.access).astype(np.int64)
        for p in range(0, len(values), 16):  # the first partition of each GpSimd core
            out[p] = padding_val
            hits = np.flatnonzero(values[p])
            out[p, : len(hits)] = hits + index_offset
            out[p, -1] = len(hits)
        self.write(dst.access, out)

    def do_sequence_bounds(self, dst: Any, segment_ids: Any, engine: str) -> None:
        ids = self.floats(segment_ids.access)
        n = ids.shape[1]
        out = np.empty((len(ids), 2, n))
        for p in range(len(ids)):
            for i in range(n):
                start, end = i, i
                while start > 0 and ids[p, start - 1] == ids[p, i]:
                    start -= 1
                while end < n and ids[p, end] == ids[p, i]:
                    end += 1
                out[p, :, i] = (n, -1) if ids[p, i] == 0 else (start, end)
        self.write(dst.access, out.reshape(len(ids), -1))

    def do_dma_copy(
        self, dst: Any, src: Any, oob_mode: str, dge_mode: str, engine: str, priority: Any
    ) -> None:
        a, b = self.dtype(dst), self.dtype(src)
        values = self.read(src.access)
        same = a == b or "x4" in a or "x4" in b
        shape = self.place(dst.access)[1].shape
        values = values if same or (a in INTEGERS and b in INTEGERS) else values.astype(F32)
        self.write(dst.access, values.reshape(shape[0], -1), raw=same, only=self.place(src.access)[2])

    def do_dma_transpose(
        self, dst: Any, src: Any, axes: Any, dge_mode: str, oob_mode: str, priority: Any, engine: str
    ) -> None:
        counts = self.place(src.access)[1].shape
        order = axes or {2: [1, 0], 3: [2, 1, 0], 4: [3, 1, 2, 0]}[len(counts)]
        shape = self.place(dst.access)[1].shape
        self.write(
            dst.access, self.read(src.access).reshape(counts).transpose(order).reshape(shape[0], -1), raw=True
        )

    def do_dma_compute(
        self,
        dst: Any,
        srcs: list[Any],
        reduce_op: str,
        scales: Any,
        unique_indices: bool,
        oob_mode: str,
        engine: str,
    ) -> None:
        shape = self.place(dst.access)[1].shape
        total = None
        for k, src in enumerate(srcs):
            term = self.floats(src.access).reshape(shape[0], -1) * F32(scales[k] if scales else 1.0)
            total = term if total is None else np.asarray(self.alu(reduce_op, total, term), F32)
        self.write(dst.access, total)

    def do_register_move(self, dst: Any, src: Any, engine: str) -> None:
        self.registers[self.tables["expressions"][dst.expression][1]] = int(self.number(src))

    def do_register_load(self, dst: Any, src: Any, engine: str) -> None:
        self.registers[self.tables["expressions"][dst.expression][1]] = int(
            self.read(src.access).reshape(-1)[0]
        )

    def do_register_store(self, dst: Any, src: Any, engine: str) -> None:
        self.write(dst.access, np.full((1, 1), int(self.number(src))))


def interpret(
    program: Program, inputs: dict[str, np.ndarray], symbols: dict[str, int] | None = None
) -> dict[str, np.ndarray]:
    """Outputs by name, as execute returns them."""
    return Oracle(program, inputs, symbols).run()
