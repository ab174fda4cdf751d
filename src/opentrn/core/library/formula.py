"""Formulas of elementwise operators → engine instructions on tiles.

A formula is Python arithmetic over operands: `y0 = x0 * silu_dx(x1)`. Results are y0, y1 …, inputs x0, x1
…, names set earlier in the formula are intermediate tiles, any other name is a number known to the host. A
call is an activation of the Scalar engine, `select(condition, a, b)`, `random_bits()` or `uniform()`.
Arithmetic of two tiles is one `tensor_tensor` of the Vector engine, of a tile and one or two numbers one
`tensor_scalar`, and number * tile + tile one `scalar_tensor_tensor`. What the Scalar engine can do as well
goes to whichever of the two has less to do.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from opentrn.core.machine import constants as machine_constants
from opentrn.errors import ConfigurationError

_ARITHMETIC = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.Pow: "power",
    ast.Mod: "mod",
    ast.BitAnd: "bitwise_and",
    ast.BitOr: "bitwise_or",
    ast.BitXor: "bitwise_xor",
    ast.LShift: "left_shift",
    ast.RShift: "arithmetic_shift_right",
}
_COMPARISON = {
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
}
# tensor_scalar of the Scalar engine: what its multiply-add does.
_ON_SCALAR = {"add", "subtract", "multiply"}
_COMMUTES = {"add", "multiply"}
# Weights of the choice between engines, not times.
_VECTOR_GHZ, _SCALAR_GHZ, _GPSIMD_GHZ = 0.96, 1.2, 1.2
_HALF = ("bfloat16", "float16")
_BYTES = {"float32": 4, "int32": 4, "uint32": 4, "bfloat16": 2, "float16": 2, "int16": 2}
_PARTITIONS = 128
LONG = 6  # operands; a formula of more is long
_TWO_TILES = {"maximum", "minimum", "logical_and", "logical_or", "logical_xor"}
_ONE_TILE = {"logical_not": ("equal", 0.0), "invert": ("bitwise_xor", -1)}


@dataclass(frozen=True)
class Value:
    """A tile in work: `access` covers what the formula walks over; `column`: one value per partition."""

    access: Any
    column: bool = False
    named: bool = True  # else used once, and what is made of it may take its place


@functools.cache
def parse(formula: str) -> tuple[ast.Assign, ...]:
    """The assignments of a formula. ConfigurationError where it is none."""
    try:
        statements = ast.parse(formula).body
    except SyntaxError as error:
        raise ConfigurationError(f"formula {formula!r} is not Python: {error.msg}") from error
    for statement in statements:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            raise ConfigurationError(f"formula {formula!r} has something else than assignments to names")
    return tuple(statements)  # type: ignore[arg-type]


@functools.cache
def reads(formula: str) -> frozenset[int]:
    """Numbers of the inputs that a formula uses."""
    return _numbered(formula, "x", ast.Load)


@functools.cache
def order(formula: str) -> tuple[int, ...]:
    """The same, by when each is first used."""
    found = (
        int(node.id[1:])
        for statement in parse(formula)
        for node in ast.walk(statement.value)
        if isinstance(node, ast.Name) and node.id[0] == "x" and node.id[1:].isdecimal()
    )
    return tuple(dict.fromkeys(found))


@functools.cache
def results(formula: str) -> frozenset[int]:
    """Numbers of the results that a formula sets."""
    return _numbered(formula, "y", ast.Store)


def _numbered(formula: str, letter: str, context: type[ast.expr_context]) -> frozenset[int]:
    return frozenset(
        int(node.id[1:])
        for statement in parse(formula)
        for node in ast.walk(statement)
        if isinstance(node, ast.Name)
        and isinstance(node.ctx, context)
        and node.id[0] == letter
        and node.id[1:].isdecimal()
    )


class Emitter(Protocol):
    """Takes instructions, as the builder does."""

    chip: str

    def emit(self, instruction: str, **arguments: Any) -> None: ...


class Evaluation:
    """One pass of a formula over one set of tiles.

    inputs, outputs: tiles by number; an input that is not there is a number that the host knows. tile:
    makes a temporary (an access) for a whole value, `column_tile` one for a value per partition. constants:
    numbers of the formula by name; a name without one is 1 (times do not depend on it).
    """

    def __init__(
        self,
        builder: Emitter,
        inputs: dict[int, Value],
        outputs: dict[int, Any],
        tile: Any,
        column_tile: Any,
        constants: Mapping[str, float],
    ) -> None:
        self.b, self.outputs = builder, outputs
        self.known = {f"x{k}": value for k, value in inputs.items()}
        self.new_tile, self.column_tile, self.constants = tile, column_tile, constants
        self.made: list[Any] = []
        self.load = {"vector": 0.0, "scalar": 0.0, "gpsimd": 0.0}
        # Where GpSimd and the Vector engine share a port to SBUF, one of them waits for the other.
        chip = machine_constants(builder.chip)
        self.helped = not chip["vector_gpsimd_share_port"]
        moved = [_BYTES.get(each.dtype, 1) for each in self._moved(inputs, outputs)]
        rate = chip["dma_engines"] * chip["dma_engine_bytes_per_ns"]
        # ns of the DMA engines for one element of each partition. Long formulas (optimizers) use all engines.
        self.moving = _PARTITIONS * sum(moved) / rate if len(moved) <= LONG else 0.0

    @staticmethod
    def _moved(inputs: dict[int, Value], outputs: dict[int, Any]) -> list[Any]:
        return [value.access for value in inputs.values() if not value.column] + list(outputs.values())

    def run(self, formula: str) -> None:
        for statement in parse(formula):
            name = statement.targets[0].id  # type: ignore[attr-defined]
            result = name[0] == "y" and name[1:].isdecimal()
            into = self.outputs[int(name[1:])] if result else None
            value = self.value(statement.value, into)
            if into is not None and self._is_result(value, into):
                self.outputs[int(name[1:])] = value.access  # type: ignore[union-attr]
            elif into is not None and (not isinstance(value, Value) or value.access is not into):
                value = self._move(value, into)
            if isinstance(value, Value):
                self.known[name] = dataclasses.replace(value, named=True)

    def tile(self, dtype: str = "float32") -> Any:
        """A temporary for a whole value."""
        self.made.append(self.new_tile(dtype))
        return self.made[-1]

    def _is_result(self, value: Value | float, into: Any) -> bool:
        """Whether an intermediate tile can be stored as it is."""
        return (
            isinstance(value, Value)
            and not value.column
            and value.access is not into
            and value.access.dtype == into.dtype
            and any(value.access is made for made in self.made)
        )

    # ---- values ----------------------------------------------------------------------------------

    def value(self, node: ast.expr, into: Any = None) -> Value | float:
        """A number, or the tile that holds the value: `into` where given and made here."""
        if isinstance(node, ast.Constant):
            return float(node.value)  # type: ignore[arg-type]
        if isinstance(node, ast.Name):
            known = self.known.get(node.id)
            return float(self.constants.get(node.id, 1.0)) if known is None else known
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.value(node.operand)
            return (
                -inner if isinstance(inner, float) else self._with_number("multiply", inner, -1.0, into=into)
            )
        if isinstance(node, ast.BinOp):
            return self._arithmetic(node, into)
        if isinstance(node, ast.Compare):
            left, right = self.value(node.left), self.value(node.comparators[0])
            return self._two(_COMPARISON[type(node.ops[0])], left, right, into)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            scaled = self._scaled_activation(node, into)
            if scaled is not None:
                return scaled
            return self._call(node.func.id, [self.value(argument) for argument in node.args], into)
        raise ConfigurationError(f"a formula cannot hold {ast.dump(node)}")

    def _arithmetic(self, node: ast.BinOp, into: Any) -> Value | float:
        op = _ARITHMETIC[type(node.op)]
        fused = self._fused(node, op, into) or self._shifted(node, op, into) or self._chained(node, op, into)
        if fused is not None:
            return fused
        return self._two(op, self.value(node.left), self.value(node.right), into)

    def _fused(self, node: ast.BinOp, op: str, into: Any) -> Value | None:
        """number * tile ± tile (either way round for a sum) in one instruction."""
        if op not in ("add", "subtract"):
            return None
        for product, other in ((node.left, node.right), (node.right, node.left)):
            if op == "subtract" and product is node.right:
                continue
            if not (isinstance(product, ast.BinOp) and isinstance(product.op, ast.Mult)):
                continue
            for number, tile in ((product.left, product.right), (product.right, product.left)):
                if not self._is_number(number) or self._is_number(tile):
                    continue
                if self._is_number(other):
                    continue
                first, second, factor = self.value(tile), self.value(other), self.value(number)
                assert isinstance(first, Value) and isinstance(second, Value)
                if first.column or second.column:
                    return self._two(op, self._two("multiply", first, factor), second, into)  # type: ignore[return-value, misc]
                if self._apart_is_faster(first):
                    scaled = self._with_number("multiply", first, factor)
                    return self._tensors(op, scaled, second, into, "gpsimd")
                return self._scalar_tensor_tensor(first, "multiply", factor, op, second, False, into)
        return None

    def _apart_is_faster(self, tile: Value) -> bool:
        """Whether the Scalar engine's product and GpSimd's sum come before one instruction of the Vector
        engine, where that engine would be slower than the DMA engines.
        """
        apart = max(self.load["scalar"] + 1 / _SCALAR_GHZ, self.load["gpsimd"] + 2 / _GPSIMD_GHZ)
        alone = self.load["vector"] + 2 / _VECTOR_GHZ
        return self.helped and apart < alone and alone > self.moving

    def _shifted(self, node: ast.BinOp, op: str, into: Any) -> Value | None:
        """tile op (tile ± number) in one instruction."""
        inner = node.right
        if not (isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add | ast.Sub)):
            return None
        if self._is_number(node.left) or self._is_number(inner.left) or not self._is_number(inner.right):
            return None
        data, other = self.value(inner.left), self.value(node.left)
        assert isinstance(data, Value) and isinstance(other, Value)
        number, first = self.value(inner.right), _ARITHMETIC[type(inner.op)]
        if data.column or other.column:
            return self._two(op, other, self._with_number(first, data, number), into)  # type: ignore[return-value]
        return self._scalar_tensor_tensor(data, first, number, op, other, True, into)

    def _scalar_tensor_tensor(
        self, data: Value, op0: str, number: Any, op1: str, other: Value, reverse: bool, into: Any
    ) -> Value:
        """(data op0 number) op1 other, or other op1 (data op0 number)."""
        target = self._target(False, into, data, other)
        self.load["vector"] += 2 / _VECTOR_GHZ
        self.b.emit(
            "scalar_tensor_tensor",
            dst=target,
            data=data.access,
            op0=op0,
            operand0=number,
            op1=op1,
            operand1=other.access,
            reverse1=reverse,
        )
        return Value(target, named=False)

    def _scaled_activation(self, node: ast.Call, into: Any) -> Value | None:
        """function(number * tile): the Scalar engine scales as it applies a function."""
        name = node.func.id  # type: ignore[attr-defined]
        only = node.args[0] if len(node.args) == 1 else None
        if name in _ONE_TILE or not (isinstance(only, ast.BinOp) and isinstance(only.op, ast.Mult)):
            return None
        if not self._is_number(only.left) or self._is_number(only.right):
            return None
        data, scale = self.value(only.right), self.value(only.left)
        assert isinstance(data, Value)
        return self._activation(name, data, into, scale)

    def _chained(self, node: ast.BinOp, op: str, into: Any) -> Value | None:
        """(tile op number) op number in one instruction."""
        inner = node.left
        if not (isinstance(inner, ast.BinOp) and self._is_number(node.right)):
            return None
        first = _ARITHMETIC[type(inner.op)]
        tile, number, reverse = inner.left, inner.right, False
        if not self._is_number(number):
            tile, number, reverse = inner.right, inner.left, first not in _COMMUTES
        if not self._is_number(number) or self._is_number(tile):
            return None
        value = self.value(tile)
        assert isinstance(value, Value)
        return self._with_number(
            first, value, self.value(number), reverse=reverse, into=into, then=(op, self.value(node.right))
        )

    def _is_number(self, node: ast.expr) -> bool:
        """Whether a subtree has no tiles in it."""
        return not any(isinstance(n, ast.Name) and n.id in self.known for n in ast.walk(node))

    def _call(self, name: str, arguments: list[Value | float], into: Any) -> Value:
        if name == "select":
            return self._select(*arguments, into=into)  # type: ignore[misc]
        if name in ("random_bits", "uniform"):
            return self._random(name)
        if name in _TWO_TILES:
            return self._two(name, *arguments, into=into)  # type: ignore[return-value, misc]
        (only,) = arguments
        assert isinstance(only, Value)
        if name in _ONE_TILE:
            op, number = _ONE_TILE[name]
            return self._with_number(op, only, number, into=into)
        return self._activation(name, only, into)

    def _activation(self, name: str, data: Value, into: Any, scale: Any = 1.0) -> Value:
        target = self._target(data.column, into, data)
        self.load["scalar"] += 1 / _SCALAR_GHZ
        self.b.emit("activation", dst=target, op=name, data=data.access, scale=scale)
        return Value(target, data.column, False)

    # ---- instructions ----------------------------------------------------------------------------

    def _target(self, column: bool, into: Any, *operands: Value) -> Any:
        """Where a result goes: the place that is given, else that of an operand that nothing else reads."""
        if column:
            return self.column_tile()
        if into is not None:
            return into
        for operand in operands:
            if not operand.named and not operand.column and operand.access.dtype == "float32":
                return operand.access
        return self.tile()

    def _two(self, op: str, left: Value | float, right: Value | float, into: Any = None) -> Value | float:
        if isinstance(left, float) and isinstance(right, float):
            return 1.0  # what the host computes beforehand
        if isinstance(right, float):
            assert isinstance(left, Value)
            return self._with_number(op, left, right, into=into)
        if isinstance(left, float):
            return self._with_number(op, right, left, reverse=True, into=into)
        if left.column == right.column:
            return self._tensors(op, left, right, into)
        whole, column = (right, left) if left.column else (left, right)
        return self._with_number(op, whole, column.access, reverse=left.column, into=into)

    def _tensors(self, op: str, left: Value, right: Value, into: Any, engine: str | None = None) -> Value:
        """Two tiles, or two columns, element by element."""
        target = self._target(left.column, into, left, right)
        self.load[engine or "vector"] += 2 / (_GPSIMD_GHZ if engine else _VECTOR_GHZ)
        self.b.emit(
            "tensor_tensor",
            dst=target,
            data1=left.access,
            data2=right.access,
            op=op,
            engine=engine or "vector",
        )
        return Value(target, left.column, False)

    def _with_number(
        self,
        op: str,
        tile: Value,
        number: Any,
        reverse: bool = False,
        into: Any = None,
        then: tuple[str, Any] | None = None,
    ) -> Value:
        """tensor_scalar; a number is immediate or one value per partition. then: a second operation and its
        number.
        """
        target = self._target(tile.column, into, tile)
        simple = op in _ON_SCALAR and not reverse and then is None
        second = {} if then is None else {"op1": then[0], "operand1": then[1]}
        self.b.emit(
            "tensor_scalar",
            dst=target,
            data=tile.access,
            op0=op,
            operand0=number,
            reverse0=reverse,
            engine=self._engine(target, tile.access, simple),
            **second,
        )
        return Value(target, tile.column, False)

    def _engine(self, target: Any, source: Any, simple: bool) -> str:
        """Vector or Scalar, whichever will be done first; 16-bit tiles stay with Vector's faster modes."""
        half = target.dtype in _HALF and source.dtype in _HALF
        on_scalar = (
            simple
            and not half
            and self.load["scalar"] + 1 / _SCALAR_GHZ < self.load["vector"] + 1 / _VECTOR_GHZ
        )
        engine = "scalar" if on_scalar else "vector"
        self.load[engine] += 1 / _SCALAR_GHZ if on_scalar else (0.25 if half else 1) / _VECTOR_GHZ
        return engine

    def _select(
        self, condition: Value | float, yes: Value | float, no: Value | float, into: Any = None
    ) -> Value:
        """`no` everywhere, then `yes` where the condition holds."""
        assert isinstance(condition, Value)
        target = into if into is not None else self.tile()
        self._move(no, target)
        source = self._spread(yes) if isinstance(yes, Value) else yes
        self.b.emit("tensor_copy_predicated", dst=target, src=source, predicate=self._spread(condition))
        return Value(target)

    def _random(self, name: str) -> Value:
        """32 random bits of GpSimd, or numbers from 0 to 1 of the Vector engine."""
        if name == "random_bits":
            target = self.tile("uint32")
            self.b.emit("rng", dst=target, engine="gpsimd")
            return Value(target)
        target = self.tile()
        self.load["vector"] += 1 / _VECTOR_GHZ
        self.b.emit("rand2", dst=target, min=0.0, max=1.0)
        return Value(target)

    def _spread(self, value: Value) -> Any:
        """A tile of whole values; a column is first repeated along its partition."""
        return value.access if not value.column else self._move(value, self.tile()).access

    def _move(self, value: Value | float, into: Any) -> Value:
        if not isinstance(value, Value):
            self.b.emit("memset", dst=into, value=value)
        elif value.column:
            self.b.emit("memset", dst=into, value=0.0)
            self.b.emit("tensor_scalar", dst=into, data=into, op0="add", operand0=value.access)
        else:
            self.b.emit(
                "tensor_copy", dst=into, src=value.access, engine=self._engine(into, value.access, True)
            )
        return Value(into)
