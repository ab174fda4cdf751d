"""A dry run's memory, operators and shapes are the real run's."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from dry_models import CAUSAL, MASKED, MIXTURES, OTHER, make

import opentrn
from opentrn.device import _C


@dataclass
class Seen:
    peak: int
    allocated: int
    operators: list[tuple[str, Any]]
    unbacked: int


def watch(work: Callable[[], Any], dry: bool) -> Seen:
    """Runs `work` with the trace on; the result it returns stays alive until the memory has been read."""
    gc.collect()
    torch.neuron.empty_cache()
    torch.neuron.reset_peak_memory_stats()
    before = torch.neuron.memory_allocated()
    inferred = _C.dry_counters()["inferred"]
    with opentrn.dry_run() if dry else contextlib.nullcontext():
        _C.trace_start({"shapes": True, "frames": False})
        try:
            kept = work()
        finally:
            rows = _C.trace_drain()
            _C.trace_stop()
    names = _C.trace_names()
    peak, allocated = torch.neuron.max_memory_allocated() - before, torch.neuron.memory_allocated() - before
    del kept
    operators = [
        (names["operators"][operator], tuple(names["signatures"][signature]))
        for operator, signature in zip(rows["operator"], rows["signature"], strict=True)
    ]
    return Seen(peak, allocated, operators, _C.dry_counters()["inferred"] - inferred)


def train(
    kind: str,
    optimizer: str = "foreach",
    experts: str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Any:
    """Two training steps."""
    model, inputs = make(kind, experts, dtype)
    chosen = torch.optim.AdamW(model.parameters(), foreach=optimizer == "foreach", fused=optimizer == "fused")
    for _ in range(2):
        model(**inputs).loss.backward()
        chosen.step()
        chosen.zero_grad()
    return model, chosen


def assert_equal(real: Seen, dry: Seen) -> None:
    assert dry.unbacked > 0, "nothing was inferred: the test is too small"
    for index, (a, b) in enumerate(zip(real.operators, dry.operators, strict=False)):
        assert a == b, f"operator {index} differs"
    assert len(real.operators) == len(dry.operators)
    assert (dry.peak, dry.allocated) == (real.peak, real.allocated)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [*CAUSAL, *MASKED, *OTHER])
def test_training_step_of_an_architecture(kind, dtype):
    def work() -> Any:
        return train(kind, dtype=dtype)

    assert_equal(watch(work, dry=False), watch(work, dry=True))


@pytest.mark.parametrize("kind", list(MIXTURES))
def test_mixture_with_grouped_products(kind):
    real = watch(lambda: train(kind, experts="grouped_mm"), dry=False)
    assert_equal(real, watch(lambda: train(kind, experts="grouped_mm"), dry=True))


def test_fused_optimizer():
    assert_equal(
        watch(lambda: train("qwen3", "fused"), dry=False), watch(lambda: train("qwen3", "fused"), dry=True)
    )


def test_checkpointing_and_autocast():
    def work() -> Any:
        model, inputs = make("qwen3")
        model.gradient_checkpointing_enable({"use_reentrant": False})
        with torch.autocast("neuron", dtype=torch.bfloat16):
            loss = model(**inputs).loss
        loss.backward()
        return model

    assert_equal(watch(work, dry=False), watch(work, dry=True))


class Images(torch.nn.Module):
    """Convolutions up and down, with the three normalisations of images."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(
            torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.GroupNorm(8, 32), torch.nn.SiLU()
        )
        self.down = torch.nn.Sequential(
            torch.nn.Conv2d(32, 64, 3, 2, 1), torch.nn.BatchNorm2d(64), torch.nn.ReLU()
        )
        self.up = torch.nn.ConvTranspose2d(64, 32, 2, 2)
        self.last = torch.nn.Sequential(
            torch.nn.InstanceNorm2d(32, affine=True),
            torch.nn.GELU(),
            torch.nn.AvgPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(8192, 8),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        return self.last(self.up(self.down(h)) + h)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_images_in_either_layout(layout, dtype):
    def work() -> Any:
        torch.manual_seed(0)
        model = Images().to("neuron", dtype, memory_format=layout)
        images = torch.ones(4, 3, 32, 32, dtype=dtype).to("neuron", memory_format=layout)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(images).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, optimizer

    assert_equal(watch(work, dry=False), watch(work, dry=True))
