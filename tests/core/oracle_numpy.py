"""A straightforward NumPy interpretation of programs: the oracle of the property tests and the slow peer
of the benchmarks.

It follows the meaning of each instruction as documented, one instruction after the other, on whole arrays; it
knows nothing of time, host threads or uninitialised memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

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

F32 = np.float32
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "invert")
UNARY = ("rsqrt", "abs", "logical_not", "invert", "negative", "reciprocal", "square", "sqrt", "relu")
SBUF_BYTES, PSUM_BYTES = 1 << 18, 1 << 14
_erf = np.vectorize(math.erf, otypes=[np.float64])

ALU: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "max": np.maximum,
    "min": np.minimum,
    "power": lambda a, b: a**b,
    "mod": np.mod,
    "abs_max": lambda a, b: np.maximum(abs(a), abs(b)),
    "abs_min": lambda a, b: np.minimum(abs(a), abs(b)),
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "logical_and": lambda a, b: (a != 0) & (b != 0),
    "logical_or": lambda a, b: (a != 0) | (b != 0),
    "logical_xor": lambda a, b: (a != 0) ^ (b != 0),
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
    "bypass": lambda a, b: a,
    "rsqrt": lambda a, b: 1 / np.sqrt(a),
    "abs": lambda a, b: abs(a),
    "logical_not": lambda a, b: a == 0,
    "negative": lambda a, b: -a,
    "reciprocal": lambda a, b: 1 / a,
    "square": lambda a, b: a * a,
    "sqrt": lambda a, b: np.sqrt(a),
    "relu": lambda a, b: np.maximum(a, 0),
}


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _normal(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + _erf(x / math.sqrt(2)))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


# In float64: the core's fp32 results are compared with a tolerance of a few units in the last place.
ACTIVATION: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "copy": lambda x: x,
    "identity": lambda x: x,
    "exp": np.exp,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "gelu": lambda x: x * _normal(x),
    "gelu_apprx_tanh": _gelu_tanh,
    "gelu_apprx_sigmoid": lambda x: x * _sigmoid(1.702 * x),
    "gelu_dx": lambda x: _normal(x) + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi),
    "gelu_apprx_sigmoid_dx": lambda x: (
        _sigmoid(1.702 * x) + 1.702 * x * _sigmoid(1.702 * x) * (1 - _sigmoid(1.702 * x))
    ),
    "silu": lambda x: x * _sigmoid(x),
    "silu_dx": lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x))),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "erf": _erf,
    "erf_dx": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "square": lambda x: x * x,
    "abs": np.abs,
    "sign": np.sign,
    "sin": np.sin,
    "cos": np.cos,
    "arctan": np.arctan,
    "log": np.log,
    "tan": np.tan,
    "ceil": np.ceil,
    "floor": np.floor,
    "trunc": np.trunc,
    "rint": np.rint,
    "negative": np.negative,
    "expm1": np.expm1,
    "log1p": np.log1p,
    "exp2": np.exp2,
    "log2": np.log2,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "sigmoid_dx": lambda x: _sigmoid(x) * (1 - _sigmoid(x)),
    "tanh_dx": lambda x: 1 - np.tanh(x) ** 2,
    "relu_dx": lambda x: (x > 0).astype(np.float64),
}
IDENTITY = {
    "add": 0.0,
    "multiply": 1.0,
    "maximum": -np.inf,
    "max": -np.inf,
    "minimum": np.inf,
    "min": np.inf,
    "subtract": 0.0,
    "logical_or": 0.0,
    "logical_and": 1.0,
    "abs_max": 0.0,
}


def cast(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round to nearest even; integers saturate, NaN becomes 0."""
    values = np.asarray(values)
    target = numpy_dtype(dtype)
    if dtype in INTEGERS:
        info = np.iinfo(target)
        exact = values.astype(np.float64) if values.dtype.kind not in "iub" else values.astype(np.int64)
        rounded = (
            np.rint(np.nan_to_num(exact, nan=0.0, posinf=2.0**70, neginf=-(2.0**70)))
            if exact.dtype.kind == "f"
            else exact
        )
        return np.clip(
            rounded,
            float(info.min) if rounded.dtype.kind == "f" else info.min,
            float(info.max) if rounded.dtype.kind == "f" else info.max,
        ).astype(target)
    if dtype == "bool":
        return values != 0
    if dtype == "tfloat32":
        bits = values.astype(F32).view(np.uint32)
        return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~np.uint32(0x1FFF)).astype(np.uint32).view(F32)
    return values.astype(F32).astype(target)


class Oracle:
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
            return _Operand(payload)
        if kind in (INTEGER, REAL):
            return payload
        if kind == EXPRESSION:
            return (
                _Register(payload)
                if self.tables["expressions"][payload][0] == 3
                else self.expression(payload)
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
            if isinstance(value, _Operand) and 0 in self.place(value.access)[1].shape:
                return
        given["engine"] = ("unknown", "tensor", "scalar", "gpsimd", "dma", "vector", "sync")[engine]
        with np.errstate(all="ignore"):
            getattr(self, "do_" + name)(**given)

    # ------------------------------------------------------------------------------------ helpers of
    # instructions

    def scalar(self, operand: Any) -> Any:
        """A number, or a column of one value per partition."""
        if isinstance(operand, _Operand):
            return self.floats(operand.access).reshape(-1, 1)
        return F32(self.number(operand))

    def number(self, operand: Any) -> Any:
        return self.expression(operand.expression) if isinstance(operand, _Register) else operand

    def dtype(self, operand: _Operand) -> str:
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

    # ------------------------------------------------------------------------------------ instructions

    def do_tensor_begin(self, dst: Any, engine: str) -> None:
        self.begun.pop(self.tables["accesses"][dst.access][0], None)

    def begun_of(self, access: int) -> np.ndarray:
        return self.begun.setdefault(self.tables["accesses"][access][0], np.zeros(128 * PSUM_BYTES, bool))

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
        value = self.scalar(src) if not isinstance(src, _Operand) else self.floats(src.access)
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
                    if isinstance(operand, _Operand)
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
        other = self.floats(on_false.access) if isinstance(on_false, _Operand) else F32(on_false)
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


class _Operand:
    def __init__(self, access: int) -> None:
        self.access = access


class _Register:
    def __init__(self, expression: int) -> None:
        self.expression = expression


def interpret(
    program: Program, inputs: dict[str, np.ndarray], symbols: dict[str, int] | None = None
) -> dict[str, np.ndarray]:
    """Outputs by name, as execute returns them."""
    return Oracle(program, inputs, symbols).run()
