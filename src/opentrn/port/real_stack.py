"""`--as torchneuron-2.33`: what the real stack would do with each operator of a run, with the user's line.

A dispatch mode sees every operator before it runs. Watching lists what the real stack would do; behaving also
does it: what eager mode refuses raises UnsupportedError at the user's line, what falls back is charged its
transfers, and each new shape its compilation. Costs about 10 µs an operator, and nothing when it is off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from opentrn import settings
from opentrn.device import _C
from opentrn.device.attach import attached
from opentrn.errors import ConfigurationError, UnsupportedError
from opentrn.port.behaviours import (
    DEFAULT,
    Behaviour,
    Finding,
    Release,
    in_order,
    release,
    summary_line,
)
from opentrn.port.charges import Charges

# Transfers: their result decides, for the host converts before it sends.
_TRANSFERS = frozenset({"_to_copy", "copy", "_copy_from"})
# Allocations and metadata compile nothing.
_UNCOMPILED = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "detach", "record_stream", "set"}
)
_RECOMPILES = "eager-shapes"
# One more shape at a line is an odd last batch, two are a pattern.
LATER_SHAPES_WORTH_A_LINE = 2


def base_name(func: Any) -> str:
    """ "add" of aten::add_.Tensor and aten::add.out."""
    name = func._schema.name.partition("::")[2]
    return name.rstrip("_") if name.endswith("_") and not name.endswith("__") else name


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _on_device(values: Any) -> Iterator[torch.Tensor]:
    for leaf in tree_leaves(values):
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "neuron":
            yield leaf


@dataclass
class _Places:
    """Findings by (behaviour, place, operator), and the signatures that eager mode would compile: all, and by
    place with the round in which each came first."""

    findings: dict[tuple[str, str, str], Finding] = field(default_factory=dict)
    signatures: set[tuple] = field(default_factory=set)
    by_place: dict[tuple[str, str], dict[tuple, int]] = field(default_factory=dict)


class _Rounds:
    """Counts the rounds of a program's loop: outermost module calls and optimizer steps. Layers of one pass
    have many shapes at one line; only a shape that is new in a later round is a recompilation to speak of."""

    def __init__(self) -> None:
        self.count = 0
        self._depth = 0
        self._handles: list[Any] = []

    def start(self) -> None:
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_post_hook(self._step),
        ]

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _enter(self, *_: Any) -> None:
        self.count += not self._depth
        self._depth += 1

    def _leave(self, *_: Any) -> None:
        self._depth -= 1

    def _step(self, *_: Any) -> None:
        self.count += 1


class _Watched:
    """The behaviours that a run can show, on the attached generation."""

    def __init__(self, stack: Release) -> None:
        generation = str(attached().device_parameters()["core_generation"])
        watched = [
            behaviour
            for behaviour in stack.behaviours
            if behaviour.static is None
            and behaviour.name != _RECOMPILES
            and (not behaviour.generations or generation in behaviour.generations)
        ]
        self.everywhere = [behaviour for behaviour in watched if not behaviour.operators]
        self.by_operator: dict[str, list[Behaviour]] = {}
        for behaviour in watched:
            for operator in behaviour.operators:
                self.by_operator.setdefault(operator, []).append(behaviour)
        self.dtypes = frozenset().union(*(behaviour.dtypes for behaviour in self.everywhere))


class RealStack(TorchDispatchMode):
    """Watches operators. Read `findings()` when the program has ended.

    behaves: what eager mode refuses raises, fallbacks and compilations take time; else both are only listed.
    """

    def __init__(self, stack: Release, behaves: bool) -> None:
        super().__init__()
        self.release, self.behaves = stack, behaves
        self.charges = Charges(stack.compile_time)
        self._places = _Places()
        self._rounds = _Rounds()

    @cached_property
    def _watched(self) -> _Watched:
        # At the first operator, for it attaches the machine.
        return _Watched(self.release)

    def __enter__(self) -> RealStack:
        self._rounds.start()
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._rounds.stop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = base_name(func)
        tensors = list(_on_device((args, kwargs)))
        place = kwargs.get("device")
        if not tensors and not (isinstance(place, torch.device) and place.type in ("neuron", "cuda")):
            return func(*args, **kwargs)
        falls_back = self._judge(func, name, tensors, args, kwargs)
        if not (falls_back and self.behaves):
            return func(*args, **kwargs)
        self.charges.send_to_host(tensors)
        result = func(*args, **kwargs)
        self.charges.send_back(_on_device(result))
        return result

    def _judge(self, func: Any, name: str, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> bool:
        """Notes what applies; returns whether the operator runs on the host."""
        watched, dtypes = self._watched, _dtypes(name, tensors, args, kwargs)
        where: str | None = None
        falls_back = False
        computes = not func.is_view and name not in _UNCOMPILED and name not in _TRANSFERS
        if not watched.dtypes.isdisjoint(dtypes):
            for behaviour in watched.everywhere:
                if not behaviour.dtypes.isdisjoint(dtypes):
                    where = where or _where()
                    self._add(behaviour, func, where, ", ".join(sorted(behaviour.dtypes & set(dtypes))))
                    falls_back |= computes and behaviour.in_eager == "falls back"
        for behaviour in watched.by_operator.get(name, ()):
            found = _matching(behaviour, tensors, args)
            if found is not None:
                where = where or _where()
                self._add(behaviour, func, where, found)
                falls_back |= behaviour.in_eager == "falls back"
        if computes and not falls_back:
            self._compiled(func, tensors, args, where)
        return falls_back

    def _add(self, behaviour: Behaviour, func: Any, where: str, detail: str) -> None:
        operator = func._schema.name
        key = (behaviour.name, where, operator)
        known = self._places.findings.get(key)
        if known is None:
            self._places.findings[key] = Finding(behaviour, where, operator, detail)
        else:
            known.count += 1
        if self.behaves and behaviour.in_eager == "refuses":
            raise UnsupportedError(
                f"{operator} ({detail}): {self.release.name} refuses it: {behaviour.text}",
                where=where,
                cure=f"{behaviour.instead}; {behaviour.source}",
            )

    def _compiled(self, func: Any, tensors: list[torch.Tensor], args: Any, where: str | None) -> None:
        """One compilation for each operator with its shapes and data types."""
        operator = func._schema.name
        shapes: tuple[Any, ...] = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
        if not shapes:  # a factory: the sizes are among the arguments
            shapes = (repr(args),)
        signature = (operator, shapes)
        if signature in self._places.signatures:
            return
        self._places.signatures.add(signature)
        if self.behaves:
            self.charges.compile()
        here = self._places.by_place.setdefault((where or _where(), operator), {})
        here.setdefault(shapes, self._rounds.count)

    @property
    def compilations(self) -> int:
        """How many operators with distinct shapes eager mode would compile."""
        return len(self._places.signatures)

    def findings(self, more: Iterable[Finding] = ()) -> list[Finding]:
        """Everything found, and `more`: worst outcome first, then by place."""
        behaviour = self.release.named(_RECOMPILES)
        shapes = [
            Finding(behaviour, where, operator, _shape_range(found), len(found))
            for (where, operator), found in self._places.by_place.items()
            if self._later(found) >= LATER_SHAPES_WORTH_A_LINE and _same_rank(found)
        ]
        return in_order([*self._places.findings.values(), *shapes, *more])

    def notes(self, more: Iterable[Finding] = ()) -> list[str]:
        """One line for each behaviour met, also of `more`, and each charge, for a report."""
        groups: dict[str, list[Finding]] = {}
        for finding in self.findings(more):
            groups.setdefault(finding.behaviour.name, []).append(finding)
        lines = [summary_line(found) for found in groups.values()]
        if not groups:
            lines.append("nothing that its documentation treats otherwise was met")
        return [f"{self.release.name} {line}" for line in [*lines, *self.charges.notes()]]

    def _later(self, found: dict[tuple, int]) -> int:
        """Rounds after a place's first that brought a new shape; without rounds, shapes but the first."""
        if not self._rounds.count:
            return len(found) - 1
        return len(set(found.values())) - 1


def _where() -> str:
    return _C.python_frame() or "?"


def _dtypes(name: str, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> set[str]:
    """Data types that an operator needs on the device."""
    if name in _TRANSFERS:
        source = args[1] if name == "copy" and len(args) > 1 else args[0]
        if name == "copy":
            return {_dtype_name(args[0].dtype)} if args[0].device.type == "neuron" else set()
        target = kwargs.get("device") or source.device
        if target.type not in ("neuron", "cuda"):
            return set()
        return {_dtype_name(kwargs.get("dtype") or source.dtype)}
    found = {_dtype_name(tensor.dtype) for tensor in tensors}
    if isinstance(kwargs.get("dtype"), torch.dtype):
        found.add(_dtype_name(kwargs["dtype"]))
    elif not tensors:  # a factory without a dtype
        found.add(_dtype_name(torch.get_default_dtype()))
    return found


def _matching(behaviour: Behaviour, tensors: list[torch.Tensor], args: Any) -> str | None:
    """Which of the behaviour's data types an operator has where it counts; None where it has none."""
    if not behaviour.dtypes:
        return ", ".join(str(list(tensor.shape)) for tensor in tensors[:2])
    if behaviour.operand == "index":
        indices = [t for t in (args[1] if len(args) > 1 else ()) if isinstance(t, torch.Tensor)]
        names = [_dtype_name(index.dtype) for index in indices]
    elif behaviour.operand == "first":
        names = [_dtype_name(tensors[0].dtype)] if tensors else []
    else:
        names = [_dtype_name(tensor.dtype) for tensor in tensors]
    hit = behaviour.dtypes.intersection(names)
    return ", ".join(sorted(hit)) if hit else None


def _same_rank(shapes: Iterable[tuple]) -> bool:
    """Whether the signatures differ in sizes alone: a helper called for all kinds is no pattern."""
    kinds = set()
    for shape in shapes:
        if not all(isinstance(entry, tuple) for entry in shape):
            return False  # a factory's arguments
        kinds.add(tuple((len(size), dtype) for size, dtype in shape))
    return len(kinds) == 1


def _shape_range(shapes: dict[tuple, int]) -> str:
    ordered = sorted(shapes, key=lambda shape: [tuple(size) for size, _ in shape])
    few = [" ".join(str(list(size)) for size, _ in shape) for shape in (ordered[0], ordered[-1])]
    return f"{len(shapes)} shapes, {few[0]} … {few[1]}"


_installed: RealStack | None = None


def install(name: str | None = None, *, behaves: bool = True) -> RealStack:
    """Watches the rest of the process as the named release (else OPENTRN_AS, else the newest). Once; later
    calls return the same object and only change whether it behaves so. Under OPENTRN_STRICT=1 it does."""
    global _installed
    behaves = behaves or settings.get("OPENTRN_STRICT") == "1"
    if _installed is None:
        stack = release(name or settings.get("OPENTRN_AS") or DEFAULT)
        _installed = RealStack(stack, behaves)
        _installed.__enter__()
    _installed.behaves = behaves
    return _installed


def install_from_environment() -> None:
    """What `import torch` does under OPENTRN_AS. A bad value is reported at the first use of the device,
    which checks every setting."""
    with contextlib.suppress(ConfigurationError):
        if settings.get("OPENTRN_AS"):
            install()


def uninstall() -> None:
    """Stops watching; the object keeps its findings."""
    global _installed
    if _installed is not None:
        _installed.__exit__(None, None, None)
        _installed = None
