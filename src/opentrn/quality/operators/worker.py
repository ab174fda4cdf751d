"""A process that checks one operator after another.

It reads one JSON task a line from standard input and answers with JSON lines. Its arguments are the
descriptor to answer on, a small file kept mapped in memory, in which it notes what it is about to run
(after a crash the parent reads the culprit there), and the device, which it refuses before it loads anything.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

CRUMB_BYTES = 512


class Crumb:
    """The note of what runs now. A write costs about a microsecond, so it is made for every sample."""

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR)
        self._memory = mmap.mmap(descriptor, CRUMB_BYTES)
        os.close(descriptor)

    def __call__(self, position: Any) -> None:
        text = f"{position.dtype}|{position.check}|{position.form}|{position.sample}\n".encode()
        self._memory[: len(text)] = text


def read_crumb(path: Path) -> tuple[str, str, str, int] | None:
    """(dtype, check, form, sample) that a worker last announced; None if it had not begun."""
    line = path.read_bytes().split(b"\n")[0].strip(b"\0").decode()
    if not line:
        return None
    dtype, check, form, sample = line.split("|")
    return dtype, check, form, int(sample)


def main(arguments: list[str]) -> None:
    answers = os.fdopen(int(arguments[0]), "w", buffering=1)
    crumb = Crumb(arguments[1])
    faulthandler.enable()
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    from opentrn.errors import ConfigurationError
    from opentrn.quality.operators import catalogue
    from opentrn.quality.operators.placement import parse_side

    try:
        parse_side(arguments[2])
    except ConfigurationError as error:
        _answer(answers, {"refused": error.cause, "cure": error.cure})
        return
    operators = catalogue.load()
    _answer(answers, {"hello": list(operators), "torch": torch.__version__})
    for line in sys.stdin:
        _run_task(json.loads(line), operators, crumb, answers)


def _answer(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")


def _run_task(task: dict[str, Any], operators: dict[str, Any], crumb: Crumb, answers: TextIO) -> None:
    """Checks one operator, one message for each dtype and a last one that ends it."""
    from opentrn.quality.operators import catalogue, exceptions
    from opentrn.quality.operators.checks import OperatorCheck
    from opentrn.quality.operators.placement import Side, parse_side

    name, dry = task["operator"], task["dry"]
    target = parse_side(task["device"], dry=dry)
    # A dry run must look like the real run of the same device, not like CPU's.
    reference = Side(task["device"]) if dry else Side("cpu")
    wanted = None if task["dtypes"] is None else frozenset(task["dtypes"])
    for dtype in catalogue.dtypes(operators[name], wanted):
        crumb(_Beginning(catalogue.dtype_name(dtype)))
        check = OperatorCheck(
            name, operators[name], dtype, reference, target, exceptions.load(dry=dry), crumb
        )
        try:
            tallies = check.run(tuple(task["checks"]))
        except Exception as error:
            # Not a verdict on the device: the samples of this dtype could not be made.
            message = f"{type(error).__name__}: {error}"
            _answer(answers, {"operator": name, "dtype": catalogue.dtype_name(dtype), "broken": message})
            continue
        _answer(
            answers,
            {
                "operator": name,
                "tallies": [asdict(tally) for tally in tallies],
                "failures": [asdict(failure) for failure in check.failures],
            },
        )
    _answer(answers, {"operator": name, "done": True})


class _Beginning:
    """The position before the first sample of a dtype: its samples are being made."""

    check, form, sample = "samples", "", 0

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype


if __name__ == "__main__":
    main(sys.argv[1:])
