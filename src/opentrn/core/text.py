"""The text form of programs: `print(parse(text)) == text` and `parse(print(program))` has the program's
bytes.

    program "double" chip trn2 cores 1
    tensor %0 "x" hbm input float32 [128, 512]
    tensor %2 "tile" sbuf float32 [128, 512] core 0 at 0:0 copies 1
    core 0
      loop i0 = 0 to ($M ceildiv 128) step 1 sequential
        dma_copy sync dst=%2<float32>(0; 512:128, 1:512) src=%0<float32>(0; 512:128, 1:512) at "kernel.py":7
      end

An access is %tensor<dtype>(offset; stride:count, ...; scalar ACCESS * stride; vector ACCESS * stride <
bound).
Expressions: i0 a loop variable, $M a symbol, @0 a register; + * // ceildiv % min max, fully bracketed.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from opentrn.core import _C
from opentrn.core._C import ProgramBase
from opentrn.core.program import Program
from opentrn.core.table import SPACES, instructions
from opentrn.errors import ConfigurationError, CorruptFileError

KINDS = ("input", "output", "inout", "internal", "private", "constant", "tile")
LOOPS = ("affine", "sequential", "dynamic", "unrolled", "while")
ENGINES = ("unknown", "tensor", "scalar", "gpsimd", "dma", "vector", "sync")
LEAVES = {1: "i", 2: "$", 3: "@"}
BINARY = {4: "+", 5: "*", 6: "//", 7: "ceildiv", 8: "%", 9: "min", 10: "max"}
CONSTANT, LOOP, SYMBOL, REGISTER = 0, 1, 2, 3
NONE, ACCESS, INTEGER, REAL, EXPRESSION, TEXT, LIST, BOOLEAN = range(8)
DTYPES = tuple(_C.dtype_names())


def evaluate(program: Program, expression: Any, symbols: Mapping[str, int]) -> int:
    """The value of an expression of symbols."""
    tables = program.tables()

    def run(index: int) -> int:
        op, a, b, value = tables["expressions"][index]
        if op == CONSTANT:
            return value
        if op == SYMBOL:
            name = tables["symbols"][a]
            if name not in symbols:
                raise ConfigurationError(
                    f"symbol '{name}' has no value", cure=f"pass symbols={{'{name}': ...}}"
                )
            return symbols[name]
        if op in (LOOP, REGISTER):
            raise ConfigurationError("a shape depends on a loop variable or register")
        x, y = run(a), run(b)
        return {
            4: x + y,
            5: x * y,
            6: x // y if y else 0,
            7: -(-x // y) if y else 0,
            8: x % y if y else 0,
            9: min(x, y),
            10: max(x, y),
        }[op]

    return run(expression.id)


class _Printer:
    def __init__(self, program: Program) -> None:
        self.tables = program.tables()

    def expression(self, index: int) -> str:
        op, a, b, value = self.tables["expressions"][index]
        if op == CONSTANT:
            return str(value)
        if op == SYMBOL:
            return "$" + self.tables["symbols"][a]
        if op in LEAVES:
            return f"{LEAVES[op]}{a}"
        return f"({self.expression(a)} {BINARY[op]} {self.expression(b)})"

    def access(self, index: int) -> str:
        (
            buffer,
            dtype,
            offset,
            dims,
            scalar,
            scalar_expression,
            scalar_stride,
            vector,
            vector_stride,
            bound,
        ) = self.tables["accesses"][index]
        parts = [
            self.expression(offset),
            ", ".join(f"{self.expression(stride)}:{self.expression(count)}" for stride, count in dims),
        ]
        if scalar >= 0:
            parts.append(f"scalar {self.access(scalar)} * {self.expression(scalar_stride)}")
        if scalar_expression >= 0:
            parts.append(f"scalar {self.expression(scalar_expression)} * {self.expression(scalar_stride)}")
        if vector >= 0:
            limit = f" < {self.expression(bound)}" if bound >= 0 else ""
            parts.append(f"vector {self.access(vector)} * {self.expression(vector_stride)}{limit}")
        return f"%{buffer}<{DTYPES[dtype]}>({'; '.join(parts)})"

    def value(self, value: tuple[int, Any]) -> str:
        kind, payload = value
        if kind == NONE:
            return "none"
        if kind == ACCESS:
            return self.access(payload)
        if kind == INTEGER:
            return str(payload)
        if kind == REAL:
            return repr(payload)
        if kind == EXPRESSION:
            return "{" + self.expression(payload) + "}"
        if kind == TEXT:
            return json.dumps(self.tables["texts"][payload])
        if kind == LIST:
            return "[" + ", ".join(self.value(item) for item in self.tables["lists"][payload]) + "]"
        return "true" if payload else "false"

    def source(self, index: int) -> str:
        if index < 0:
            return ""
        file, line = self.tables["sources"][index]
        return f" at {json.dumps(self.tables['texts'][file])}:{line}" if file >= 0 else ""

    def header(self) -> Iterator[str]:
        tables = self.tables
        yield f"program {json.dumps(tables['name'])} chip {tables['chip']} cores {tables['cores']}"
        for symbol in tables["symbols"]:
            yield f"symbol {symbol}"
        for register in tables["registers"]:
            yield f"register {json.dumps(register)}"
        for index, (
            name,
            space,
            kind,
            dtype,
            core,
            shape,
            partition,
            byte,
            pinned,
            copies,
            data,
        ) in enumerate(tables["buffers"]):
            line = f"tensor %{index} {json.dumps(name)} {SPACES[space]}"
            if KINDS[kind] != "tile":
                line += f" {KINDS[kind]}"
            line += f" {DTYPES[dtype]} [{', '.join(self.expression(size) for size in shape)}]"
            if core >= 0:
                line += f" core {core}"
            if byte >= 0:
                line += f" {'pinned' if pinned else 'at'} {partition}:{byte} copies {copies}"
            if data:
                line += f" data {json.dumps(base64.b64encode(data).decode())}"
            yield line

    def body(self, core: int) -> Iterator[str]:
        tables, depth = self.tables, 1
        table = instructions()
        for kind, index in tables["steps"][core]:
            if kind == 2:
                depth -= 1
                yield "  " * depth + "end"
            elif kind == 1:
                variable, start, stop, step, condition, loop_kind, source = tables["loops"][index]
                if LOOPS[loop_kind] == "while":
                    yield "  " * depth + f"while @{condition}{self.source(source)}"
                else:
                    yield "  " * depth + (
                        f"loop i{variable} = {self.expression(start)} to {self.expression(stop)} step "
                        f"{self.expression(step)} {LOOPS[loop_kind]}{self.source(source)}"
                    )
                depth += 1
            else:
                name, engine, arguments, source, label = tables["instructions"][index]
                given = [
                    f"{parameter.name}={self.value(value)}"
                    for parameter, value in zip(
                        table[name].parameters, tables["arguments"][arguments], strict=True
                    )
                    if value[0] != NONE
                ]
                words = [name, ENGINES[engine], *given]
                if label >= 0:
                    words.append(f"name={json.dumps(tables['texts'][label])}")
                yield "  " * depth + " ".join(words) + self.source(source)


def program_text(program: Program) -> str:
    """The whole program, one instruction a line."""
    printer = _Printer(program)
    lines = list(printer.header())
    for core in range(program.cores):
        lines.append(f"core {core}")
        lines += printer.body(core)
    return "\n".join(lines) + "\n"


_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"|//|-?\d+\.?\d*(?:[eE][-+]?\d+)?|-?inf\b|nan\b|[A-Za-z_$][\w$]*|[%@]\d+|[-+*%(){}\[\];:,<>=.]|\S'
)


class _Parser:
    """Recursive descent over the tokens of one line at a time; tables are interned as they are met."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.at = 0
        self.line = 0
        self.tables: dict[str, Any] = {
            "loop_variables": 0,
            "symbols": [],
            "registers": [],
            "buffers": [],
            "instructions": [],
            "loops": [],
            "steps": [],
        }
        self.interned: dict[str, dict[Any, int]] = {
            key: {} for key in ("texts", "expressions", "accesses", "lists", "arguments", "sources")
        }

    def fail(self, expected: str) -> CorruptFileError:
        found = self.tokens[self.at] if self.at < len(self.tokens) else "the end of the line"
        return CorruptFileError(f"line {self.line} of the program text: expected {expected}, found {found}")

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, expected: str | None = None) -> str:
        if self.at >= len(self.tokens) or (expected is not None and self.tokens[self.at] != expected):
            raise self.fail(expected or "more")
        self.at += 1
        return self.tokens[self.at - 1]

    def integer(self) -> int:
        try:
            return int(self.take())
        except ValueError:
            self.at -= 1
            raise self.fail("an integer") from None

    def string(self) -> str:
        if not self.peek().startswith('"'):
            raise self.fail("a string")
        return json.loads(self.take())

    def choice(self, table: tuple[str, ...], what: str) -> int:
        if self.peek() not in table:
            raise self.fail(what)
        return table.index(self.take())

    def intern(self, key: str, item: Any) -> int:
        return self.interned[key].setdefault(item, len(self.interned[key]))

    def expression(self) -> int:
        token = self.take()
        if token == "(":
            left = self.expression()
            operator = self.take()
            codes = {text: code for code, text in BINARY.items()}
            if operator not in codes:
                self.at -= 1
                raise self.fail("an operator")
            right = self.expression()
            self.take(")")
            return self.intern("expressions", (codes[operator], left, right, 0))
        if token.startswith("$"):
            if token[1:] not in self.tables["symbols"]:
                raise self.fail("a declared symbol")
            return self.intern("expressions", (SYMBOL, self.tables["symbols"].index(token[1:]), -1, 0))
        if token.startswith("@"):
            return self.intern("expressions", (REGISTER, int(token[1:]), -1, 0))
        if re.fullmatch(r"i\d+", token):
            self.tables["loop_variables"] = max(self.tables["loop_variables"], int(token[1:]) + 1)
            return self.intern("expressions", (LOOP, int(token[1:]), -1, 0))
        if not re.fullmatch(r"-?\d+", token):
            self.at -= 1
            raise self.fail("an expression")
        return self.intern("expressions", (CONSTANT, -1, -1, int(token)))

    def access(self) -> int:
        buffer = int(self.take()[1:])
        self.take("<")
        dtype = self.choice(DTYPES, "a dtype")
        self.take(">")
        self.take("(")
        offset = self.expression()
        self.take(";")
        dims = []
        while self.peek() not in (")", ";"):
            stride = self.expression()
            self.take(":")
            dims.append((stride, self.expression()))
            if self.peek() == ",":
                self.take()
        scalar = scalar_expression = scalar_stride = vector = vector_stride = bound = -1
        while self.peek() == ";":
            self.take()
            if self.take() == "scalar":
                if self.peek().startswith("%"):
                    scalar = self.access()
                else:
                    scalar_expression = self.expression()
                self.take("*")
                scalar_stride = self.expression()
            else:
                vector = self.access()
                self.take("*")
                vector_stride = self.expression()
                if self.peek() == "<":
                    self.take()
                    bound = self.expression()
        self.take(")")
        return self.intern(
            "accesses",
            (
                buffer,
                dtype,
                offset,
                tuple(dims),
                scalar,
                scalar_expression,
                scalar_stride,
                vector,
                vector_stride,
                bound,
            ),
        )

    def value(self) -> tuple[int, Any]:
        token = self.peek()
        if token.startswith("%"):
            return ACCESS, self.access()
        if token.startswith('"'):
            return TEXT, self.intern("texts", self.string())
        if token == "{":
            self.take()
            index = self.expression()
            self.take("}")
            return EXPRESSION, index
        if token == "[":
            self.take()
            items = []
            while self.peek() != "]":
                items.append(self.value())
                if self.peek() == ",":
                    self.take()
            self.take()
            return LIST, self.intern("lists", tuple(items))
        self.take()
        if token in ("true", "false"):
            return BOOLEAN, int(token == "true")
        if re.fullmatch(r"-?\d+", token):
            return INTEGER, int(token)
        try:
            return REAL, float(token)
        except ValueError:
            self.at -= 1
            raise self.fail("a value") from None

    def source(self) -> int:
        if self.peek() != "at":
            return -1
        self.take()
        file = self.intern("texts", self.string())
        self.take(":")
        return self.intern("sources", (file, self.integer()))

    def tensor(self) -> None:
        if self.take() != f"%{len(self.tables['buffers'])}":
            raise self.fail("tensors in order")
        name = self.string()
        space = self.choice(SPACES, "a memory")
        kind = self.choice(KINDS, "a kind") if space == 0 else KINDS.index("tile")
        dtype = self.choice(DTYPES, "a dtype")
        shape = []
        self.take("[")
        while self.peek() != "]":
            shape.append(self.expression())
            if self.peek() == ",":
                self.take()
        self.take()
        core = partition = byte = -1
        copies, pinned, data = 1, False, b""
        if self.peek() == "core":
            self.take()
            core = self.integer()
        if self.peek() in ("at", "pinned"):
            pinned = self.take() == "pinned"
            partition = self.integer()
            self.take(":")
            byte = self.integer()
            self.take("copies")
            copies = self.integer()
        if self.peek() == "data":
            self.take()
            data = base64.b64decode(self.string())
        self.tables["buffers"].append(
            (name, space, kind, dtype, core, shape, partition, byte, pinned, copies, data)
        )

    def instruction(self) -> None:
        name = self.take()
        if name not in instructions():
            self.at -= 1
            raise self.fail("an instruction")
        engine = self.choice(ENGINES, "an engine")
        given: dict[str, tuple[int, Any]] = {}
        while self.at + 1 < len(self.tokens) and self.tokens[self.at + 1] == "=":
            key = self.take()
            self.take("=")
            given[key] = self.value()
        label = given.pop("name")[1] if "name" in given else -1
        parameters = instructions()[name].parameters
        unknown = set(given) - {parameter.name for parameter in parameters}
        if unknown:
            raise self.fail(f"arguments of {name}, not {', '.join(sorted(unknown))}")
        arguments = tuple(given.get(parameter.name, (NONE, 0)) for parameter in parameters)
        self.tables["instructions"].append(
            (name, engine, self.intern("arguments", arguments), self.source(), label)
        )
        self.tables["steps"][-1].append((0, len(self.tables["instructions"]) - 1))

    def loop(self, open_loops: list[int]) -> None:
        if self.take() == "while":
            condition = int(self.take()[1:])
            self.tables["loops"].append((-1, -1, -1, -1, condition, LOOPS.index("while"), self.source()))
        else:
            variable = self.interned_variable()
            self.take("=")
            start = self.expression()
            self.take("to")
            stop = self.expression()
            self.take("step")
            step = self.expression()
            kind = self.choice(LOOPS, "a kind of loop")
            self.tables["loops"].append((variable, start, stop, step, -1, kind, self.source()))
        open_loops.append(len(self.tables["loops"]) - 1)
        self.tables["steps"][-1].append((1, open_loops[-1]))

    def interned_variable(self) -> int:
        token = self.take()
        if not re.fullmatch(r"i\d+", token):
            self.at -= 1
            raise self.fail("a loop variable")
        self.tables["loop_variables"] = max(self.tables["loop_variables"], int(token[1:]) + 1)
        return int(token[1:])

    def parse(self, text: str) -> dict[str, Any]:
        open_loops: list[int] = []
        for self.line, line in enumerate(text.splitlines(), 1):
            self.tokens, self.at = _TOKEN.findall(line), 0
            if not self.tokens or line.lstrip().startswith("#"):
                continue
            head = self.peek()
            if head == "program":
                self.take()
                self.tables["name"] = self.string()
                self.take("chip")
                self.tables["chip"] = self.take()
                self.take("cores")
                self.tables["cores"] = self.integer()
            elif head == "symbol":
                self.take()
                self.tables["symbols"].append(self.take())
            elif head == "register":
                self.take()
                self.tables["registers"].append(self.string())
            elif head == "tensor":
                self.take()
                self.tensor()
            elif head == "core":
                self.tables["steps"].append([])
                self.at = len(self.tokens)
            elif not self.tables["steps"]:
                raise self.fail("a header line")
            elif head in ("loop", "while"):
                self.loop(open_loops)
            elif head == "end":
                self.take()
                if not open_loops:
                    raise self.fail("a loop before its end")
                self.tables["steps"][-1].append((2, open_loops.pop()))
            else:
                self.instruction()
            if self.at < len(self.tokens):
                raise self.fail("the end of the line")
        if open_loops or "name" not in self.tables or len(self.tables["steps"]) != self.tables["cores"]:
            raise CorruptFileError("the program text ends too early")
        return self.tables | {key: list(items) for key, items in self.interned.items()}


def parse_program(text: str) -> Program:
    """Raises CorruptFileError naming the line where the text cannot be read."""
    parser = _Parser()
    try:
        tables = parser.parse(text)
    except (ValueError, IndexError, OverflowError, RecursionError):  # a number or a string that is none
        raise parser.fail("a program") from None
    try:
        return Program(ProgramBase.assemble(tables))
    except (TypeError, RuntimeError) as error:  # a number that no field of a program can hold
        raise CorruptFileError(f"the program text holds an impossible number: {error}") from None
