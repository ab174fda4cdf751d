"""Check mode: Python that runs here and that the real kernel compiler refuses.

Kernels here are plain Python, so they may use all of it; the real compiler parses a subset (NKI language
guide 0.3.0: values, containers, control flow, classes). `check_kernel` reads the source of a kernel and of
the functions of the same module that it calls.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opentrn.nki.kernel import unwrap

# Statement or expression -> why the compiler refuses it.
REFUSED: dict[type[ast.AST], str] = {
    ast.Try: "exceptions cannot be caught inside a kernel",
    ast.Raise: "a kernel cannot raise; use assert",
    ast.AsyncFunctionDef: "kernels are not asynchronous",
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
}
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


@dataclass(frozen=True)
class Finding:
    """One place: file, line and why."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


class _Visitor(ast.NodeVisitor):
    def __init__(self, file: str, first: int) -> None:
        self.file, self.first = file, first
        self.findings: list[Finding] = []
        self.called: set[str] = set()

    def _add(self, node: ast.AST, reason: str) -> None:
        self.findings.append(Finding(self.file, self.first + getattr(node, "lineno", 1) - 1, reason))

    def generic_visit(self, node: ast.AST) -> None:
        reason = REFUSED.get(type(node))
        if reason is not None:
            self._add(node, reason)
        if isinstance(node, ast.While) and node.orelse:
            self._add(node, "while … else is not part of the language")
        if isinstance(node, ast.Dict) and any(
            key is not None and isinstance(key, ast.Constant) and not isinstance(key.value, str)
            for key in node.keys
        ):
            self._add(node, "keys of dictionaries must be strings")
        super().generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name):
            self.called.add(node.func.id)
            if node.func.id in _REFUSED_CALLS:
                self._add(node, f"{node.func.id}(): {_REFUSED_CALLS[node.func.id]} inside a kernel")
        root = node.func
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in _HOST_MODULES and isinstance(node.func, ast.Attribute):
            self._add(
                node, f"{ast.unparse(node.func)}() runs on the host; the kernel compiler does not know it"
            )
        self.generic_visit(node)


def check_kernel(kernel: Any) -> list[Finding]:
    """Everything in a kernel that the real compiler would refuse, in order of lines."""
    function, _ = unwrap(kernel)
    findings: list[Finding] = []
    seen: set[Any] = set()
    _check(function, findings, seen)
    return sorted(set(findings), key=lambda finding: (finding.file, finding.line))


def _check(function: Callable[..., Any], findings: list[Finding], seen: set[Any]) -> None:
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is None or code in seen:
        return
    seen.add(code)
    lines, first = inspect.getsourcelines(function)
    visitor = _Visitor(code.co_filename, first)
    definition = ast.parse(textwrap.dedent("".join(lines))).body[0]
    assert isinstance(definition, ast.FunctionDef)
    for statement in definition.body:
        visitor.visit(statement)
    findings.extend(visitor.findings)
    for name in visitor.called:
        inner = getattr(function, "__globals__", {}).get(name)
        inner = getattr(inner, "func", inner)
        if inspect.isfunction(inner) and inner.__module__ == function.__module__:
            _check(inner, findings, seen)
