"""Reductions: over columns on the Vector engine, over rows by a product with ones on the Tensor engine."""

from __future__ import annotations

import functools
from typing import Any

from opentrn.core.builder import Builder
from opentrn.core.library.elementwise import CHUNK, FOLD_MAX, TILE, _pieces
from opentrn.core.machine import DEFAULT_CHIP
from opentrn.core.program import Program

BANK = 512  # fp32 columns of one PSUM bank
START = {"add": 0.0, "maximum": -3.0e38, "minimum": 3.0e38, "multiply": 1.0}


@functools.lru_cache(maxsize=128)
def rows_program(
    dtype: str,
    out: str,
    op: str = "add",
    function: str | None = None,
    folded: bool = False,
    chip: str = DEFAULT_CHIP,
) -> Program:
    """y[M] = reduce f(x[M, N]) over N. Symbols M, N, R (rows of a partition; 1 unless folded).

    function: an activation applied first, in the same pass of the Scalar engine where it sums. folded: N <=
    2048 and R x N <= 2048.
    """
    b = Builder(chip=chip, name=f"reduce_rows_{op}")
    m, n, r = (b.symbol(name) for name in "MNR")
    x, y = b.hbm("x", (m, n), dtype), b.hbm("y", (m, 1), out, kind="output")
    room = FOLD_MAX if folded else 1
    for first, rows, fold in _pieces(b, m, r):
        b.here()
        total = b.access(b.sbuf("total", (TILE, room), "float32"), ((room, rows), (1, fold)))
        b.emit("memset", dst=total, value=START[op])
        width_max = n if folded else CHUNK
        with b.loop(0, b.ceildiv(n, width_max)) as j:
            width = n if folded else b.min(CHUNK, n - j * CHUNK)
            tile = b.sbuf("x", (TILE, CHUNK), dtype)
            whole = b.access(tile, ((CHUNK, rows), (width_max, fold), (1, width)))
            source = b.access(x, ((r * n, rows), (n, fold), (1, width)), first * n + j * width_max)
            b.emit("dma_copy", dst=whole, src=source)
            part = b.access(b.sbuf("part", (TILE, room), "float32"), ((room, rows), (1, fold)))
            if function is not None:
                mapped = b.access(
                    b.sbuf("mapped", (TILE, CHUNK), "float32"), ((CHUNK, rows), (width_max, fold), (1, width))
                )
                b.emit("activation", dst=mapped, op=function, data=whole)
                whole = mapped
            b.emit("tensor_reduce", dst=part, op=op, data=whole, axis=[2])
            b.emit("tensor_tensor", dst=total, data1=total, data2=part, op=op)
        result = b.access(b.sbuf("y", (TILE, room), out), ((room, rows), (1, fold)))
        b.emit("tensor_scalar", dst=result, data=total, op0="multiply", operand0=1.0)
        b.emit("dma_copy", dst=b.access(y, ((r, rows), (1, fold)), first), src=result, engine="scalar")
    return b.finish()


@functools.lru_cache(maxsize=64)
def columns_program(dtype: str, out: str, function: str | None = None, chip: str = DEFAULT_CHIP) -> Program:
    """y[B, N] = sum over K of f(x[B, K, N]): 128 rows at a time, multiplied by ones, add up in PSUM.
    Symbols B, K, N.
    """
    b = Builder(chip=chip, name="sum_columns")
    batch, k, n = (b.symbol(name) for name in "BKN")
    x, y = b.hbm("x", (batch, k, n), dtype), b.hbm("y", (batch, n), out, kind="output")
    ones = b.sbuf("ones", (TILE, 1), "float32" if function else dtype)
    b.emit("memset", dst=ones, value=1.0)
    with b.loop(0, batch) as outer, b.loop(0, b.ceildiv(n, CHUNK)) as j:
        width = b.min(CHUNK, n - j * CHUNK)
        total = b.psum("total", (1, CHUNK), "float32")
        with b.loop(0, b.ceildiv(k, TILE)) as i:
            rows = b.min(TILE, k - i * TILE)
            b.here()
            tile = b.sbuf("x", (TILE, CHUNK), dtype)
            given = b.access(tile, ((CHUNK, rows), (1, width)))
            source = b.access(x, ((n, rows), (1, width)), (outer * k + i * TILE) * n + j * CHUNK)
            b.emit("dma_copy", dst=given, src=source)
            if function is not None:
                tile = b.sbuf("mapped", (TILE, CHUNK), "float32")
                mapped = b.access(tile, ((CHUNK, rows), (1, width)))
                b.emit("activation", dst=mapped, op=function, data=given)
            for bank in range(CHUNK // BANK):
                columns = b.min(BANK, width - bank * BANK)
                b.emit(
                    "nc_matmul",
                    dst=b.access(total, ((CHUNK, 1), (1, columns)), bank * BANK),
                    stationary=b.access(ones, ((1, rows), (1, 1))),
                    moving=b.access(tile, ((CHUNK, rows), (1, columns)), bank * BANK),
                )
        b.here()
        result = b.access(b.sbuf("y", (1, CHUNK), out), ((CHUNK, 1), (1, width)))
        b.emit("tensor_copy", dst=result, src=b.access(total, ((CHUNK, 1), (1, width))))
        target = b.access(y, ((n, 1), (1, width)), outer * n + j * CHUNK)
        b.emit("dma_copy", dst=target, src=result, engine="scalar")
    return b.finish()


@functools.lru_cache(maxsize=64)
def extremes_program(dtype: str, op: str, chip: str = DEFAULT_CHIP) -> Program:
    """y[B, N] = maximum or minimum over K of x[B, K, N]: element by element over row tiles, then over
    partitions on GpSimd. Symbols B, K, N.
    """
    b = Builder(chip=chip, name=f"columns_{op}")
    batch, k, n = (b.symbol(name) for name in "BKN")
    x, y = b.hbm("x", (batch, k, n), dtype), b.hbm("y", (batch, n), dtype, kind="output")
    with b.loop(0, batch) as outer, b.loop(0, b.ceildiv(n, CHUNK)) as j:
        width = b.min(CHUNK, n - j * CHUNK)
        b.here()
        best = b.sbuf("best", (TILE, CHUNK), "float32")
        b.emit("memset", dst=b.access(best, ((CHUNK, TILE), (1, width))), value=START[op])
        with b.loop(0, b.ceildiv(k, TILE)) as i:
            rows = b.min(TILE, k - i * TILE)
            b.here()
            given = b.access(b.sbuf("x", (TILE, CHUNK), dtype), ((CHUNK, rows), (1, width)))
            source = b.access(x, ((n, rows), (1, width)), (outer * k + i * TILE) * n + j * CHUNK)
            b.emit("dma_copy", dst=given, src=source)
            part = b.access(best, ((CHUNK, rows), (1, width)))
            b.emit("tensor_tensor", dst=part, data1=part, data2=given, op=op)
        b.here()
        one = b.access(b.sbuf("one", (1, CHUNK), "float32"), ((CHUNK, 1), (1, width)))
        b.emit("tensor_partition_reduce", dst=one, op=op, data=b.access(best, ((CHUNK, TILE), (1, width))))
        result = b.access(b.sbuf("y", (1, CHUNK), dtype), ((CHUNK, 1), (1, width)))
        b.emit("tensor_copy", dst=result, src=one)
        target = b.access(y, ((n, 1), (1, width)), outer * n + j * CHUNK)
        b.emit("dma_copy", dst=target, src=result, engine="scalar")
    return b.finish()


def row_folding(rows: int, columns: int) -> int:
    """Rows that share a partition: as many as fit one instruction, if there are enough rows for every
    partition.
    """
    if columns > CHUNK // 2 or rows <= TILE:
        return 1
    return max(1, min(FOLD_MAX, CHUNK // columns, -(-rows // TILE)))


def folded_symbols(rows: int, columns: int) -> dict[str, Any]:
    return {"M": rows, "N": columns, "R": row_folding(rows, columns)}
