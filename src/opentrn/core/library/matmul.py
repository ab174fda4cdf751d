"""Tiled matrix product c[M, N] = a[M, K] b[K, N], with M, N and K symbolic and ragged last tiles.

A block of 512 rows of `a` is transposed once on the Tensor engine, 128 x 128 at a time, and stays in SBUF
while
every 512 columns of `b` pass; four PSUM banks hold the block's results while the contraction runs. Four depth
tiles of `b` come in one DMA: the issue of a DMA costs more than moving 128 KiB.
"""

from __future__ import annotations

import functools
from typing import Any

from opentrn.core.builder import Builder
from opentrn.core.machine import DEFAULT_CHIP
from opentrn.core.program import Program

TILE = 128  # partitions: contraction rows of one matmul, output rows of one PSUM tile
COLUMNS = 512  # output columns of one matmul: one PSUM bank of fp32
BLOCK = 4  # row tiles of a block, and depth tiles of one DMA
DEPTH_MAX = 8192  # contraction length whose transposed rows fit in SBUF


@functools.lru_cache(maxsize=64)
def matmul_program(
    dtype: str = "bfloat16", chip: str = DEFAULT_CHIP, transposed: bool = False, out: str | None = None
) -> Program:
    """One program for all M, N and K <= 8192 (symbols). transposed: `a` is given as [K, M]; out: dtype of
    c.
    """
    b = Builder(chip=chip, name=f"matmul_{dtype}")
    m, n, k = b.symbol("M"), b.symbol("N"), b.symbol("K")
    left = b.hbm("a", (k, m) if transposed else (m, k), dtype)
    right = b.hbm("b", (k, n), dtype)
    result = b.hbm("c", (m, n), out or dtype, kind="output")
    identity = None if transposed else identity_tile(b, dtype)
    with b.loop(0, b.ceildiv(m, TILE * BLOCK)) as i:
        rows = [b.min(TILE, m - i * (TILE * BLOCK) - t * TILE) for t in range(BLOCK)]
        b.here()
        stationary = b.sbuf("a_t", (TILE, DEPTH_MAX // TILE, BLOCK * TILE), dtype)
        for first, deep, _ in _depth_blocks(b, k):
            _load_left(b, left, stationary, identity, i, rows, first, deep, m, k, dtype)
        with b.loop(0, b.ceildiv(n, COLUMNS)) as j:
            columns = b.min(COLUMNS, n - j * COLUMNS)
            b.here()
            total = b.psum("total", (TILE, BLOCK, COLUMNS), "float32")
            for first, deep, tiles in _depth_blocks(b, k):
                moving = b.sbuf("b", (TILE, tiles, COLUMNS), dtype)
                b.here()
                b.emit(
                    "dma_copy",
                    dst=b.access(moving, ((tiles * COLUMNS, deep), (COLUMNS, tiles), (1, columns))),
                    src=b.access(
                        right, ((n, deep), (n * TILE, tiles), (1, columns)), first * n + j * COLUMNS
                    ),
                )
                for step in range(tiles):
                    for t in range(BLOCK):
                        b.emit(
                            "nc_matmul",
                            dst=_bank(b, total, t, rows[t], columns),
                            moving=b.access(moving, ((tiles * COLUMNS, deep), (1, columns)), step * COLUMNS),
                            stationary=_turned(b, stationary, first, step, t, deep, rows[t]),
                        )
            b.here()
            for t in range(BLOCK):
                done = b.sbuf("c", (TILE, COLUMNS), out or dtype)
                tile = b.access(done, ((COLUMNS, rows[t]), (1, columns)))
                b.emit(
                    "tensor_copy",
                    dst=tile,
                    src=_bank(b, total, t, rows[t], columns),
                    engine="vector" if t % 2 else "scalar",
                )
                at = (i * (TILE * BLOCK) + t * TILE) * n + j * COLUMNS
                b.emit(
                    "dma_copy",
                    dst=b.access(result, ((n, rows[t]), (1, columns)), at),
                    src=tile,
                    engine="scalar",
                )
    return b.finish()


def _depth_blocks(b: Builder, k: Any) -> Any:
    """(first contraction row, rows of a tile, tiles) for whole blocks of four tiles, then for what is
    left; opens loops.
    """
    wide = TILE * BLOCK
    with b.loop(0, k // wide) as d:
        yield d * wide, TILE, BLOCK
    whole = (k // wide) * wide
    with b.loop(0, b.ceildiv(k - whole, TILE)) as d:
        yield whole + d * TILE, b.min(TILE, k - whole - d * TILE), 1


def _bank(b: Builder, total: Any, t: int, rows: Any, columns: Any) -> Any:
    return b.access(total, ((BLOCK * COLUMNS, rows), (1, columns)), t * COLUMNS)


def _turned(b: Builder, stationary: Any, first: Any, step: int, t: int, deep: Any, rows: Any) -> Any:
    """Transposed rows of row tile t: depth tile (first / 128 + step) lies at 512 times its number."""
    return b.access(
        stationary, ((DEPTH_MAX * BLOCK, deep), (1, rows)), (first + step * TILE) * BLOCK + t * TILE
    )


def _load_left(
    b: Builder,
    left: Any,
    stationary: Any,
    identity: Any,
    i: Any,
    rows: list[Any],
    first: Any,
    deep: Any,
    m: Any,
    k: Any,
    dtype: str,
) -> None:
    """Brings the rows of block i, contraction rows from `first` on, transposed into SBUF."""
    tiles = BLOCK if isinstance(deep, int) else 1
    for t in range(BLOCK):
        if identity is None:
            for step in range(tiles):
                b.emit(
                    "dma_copy",
                    dst=_turned(b, stationary, first, step, t, deep, rows[t]),
                    engine="scalar",
                    src=b.access(
                        left,
                        ((m, deep), (1, rows[t])),
                        (first + step * TILE) * m + i * (TILE * BLOCK) + t * TILE,
                    ),
                )
            continue
        block = b.sbuf("a", (TILE, tiles * TILE), dtype)
        length = TILE * tiles if tiles > 1 else deep
        b.emit(
            "dma_copy",
            dst=b.access(block, ((tiles * TILE, rows[t]), (1, length))),
            engine="scalar",
            src=b.access(left, ((k, rows[t]), (1, length)), (i * (TILE * BLOCK) + t * TILE) * k + first),
        )
        for step in range(tiles):
            turned = b.psum("a_turned", (TILE, TILE), dtype)
            target = b.access(turned, ((TILE, deep), (1, rows[t])))
            b.emit(
                "nc_matmul",
                dst=target,
                is_transpose=True,
                moving=b.access(identity, ((TILE, rows[t]), (1, rows[t]))),
                stationary=b.access(block, ((tiles * TILE, rows[t]), (1, deep)), step * TILE),
            )
            b.emit("tensor_copy", dst=_turned(b, stationary, first, step, t, deep, rows[t]), src=target)


def identity_tile(b: Builder, dtype: str) -> Any:
    """An SBUF tile with ones on its diagonal: what a transpose on the Tensor engine multiplies with."""
    tile = b.sbuf("identity", (TILE, TILE), dtype)
    b.emit("memset", dst=tile, value=1.0)
    b.emit(
        "affine_select",
        dst=tile,
        pattern=[[1, TILE]],
        channel_multiplier=-1,
        on_true_tile=tile,
        on_false_value=0.0,
        cmp_op="equal",
    )
    return tile
