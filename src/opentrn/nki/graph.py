"""Calls of kernels inside of graph captures: each is one opaque operator, `opentrn::nki_kernel`.

Dynamo traces this file, and no other one of the front end (`opentrn.compat.kernels`); so what it runs here
is plain. Tensors go to the operator; the kernel, its launch grid and all other arguments are constants of the
graph, kept in a table whose place the operator gets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opentrn.errors import ConfigurationError, UnsupportedError


def _never() -> bool:
    return False


# Whether Dynamo runs this code; set when it is loaded, which takes a second that others need not wait.
compiling: Callable[[], bool] = _never


class Launchable:
    """What can be called as a kernel, and launched on a grid. Subclasses have `launch` and `at`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if compiling():
            return call_in_graph(self, None, args, kwargs)
        return self.launch(args, kwargs)

    def __getitem__(self, grid: Any) -> Any:
        if compiling():
            return OnGrid(self, grid)
        return self.at(grid)

    def launch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    def at(self, grid: Any) -> Any:
        raise NotImplementedError


class OnGrid:
    """``kernel[grid]`` while a graph is captured."""

    def __init__(self, kernel: Launchable, grid: Any) -> None:
        self.kernel, self.grid = kernel, grid

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return call_in_graph(self.kernel, self.grid, args, kwargs)


@dataclass
class _Site:
    """One kind of call. holes: places of tensors among the values; results is known after a call."""

    kernel: Any
    names: tuple[str, ...]  # of the last values; those before them are positional
    holes: tuple[int, ...]
    values: list[Any]
    results: int = -1  # how many in a tuple; -1: one tensor, -2: none

    def run(self, tensors: list[Any]) -> list[Any]:
        values = list(self.values)
        for place, tensor in zip(self.holes, tensors, strict=True):
            values[place] = tensor
        count = len(values) - len(self.names)
        before = _versions(tensors)
        result = self.kernel.launch(tuple(values[:count]), dict(zip(self.names, values[count:], strict=True)))
        if _versions(tensors) != before:
            raise UnsupportedError(
                f"{self.kernel!r} writes into an argument, which a captured graph has to know",
                cure='wrap it: @nki_op("namespace::name", mutates_args=(…))',
            )
        self.results = -2 if result is None else len(result) if isinstance(result, (tuple, list)) else -1
        return [] if result is None else list(result) if isinstance(result, (tuple, list)) else [result]


def _versions(tensors: list[Any]) -> list[int]:
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


_sites: list[_Site] = []
_known: dict[Any, int] = {}


def _site(kernel: Any, grid: Any, names: tuple[str, ...], holes: tuple[int, ...], *values: Any) -> int:
    """The place of a call in the table."""
    from opentrn.nki.arguments import NotCacheable, freeze
    from opentrn.nki.traced import Same

    place = len(_sites)
    with contextlib.suppress(NotCacheable):
        place = _known.setdefault((Same(kernel), freeze(grid), names, holes, freeze(list(values))), place)
    if place == len(_sites):
        _sites.append(_Site(kernel if grid is None else kernel.at(grid), names, holes, list(values)))
    return place


def _results(place: int) -> int:
    return _sites[place].results


# Dynamo calls these while it captures, and keeps what they return.
_site._dynamo_marked_constant = _results._dynamo_marked_constant = True  # type: ignore[attr-defined]


def call_in_graph(kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What Dynamo sees of a call."""
    import torch
    from torch.fx.experimental.symbolic_shapes import guard_scalar

    tensors: list[Any] = []
    holes: list[int] = []
    values: list[Any] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            holes.append(len(values))
            tensors.append(value)
            values.append(None)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            values.append(guard_scalar(value))  # a program is made for one value
        else:
            values.append(value)
    place = _site(kernel, grid, tuple(kwargs), tuple(holes), *values)
    made = torch.ops.opentrn.nki_kernel(tensors, place)
    results = _results(place)
    if results == -2:
        return None
    return made[0] if results == -1 else tuple(made)


def connect() -> None:
    """Define the operator; called once Dynamo is loaded."""
    import torch

    global compiling

    def run(tensors: list[torch.Tensor], place: int) -> list[torch.Tensor]:
        return _sites[place].run(tensors)

    # Types as objects, for the annotations of this file are text.
    run.__annotations__ = {"tensors": list[torch.Tensor], "place": int, "return": list[torch.Tensor]}
    operator = torch.library.custom_op("opentrn::nki_kernel", run, mutates_args=())
    operator.register_fake(run)

    def backward(context: Any, *gradients: Any) -> Any:
        raise ConfigurationError(
            "a kernel in a captured graph has no backward: it was called directly",
            cure='wrap it with @nki_op("namespace::name") and give that register_autograd, '
            "or call it under torch.no_grad()",
        )

    operator.register_autograd(backward)
    compiling = torch.compiler.is_dynamo_compiling
