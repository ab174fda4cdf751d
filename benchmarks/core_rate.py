"""Time: instructions stepped per second, and a kernel of 131,000 instructions.

    python -m benchmarks.core_rate --json
    {"instructions_per_s": ..., "kernel_s": ..., "trace_us_per_instruction": ..., "cached_trace_us": ...}

instructions_per_s: a tiled matmul, timing only, extrapolation off. kernel_s: a Python-unrolled matmul of
131,000 instructions timed (extrapolation on). trace_us_per_instruction: that kernel written for NKI, from the
call to the finished program; build_us_per_instruction: the same through the builder alone. cached_trace_us: a
call of the NKI kernel whose program is known.
"""

from __future__ import annotations

import argparse
import json
import time as clock

import numpy as np

from opentrn.core import Builder, Program, time
from opentrn.core.library.matmul import matmul_program
from opentrn.nki.traced import trace


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


def matmul_kernel(lhs_t, rhs, columns, depth):
    """The same loops as an NKI kernel; all loops are Python's."""
    import nki.isa as nisa
    import nki.language as nl

    m, n = lhs_t.shape[1], columns * 512
    out = nl.ndarray((m, n), lhs_t.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(m // 128):
        left = nl.ndarray((128, depth * 128), lhs_t.dtype, buffer=nl.sbuf)
        source = lhs_t.ap([[m, 128], [128 * m, depth], [1, 128]], offset=i * 128)
        nisa.dma_copy(dst=left.ap([[depth * 128, 128], [128, depth], [1, 128]]), src=source)
        for j in nl.affine_range(columns):
            total = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
            for d in nl.affine_range(depth // 4):
                right = nl.ndarray((128, 2048), rhs.dtype, buffer=nl.sbuf)
                nisa.dma_copy(
                    dst=right.ap([[2048, 128], [512, 4], [1, 512]]),
                    src=rhs.ap([[n, 128], [128 * n, 4], [1, 512]], offset=d * 512 * n + j * 512),
                )
                for s in nl.affine_range(4):
                    nisa.nc_matmul(
                        dst=total,
                        stationary=left[:, (4 * d + s) * 128 : (4 * d + s + 1) * 128],
                        moving=right[:, s * 512 : (s + 1) * 512],
                    )
            done = nl.ndarray((128, 512), lhs_t.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=done, src=total)
            nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, j * 512 : (j + 1) * 512], src=done)
    return out


def trace_kernel(rows: int = 12, columns: int = 16, depth: int = 64) -> tuple[float, float]:
    """(µs of tracing for each instruction, µs of a call whose program is known)."""
    import nki.isa  # noqa: F401 - importing is not tracing

    a, b = np.zeros((depth * 128, rows * 128), np.float16), np.zeros((depth * 128, columns * 512), np.float16)
    arguments = (a, b, columns, depth)
    start = clock.perf_counter()
    traced, _ = trace(matmul_kernel, None, arguments, {})
    first = clock.perf_counter() - start
    known = float("inf")
    for _ in range(20):
        start = clock.perf_counter()
        assert trace(matmul_kernel, None, arguments, {})[0] is traced
        known = min(known, clock.perf_counter() - start)
    return 1e6 * first / traced.program.dynamic_count(), 1e6 * known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.parse_args()
    program, symbols = matmul_program("bfloat16"), {"M": 8192, "N": 8192, "K": 8192}
    time(program, {"M": 512, "N": 512, "K": 512})
    rate = 0.0
    for _ in range(9):  # each takes some 10 ms, the first one compiles the plan too
        start = clock.perf_counter()
        stepped = time(program, symbols, extrapolate=False).instructions
        rate = max(rate, stepped / (clock.perf_counter() - start))
    kernel, built, emitted = unrolled_matmul(rows=96)
    traced, known = trace_kernel()
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
                "trace_us_per_instruction": round(traced, 3),
                "build_us_per_instruction": round(1e6 * built / emitted, 3),
                "cached_trace_us": round(known, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
