"""The one place where the front end meets the virtual core.

`opentrn.core` builds, executes and times; a test may put another engine with the same functions here
(the NumPy oracle of the property tests does).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from opentrn.errors import UnsupportedError
from opentrn.nki.dtypes import host_type
from opentrn.nki.enums import nc_version

if TYPE_CHECKING:
    from opentrn.nki.tensor import NkiTensor
    from opentrn.nki.tracing import Tracer

_engine: Any = None
_GENERATION = {
    "trn1": nc_version.gen2,
    "trn1n": nc_version.gen2,
    "inf2": nc_version.gen2,
    "gen2": nc_version.gen2,
    "trn2": nc_version.gen3,
    "trn2n": nc_version.gen3,
    "gen3": nc_version.gen3,
    "trn3": nc_version.gen4,
    "gen4": nc_version.gen4,
}


def use(engine: Any) -> Any:
    """Replace the engine (something with Builder, execute, execute_ranks, time); returns the old one."""
    global _engine
    old, _engine = _engine, engine
    return old


def current() -> Any:
    global _engine
    if _engine is None:
        import opentrn.core

        _engine = opentrn.core
    return _engine


def builder(chip: str, cores: int, name: str) -> Any:
    return current().Builder(chip=chip, cores=cores, name=name)


def generation(chip: str) -> nc_version:
    """The NeuronCore generation of a chip. Raises UnsupportedError for chips without NeuronCores."""
    try:
        return _GENERATION[chip]
    except KeyError:
        raise UnsupportedError(f"{chip!r} has no NeuronCore", cure="trn1, trn2, trn3 or inf2") from None


_PEEK = "opentrn peek "


def peek(tracer: Tracer, tensor: NkiTensor) -> np.ndarray:
    """Run what is traced so far and read one view. Raises UnsupportedError inside a loop of the device."""
    if tracer.loops:
        raise UnsupportedError(
            f"the values of {tensor.name!r} inside a device loop exist only when the kernel runs",
            where=tracer.where,
            cure="print them with nl.device_print",
        )
    if not tracer.values_known:
        raise UnsupportedError(
            f"the values of {tensor.name!r} do not exist: the kernel's arguments have shapes only",
            where=tracer.where,
            cure="look into kernels outside of dry runs and graph captures",
        )
    tracer.peeks += 1
    mark = f"{_PEEK}{tracer.peeks}"
    tracer.emit("device_print", prefix=mark, src=tracer.read(tensor))
    seen: dict[str, np.ndarray] = {}
    inputs = {name: _plain(array) for name, (_, array) in tracer.inputs.items()}
    current().execute(
        tracer.builder.snapshot(capacity=False),
        inputs,
        check=False,
        on_print=lambda prefix, array: seen.update({prefix: np.array(array)}),
    )
    return seen[mark].reshape(-1).view(host_type(tensor.dtype)).reshape(tensor.shape)


def _printed(receiver: Any) -> Any:
    """The receiver of `device_print`, without the marks of `peek`."""

    def deliver(prefix: str, array: np.ndarray) -> None:
        if not prefix.startswith(_PEEK):
            (receiver or print)(prefix, array)

    return deliver


def execute(
    program: Any, arrays: dict[str, np.ndarray], check: bool = True, **options: Any
) -> dict[str, np.ndarray]:
    """Run a program. check=False: new tensors read as NaN (4 for integers) instead of raising."""
    words = {name: _plain(array) for name, array in arrays.items()}
    options["on_print"] = _printed(options.get("on_print"))
    return current().execute(program, words, check=check, **options)


def execute_ranks(
    programs: Sequence[Any], arrays: Sequence[dict[str, np.ndarray]], check: bool = True, **options: Any
) -> list[dict[str, np.ndarray]]:
    """As `execute`, for one program per rank."""
    words = [{name: _plain(array) for name, array in given.items()} for given in arrays]
    options["on_print"] = _printed(options.get("on_print"))
    return current().execute_ranks(programs, words, check=check, **options)


def _plain(array: np.ndarray) -> np.ndarray:
    """Packed types as their words; at least one dimension; C order."""
    if array.dtype.names:
        array = array.view(array.dtype[0])
    return np.ascontiguousarray(array if array.ndim else array.reshape(1))
