"""y = silu(rmsnorm(x) @ w): normalisation, product and activation in one pass over the rows.

The mean square of a row is reduced by the Scalar engine while it squares; the row scale goes into the
transposition's input, so the product needs no epilogue but the activation.
"""

from __future__ import annotations

import functools
from typing import Any

from opentrn.core.builder import Builder
from opentrn.core.library.matmul import COLUMNS, TILE, identity_tile
from opentrn.core.machine import DEFAULT_CHIP
from opentrn.core.program import Program

HIDDEN_MAX = 8192  # elements of a row: its fp32 tile stays in SBUF


@functools.lru_cache(maxsize=16)
def rmsnorm_matmul_silu_program(
    dtype: str = "bfloat16", chip: str = DEFAULT_CHIP, epsilon: float = 1e-6
) -> Program:
    """Symbols M (rows), K (hidden, a multiple of 128), N (columns). Inputs x [M, K], w [K, N]; output y
    [M, N].

    The weight's gain is expected in w (folded), as inference code does.
    """
    b = Builder(chip=chip, name="rmsnorm_matmul_silu")
    m, n, k = b.symbol("M"), b.symbol("N"), b.symbol("K")
    x, w = b.hbm("x", (m, k), dtype), b.hbm("w", (k, n), dtype)
    y = b.hbm("y", (m, n), dtype, kind="output")
    identity = identity_tile(b, dtype)
    floor = b.sbuf("epsilon", (TILE, 1), "float32")
    b.emit("memset", dst=floor, value=epsilon)
    depth = b.ceildiv(k, TILE)
    with b.loop(0, b.ceildiv(m, TILE)) as i:
        rows = b.min(TILE, m - i * TILE)
        turned = _normalised_transposed(b, x, identity, floor, i, rows, k, depth, dtype)
        with b.loop(0, b.ceildiv(n, COLUMNS)) as j:
            columns = b.min(COLUMNS, n - j * COLUMNS)
            b.here()
            total = b.psum("total", (TILE, COLUMNS), "float32")
            target = b.access(total, ((COLUMNS, rows), (1, columns)))
            with b.loop(0, depth) as d:
                moving = b.sbuf("w", (TILE, COLUMNS), dtype)
                tile = b.access(moving, ((COLUMNS, TILE), (1, columns)))
                b.emit(
                    "dma_copy",
                    dst=tile,
                    src=b.access(w, ((n, TILE), (1, columns)), d * TILE * n + j * COLUMNS),
                )
                b.emit(
                    "nc_matmul",
                    dst=target,
                    moving=tile,
                    stationary=b.access(turned, ((HIDDEN_MAX, TILE), (1, rows)), d * TILE),
                )
            out = b.sbuf("y", (TILE, COLUMNS), dtype)
            tile = b.access(out, ((COLUMNS, rows), (1, columns)))
            b.emit("activation", dst=tile, op="silu", data=target)
            b.emit(
                "dma_copy",
                dst=b.access(y, ((n, rows), (1, columns)), i * TILE * n + j * COLUMNS),
                src=tile,
                engine="scalar",
            )
    return b.finish()


def _normalised_transposed(
    b: Builder, x: Any, identity: Any, floor: Any, i: Any, rows: Any, k: Any, depth: Any, dtype: str
) -> Any:
    """The tile [128, K / 128, 128] of block i's normalised rows, transposed."""
    b.here()
    raw = b.sbuf("x", (TILE, HIDDEN_MAX), dtype)
    row = b.access(raw, ((HIDDEN_MAX, rows), (1, k)))
    b.emit("dma_copy", dst=row, src=b.access(x, ((k, rows), (1, k)), i * TILE * k))
    square = b.sbuf("square", (TILE, HIDDEN_MAX), dtype)
    power = b.sbuf("power", (TILE, 1), "float32")
    scale = b.sbuf("scale", (TILE, 1), "float32")
    column = b.access(scale, ((1, rows), (1, 1)))
    b.emit(
        "activation_reduce",
        dst=b.access(square, ((HIDDEN_MAX, rows), (1, k))),
        op="square",
        data=row,
        reduce_op="add",
        reduce_res=b.access(power, ((1, rows), (1, 1))),
    )
    b.emit("tensor_scalar", dst=column, data=b.access(power, ((1, rows), (1, 1))), op0="divide", operand0=k)
    b.emit("activation", dst=column, op="rsqrt", data=column, bias=b.access(floor, ((1, rows), (1, 1))))
    b.emit("tensor_scalar", dst=row, data=row, op0="multiply", operand0=column)
    turned = b.sbuf("x_t", (TILE, HIDDEN_MAX), dtype)
    with b.loop(0, depth) as d:
        b.here()
        flipped = b.psum("flipped", (TILE, TILE), dtype)
        target = b.access(flipped, ((TILE, TILE), (1, rows)))
        b.emit(
            "nc_matmul",
            dst=target,
            is_transpose=True,
            moving=b.access(identity, ((TILE, rows), (1, rows))),
            stationary=b.access(raw, ((HIDDEN_MAX, rows), (1, TILE)), d * TILE),
        )
        b.emit("tensor_copy", dst=b.access(turned, ((HIDDEN_MAX, TILE), (1, rows)), d * TILE), src=target)
    return turned
