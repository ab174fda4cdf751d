"""What the device tests share: comparison with CPU, and scripts in a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import torch

NEURON = "neuron"


def same(found: Any, wanted: Any, **tolerance: float) -> None:
    """Equal bit for bit unless a tolerance is given; tensors of any device, nested as they come."""
    if not tolerance:
        tolerance = {"rtol": 0.0, "atol": 0.0}
    torch.testing.assert_close(on_host(found), on_host(wanted), equal_nan=True, **tolerance)


def on_host(value: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu(), value)


def on_device(value: Any, device: str = NEURON) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), value)


def agrees(function: Callable[..., Any], *arguments: Any, **tolerance: float) -> Any:
    """Calls `function` with device and with host arguments from one seed and compares; returns the
    device's result."""
    moved = on_device(arguments)
    wanted = function(*arguments)
    found = function(*moved)
    same(found, wanted, **tolerance)
    return found


def gradients(function: Callable[..., torch.Tensor], *arguments: torch.Tensor) -> list[torch.Tensor | None]:
    leaves = [argument.detach().clone().requires_grad_() for argument in arguments]
    function(*leaves).sum().backward()
    return [leaf.grad for leaf in leaves]


def gradients_agree(
    function: Callable[..., torch.Tensor], *arguments: torch.Tensor, **tolerance: float
) -> None:
    same(gradients(function, *on_device(arguments)), gradients(function, *arguments), **tolerance)


def run_script(
    code: str, *arguments: str, environment: dict[str, str] | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Runs `code` in a fresh interpreter. environment: added to this process's."""
    return subprocess.run(
        [sys.executable, *arguments, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **(environment or {})},
    )


def succeeds(code: str, *arguments: str, environment: dict[str, str] | None = None) -> str:
    """The output of a script that must end with exit code 0."""
    done = run_script(code, *arguments, environment=environment)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
