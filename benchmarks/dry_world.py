"""A dry training step of Qwen3-32B under FSDP2 as rank 0 of 64.

    python -m benchmarks.dry_world --json

rank0_of_64_s: time of this host for a step after the first. Clock, memory and operator trace are on.
"""

from __future__ import annotations

import argparse
import json
import statistics

import torch

import opentrn
from benchmarks.dry_run import NO_LIMIT, step_of, timed
from opentrn.device import _C
from opentrn.distributed import fake_world
from opentrn.predict import Plan, build, catalogue

PLAN = Plan("qwen3-32b", sequence=4096, precision="amp", cores=64)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.neuron.init()
    _C.set_memory_fraction(0, NO_LIMIT)
    with opentrn.dry_run(), fake_world(PLAN.cores):
        model = build.build(catalogue.find(PLAN.model), PLAN)
        step = step_of(model, "neuron", PLAN.sequence)
        _C.memory_log_start(0)
        _C.trace_start({"shapes": True, "frames": False})
        times = []
        for _ in range(arguments.repeats + 1):
            times += timed(step, 1)
            _C.trace_drain()
            _C.memory_log_drain(0)
    steady = statistics.median(times[1:])
    print(f"rank 0 of {PLAN.cores}: first step {times[0]:.3f} s, then {steady:.3f} s")
    if arguments.json:
        print(json.dumps({"rank0_of_64_s": steady, "first_s": times[0]}))


if __name__ == "__main__":
    main()
