"""Inductor, the default backend of torch.compile, has no code generator for neuron and fails deep inside with
a KeyError (torch 2.13).
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from opentrn.errors import UnsupportedError


def refuse_device(module: ModuleType) -> None:
    """module: torch._inductor.compile_fx. Graphs with neuron tensors are refused before anything is
    generated.
    """
    original = module.compile_fx

    @functools.wraps(original)
    def compile_fx(graph: Any, example_inputs: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = (value for value in example_inputs if isinstance(value, torch.Tensor))
        if any(tensor.device.type == "neuron" for tensor in tensors):
            raise UnsupportedError(
                "Inductor, torch.compile's default backend, generates no code for neuron",
                cure='torch.compile(..., backend="aot_eager") runs the same graphs operator by operator',
            )
        return original(graph, example_inputs, *args, **kwargs)

    module.compile_fx = compile_fx  # type: ignore[attr-defined]
