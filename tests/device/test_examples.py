"""Every example as a user runs it, on neuron and on the CPU: equal losses, and what else it claims to show.

The scripts run in this process, one after the other, with one host thread: their results must not depend on
which thread adds first.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
# Steps for the test, and the relative tolerance of the losses. bfloat16 keeps 8 bits: autocast on the CPU and
# on neuron cast different sets of operators.
CASES = {
    "plain_loop": (6, 1e-4),
    "hugging_face_trainer": (6, 1e-4),
    "accelerate_loop": (5, 1e-4),
    "generation": (6, 1e-4),
    "image_model": (8, 1e-4),
    "diffusion": (6, 1e-4),
    "autocast_bf16": (6, 2e-3),
    "activation_checkpointing": (4, 1e-4),
    "lora": (5, 1e-4),
    "checkpoint_and_resume": (4, 1e-4),
    "data_loading": (5, 1e-4),
    "train_qwen3": (4, 1e-4),
    "nki_kernel": (4, 1e-4),
}
NEEDS = {
    "hugging_face_trainer": ("transformers", "accelerate"),
    "accelerate_loop": ("transformers", "accelerate"),
    "generation": ("transformers",),
    "lora": ("transformers", "peft"),
    "train_qwen3": ("transformers",),
    "checkpoint_and_resume": ("safetensors",),
}
# Run by make demo, and by a test of --from-cuda.
OTHERS = {"corpus", "cuda_gpt", "demo", "unmodified_cuda_script"}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run_example(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Runs an example by name and device; returns its JSON line."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def run(name: str, device: str) -> dict[str, Any]:
        for package in NEEDS.get(name, ()):
            pytest.importorskip(package)
        with contextlib.suppress(ImportError):
            # It remembers the device of the first Accelerator of a process.
            from accelerate.state import AcceleratorState, PartialState

            AcceleratorState._reset_state(reset_partial_state=True)
            PartialState._reset_state()
        monkeypatch.setattr(sys, "argv", [name, "--device", device, "--steps", str(CASES[name][0])])
        capfd.readouterr()
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return json.loads(capfd.readouterr().out.splitlines()[-1])

    return run


def check_generation(neuron: dict[str, Any], cpu: dict[str, Any]) -> None:
    assert neuron["tokens"] == cpu["tokens"]
    assert neuron["same_without_cache"]


def check_image_model(neuron: dict[str, Any], cpu: dict[str, Any]) -> None:
    # 128 images; one near the border of two classes may fall either way.
    assert abs(neuron["accuracy"] - cpu["accuracy"]) <= 1 / 128


def check_diffusion(neuron: dict[str, Any], cpu: dict[str, Any]) -> None:
    assert neuron["sample_std"] == pytest.approx(cpu["sample_std"], rel=1e-3)


def check_autocast_bf16(neuron: dict[str, Any], cpu: dict[str, Any]) -> None:
    assert "torch.bfloat16" in neuron["computed_in"]
    assert neuron["weights_in"] == ["torch.float32"]


def check_activation_checkpointing(neuron: dict[str, Any], cpu: dict[str, Any]) -> None:
    assert neuron["losses"] == pytest.approx(neuron["losses_without"], rel=1e-5)
    assert 0 < neuron["peak_bytes"] < 0.6 * neuron["peak_bytes_without"]


def check_lora(neuron: dict[str, Any], cpu: dict[str, Any]) -> None:
    assert neuron["learning_share"] < 0.1
    assert neuron["evaluation"] == pytest.approx(cpu["evaluation"], rel=1e-4)
    assert neuron["evaluation"]["reloaded"] == pytest.approx(neuron["evaluation"]["adapted"], rel=1e-5)
    assert neuron["evaluation"]["merged"] == pytest.approx(neuron["evaluation"]["adapted"], rel=1e-4)


def check_checkpoint_and_resume(neuron: dict[str, Any], cpu: dict[str, Any]) -> None:
    after = neuron["losses"][len(neuron["losses"]) // 2 :]
    assert set(neuron["resumed"]) == {"torch.save", "safetensors", "dcp"}
    for name, losses in neuron["resumed"].items():
        assert losses == after, name


def check_data_loading(neuron: dict[str, Any], cpu: dict[str, Any]) -> None:
    assert neuron["pinned_batches"] == len(neuron["losses"])


def check_train_qwen3(neuron: dict[str, Any], cpu: dict[str, Any]) -> None:
    assert neuron["initial_weights"] == cpu["initial_weights"]


@pytest.mark.parametrize("name", CASES)
def test_neuron_gives_the_losses_of_the_cpu(name: str, run_example: Any) -> None:
    cpu, neuron = run_example(name, "cpu"), run_example(name, "neuron")
    assert cpu["device"] == "cpu"
    assert neuron["device"].startswith("neuron")
    assert neuron["losses"] == pytest.approx(cpu["losses"], rel=CASES[name][1])
    assert neuron["losses"][-1] < neuron["losses"][0]
    further = globals().get(f"check_{name}")
    if further is not None:
        further(neuron, cpu)


def test_every_example_is_run_by_a_test() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} <= set(CASES) | OTHERS


def test_demo_ends_with_equal_losses_and_the_memory_timeline(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    command = [sys.executable, str(EXAMPLES / "demo.py"), "--steps", "3", "--out", str(tmp_path / "out")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step time" in done.stderr  # the report of opentrn run
    assert "Same initial weights: True" in done.stdout
    assert "(the same; tolerance" in done.stdout
    assert "activation" in done.stdout and "virtual time" in done.stdout
    assert (tmp_path / "out" / "report.html").is_file()
