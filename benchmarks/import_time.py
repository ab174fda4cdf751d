"""What `import torch` takes longer with the device loaded by itself than without, in ms.

python -m benchmarks.import_time [--json]

Target: at most 150 ms. Without: TORCH_DEVICE_BACKEND_AUTOLOAD=0, PyTorch's own switch.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.common import in_turns, machine, parser, publish, verdict

TARGET_MS = 150.0
SWITCH = "TORCH_DEVICE_BACKEND_AUTOLOAD"
PROGRAM = """
import json, sys, time
begin, used = time.perf_counter(), time.process_time()
import torch
wall, process = time.perf_counter() - begin, time.process_time() - used
loaded = hasattr(torch, "neuron")
with open(sys.argv[1], "w") as file:
    json.dump({"wall_ms": 1e3 * wall, "process_ms": 1e3 * process, "device_loaded": loaded}, file)
"""


def command(result: Path) -> list[str]:
    return [sys.executable, "-c", PROGRAM, str(result)]


def main() -> None:
    options = parser("Import time with and without the device.", rounds=15).parse_args()
    environment = {"without": {SWITCH: "0"}, "with": {SWITCH: "1"}}
    sides = {"without": command, "with": command}
    # The first round fills the file cache and the byte-code caches of both.
    in_turns(sides, 1, options.threads, environment)
    samples = in_turns(sides, options.rounds, options.threads, environment)
    for side, runs in samples.items():
        if any(run["device_loaded"] != (side == "with") for run in runs):
            sys.exit(f"import torch {side} the device: torch.neuron says otherwise; is opentrn installed?")
    wall = {side: min(run["wall_ms"] for run in runs) for side, runs in samples.items()}
    process = {side: min(run["process_ms"] for run in runs) for side, runs in samples.items()}
    extra = wall["with"] - wall["without"]
    figures = {
        "extra_ms": round(extra, 1),
        "extra_process_ms": round(process["with"] - process["without"], 1),
        "best_wall_ms": wall,
        "best_process_ms": process,
        "target_ms": TARGET_MS,
        "target_met": extra <= TARGET_MS,
    }
    lines = [f"import torch, best of {options.rounds} processes (measured)"]
    lines += [f"  {side:<8} wall {wall[side]:7.0f} ms   processor {process[side]:7.0f} ms" for side in wall]
    lines += [
        f"extra {extra:.0f} ms (processor {figures['extra_process_ms']:.0f} ms); "
        f"target ≤ {TARGET_MS:.0f} ms: {verdict(extra <= TARGET_MS)}",
        f"Host: {machine()}",
    ]
    publish("import_time", options.json, samples, figures, lines)


if __name__ == "__main__":
    main()
