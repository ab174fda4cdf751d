"""Step boundaries and tokens, on CPU models with the fake device's clock."""

import pytest
import torch
from fake_device import FakeDevice
from torch import nn
from torch.utils.checkpoint import checkpoint

from opentrn.trace import steps as step_marks
from opentrn.trace.counters import read_counters
from opentrn.trace.modules import ModuleObserver
from opentrn.trace.steps import StepRecorder

VOCABULARY, WIDTH = 11, 4


class Model(nn.Module):
    """Token and position embeddings, one layer; each call runs one 100 ns operator on the fake device."""

    def __init__(self, fake, recompute=False):
        super().__init__()
        self.fake, self.recompute = fake, recompute
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(64, WIDTH)
        self.layer = nn.Linear(WIDTH, VOCABULARY)

    def body(self, index):
        self.fake.run(ns=100)
        return self.layer(self.tokens(index) + self.positions(torch.arange(index.shape[-1])))

    def forward(self, index):
        return checkpoint(self.body, index, use_reentrant=False) if self.recompute else self.body(index)


class Watch:
    """Installs the observers, as a session does."""

    def __init__(self, fake, **options):
        self.fake = fake
        self.recorder = StepRecorder(lambda: read_counters(fake), lambda: 7, **options)
        self.observer = ModuleObserver(
            fake.enter_module,
            fake.exit_module,
            self.recorder.module_called,
            self.recorder.embedding_called,
            lambda model: None,
        )

    def __enter__(self):
        self.recorder.install()
        self.observer.install()
        step_marks.activate(self.recorder)
        return self

    def __exit__(self, *error):
        step_marks.activate(None)
        self.observer.remove()
        self.recorder.remove()
        self.span = self.recorder.finish()
        self.steps = self.recorder.steps


@pytest.fixture
def fake():
    return FakeDevice()


def batch(rows=2, length=5):
    return torch.randint(VOCABULARY, (rows, length))


def train(model, optimizer, micro_batches=1, rows=2):
    optimizer.zero_grad()
    for _ in range(micro_batches):
        model(batch(rows)).sum().backward()
        model.fake.run("aten::mm_backward", ns=200, phase=2)
    model.fake.run("aten::add_", ns=50, phase=3)
    optimizer.step()


def test_one_optimizer(fake):
    model = Model(fake)
    fake.run("setup", ns=10_000)
    with Watch(fake) as watch:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            train(model, optimizer)
    assert [step.tokens for step in watch.steps] == [10] * 4
    assert [step.operators for step in watch.steps] == [3] * 4
    assert [step.device_busy_ns for step in watch.steps] == [350] * 4
    assert [step.backward_ns for step in watch.steps] == [200] * 4
    # In the steady state the device is the bottleneck, so a step takes its device time.
    assert watch.steps[2].duration_ns == 350
    assert watch.steps[0].completion_start >= 10_000, "setup is not part of the first step"
    assert {step.kind for step in watch.steps} == {"optimizer"}
    assert watch.steps[0].sequence_length == 5
    assert watch.steps[0].peak_allocated == 7
    assert watch.span.tokens == 40
    assert watch.span.device_busy_ns == 4 * 350


def test_gradient_accumulation(fake):
    model = Model(fake)
    with Watch(fake) as watch:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            train(model, optimizer, micro_batches=4)
    assert [step.tokens for step in watch.steps] == [40] * 3
    assert [step.operators for step in watch.steps] == [9] * 3


def test_two_optimizers_make_one_step(fake):
    model = Model(fake)
    with Watch(fake) as watch:
        first = torch.optim.SGD(model.layer.parameters(), 0.1)
        second = torch.optim.AdamW(model.tokens.parameters(), 0.1)
        for _ in range(3):
            model(batch()).sum().backward()
            first.step()
            fake.run(ns=30)
            second.step()
    assert [step.tokens for step in watch.steps] == [10] * 3
    assert [step.device_busy_ns for step in watch.steps] == [130] * 3


def test_a_new_optimizer_over_the_same_parameters_starts_a_new_step(fake):
    model = Model(fake)
    with Watch(fake) as watch:
        for _ in range(3):
            train(model, torch.optim.SGD(model.parameters(), 0.1))
    assert [step.tokens for step in watch.steps] == [10] * 3


def test_adversarial_pair_makes_one_step(fake):
    """Discriminator, then generator, each with its forward, the first behind a generator without gradient."""
    generator, critic = Model(fake), Model(fake)
    with Watch(fake) as watch:
        first = torch.optim.SGD(critic.parameters(), 0.1)
        second = torch.optim.SGD(generator.parameters(), 0.1)
        for _ in range(3):
            with torch.no_grad():
                generator(batch())
            critic(batch()).sum().backward()
            first.step()
            generator(batch()).sum().backward()
            second.step()
    assert len(watch.steps) == 3
    assert [step.operators for step in watch.steps[1:]] == [3, 3], "generation belongs to the step"


def test_evaluation_between_steps_belongs_to_none(fake):
    model = Model(fake)
    with Watch(fake) as watch:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            train(model, optimizer)
            model.eval()
            with torch.no_grad():
                for _ in range(5):
                    model(batch(rows=8))
            model.train()
    assert [step.tokens for step in watch.steps] == [10] * 3
    assert [step.operators for step in watch.steps] == [3] * 3
    assert watch.span.operators == 3 * (3 + 5)


def test_frozen_teacher_is_part_of_the_step(fake):
    model, teacher = Model(fake), Model(fake).eval()
    with Watch(fake) as watch:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            with torch.no_grad():
                teacher(batch())
            train(model, optimizer)
    assert [step.operators for step in watch.steps[1:]] == [4, 4]
    assert [step.tokens for step in watch.steps] == [10] * 3


def test_recomputation_does_not_count_tokens_twice(fake):
    model = Model(fake, recompute=True)
    with Watch(fake) as watch:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        train(model, optimizer)
    assert watch.steps[0].operators == 4, "the forward ran twice"
    assert watch.steps[0].tokens == 10


def test_skipped_by_the_gradient_scaler(fake):
    model = Model(fake)
    with Watch(fake) as watch:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for i in range(4):
            optimizer.zero_grad()
            loss = model(batch()).sum() * (float("inf") if i == 1 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert [step.kind for step in watch.steps] == ["optimizer", "skipped", "optimizer", "optimizer"]
    assert [step.tokens for step in watch.steps] == [10] * 4


def test_gradient_scaler_is_given_back():
    original = torch.amp.GradScaler.step
    with Watch(FakeDevice()):
        assert torch.amp.GradScaler.step is not original
    assert torch.amp.GradScaler.step is original


class Doubled(torch.optim.SGD):
    """Calls its base's hooked step: hooks run for both."""

    def step(self, closure=None):
        super().step(closure)
        return super().step(closure)


class Wrapping(torch.optim.Optimizer):
    """An optimizer around another one."""

    def __init__(self, inner):
        super().__init__([nn.Parameter(torch.zeros(1))], {})
        self.inner = inner

    def step(self, closure=None):
        self.inner.step()


@pytest.mark.parametrize("kind", ["subclass", "wrapper"])
def test_nested_optimizers_count_once(fake, kind):
    model = Model(fake)
    with Watch(fake) as watch:
        plain = torch.optim.SGD(model.parameters(), 0.1)
        optimizer = Doubled(model.parameters(), 0.1) if kind == "subclass" else Wrapping(plain)
        for _ in range(3):
            model(batch()).sum().backward()
            optimizer.step()
    assert [step.tokens for step in watch.steps] == [10] * 3


def test_an_optimizer_that_raises_leaves_nothing_behind(fake):
    model = Model(fake)
    with Watch(fake) as watch:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def fail():
            raise torch.OutOfMemoryError("full")

        with pytest.raises(torch.OutOfMemoryError):
            optimizer.step(fail)
        for _ in range(2):
            train(model, optimizer)
    assert len(watch.steps) == 2


def test_no_optimizer_is_one_span(fake):
    model = Model(fake).eval()
    fake.run("load", ns=5000)
    with Watch(fake) as watch, torch.no_grad():
        for length in (6, 1, 1, 1):
            model(batch(rows=2, length=length))
    assert watch.steps == []
    assert watch.span.kind == "span"
    assert watch.span.tokens == 18
    assert watch.span.device_busy_ns == 400
    assert watch.span.completion_start >= 5000


def test_steps_by_hand(fake):
    model = Model(fake)
    with Watch(fake) as watch:
        for _ in range(3):
            model(batch())
            step_marks.step()
    assert [(step.kind, step.tokens) for step in watch.steps] == [("manual", 10)] * 3


def test_steps_by_hand_take_over_from_optimizers(fake):
    """Two optimizer steps per iteration that the user wants counted as one."""
    model = Model(fake)
    with Watch(fake) as watch:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            train(model, optimizer)
            train(model, optimizer)
            step_marks.step(tokens=99)
    assert [(step.kind, step.tokens, step.operators) for step in watch.steps] == [("manual", 99, 6)] * 3
    assert watch.steps[0].completion_start < watch.steps[0].completion_end <= watch.steps[1].completion_start


def test_optimizer_mode_ignores_marks(fake):
    model = Model(fake)
    with Watch(fake, by="optimizer") as watch:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            train(model, optimizer)
            step_marks.step()
    assert [step.kind for step in watch.steps] == ["optimizer"] * 2


def test_tokens_per_step_overrides(fake):
    model = Model(fake)
    with Watch(fake, tokens_per_step=1234) as watch:
        train(model, torch.optim.SGD(model.parameters(), 0.1))
    assert (watch.steps[0].tokens, watch.steps[0].tokens_from) == (1234, "given")


def test_no_embedding_leaves_tokens_unknown(fake):
    model = nn.Linear(2, 2)
    with Watch(fake) as watch:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert (watch.steps[0].tokens, watch.steps[0].tokens_from) == (-1, "unknown")


def test_step_outside_a_run_does_nothing():
    assert step_marks.step() is None
