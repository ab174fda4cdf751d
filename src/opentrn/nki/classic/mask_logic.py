"""`and` and `or` between masks: ``mask=(ix < n and iy < m)``.

Python decides them by one truth value; classic kernels mean every element, as their front end reads the
source. So a kernel whose source has them is compiled again with calls in their place, which do what Python
does unless a mask stands on the left.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Callable
from typing import Any

from opentrn.nki.classic.indexing import Mask


def _both(left: Any, right: Callable[[], Any]) -> Any:
    return left & right() if isinstance(left, Mask) else left and right()


def _either(left: Any, right: Callable[[], Any]) -> Any:
    return left | right() if isinstance(left, Mask) else left or right()


_HELPERS = {"_mask_and": _both, "_mask_or": _either}
_BINDING = (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await)


class _Calls(ast.NodeTransformer):
    changed = False

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if any(isinstance(inner, _BINDING) for inner in ast.walk(node)):
            return node  # these bind in the kernel's own frame
        self.changed = True
        name = "_mask_and" if isinstance(node.op, ast.And) else "_mask_or"
        result = node.values[-1]
        for value in reversed(node.values[:-1]):
            no_arguments = ast.arguments([], [], None, [], [], None, [])
            call = ast.Call(ast.Name(name, ast.Load()), [value, ast.Lambda(no_arguments, result)], [])
            result = ast.fix_missing_locations(ast.copy_location(call, node))
        return result


def with_mask_logic(function: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel with element-wise `and` and `or` of masks; itself where it has none, or no source. Made
    once."""
    if not isinstance(function, types.FunctionType):
        return function
    made = function.__dict__.get("mask_logic")
    if made is None:
        made = _made(function)
        made.mask_logic = function.mask_logic = made  # type: ignore[attr-defined]
    return made


def _made(function: types.FunctionType) -> types.FunctionType:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return function
    kernel = tree.body[0]
    calls = _Calls()
    if not isinstance(kernel, ast.FunctionDef):
        return function
    kernel.body = [calls.visit(statement) for statement in kernel.body]
    if not calls.changed:
        return function
    code = _compiled(kernel, function)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells.update({name: types.CellType(helper) for name, helper in _HELPERS.items()})
    made = types.FunctionType(
        code,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(cells[name] for name in code.co_freevars),
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return functools.wraps(function)(made)  # type: ignore[return-value]


def _compiled(kernel: ast.FunctionDef, function: types.FunctionType) -> types.CodeType:
    """The kernel's code, with the names of its closure and of the helpers as free variables."""
    kernel.decorator_list, kernel.returns = [], None
    for argument in ast.walk(kernel.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    kernel.args.defaults = [ast.Constant(None) for _ in kernel.args.defaults]
    kernel.args.kw_defaults = [default and ast.Constant(None) for default in kernel.args.kw_defaults]
    names = [*function.__code__.co_freevars, *_HELPERS]
    outer = ast.parse(f"def outer({', '.join(names)}):\n    pass").body[0]
    assert isinstance(outer, ast.FunctionDef)
    outer.body = [kernel]
    module = ast.fix_missing_locations(ast.Module([outer], []))
    ast.increment_lineno(module, function.__code__.co_firstlineno - 1)
    found: Any = compile(module, function.__code__.co_filename, "exec")
    for name in ("outer", kernel.name):
        found = next(
            item for item in found.co_consts if isinstance(item, types.CodeType) and item.co_name == name
        )
    return found
