"""Several Python threads on the devices at once."""

from __future__ import annotations

import concurrent.futures
import threading

import torch
from device_helpers import NEURON, same


def test_current_device_and_stream_are_per_thread() -> None:
    torch.neuron.set_device(3)
    side = torch.neuron.Stream()
    torch.neuron.set_stream(side)
    seen = []

    def look() -> None:
        seen.append((torch.neuron.current_device(), torch.neuron.current_stream("neuron:3") == side))
        torch.neuron.set_device(5)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [(0, False)] and torch.neuron.current_device() == 3


def test_work_of_many_threads_is_right_and_freed(clean_memory: None) -> None:
    before = torch.neuron.memory_allocated()
    weight = torch.randn(16, 16)
    shared = weight.to(NEURON)

    def work(seed: int) -> torch.Tensor:
        value = torch.full((16, 16), float(seed), device=NEURON)
        for _ in range(50):
            value = (value @ shared).tanh() + torch.ones(16, device=NEURON)
            value[:, seed % 16].zero_()
            value = torch.cat([value[8:], value[:8]])
        return value.cpu()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, range(24)))
    for seed, result in enumerate(found):
        value = torch.full((16, 16), float(seed))
        for _ in range(50):
            value = (value @ weight).tanh() + torch.ones(16)
            value[:, seed % 16].zero_()
            value = torch.cat([value[8:], value[:8]])
        same(result, value)
    assert torch.neuron.memory_allocated() - before == shared.nbytes


def test_counters_are_exact_under_threads() -> None:
    count, threads = 400, 6
    before = torch.neuron.memory_stats()

    def work(_: int) -> None:
        for _ in range(count):
            torch.empty(100, device=NEURON)

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    after = torch.neuron.memory_stats()
    grown = after["allocation.all.allocated"] - before["allocation.all.allocated"]
    assert grown == count * threads
    assert after["allocation.all.freed"] - before["allocation.all.freed"] == grown


def test_tensors_die_in_other_threads(clean_memory: None) -> None:
    before = torch.neuron.memory_allocated()
    box = [torch.ones(1000, device=NEURON)]
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert torch.neuron.memory_allocated() == before


def test_each_thread_has_its_own_grad_mode_and_autocast() -> None:
    def work(enabled: bool) -> tuple[bool, torch.dtype]:
        leaf = torch.ones(4, 4, device=NEURON, requires_grad=True)
        with torch.set_grad_enabled(enabled), torch.autocast(NEURON, dtype=torch.bfloat16, enabled=enabled):
            result = leaf @ leaf
        return result.requires_grad, result.dtype

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, [True, False] * 8))
    assert found == [(True, torch.bfloat16), (False, torch.float32)] * 8
