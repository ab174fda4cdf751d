"""Processes: fork before use works, fork after use is refused clearly, spawn and sharing work."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from device_helpers import NEURON, same, succeeds


def _child(function) -> str:  # type: ignore[no-untyped-def]
    """What `function` returns or raises in a forked child of this process."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            result = f"returned {function()}"
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        os.write(write, result.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        result = pipe.read()
    os.waitpid(child, 0)
    return result


REFUSED = {
    "make": lambda: torch.ones(2, device=NEURON),
    "move": lambda: torch.ones(2).to(NEURON),
    "generator": lambda: torch.rand(2, device=NEURON),
    "module": lambda: torch.nn.Linear(2, 2).to(NEURON),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_child_forked_after_use_is_refused(name: str) -> None:
    torch.ones(1, device=NEURON)
    message = _child(REFUSED[name])
    assert message.startswith("RuntimeError: opentrn: ") and "spawn" in message and "what to do" in message


def test_a_child_cannot_use_tensors_of_the_parent() -> None:
    tensor = torch.ones(3, device=NEURON)
    assert "spawn" in _child(lambda: tensor + 1)
    assert "spawn" in _child(lambda: tensor.tolist())
    same(tensor, torch.ones(3))


def test_a_child_may_compute_on_the_host_and_seed() -> None:
    torch.ones(1, device=NEURON)
    torch.ones(1, requires_grad=True).backward()

    def work() -> float:
        torch.manual_seed(3)
        leaf = torch.ones(2, requires_grad=True)
        (leaf * 2).sum().backward()
        return leaf.grad.sum().item()

    assert _child(work) == "returned 4.0"
    assert _child(torch.neuron._is_in_bad_fork) == "returned True"


def test_fork_before_use_and_after_mere_questions() -> None:
    code = """
    import os, torch
    torch.manual_seed(0)
    torch.neuron.is_available(), torch.neuron.device_count()
    torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
    for _ in range(2):
        if os.fork() == 0:
            leaf = torch.ones(3, device="neuron", requires_grad=True)
            (leaf * 2).sum().backward()
            print(leaf.grad.sum().item(), flush=True)
            os._exit(0)
        os.wait()
    print(torch.ones(2, device="neuron").sum().item())
    """
    assert succeeds(code).split() == ["6.0", "6.0", "2.0"]


def test_tensors_in_queues_name_the_cure_or_arrive() -> None:
    from torch.multiprocessing.reductions import reduce_tensor

    try:
        rebuild, arguments = reduce_tensor(torch.arange(3.0, device=NEURON))
    except RuntimeError as error:
        assert NEURON in str(error) and "what to do" in str(error)
    else:
        same(rebuild(*arguments), torch.arange(3.0))


def test_spawned_process_uses_the_device(tmp_path: Path) -> None:
    script = tmp_path / "spawning.py"
    script.write_text(
        textwrap.dedent(
            """
            import torch, torch.multiprocessing as mp

            def work(rank, results):
                results.put((rank, torch.full((2,), rank, device=f"neuron:{rank}").sum().item()))

            if __name__ == "__main__":
                torch.ones(1, device="neuron")
                results = mp.get_context("spawn").SimpleQueue()
                mp.spawn(work, args=(results,), nprocs=2)
                print(sorted(results.get() for _ in range(2)))
            """
        )
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stdout) == (0, "[(0, 0), (1, 2)]\n"), done.stderr
