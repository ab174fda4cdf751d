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
        count = len(self)
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(count))]
        if not -count <= index < count:  # iteration ends on IndexError
            raise IndexError(f"opentrn: there is no generator {index}: {count} devices are attached")
        return _C.default_generator(index % count)


default_generators: Sequence[torch.Generator] = _DefaultGenerators()


# What torch.manual_seed asked for before a machine was attached: seeding alone attaches none.
_waiting_seed: int | None = None


def apply_waiting_seed() -> None:
    """Called once a machine is attached."""
    global _waiting_seed
    if _waiting_seed is not None:
        value, _waiting_seed = _waiting_seed, None
        manual_seed_all(value)


def get_rng_state(device: Any = "neuron") -> torch.Tensor:
    """The state of one device: 16 bytes, seed then offset, on the CPU."""
    return default_generators[resolve(device, optional=True)].get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "neuron") -> None:
    default_generators[resolve(device, optional=True)].set_state(new_state.cpu())


def get_rng_state_all() -> list[torch.Tensor]:
    return [generator.get_state() for generator in default_generators]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the current device."""
    default_generators[_C.current_device()].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds every device; before a machine is attached, those that will be. torch.manual_seed calls it, so a
    forked child that cannot use the device (a DataLoader worker) may as well, as on CUDA."""
    global _waiting_seed
    if _C.is_in_bad_fork() or not _C.is_attached():
        _waiting_seed = int(seed)
        return
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seeds the current device with a number of the host's entropy."""
    default_generators[_C.current_device()].seed()


def seed_all() -> None:
    """Seeds every device with one number of the host's entropy."""
    value = default_generators[0].seed()
    for generator in default_generators[1:]:
        generator.manual_seed(value)


def initial_seed() -> int:
    """The seed of the current device."""
    return default_generators[_C.current_device()].initial_seed()
