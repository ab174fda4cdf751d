"""Tiled matrix product c[M, N] = a[M, K] b[K, N], with M, N and K symbolic and ragged last tiles.

The left operand is transposed on the Tensor engine, 128 x 128 at a time, unless it already lies transposed
([K, M]). A block of rows stays in SBUF while every column block passes.
"""

from __future__ import annotations

import functools

from opentrn.core.builder import Builder
from opentrn.core.program import Program

ROWS = 128  # output rows of one matmul: the partitions of PSUM
COLUMNS = 512  # output columns of one matmul: one PSUM bank of fp32
DEPTH = 128  # contraction rows of one matmul: the partitions of SBUF
DEPTH_RESIDENT = 8192  # contraction length up to which a block of transposed rows fits in SBUF


@functools.lru_cache(maxsize=64)
def matmul_program(dtype: str = "bfloat16", chip: str = "trn2", transposed: bool = False, out: str | None = None) -> Program:
    """One program for all M, N, K (symbols). transposed: `a` is given as [K, M].

    Loop order: row block, then column block, then depth; so `b` is read once per row block.
    """
    b = Builder(chip=chip, name=f"matmul_{dtype}")
    b.here()
    m, n, k = b.symbol("M"), b.symbol("N"), b.symbol("K")
    left = b.hbm("a", (k, m) if transposed else (m, k), dtype)
    right = b.hbm("b", (k, n), dtype)
    result = b.hbm("c", (m, n), out or dtype, kind="output")
    identity = b.sbuf("identity", (128, 128), dtype)
    if not transposed:
        _identity(b, identity)
    depth_tiles = b.ceildiv(k, DEPTH)
    with b.loop(0, b.ceildiv(m, ROWS), kind="sequential") as i:
        rows = b.min(ROWS, m - i * ROWS)
        stationary = b.sbuf("a_t", (DEPTH, DEPTH_RESIDENT // DEPTH, ROWS), dtype)
        width = DEPTH_RESIDENT // DEPTH * ROWS
        with b.loop(0, depth_tiles) as d:
            deep = b.min(DEPTH, k - d * DEPTH)
            tile = b.access(stationary, ((width, deep), (1, rows)), d * ROWS)
            if transposed:
                b.emit("dma_copy", dst=tile, src=b.access(left, ((m, deep), (1, rows)), d * DEPTH * m + i * ROWS))
            else:
                block = b.sbuf("a", (ROWS, DEPTH), dtype)
                turned = b.psum("a_turned", (DEPTH, ROWS), dtype)
                b.emit("dma_copy", dst=b.access(block, ((DEPTH, rows), (1, deep))),
                       src=b.access(left, ((k, rows), (1, deep)), i * ROWS * k + d * DEPTH))  # fmt: skip
                b.emit("nc_matmul", dst=b.access(turned, ((ROWS, deep), (1, rows))), is_transpose=True,
                       stationary=b.access(block, ((DEPTH, rows), (1, deep))),
                       moving=b.access(identity, ((128, rows), (1, rows))))  # fmt: skip
                b.emit("tensor_copy", dst=tile, src=b.access(turned, ((ROWS, deep), (1, rows))))
        with b.loop(0, b.ceildiv(n, COLUMNS)) as j:
            columns = b.min(COLUMNS, n - j * COLUMNS)
            total = b.psum("total", (ROWS, COLUMNS), "float32")
            total_tile = b.access(total, ((COLUMNS, rows), (1, columns)))
            with b.loop(0, depth_tiles) as d:
                deep = b.min(DEPTH, k - d * DEPTH)
                moving = b.sbuf("b", (DEPTH, COLUMNS), dtype)
                moving_tile = b.access(moving, ((COLUMNS, deep), (1, columns)))
                b.emit("dma_copy", dst=moving_tile,
                       src=b.access(right, ((n, deep), (1, columns)), d * DEPTH * n + j * COLUMNS))  # fmt: skip
                b.emit("nc_matmul", dst=total_tile, moving=moving_tile,
                       stationary=b.access(stationary, ((width, deep), (1, rows)), d * ROWS))  # fmt: skip
            done = b.sbuf("c", (ROWS, COLUMNS), out or dtype)
            done_tile = b.access(done, ((COLUMNS, rows), (1, columns)))
            b.emit("tensor_copy", dst=done_tile, src=total_tile)
            b.emit("dma_copy", dst=b.access(result, ((n, rows), (1, columns)), i * ROWS * n + j * COLUMNS), src=done_tile)
    return b.finish()


def _identity(b: Builder, tile: object) -> None:
    """1 on the diagonal: keep ones where column - partition == 0."""
    b.emit("memset", dst=tile, value=1.0)
    b.emit("affine_select", dst=tile, pattern=[[1, 128]], channel_multiplier=-1, on_true_tile=tile, on_false_value=0.0,
           cmp_op="equal")  # fmt: skip
