"""Host time of a small-Qwen3 training step on `neuron`, plain and traced, over the same step on the CPU.

python -m benchmarks.eager_step [--json]

`ratio`: neuron / CPU, virtual clock and memory accounting on; target 1.10. `ratio_traced`: under
`opentrn run` with a trace; target 1.25. Both from the best wall-clock step of all processes; `*_process_time`
is the same from the step's processor time, which other programs on the machine disturb less.
"""

from __future__ import annotations

import json
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import in_turns, machine, module_command, parser, publish, verdict

TARGET, TARGET_TRACED = 1.10, 1.25
BATCH, LENGTH = 8, 128
WARM_UP_STEPS, STEPS = 3, 12
OPENTRN = Path(sysconfig.get_path("scripts")) / "opentrn"


def make_step(device: str) -> Callable[[], None]:
    """One training step: forward, backward, AdamW."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 256, (BATCH, LENGTH)).to(device)

    def step() -> None:
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    return step


def work(side: str, result: Path, threads: int) -> None:
    """Writes wall-clock and processor milliseconds of each step."""
    import torch

    torch.set_num_threads(threads)
    step = make_step("cpu" if side == "cpu" else "neuron")
    wall, process = [], []
    for _ in range(WARM_UP_STEPS):
        step()
    for _ in range(STEPS):
        begin, used = time.perf_counter_ns(), time.process_time_ns()
        step()
        wall.append((time.perf_counter_ns() - begin) / 1e6)
        process.append((time.process_time_ns() - used) / 1e6)
    result.write_text(json.dumps({"wall_ms": wall, "process_ms": process}), encoding="utf-8")


def commands(threads: int, traces: Path) -> dict[str, Callable[[Path], list[str]]]:
    """The three sides: the traced one is the same module under `opentrn run`."""

    def plain(side: str) -> Callable[[Path], list[str]]:
        return lambda result: [
            sys.executable,
            *module_command("benchmarks.eager_step", side, result, threads),
        ]

    def traced(result: Path) -> list[str]:
        run = [str(OPENTRN), "run", "--trace", str(traces / result.stem)]
        return [*run, *module_command("benchmarks.eager_step", "traced", result, threads)]

    return {"cpu": plain("cpu"), "neuron": plain("neuron"), "traced": traced}


def best_of(runs: list[dict[str, Any]], clock: str) -> float:
    return min(min(run[clock]) for run in runs)


def main() -> None:
    options = parser("Eager training step against the CPU.", rounds=6).parse_args()
    if options.worker:
        work(options.worker, options.result, options.threads)
        return
    with tempfile.TemporaryDirectory() as traces:
        samples = in_turns(commands(options.threads, Path(traces)), options.rounds, options.threads)
    wall = {side: best_of(runs, "wall_ms") for side, runs in samples.items()}
    process = {side: best_of(runs, "process_ms") for side, runs in samples.items()}
    ratio, ratio_traced = wall["neuron"] / wall["cpu"], wall["traced"] / wall["cpu"]
    figures = {
        "ratio": round(ratio, 3),
        "ratio_traced": round(ratio_traced, 3),
        "ratio_process_time": round(process["neuron"] / process["cpu"], 3),
        "ratio_traced_process_time": round(process["traced"] / process["cpu"], 3),
        "best_wall_ms": wall,
        "best_process_ms": process,
        "target": TARGET,
        "target_traced": TARGET_TRACED,
        "target_met": ratio <= TARGET,
        "target_traced_met": ratio_traced <= TARGET_TRACED,
    }
    lines = [f"Small-Qwen3 step on this host, best of {options.rounds} processes × {STEPS} steps (measured)"]
    lines += [f"  {side:<8} wall {wall[side]:7.1f} ms   processor {process[side]:7.1f} ms" for side in wall]
    by_process = figures["ratio_process_time"], figures["ratio_traced_process_time"]
    lines += [
        f"neuron / cpu  {ratio:.3f} (processor {by_process[0]}); target ≤ {TARGET}: "
        f"{verdict(ratio <= TARGET)}",
        f"traced / cpu  {ratio_traced:.3f} (processor {by_process[1]}); target ≤ {TARGET_TRACED}: "
        f"{verdict(ratio_traced <= TARGET_TRACED)}",
        f"Host: {machine()}",
    ]
    publish("eager_step", options.json, samples, figures, lines)


if __name__ == "__main__":
    main()
