"""Backend neuron with several processes: values against formulas and one process on CPU, virtual time."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest
import torch
import workers

SLEEP_NS = 10_000_000  # the slow rank of workers.meeting and handing_on sleeps longer than this


@pytest.fixture(scope="module")
def results() -> dict[str, list[Any]]:
    """By name of the work, the results by rank: starting processes costs more than all that they do."""
    return workers.run(workers.everything)


@pytest.mark.parametrize("name", ["collectives", "all_to_all", "averages"])
def test_collectives_give_what_their_formulas_say(results, name):
    assert results[name] == ["ok"] * workers.WORLD


def test_sends_and_receives(results):
    for rank, (got, _) in enumerate(results["ring"]):
        assert got == [float((rank - 1) % workers.WORLD)] * 4
    assert results["ring"][0][1] == [1, 2]


def test_a_collective_begins_when_the_last_rank_arrives(results):
    slow, early = results["meeting"][1][0], results["meeting"][0][0]
    assert slow > early + SLEEP_NS
    assert all(end > slow for _, end in results["meeting"])


def test_a_tensor_is_received_no_earlier_than_it_was_sent(results):
    (sent, start), (_, received), _ = results["handing_on"]
    assert received > sent > start + SLEEP_NS


@pytest.mark.parametrize("way", ["data_parallel", "fully_sharded"])
def test_training_equals_one_process(results, way):
    mean = torch.tensor([losses for losses, _ in results[way]]).mean(0)
    torch.testing.assert_close(mean, torch.tensor(workers.alone()), rtol=1e-5, atol=1e-6)
    weights = [weights for _, weights in results[way]]
    assert weights == weights[:1] * workers.WORLD


def test_a_group_bound_to_a_device():
    script = """
        import torch, torch.distributed as dist
        dist.init_process_group("neuron", store=dist.HashStore(), rank=0, world_size=1,
                                device_id=torch.device("neuron", 0))
        dist.barrier()
        dist.destroy_process_group()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=100)


CUDA_SCRIPT = """
    import os, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    model = DistributedDataParallel(torch.nn.Linear(4, 4).cuda(), device_ids=[local])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        optimizer.step()
    total = torch.ones(1, device="cuda")
    dist.all_reduce(total)
    # In one write: two processes share this pipe.
    os.write(1, f"total {total.item()} {dist.get_backend()}\\n".encode())
    dist.destroy_process_group()
"""


def test_an_unmodified_nccl_script_under_torchrun(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(CUDA_SCRIPT))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=29871",
         "-m", "opentrn.cli.main", "run", "--from-cuda", "--no-trace", str(script)],
        capture_output=True, text=True, timeout=170, env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("total 2.0 nccl") == 2
    assert "backend neuron" in done.stdout + done.stderr
