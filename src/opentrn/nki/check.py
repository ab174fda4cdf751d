"""Check mode: Python that runs here and that the real kernel compiler refuses.

Kernels here are plain Python, so they may use all of it. The compiler of NKI 0.2 to 0.6 parses a subset: the
NKI language guide 0.3.0 lists its values, containers, control flow and classes, and KLR, the public front
end of NKI, names what its parser refuses where the guide is silent (varargs, `*` and `**` expansion, for …
else, `with`, lambda). From NKI 0.7.0 on kernels are traced by Python, and none of this is refused.

As the compiler does, `check_kernel` reads a kernel and every function and class that it names, of whatever
module, but for those of libraries.
"""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import sys
import textwrap
import types
from dataclasses import dataclass
from typing import Any

from opentrn.errors import UnsupportedError
from opentrn.nki.kernel import unwrap

# Statement or expression -> why the compiler refuses it.
REFUSED: dict[type[ast.AST], str] = {
    ast.Try: "exceptions cannot be caught inside a kernel",
    ast.TryStar: "exceptions cannot be caught inside a kernel",
    ast.Raise: "a kernel cannot raise; use assert",
    ast.AsyncFunctionDef: "kernels are not asynchronous",
    ast.AsyncFor: "kernels are not asynchronous",
    ast.AsyncWith: "kernels are not asynchronous",
    ast.Await: "kernels are not asynchronous",
    ast.Yield: "a kernel cannot be a generator",
    ast.YieldFrom: "a kernel cannot be a generator",
    ast.GeneratorExp: "generator expressions are not part of the language; use a list",
    ast.SetComp: "sets are not part of the language",
    ast.Set: "sets are not part of the language",
    ast.Global: "global variables cannot be assigned",
    ast.Nonlocal: "variables of an enclosing function cannot be assigned",
    ast.Import: "imports belong outside of the kernel",
    ast.ImportFrom: "imports belong outside of the kernel",
    ast.Delete: "del is not part of the language",
    ast.NamedExpr: "assignment expressions are not part of the language",
    ast.Match: "match is not part of the language",
    ast.ClassDef: "classes belong outside of the kernel, derived from nl.NKIObject",
    ast.Lambda: "lambda is not part of the language; name the function",
    ast.Starred: "*name is not expanded, neither in calls nor in assignments",
}
_NO_MATMUL = "the operator @ is not part of the language; use nisa.nc_matmul"
_REFUSED_CALLS = {
    "open": "files cannot be read",
    "eval": "code cannot be evaluated",
    "exec": "code cannot be evaluated",
    "input": "nothing can be read",
    "set": "sets are not part of the language",
    "globals": "no introspection",
    "locals": "no introspection",
    "breakpoint": "the debugger exists in simulation only",
}
_HOST_MODULES = ("np", "numpy", "torch", "jax", "scipy", "random", "time", "os", "sys")
# Functions of these are not read: the compiler knows them, or refuses the call itself.
_LIBRARIES = frozenset(
    ("opentrn", "nki", "neuronxcc", "numpy", "torch", "jax", "scipy", "ml_dtypes", *sys.stdlib_module_names)
)
_CONTEXTS = ("no_reorder",)  # the context managers of nki.language


@dataclass(frozen=True)
class Finding:
    """One place: file, line and why."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


class _Visitor(ast.NodeVisitor):
    """Findings in the body of one function, and the dotted names that it reads."""

    def __init__(self, file: str, first: int, variables: frozenset[str]) -> None:
        self.file, self.first, self.variables = file, first, variables
        self.findings: list[Finding] = []
        self.named: dict[tuple[str, ...], None] = {}

    def _add(self, node: ast.AST, reason: str) -> None:
        self.findings.append(Finding(self.file, self.first + getattr(node, "lineno", 1) - 1, reason))

    def visit(self, node: ast.AST) -> None:
        reason = REFUSED.get(type(node))
        if reason is not None:
            self._add(node, reason)
        super().visit(node)

    def visit_While(self, node: ast.While) -> None:
        if node.orelse:
            self._add(node, "while … else is not part of the language")
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        if node.orelse:
            self._add(node, "for … else is not part of the language")
        self.generic_visit(node)

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            called = item.context_expr.func if isinstance(item.context_expr, ast.Call) else item.context_expr
            if not (isinstance(called, ast.Attribute) and called.attr in _CONTEXTS):
                self._add(node, "with is not part of the language, but for nl.no_reorder()")
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        if any(isinstance(key, ast.Constant) and not isinstance(key.value, str) for key in node.keys):
            self._add(node, "keys of dictionaries must be strings")
        if None in node.keys:
            self._add(node, "**name is not expanded")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.MatMult):
            self._add(node, _NO_MATMUL)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.op, ast.MatMult):
            self._add(node, _NO_MATMUL)
        self.generic_visit(node)

    def visit_arguments(self, node: ast.arguments) -> None:
        for argument, stars in ((node.vararg, "*"), (node.kwarg, "**")):
            if argument is not None:
                self._add(argument, f"{stars}{argument.arg}: the number of arguments is fixed in a kernel")
        for default in (*node.defaults, *filter(None, node.kw_defaults)):
            self.visit(default)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.named[(node.id,)] = None

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = _path(node)
        if path:
            self.named[path] = None
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if any(keyword.arg is None for keyword in node.keywords):
            self._add(node, "**name is not expanded")
        path = _path(node.func)
        if len(path) == 1 and path[0] in _REFUSED_CALLS:
            self._add(node, f"{path[0]}(): {_REFUSED_CALLS[path[0]]} inside a kernel")
        if len(path) > 1 and path[0] in _HOST_MODULES and path[0] not in self.variables:
            self._add(node, f"{'.'.join(path)}() runs on the host; the kernel compiler does not know it")
        self.generic_visit(node)


def _path(node: ast.AST) -> tuple[str, ...]:
    """("a", "b", "c") of ``a.b.c``; () of anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else ()


def check_kernel(kernel: Any) -> list[Finding]:
    """Everything in a kernel that the real compiler would refuse, in order of lines."""
    function, _ = unwrap(kernel)
    reader = _Reader()
    reader.read(function, None)
    return sorted(set(reader.findings), key=lambda finding: (finding.file, finding.line))


@functools.lru_cache(maxsize=256)
def refuse(function: Any) -> None:
    """Raises UnsupportedError for the first finding in a kernel's function, with its line."""
    findings = check_kernel(function)
    if not findings:
        return
    own = getattr(getattr(inspect.unwrap(function), "__code__", None), "co_filename", "")
    first = next((finding for finding in findings if finding.file == own), findings[0])
    more = f" ({len(findings) - 1} more)" if len(findings) > 1 else ""
    raise UnsupportedError(
        f"the kernel compiler of NKI up to 0.6 refuses this kernel: {first.reason}{more}",
        where=f"{first.file}:{first.line}",
        cure="rewrite it, or leave strict out: `opentrn kernel check` lists every place",
    )


class _Reader:
    """Reads functions and classes, each once."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.seen: set[Any] = set()

    def read(self, function: Any, owner: type | None) -> None:
        """One function; owner: the class that it is a method of."""
        function = inspect.unwrap(function)
        code = getattr(function, "__code__", None)
        if code is None or code in self.seen:
            return
        self.seen.add(code)
        found = _definition(function)
        if found is None:
            return
        definition, first = found
        variables = frozenset((*code.co_varnames, *code.co_cellvars))
        visitor = _Visitor(code.co_filename, first, variables)
        visitor.visit(definition.args)
        for statement in definition.body:
            visitor.visit(statement)
        self.findings.extend(visitor.findings)
        known = _known_variables(function, owner)
        for path in visitor.named:
            for value, holder in _values(function, known, variables, path):
                self.follow(value, holder)

    def follow(self, value: Any, owner: type | None) -> None:
        """What a kernel names, where it is a function or class of the user's."""
        value = inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value
        if isinstance(value, functools.partial):
            value = value.func
        if str(getattr(value, "__module__", None)).partition(".")[0] in _LIBRARIES:
            return
        if isinstance(value, type):
            self.read_class(value)
        elif isinstance(value, types.FunctionType):
            self.read(value, owner)

    def read_class(self, cls: type) -> None:
        """A class, whose methods the compiler reads all."""
        if cls in self.seen or issubclass(cls, enum.Enum):
            return
        self.seen.add(cls)
        bases = [base.__name__ for base in cls.__bases__]
        if bases not in (["NKIObject"], ["NamedTuple"], ["tuple"]):
            place = _class_place(cls)
            if place is not None:
                self.findings.append(
                    Finding(
                        *place, f"class {cls.__name__}: classes derive from nl.NKIObject and nothing else"
                    )
                )
        for member in vars(cls).values():
            function = _plain_function(member)
            if function is not None:
                self.read(function, cls)


def _definition(function: Any) -> tuple[ast.FunctionDef, int] | None:
    """The syntax tree of a function and its first line; None where it has no source of its own."""
    try:
        lines, first = inspect.getsourcelines(function)
        body = ast.parse(textwrap.dedent("".join(lines))).body
    except (OSError, TypeError, SyntaxError):
        return None
    return (body[0], first) if body and isinstance(body[0], ast.FunctionDef) else None


def _class_place(cls: type) -> tuple[str, int] | None:
    try:
        return inspect.getsourcefile(cls) or "", inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        return None


def _plain_function(member: Any) -> types.FunctionType | None:
    """The function behind a member of a class."""
    if isinstance(member, (staticmethod, classmethod)):
        member = member.__func__
    if isinstance(member, property):
        member = member.fget
    member = inspect.unwrap(member) if callable(member) and not isinstance(member, type) else member
    return member if isinstance(member, types.FunctionType) else None


def _known_variables(function: Any, owner: type | None) -> dict[str, Any]:
    """Variables whose class is known: `self`, and parameters annotated with a class."""
    code = function.__code__
    known: dict[str, Any] = {}
    for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        annotation = function.__annotations__.get(name)
        if isinstance(annotation, str):
            annotation = function.__globals__.get(annotation)
        if isinstance(annotation, type):
            known[name] = annotation
    if owner is not None and code.co_argcount and not known.get(code.co_varnames[0]):
        known[code.co_varnames[0]] = owner
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            known[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return known


def _values(
    function: Any, known: dict[str, Any], variables: frozenset[str], path: tuple[str, ...]
) -> list[tuple[Any, type | None]]:
    """What a dotted name stands for: (value, the class that holds it)."""
    if path[0] in known:
        value: Any = known[path[0]]
    elif path[0] not in variables and path[0] in function.__globals__:
        value = function.__globals__[path[0]]
    else:
        return []
    holder: type | None = None
    if len(path) == 1 and path[0] in variables:
        return [(value, None)]
    for name in path[1:]:
        if isinstance(value, types.ModuleType):
            value, holder = vars(value).get(name), None
            continue
        holder = value if isinstance(value, type) else type(value)
        member = inspect.getattr_static(value, name, None)
        value = _plain_function(member) or member
    return [(value, holder)]
