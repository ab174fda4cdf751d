"""A fake world: unmodified distributed programs as rank r of N in one process."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from torch import nn

import opentrn
from opentrn.device import _C
from opentrn.distributed import fake_world
from opentrn.errors import ConfigurationError


def test_world_has_its_size_rank_and_environment():
    with fake_world(64, rank=3):
        dist.init_process_group("nccl")  # what a script calls
        assert (dist.get_rank(), dist.get_world_size()) == (3, 64)
        assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("3", "64")
    assert not dist.is_initialized() and "WORLD_SIZE" not in os.environ


def test_collectives_of_equal_ranks():
    with fake_world(4, rank=1):
        x = torch.ones(8, device="neuron")
        dist.all_reduce(x)
        assert x.tolist() == [4.0] * 8
        gathered = torch.empty(32, device="neuron")
        dist.all_gather_into_tensor(gathered, x)
        assert gathered.tolist() == [4.0] * 32
        part = torch.empty(8, device="neuron")
        dist.reduce_scatter_tensor(part, torch.arange(32.0, device="neuron"), op=dist.ReduceOp.AVG)
        assert part.tolist() == list(range(8, 16))
        flag = torch.tensor([1], device="neuron")
        dist.broadcast(flag, src=0)
        assert flag.item() == 1
        objects = [None] * 4
        dist.all_gather_object(objects, {"rank": 1})
        assert objects == [{"rank": 1}] * 4
        dist.barrier()


def test_a_collective_overlaps_with_computation():
    with opentrn.dry_run(), fake_world(64):
        a = torch.empty(8192, 8192, dtype=torch.bfloat16, device="neuron")
        big = torch.empty(1 << 30, dtype=torch.bfloat16, device="neuron")

        def span(overlap: bool) -> int:
            torch.neuron.synchronize()
            start = _C.device_time(0)
            work = dist.all_reduce(big, async_op=True)
            if not overlap:
                work.wait()
            a @ a  # takes about as long as the collective
            work.wait()
            torch.neuron.synchronize()
            return _C.device_time(0) - start

        apart, together = span(False), span(True)
        assert together < 0.8 * apart


def test_collectives_are_in_the_totals():
    _C.reset_operator_totals()
    with opentrn.dry_run(), fake_world(64):
        dist.all_reduce(torch.empty(1 << 20, device="neuron"))
    entry = _C.operator_totals()["c10d::all_reduce"]
    assert entry["count"] == 1 and entry["bytes"] == 4 << 20 and entry["device_ns"] > 0
    assert entry["class"] == "collective"


def test_fsdp2_unmodified_shards_memory():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with opentrn.dry_run(), fake_world(16):
        mesh = init_device_mesh("neuron", (16,))
        with torch.device("meta"):
            model = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(4)])
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        before = torch.neuron.memory_allocated()
        model.to_empty(device="neuron")
        assert torch.neuron.memory_allocated() - before == 4 * 1024 * 1024 * 4 // 16
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.randn(512, 1024, device="neuron")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        totals = _C.operator_totals()
        assert totals["c10d::all_gather"]["count"] > 0 and totals["c10d::reduce_scatter"]["count"] > 0


@pytest.mark.parametrize("original", [False, True])
def test_fsdp1_unmodified_shards_memory(original):
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    layer = 1024 * 1024 * 4
    with opentrn.dry_run(), fake_world(16):
        before = torch.neuron.memory_allocated()
        model = FullyShardedDataParallel(
            nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(4)]),
            auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
            device_id=0,
            use_orig_params=original,
        )
        assert torch.neuron.memory_allocated() - before == 4 * layer // 16
        optimizer = torch.optim.AdamW(model.parameters())
        torch.neuron.reset_peak_memory_stats()
        for _ in range(2):
            model(torch.randn(512, 1024, device="neuron")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        # The shards and two moments of each stay; whole layers come and go.
        assert 3 * 4 * layer // 16 <= torch.neuron.memory_allocated() - before < 4 * layer
        assert torch.neuron.max_memory_allocated() - before > 2 * layer
        totals = _C.operator_totals()
        assert totals["c10d::all_gather"]["count"] > 0 and totals["c10d::reduce_scatter"]["count"] > 0


def test_a_script_that_destroys_its_group():
    with fake_world(4):
        dist.init_process_group("nccl")
        dist.destroy_process_group()
        assert not dist.is_initialized()
        dist.init_process_group("nccl")  # a second phase of the same script
        total = torch.ones(2, device="neuron")
        dist.all_reduce(total)
        assert total.tolist() == [4.0, 4.0] and dist.get_world_size() == 4
        dist.destroy_process_group()
    with fake_world(2):
        assert dist.get_world_size() == 2
    assert not dist.is_initialized()


@pytest.mark.parametrize(("size", "rank"), [(0, 0), (4, 4), (4, -1)])
def test_impossible_worlds(size, rank):
    with pytest.raises(ConfigurationError, match="there is no rank"):
        fake_world(size, rank)


def test_worlds_do_not_nest():
    with fake_world(2), pytest.raises(ConfigurationError, match="already part of a world"), fake_world(2):
        pass


def test_the_scripts_world_has_to_agree():
    with fake_world(2), pytest.raises(ConfigurationError, match="asks for a world of 8"):
        dist.init_process_group("nccl", world_size=8, rank=0)
