"""The ledger of stand-ins is complete: where a value that nobody computed becomes known, it says so.

Every value reaches a program through an operator of the dispatcher. A mode looks at each one in a dry run: if
an input has no bytes (it is tainted) and an output has (a host tensor, a device tensor with bytes, a number),
then what the output says was made up, and the ledger must have grown during that call.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dry_models import make
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import opentrn
from opentrn.device import _C, dry
from opentrn.quality.operators import catalogue
from opentrn.quality.operators.placement import Side, place

# Their results follow from sizes and arguments, never from the values of the input. Attention's readable
# results are sizes and the seed of its dropout.
_SHAPES_ONLY = (
    "empty_like",
    "new_empty",
    "new_zeros",
    "new_ones",
    "new_full",
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "randint_like",
    "new_empty_strided",
    "is_same_size",
    "is_pinned",
    "_has_compatible_shallow_copy_type",
    "_scaled_dot_product_fused_attention_overrideable",
    "numel",
)


def _noted() -> int:
    return sum(entry["count"] for entry in _C.stand_in_ledger())


def _is_tainted(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "neuron" and not _C.is_backed(value)


def _says_something(value: Any) -> bool:
    """Whether a value can be read: a number, or a tensor with bytes and elements."""
    if isinstance(value, torch.Tensor):
        return value.numel() > 0 and value.device.type != "meta" and not _is_tainted(value)
    return isinstance(value, bool | int | float | complex)


class Taint(TorchDispatchMode):
    """Collects the operators that gave readable results of tainted inputs and left no entry in the ledger."""

    def __init__(self) -> None:
        super().__init__()
        self.silent: set[str] = set()
        self.readings = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = tree_leaves((args, kwargs or {}))
        tainted = any(_is_tainted(value) for value in inputs)
        written = [v for v in inputs if _says_something(v) and isinstance(v, torch.Tensor)] if tainted else []
        versions = [value._version for value in written]
        before = _noted() if tainted else 0
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        if not tainted or name in _SHAPES_ONLY:
            return result
        fresh = [v for v in tree_leaves(result) if not any(v is known for known in inputs)]
        read = any(_says_something(value) for value in fresh) and not func.is_view
        changed = [
            v
            for v, version in zip(written, versions, strict=True)
            if v._version != version and _says_something(v)
        ]
        if read or changed:
            self.readings += 1
            if _noted() == before:
                self.silent.add(str(func))
        return result


@pytest.fixture
def no_float_has_bytes():
    _C.set_backing_limits(0, 8 << 20)
    yield
    _C.set_backing_limits(64 << 10, 8 << 20)


def _samples(entry: Any, name: str) -> Any:
    dtypes = catalogue.dtypes(entry)
    if torch.float32 not in dtypes:
        return []
    return catalogue.samples(name, entry, torch.float32, requires_grad=False)[:1]


@pytest.mark.usefixtures("no_float_has_bytes")
@pytest.mark.parametrize("part", range(4))
def test_operators_note_what_they_make_up(part: int) -> None:
    """A sample of each operator of PyTorch's database, twice: then shapes come from the cache."""
    silent: dict[str, set[str]] = {}
    readings = 0
    for name, entry in list(catalogue.load().items())[part::4]:
        for sample in _samples(entry, name):
            for _ in range(2):
                with opentrn.dry_run(), Taint() as taint:
                    try:
                        placed = place(sample, Side("neuron"))
                        entry.op(placed.input, *placed.args, **placed.kwargs)
                    except Exception:
                        pass  # refused as always, or on the values of a stand-in
                if taint.silent:
                    silent.setdefault(name, set()).update(taint.silent)
                readings += taint.readings
    assert readings > 20, "nothing was read: the test sees nothing"
    assert not silent


@pytest.mark.parametrize("kind", ["mixtral", "deepseek_v3", "gpt_oss"])
@pytest.mark.parametrize("experts", ["eager", "grouped_mm"])
def test_routing_is_in_the_ledger(kind: str, experts: str) -> None:
    with opentrn.dry_run(), Taint() as taint:
        model, inputs = make(kind, experts)
        model(**inputs).loss.backward()
    assert taint.readings > 0 and not taint.silent


def test_generation_and_gradient_scaling_are_in_the_ledger() -> None:
    with opentrn.dry_run(), Taint() as taint:
        model, inputs = make("qwen3")
        model.eval().generate(inputs["input_ids"], max_new_tokens=4, do_sample=True, pad_token_id=0)
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("neuron")
        scaler.scale(model.train()(**inputs).loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        scaler.step(optimizer)
        scaler.update()
    assert taint.readings > 0 and not taint.silent


def test_a_silent_reading_is_seen() -> None:
    """The mode itself: with the ledger cut off, it names the operators."""
    with opentrn.dry_run(), Taint() as taint:
        x = torch.randn(1 << 18, device="neuron")
        taint_noted, globals()["_noted"] = _noted, lambda: 0
        try:
            x.argmax()
            x.sum().item()
        finally:
            globals()["_noted"] = taint_noted
    assert {"aten.argmax.default", "aten._local_scalar_dense.default"} <= taint.silent
    assert dry.ledger()
