"""What `make demo` shows: the same training on the virtual Trainium2 and on the CPU, and the chip's figures.

    python examples/demo.py

Runs train_qwen3.py twice, each in a process of its own: under `opentrn run` on `neuron`, and plainly on the
CPU. Then prints the losses side by side and the device's memory over time. Exit code 1 if the losses differ
by more than float tolerance.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from opentrn.explorer import units
from opentrn.trace.reader import Trace

SCRIPT = Path(__file__).parent / "train_qwen3.py"
OPENTRN = Path(sysconfig.get_path("scripts")) / "opentrn"
# Sums of floats in another order differ in the last bits, and training amplifies that.
TOLERANCE = 1e-3
WIDTH, HEIGHT = 72, 12
# Character and colour of each category of memory; the character alone tells them apart in a file.
FILLS = {
    "parameter": ("█", "blue"),
    "optimizer state": ("▓", "magenta"),
    "gradient": ("▚", "red"),
    "activation": ("░", "green"),
    "temporary": ("▒", "yellow"),
    "input": ("i", "cyan"),
    "buffer": ("b", "bright_blue"),
    "kv cache": ("k", "bright_green"),
    "other": ("o", "white"),
}


def train(device: str, steps: int, out: Path) -> dict[str, Any]:
    """The JSON line of the training on `device`; SystemExit with its exit code if it fails."""
    result = out / f"{device}.json"
    arguments = [str(SCRIPT), "--device", device, "--steps", str(steps), "--result", str(result)]
    watched = [str(OPENTRN), "run", "--trace", str(out / "trace"), "--report", str(out / "report.html")]
    completed = subprocess.run([*(watched if device == "neuron" else [sys.executable]), *arguments])
    if completed.returncode:
        sys.exit(completed.returncode)
    return json.loads(result.read_text(encoding="utf-8"))


def losses_table(neuron: list[float], cpu: list[float]) -> Table:
    """About ten steps of both runs."""
    table = Table(title="Loss, nats per byte", title_justify="left", box=None, padding=(0, 2))
    for name in ("step", "neuron", "cpu", "difference"):
        table.add_column(name, justify="right")
    every = max(len(neuron) // 10, 1)
    for step in sorted({*range(0, len(neuron), every), len(neuron) - 1}):
        difference = abs(neuron[step] - cpu[step])
        table.add_row(str(step + 1), f"{neuron[step]:.6f}", f"{cpu[step]:.6f}", f"{difference:.1e}")
    return table


def memory_chart(run: dict[str, Any]) -> Text:
    """The device's memory by category over the training step that holds the run's peak."""
    times, categories = run["stack"]["times"], run["stack"]["categories"]
    top = max(map(sum, zip(*categories.values(), strict=True)))
    lasting = sorted(categories, key=lambda name: max(categories[name]) - min(categories[name]))
    chart = Text()
    for row in range(HEIGHT, 0, -1):
        level = (row - 0.5) * top / HEIGHT
        chart.append(f"{units.size(row * top / HEIGHT):>10} │")
        for column in range(WIDTH):
            chart.append(*cell(categories, lasting, column * (len(times) - 1) // (WIDTH - 1), level))
        chart.append("\n")
    chart.append(" " * 11 + "└" + "─" * WIDTH + "\n")
    first, last = units.time(times[0]), units.time(times[-1])
    chart.append(" " * 12 + first + last.rjust(WIDTH - len(first)) + "  virtual time\n" + " " * 12)
    for name in lasting:
        if max(categories[name]) * HEIGHT * 2 >= top:
            chart.append(*FILLS[name]).append(f" {name}   ")
    return chart


def cell(categories: dict[str, list[int]], order: list[str], point: int, level: float) -> tuple[str, str]:
    """Character and colour of the chart at a height of `level` bytes."""
    below = 0
    for name in order:
        below += categories[name][point]
        if below > level:
            return FILLS[name]
    return " ", ""


def main() -> None:
    parser = argparse.ArgumentParser(description="The same training on the virtual Trainium2 and on the CPU.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="replaced if there")
    options = parser.parse_args()
    begin = time.perf_counter()
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    neuron = train("neuron", options.steps, options.out)
    cpu = train("cpu", options.steps, options.out)
    trace = Trace(options.out / "trace")

    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(losses_table(neuron["losses"], cpu["losses"]))
    console.print("\n[bold]Memory of the virtual device, the training step with the highest peak[/bold]")
    console.print(memory_chart(trace.metadata["run"]))
    same_weights = neuron["initial_weights"] == cpu["initial_weights"]
    difference = max(abs(a - b) for a, b in zip(neuron["losses"], cpu["losses"], strict=True))
    agree = same_weights and difference <= TOLERANCE
    first, last = neuron["losses"][0], sum(neuron["losses"][-10:]) / len(neuron["losses"][-10:])
    console.print(
        f"\nSame initial weights: {same_weights}. Loss on neuron: {first:.3f} → {last:.3f}."
        f"\nMaximum difference to the CPU's losses: {difference:.1e}"
        f" ({'the same' if agree else 'NOT the same'}; tolerance {TOLERANCE:.0e})."
        f"\nMeasured on this host: training {neuron['seconds']:.1f} s on neuron, {cpu['seconds']:.1f} s on"
        f" the CPU; everything {time.perf_counter() - begin:.0f} s."
        f"\nThe page: {options.out / 'report.html'}. The trace: {options.out / 'trace'}",
        highlight=False,
    )
    sys.exit(0 if agree else 1)


if __name__ == "__main__":
    main()
