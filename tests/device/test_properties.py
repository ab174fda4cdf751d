"""Random chains of view, in-place and out= operations do on the device what they do on the CPU (hypothesis).

A chain works on a handful of tensors that alias one another; after it every tensor has CPU's values, strides,
offset and storage relations, and the allocator's counters return to where they were.
"""

from __future__ import annotations

import gc
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from device_helpers import NEURON
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Operation = tuple[str, tuple[Any, ...]]
Tensors = list[torch.Tensor]

sizes = st.lists(st.integers(0, 4), min_size=0, max_size=4)
small = st.integers(-3, 4)
dtypes = st.sampled_from([torch.float32, torch.int64, torch.bfloat16, torch.bool, torch.complex64])


def _view(name: str, t: torch.Tensor, a: int, b: int) -> torch.Tensor:
    """A view of `t`, or `t` where the operation has no meaning for its shape."""
    if t.dim() == 0:
        return t.unsqueeze(0) if name in ("unsqueeze", "expand") else t.reshape(())
    i, j = a % t.dim(), b % t.dim()
    length = t.size(i)
    views: dict[str, Callable[[], torch.Tensor]] = {
        "transpose": lambda: t.transpose(i, j),
        "slice": lambda: t.narrow(i, min(abs(a), length), max(0, min(abs(b), length - min(abs(a), length)))),
        "step": lambda: t[(slice(None),) * i + (slice(abs(a) % 3, None, abs(b) % 3 + 1),)],
        "select": lambda: t.select(i, b % length) if length else t,
        "unsqueeze": lambda: t.unsqueeze(i),
        "squeeze": lambda: t.squeeze(i),
        "expand": lambda: t.unsqueeze(0).expand(abs(a) + 1, *t.shape),
        "flatten": lambda: t.flatten(),
        "reshape": lambda: t.reshape(-1, length) if t.numel() and length else t,
        "unfold": lambda: t.unfold(i, min(2, length), 1) if length else t,
        "diagonal": lambda: t.diagonal(0, i, j) if i != j else t,
        "flip": lambda: t.flip(i),
        "conj": lambda: t.conj(),
        "real": lambda: t.real,
        "imag": lambda: t.imag if t.is_complex() else t,
        "chunk": lambda: t.chunk(2, i)[-1],
        "as_strided": lambda: t.as_strided(t.shape[::-1], t.stride()[::-1], t.storage_offset()),
        "view dtype": lambda: t.view(torch.int16) if t.dtype == torch.bfloat16 else t,
    }
    return views[name]()


VIEW_NAMES = [
    "transpose",
    "slice",
    "step",
    "select",
    "unsqueeze",
    "squeeze",
    "expand",
    "flatten",
    "reshape",
    "unfold",
    "diagonal",
    "flip",
    "conj",
    "real",
    "imag",
    "chunk",
    "as_strided",
    "view dtype",
]


def _write(name: str, t: torch.Tensor, other: torch.Tensor, a: int) -> None:
    other = other.to(t.dtype) if not other.is_complex() or t.is_complex() else other.real.to(t.dtype)
    writes: dict[str, Callable[[], Any]] = {
        "fill_": lambda: t.fill_(a),
        "zero_": lambda: t.zero_(),
        "add_": lambda: t.add_(other),
        "mul_": lambda: t.mul_(a),
        "copy_": lambda: t.copy_(other),
        "copy from host": lambda: t.copy_(torch.full_like(other, a, device="cpu")),
        "index_fill_": lambda: t.index_fill_(0, torch.tensor([0], device=t.device), a),
        "setitem": lambda: t.__setitem__(0, a),
        "masked_fill_": lambda: t.masked_fill_(t == t, a),
        "clamp_": lambda: t.clamp_(-a, a),
        "neg_": lambda: t.neg_(),
        "t_": lambda: t.t_(),
        "squeeze_": lambda: t.squeeze_(),
        "resize_": lambda: t.resize_(abs(a), 2).fill_(a),  # grown elements have no value
        "swap_": lambda: t.swapaxes_(0, -1),
        "set_": lambda: t.set_(other.clone()),
        "cumsum_": lambda: t.cumsum_(0),
    }
    writes[name]()


WRITE_NAMES = [
    "fill_",
    "zero_",
    "add_",
    "mul_",
    "copy_",
    "index_fill_",
    "setitem",
    "masked_fill_",
    "clamp_",
    "neg_",
    "t_",
    "squeeze_",
    "resize_",
    "swap_",
    "set_",
    "cumsum_",
    "copy from host",
]


def _out(name: str, t: torch.Tensor, other: torch.Tensor, a: int) -> None:
    other = other.clone()  # an input that is the output itself has no defined result
    outs: dict[str, Callable[[], Any]] = {
        "add": lambda: torch.add(other, a, out=t),
        "cat": lambda: torch.cat([other.flatten(), other.flatten()], out=t),
        "sum": lambda: torch.sum(other, 0, out=t),
        "abs": lambda: torch.abs(other, out=t),
        "arange": lambda: torch.arange(abs(a), out=t),
        "clone": lambda: torch.mul(other, 1, out=t),
        "stack": lambda: torch.stack([other, other], out=t),
        "nonzero": lambda: torch.nonzero(other, out=t),
    }
    outs[name]()


OUT_NAMES = ["add", "cat", "sum", "abs", "arange", "clone", "stack", "nonzero"]

operations = st.one_of(
    st.tuples(st.just("view"), st.sampled_from(VIEW_NAMES), st.integers(0, 5), small, small),
    st.tuples(st.just("write"), st.sampled_from(WRITE_NAMES), st.integers(0, 5), st.integers(0, 5), small),
    st.tuples(st.just("out"), st.sampled_from(OUT_NAMES), st.integers(0, 5), st.integers(0, 5), small),
    st.tuples(st.just("drop"), st.just(""), st.integers(0, 5), st.just(0), st.just(0)),
    st.tuples(
        st.just("compute"),
        st.sampled_from(["add", "matmul", "sum", "clone"]),
        st.integers(0, 5),
        st.just(0),
        small,
    ),
)


def _compute(name: str, t: torch.Tensor, a: int) -> torch.Tensor:
    if name == "matmul":
        flat = t.reshape(-1, 1).to(torch.float32) if not t.is_complex() else t.reshape(-1, 1)
        return flat.mT @ flat
    return {"add": lambda: t + a, "sum": lambda: t.sum(0) if t.dim() else t, "clone": lambda: t.clone()}[
        name
    ]()


def _apply(operation: tuple[Any, ...], tensors: Tensors) -> str:
    """Performs one step in place of `tensors`; the kind of the error if PyTorch refuses it, else ""."""
    kind, name, first, second, third = operation
    target = tensors[first % len(tensors)]
    try:
        if kind == "view":
            tensors.append(_view(name, target, second, third))
        elif kind == "write":
            _write(name, target, tensors[second % len(tensors)], third)
        elif kind == "out":
            _out(name, target, tensors[second % len(tensors)], third)
        elif kind == "compute":
            tensors.append(_compute(name, target, third))
        elif len(tensors) > 1:
            tensors.pop(first % len(tensors))
        del tensors[6:]
    except (RuntimeError, IndexError, TypeError) as error:
        return type(error).__name__
    return ""


def _start(shape: list[int], dtype: torch.dtype, device: str) -> Tensors:
    base = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    return [base.to(device), torch.ones(2, 2).to(dtype).to(device)]


def _check(found: Tensors, wanted: Tensors) -> None:
    assert len(found) == len(wanted)
    for device, host in zip(found, wanted, strict=True):
        assert device.shape == host.shape and device.dtype == host.dtype and device.is_neuron
        assert device.stride() == host.stride() and device.storage_offset() == host.storage_offset()
        assert (device.is_conj(), device.is_neg()) == (host.is_conj(), host.is_neg())
        assert device.untyped_storage().nbytes() == host.untyped_storage().nbytes()
        torch.testing.assert_close(device.cpu(), host, rtol=0, atol=0, equal_nan=True)
    for i in range(len(found)):
        for j in range(i):
            shares = [t[i].untyped_storage()._cdata == t[j].untyped_storage()._cdata for t in (found, wanted)]
            assert shares[0] == shares[1]


@settings(
    max_examples=250,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(shape=sizes, dtype=dtypes, chain=st.lists(operations, min_size=1, max_size=8))
def test_chains_agree_with_cpu(shape: list[int], dtype: torch.dtype, chain: list[tuple[Any, ...]]) -> None:
    gc.disable()
    try:
        before = torch.neuron.memory_allocated()
        found, wanted = _start(shape, dtype, NEURON), _start(shape, dtype, "cpu")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for operation in chain:
                refused = _apply(operation, found)
                assert refused == _apply(operation, wanted), operation
                if refused and operation[0] in ("write", "out"):
                    break  # what a failed write leaves behind is nobody's promise
                _check(found, wanted)
        stats = torch.neuron.memory_stats()
        assert (
            stats["reserved_bytes.all.current"]
            >= stats["allocated_bytes.all.current"]
            >= stats["active_bytes.all.current"]
        )
        found.clear()
        assert torch.neuron.memory_allocated() == before  # no storage outlives its tensors
    finally:
        gc.enable()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(0, 3 << 20), min_size=1, max_size=20),
    order=st.randoms(use_true_random=False),
)
def test_allocator_accounts_for_every_block(sizes: list[int], order: Any) -> None:
    device = "neuron:9"
    with torch.neuron.device(9):
        held: Tensors = []
        for size in sizes:
            held.append(torch.empty(size, dtype=torch.uint8, device=device))
            if len(held) > 3 and order.random() < 0.5:
                held.pop(order.randrange(len(held)))
        segments = [segment for segment in torch.neuron.memory_snapshot() if segment["device"] == 9]
        stats = torch.neuron.memory_stats()
        assert sum(s["total_size"] for s in segments) == stats["reserved_bytes.all.current"]
        blocks = [block for s in segments for block in s["blocks"]]
        live = [block for block in blocks if block["state"] == "active_allocated"]
        assert sum(block["size"] for block in live) == stats["allocated_bytes.all.current"]
        assert sum(block["requested_size"] for block in live) == sum(t.nbytes for t in held)
        assert len(live) == sum(1 for t in held if t.nbytes)
        spans = sorted((block["address"], block["size"]) for block in blocks)
        assert all(start + size <= following for (start, size), (following, _) in itertools.pairwise(spans))
        held.clear()
        torch.neuron.empty_cache()
        assert torch.neuron.memory_reserved() == 0
