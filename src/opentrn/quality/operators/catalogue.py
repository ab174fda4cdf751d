"""The operators of PyTorch's own database, and their samples on CPU.

`op_db` is what PyTorch tests its own devices with. Importing it costs about five seconds, so only
worker processes do.
"""

from __future__ import annotations

import random
import zlib
from typing import Any

import numpy
import torch

# Seeding each sample anew, as PyTorch's own tests do, costs 0.3 ms a sample (measured), 15 times what making
# it costs. One seed for each operator and dtype is as deterministic.
_SEED = 20240


def load() -> dict[str, Any]:
    """All OpInfo entries by unique name: "add", "normal/in_place" (operator/variant)."""
    from torch.testing._internal.common_methods_invocations import op_db

    operators = {}
    for entry in op_db:
        variant = entry.variant_test_name
        operators[f"{entry.name}/{variant}" if variant else entry.name] = entry
    if len(operators) != len(op_db):
        raise AssertionError("two entries of the operator database share one name")
    return operators


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtypes(entry: Any, wanted: frozenset[str] | None = None) -> list[torch.dtype]:
    """The dtypes that PyTorch's CPU kernels support, by name, restricted to `wanted` names if given."""
    supported = sorted(entry.supported_dtypes("cpu"), key=str)
    return [dtype for dtype in supported if wanted is None or dtype_name(dtype) in wanted]


def has_backward(entry: Any, dtype: torch.dtype) -> bool:
    return bool(entry.supports_autograd) and dtype in entry.supported_backward_dtypes("cpu")


def seed_of(name: str, dtype: torch.dtype) -> int:
    """A seed that depends on the operator and dtype alone, not on what ran before."""
    return _SEED + zlib.crc32(f"{name}:{dtype}".encode())


def samples(name: str, entry: Any, dtype: torch.dtype, *, requires_grad: bool) -> list[Any]:
    """Every sample of one operator and dtype, made on CPU from a fixed seed."""
    seed = seed_of(name, dtype)
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    return list(entry.sample_inputs("cpu", dtype, requires_grad=requires_grad, set_seed=False))


def describe(sample: Any) -> str:
    """Shapes and scalars of a sample in one line, for a failure list."""
    text = sample.summary().removeprefix("SampleInput(").removesuffix(")")
    return text if len(text) <= 400 else text[:397] + "..."
