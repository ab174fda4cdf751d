"""`fake_world(size)`: this process plays one rank of a distributed program of any size."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch.distributed as dist

from opentrn.distributed import group
from opentrn.distributed.fsdp import unbacked_parameters
from opentrn.errors import ConfigurationError

_active: fake_world | None = None


def active() -> fake_world | None:
    """The fake world this process is in, if any."""
    return _active


class FakeStore(dist.Store):
    """A key-value store nobody else reads: every rank has already arrived."""


class fake_world:
    """Context manager: c10d programs run as rank `rank` of `size`, whatever backend they name.

    The environment has RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT as
    torchrun sets them; LOCAL_RANK is 0, for one process drives one device. The default group exists inside;
    `init_process_group` of the script is answered with it. Collectives are modelled
    (opentrn.distributed.cost), overlap with computation on their own stream, and give what N ranks that hold
    this rank's values would give.
    """

    def __init__(self, size: int, rank: int = 0) -> None:
        if size < 1 or not 0 <= rank < size:
            raise ConfigurationError(
                f"there is no rank {rank} in a world of {size}",
                cure="give a size ≥ 1 and a rank from 0 to size − 1",
            )
        self.size, self.rank = size, rank

    def __enter__(self) -> fake_world:
        global _active
        if _active is not None or dist.is_initialized():
            raise ConfigurationError(
                "this process is already part of a world",
                cure="destroy_process_group() first, or leave the fake world",
            )
        _active = self
        values = {
            "RANK": self.rank,
            "WORLD_SIZE": self.size,
            "LOCAL_RANK": 0,
            "LOCAL_WORLD_SIZE": 1,
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": 29500,
        }
        self._environment = {name: os.environ.get(name) for name in values}
        os.environ.update({name: str(value) for name, value in values.items()})
        self._initialize = dist.init_process_group
        self.make_group()
        dist.init_process_group = _already_there  # type: ignore[assignment]
        self._patches = contextlib.ExitStack()
        self._patches.enter_context(unbacked_parameters())
        return self

    def make_group(self) -> None:
        """The default group: at entry, and again for a script that destroyed it."""
        self._initialize(group.BACKEND, store=FakeStore(), rank=self.rank, world_size=self.size)

    def __exit__(self, *error: Any) -> None:
        global _active
        self._patches.close()
        dist.init_process_group = self._initialize
        if dist.is_initialized():
            dist.destroy_process_group()
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _active = None


def _already_there(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
    """The script's own init_process_group: the world is there already, with the size that was asked for."""
    if not dist.is_initialized():
        assert _active is not None
        _active.make_group()
    world = kwargs.get("world_size", -1)
    if world not in (-1, None) and world != dist.get_world_size():
        raise ConfigurationError(
            f"the script asks for a world of {world}, the fake world has {dist.get_world_size()}",
            cure="give the same number to both",
        )
