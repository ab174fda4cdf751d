"""Thirty seconds that tell whether the device is alive: one op, one step, one save, one exit."""

from __future__ import annotations

import io
import subprocess
import sys

import torch


def test_an_operator() -> None:
    assert (torch.ones(2, device="neuron") + 1).tolist() == [2, 2]


def test_a_training_step() -> None:
    torch.manual_seed(0)
    host = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
    device = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
    device.load_state_dict(host.state_dict())
    device.to("neuron")
    data = torch.randn(16, 4)
    for model, inputs in ((host, data), (device, data.to("neuron"))):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(inputs).pow(2).mean().backward()
        optimizer.step()
    for found, wanted in zip(device.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(found.cpu(), wanted)


def test_time_and_memory_advance() -> None:
    start, end = torch.neuron.Event(enable_timing=True), torch.neuron.Event(enable_timing=True)
    before = torch.neuron.memory_allocated()
    start.record()
    x = torch.ones(512, 512, device="neuron")
    x @ x
    end.record()
    torch.neuron.synchronize()
    assert start.elapsed_time(end) > 0
    assert torch.neuron.memory_allocated() - before == 1 << 20


def test_save_and_load() -> None:
    buffer = io.BytesIO()
    torch.save({"w": torch.arange(3.0, device="neuron")}, buffer)
    buffer.seek(0)
    assert torch.load(buffer)["w"].device.type == "neuron"


def test_a_process_ends_cleanly() -> None:
    code = "import torch; x = torch.ones(2, 2, device='neuron', requires_grad=True); (x @ x).sum().backward()"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
