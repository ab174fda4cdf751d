"""Large host tensors in a dry run: their memory is reserved and never touched.

A script that builds a 32-billion-parameter model on the CPU would fill 64 GB before it moves the first
tensor. In a dry run, what fills, initialises or computes large floating-point host tensors is skipped:
`torch.empty` maps its pages lazily, so a tensor nobody writes costs no memory. Reading one is safe and gives
zeros. Integers and booleans, small tensors and everything with gradients on the host are computed as always.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.nn import init
from torch.overrides import TorchFunctionMode
from torch.utils import _device

from opentrn.device import _C
from opentrn.device.replaced import Replacements

# Floating-point host tensors from this size on are not computed.
LARGE_BYTES = 1 << 20

# (Python name, rule, user's line) → how often.
host_ledger: Counter[tuple[str, str, str]] = Counter()

_T = torch.Tensor
# Factories that would write their memory; torch.zeros and torch.empty leave it to the system, lazily.
_PLAIN = {torch.ones, torch.full, torch.rand, torch.randn, torch.normal}
_LIKE = {
    torch.ones_like,
    torch.full_like,
    torch.rand_like,
    torch.randn_like,
    torch.zeros_like,
    _T.new_ones,
    _T.new_full,
    _T.new_zeros,
}
# In place by name, and only metadata by nature.
_METADATA_IN_PLACE = frozenset(
    [
        "requires_grad_",
        "t_",
        "transpose_",
        "unsqueeze_",
        "squeeze_",
        "resize_",
        "resize_as_",
        "set_",
        "share_memory_",
        "detach_",
        "swapaxes_",
        "swapdims_",
        "as_strided_",
        "rename_",
        "retain_grad_",
    ]
)
_IN_PLACE_OPERATORS = frozenset(
    ["__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__", "__setitem__"]
)
# Never worth a second look: attributes, and reads that have to be real.
_AS_IT_IS = frozenset(
    [
        "__get__",
        "__set__",
        "__delete__",
        "__repr__",
        "__format__",
        "size",
        "dim",
        "numel",
        "nelement",
        "element_size",
        "stride",
        "storage_offset",
        "is_contiguous",
        "data_ptr",
        "untyped_storage",
        "is_floating_point",
        "is_complex",
        "register_hook",
        "requires_grad_",
        "__len__",
        "__hash__",
        "item",
        "tolist",
        "numpy",
        "__array__",
        "_is_view",
        "is_shared",
        "is_pinned",
        "get_device",
        "type_as",
        "backward",
        "__dlpack__",
        "__dlpack_device__",
        "save_for_backward",
        "is_same_size",
    ]
)


class HostMode(TorchFunctionMode):
    """Skips work on large floating-point host tensors while it is on."""

    def __enter__(self) -> HostMode:
        self._changes = Replacements()
        for name in [name for name in dir(init) if name.startswith("_no_grad_")]:
            self._changes.replace(init, name, _skipping(getattr(init, name)))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._changes.close()
        super().__exit__(*error)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _PLAIN:
            return _plain_factory(func, args, kwargs)
        for value in args:
            if isinstance(value, _T) and value.is_cpu and _is_large(value):
                return _on_large(func, args, kwargs)
            if (
                type(value) in (list, tuple)
                and value
                and isinstance(value[0], _T)
                and any(isinstance(v, _T) and v.is_cpu and _is_large(v) for v in value)
            ):
                return _on_large(func, args, kwargs)
        if func is _T.__deepcopy__ and args[0].device.type == "neuron" and not _C.is_backed(args[0]):
            return _copied_unbacked(*args)
        if kwargs:
            # torch.nn.init passes its tensor by name.
            first = kwargs.get("tensor")
            if isinstance(first, _T) and first.is_cpu and _is_large(first):
                return _on_large(func, (first, *args), {k: v for k, v in kwargs.items() if k != "tensor"})
        return func(*args, **kwargs)


def _skipping(initialise: Callable[..., Any]) -> Callable[..., Any]:
    """The inner functions of torch.nn.init draw again what fell outside, so they compare values."""

    def skip(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.is_cpu and _is_large(tensor):
            note(_name(initialise).removeprefix("_no_grad_"), "large host tensor: not written")
            return tensor
        return initialise(tensor, *args, **kwargs)

    return skip


def _is_large(tensor: torch.Tensor) -> bool:
    return (
        tensor.dtype.is_floating_point
        and tensor.layout is torch.strided
        and tensor.numel() * tensor.element_size() >= LARGE_BYTES
    )


def note(name: str, rule: str) -> None:
    """Counts a stand-in on the host, with the user's line."""
    host_ledger[name, rule, _C.python_frame()] += 1


def untouched(sizes: Iterable[int], strides: Iterable[int], dtype: torch.dtype) -> torch.Tensor:
    """A host tensor in memory that nothing has written, so that it takes no pages. Reads as zeros where the
    system gave the pages, as whatever was there where the process reuses them.
    """
    return torch.empty_strided(tuple(sizes), tuple(strides), dtype=dtype, device="cpu")


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__name__", str(func))


def _on_host(device: Any) -> bool:
    if device is not None:
        return torch.device(device).type == "cpu"
    default = _device.CURRENT_DEVICE
    return default is None or torch.device(default).type == "cpu"


def _plain_factory(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch.randn and the like: large ones on the host are reserved only."""
    if not _on_host(kwargs.get("device")) or kwargs.get("out") is not None or not _may_be_large(args, kwargs):
        return func(*args, **kwargs)
    try:
        shape = func(
            *args,
            **{**kwargs, "device": "meta", "generator": None, "pin_memory": False}
            if func in (torch.rand, torch.randn)
            else {**kwargs, "device": "meta"},
        )
    except (TypeError, RuntimeError, NotImplementedError):
        return func(*args, **kwargs)
    if not _is_large(shape):
        return func(*args, **kwargs)
    note(_name(func), "large host tensor: reserved, not filled")
    return untouched(shape.shape, shape.stride(), shape.dtype).requires_grad_(
        bool(kwargs.get("requires_grad"))
    )


def _may_be_large(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    sizes: Any = kwargs.get("size", args[0] if args and isinstance(args[0], list | tuple) else args)
    elements = 1
    for size in sizes:
        if isinstance(size, int):
            elements *= max(size, 1)
    return elements >= LARGE_BYTES // 8


def _on_large(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call with a large floating-point host tensor among its arguments."""
    name = _name(func)
    if name in _AS_IT_IS or func in (torch.empty_like, _T.new_empty, _T.new_empty_strided):
        return func(*args, **kwargs)
    first = args[0]
    if _is_in_place(name):
        # A leaf that needs gradients is written by its initialisation alone.
        writable = isinstance(first, _T) and first.is_cpu and _is_large(first)
        if writable and (first.is_leaf or not _tracks(args)):
            note(name, "large host tensor: not written")
            return first
        return func(*args, **kwargs)
    if name == "__deepcopy__":
        return _copied(first, args[1])
    if _leaves_host(args, kwargs) or _tracks(args):
        return func(*args, **kwargs)
    return _inferred(func, name, args, kwargs)


def _is_in_place(name: str) -> bool:
    if name in _IN_PLACE_OPERATORS:
        return True
    return name.endswith("_") and not name.endswith("__") and name not in _METADATA_IN_PLACE


def _tracks(args: Iterable[Any]) -> bool:
    """Training on the host itself goes on as usual."""
    return torch.is_grad_enabled() and any(isinstance(a, _T) and a.requires_grad for a in _flat(args))


def _flat(args: Iterable[Any]) -> Iterator[Any]:
    for value in args:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


def _leaves_host(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    for value in (*_flat(args), *kwargs.values()):
        if isinstance(value, _T) and not value.is_cpu and value.dim() > 0:
            return True
        if isinstance(value, torch.device) and value.type != "cpu":
            return True
        if isinstance(value, str):
            with contextlib.suppress(RuntimeError):
                if torch.device(value).type != "cpu":
                    return True
    return isinstance(kwargs.get("device"), int)


def _inferred(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The shapes by the meta device. Views, small results, and what is no tensor are computed really."""
    stand_ins: list[torch.Tensor] = []
    try:
        result = func(
            *_on_meta(args, stand_ins), **{k: _on_meta((v,), stand_ins)[0] for k, v in kwargs.items()}
        )
    except (
        RuntimeError,
        TypeError,
        ValueError,
    ):  # no meta kernel, or an answer that needs values: compute it
        return func(*args, **kwargs)
    results = [r for r in _flat((result,)) if r is not None]
    if not results or not all(isinstance(r, _T) and r.device.type == "meta" for r in results):
        return func(*args, **kwargs)
    known = {s.untyped_storage()._cdata for s in stand_ins}
    if any(r.untyped_storage()._cdata in known or not _is_large(r) for r in results):
        return func(*args, **kwargs)
    note(name, "large host tensor: not computed")
    if isinstance(result, _T):
        return untouched(result.shape, result.stride(), result.dtype)
    return type(result)(untouched(r.shape, r.stride(), r.dtype) for r in results)


def _on_meta(values: Iterable[Any], stand_ins: list[torch.Tensor]) -> tuple[Any, ...]:
    converted: list[Any] = []
    for value in values:
        if isinstance(value, _T) and value.is_cpu and (value.dim() > 0 or _is_large(value)):
            value = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
            stand_ins.append(value)
        elif type(value) in (list, tuple):
            value = type(value)(_on_meta(value, stand_ins))
        elif isinstance(value, torch.device) or value == "cpu":
            value = torch.device("meta")
        converted.append(value)
    return tuple(converted)


def _copied_unbacked(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """copy.deepcopy of a device tensor without bytes: its storage has nothing to copy."""
    if id(tensor) not in memo:
        memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]


def _copied(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """copy.deepcopy of a large host tensor."""
    if id(tensor) in memo:
        return memo[id(tensor)]
    note("deepcopy", "large host tensor: not copied")
    fresh = untouched(tensor.shape, tensor.stride(), tensor.dtype)
    copy: torch.Tensor = fresh
    if isinstance(tensor, torch.nn.Parameter):
        copy = torch.nn.Parameter(fresh, tensor.requires_grad)
    elif tensor.requires_grad and tensor.is_leaf:
        copy = fresh.requires_grad_()
    memo[id(tensor)] = copy
    return copy
