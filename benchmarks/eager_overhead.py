"""Host time of small eager operators on `neuron` over the same on CPU PyTorch, in µs an operator.

python -m benchmarks.eager_overhead [--json]

16 × 16 float32 operands, virtual clock and memory accounting on, one host thread. Target: at most 1.5 µs
each.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.common import in_turns, machine, module_command, parser, publish, verdict

TARGET_US = 1.5
# A chunk is shorter than a time slice of the host's scheduler, so that the best one was not interrupted.
CALLS, CHUNKS = 200, 300


def operators(device: str) -> dict[str, Callable[[], object]]:
    """The measured calls by name."""
    import torch

    torch.manual_seed(0)
    left, right = torch.randn(16, 16).to(device), torch.randn(16, 16).to(device)
    weight, bias = torch.ones(16).to(device), torch.zeros(16).to(device)
    rows = torch.randint(0, 16, (16,)).to(device)
    in_place = torch.randn(16, 16).to(device)
    layer_norm = torch.nn.functional.layer_norm
    return {
        "add": lambda: left + right,
        "mm": lambda: left.mm(right),
        "relu_": lambda: in_place.relu_(),
        "layer_norm": lambda: layer_norm(left, (16,), weight, bias),
        "index": lambda: left[rows],
    }


def work(device: str, result: Path, threads: int) -> None:
    """Writes the best µs per call of each operator."""
    import torch

    torch.set_num_threads(threads)
    calls = operators(device)
    best = dict.fromkeys(calls, float("inf"))
    repeats = range(CALLS)
    # Operators take turns, so that a busy spell of the machine does not fall on one of them.
    for _ in range(CHUNKS):
        for name, call in calls.items():
            begin = time.perf_counter_ns()
            for _ in repeats:
                call()
            best[name] = min(best[name], (time.perf_counter_ns() - begin) / CALLS / 1000)
    result.write_text(json.dumps(best), encoding="utf-8")


def main() -> None:
    options = parser("Eager overhead per operator.", rounds=6).parse_args()
    if options.worker:
        work(options.worker, options.result, options.threads)
        return

    def command(device: str) -> Callable[[Path], list[str]]:
        return lambda result: [
            sys.executable,
            *module_command("benchmarks.eager_overhead", device, result, options.threads),
        ]

    samples = in_turns({d: command(d) for d in ("cpu", "neuron")}, options.rounds, options.threads)
    best = {side: {op: min(run[op] for run in runs) for op in runs[0]} for side, runs in samples.items()}
    overhead = {op: round(best["neuron"][op] - best["cpu"][op], 3) for op in best["cpu"]}
    met = max(overhead.values()) <= TARGET_US
    lines = [f"Overhead over CPU PyTorch, µs an operator, best of {options.rounds} processes (measured)"]
    lines += [
        f"  {op:<12} cpu {best['cpu'][op]:6.2f}   neuron {best['neuron'][op]:6.2f}   overhead {extra:6.2f}"
        for op, extra in overhead.items()
    ]
    lines.append(f"target ≤ {TARGET_US} µs each: {verdict(met)}. Host: {machine()}")
    figures = {"overhead_us": overhead, "best_us": best, "target_us": TARGET_US, "target_met": met}
    publish("eager_overhead", options.json, samples, figures, lines)


if __name__ == "__main__":
    main()
