"""Two outcomes of one operator, compared bit for bit.

What counts as equal
    the error: both raise the same exception type, or neither raises
    the structure: tuples, named results, Python scalars, None
    each tensor's dtype, shape, strides, storage offset, layout, conjugate and negative bits, requires_grad
    aliasing: which results share a storage with which argument or earlier result
    every element's bits; -0.0 differs from +0.0
    the same for the arguments after the run, so that a stray write is a difference

NaN: results whose only difference is the payload or sign of a NaN are equal, and counted apart: IEEE 754
leaves both open.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.complex64: torch.int64,
    torch.complex32: torch.int32,
    torch.bool: torch.uint8,
}
_SPARSE_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


@dataclass(frozen=True)
class Difference:
    """How two outcomes differ.

    kind: "error" (one raised), "structure", "metadata", "aliasing", "bits", or "nan-payload" (not a failure).
    text: one line for the failure list.
    """

    kind: str
    text: str


@dataclass
class Outcome:
    """What one run gave: an error, or the leaves of its result and its arguments afterwards."""

    error: Exception | None = None
    shape: str = ""
    leaves: list[Any] = field(default_factory=list)
    arguments: list[torch.Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class Strictness:
    """What is compared beyond the rest.

    values: bits (not where a side has none). offsets: storage offsets. arguments: they too, after the run.
    """

    values: bool = True
    offsets: bool = True
    arguments: bool = True


def flatten(value: Any, leaves: list[Any]) -> str:
    """Appends the leaves of nested tuples, lists and dictionaries; returns their structure as text."""
    if isinstance(value, tuple | list):
        inner = ",".join([flatten(item, leaves) for item in value])
        return f"{type(value).__name__}({inner})"
    if isinstance(value, dict):
        inner = ",".join([f"{key}={flatten(item, leaves)}" for key, item in value.items()])
        return f"{type(value).__name__}({inner})"
    leaves.append(value)
    return "*"


def outcome_difference(
    expected: Outcome, actual: Outcome, device_type: str, strict: Strictness
) -> Difference | None:
    """The first difference, or None. Differences of NaN payload only come last."""
    if expected.error is not None or actual.error is not None:
        return _error_difference(expected.error, actual.error)
    if expected.shape != actual.shape or len(expected.leaves) != len(actual.leaves):
        return Difference("structure", f"result is {actual.shape}, CPU's is {expected.shape}")
    payload = None
    for index, (wanted, got) in enumerate(zip(expected.leaves, actual.leaves, strict=True)):
        found = _leaf_difference(wanted, got, device_type, strict)
        if found is not None and found.kind != "nan-payload":
            return Difference(found.kind, f"result {index}: {found.text}" if index else found.text)
        payload = payload or found
    found = _aliasing_difference(expected, actual)
    if found is not None:
        return found
    if strict.arguments:
        for index, (before, after) in enumerate(zip(expected.arguments, actual.arguments, strict=True)):
            found = tensor_difference(before, after, device_type, strict)
            if found is not None and found.kind != "nan-payload":
                return Difference(found.kind, f"argument {index} after the run: {found.text}")
    return payload


def _error_difference(expected: Exception | None, actual: Exception | None) -> Difference | None:
    def show(error: Exception) -> str:
        first = (str(error).strip().splitlines() or [""])[0]
        return f"{type(error).__name__}: {first[:300]}"

    if expected is None:
        assert actual is not None
        return Difference("error", show(actual))
    if actual is None:
        return Difference("error", f"no error, CPU raises {show(expected)}")
    if type(expected) is not type(actual):
        return Difference("error", f"{show(actual)} (CPU raises {show(expected)})")
    return None


def _leaf_difference(expected: Any, actual: Any, device_type: str, strict: Strictness) -> Difference | None:
    if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
        return tensor_difference(expected, actual, device_type, strict)
    if type(expected) is not type(actual):
        return Difference("structure", f"a {type(actual).__name__}, CPU's is a {type(expected).__name__}")
    if isinstance(expected, float | complex):
        same = _scalar_bits(expected) == _scalar_bits(actual)
        return None if same or not strict.values else Difference("bits", f"{actual!r}, CPU's is {expected!r}")
    if isinstance(expected, torch.device):
        same = actual.type == device_type
    elif isinstance(expected, int | bool | str | torch.dtype | type(None)):
        same = expected == actual
    else:
        same = True  # an object without an equality of its own: the type is all that can be compared
    return None if same else Difference("structure", f"{actual!r}, CPU's is {expected!r}")


def _scalar_bits(value: float | complex) -> tuple[str, ...]:
    parts = (value.real, value.imag) if isinstance(value, complex) else (value,)
    return tuple("nan" if math.isnan(part) else part.hex() for part in parts)


def tensor_difference(
    expected: torch.Tensor, actual: torch.Tensor, device_type: str, strict: Strictness
) -> Difference | None:
    """The first difference of two tensors: metadata, then bits."""
    if actual.device.type != device_type:
        return Difference("metadata", f"is on {actual.device}, not on {device_type}")
    plain: tuple[tuple[str, Any, Any], ...] = (
        ("dtype", expected.dtype, actual.dtype),
        ("shape", expected.shape, actual.shape),
        ("layout", expected.layout, actual.layout),
        ("requires_grad", expected.requires_grad, actual.requires_grad),
    )
    for name, wanted, got in plain:
        if wanted != got:
            return Difference("metadata", f"{name} {_show(got)}, CPU's is {_show(wanted)}")
    if expected.layout != torch.strided:
        return _sparse_difference(expected, actual, device_type, strict)
    placed: tuple[tuple[str, Any, Any], ...] = (
        ("strides", expected.stride(), actual.stride()),
        ("storage offset", expected.storage_offset(), actual.storage_offset()),
        ("conjugate bit", expected.is_conj(), actual.is_conj()),
        ("negative bit", expected.is_neg(), actual.is_neg()),
    )
    for name, wanted, got in placed:
        if wanted != got and (strict.offsets or name != "storage offset"):
            return Difference("metadata", f"{name} {_show(got)}, CPU's is {_show(wanted)}")
    return bits_difference(expected, actual) if strict.values else None


def _show(value: Any) -> str:
    return str(tuple(value)) if isinstance(value, torch.Size) else str(value)


def _sparse_difference(
    expected: torch.Tensor, actual: torch.Tensor, device_type: str, strict: Strictness
) -> Difference | None:
    if expected.layout == torch.sparse_coo and expected.is_coalesced() != actual.is_coalesced():
        return Difference(
            "metadata", f"coalesced {actual.is_coalesced()}, CPU's is {expected.is_coalesced()}"
        )
    for part in _SPARSE_PARTS.get(expected.layout, ()):
        wanted, got = getattr(expected, part)().detach(), getattr(actual, part)().detach()
        found = tensor_difference(wanted, got, device_type, strict)
        if found is not None:
            return Difference(found.kind, f"{part.strip('_')}: {found.text}")
    return None


def _as_bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach() if tensor.requires_grad else tensor
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    if plain.dtype == torch.complex128:
        return torch.view_as_real(plain).view(torch.int64)
    kind = _BITS.get(plain.dtype)
    if kind is None:
        kind = torch.uint8 if plain.dtype.is_floating_point and plain.element_size() == 1 else plain.dtype
    return plain.view(kind)


def bits_difference(expected: torch.Tensor, actual: torch.Tensor) -> Difference | None:
    """Compares elements' bits; `actual` is copied to the host if it is not there."""
    wanted, got = (
        _as_bits(expected),
        _as_bits(actual if actual.device.type == "cpu" else actual.detach().cpu()),
    )
    if torch.equal(wanted, got):
        return None
    dtype = expected.dtype
    floating = dtype.is_floating_point or dtype.is_complex
    wanted_values = expected.detach().resolve_conj().resolve_neg()
    got_values = actual.detach().cpu().resolve_conj().resolve_neg()
    differ = wanted != got
    if floating:
        if dtype.is_complex:
            wanted_values, got_values = torch.view_as_real(wanted_values), torch.view_as_real(got_values)
            differ = _as_bits(wanted_values) != _as_bits(got_values)
        both_nan = wanted_values.isnan() & got_values.isnan()
        if not bool((differ & ~both_nan).any()):
            return Difference("nan-payload", "only NaN payloads differ")
        differ = differ & ~both_nan
    return Difference("bits", _describe_values(wanted_values, got_values, differ))


def _describe_values(expected: torch.Tensor, actual: torch.Tensor, differ: torch.Tensor) -> str:
    count, total = int(differ.sum()), differ.numel()
    place = tuple(int(index) for index in differ.nonzero()[0])
    first = f"at {place}: {actual[place].item()!r}, CPU's is {expected[place].item()!r}"
    if not expected.dtype.is_floating_point:
        return f"{count} of {total} elements differ, {first}"
    gap = (expected.double() - actual.double()).abs()[differ]
    return f"{count} of {total} elements differ, by up to {float(gap.max()):.3g}, {first}"


def _aliasing_difference(expected: Outcome, actual: Outcome) -> Difference | None:
    wanted, got = aliases(expected), aliases(actual)
    if wanted == got:
        return None
    for index, (one, other) in enumerate(zip(wanted, got, strict=True)):
        if one != other:
            return Difference("aliasing", f"result {index} shares {other}, CPU's shares {one}")
    return None


def aliases(outcome: Outcome) -> list[str]:
    """For each tensor result, the first argument or earlier result with the same storage, or "nothing"."""
    owners: dict[int, str] = {}
    for index, tensor in enumerate(outcome.arguments):
        if tensor.layout == torch.strided:
            owners.setdefault(tensor.untyped_storage()._cdata, f"argument {index}'s storage")
    found = []
    for index, leaf in enumerate(outcome.leaves):
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
            key = leaf.untyped_storage()._cdata
            found.append(owners.get(key, "nothing"))
            owners.setdefault(key, f"result {index}'s storage")
    return found
