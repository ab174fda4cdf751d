"""Flash attention, backward: dq, dk and dv from the saved row sums, the probabilities computed again block
by block.

Per head the queries, the output's gradients and dq stay in SBUF; 512 keys at a time pass over all query
tiles, dk and dv of the block adding up in PSUM. Two query tiles go through a block together, each step for
both before the next one.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from opentrn.core.builder import Builder
from opentrn.core.library.matmul import COLUMNS, TILE, identity_tile
from opentrn.core.machine import DEFAULT_CHIP
from opentrn.core.program import Program

PAIR = 2
STEPS = COLUMNS // TILE
QUERIES_MAX = 8192


@functools.lru_cache(maxsize=32)
def flash_attention_backward_program(
    head: int = 128, dtype: str = "bfloat16", causal: bool = False, chip: str = DEFAULT_CHIP, room: int = 4096
) -> Program:
    """Symbols H (heads), S (queries, a multiple of 256, at most `room`), T (keys, a multiple of 512); D <=
    128.

    q, o, do [H, S, D], k, v [H, T, D], lse [H, S] (logarithms of the row sums); dq, dk, dv. causal: needs S
    == T.
    """
    b = Builder(chip=chip, name=f"flash_attention_backward_{head}_{dtype}")
    h, s, t = b.symbol("H"), b.symbol("S"), b.symbol("T")
    work = _Work(b, h, s, t, head, dtype, room)
    with b.loop(0, h) as n:
        work.head_begins(n)
        with b.loop(0, s // TILE) as i:
            work.prepare(i)
        with b.loop(0, t // COLUMNS) as j:
            work.keys_begin(j)
            first = j * (STEPS // PAIR) if causal else 0
            diagonal = STEPS // PAIR if causal else 0
            if causal:
                with b.loop(first, first + diagonal) as i:
                    work.pair(i, j, masked=True)
            with b.loop(first + diagonal, s // (TILE * PAIR)) as i:
                work.pair(i, j, masked=False)
            work.keys_end(j)
        with b.loop(0, s // TILE) as i:
            work.store_queries(i)
    return b.finish()


class _Work:
    def __init__(self, b: Builder, h: Any, s: Any, t: Any, head: int, dtype: str, room: int) -> None:
        self.b, self.s, self.t, self.head, self.dtype, self.room = b, s, t, head, dtype, room
        self.scale = 1.0 / math.sqrt(head)
        self.tensors = {
            name: b.hbm(name, (h, length, head), dtype)
            for name, length in (("q", s), ("k", t), ("v", t), ("o", s), ("do", s))
        }
        self.lse = b.hbm("lse", (h, s, 1), "float32")
        self.results = {
            name: b.hbm(name, (h, length, head), dtype, kind="output")
            for name, length in (("dq", s), ("dk", t), ("dv", t))
        }
        self.identity = identity_tile(b, dtype)

    def head_begins(self, n: Any) -> None:
        """Places of what a head keeps."""
        b, tiles = self.b, self.room // TILE
        b.here()
        self.n = n
        self.turned = {name: b.sbuf(f"{name}_t", (self.head, self.room), self.dtype) for name in ("q", "do")}
        self.rows = {
            name: b.sbuf(f"{name}_rows", (TILE, tiles, self.head), self.dtype) for name in ("q", "do")
        }
        self.minus_lse, self.minus_delta = (
            b.sbuf(x, (TILE, tiles), "float32") for x in ("minus_lse", "minus_delta")
        )
        self.dq = b.sbuf("dq", (TILE, tiles, self.head), "float32")

    def _row_tile(self, name: str, i: Any) -> Any:
        return self.b.access(
            self.rows[name], ((self.room // TILE * self.head, TILE), (1, self.head)), i * self.head
        )

    def _statistic(self, tile: Any, i: Any) -> Any:
        return self.b.access(tile, ((self.room // TILE, TILE), (1, 1)), i)

    def _dq_tile(self, i: Any) -> Any:
        return self.b.access(self.dq, ((self.room // TILE * self.head, TILE), (1, self.head)), i * self.head)

    def _in_hbm(self, tensor: Any, row: Any) -> Any:
        return self.b.access(tensor, ((self.head, TILE), (1, self.head)), row * self.head)

    def _transpose(self, source: Any, target: Any) -> None:
        """[128, D] to [D, 128]."""
        turned = self.b.psum("turned", (self.head, TILE), self.dtype)
        self.b.emit("nc_matmul", dst=turned, stationary=source, moving=self.identity, is_transpose=True)
        self.b.emit("tensor_copy", dst=target, src=turned, engine="scalar")

    def prepare(self, i: Any) -> None:
        """Query tile i: loads it, the gradient and the output; the row sums of do * o; clears dq."""
        b = self.b
        b.here()
        row = self.n * self.s + i * TILE
        for name in ("q", "do"):
            tile = self._row_tile(name, i)
            b.emit("dma_copy", dst=tile, src=self._in_hbm(self.tensors[name], row), engine="scalar")
            self._transpose(tile, b.access(self.turned[name], ((self.room, self.head), (1, TILE)), i * TILE))
        out, product = (
            b.sbuf("o", (TILE, self.head), self.dtype),
            b.sbuf("product", (TILE, self.head), "float32"),
        )
        b.emit("dma_copy", dst=out, src=self._in_hbm(self.tensors["o"], row))
        b.emit("tensor_tensor", dst=product, data1=out, data2=self._row_tile("do", i), op="multiply")
        delta = self._statistic(self.minus_delta, i)
        b.emit("tensor_reduce", dst=delta, op="add", data=product, axis=[1], negate=True)
        lse = b.sbuf("lse", (TILE, 1), "float32")
        b.emit("dma_copy", dst=lse, src=b.access(self.lse, ((1, TILE), (1, 1)), row))
        b.emit(
            "tensor_scalar", dst=self._statistic(self.minus_lse, i), data=lse, op0="multiply", operand0=-1.0
        )
        b.emit("memset", dst=self._dq_tile(i), value=0.0)

    def keys_begin(self, j: Any) -> None:
        """512 keys and values, as rows and transposed; dk and dv begin at zero."""
        b, head = self.b, self.head
        b.here()
        self.key_rows = b.sbuf("k_rows", (TILE, STEPS, head), self.dtype)
        value_rows = b.sbuf("v_rows", (TILE, STEPS, head), self.dtype)
        self.keys, self.values = (b.sbuf(f"{x}_t", (head, COLUMNS), self.dtype) for x in "kv")
        for name, rows, turned in (("k", self.key_rows, self.keys), ("v", value_rows, self.values)):
            source = b.access(
                self.tensors[name],
                ((head, TILE), (TILE * head, STEPS), (1, head)),
                (self.n * self.t + j * COLUMNS) * head,
            )
            b.emit(
                "dma_copy", dst=b.access(rows, ((STEPS * head, TILE), (head, STEPS), (1, head))), src=source
            )
            for step in range(STEPS):
                tile = b.access(rows, ((STEPS * head, TILE), (1, head)), step * head)
                self._transpose(tile, b.access(turned, ((COLUMNS, head), (1, TILE)), step * TILE))
        self.sums = {name: b.psum(f"{name}_sum", (TILE, STEPS, head), "float32") for name in ("dk", "dv")}

    def pair(self, i: Any, j: Any, masked: bool) -> None:
        """Two query tiles against the block's keys."""
        b = self.b
        tiles = [i * PAIR + g for g in range(PAIR)]
        b.here()
        scores = [self._product("scores", self.turned["q"], tile, self.keys) for tile in tiles]
        slopes = [self._product("slopes", self.turned["do"], tile, self.values) for tile in tiles]
        weights = [b.sbuf("weights", (TILE, COLUMNS), self.dtype) for _ in tiles]
        for tile, score, weight in zip(tiles, scores, weights, strict=True):
            b.emit(
                "activation",
                dst=weight,
                op="exp",
                data=score,
                scale=self.scale,
                bias=self._statistic(self.minus_lse, tile),
            )
            if masked:
                b.emit(
                    "affine_select",
                    dst=weight,
                    pattern=[[-1, COLUMNS]],
                    channel_multiplier=1,
                    on_true_tile=weight,
                    on_false_value=0.0,
                    offset=tile * TILE - j * COLUMNS,
                    cmp_op="greater_equal",
                )
        for tile, weight in zip(tiles, weights, strict=True):
            self._add("dv", weight, "do", tile)
        moved = []
        for tile, slope, weight in zip(tiles, slopes, weights, strict=True):
            centred, change = (b.sbuf(x, (TILE, COLUMNS), self.dtype) for x in ("centred", "change"))
            b.emit(
                "activation",
                dst=centred,
                op="identity",
                data=slope,
                bias=self._statistic(self.minus_delta, tile),
            )
            b.emit("tensor_tensor", dst=change, data1=centred, data2=weight, op="multiply")
            self._add("dk", change, "q", tile)
            moved.append(self._turn_block(change))
        for tile, turned in zip(tiles, moved, strict=True):
            part = b.psum("dq_part", (TILE, self.head), "float32")
            for step in range(STEPS):
                b.emit(
                    "nc_matmul",
                    dst=part,
                    stationary=b.access(turned, ((COLUMNS, TILE), (1, TILE)), step * TILE),
                    moving=b.access(
                        self.key_rows, ((STEPS * self.head, TILE), (1, self.head)), step * self.head
                    ),
                )
            b.emit("tensor_tensor", dst=self._dq_tile(tile), data1=self._dq_tile(tile), data2=part, op="add")

    def _product(self, name: str, left: Any, tile: Any, right: Any) -> Any:
        """[128 queries, 512 keys] of a transposed tile and the block's transposed keys or values."""
        made = self.b.psum(name, (TILE, COLUMNS), "float32")
        stationary = self.b.access(left, ((self.room, self.head), (1, TILE)), tile * TILE)
        self.b.emit("nc_matmul", dst=made, stationary=stationary, moving=right)
        return made

    def _add(self, name: str, weights: Any, rows: str, tile: Any) -> None:
        """dk or dv of the block += weights^T rows: contracted over the queries, so nothing is transposed."""
        for step in range(STEPS):
            self.b.emit(
                "nc_matmul",
                dst=self.b.access(
                    self.sums[name], ((STEPS * self.head, TILE), (1, self.head)), step * self.head
                ),
                stationary=self.b.access(weights, ((COLUMNS, TILE), (1, TILE)), step * TILE),
                moving=self._row_tile(rows, tile),
            )

    def _turn_block(self, block: Any) -> Any:
        b = self.b
        turned, moved = (
            make(name, (TILE, COLUMNS), self.dtype)
            for make, name in ((b.psum, "block_turned"), (b.sbuf, "block_t"))
        )
        for step in range(STEPS):
            b.emit(
                "nc_matmul",
                dst=b.access(turned, ((COLUMNS, TILE), (1, TILE)), step * TILE),
                is_transpose=True,
                stationary=b.access(block, ((COLUMNS, TILE), (1, TILE)), step * TILE),
                moving=self.identity,
            )
        b.emit("tensor_copy", dst=moved, src=turned)
        return moved

    def keys_end(self, j: Any) -> None:
        b, head = self.b, self.head
        b.here()
        for name, factor in (("dk", self.scale), ("dv", 1.0)):
            result = b.sbuf(name, (TILE, STEPS, head), self.dtype)
            b.emit("tensor_scalar", dst=result, data=self.sums[name], op0="multiply", operand0=factor)
            b.emit(
                "dma_copy",
                engine="scalar",
                src=result,
                dst=b.access(
                    self.results[name],
                    ((head, TILE), (TILE * head, STEPS), (1, head)),
                    (self.n * self.t + j * COLUMNS) * head,
                ),
            )

    def store_queries(self, i: Any) -> None:
        b = self.b
        b.here()
        result = b.sbuf("dq_out", (TILE, self.head), self.dtype)
        b.emit("tensor_scalar", dst=result, data=self._dq_tile(i), op0="multiply", operand0=self.scale)
        target = self._in_hbm(self.results["dq"], self.n * self.s + i * TILE)
        b.emit("dma_copy", dst=target, src=result, engine="scalar")
