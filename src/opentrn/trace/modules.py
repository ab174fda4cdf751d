"""Watches torch.nn modules through PyTorch's global module hooks: paths, outermost calls, embedding indices.

Cost per module call: two Python calls and a dictionary look-up; nothing per operator. Inside `torch.compile`
the hooks do nothing, so that they leave no trace in a graph.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as nn_module

_is_compiling = torch.compiler.is_compiling
_graph_task = torch._C._current_graph_task_id


class _Depth(threading.local):
    value = 0


class ModuleObserver:
    """Calls back on module events while installed.

    enter(path), leave(): around every module call; the path of an outermost module is its class name.
    outermost(module): an outermost call begins, outside of backward (recomputation is not a call of its own).
    embedding(module, index): an nn.Embedding is called with an integer index tensor, outside of backward.
    learned(module): an outermost module is seen for the first time.
    """

    def __init__(
        self,
        enter: Callable[[str], None],
        leave: Callable[[], None],
        outermost: Callable[[nn.Module], None],
        embedding: Callable[[nn.Module, torch.Tensor], None],
        learned: Callable[[nn.Module], None],
    ) -> None:
        self._enter, self._leave = enter, leave
        self._outermost, self._embedding, self._learned = outermost, embedding, learned
        # id(module) → (path, is an embedding, is a root); purged when its root dies.
        self._known: dict[int, tuple[str, bool, bool]] = {}
        self._depth = _Depth()
        self._handles: list[Any] = []
        self._references: list[weakref.ref] = []

    def install(self) -> None:
        """Starts watching."""
        # torch.compile warns that global hooks also fire for its wrapper; here that is a name on a path.
        warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global hooks")
        self._handles = [
            nn_module.register_module_forward_pre_hook(self._before),
            # Also after an exception, or the paths of everything later would be wrong.
            nn_module.register_module_forward_hook(self._after, always_call=True),
        ]

    def remove(self) -> None:
        """Stops watching; safe to call twice."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._unwind()

    def _before(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if _is_compiling():
            return
        entry = self._known.get(id(module)) or self._learn(module)
        depth = self._depth
        if entry[2] and depth.value:
            # A root inside a call can only mean that an interrupt skipped the hooks after it.
            self._unwind()
        depth.value += 1
        self._enter(entry[0])
        if depth.value == 1 and _graph_task() == -1:
            self._outermost(module)
        if entry[1] and arguments and _graph_task() == -1:
            index = arguments[0]
            if isinstance(index, torch.Tensor) and not index.is_floating_point():
                self._embedding(module, index)

    def _after(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        if _is_compiling() or not self._depth.value:
            return
        self._depth.value -= 1
        self._leave()

    def _unwind(self) -> None:
        while self._depth.value:
            self._depth.value -= 1
            self._leave()

    def _learn(self, module: nn.Module) -> tuple[str, bool, bool]:
        """Names an unknown module: as a root with all it holds, or, inside a call, by its class."""
        if self._depth.value:
            # Added after its root was first called (an adapter, say), or built on the fly.
            entry = (type(module).__name__, isinstance(module, nn.Embedding), False)
            self._remember(module, {id(module): entry})
            return entry
        entries = {}
        for path, child in module.named_modules():
            entries[id(child)] = (
                path or type(module).__name__,
                isinstance(child, nn.Embedding),
                child is module,
            )
        self._remember(module, entries)
        self._learned(module)
        return entries[id(module)]

    def _remember(self, owner: nn.Module, entries: dict[int, tuple[str, bool, bool]]) -> None:
        known = self._known
        known.update(entries)

        def forget(reference: weakref.ref) -> None:
            for key in entries:
                known.pop(key, None)
            self._references.remove(reference)

        self._references.append(weakref.ref(owner, forget))
