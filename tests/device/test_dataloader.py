"""DataLoader: workers, pinned batches, and what a worker may not do."""

from __future__ import annotations

import functools
import operator
from collections import namedtuple

import pytest
import torch
from device_helpers import NEURON, same
from torch.utils.data import DataLoader, Dataset, TensorDataset

Pair = namedtuple("Pair", ["x", "y"])


class _Squares(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        torch.manual_seed(index)  # touches every device's generator, as any seeding does
        return torch.tensor([float(index) ** 2])


class _OnDevice(_Squares):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)], device=NEURON)


class _Custom:
    def __init__(self, items: list[torch.Tensor]) -> None:
        self.items, self.pinned_for = torch.stack(items), "not pinned"

    def pin_memory(self, device: object = None) -> _Custom:
        self.pinned_for = "pinned"
        return self


@pytest.mark.parametrize("pin_memory", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_reach_the_device(workers: int, pin_memory: bool) -> None:
    torch.ones(1, device=NEURON)  # the parent has used the device before the workers fork
    loader = DataLoader(_Squares(), batch_size=4, num_workers=workers, pin_memory=pin_memory)
    found = []
    for batch in loader:
        assert batch.is_pinned() == pin_memory
        found.append(batch.to(NEURON, non_blocking=True))
    same(torch.cat(found).flatten(), torch.arange(8.0) ** 2)


def test_structures_are_pinned_and_kept() -> None:
    loader = DataLoader([Pair(torch.ones(2), {"a": torch.zeros(3)})] * 4, batch_size=2, pin_memory=True)
    batch = next(iter(loader))
    assert isinstance(batch, Pair) and batch.x.is_pinned() and batch.y["a"].is_pinned()
    custom = next(iter(DataLoader([torch.ones(2)] * 4, batch_size=2, collate_fn=_Custom, pin_memory=True)))
    assert custom.pinned_for == "pinned"


def test_a_forked_worker_that_uses_the_device_says_so() -> None:
    torch.ones(1, device=NEURON)
    with pytest.raises(RuntimeError, match=r"(?s)neuron.*forked.*spawn"):
        list(DataLoader(_OnDevice(), num_workers=1, multiprocessing_context="fork"))


def test_shuffling_and_tensors_on_the_device() -> None:
    data = TensorDataset(torch.arange(8.0, device=NEURON), torch.arange(8, device=NEURON))
    seen = [x for x, _ in DataLoader(data, batch_size=4, shuffle=True)]
    assert all(batch.is_neuron for batch in seen)
    same(torch.cat(seen).sort().values, torch.arange(8.0))
    generator = torch.Generator().manual_seed(1)
    order = [
        batch.tolist()
        for batch in DataLoader(torch.arange(6), batch_size=2, shuffle=True, generator=generator)
    ]
    assert sorted(functools.reduce(operator.iadd, order, [])) == list(range(6))
