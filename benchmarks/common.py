"""What every benchmark needs: processes of their own, in turns, and results printed the same way.

The sides of a comparison run alternately in fresh processes, so that neither warms the other's caches or heap
and both see the same load. The figure is made from the best sample of each: whatever else runs on the machine
only adds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]


def parser(description: str, rounds: int) -> argparse.ArgumentParser:
    """The options that all benchmarks share."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--json", action="store_true", help="raw samples, then one JSON object last")
    result.add_argument("--rounds", type=int, default=rounds, help="fresh processes per side, in turns")
    result.add_argument("--threads", type=int, default=1, help="host threads of PyTorch, on every side")
    result.add_argument("--worker", help=argparse.SUPPRESS)
    result.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    return result


def in_turns(
    sides: Mapping[str, Callable[[Path], Sequence[str]]],
    rounds: int,
    threads: int,
    environment: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, list[Any]]:
    """Runs each side's command `rounds` times, alternately; what each wrote to its result file, by side.

    sides: from the path of the result file to a command. environment: variables by side. SystemExit with what
    a command printed if it fails.
    """
    samples: dict[str, list[Any]] = {side: [] for side in sides}
    count = str(threads)
    shared = {**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for side, command in sides.items():
                result = Path(folder) / f"{side}-{number}.json"
                variables = {**shared, **(environment or {}).get(side, {})}
                done = subprocess.run(
                    command(result), cwd=REPOSITORY, env=variables, capture_output=True, text=True
                )
                if done.returncode or not result.is_file():
                    sys.exit(f"{side} failed (exit code {done.returncode}):\n{done.stdout}{done.stderr}")
                samples[side].append(json.loads(result.read_text(encoding="utf-8")))
    return samples


def module_command(module: str, side: str, result: Path, threads: int) -> list[str]:
    """A benchmark's own module as the worker of one side."""
    return ["-m", module, "--worker", side, "--result", str(result), "--threads", str(threads)]


def machine() -> dict[str, Any]:
    """The host of the figures, and how busy it was: they mean little on a loaded one."""
    return {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "platform": platform.platform()}


def publish(
    name: str, as_json: bool, samples: Mapping[str, Any], figures: Mapping[str, Any], lines: Sequence[str]
) -> None:
    """Prints raw samples and figures; `lines` say the same for a person.

    A missed target is said, and the exit code stays 0: a loaded machine is no error.
    """
    if not as_json:
        print("\n".join(lines))
        return
    for side, values in samples.items():
        print(json.dumps({"benchmark": name, "side": side, "samples": values}))
    print(json.dumps({"benchmark": name, **figures, "machine": machine()}))


def verdict(met: bool) -> str:
    return "met" if met else "NOT met"
