"""`--from-cuda`: an unmodified CUDA script runs on neuron in this process.

How: devices of type cuda are translated below Python (csrc/port/redirect.cpp), where factory functions and
`.to()` meet the dispatcher, so operators on tensors pay nothing; `torch.cuda` is put in the hands of
`torch.neuron`; and the script is shown CUDA devices (`x.device`, `x.is_cuda`), while PyTorch's own Python
sees neuron.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

import torch

from opentrn.errors import ConfigurationError
from opentrn.port import cuda_amp, cuda_libraries, cuda_module, cuda_tensors, packages
from opentrn.port.redirections import LEDGER, Redirection, Refusal, user_location


class Redirections:
    """What went elsewhere, in the order of first use, and what was refused. Read it after the script ran."""

    @property
    def redirections(self) -> list[Redirection]:
        for name, count in _redirect().counts().items():
            entry = LEDGER.entries.get(_label(name))
            if entry is not None:
                entry.count = count
        return list(LEDGER.entries.values())

    @property
    def refusals(self) -> list[Refusal]:
        return list(LEDGER.refused.values())


def _redirect() -> Any:
    try:
        return importlib.import_module("opentrn.port._redirect")
    except ImportError as error:
        raise ConfigurationError(
            f"the extension behind --from-cuda cannot be loaded: {error}",
            cure="make setup, or pip install . in the repository",
        ) from error


def _label(name: str) -> str:
    return f"device cuda in {name}"


def _first(name: str) -> None:
    """Called from C++ at the first device argument of each operator; the count follows at the end."""
    LEDGER.entries[_label(name)] = Redirection(_label(name), "neuron", user_location())


_COMPOSITE = "CompositeImplicitAutograd"


def _operators_with_device() -> tuple[list[str], list[str]]:
    """Overload names of aten whose device argument decides where they are dispatched, and of those where a
    tensor argument does. Composites of such operators are left out: they meet the dispatcher again."""
    factories: list[str] = []
    arguments: list[str] = []
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::") or not any(_is_device(a) for a in schema.arguments):
            continue
        name = schema.name.removeprefix("aten::") + (
            f".{schema.overload_name}" if schema.overload_name else ""
        )
        full = f"aten::{name}"
        if not torch._C._dispatch_has_kernel(full):
            continue
        if torch._C._dispatch_has_kernel_for_dispatch_key(full, _COMPOSITE):
            continue
        takes_tensor = any("Tensor" in str(argument.type) for argument in schema.arguments)
        selects = torch._C._dispatch_has_kernel_for_dispatch_key(full, "BackendSelect")
        (factories if selects or not takes_tensor else arguments).append(name)
    return factories, arguments


def _is_device(argument: Any) -> bool:
    return re.fullmatch(r"(Optional\[)?Device\]?|Device\?", str(argument.type)) is not None


_installed: Redirections | None = None


def install() -> Redirections:
    """Turns the process into one that runs CUDA scripts on neuron; there is no way back. Once; later calls
    return the same object. ConfigurationError without the extension."""
    global _installed
    if _installed is not None:
        return _installed
    redirect = _redirect()
    redirect.on_first(_first)
    redirect.redirect(*_operators_with_device())
    cuda_module.install()
    cuda_tensors.install()
    cuda_amp.install()
    cuda_libraries.install()
    packages.install()
    _installed = Redirections()
    return _installed
