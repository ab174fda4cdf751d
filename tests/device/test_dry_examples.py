"""Every example runs dry as it runs really: the same operators and shapes, the same peak to the byte."""

from __future__ import annotations

import contextlib
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_dry_equality import watch

EXAMPLES = Path(__file__).parents[2] / "examples"
# Example → steps. generation, diffusion and image_model follow values (sampled tokens, accuracy): they run to
# their end.
EXACT = {
    "plain_loop": 2,
    "train_qwen3": 2,
    "activation_checkpointing": 2,
    "autocast_bf16": 2,
    "data_loading": 2,
    "accelerate_loop": 2,
    "hugging_face_trainer": 2,
}
TO_THE_END = {"generation": 2, "diffusion": 2, "image_model": 2}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)

    def run(name: str, steps: int) -> Any:
        with contextlib.suppress(ImportError):
            # accelerate remembers the device of the first Accelerator of a process.
            from accelerate.state import AcceleratorState, PartialState

            AcceleratorState._reset_state(reset_partial_state=True)
            PartialState._reset_state()
        torch.manual_seed(0)
        monkeypatch.setattr(sys, "argv", [name, "--device", "neuron", "--steps", str(steps)])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")

    return run


@pytest.mark.parametrize("name", list(EXACT))
def test_example_is_the_same_dry(example, name):
    # Once before: what a library makes at first use is no part of the comparison.
    example(name, EXACT[name])
    real, dry = (watch(lambda: example(name, EXACT[name]), dry=on) for on in (False, True))
    for index, (a, b) in enumerate(zip(real.operators, dry.operators, strict=False)):
        assert a == b, f"operator {index} differs"
    assert len(dry.operators) == len(real.operators)
    assert dry.peak == real.peak


@pytest.mark.parametrize("name", list(TO_THE_END))
def test_example_runs_dry_to_its_end(example, name):
    assert watch(lambda: example(name, TO_THE_END[name]), dry=True).operators


@pytest.mark.parametrize("name", ["lora", "checkpoint_and_resume"])
def test_example_that_saves_is_refused_at_the_save(example, name):
    with pytest.raises(RuntimeError, match=r"no bytes|no values") as caught:
        watch(lambda: example(name, 2), dry=True)
    assert "what to do" in str(caught.value)
