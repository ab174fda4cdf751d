"""Which differences of two outcomes count, and which do not."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
import torch

from opentrn.quality.operators.comparison import (
    Outcome,
    Strictness,
    bits_difference,
    flatten,
    outcome_difference,
)


def outcome(result: Any, *arguments: torch.Tensor) -> Outcome:
    made = Outcome(arguments=list(arguments))
    made.shape = flatten(result, made.leaves)
    return made


def difference(expected: Outcome, actual: Outcome) -> str | None:
    found = outcome_difference(expected, actual, "cpu", Strictness())
    return None if found is None else found.kind


def nan_with_payload(payload: int) -> torch.Tensor:
    return torch.tensor([0x7FC00000 + payload], dtype=torch.int32).view(torch.float32)


def test_negative_zero_is_not_zero() -> None:
    found = bits_difference(torch.tensor([1.0, 0.0]), torch.tensor([1.0, -0.0]))
    assert found is not None and found.kind == "bits" and "at (1,): -0.0" in found.text


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_zero_signs_count(dtype: torch.dtype) -> None:
    found = bits_difference(
        torch.tensor([complex(0.0, 0.0)], dtype=dtype), torch.tensor([complex(0.0, -0.0)], dtype=dtype)
    )
    assert found is not None and found.kind == "bits"


def test_nan_payload_is_told_apart() -> None:
    found = bits_difference(nan_with_payload(0), nan_with_payload(1))
    assert found is not None and found.kind == "nan-payload"
    assert bits_difference(nan_with_payload(0), nan_with_payload(0)) is None


def test_nan_against_a_number_counts() -> None:
    found = bits_difference(torch.tensor([math.nan, 1.0]), torch.tensor([math.nan, math.nan]))
    assert found is not None and found.kind == "bits" and found.text.startswith("1 of 2")


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float8_e4m3fn,
        torch.bfloat16,
        torch.float16,
        torch.float64,
        torch.bool,
        torch.int64,
        torch.uint32,
    ],
)
def test_every_width_is_compared(dtype: torch.dtype) -> None:
    zeros = torch.zeros(3, dtype=torch.float32).to(dtype)
    ones = torch.ones(3, dtype=torch.float32).to(dtype)
    assert bits_difference(zeros, zeros.clone()) is None
    found = bits_difference(zeros, ones)
    assert found is not None and found.kind == "bits"


def test_last_bit_of_a_scalar_counts() -> None:
    (other,) = struct.unpack("d", struct.pack("q", struct.unpack("q", struct.pack("d", 1.5))[0] + 1))
    assert difference(outcome(1.5), outcome(other)) == "bits"
    assert difference(outcome(0.0), outcome(-0.0)) == "bits"
    assert difference(outcome(math.nan), outcome(math.nan)) is None


def test_metadata_counts() -> None:
    wide = torch.zeros(2, 3)
    assert difference(outcome(wide), outcome(torch.zeros(3, 2).t())) == "metadata"
    assert difference(outcome(wide), outcome(wide.double())) == "metadata"
    assert difference(outcome(wide), outcome(wide.clone().requires_grad_())) == "metadata"
    assert difference(outcome(wide[:1]), outcome(wide[1:])) == "metadata"
    conjugate = torch.zeros(2, dtype=torch.complex64).conj()
    assert difference(outcome(conjugate), outcome(conjugate.resolve_conj())) == "metadata"
    assert difference(outcome(wide), outcome(torch.zeros(2, 3, device="meta"))) == "metadata"


def test_structure_and_errors_count() -> None:
    one = torch.zeros(1)
    assert difference(outcome((one, one)), outcome([one, one])) == "structure"
    assert difference(outcome((one, None)), outcome((one, one))) == "structure"
    assert difference(outcome(3), outcome(3.0)) == "structure"
    refused = Outcome(error=RuntimeError("no"))
    assert difference(refused, Outcome(error=RuntimeError("other words"))) is None
    assert difference(refused, Outcome(error=ValueError("no"))) == "error"
    assert difference(refused, outcome(one)) == difference(outcome(one), refused) == "error"


def test_aliasing_counts() -> None:
    source, other = torch.zeros(4), torch.zeros(4)
    assert difference(outcome(source[1:], source), outcome(other[1:], other)) is None
    assert difference(outcome(source[:], source), outcome(other.clone(), other)) == "aliasing"
    assert difference(outcome((source, source[:])), outcome((other, other.clone()))) == "aliasing"


def test_a_stray_write_to_an_argument_counts() -> None:
    result = torch.zeros(1)
    found = outcome_difference(
        outcome(result, torch.zeros(3)), outcome(result, torch.ones(3)), "cpu", Strictness()
    )
    assert found is not None and found.text.startswith("argument 0 after the run")


def test_sparse_parts_are_compared() -> None:
    one = torch.eye(3).to_sparse()
    other = (2 * torch.eye(3)).to_sparse()
    assert difference(outcome(one), outcome(one.clone())) is None
    assert difference(outcome(one), outcome(other)) == "bits"
    assert difference(outcome(one.to_sparse_csr()), outcome(one)) == "metadata"
