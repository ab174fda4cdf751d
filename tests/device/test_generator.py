"""Random numbers: the state is (seed, offset), and every way to set, get, fork or pass it is honoured."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from device_helpers import NEURON, same, succeeds
from torch.utils.checkpoint import checkpoint

DRAWS = {
    "rand": lambda g: torch.rand(9, device=NEURON, generator=g),
    "randn": lambda g: torch.randn(9, device=NEURON, generator=g),
    "randint": lambda g: torch.randint(0, 1000, (9,), device=NEURON, generator=g),
    "randperm": lambda g: torch.randperm(50, device=NEURON, generator=g),
    "normal_": lambda g: torch.empty(9, device=NEURON).normal_(generator=g),
    "uniform_": lambda g: torch.empty(9, device=NEURON).uniform_(generator=g),
    "exponential_": lambda g: torch.empty(9, device=NEURON).exponential_(generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.full((64,), 0.5, device=NEURON), generator=g),
    "bernoulli_": lambda g: torch.empty(64, device=NEURON).bernoulli_(0.5, generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(90, device=NEURON), 9, generator=g),
    "poisson": lambda g: torch.poisson(torch.full((9,), 40.0, device=NEURON), generator=g),
    "normal": lambda g: torch.normal(torch.zeros(9, device=NEURON), 1.0, generator=g),
    "random_": lambda g: torch.empty(9, device=NEURON).random_(generator=g),
    "init": lambda g: torch.nn.init.xavier_uniform_(torch.empty(3, 3, device=NEURON), generator=g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_generator_of_the_user_is_honoured(name: str) -> None:
    generator = torch.Generator(NEURON).manual_seed(5)
    default_before = torch.neuron.get_rng_state()
    first, second = DRAWS[name](generator), DRAWS[name](generator)
    assert not torch.equal(first, second)
    same(DRAWS[name](generator.manual_seed(5)), first)
    assert torch.equal(torch.neuron.get_rng_state(), default_before)


def test_state_is_seed_and_offset() -> None:
    torch.manual_seed(11)
    state = torch.neuron.get_rng_state()
    assert state.dtype == torch.uint8 and state.numel() == 16 and state.device.type == "cpu"
    assert state.view(torch.int64).tolist() == [11, 0]
    drawn = torch.rand(100, device=NEURON)
    assert torch.neuron.get_rng_state().view(torch.int64).tolist() == [11, 100]
    torch.neuron.set_rng_state(state)
    same(torch.rand(100, device=NEURON), drawn)


def test_manual_seed_covers_every_device_and_each_draws_its_own() -> None:
    torch.manual_seed(7)
    first = [torch.rand(4, device=f"neuron:{index}") for index in range(3)]
    torch.manual_seed(7)
    same([torch.rand(4, device=f"neuron:{index}") for index in range(3)], first)
    assert torch.neuron.initial_seed() == 7
    with torch.neuron.device(2):
        torch.neuron.manual_seed(9)
        assert torch.neuron.initial_seed() == 9
    assert torch.neuron.initial_seed() == 7


def test_generator_object() -> None:
    generator = torch.Generator("neuron:1").manual_seed(3)
    assert generator.device == torch.device("neuron:1") and generator.initial_seed() == 3
    torch.rand(6, device="neuron:1", generator=generator)
    assert generator.get_offset() == 8  # a multiple of four
    clone = generator.clone_state()
    for other in (clone, copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))):
        state = generator.get_state()
        same(
            torch.rand(3, device="neuron:1", generator=other),
            torch.rand(3, device="neuron:1", generator=generator),
        )
        generator.set_state(state)
    generator.set_offset(0)
    assert generator.get_offset() == 0
    with pytest.raises(RuntimeError, match="16 bytes"):
        generator.set_state(torch.zeros(8, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, device=NEURON, generator=torch.Generator())


def test_states_of_all_devices() -> None:
    states = torch.neuron.get_rng_state_all()
    assert len(states) == torch.neuron.device_count() == len(torch.neuron.default_generators)
    drawn = torch.rand(3, device="neuron:2")
    torch.neuron.set_rng_state_all(states)
    same(torch.rand(3, device="neuron:2"), drawn)
    torch.neuron.seed_all()
    assert (
        torch.neuron.default_generators[0].initial_seed()
        == torch.neuron.default_generators[-1].initial_seed()
    )
    with pytest.raises(IndexError):
        torch.neuron.default_generators[torch.neuron.device_count()]


def test_fork_rng() -> None:
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=[0], device_type=NEURON):
        inside = torch.rand(5, device=NEURON)
    same(torch.rand(5, device=NEURON), inside)


def test_distribution() -> None:
    drawn = torch.randn(100_000, device=NEURON)
    assert abs(drawn.mean().item()) < 0.02 and abs(drawn.std().item() - 1) < 0.02
    uniform = torch.rand(100_000, device=NEURON)
    assert uniform.min().item() >= 0 and uniform.max().item() < 1 and abs(uniform.mean().item() - 0.5) < 0.01
    kept = F.dropout(torch.ones(100_000, device=NEURON), 0.3) > 0
    assert abs(kept.float().mean().item() - 0.7) < 0.01


def test_dropout_repeats_with_the_seed_and_backward_uses_its_mask() -> None:
    ones = torch.ones(256, device=NEURON)
    torch.manual_seed(7)
    first, second = F.dropout(ones), F.dropout(ones)
    torch.manual_seed(7)
    same(F.dropout(ones), first)
    assert not torch.equal(first, second)
    torch.manual_seed(7)
    output, mask = torch.ops.aten.native_dropout(ones, 0.5, True)
    same(output, mask.float() * 2)
    leaf = ones.clone().requires_grad_()
    result = F.dropout(leaf, 0.25)
    result.sum().backward()
    same(leaf.grad, result)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_recomputes_with_the_same_mask(use_reentrant: bool) -> None:
    layers = torch.nn.Sequential(
        *[
            torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.5), torch.nn.ReLU())
            for _ in range(3)
        ]
    ).to(NEURON)

    def run(checkpointed: bool) -> torch.Tensor:
        torch.manual_seed(3)
        leaf = torch.ones(4, 16, device=NEURON, requires_grad=True)
        hidden = leaf
        for layer in layers:
            hidden = checkpoint(layer, hidden, use_reentrant=use_reentrant) if checkpointed else layer(hidden)
        hidden.sum().backward()
        return leaf.grad

    same(run(True), run(False))


def test_seeding_alone_attaches_no_machine() -> None:
    code = """
    import torch
    torch.manual_seed(5)
    assert not torch.neuron.is_initialized()
    a = torch.rand(3, device="neuron")
    torch.manual_seed(5)
    assert torch.equal(a, torch.rand(3, device="neuron")) and torch.neuron.initial_seed() == 5
    """
    succeeds(code)
