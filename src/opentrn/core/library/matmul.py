"""Tiled matrix product c[M, N] = a[M, K] b[K, N], with M, N and K symbolic and ragged last tiles.

A block of 512 rows of `a` is transposed once on the Tensor engine, 128 x 128 at a time, and stays in SBUF
while every 512 columns of `b` pass; four PSUM banks hold the block's results while the contraction runs.
Four depth tiles of `b` come in one DMA: the issue of a DMA costs more than moving 128 KiB. Where `b` is
given as [N, K], 16-bit types are transposed by the DMA on their way and others by the Tensor engine.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opentrn.core.builder import Builder
from opentrn.core.machine import DEFAULT_CHIP
from opentrn.core.program import Program

TILE = 128  # partitions: contraction rows of one matmul, output rows of one PSUM tile
COLUMNS = 512  # output columns of one matmul: one PSUM bank of fp32
BLOCK = 4  # row tiles of a block, and depth tiles of one DMA
DEPTH_MAX = 8192  # contraction length whose transposed rows fit in SBUF
ADDENDS = ("none", "row", "whole")


@functools.lru_cache(maxsize=64)
def matmul_program(
    dtype: str = "bfloat16",
    chip: str = DEFAULT_CHIP,
    transposed: bool = False,
    out: str | None = None,
    *,
    right_transposed: bool = False,
    addend: str = "none",
    batched: bool = False,
) -> Program:
    """One program for all M, N and K <= 8192 (symbols).

    transposed: `a` is given as [K, M]; right_transposed: `b` as [N, K]; out: dtype of c. addend: "row" adds
    d [N], "whole" d [M, N]. batched: B such products (symbol B), every tensor but a row with a leading
    dimension.
    """
    b = Builder(chip=chip, name=f"matmul_{dtype}")
    m, n, k = b.symbol("M"), b.symbol("N"), b.symbol("K")
    count = b.symbol("B") if batched else 1
    shapes = {"a": (k, m) if transposed else (m, k), "b": (n, k) if right_transposed else (k, n)}
    lead = (count,) if batched else ()
    left, right = (b.hbm(name, (*lead, *shape), dtype) for name, shape in shapes.items())
    added = None if addend == "none" else b.hbm("d", (n,) if addend == "row" else (*lead, m, n), out or dtype)
    result = b.hbm("c", (*lead, m, n), out or dtype, kind="output")
    own = dtype_bytes(dtype) == 2 and right_transposed
    identity = None if transposed and (own or not right_transposed) else identity_tile(b, dtype)
    with b.loop(0, count) as batch:
        work = _Product(
            b,
            m,
            n,
            k,
            dtype,
            out or dtype,
            left,
            right,
            added,
            result,
            identity,
            transposed,
            right_transposed,
            addend,
        )
        work.batch = batch if batched else 0
        work.run()
    return b.finish()


def dtype_bytes(dtype: str) -> int:
    return 4 if dtype.endswith("32") else 1 if dtype.startswith("float8") else 2


@dataclass
class _Product:
    """One product of a program; `batch` is its number."""

    b: Builder
    m: Any
    n: Any
    k: Any
    dtype: str
    out: str
    left: Any
    right: Any
    added: Any
    result: Any
    identity: Any
    transposed: bool
    right_transposed: bool
    addend: str
    batch: Any = 0

    def run(self) -> None:
        b = self.b
        with b.loop(0, b.ceildiv(self.m, TILE * BLOCK)) as i:
            rows = [b.min(TILE, self.m - i * (TILE * BLOCK) - t * TILE) for t in range(BLOCK)]
            b.here()
            stationary = b.sbuf("a_t", (TILE, DEPTH_MAX // TILE, BLOCK * TILE), self.dtype)
            for first, deep, tiles in _depth_blocks(b, self.k):
                if self.transposed:
                    self._load_turned_left(stationary, i, first, deep, tiles)
                else:
                    self._load_left(stationary, i, rows, first, deep, tiles)
            with b.loop(0, b.ceildiv(self.n, COLUMNS)) as j:
                columns = b.min(COLUMNS, self.n - j * COLUMNS)
                b.here()
                total = b.psum("total", (TILE, BLOCK, COLUMNS), "float32")
                for first, deep, tiles in _depth_blocks(b, self.k):
                    moving = self._load_right(j, columns, first, deep, tiles)
                    for step in range(tiles):
                        for t in range(BLOCK):
                            b.emit(
                                "nc_matmul",
                                dst=_bank(b, total, t, rows[t], columns),
                                moving=b.access(
                                    moving, ((tiles * COLUMNS, deep), (1, columns)), step * COLUMNS
                                ),
                                stationary=_turned(b, stationary, first, step, t, deep, rows[t]),
                            )
                self._store(total, i, j, rows, columns)

    def _store(self, total: Any, i: Any, j: Any, rows: list[Any], columns: Any) -> None:
        b, n = self.b, self.n
        b.here()
        bias = None
        if self.addend == "row":
            bias = b.sbuf("d", (TILE, COLUMNS), self.out)
            b.emit(
                "dma_copy",
                dst=b.access(bias, ((COLUMNS, TILE), (1, columns))),
                src=b.access(self.added, ((0, TILE), (1, columns)), j * COLUMNS),
            )
        for t in range(BLOCK):
            done = b.sbuf("c", (TILE, COLUMNS), self.out)
            tile = b.access(done, ((COLUMNS, rows[t]), (1, columns)))
            at = (self.batch * self.m + i * (TILE * BLOCK) + t * TILE) * n + j * COLUMNS
            if self.addend == "whole":
                bias = b.sbuf("d", (TILE, COLUMNS), self.out)
                given = b.access(bias, ((COLUMNS, rows[t]), (1, columns)))
                b.emit("dma_copy", dst=given, src=b.access(self.added, ((n, rows[t]), (1, columns)), at))
            source = _bank(b, total, t, rows[t], columns)
            if bias is None:
                b.emit("tensor_copy", dst=tile, src=source, engine="vector" if t % 2 else "scalar")
            else:
                given = b.access(bias, ((COLUMNS, rows[t]), (1, columns)))
                b.emit("tensor_tensor", dst=tile, data1=source, data2=given, op="add")
            b.emit(
                "dma_copy",
                dst=b.access(self.result, ((n, rows[t]), (1, columns)), at),
                src=tile,
                engine="scalar",
            )

    def _load_right(self, j: Any, columns: Any, first: Any, deep: Any, tiles: int) -> Any:
        """Contraction rows from `first` on of 512 columns of `b`: [128, tiles, 512]."""
        b, n, k = self.b, self.n, self.k
        moving = b.sbuf("b", (TILE, tiles, COLUMNS), self.dtype)
        b.here()
        base = self.batch * k * n
        if not self.right_transposed:
            b.emit(
                "dma_copy",
                dst=b.access(moving, ((tiles * COLUMNS, deep), (COLUMNS, tiles), (1, columns))),
                src=b.access(
                    self.right, ((n, deep), (n * TILE, tiles), (1, columns)), base + first * n + j * COLUMNS
                ),
            )
            return moving
        at = base + j * COLUMNS * k + first
        if dtype_bytes(self.dtype) == 2:  # [columns, depth tile, depth] to [depth, depth tile, columns]
            b.emit(
                "dma_transpose",
                dst=b.access(moving, ((tiles * COLUMNS, deep), (COLUMNS, tiles), (1, columns))),
                src=b.access(self.right, ((k, columns), (TILE, tiles), (1, deep)), at),
            )
        else:
            self._turn_right(moving, columns, deep, tiles, at)
        return moving

    def _turn_right(self, moving: Any, columns: Any, deep: Any, tiles: int, at: Any) -> None:
        """Rows of 128 columns of `b` at a time; every depth tile of them is transposed into one PSUM bank."""
        b, k = self.b, self.k
        length = TILE * tiles if tiles > 1 else deep
        widths = [b.min(TILE, columns - part * TILE) for part in range(COLUMNS // TILE)]
        given = []
        for part, width in enumerate(widths):
            rows = b.sbuf("b_rows", (TILE, tiles * TILE), self.dtype)
            source = b.access(self.right, ((k, width), (1, length)), at + part * TILE * k)
            b.emit("dma_copy", dst=b.access(rows, ((tiles * TILE, width), (1, length))), src=source)
            given.append(rows)
        for step in range(tiles):
            turned = b.psum("b_turned", (TILE, COLUMNS), self.dtype)
            for part, width in enumerate(widths):
                b.emit(
                    "nc_matmul",
                    dst=b.access(turned, ((COLUMNS, deep), (1, width)), part * TILE),
                    stationary=b.access(given[part], ((tiles * TILE, width), (1, deep)), step * TILE),
                    moving=b.access(self.identity, ((TILE, width), (1, width))),
                    is_transpose=True,
                )
            target = b.access(moving, ((tiles * COLUMNS, deep), (1, columns)), step * COLUMNS)
            b.emit("tensor_copy", dst=target, src=b.access(turned, ((COLUMNS, deep), (1, columns))))

    def _load_turned_left(self, stationary: Any, i: Any, first: Any, deep: Any, tiles: int) -> None:
        """`a` is [K, M]: its rows are what the Tensor engine wants."""
        b, m = self.b, self.m
        rows = b.min(TILE * BLOCK, m - i * (TILE * BLOCK))
        b.here()
        b.emit(
            "dma_copy",
            dst=b.access(
                stationary, ((DEPTH_MAX * BLOCK, deep), (TILE * BLOCK, tiles), (1, rows)), first * BLOCK
            ),
            engine="scalar",
            src=b.access(
                self.left,
                ((m, deep), (m * TILE, tiles), (1, rows)),
                (self.batch * self.k + first) * m + i * (TILE * BLOCK),
            ),
        )

    def _load_left(self, stationary: Any, i: Any, rows: list[Any], first: Any, deep: Any, tiles: int) -> None:
        """Brings the rows of block i, contraction rows from `first` on, transposed into SBUF."""
        b, k = self.b, self.k
        for t in range(BLOCK):
            block = b.sbuf("a", (TILE, tiles * TILE), self.dtype)
            length = TILE * tiles if tiles > 1 else deep
            row = self.batch * self.m + i * (TILE * BLOCK) + t * TILE
            b.emit(
                "dma_copy",
                dst=b.access(block, ((tiles * TILE, rows[t]), (1, length))),
                engine="scalar",
                src=b.access(self.left, ((k, rows[t]), (1, length)), row * k + first),
            )
            for step in range(tiles):
                turned = b.psum("a_turned", (TILE, TILE), self.dtype)
                target = b.access(turned, ((TILE, deep), (1, rows[t])))
                b.emit(
                    "nc_matmul",
                    dst=target,
                    is_transpose=True,
                    moving=b.access(self.identity, ((TILE, rows[t]), (1, rows[t]))),
                    stationary=b.access(block, ((tiles * TILE, rows[t]), (1, deep)), step * TILE),
                )
                b.emit("tensor_copy", dst=_turned(b, stationary, first, step, t, deep, rows[t]), src=target)


def _depth_blocks(b: Builder, k: Any) -> Iterator[tuple[Any, Any, int]]:
    """(first contraction row, rows of a tile, tiles) for whole blocks of four tiles, then for what is left;
    opens loops.
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
