"""Flash attention, forward: o = softmax(q k^T / sqrt(D)) v per head, without the scores ever in HBM.

Online softmax over blocks of 512 keys: running maximum and sum per query row; the block's probabilities are
transposed on the Tensor engine for the second product. Four tiles of 128 queries go through a block
together, each step for all four before the next one, so that an engine works on one tile while another
waits for its producer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opentrn.core.builder import Builder
from opentrn.core.library.matmul import COLUMNS, TILE, identity_tile
from opentrn.core.machine import DEFAULT_CHIP
from opentrn.core.program import Program

KEYS_MAX = 8192  # the transposed keys of a head, or of four, stay in SBUF
GROUP = 4  # query tiles that share a block of keys
STEPS = COLUMNS // TILE


@functools.lru_cache(maxsize=32)
def flash_attention_program(
    head: int = 128,
    dtype: str = "bfloat16",
    causal: bool = False,
    chip: str = DEFAULT_CHIP,
    across_heads: bool = False,
) -> Program:
    """Symbols H (heads), S (queries), T (keys, at most 8192). q [H, S, D], k, v [H, T, D], D <= 128.

    causal: needs S == T; blocks above the diagonal are skipped, the diagonal one is masked. across_heads:
    the four tiles are of four heads and S <= 128, as one new token has it.
    """
    b = Builder(chip=chip, name=f"flash_attention_{head}_{dtype}")
    h, s, t = b.symbol("H"), b.symbol("S"), b.symbol("T")
    q, k, v = (b.hbm(name, (h, length, head), dtype) for name, length in (("q", s), ("k", t), ("v", t)))
    out = b.hbm("o", (h, s, head), dtype, kind="output")
    work = _Work(b, q, k, v, out, identity_tile(b, dtype), head, dtype)
    if across_heads:
        with b.loop(0, h // GROUP) as n:
            work.heads([n * GROUP + g for g in range(GROUP)], s, t)
        with b.loop(h // GROUP * GROUP, h) as n:
            work.heads([n], s, t)
        return b.finish()
    with b.loop(0, h) as n:
        keys = work.turned_keys(n * t, t)
        for first, rows, count in blocks(b, s):
            tiles = [work.tile(n * s + first + g * TILE, rows, keys, n * t) for g in range(count)]
            work.attend(tiles, first if causal else t)
            if causal:
                work.attend_diagonal(tiles, first)
            work.store(tiles)
    return b.finish()


@dataclass
class _Tile:
    """128 query rows on their way: where they lie, their transposed queries, running maximum, sum and
    output.
    """

    first: Any
    rows: Any
    keys: Any
    base: Any  # first key row of the head
    query: Any
    maximum: Any
    total: Any
    output: Any


@dataclass
class _Block:
    """Scores in work of one tile."""

    tile: _Tile
    columns: Any
    scores: Any = None
    weights: Any = None
    shrink: Any = None
    minus: Any = None
    moved: Any = None


def blocks(b: Builder, length: Any) -> Iterator[tuple[Any, Any, int]]:
    """(first row, rows of a tile, tiles) for whole blocks of four tiles, then for what is left; opens
    loops.
    """
    with b.loop(0, length // COLUMNS) as j:
        yield j * COLUMNS, TILE, STEPS
    whole = length // COLUMNS * COLUMNS
    with b.loop(0, b.ceildiv(length - whole, TILE)) as j:
        yield whole + j * TILE, b.min(TILE, length - whole - j * TILE), 1


class _Work:
    def __init__(
        self, b: Builder, q: Any, k: Any, v: Any, out: Any, identity: Any, head: int, dtype: str
    ) -> None:
        self.b, self.q, self.k, self.v, self.out = b, q, k, v, out
        self.identity, self.head, self.dtype = identity, head, dtype
        self.scale = 1.0 / math.sqrt(head)

    def heads(self, numbers: list[Any], s: Any, t: Any) -> None:
        """Few queries of several heads."""
        tiles = [self.tile(n * s, s, self.turned_keys(n * t, t), n * t) for n in numbers]
        self.attend(tiles, t)
        self.store(tiles)

    # ---- what stays in SBUF ----------------------------------------------------------------------

    def turned_keys(self, row: Any, t: Any) -> Any:
        """The keys from `row` on, transposed: [D, keys]."""
        b, head = self.b, self.head
        b.here()
        keys = b.sbuf("k_t", (head, KEYS_MAX), self.dtype)
        for first, deep, tiles in blocks(b, t):
            rows = self.load("k_rows", self.k, row + first, deep, tiles)
            turned = b.psum("k_turned", (head, COLUMNS), self.dtype)
            for step in range(tiles):
                b.emit(
                    "nc_matmul",
                    dst=b.access(turned, ((COLUMNS, head), (1, deep)), step * TILE),
                    is_transpose=True,
                    stationary=b.access(rows, ((tiles * head, deep), (1, head)), step * head),
                    moving=b.access(self.identity, ((TILE, deep), (1, deep))),
                )
            width = COLUMNS if tiles > 1 else deep
            b.emit(
                "tensor_copy",
                dst=b.access(keys, ((KEYS_MAX, head), (1, width)), first),
                src=b.access(turned, ((COLUMNS, head), (1, width))),
            )
        return keys

    def load(self, name: str, tensor: Any, row: Any, deep: Any, tiles: int, engine: str = "sync") -> Any:
        """`tiles` times `deep` rows from `row` on: [128, tiles, D]."""
        b, head = self.b, self.head
        tile = b.sbuf(name, (TILE, tiles, head), self.dtype)
        b.emit(
            "dma_copy",
            engine=engine,
            dst=b.access(tile, ((tiles * head, deep), (head, tiles), (1, head))),
            src=b.access(tensor, ((head, deep), (TILE * head, tiles), (1, head)), row * head),
        )
        return tile

    def tile(self, first: Any, rows: Any, keys: Any, base: Any) -> _Tile:
        """Loads and transposes the queries, clears the running state."""
        b, head = self.b, self.head
        b.here()
        raw = self.load("q_rows", self.q, first, rows, 1, "scalar")
        turned, query = b.psum("q_turned", (head, TILE), self.dtype), b.sbuf("q_t", (head, TILE), self.dtype)
        across = ((TILE, head), (1, rows))
        b.emit(
            "nc_matmul",
            dst=b.access(turned, across),
            is_transpose=True,
            stationary=b.access(raw, ((head, rows), (1, head))),
            moving=b.access(self.identity, ((TILE, rows), (1, rows))),
        )
        b.emit("tensor_copy", dst=b.access(query, across), src=b.access(turned, across))
        maximum, total = self.column("maximum", rows), self.column("total", rows)
        output = b.access(b.sbuf("output", (TILE, head), "float32"), ((head, rows), (1, head)))
        for access, value in ((maximum, -30000.0), (total, 0.0), (output, 0.0)):
            b.emit("memset", dst=access, value=value)
        return _Tile(first, rows, keys, base, b.access(query, across), maximum, total, output)

    def column(self, name: str, rows: Any) -> Any:
        return self.b.access(self.b.sbuf(name, (TILE, 1), "float32"), ((1, rows), (1, 1)))

    # ---- blocks of keys --------------------------------------------------------------------------

    def attend(self, tiles: list[_Tile], t: Any) -> None:
        """The first t keys for all tiles."""
        shared = all(tile.base is tiles[0].base for tile in tiles)
        for first, deep, count in blocks(self.b, t):
            width = COLUMNS if count > 1 else deep
            values: list[Any] = []
            for tile in tiles:
                again = values and shared
                values.append(values[0] if again else self.load("v", self.v, tile.base + first, deep, count))
            work = [_Block(tile, width) for tile in tiles]
            self._scores(work, first)
            self._weights(work)
            steps = [[(step, deep) for step in range(count)]] * len(tiles)
            self._products(work, values, steps, count)

    def attend_diagonal(self, tiles: list[_Tile], first: Any) -> None:
        """The block in which a query row meets its own key: tile g sees g whole tiles of keys, and one
        masked.
        """
        b = self.b
        keys = [tile.rows for tile in tiles]
        values = b.sbuf("v_diagonal", (TILE, STEPS, self.head), self.dtype)
        for g in range(len(tiles)):
            b.emit(
                "dma_copy",
                dst=b.access(values, ((STEPS * self.head, keys[g]), (1, self.head)), g * self.head),
                src=b.access(
                    self.v,
                    ((self.head, keys[g]), (1, self.head)),
                    (tiles[0].base + first + g * TILE) * self.head,
                ),
            )
        work = [_Block(tile, g * TILE + keys[g]) for g, tile in enumerate(tiles)]
        self._scores(work, first)
        for g, block in enumerate(work):
            self._mask(block, g)
        self._weights(work)
        steps = [[(s, keys[s]) for s in range(g + 1)] for g in range(len(tiles))]
        self._products(work, [values] * len(tiles), steps, STEPS)

    def _scores(self, blocks: list[_Block], first: Any) -> None:
        b, head = self.b, self.head
        b.here()
        for block in blocks:
            scores = b.psum("scores", (TILE, COLUMNS), "float32")
            block.scores = b.access(scores, ((COLUMNS, block.tile.rows), (1, block.columns)))
            moving = b.access(block.tile.keys, ((KEYS_MAX, head), (1, block.columns)), first)
            b.emit("nc_matmul", dst=block.scores, stationary=block.tile.query, moving=moving)

    def _mask(self, block: _Block, g: int) -> None:
        """Scores above the diagonal of the last 128 keys become very small."""
        b, rows = self.b, block.tile.rows
        masked = b.sbuf("masked", (TILE, COLUMNS), "float32")
        copied = b.access(masked, ((COLUMNS, rows), (1, block.columns)))
        last = b.access(masked, ((COLUMNS, rows), (1, block.columns - g * TILE)), g * TILE)
        b.emit("tensor_copy", dst=copied, src=block.scores, engine="scalar")
        b.emit(
            "affine_select",
            dst=last,
            pattern=[[-1, block.columns - g * TILE]],
            channel_multiplier=1,
            on_true_tile=last,
            on_false_value=-30000.0,
            cmp_op="greater_equal",
        )
        block.scores = copied

    def _weights(self, blocks: list[_Block]) -> None:
        """exp(scale (score - maximum)), the new maximum, and how much the old results shrink by it."""
        b = self.b
        b.here()
        found = [self.column("block_max", block.tile.rows) for block in blocks]
        for block, part in zip(blocks, found, strict=True):
            b.emit("tensor_reduce", dst=part, op="maximum", data=block.scores, axis=[1])
        for block, part in zip(blocks, found, strict=True):
            tile = block.tile
            larger, block.minus = self.column("larger", tile.rows), self.column("minus", tile.rows)
            block.shrink = self.column("shrink", tile.rows)
            b.emit("tensor_tensor", dst=larger, data1=tile.maximum, data2=part, op="maximum")
            b.emit("tensor_scalar", dst=block.minus, data=larger, op0="multiply", operand0=-self.scale)
            b.emit(
                "activation",
                dst=block.shrink,
                op="exp",
                data=tile.maximum,
                bias=block.minus,
                scale=self.scale,
            )
            b.emit("tensor_copy", dst=tile.maximum, src=larger)
        for block in blocks:
            tile = block.tile
            weights, total = (
                b.sbuf("weights", (TILE, COLUMNS), self.dtype),
                self.column("block_sum", tile.rows),
            )
            block.weights = weights
            b.emit(
                "activation_reduce",
                dst=b.access(weights, ((COLUMNS, tile.rows), (1, block.columns))),
                op="exp",
                data=block.scores,
                bias=block.minus,
                scale=self.scale,
                reduce_op="add",
                reduce_res=total,
            )
            b.emit(
                "scalar_tensor_tensor",
                dst=tile.total,
                data=tile.total,
                op0="multiply",
                operand0=block.shrink,
                op1="add",
                operand1=total,
            )

    def _products(
        self, blocks: list[_Block], values: list[Any], steps: list[list[tuple[int, Any]]], count: int
    ) -> None:
        """output = output shrink + weights v: the weights are transposed 128 keys at a time."""
        b, head = self.b, self.head
        b.here()
        for g, block in enumerate(blocks):
            rows = block.tile.rows
            turned, moved = (
                make(name, (TILE, STEPS, TILE), self.dtype)
                for make, name in ((b.psum, "weights_turned"), (b.sbuf, "weights_t"))
            )
            block.moved = moved
            for step, deep in steps[g]:
                b.emit(
                    "nc_matmul",
                    dst=b.access(turned, ((COLUMNS, deep), (1, rows)), step * TILE),
                    is_transpose=True,
                    stationary=b.access(block.weights, ((COLUMNS, rows), (1, deep)), step * TILE),
                    moving=b.access(self.identity, ((TILE, rows), (1, rows))),
                )
            whole = len({deep if isinstance(deep, int) else id(deep) for _, deep in steps[g]}) == 1
            runs = [(0, len(steps[g]), steps[g][0][1])] if whole else [(s, 1, deep) for s, deep in steps[g]]
            for first, length, deep in runs:
                pattern = ((COLUMNS, deep), (TILE, length), (1, rows))
                b.emit(
                    "tensor_copy",
                    dst=b.access(moved, pattern, first * TILE),
                    engine=("vector", "scalar")[g % 2],
                    src=b.access(turned, pattern, first * TILE),
                )
        products = []
        for g, block in enumerate(blocks):
            rows = block.tile.rows
            product = b.access(b.psum("product", (TILE, head), "float32"), ((head, rows), (1, head)))
            for step, deep in steps[g]:
                b.emit(
                    "nc_matmul",
                    dst=product,
                    stationary=b.access(block.moved, ((COLUMNS, deep), (1, rows)), step * TILE),
                    moving=b.access(values[g], ((count * head, deep), (1, head)), step * head),
                )
            products.append(product)
        for block, product in zip(blocks, products, strict=True):
            output = block.tile.output
            b.emit(
                "scalar_tensor_tensor",
                dst=output,
                data=output,
                op0="multiply",
                operand0=block.shrink,
                op1="add",
                operand1=product,
            )

    def store(self, tiles: list[_Tile]) -> None:
        b, head = self.b, self.head
        b.here()
        for tile in tiles:
            inverse = self.column("inverse", tile.rows)
            result = b.access(b.sbuf("o", (TILE, head), self.dtype), ((head, tile.rows), (1, head)))
            b.emit("reciprocal", dst=inverse, data=tile.total)
            b.emit("tensor_scalar", dst=result, data=tile.output, op0="multiply", operand0=inverse)
            b.emit(
                "dma_copy",
                dst=b.access(self.out, ((head, tile.rows), (1, head)), tile.first * head),
                src=result,
                engine="scalar",
            )
