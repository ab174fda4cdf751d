"""Kinds of programs on the device: checkpointing, evaluation, generation, several devices, no model."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from opentrn.explorer.summary import summarize
from opentrn.trace.session import Session, SessionOptions
from opentrn.trace.source import DeviceSource

WIDTH, LENGTH = 32, 24


def block():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


class Model(nn.Module):
    def __init__(self, recompute=False):
        super().__init__()
        self.recompute = recompute
        self.embed, self.head = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, 20)
        self.layers = nn.ModuleList(block() for _ in range(3))

    def forward(self, index):
        x = self.embed(index)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
            x = x.relu()
        return self.head(x)


def watch(program, **options):
    session = Session(DeviceSource(), SessionOptions("test", **options))
    session.start()
    try:
        program()
    finally:
        record = session.stop("completed")
    return record


def train(model, device="neuron", steps=3):
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        model(torch.ones(2, LENGTH, dtype=torch.long, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_recomputation_counts_for_hfu_alone():
    plain, again = (watch(lambda r=r: train(Model(recompute=r))) for r in (False, True))
    assert all(step.recompute_flops == 0 for step in plain.steps)
    # PyTorch stops recomputing before the last product of a block: nothing needs its result.
    first_products = 3 * 2 * (2 * LENGTH) * WIDTH * WIDTH
    step = again.steps[1]
    assert first_products <= step.recompute_flops < 2 * first_products and step.recompute_ns > 0
    assert step.flops - step.recompute_flops == plain.steps[1].flops
    row = summarize(again).headline
    assert row.hfu > row.mfu_counted
    assert row.tokens == 2 * LENGTH


def test_evaluation_is_not_training_time():
    def program():
        model = Model()
        for _ in range(3):
            train(model, steps=1)
            model.eval()
            with torch.no_grad():
                for _ in range(4):
                    model(torch.ones(8, LENGTH, dtype=torch.long, device="neuron"))
            model.train()

    record = watch(program)
    assert [step.tokens for step in record.steps] == [2 * LENGTH] * 3
    assert record.span.operators > sum(step.operators for step in record.steps)


def test_generation_is_one_span():
    def program():
        model = Model().to("neuron").eval()
        with torch.no_grad():
            tokens = torch.ones(2, 5, dtype=torch.long, device="neuron")
            for _ in range(4):
                tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)

    record = watch(program)
    assert record.steps == []
    assert record.span.tokens == 2 * (5 + 6 + 7 + 8)
    summary = summarize(record)
    assert summary.headline.kind == "span" and summary.headline.tokens_per_s > 0


def test_a_second_device():
    if torch.neuron.device_count() < 2:
        pytest.skip("one device is attached")
    before = torch.neuron.max_memory_allocated(1)
    record = watch(lambda: train(Model(), "neuron:1"))
    assert record.steps[0].tokens == 2 * LENGTH
    assert record.peak.allocated >= 4 * (20 * WIDTH * 2) or before
    assert record.span.device_busy_ns > 0


def test_no_model_at_all():
    record = watch(lambda: torch.ones(64, 64, device="neuron") @ torch.ones(64, 64, device="neuron"))
    assert record.facts is None and record.steps == []
    assert record.span.flops >= 2 * 64**3
    assert any("--tokens-per-step" in note for note in summarize(record).notes)


def test_gradients_and_states_are_labelled():
    def program():
        model = Model().to("neuron")
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            model(torch.ones(2, LENGTH, dtype=torch.long, device="neuron")).sum().backward()
            optimizer.step()

    held = watch(program).peak.categories
    assert {"parameter", "gradient", "optimizer state", "activation"} <= set(held)
    assert held["gradient"] == held["parameter"]
    assert held["optimizer state"] >= 2 * held["parameter"]


def test_two_sessions_do_not_mix(tmp_path):
    first = watch(lambda: train(Model(), steps=2), trace=tmp_path / "a")
    second = watch(lambda: train(Model(), steps=3), trace=tmp_path / "b")
    assert (len(first.steps), len(second.steps)) == (2, 3)
    assert sum(total.count for total in second.totals) > sum(total.count for total in first.totals)
    from opentrn.trace.reader import Trace

    for name, record in (("a", first), ("b", second)):
        assert Trace(tmp_path / name).rows("operators") == sum(total.count for total in record.totals)
