"""torch.profiler sees the device: device time per operator, steps, traces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from device_helpers import NEURON
from torch.profiler import ProfilerActivity, profile, record_function, schedule

ACTIVITIES = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


def test_device_time_per_operator() -> None:
    with profile(activities=ACTIVITIES) as run:
        x = torch.ones(512, 512, device=NEURON)
        for _ in range(3):
            x @ x
        torch.neuron.synchronize()
    averages = {event.key: event for event in run.key_averages()}
    assert averages["aten::mm"].count == 3
    assert averages["aten::mm"].self_device_time_total > 0
    assert averages["aten::matmul"].device_time_total >= averages["aten::mm"].device_time_total
    table = run.key_averages().table(sort_by="self_device_time_total")
    assert "NEURON" in table.upper() and table.index("aten::mm") > 0
    operator = next(event for event in run.events() if event.name == "aten::mm")
    assert operator.kernels and operator.kernels[0].duration > 0  # the operator and its device time are tied


def test_device_time_is_the_operators_own() -> None:
    big, small = torch.ones(1024, 1024, device=NEURON), torch.ones(8, device=NEURON)
    big @ big
    with profile(activities=ACTIVITIES) as run:
        big @ big
        small + 1
    averages = {event.key: event for event in run.key_averages()}
    assert averages["aten::mm"].self_device_time_total > 5 * averages["aten::add"].self_device_time_total


def test_schedule_writes_a_trace_per_cycle(tmp_path: Path) -> None:
    counts: list[int] = []
    model = torch.nn.Linear(16, 16).to(NEURON)

    def ready(run: profile) -> None:
        counts.append(len(run.events()))
        run.export_chrome_trace(str(tmp_path / f"{len(counts)}.json"))

    with profile(
        activities=ACTIVITIES, schedule=schedule(wait=2, warmup=1, active=2, repeat=3), on_trace_ready=ready
    ) as run:
        for _ in range(20):
            with record_function("the step"):
                model(torch.ones(2, 16, device=NEURON)).sum().backward()
            run.step()
    assert len(counts) == 3 and all(counts)
    events = json.loads((tmp_path / "2.json").read_text())["traceEvents"]
    assert {"the step", "aten::addmm"} <= {event.get("name") for event in events}


def test_memory_and_shapes() -> None:
    with profile(activities=ACTIVITIES, profile_memory=True, record_shapes=True) as run:
        held = torch.ones(256, 256, device=NEURON)
        held @ held
    rows = {event.key: event for event in run.key_averages(group_by_input_shape=True)}
    assert rows["aten::mm"].input_shapes == [[256, 256], [256, 256]]


def test_profiles_without_the_device_are_as_before() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as run:
        torch.ones(4) + 1
    assert any(event.key == "aten::add" for event in run.key_averages())
    with torch.autograd.profiler.profile() as old:
        torch.ones(4, device=NEURON) + 1
    assert "aten::add" in old.key_averages().table()


@pytest.mark.parametrize("nested", [False, True])
def test_profiling_backward_attributes_it(nested: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).to(NEURON)
    with profile(activities=ACTIVITIES, with_stack=nested) as run:
        model(torch.ones(8, 64, device=NEURON)).sum().backward()
    backward = [event for event in run.key_averages() if "Backward" in event.key]
    assert sum(event.device_time_total for event in backward) > 0
