"""Mixtures of experts and generation run dry to their end."""

from __future__ import annotations

import pytest
import torch
from dry_models import MIXTURES, make

import opentrn
from opentrn.device import dry


@pytest.mark.parametrize("experts", ["eager", "grouped_mm"])
@pytest.mark.parametrize("kind", list(MIXTURES))
def test_mixture_trains(kind, experts):
    with opentrn.dry_run():
        model, inputs = make(kind, experts)
        model(**inputs).loss.backward()
        trained = [name for name, p in model.named_parameters() if "experts" in name and p.grad is None]
        assert not trained, "balanced routing reaches every expert"
        assert any("balanced" in entry.rule for entry in dry.ledger())


@pytest.mark.parametrize("kind", ["qwen3", "gpt2", "mixtral"])
@pytest.mark.parametrize("sampling", [False, True])
def test_generation_ends(kind, sampling):
    with opentrn.dry_run():
        model, inputs = make(kind)
        output = model.eval().generate(
            inputs["input_ids"], max_new_tokens=8, do_sample=sampling, pad_token_id=0
        )
    assert output.shape[0] == inputs["input_ids"].shape[0]
    assert inputs["input_ids"].shape[1] < output.shape[1] <= inputs["input_ids"].shape[1] + 8
    assert torch.equal(output[:, : inputs["input_ids"].shape[1]].cpu(), inputs["input_ids"].cpu())
