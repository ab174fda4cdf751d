"""What Python may not do with a tensor while a kernel is traced: its values do not exist yet.

Without this, `if tile[0, 0]:` would silently be true, and arithmetic would raise Python's own error, which
names neither the cause nor the function of `nki.language` that is meant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from opentrn.errors import UnknownValueError

_BRANCH = "nl.where selects elements; nl.dynamic_range and `while register:` are decided on the device"
_READ = "keep it on the device; tile.numpy() shows values while a kernel is debugged"
# Special method → what was written, and what says it on the device.
_REFUSED = {
    "int": ("int()", _READ),
    "float": ("float()", _READ),
    "complex": ("complex()", _READ),
    "index": ("a Python integer", _READ),
    "array": ("a NumPy array", _READ),
    "array_ufunc": ("a NumPy function", "use the function of nki.language, e.g. nl.exp"),
    "neg": ("-", "use nl.negative"),
    "abs": ("abs()", "use nl.abs"),
    "invert": ("~", "use nl.invert"),
    "lt": ("<", "use nl.less"),
    "le": ("<=", "use nl.less_equal"),
    "gt": (">", "use nl.greater"),
    "ge": (">=", "use nl.greater_equal"),
    "matmul": ("@", "use nisa.nc_matmul"),
    "floordiv": ("//", "use nl.divide and nl.floor"),
}
_BINARY = {
    "add": ("+", "nl.add"),
    "sub": ("-", "nl.subtract"),
    "mul": ("*", "nl.multiply"),
    "truediv": ("/", "nl.divide"),
    "mod": ("%", "nl.mod"),
    "pow": ("**", "nl.power"),
    "and": ("&", "nl.bitwise_and"),
    "or": ("|", "nl.bitwise_or"),
    "xor": ("^", "nl.bitwise_xor"),
    "lshift": ("<<", "nl.left_shift"),
    "rshift": (">>", "nl.right_shift"),
}


def _refusal(what: str, cure: str) -> Callable[..., NoReturn]:
    def refuse(tensor: Any, *_: Any, **__: Any) -> NoReturn:
        raise UnknownValueError(
            f"{what} needs the values of {tensor.name!r}, which are not known while the kernel is traced",
            cure=cure,
        )

    return refuse


_no_branch = _refusal("a Python condition", _BRANCH)


def _is_given(tensor: Any) -> bool:
    """True for a tensor: public kernels ask `if bias:` whether an argument is given. Raises UnknownValueError
    for a single element, whose value must be meant."""
    if tensor.size == 1 and (tensor._storage.on_chip or not tensor.whole):
        _no_branch(tensor)
    return True


def refuse_values(kind: Any) -> None:
    """Give the class of tensors the special methods that raise UnknownValueError."""
    kind.__bool__ = _is_given
    for name, (what, cure) in _REFUSED.items():
        setattr(kind, f"__{name}__", _refusal(what, cure))
    for name, (what, function) in _BINARY.items():
        for method in (name, f"r{name}"):
            setattr(kind, f"__{method}__", _refusal(what, f"use {function}"))
