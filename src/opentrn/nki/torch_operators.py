"""Kernels as PyTorch operators: `@nki_op` and `wrap_nki`, under the names of the public stack.

Sources of the names and their meaning: the release notes and the FAQ of the native PyTorch stack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentrn.errors import ConfigurationError
from opentrn.nki.classic.launch import ClassicKernel
from opentrn.nki.graph import Launchable
from opentrn.nki.kernel import Kernel


def nki_op(name: str, mutates_args: Any = (), **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: a typed Python launcher of kernels becomes the operator `name` ("namespace::operator").

    The launcher takes and returns tensors and calls kernels on them, on `neuron` and on CPU tensors alike.
    mutates_args: names of the arguments that its kernels write. The result has `register_autograd` and
    `register_fake`, as `torch.library.custom_op` gives them; unless a fake is registered, shapes come from
    the launcher itself, whose kernels then only trace.
    """
    import torch

    def decorate(launcher: Callable[..., Any]) -> Any:
        operator = torch.library.custom_op(name, launcher, mutates_args=mutates_args, **options)
        operator.register_fake(launcher)
        return operator

    return decorate


class WrappedKernel(Launchable):
    """`wrap_nki(kernel)`: a kernel that is called with keywords, ``wrapped[grid](x=x)``.

    operand_output_aliases: place of a tensor argument → place of the result that it is written back as. What
    a kernel writes is known from its program, so the declaration is only checked.
    """

    def __init__(self, kernel: Kernel, operand_output_aliases: dict[int, int] | None = None) -> None:
        self.kernel, self.operand_output_aliases = kernel, dict(operand_output_aliases or {})

    def at(self, grid: Any) -> WrappedKernel:
        """``wrapped[grid]``."""
        return WrappedKernel(self.kernel[grid], self.operand_output_aliases)

    def launch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``wrapped(*args, **kwargs)``."""
        import torch

        result = self.kernel(*args, **kwargs)
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        results = list(result) if isinstance(result, (list, tuple)) else [result]
        for operand, output in self.operand_output_aliases.items():
            if operand >= len(tensors) or output >= len(results) or results[output] is not tensors[operand]:
                raise ConfigurationError(
                    f"operand_output_aliases says that result {output} of {self.kernel!r} is argument "
                    f"{operand}, which the kernel does not write and return",
                    cure="let the kernel write into the argument and return it, or drop the entry",
                )
        return result


def wrap_nki(
    kernel: Any, grid: Any = None, operand_output_aliases: dict[int, int] | None = None
) -> WrappedKernel:
    """A kernel (or a plain kernel function) as something that a model calls with keywords."""
    if isinstance(kernel, WrappedKernel):
        return kernel if grid is None else kernel[grid]
    if not callable(kernel):
        raise ConfigurationError(f"wrap_nki wraps kernels, not {type(kernel).__name__}")
    ours = kernel if isinstance(kernel, (Kernel, ClassicKernel)) else Kernel(kernel)
    return WrappedKernel(ours if grid is None else ours[grid], operand_output_aliases)
