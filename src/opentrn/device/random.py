"""Random state of the devices: (seed, offset) in 16 bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from opentrn.device import _C
from opentrn.device.index import resolve


class _DefaultGenerators(Sequence):
    """One generator a device, made when asked for."""

    def __len__(self) -> int:
        return _C.device_count()

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return _C.default_generator(index + len(self) if index < 0 else index)


default_generators: Sequence[torch.Generator] = _DefaultGenerators()


def get_rng_state(device: Any = "neuron") -> torch.Tensor:
    """The state of one device: 16 bytes, seed then offset, on the CPU."""
    return default_generators[resolve(device, optional=True)].get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "neuron") -> None:
    default_generators[resolve(device, optional=True)].set_state(new_state.cpu())


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in range(_C.device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the current device. Before the machine is attached nothing is lost: a fresh device has the seed of
    torch.manual_seed, which calls manual_seed_all."""
    default_generators[_C.current_device()].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> None:
    default_generators[_C.current_device()].seed()


def seed_all() -> None:
    value = default_generators[0].seed()
    for generator in default_generators[1:]:
        generator.manual_seed(value)


def initial_seed() -> int:
    return default_generators[_C.current_device()].initial_seed()
