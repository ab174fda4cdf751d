"""torch.cuda.CUDAGraph: capture records the operators on neuron tensors, replay runs them again.

As on CUDA, capture changes nothing: what the captured operators wrote into tensors from outside, and the
random state, is put back at its end. Replay reads and writes the same tensors, so
`static_input.copy_(…); g.replay()` works. Unlike on CUDA a replay saves no host time, and each fresh result
costs one copy into its tensor of the capture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from opentrn.device import neuron
from opentrn.errors import OpenTRNError, UnsupportedError
from opentrn.port.redirections import LEDGER

_READS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::is_nonzero")


def _on_device(values: Any) -> Iterator[torch.Tensor]:
    for leaf in tree_leaves(values):
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "neuron":
            yield leaf


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


class _Recorder(TorchDispatchMode):
    """Keeps (operator, arguments, fresh results) of everything that touches the device."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple, dict, list[tuple[int, torch.Tensor]]]] = []
        self._known: set[int] = set()  # storages made in the capture, or saved before their first write
        self._saved: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(True for _ in _on_device((args, kwargs))) and "device" not in kwargs:
            return func(*args, **kwargs)
        if func._schema.name in _READS:
            raise UnsupportedError(
                f"{func._schema.name} inside a CUDA graph capture needs a value on the host",
                cure="move it out of the captured region; CUDA refuses it too",
            )
        self._save_written(func, args, kwargs)
        given = {_storage(tensor) for tensor in _on_device((args, kwargs))}
        results = func(*args, **kwargs)
        fresh = [
            (position, leaf)
            for position, leaf in enumerate(tree_leaves(results))
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "neuron" and _storage(leaf) not in given
        ]
        self._known.update(_storage(tensor) for _, tensor in fresh)
        if fresh or func._schema.is_mutable:
            self.calls.append((func, args, kwargs, fresh))
        return results

    def _save_written(self, func: Any, args: tuple, kwargs: dict) -> None:
        """Remembers what an operator is about to overwrite outside the capture."""
        for number, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            for tensor in _on_device(value):
                if _storage(tensor) not in self._known:
                    self._known.add(_storage(tensor))
                    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
                        tensor.untyped_storage()
                    )
                    self._saved.append((whole, whole.clone()))

    def put_back(self) -> None:
        for tensor, before in self._saved:
            tensor.copy_(before)
        self._saved.clear()

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, fresh in self.calls:
                results = tree_leaves(func(*args, **kwargs))
                for position, tensor in fresh:
                    tensor.copy_(results[position])


class CUDAGraph:
    """Capture and replay, eagerly."""

    def __init__(self, keep_graph: bool = False) -> None:
        LEDGER.note("torch.cuda.CUDAGraph", "eager replay of the captured operators (saves no launch time)")
        self._recorder: _Recorder | None = None
        self._capturing = False
        self._random: list[torch.Tensor] = []

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        if _capturing():
            raise OpenTRNError("a CUDA graph is being captured already", cure="end that capture first")
        self._recorder = _Recorder()
        self._random = [neuron.get_rng_state()]
        self._recorder.__enter__()
        self._capturing = True
        _active.append(self)

    def capture_end(self) -> None:
        if not self._capturing or self._recorder is None:
            raise OpenTRNError("capture_end() without capture_begin()")
        self._capturing = False
        _active.remove(self)
        self._recorder.__exit__(None, None, None)
        with torch.no_grad():
            self._recorder.put_back()
        neuron.set_rng_state(self._random[0])

    def replay(self) -> None:
        if self._recorder is None or self._capturing:
            raise OpenTRNError(
                "replay() of a CUDA graph that holds no finished capture", cure="capture it first"
            )
        self._recorder.replay()

    def reset(self) -> None:
        self._recorder = None

    def pool(self) -> tuple[int, int]:
        return (0, 0)

    def instantiate(self) -> None:
        """Nothing to instantiate: the tape is ready."""

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Replay draws from the generator anew, as on CUDA."""

    def enable_debug_mode(self) -> None:
        """There is no graph file to keep."""

    def debug_dump(self, debug_path: str) -> None:
        raise UnsupportedError("there is no CUDA graph to dump", cure="opentrn run records each operator")


_active: list[CUDAGraph] = []


def _capturing() -> bool:
    return bool(_active)


def is_current_stream_capturing() -> bool:
    return _capturing()


def graph_pool_handle() -> tuple[int, int]:
    return (0, 0)


class graph:
    """`with torch.cuda.graph(g):`"""

    default_capture_stream: Any = None

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        **_: Any,
    ) -> None:
        self.cuda_graph = cuda_graph

    def __enter__(self) -> None:
        neuron.synchronize()
        self.cuda_graph.capture_begin()

    def __exit__(self, *_: Any) -> None:
        self.cuda_graph.capture_end()


def make_graphed_callables(callables: Any, sample_args: Any = (), *_: Any, **__: Any) -> Any:
    """The callables themselves: graphed or not, they compute the same."""
    LEDGER.note("torch.cuda.make_graphed_callables", "the callables, run eagerly")
    return callables


GRAPH_NAMES: dict[str, Callable[..., Any] | type] = {
    "CUDAGraph": CUDAGraph,
    "graph": graph,
    "graph_pool_handle": graph_pool_handle,
    "is_current_stream_capturing": is_current_stream_capturing,
    "make_graphed_callables": make_graphed_callables,
}
