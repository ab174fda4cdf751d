"""Records instructions as a tree of loops; no checks beyond what the interpretation needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from opentrn.nki.dtypes import ITEMSIZE


class Expr:
    """An integer that is known when the program runs: a function of the register file."""

    def __init__(self, evaluate: Callable[[dict[Any, int]], int], key: Any = None) -> None:
        self.evaluate, self.key = evaluate, key

    @staticmethod
    def value(item: Any, registers: dict[Any, int]) -> int:
        return item.evaluate(registers) if isinstance(item, Expr) else int(item)

    def __add__(self, other: Any) -> Expr:
        return Expr(lambda r: self.evaluate(r) + Expr.value(other, r))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Expr:
        return Expr(lambda r: self.evaluate(r) - Expr.value(other, r))

    def __mul__(self, other: Any) -> Expr:
        return Expr(lambda r: self.evaluate(r) * Expr.value(other, r))

    __rmul__ = __mul__


@dataclass
class Tensor:
    """name, space ("hbm", "sbuf", "psum"), shape, dtype, address, kind and owning core."""

    id: int
    name: str
    space: str
    shape: tuple[int, ...]
    dtype: str
    address: Any = None
    kind: str = ""
    core: int = 0
    data: Any = None

    @property
    def partition_bytes(self) -> int:
        return math.prod(self.shape[1:]) * ITEMSIZE[self.dtype]


@dataclass
class Access:
    """`.ap()` of a tensor, with its runtime parts."""

    tensor: Tensor
    pattern: tuple[tuple[int, int], ...]
    offset: Any
    dtype: str
    scalar_offset: Any = None
    scalar_stride: int = 1
    vector_offset: Any = None
    vector_stride: int = 1
    vector_bound: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(count for _, count in self.pattern)


@dataclass
class Instruction:
    name: str
    arguments: dict[str, Any]
    source: tuple[str, int]


@dataclass
class Loop:
    """A counted loop (`variable` set) or a while loop over `condition`."""

    variable: Any = None
    start: Any = 0
    stop: Any = 0
    step: int = 1
    condition: Any = None
    body: list[Any] = field(default_factory=list)


@dataclass
class Program:
    tensors: list[Tensor]
    bodies: list[list[Any]]
    name: str

    @property
    def instruction_count(self) -> int:
        def count(body: list[Any]) -> int:
            return sum(count(item.body) if isinstance(item, Loop) else 1 for item in body)

        return sum(count(body) for body in self.bodies)


class Builder:
    """The surface of `opentrn.core.Builder` that the front end uses."""

    def __init__(self, chip: str = "trn2", cores: int = 1, name: str = "kernel") -> None:
        self.chip, self.cores, self.name = chip, cores, name
        self.tensors: list[Tensor] = []
        self.named: dict[str, Tensor] = {}
        self.bodies: list[list[Any]] = [[] for _ in range(cores)]
        self._stack: list[list[Any]] = [self.bodies[0]]
        self._core = 0
        self._line = ("", 0)
        self._registers = 0

    def core(self, number: int) -> None:
        self._core = number
        self._stack = [self.bodies[number]]

    def source(self, file: str, line: int) -> None:
        self._line = (file, line)

    def _new(self, **fields: Any) -> Tensor:
        tensor = Tensor(len(self.tensors), core=self._core, **fields)
        self.tensors.append(tensor)
        self._stack[-1].append(Instruction("tensor_begin", {"tensor": tensor}, self._line))
        return tensor

    def hbm(self, name: str, shape: Any, dtype: str, kind: str = "input", data: Any = None) -> Tensor:
        if kind != "private" and name in self.named:
            return self.named[name]
        tensor = self._new(name=name, space="hbm", shape=tuple(shape), dtype=dtype, kind=kind, data=data)
        self.named[name] = tensor
        return tensor

    def sbuf(self, name: str, shape: Any, dtype: str, address: Any = None) -> Tensor:
        return self._new(name=name, space="sbuf", shape=tuple(shape), dtype=dtype, address=address)

    def psum(self, name: str, shape: Any, dtype: str, address: Any = None) -> Tensor:
        return self._new(name=name, space="psum", shape=tuple(shape), dtype=dtype, address=address)

    def set_kind(self, tensor: Tensor, kind: str) -> None:
        tensor.kind = kind

    def access(
        self, tensor: Tensor, pattern: Any = None, offset: Any = 0, dtype: str | None = None, **indirect: Any
    ) -> Access:
        dtype = dtype or tensor.dtype
        if pattern is None:
            counts, step, pairs = tensor.shape, 1, []
            for count in reversed(counts):
                pairs.append((step, count))
                step *= count
            pattern = tuple(reversed(pairs))
        return Access(tensor, tuple(pattern), offset, dtype, **indirect)

    def emit(self, name: str, /, **arguments: Any) -> None:
        self._stack[-1].append(Instruction(name, arguments, self._line))

    # -- loops and registers
    def register(self, initial: Any = None) -> Expr:
        self._registers += 1
        key = ("register", self._core, self._registers)
        result = Expr(lambda r: r[key], key)
        if initial is not None:
            self.emit("register_move", dst=result, src=initial)
        return result

    def loop_begin(self, start: Any, stop: Any, step: int = 1, kind: str = "sequential") -> Expr:
        self._registers += 1
        key = ("loop", self._core, self._registers)
        loop = Loop(key, start, stop, step)
        self._stack[-1].append(loop)
        self._stack.append(loop.body)
        return Expr(lambda r: r[key], key)

    def while_begin(self, condition: Any) -> None:
        loop = Loop(condition=condition)
        self._stack[-1].append(loop)
        self._stack.append(loop.body)

    def loop_end(self) -> None:
        self._stack.pop()

    def unroll_begin(self) -> None: ...
    def unroll_iteration(self) -> None: ...
    def unroll_end(self) -> None: ...
    def affine_begin(self) -> None: ...
    def affine_iteration(self) -> None: ...
    def affine_end(self) -> None: ...
    def keep_begin(self) -> None: ...
    def keep_end(self) -> None: ...

    def finish(self, capacity: bool = True) -> Program:
        return Program(self.tensors, self.bodies, self.name)
