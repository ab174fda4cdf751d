"""A dry training step of Qwen3-32B against the same step on PyTorch's meta device, in one run.

    python -m benchmarks.dry_run --json

ratio_meta: steady dry step over steady meta step (time of this host). step_s, first_s: a steady and the
first dry step.
rss_gb: highest resident memory of the process. Clock, memory and operator trace are on.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

# Bound before a dry run replaces the names in `time`.
from time import perf_counter
from typing import Any

import torch

import opentrn
from opentrn.device import _C
from opentrn.predict import Plan, build, catalogue

PLAN = Plan("qwen3-32b", sequence=4096, precision="bf16", optimizer="adamw-foreach")
# The step allocates 300 GiB on one core; the benchmark is about this host's time.
NO_LIMIT = 1e4


def timed(step: Callable[[], Any], repeats: int) -> list[float]:
    """Seconds of each call on this host."""
    times = []
    for _ in range(repeats):
        start = perf_counter()
        step()
        times.append(perf_counter() - start)
    return times


def step_of(model: torch.nn.Module, device: str, sequence: int) -> Callable[[], Any]:
    """One training step: forward, backward, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    tokens = torch.ones(1, sequence, dtype=torch.long, device=device)

    def step() -> None:
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def meta_seconds(plan: Plan, repeats: int) -> float:
    """The same step on PyTorch's meta device, steady."""
    from transformers import AutoModelForCausalLM

    config = build.configuration(catalogue.find(plan.model), plan)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    torch.set_default_dtype(torch.float32)
    step = step_of(model.train(), "meta", plan.sequence)
    return statistics.median(timed(step, repeats + 1)[1:])


def dry_seconds(plan: Plan, repeats: int) -> list[float]:
    """First and steady dry steps, with the trace drained between steps as a recorder does."""
    torch.neuron.init()
    _C.set_memory_fraction(0, NO_LIMIT)
    with opentrn.dry_run():
        model = build.build(catalogue.find(plan.model), plan)
        step = step_of(model, "neuron", plan.sequence)
        _C.memory_log_start(0)
        _C.trace_start({"shapes": True, "frames": False})
        times = []
        for _ in range(repeats + 1):
            times += timed(step, 1)
            _C.trace_drain()
            _C.memory_log_drain(0)
        _C.trace_stop()
        _C.memory_log_drain(0, True)
    _C.set_memory_fraction(0, 1.0)
    return times


def peak_resident_gb() -> float:
    """Highest resident memory of this process in GB; getrusage's includes that of the one that started it."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024 / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sequence", type=int, default=PLAN.sequence)
    arguments = parser.parse_args()
    plan = replace(PLAN, sequence=arguments.sequence)
    meta = meta_seconds(plan, max(arguments.repeats // 2, 1))
    first, *steady = dry_seconds(plan, arguments.repeats)
    step = statistics.median(steady)
    rss = peak_resident_gb()
    print(
        f"meta step {meta:.3f} s, dry step {step:.3f} s ({step / meta:.2f} ×), first {first:.3f} s, "
        f"{rss:.2f} GB"
    )
    if arguments.json:
        print(
            json.dumps(
                {"ratio_meta": step / meta, "step_s": step, "first_s": first, "rss_gb": rss, "meta_s": meta}
            )
        )


if __name__ == "__main__":
    main()
