"""The example CUDA script through `opentrn run --from-cuda`: the losses of the same script on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "unmodified_cuda_script.py"


def result(command: list[str], folder: Path) -> tuple[dict, subprocess.CompletedProcess[str]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{"))), done


@pytest.mark.parametrize(("precision", "tolerance"), [("none", 1e-5), ("bf16", 2e-3), ("fp16", 2e-3)])
def test_losses_equal_those_on_the_cpu(precision: str, tolerance: float, tmp_path: Path) -> None:
    arguments = [str(SCRIPT), "--steps", "4", "--amp", precision]
    on_cpu, _ = result(arguments, tmp_path)
    on_neuron, done = result(
        ["-m", "opentrn.cli.main", "run", "--from-cuda", "--no-trace", *arguments], tmp_path
    )
    assert (on_cpu["device"], on_neuron["device"]) == ("cpu", "cuda")
    assert on_neuron["losses"] == pytest.approx(on_cpu["losses"], rel=tolerance)
    assert len(on_neuron["milliseconds"]) == 4 and all(time > 0 for time in on_neuron["milliseconds"])
    assert "torch.cuda.Stream" in done.stderr and "unmodified_cuda_script.py" in done.stderr
