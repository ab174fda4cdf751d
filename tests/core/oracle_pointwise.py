"""Moves, elementwise instructions and reductions of the NumPy oracle."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from oracle_machine import Machine, Operand
from oracle_values import ACTIVATION, BITWISE, F32, IDENTITY, INTEGERS, cast


class Pointwise(Machine):
    def do_tensor_begin(self, dst: Any, engine: str) -> None:
        self.begun.pop(self.tables["accesses"][dst.access][0], None)

    def do_memset(self, dst: Any, value: Any, engine: str) -> None:
        shape = self.place(dst.access)[1].shape
        self.write(dst.access, np.full((shape[0], math.prod(shape[1:])), self.number(value)))

    def pattern(self, pattern: list[list[int]]) -> np.ndarray:
        values = np.zeros(1, np.int64)
        for step, count in pattern:
            values = (values[:, None] + np.arange(count)[None, :] * step).reshape(-1)
        return values

    def do_iota(self, dst: Any, pattern: Any, offset: Any, channel_multiplier: Any, engine: str) -> None:
        rows = self.place(dst.access)[1].shape[0]
        self.write(
            dst.access,
            self.number(offset)
            + np.arange(rows)[:, None] * channel_multiplier
            + self.pattern(pattern)[None, :],
        )

    def move(self, dst: Any, src: Any) -> None:
        a, b = self.dtype(dst), self.dtype(src)
        values = self.read(src.access)
        self.write(
            dst.access,
            values if a == b or (a in INTEGERS and b in INTEGERS) else values.astype(F32),
            raw=a == b,
        )

    def do_tensor_copy(self, dst: Any, src: Any, engine: str) -> None:
        self.move(dst, src)

    do_tensor_copy_dynamic_src = do_tensor_copy_dynamic_dst = do_tensor_copy

    def do_tensor_copy_predicated(
        self, dst: Any, src: Any, predicate: Any, reverse_pred: bool, engine: str
    ) -> None:
        mask = (self.read(predicate.access) != 0) ^ reverse_pred
        value = self.scalar(src) if not isinstance(src, Operand) else self.floats(src.access)
        old = self.read(dst.access)
        new = cast(np.broadcast_to(value, mask.shape), self.dtype(dst))
        self.write(dst.access, np.where(mask, new, old).astype(old.dtype), raw=True)

    def do_tensor_tensor(self, dst: Any, data1: Any, data2: Any, op: str, engine: str) -> None:
        exact = op in BITWISE or (
            engine == "gpsimd" and all(self.dtype(x) in INTEGERS for x in (dst, data1, data2))
        )
        if exact:
            a, b = (self.read(x.access) for x in (data1, data2))
            wide = (a, b) if op in ("left_shift", "right_shift") else (a.astype(np.int64), b.astype(np.int64))
            result = self.alu(op, *wide)
            wraps = op in BITWISE or self.read(dst.access).dtype.itemsize == 4
            self.write(dst.access, result, raw=wraps)
        else:
            self.write(dst.access, self.alu(op, self.floats(data1.access), self.floats(data2.access)))

    def do_tensor_scalar(
        self,
        dst: Any,
        data: Any,
        op0: str,
        operand0: Any,
        reverse0: bool,
        op1: Any,
        operand1: Any,
        reverse1: bool,
        engine: str,
    ) -> None:
        if (
            op0 in BITWISE
            or (op1 or "") in BITWISE
            or (engine == "gpsimd" and self.dtype(dst) in INTEGERS and self.dtype(data) in INTEGERS)
        ):
            values = self.read(data.access)
            kind = values.dtype

            def one(op: str, x: np.ndarray, operand: Any, reverse: bool) -> np.ndarray:
                y = (
                    self.read(operand.access).astype(np.int64)
                    if isinstance(operand, Operand)
                    else int(self.number(operand))
                )
                return np.asarray(self.alu(op, x if op.endswith("shift") else x.astype(np.int64), y, reverse))

            result = one(op0, values, operand0, reverse0)
            if op1:
                result = one(
                    op1, result.astype(kind) if op1.endswith("shift") else result, operand1, reverse1
                )
            wraps = op0 in BITWISE or (op1 or "") in BITWISE or self.read(dst.access).dtype.itemsize == 4
            self.write(dst.access, result, raw=wraps)
            return
        result = np.asarray(self.alu(op0, self.floats(data.access), self.scalar(operand0), reverse0), F32)
        if op1:
            result = self.alu(
                op1, result, self.scalar(operand1) if operand1 is not None else F32(0), reverse1
            )
        self.write(dst.access, result)

    def do_tensor_scalar_reduce(
        self,
        dst: Any,
        data: Any,
        op0: str,
        operand0: Any,
        reduce_op: str,
        reduce_res: Any,
        reverse0: bool,
        reduce_cmd: str,
        reduce_init: Any,
        reduce_res_negate: bool,
        engine: str,
    ) -> None:
        result = np.asarray(self.alu(op0, self.floats(data.access), self.scalar(operand0), reverse0), F32)
        total = self.accumulate("vector", reduce_op, reduce_cmd, result, reduce_init)
        self.write(dst.access, result)
        self.write(reduce_res.access, -total if reduce_res_negate else total)

    def do_tensor_scalar_cumulative(
        self, dst: Any, src: Any, op0: str, op1: str, imm0: Any, imm1: Any, reduce_cmd: str, engine: str
    ) -> None:
        values = np.asarray(self.alu(op0, self.floats(src.access), self.scalar(imm0)), F32)
        registers = self.chip[self.core]["vector"]
        rows = values.shape[0]
        last = registers[:rows].copy()
        if reduce_cmd in ("reset", "reset_reduce"):
            last[:] = IDENTITY[op1]
        if reduce_cmd == "load_reduce":
            last[:] = np.broadcast_to(np.asarray(self.scalar(imm1)).reshape(-1), rows)
        out = np.empty_like(values)
        for i in range(values.shape[1]):
            out[:, i] = last = np.asarray(self.alu(op1, last, values[:, i]), F32)
        registers[:rows] = last
        self.write(dst.access, out)

    def do_scalar_tensor_tensor(
        self,
        dst: Any,
        data: Any,
        op0: str,
        operand0: Any,
        op1: str,
        operand1: Any,
        reverse0: bool,
        reverse1: bool,
        engine: str,
    ) -> None:
        first = np.asarray(self.alu(op0, self.floats(data.access), self.scalar(operand0), reverse0), F32)
        self.write(dst.access, self.alu(op1, first, self.floats(operand1.access), reverse1))

    def do_tensor_tensor_scan(
        self,
        dst: Any,
        data0: Any,
        data1: Any,
        initial: Any,
        op0: str,
        op1: str,
        reverse0: bool,
        reverse1: bool,
        engine: str,
    ) -> None:
        a, b = self.floats(data0.access), self.floats(data1.access)
        last = np.broadcast_to(np.asarray(self.scalar(initial), F32).reshape(-1), a.shape[0])
        out = np.empty_like(a)
        for i in range(a.shape[1]):
            first = np.asarray(self.alu(op0, a[:, i], last, reverse0), F32)
            out[:, i] = last = np.asarray(self.alu(op1, first, b[:, i], reverse1), F32)
        self.write(dst.access, out)

    def do_tensor_reduce(
        self, dst: Any, op: str, data: Any, axis: list[int], negate: bool, keepdims: bool, engine: str
    ) -> None:
        counts = self.place(data.access)[1].shape
        values = self.floats(data.access).reshape(counts).astype(np.float64)
        axes = tuple(a if a >= 0 else a + len(counts) for a in axis)
        function = {
            "add": np.sum,
            "maximum": np.max,
            "max": np.max,
            "minimum": np.min,
            "min": np.min,
            "multiply": np.prod,
        }[op]
        result = function(values, axis=axes).reshape(counts[0], -1)
        self.write(dst.access, -result if negate else result)

    def do_tensor_partition_reduce(self, dst: Any, op: str, data: Any, engine: str) -> None:
        values = self.floats(data.access).astype(np.float64)
        self.write(
            dst.access,
            {"add": np.sum, "maximum": np.max, "max": np.max, "minimum": np.min}[op](values, axis=0)[None],
        )

    def do_activation(
        self,
        dst: Any,
        op: str,
        data: Any,
        bias: Any,
        scale: Any,
        reduce_op: Any,
        reduce_res: Any,
        reduce_cmd: str,
        engine: str,
    ) -> None:
        inner = self.floats(data.access) * self.scalar(scale) + (
            self.scalar(bias) if bias is not None else F32(0)
        )
        result = ACTIVATION[op](inner.astype(np.float64)).astype(F32)
        load = self.floats(reduce_res.access) if reduce_cmd == "load_reduce" else 0.0
        total = self.accumulate("scalar", reduce_op or "add", reduce_cmd, result, load)
        self.write(dst.access, result)
        if reduce_res is not None:
            self.write(reduce_res.access, total)

    def do_activation_reduce(
        self,
        dst: Any,
        op: str,
        data: Any,
        reduce_op: str,
        reduce_res: Any,
        bias: Any,
        scale: Any,
        engine: str,
    ) -> None:
        self.do_activation(dst, op, data, bias, scale, reduce_op, reduce_res, "reset_reduce", engine)

    def do_activate2(
        self,
        dst: Any,
        op: str,
        data: Any,
        imm0: Any,
        imm1: Any,
        op0: str,
        op1: str,
        relu_param: float,
        reverse0: bool,
        reverse1: bool,
        reduce_op: Any,
        reduce_res: Any,
        reduce_cmd: str,
        engine: str,
    ) -> None:
        inner = np.asarray(self.alu(op0, self.floats(data.access), self.scalar(imm0), reverse0), F32)
        inner = np.asarray(self.alu(op1, inner, self.scalar(imm1), reverse1), F32)
        result = ACTIVATION[op](inner.astype(np.float64)).astype(F32)
        total = self.accumulate("scalar", reduce_op or "add", reduce_cmd, result)
        self.write(dst.access, result)
        if reduce_res is not None:
            self.write(reduce_res.access, total)

    def do_exponential(
        self,
        dst: Any,
        src: Any,
        max_value: Any,
        reduce_res: Any,
        reduce_cmd: str,
        reduce_init: Any,
        engine: str,
    ) -> None:
        result = np.exp((self.floats(src.access) - self.scalar(max_value)).astype(np.float64)).astype(F32)
        total = self.accumulate("vector", "add", reduce_cmd, result, reduce_init)
        self.write(dst.access, result)
        if reduce_res is not None:
            self.write(reduce_res.access, total)

    def do_reciprocal(self, dst: Any, data: Any, engine: str) -> None:
        self.write(dst.access, 1 / self.floats(data.access))
