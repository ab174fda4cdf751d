"""Values of NKI kernels: the virtual core against a straightforward NumPy interpretation.

    python -m benchmarks.nki_speed --json

Each kernel is traced once per engine and executed; the time of a whole call (arguments, cached program,
execution, results) is compared, median of the repetitions. The interpretation is tests/nki/oracle, which is
also the reference of the property tests. The last line is one JSON object: `ratio` is the geometric mean of
oracle time over core time; higher is better.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "nki"))

import opentrn.nki  # isort: skip
import nki.isa as nisa
import nki.language as nl
import oracle

import nki
from opentrn.nki import engine_hook


@nki.jit
def matmul(lhs_t, rhs):
    """bf16 [K, M].T @ [K, N], tiles of 128 x 128 x 512."""
    k, m = lhs_t.shape
    n = rhs.shape[1]
    out = nl.ndarray((m, n), lhs_t.dtype, nl.shared_hbm)
    for i in nl.affine_range(m // 128):
        for j in nl.affine_range(n // 512):
            total = nl.ndarray((128, 512), nl.float32, nl.psum)
            for p in nl.affine_range(k // 128):
                a, b = (
                    nl.ndarray((128, 128), lhs_t.dtype, nl.sbuf),
                    nl.ndarray((128, 512), rhs.dtype, nl.sbuf),
                )
                nisa.dma_copy(dst=a, src=lhs_t[p * 128 : (p + 1) * 128, i * 128 : (i + 1) * 128])
                nisa.dma_copy(dst=b, src=rhs[p * 128 : (p + 1) * 128, j * 512 : (j + 1) * 512])
                nisa.nc_matmul(total, a, b)
            tile = nl.ndarray((128, 512), lhs_t.dtype, nl.sbuf)
            nisa.tensor_copy(tile, total)
            nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, j * 512 : (j + 1) * 512], src=tile)
    return out


@nki.jit
def rmsnorm_silu(x, weight):
    """RMSNorm with weights and SiLU over rows of 128."""
    rows, columns = x.shape
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    w = nl.broadcast_to(nl.load(weight), (128, columns))
    for i in nl.affine_range(rows // 128):
        tile = nl.load(x[i * 128 : (i + 1) * 128])
        squares, total = (
            nl.ndarray((128, columns), nl.float32, nl.sbuf),
            nl.ndarray((128, 1), nl.float32, nl.sbuf),
        )
        nisa.activation_reduce(squares, nl.square, tile, reduce_op=nl.add, reduce_res=total)
        nisa.tensor_scalar(total, total, nl.multiply, 1.0 / columns, op1=nl.add, operand1=1e-6)
        nisa.activation(total, nl.rsqrt, total)
        nisa.scalar_tensor_tensor(
            dst=squares, data=tile, op0=nl.multiply, operand0=total, op1=nl.multiply, operand1=w
        )
        result = nl.ndarray((128, columns), x.dtype, nl.sbuf)
        nisa.activation(result, nl.silu, squares)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128], src=result)
    return out


@nki.jit
def softmax(x):
    """Softmax over rows of 128."""
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    for i in nl.affine_range(x.shape[0] // 128):
        nl.store(out[i * 128 : (i + 1) * 128], nl.softmax(nl.load(x[i * 128 : (i + 1) * 128]), 1))
    return out


@nki.jit
def scan(x, y):
    """A linear recurrence along rows."""
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    for i in nl.affine_range(x.shape[0] // 128):
        a, b = nl.load(x[i * 128 : (i + 1) * 128]), nl.load(y[i * 128 : (i + 1) * 128])
        tile = nl.ndarray(a.shape, x.dtype, nl.sbuf)
        nisa.tensor_tensor_scan(tile, a, b, 0.0, nl.multiply, nl.add)
        nl.store(out[i * 128 : (i + 1) * 128], tile)
    return out


@nki.jit
def top_values(x):
    """Eight largest values of each row and where they are."""
    values = nl.ndarray((x.shape[0], 8), x.dtype, nl.shared_hbm)
    places = nl.ndarray((x.shape[0], 8), nl.uint32, nl.shared_hbm)
    for i in nl.affine_range(x.shape[0] // 128):
        tile = nl.load(x[i * 128 : (i + 1) * 128])
        top, where = nl.ndarray((128, 8), x.dtype, nl.sbuf), nl.ndarray((128, 8), nl.uint32, nl.sbuf)
        nisa.max8(top, tile)
        nisa.nc_find_index8(where, tile, top)
        nl.store(values[i * 128 : (i + 1) * 128], top)
        nl.store(places[i * 128 : (i + 1) * 128], where)
    return values, places


@nki.jit
def gather(table, rows):
    """Rows of a table by index, 128 at a time."""
    out = nl.ndarray((rows.shape[0], table.shape[1]), table.dtype, nl.shared_hbm)
    width = table.shape[1]
    for i in nl.affine_range(rows.shape[0] // 128):
        index = nl.load(rows[i * 128 : (i + 1) * 128])
        tile = nl.ndarray((128, width), table.dtype, nl.sbuf)
        nisa.dma_copy(dst=tile, src=table.ap([[width, 128], [1, width]], vector_offset=index, indirect_dim=0))
        nl.store(out[i * 128 : (i + 1) * 128], tile)
    return out


def cases() -> list[tuple[str, Any, list[np.ndarray]]]:
    """(name, kernel, inputs)."""
    import ml_dtypes

    rng = np.random.default_rng(0)

    def bf16(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32).astype(ml_dtypes.bfloat16)

    def f32(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    return [
        ("matmul", matmul, [bf16(1024, 512), bf16(1024, 1024)]),
        ("rmsnorm_silu", rmsnorm_silu, [bf16(512, 2048), f32(1, 2048)]),
        ("softmax", softmax, [bf16(1024, 1024)]),
        ("scan", scan, [f32(512, 1024) * 0.5, f32(512, 1024)]),
        ("top_values", top_values, [f32(512, 256)]),
        ("gather", gather, [bf16(4096, 256), rng.integers(0, 4096, (1024, 1)).astype(np.int32)]),
    ]


def seconds(call: Callable[[], Any], repetitions: int) -> float:
    """Median time of a call after one to warm up."""
    call()
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    ratios: dict[str, float] = {}
    for name, kernel, inputs in cases():
        simulated = functools.partial(opentrn.nki.simulate(kernel), *inputs)
        mine = seconds(simulated, options.repetitions)
        old = engine_hook.use(oracle)
        try:
            theirs = seconds(simulated, options.repetitions)
        finally:
            engine_hook.use(old)
        ratios[name] = theirs / mine
        if not options.json:
            print(
                f"{name:<14} core {mine * 1e3:9.2f} ms   NumPy {theirs * 1e3:9.2f} ms   {ratios[name]:6.1f} x"
            )
    print(json.dumps({"ratio": float(np.exp(np.mean(np.log(list(ratios.values()))))), **ratios}))


if __name__ == "__main__":
    main()
