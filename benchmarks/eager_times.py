"""Device times of eager operators: simulated from programs, beside the modelled formula for the same call.

    python -m benchmarks.eager_times [--json]

Shapes are those of Qwen3-32B at sequence 4096, of one new token, and of small tensors. `floor` is the larger
of the array's and the memory's least time; `host ms` is what timing the program for the first time costs this
host.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F

import opentrn
from opentrn.device import _C, attach, simulated

HIDDEN, WIDE, VOCABULARY, TOKENS = 5120, 25600, 151936, 4096


def cases() -> dict[str, tuple[Callable[..., Any], list[tuple[tuple[int, ...], torch.dtype]], float]]:
    """name → (call, operands, FLOPs of the Tensor engine in bf16 passes)."""
    bf, fp = torch.bfloat16, torch.float32
    heads = ((1, 64, TOKENS, 128), bf)
    small = ((16, 16), fp)

    def product(m: int, n: int, k: int, dtype: torch.dtype = bf) -> Any:
        passes = 4 if dtype == fp else 1
        return (torch.mm, [((m, k), dtype), ((k, n), dtype)], 2.0 * m * n * k * passes)

    def gradient(attention: Callable[..., Any]) -> Callable[..., Any]:
        def call(*operands: torch.Tensor) -> Any:
            leaves = [operand.requires_grad_() for operand in operands]
            return attention(*leaves).sum().backward()

        return call

    def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    attention = 2.0 * 2 * 64 * TOKENS * TOKENS * 128 / 2
    return {
        "mm up, 4096 tokens": product(TOKENS, WIDE, HIDDEN),
        "mm down, 4096 tokens": product(TOKENS, HIDDEN, WIDE),
        "mm keys, 4096 tokens": product(TOKENS, 1024, HIDDEN),
        "linear up, 4096 tokens": (
            F.linear,
            [((TOKENS, HIDDEN), bf), ((WIDE, HIDDEN), bf)],
            2.0 * TOKENS * WIDE * HIDDEN,
        ),
        "linear up, one token": (F.linear, [((1, HIDDEN), bf), ((WIDE, HIDDEN), bf)], 2.0 * WIDE * HIDDEN),
        "mm 2048^3 bf16": product(2048, 2048, 2048),
        "mm 2048^3 fp32": product(2048, 2048, 2048, fp),
        "mm 16^3 fp32": product(16, 16, 16, fp),
        "attention, causal": (causal, [heads] * 3, attention),
        "attention, one token": (
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
            [((1, 64, 1, 128), bf), ((1, 8, TOKENS, 128), bf), ((1, 8, TOKENS, 128), bf)],
            2.0 * 2 * 64 * TOKENS * 128,
        ),
        "attention, causal, with backward": (gradient(causal), [heads] * 3, 3.5 * attention),
        "add": (torch.add, [((TOKENS, HIDDEN), bf)] * 2, 0.0),
        "add, fp32 with a column": (torch.mul, [((TOKENS, HIDDEN), fp), ((TOKENS, 1), fp)], 0.0),
        "mul by a row": (torch.mul, [((TOKENS, HIDDEN), bf), ((HIDDEN,), bf)], 0.0),
        "silu": (F.silu, [((TOKENS, WIDE), bf)], 0.0),
        "cast to fp32": (lambda x: x.float(), [((TOKENS, HIDDEN), bf)], 0.0),
        "add 16 x 16": (torch.add, [small, small], 0.0),
        "mean of rows": (lambda x: x.mean(-1), [((TOKENS, HIDDEN), fp)], 0.0),
        "sum over rows": (lambda x: x.sum(0), [((TOKENS, HIDDEN), bf)], 0.0),
        "softmax": (lambda x: x.softmax(-1), [((TOKENS, TOKENS), bf)], 0.0),
        "log softmax of the logits": (lambda x: x.log_softmax(-1), [((TOKENS, VOCABULARY), fp)], 0.0),
        "layer norm": (
            lambda x, w, b: F.layer_norm(x, (HIDDEN,), w, b),
            [((TOKENS, HIDDEN), bf), ((HIDDEN,), bf), ((HIDDEN,), bf)],
            0.0,
        ),
        "foreach mul, 7 weights": (
            lambda *w: torch._foreach_mul(list(w), 0.9),
            [((HIDDEN, HIDDEN), bf)] * 7,
            0.0,
        ),
    }


def measure(
    call: Callable[..., Any], operands: list[tuple[tuple[int, ...], torch.dtype]]
) -> tuple[dict[str, int], float]:
    """Device totals of one call, and host ms."""
    with opentrn.dry_run():
        made = [torch.empty(shape, dtype=dtype, device="neuron") for shape, dtype in operands]
        before, start = _C.totals(0), perf_counter()
        call(*made)
        host = (perf_counter() - start) * 1e3
        after = _C.totals(0)
    return {name: after[name] - before[name] for name in after}, host


def row(name: str) -> dict[str, float | str]:
    call, operands, flops = cases()[name]
    numbers = attach.attached().device_parameters()
    peak = 2 * 128 * 128 * numbers["tensor_clock_ghz"] * numbers["cores_per_logical"]
    _C.use_programs(False)
    modelled, _ = measure(call, [(shape, dtype) for shape, dtype in operands])
    _C.use_programs(True)
    # Forgets every answer, so that the host time is that of a first call.
    simulated.install(attach.attached())
    found, host = measure(call, operands)
    floor = max(flops / peak, found["hbm_bytes"] / numbers["hbm_bytes_per_s"] * 1e9)
    busy = found["device_busy_ns"]
    return {
        "operator": name,
        "simulated_us": busy / 1e3,
        "modelled_us": modelled["device_busy_ns"] / 1e3,
        "ratio": busy / modelled["device_busy_ns"],
        "floor_us": floor / 1e3,
        "simulated_share": found["simulated_ns"] / busy,
        "host_ms": host,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.neuron.init()
    _C.set_memory_fraction(0, 1e4)
    print(f"{'operator':34}{'simulated µs':>14}{'modelled µs':>14}{'ratio':>8}{'floor µs':>12}{'host ms':>9}")
    rows = [row(name) for name in cases()]
    for entry in rows:
        print(
            f"{entry['operator']:34}{entry['simulated_us']:>14.1f}{entry['modelled_us']:>14.1f}{entry['ratio']:>8.2f}"
            f"{entry['floor_us']:>12.1f}{entry['host_ms']:>9.1f}"
        )
    if arguments.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
