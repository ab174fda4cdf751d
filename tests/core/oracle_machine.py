"""The machine of the NumPy oracle: memories, indices and control flow of a program, without instructions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from oracle_values import ALU, F32, IDENTITY, cast

from opentrn.core.execution import numpy_dtype
from opentrn.core.program import Program
from opentrn.core.table import instructions
from opentrn.core.text import (
    ACCESS,
    BOOLEAN,
    CONSTANT,
    DTYPES,
    EXPRESSION,
    INTEGER,
    LIST,
    LOOP,
    LOOPS,
    REAL,
    SPACES,
    SYMBOL,
    TEXT,
)

SBUF_BYTES, PSUM_BYTES = 1 << 18, 1 << 14


class Operand:
    def __init__(self, access: int) -> None:
        self.access = access


class Register:
    def __init__(self, expression: int) -> None:
        self.expression = expression


class Machine:
    """One rank with one core, or two cores without communication."""

    def __init__(
        self, program: Program, inputs: dict[str, np.ndarray], symbols: dict[str, int] | None = None
    ) -> None:
        self.program, self.tables, self.symbols = program, program.tables(), dict(symbols or {})
        self.slots: dict[int, int] = {}
        self.registers: dict[int, int] = {}
        self.hbm: dict[int, np.ndarray] = {}
        self.begun: dict[
            int, np.ndarray
        ] = {}  # PSUM tensor: which bytes of PSUM were written through it since it began
        self.chip: list[dict[str, np.ndarray]] = []
        for _ in range(program.cores):
            self.chip.append(
                {
                    "sbuf": np.zeros((128, SBUF_BYTES), np.uint8),
                    "psum": np.zeros((128, PSUM_BYTES), np.uint8),
                    "vector": np.zeros(128, F32),
                    "scalar": np.zeros(128, F32),
                }
            )
        self.core = 0
        for index, tensor in enumerate(program.tensors):
            if tensor.space != "hbm":
                continue
            if tensor.kind in ("input", "inout"):
                self.hbm[index] = np.ascontiguousarray(inputs[tensor.name]).reshape(-1).view(np.uint8).copy()
            elif tensor.kind == "constant":
                self.hbm[index] = np.frombuffer(self.tables["buffers"][index][-1], np.uint8).copy()
            else:
                count = math.prod(program.shape_of(tensor, self.symbols)) * numpy_dtype(tensor.dtype).itemsize
                self.hbm[index] = np.zeros(count, np.uint8)

    # ------------------------------------------------------------------------------------ indices and memory

    def expression(self, index: int) -> int:
        op, a, b, value = self.tables["expressions"][index]
        if op == CONSTANT:
            return value
        if op == LOOP:
            return self.slots[a]
        if op == SYMBOL:
            return self.symbols[self.tables["symbols"][a]]
        if op == 3:
            return self.registers[a]
        x, y = self.expression(a), self.expression(b)
        return {
            4: lambda: x + y,
            5: lambda: x * y,
            6: lambda: x // y,
            7: lambda: -(-x // y),
            8: lambda: x % y,
            9: lambda: min(x, y),
            10: lambda: max(x, y),
        }[op]()

    def place(self, access: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """(memory, byte address of each element in it, valid mask) with the shape of the pattern."""
        buffer, dtype, offset, dims, scalar, scalar_expr, scalar_stride, vector, vector_stride, bound = (
            self.tables["accesses"][access]
        )
        _name, space, _kind, own, _core, shape, partition, byte, *_ = self.tables["buffers"][buffer]
        size = numpy_dtype(DTYPES[dtype]).itemsize
        counts = [self.expression(count) for _, count in dims]
        at = np.full(counts, self.expression(offset), np.int64)
        if scalar >= 0:
            at += int(self.read(scalar).reshape(-1)[0]) * self.expression(scalar_stride)
        if scalar_expr >= 0:
            at += self.expression(scalar_expr) * self.expression(scalar_stride)
        valid = None
        for axis, (stride, count) in enumerate(dims):
            steps = np.arange(self.expression(count)) * self.expression(stride)
            if axis == 0 and vector >= 0:
                indices = self.read(vector).astype(np.int64).T.reshape(-1)[: counts[0]]
                steps = indices * self.expression(vector_stride)
                valid = np.ones(counts, bool)
                if bound >= 0:
                    inside = (indices >= 0) & (indices < self.expression(bound))
                    steps = np.where(inside, steps, 0)
                    valid &= inside.reshape([-1] + [1] * (len(counts) - 1))
            at += steps.reshape([-1 if k == axis else 1 for k in range(len(counts))])
        if SPACES[space] == "hbm":
            return self.hbm[buffer], at * size, valid
        row = math.prod(self.expression(s) for s in shape[1:]) * numpy_dtype(DTYPES[own]).itemsize // size
        memory = self.chip[self.core][SPACES[space]]
        return memory.reshape(-1), (partition + at // row) * memory.shape[1] + byte + at % row * size, valid

    def read(self, access: int) -> np.ndarray:
        """[partitions, elements] in the access's own dtype."""
        memory, address, _ = self.place(access)
        dtype = numpy_dtype(DTYPES[self.tables["accesses"][access][1]])
        flat = address.reshape(address.shape[0], -1)
        raw = memory[flat[..., None] + np.arange(dtype.itemsize)]
        return np.ascontiguousarray(raw).view(dtype)[..., 0]

    def floats(self, access: int) -> np.ndarray:
        return self.read(access).astype(F32)

    def write(
        self, access: int, values: np.ndarray, raw: bool = False, only: np.ndarray | None = None
    ) -> None:
        """raw: values already are in the access's dtype. only: mask of the elements to store."""
        memory, address, valid = self.place(access)
        if only is not None:
            valid = only.reshape(address.shape) if valid is None else valid & only.reshape(address.shape)
        name = DTYPES[self.tables["accesses"][access][1]]
        dtype = numpy_dtype(name)
        stored = values.astype(dtype) if raw else cast(values, name)
        flat = address.reshape(address.shape[0], -1)
        stored = np.ascontiguousarray(np.broadcast_to(stored.reshape(flat.shape), flat.shape))
        data = stored[..., None].view(np.uint8).reshape(*flat.shape, dtype.itemsize)
        if valid is not None:
            keep = valid.reshape(flat.shape)
            flat, data = flat[keep], data[keep]
        memory[flat[..., None] + np.arange(dtype.itemsize)] = data
        if self.tables["buffers"][self.tables["accesses"][access][0]][1] == 2:
            self.begun_of(access)[flat[..., None] + np.arange(dtype.itemsize)] = True

    # ------------------------------------------------------------------------------------ control

    def run(self) -> dict[str, np.ndarray]:
        for core in range(self.program.cores):
            self.core = core
            self.steps(0, len(self.tables["steps"][self.core]))
        return {
            tensor.name: self.hbm[index]
            .view(numpy_dtype(tensor.dtype))
            .reshape(self.program.shape_of(tensor, self.symbols))
            for index, tensor in enumerate(self.program.tensors)
            if tensor.kind in ("output", "inout")
        }

    def steps(self, at: int, end: int) -> None:
        steps = self.tables["steps"][self.core]
        while at < end:
            kind, index = steps[at]
            if kind == 0:
                self.instruction(index)
                at += 1
                continue
            depth, close = 1, at + 1
            while depth:
                depth += {0: 0, 1: 1, 2: -1}[steps[close][0]]
                close += 1
            variable, start, stop, step, condition, loop_kind, _ = self.tables["loops"][index]
            if LOOPS[loop_kind] == "while":
                while self.registers[condition]:
                    self.steps(at + 1, close - 1)
            else:
                for value in range(self.expression(start), self.expression(stop), self.expression(step)):
                    self.slots[variable] = value
                    self.steps(at + 1, close - 1)
            at = close

    def value(self, value: tuple[int, Any]) -> Any:
        kind, payload = value
        if kind == ACCESS:
            return Operand(payload)
        if kind in (INTEGER, REAL):
            return payload
        if kind == EXPRESSION:
            return (
                Register(payload) if self.tables["expressions"][payload][0] == 3 else self.expression(payload)
            )
        if kind == TEXT:
            return self.tables["texts"][payload]
        if kind == LIST:
            return [self.value(item) for item in self.tables["lists"][payload]]
        return bool(payload) if kind == BOOLEAN else None

    def instruction(self, index: int) -> None:
        name, engine, arguments, _, _ = self.tables["instructions"][index]
        parameters = instructions()[name].parameters
        given = {
            p.name: self.value(v)
            for p, v in zip(parameters, self.tables["arguments"][arguments], strict=True)
        }
        for value in given.values():
            if isinstance(value, Operand) and 0 in self.place(value.access)[1].shape:
                return
        given["engine"] = ("unknown", "tensor", "scalar", "gpsimd", "dma", "vector", "sync")[engine]
        with np.errstate(all="ignore"):
            getattr(self, "do_" + name)(**given)

    # ------------------------------------------------------------------------------------ helpers of
    # instructions

    def scalar(self, operand: Any) -> Any:
        """A number, or a column of one value per partition."""
        if isinstance(operand, Operand):
            return self.floats(operand.access).reshape(-1, 1)
        return F32(self.number(operand))

    def number(self, operand: Any) -> Any:
        return self.expression(operand.expression) if isinstance(operand, Register) else operand

    def dtype(self, operand: Operand) -> str:
        return DTYPES[self.tables["accesses"][operand.access][1]]

    def alu(self, op: str, a: Any, b: Any, reverse: bool = False) -> Any:
        if op in ("left_shift", "right_shift"):
            bits = np.asarray(a).dtype.itemsize * 8
            x, y = (b, a) if reverse else (a, b)
            wide = np.asarray(x).astype(np.int64) & ((1 << bits) - 1)
            return (wide << y if op == "left_shift" else wide >> y) & ((1 << bits) - 1)
        return ALU[op](b, a) if reverse else ALU[op](a, b)

    def reduce(self, op: str, values: np.ndarray, start: np.ndarray) -> np.ndarray:
        total = {
            "add": np.sum,
            "subtract": np.sum,
            "multiply": np.prod,
            "maximum": np.max,
            "max": np.max,
            "minimum": np.min,
            "min": np.min,
        }[op](values.astype(np.float64), axis=1)
        return ALU["add" if op == "subtract" else op](start.astype(np.float64), total)

    def accumulate(self, kind: str, op: str, command: str, values: np.ndarray, load: Any = 0.0) -> np.ndarray:
        registers, count = self.chip[self.core][kind], values.shape[0]
        if command in ("reset", "reset_reduce"):
            registers[:count] = IDENTITY[op]
        if command == "load_reduce":
            registers[:count] = np.broadcast_to(np.asarray(load, F32).reshape(-1), count)
        if command in ("reduce", "reset_reduce", "load_reduce"):
            registers[:count] = self.reduce(op, values, registers[:count])
        return registers[:count].reshape(-1, 1)

    def begun_of(self, access: int) -> np.ndarray:
        return self.begun.setdefault(self.tables["accesses"][access][0], np.zeros(128 * PSUM_BYTES, bool))
