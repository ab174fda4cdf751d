"""Several devices in one process: nn.DataParallel and copies between devices; and what other processes
get."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from device_helpers import NEURON, same, succeeds
from torch import nn
from torch.nn.parallel import comm


class _Turning(nn.Module):
    """With a complex parameter and a complex result: they cross devices as pairs of reals."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.phase = nn.Parameter(torch.randn(3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.phase


def _run(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    y = model(x)
    y.abs().sum().backward()
    return [y, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_data_parallel_equals_one_device(count: int) -> None:
    single = _Turning()
    wrapped = nn.DataParallel(copy.deepcopy(single).to(NEURON), device_ids=list(range(count)))
    x = torch.randn(7, 4)  # uneven pieces
    same(_run(wrapped, x.to(NEURON)), _run(single, x), rtol=1e-5, atol=1e-5)


def test_data_parallel_finds_the_devices_itself() -> None:
    wrapped = nn.DataParallel(nn.Linear(2, 2).to(NEURON))
    assert wrapped.device_ids == list(range(torch.neuron.device_count()))
    assert wrapped(torch.ones(3, 2, device=NEURON)).shape == (3, 2)


def test_copies_between_devices() -> None:
    x = torch.arange(10.0, device=NEURON)
    first, second = comm.broadcast(x, [0, 1])
    assert (first.device.index, second.device.index) == (0, 1)
    same(second, x)
    outputs = [torch.zeros(10, device="neuron:1"), torch.zeros(10, device="neuron:2")]
    same(comm.broadcast(x, out=outputs)[1], x)
    pieces = comm.scatter(x, ["neuron:1", "neuron:3"], [4, 6])
    assert [piece.device.index for piece in pieces] == [1, 3] and len(pieces[0]) == 4
    same(comm.gather(pieces, destination="cpu"), torch.arange(10.0))
    gathered = comm.gather(pieces)
    assert gathered.device == torch.device("neuron:0")
    halves = [torch.zeros(5, device="neuron:1"), torch.zeros(5, device="neuron:0")]
    comm.scatter(x, out=halves)
    joined = torch.zeros(10, device="neuron:2")
    comm.gather(halves, out=joined)
    same(joined, torch.arange(10.0))
    same(comm.reduce_add([first, second], 1), 2 * torch.arange(10.0))
    same(torch.neuron.comm.reduce_add_coalesced([[first], [second]], 0)[0], 2 * torch.arange(10.0))
    with pytest.raises(RuntimeError, match="there is no device neuron:99"):
        comm.broadcast(x, [0, 99])


_SENDER = """
import torch, torch.multiprocessing as mp

def send(queue):
    value = torch.ones(3, device="neuron")
    queue.put(value)
    queue.put({"weight": value})
    queue.put(value.tolist())

def use(value):
    pass

if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=send, args=(queue,))
    process.start()
    for _ in range(2):
        try:
            queue.get(timeout=60)
        except RuntimeError as error:
            print("refused", str(error).replace(chr(10), " | "))
    print(queue.get(timeout=60))
    process.join()
    try:
        context.Process(target=use, args=(torch.nn.Linear(2, 2).to("neuron"),)).start()
    except RuntimeError as error:
        print("refused", str(error).replace(chr(10), " | "))
"""


def test_another_process_is_refused_device_memory_and_never_waits(tmp_path: Path) -> None:
    script = tmp_path / "send.py"
    script.write_text(_SENDER)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    refusal = "refused opentrn: a neuron tensor cannot be shared with another process"
    assert [line.startswith(refusal) for line in lines] == [True, True, False, True], done.stdout
    assert (
        all("what to do: send tensor.cpu()" in lines[i] for i in (0, 1, 3)) and lines[2] == "[1.0, 1.0, 1.0]"
    )


def test_host_tensors_are_shared_as_before() -> None:
    succeeds("""
        import torch, torch.multiprocessing as mp
        queue = mp.get_context("spawn").SimpleQueue()
        x = torch.ones(3)
        queue.put(x)
        queue.get().add_(1)
        assert x.tolist() == [2, 2, 2]
    """)
