"""What each rank of test_processes.py runs; results reach the parent as plain Python values."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WORLD = 3
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def run(work: Callable[[int, int], dict[str, Any]], size: int = WORLD) -> dict[str, list[Any]]:
    """Runs `work(rank, size)` in `size` processes on backend neuron; returns its entries by rank."""
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (size, f"{folder}/store", work, queue), nprocs=size)
    by_rank = [value for _, value in sorted((queue.get() for _ in range(size)), key=lambda pair: pair[0])]
    return {name: [value[name] for value in by_rank] for name in by_rank[0]}


def _rank(rank: int, size: int, store: str, work: Callable[[int, int], Any], queue: Any) -> None:
    torch.set_num_threads(1)
    torch.neuron.set_device(rank)
    dist.init_process_group(
        "neuron",
        store=dist.FileStore(store, size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    try:
        queue.put((rank, work(rank, size)))
    finally:
        dist.destroy_process_group()


def everything(rank: int, size: int) -> dict[str, Any]:
    works = (collectives, all_to_all, averages, ring, meeting, handing_on, data_parallel, fully_sharded)
    return {work.__name__: work(rank, size) for work in works}


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.cpu(), want.to(got.dtype), rtol=0, atol=0)


def collectives(rank: int, size: int) -> str:
    here = torch.device("neuron", rank)
    own = torch.arange(6.0) + 10 * rank
    everyone = [torch.arange(6.0) + 10 * other for other in range(size)]
    x = own.to(here)
    dist.all_reduce(x)
    same(x, sum(everyone))
    for op, want in (("MAX", everyone[-1]), ("MIN", everyone[0]), ("PRODUCT", torch.stack(everyone).prod(0))):
        x = own.to(here)
        dist.all_reduce(x, op=getattr(dist.ReduceOp, op))
        same(x, want)
    x = own.to(here)
    dist.broadcast(x, src=1)
    same(x, everyone[1])
    x = own.to(here)
    dist.reduce(x, dst=2)
    same(x, sum(everyone) if rank == 2 else own)
    gathered = [torch.empty(6, device=here) for _ in range(size)]
    dist.all_gather(gathered, own.to(here))
    for got, want in zip(gathered, everyone, strict=True):
        same(got, want)
    flat = torch.empty(6 * size, device=here)
    dist.all_gather_into_tensor(flat, own.to(here))
    same(flat, torch.cat(everyone))
    part = torch.empty(2, device=here)
    dist.reduce_scatter_tensor(part, own.to(here))
    same(part, sum(everyone)[2 * rank : 2 * rank + 2])
    dist.reduce_scatter(part, list(own.to(here).chunk(size)), op=dist.ReduceOp.AVG)
    same(part, (sum(everyone) / size)[2 * rank : 2 * rank + 2])
    target = [torch.empty(6, device=here) for _ in range(size)] if rank == 0 else None
    dist.gather(own.to(here), target, dst=0)
    if target is not None:
        same(torch.stack(target), torch.stack(everyone))
    x = torch.empty(2, device=here)
    dist.scatter(x, list(own.to(here).chunk(size)) if rank == 1 else None, src=1)
    same(x, everyone[1][2 * rank : 2 * rank + 2])
    return "ok"


def all_to_all(rank: int, size: int) -> str:
    here = torch.device("neuron", rank)
    # Rank r sends r + 1 elements of value 10·r + receiver to every rank.
    given = torch.repeat_interleave(torch.arange(size) + 10.0 * rank, rank + 1).to(here)
    counts = [other + 1 for other in range(size)]
    received = torch.empty(sum(counts), device=here)
    dist.all_to_all_single(received, given, counts, [rank + 1] * size)
    same(received, torch.cat([torch.full((n,), 10.0 * (n - 1) + rank) for n in counts]))
    outputs = [torch.empty(2, device=here) for _ in range(size)]
    dist.all_to_all(outputs, [torch.full((2,), 10.0 * rank + other, device=here) for other in range(size)])
    for other, got in enumerate(outputs):
        same(got, torch.full((2,), 10.0 * other + rank))
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(size)]
    return "ok"


def averages(rank: int, size: int) -> str:
    for dtype in FLOATS:
        for count in (None, 0, 1, 2, 31, 64):
            x = torch.full(
                () if count is None else (count,), float(rank), dtype=dtype, device=f"neuron:{rank}"
            )
            dist.all_reduce(x, op=dist.ReduceOp.AVG)
            same(x, torch.full(x.shape, (size - 1) / 2))
    x = torch.tensor([2 * rank, 2 * rank + 1], device=f"neuron:{rank}")
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    total = size * (size - 1)
    assert x.tolist() == [total // size, (total + size) // size]  # integers: the floor of the mean
    z = torch.complex(torch.tensor(1.0), torch.tensor(float(rank))).to(f"neuron:{rank}")
    dist.all_reduce(z)
    assert z.item() == complex(size, size * (size - 1) / 2)
    columns = torch.full((4, 3), float(rank), device=f"neuron:{rank}")
    dist.all_reduce(columns[:, 1])  # strided: the neighbours stay
    assert columns.cpu()[:, 0].eq(rank).all() and columns.cpu()[:, 1].eq(size * (size - 1) / 2).all()
    return "ok"


def ring(rank: int, size: int) -> tuple[list[float], list[int]]:
    """Each rank passes its value on; an `isend` may come before or after its `irecv`."""
    here = f"neuron:{rank}"
    own, got = torch.full((4,), float(rank), device=here), torch.empty(4, device=here)
    works = [dist.isend(own, (rank + 1) % size, tag=7), dist.irecv(got, (rank - 1) % size, tag=7)]
    for work in works:
        work.wait()
    if rank == 0:
        sources = sorted(dist.recv(torch.empty(1, device=here)) for _ in range(size - 1))
    else:
        dist.send(torch.ones(1, device=here), 0)
        sources = []
    return got.tolist(), sources


def meeting(rank: int, size: int) -> tuple[int, int]:
    """(when the slow rank is ready, when the collective has ended here), ns of virtual time."""
    from opentrn.device import _C

    x = torch.ones(4, device=f"neuron:{rank}")
    dist.barrier()
    if rank == 1:
        torch.neuron._sleep(50_000_000)
    ready = _C.device_time(rank)
    dist.all_reduce(x)
    return ready, _C.device_time(rank)


def handing_on(rank: int, size: int) -> tuple[int, int]:
    """As a pipeline: rank 1 receives what rank 0 sends after a long computation. (sent, start) of the sender,
    ns; (start, end) of the others.
    """
    from opentrn.device import _C

    x = torch.ones(4, device=f"neuron:{rank}")
    dist.barrier()
    start = _C.device_time(rank)
    if rank == 0:
        torch.neuron._sleep(50_000_000)
        ready = _C.device_time(rank)
        dist.send(x, 1)
        return ready, start
    if rank == 1:
        dist.recv(x, 0)
        (x + 1).cpu()
    return start, _C.device_time(rank)


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))


def _train(model: nn.Module, batches: list[torch.Tensor]) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for batch in batches:
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().cpu())
    return [float(loss) for loss in losses]


def _batches() -> torch.Tensor:
    return torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(1))


def alone() -> list[float]:
    """The losses of one process on CPU that sees every batch whole."""
    return _train(_model(), list(_batches()))


def data_parallel(rank: int, size: int) -> tuple[list[float], list[float]]:
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(_model().to(f"neuron:{rank}"), device_ids=[rank])
    losses = _train(model, [batch.chunk(size)[rank].to(f"neuron:{rank}") for batch in _batches()])
    return losses, model.module[0].weight.cpu().flatten()[:4].tolist()


def fully_sharded(rank: int, size: int) -> tuple[list[float], list[float]]:
    """Losses, and the first weights after a DCP round trip into a model of other values."""
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("neuron", (size,))

    def sharded() -> nn.Module:
        model = _model().to(f"neuron:{rank}")
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    model = sharded()
    losses = _train(model, [batch.chunk(size)[rank].to(f"neuron:{rank}") for batch in _batches()])
    folder = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    checkpoint.save(get_model_state_dict(model), checkpoint_id=folder[0])
    fresh = sharded()
    state = get_model_state_dict(fresh)
    checkpoint.load(state, checkpoint_id=folder[0])
    set_model_state_dict(fresh, state)
    trained, loaded = (m[0].weight.full_tensor().cpu() for m in (model, fresh))
    assert torch.equal(trained, loaded) and not torch.equal(trained, _model()[0].weight)
    return losses, trained.flatten()[:4].tolist()
