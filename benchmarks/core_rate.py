"""Time: instructions stepped per second, and a kernel of 131,000 instructions.

    python -m benchmarks.core_rate --json
    {"instructions_per_s": ..., "kernel_s": ..., "trace_us_per_instruction": ...}

instructions_per_s: a tiled matmul, timing only, extrapolation off. kernel_s: a Python-unrolled matmul of
131,000
instructions timed (extrapolation on). trace_us_per_instruction: building that kernel through the builder.
"""

from __future__ import annotations

import argparse
import json
import time as clock

from opentrn.core import Builder, Program, time
from opentrn.core.library.matmul import matmul_program


def unrolled_matmul(rows: int = 32, columns: int = 16, depth: int = 64) -> tuple[Program, float, int]:
    """A kernel as a front end traces it: Python loops with marked iterations. (program, seconds,
    instructions).
    """
    start = clock.perf_counter()
    b = Builder(name="unrolled")
    m, n, k = rows * 128, columns * 512, depth * 128
    a, w = b.hbm("a_t", (k, m), "bfloat16"), b.hbm("b", (k, n), "bfloat16")
    c = b.hbm("c", (m, n), "bfloat16", kind="output")
    emitted = 0
    b.unroll_begin()
    for i in range(rows):
        b.unroll_iteration()
        left = b.sbuf("left", (128, depth * 128), "bfloat16")
        b.emit(
            "dma_copy",
            dst=b.access(left, ((depth * 128, 128), (128, depth), (1, 128))),
            src=b.access(a, ((m, 128), (128 * m, depth), (1, 128)), i * 128),
        )
        b.unroll_begin()
        for j in range(columns):
            b.unroll_iteration()
            total = b.psum("total", (128, 512), "float32")
            b.unroll_begin()
            for d in range(depth // 4):
                b.unroll_iteration()
                right = b.sbuf("right", (128, 4 * 512), "bfloat16")
                b.emit(
                    "dma_copy",
                    dst=b.access(right, ((2048, 128), (512, 4), (1, 512))),
                    src=b.access(w, ((n, 128), (128 * n, 4), (1, 512)), d * 512 * n + j * 512),
                )
                for s in range(4):
                    b.emit(
                        "nc_matmul",
                        dst=b.access(total),
                        moving=b.access(right, ((2048, 128), (1, 512)), s * 512),
                        stationary=b.access(left, ((depth * 128, 128), (1, 128)), (4 * d + s) * 128),
                    )
                emitted += 5
            b.unroll_end()
            out = b.sbuf("out", (128, 512), "bfloat16")
            b.emit("tensor_copy", dst=out, src=total)
            b.emit("dma_copy", dst=b.access(c, ((n, 128), (1, 512)), i * 128 * n + j * 512), src=out)
            emitted += 2
        b.unroll_end()
        emitted += 1
    b.unroll_end()
    program = b.finish()
    return program, clock.perf_counter() - start, emitted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.parse_args()
    program, symbols = matmul_program("bfloat16"), {"M": 8192, "N": 8192, "K": 8192}
    time(program, {"M": 512, "N": 512, "K": 512})
    rate = 0.0
    for _ in range(3):
        start = clock.perf_counter()
        stepped = time(program, symbols, extrapolate=False).instructions
        rate = max(rate, stepped / (clock.perf_counter() - start))
    kernel, traced, emitted = unrolled_matmul(rows=96)
    seconds = float("inf")
    for _ in range(3):
        fresh = Program.from_bytes(kernel.to_bytes())
        start = clock.perf_counter()
        time(fresh)
        seconds = min(seconds, clock.perf_counter() - start)
    print(
        json.dumps(
            {
                "instructions_per_s": round(rate),
                "kernel_s": round(seconds, 5),
                "kernel_instructions": emitted,
                "trace_us_per_instruction": round(1e6 * traced / emitted, 3),
            }
        )
    )


if __name__ == "__main__":
    main()
