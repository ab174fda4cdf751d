"""Simulated times of eager operators: what the extension asks when it meets a program signature for the
first time.

The core's library is imported at the first miss, not with torch. A program that cannot be built or timed
leaves its operator modelled; each is counted here with its reason, and reports list them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from opentrn.device import _C

Operands = Sequence[tuple[str, str]]
OperatorTime = Callable[..., "float | None"]

_FIRST_LINE = 200  # characters of a reason that are kept


@dataclass(frozen=True)
class Failure:
    """Signatures of one operator whose program failed, with the first line of the reason."""

    operator: str
    reason: str
    count: int


_failures: Counter[tuple[str, str]] = Counter()
_lock = threading.Lock()


def install(machine: Any) -> None:
    """Times operators of an attached machine by programs, where its chip is one of NeuronCores."""
    with _lock:
        _failures.clear()
    _C.set_program_provider(_provider(machine) if machine.chip.kind == "neuroncore" else None)


def _provider(machine: Any) -> Callable[[str, str, Sequence[int], Operands, Operands], float | None]:
    chip, cores = machine.chip.name, machine.cores_per_logical

    def provide(
        operator: str, operator_class: str, dims: Sequence[int], inputs: Operands, outputs: Operands
    ) -> float | None:
        try:
            from opentrn.core.library.operators import operator_time

            return operator_time(operator, operator_class, dims, inputs, outputs, chip, cores)
        except Exception as error:  # any: the operator has run, only its time is in question
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[
                :_FIRST_LINE
            ]
            with _lock:
                _failures[operator, reason] += 1
            return None

    return provide


def failures() -> list[Failure]:
    """Programs that failed since the machine was attached, most frequent first."""
    with _lock:
        return [Failure(*key, count) for key, count in _failures.most_common()]


def report_lines() -> list[str]:
    """For reports: one line for each kind of failure; none where every program was built."""
    return [
        f"no program for {f.operator} ({f.count} signature(s), modelled instead): {f.reason}"
        for f in failures()
    ]
