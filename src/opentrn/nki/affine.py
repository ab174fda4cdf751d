"""Integers that are known only when the kernel runs: registers and the variables of dynamic loops.

Kernels do arithmetic with them to form offsets (``x[i * 128:(i + 1) * 128]``), and an access pattern can
hold exactly the affine ones, so `Affine` is closed under ``+ - *`` with constants and refuses the rest.
"""

from __future__ import annotations

import operator
from typing import Any

from opentrn.errors import ArgumentTypeError, OpenTRNError, UnsupportedError


def whole_number(value: Any, what: str) -> int:
    """`value` as an int. Raises ArgumentTypeError for anything else, 4.0 included."""
    try:
        return operator.index(value)
    except OpenTRNError:
        raise
    except TypeError:
        raise ArgumentTypeError(
            f"{what} takes integers, not {value!r}", cure="pass an int; x // y divides integers"
        ) from None


class Symbol:
    """One runtime integer: `key` is what the program builder calls it, `version` counts its writes."""

    __slots__ = ("key", "name", "owner", "version")

    def __init__(self, key: Any, name: str, owner: Any = None) -> None:
        self.key, self.name, self.owner, self.version = key, name, owner, 0

    def __repr__(self) -> str:
        return self.name


def _no_branch(value: Affine, what: str) -> Any:
    raise UnsupportedError(
        f"{what} needs the value of {value!r} while the kernel is traced, but it exists only on the device",
        cure="keep such decisions on the device (affine_select, range_select, a while loop over a register)",
    )


class Affine:
    """``const + sum(coefficient * symbol)``; immutable.

    Remembers the version of each symbol, so that an expression formed before its register was overwritten
    is not silently read with the new value.
    """

    __slots__ = ("const", "terms")

    def __init__(self, const: int, terms: dict[Symbol, int], versions: bool = False) -> None:
        self.const = const
        self.terms = {symbol: factor for symbol, factor in terms.items() if factor}

    def __add__(self, other: Any) -> Affine | int:
        if isinstance(other, Affine):
            terms = dict(self.terms)
            for symbol, factor in other.terms.items():
                terms[symbol] = terms.get(symbol, 0) + factor
            return _simplify(self.const + other.const, terms)
        if isinstance(other, int):
            return Affine(self.const + other, self.terms)
        return NotImplemented

    __radd__ = __add__

    def __neg__(self) -> Affine:
        return Affine(-self.const, {symbol: -factor for symbol, factor in self.terms.items()})

    def __sub__(self, other: Any) -> Affine | int:
        if isinstance(other, (int, Affine)):
            return self + (-other)
        return NotImplemented

    def __rsub__(self, other: int) -> Affine | int:
        return -self + other

    def __mul__(self, other: Any) -> Affine | int:
        if isinstance(other, int):
            return _simplify(self.const * other, {s: f * other for s, f in self.terms.items()})
        return NotImplemented

    __rmul__ = __mul__

    def __bool__(self) -> bool:
        return _no_branch(self, "a Python condition")

    def __index__(self) -> int:
        return _no_branch(self, "a Python integer")

    def __int__(self) -> int:
        return _no_branch(self, "int()")

    def __floordiv__(self, other: Any) -> Any:
        whole = isinstance(other, int) and other and not self.const % other
        if whole and all(factor % other == 0 for factor in self.terms.values()):
            return Affine(self.const // other, {s: f // other for s, f in self.terms.items()})
        raise UnsupportedError(f"{self!r} // {other!r} is not affine, so no access pattern can hold it")

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, Affine):
            return self.const == other.const and self.terms == other.terms
        if isinstance(other, int):
            return _no_branch(self, "==")
        return NotImplemented

    __hash__ = object.__hash__

    def _compare(self, other: Any) -> Any:
        return _no_branch(self, "a comparison")

    __lt__ = __le__ = __gt__ = __ge__ = _compare

    def __repr__(self) -> str:
        parts = [
            f"{factor}*{symbol}" if factor != 1 else f"{symbol}" for symbol, factor in self.terms.items()
        ]
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)


def _simplify(const: int, terms: dict[Symbol, int]) -> Affine | int:
    terms = {symbol: factor for symbol, factor in terms.items() if factor}
    return Affine(const, terms) if terms else const
