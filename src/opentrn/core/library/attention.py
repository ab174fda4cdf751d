"""Flash attention, forward: o = softmax(q k^T / sqrt(D)) v per head, without the scores ever in HBM.

Online softmax over blocks of 512 keys: running maximum and sum per query row; the block's probabilities are
transposed on the Tensor engine for the second product.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from opentrn.core.builder import Builder
from opentrn.core.library.matmul import COLUMNS, TILE, identity_tile
from opentrn.core.machine import DEFAULT_CHIP
from opentrn.core.program import Program

KEYS_MAX = 16384  # the transposed keys of a head stay in SBUF


@functools.lru_cache(maxsize=32)
def flash_attention_program(
    head: int = 128, dtype: str = "bfloat16", causal: bool = False, chip: str = DEFAULT_CHIP
) -> Program:
    """Symbols H (heads), S (queries), T (keys <= 16384; S, T multiples of 128 and 512). q [H, S, D], k, v
    [H, T, D].

    causal: needs S == T; blocks above the diagonal are skipped, the diagonal one is masked.
    """
    b = Builder(chip=chip, name=f"flash_attention_{head}_{dtype}")
    h, s, t = b.symbol("H"), b.symbol("S"), b.symbol("T")
    q, k, v = (b.hbm(name, (h, length, head), dtype) for name, length in (("q", s), ("k", t), ("v", t)))
    out = b.hbm("o", (h, s, head), dtype, kind="output")
    identity = identity_tile(b, dtype)
    with b.loop(0, h) as n:
        keys = b.sbuf("k_t", (head, KEYS_MAX), dtype)
        with b.loop(0, t // TILE) as j:
            _turn(b, k, (n * t + j * TILE) * head, identity, keys, j * TILE, head, KEYS_MAX, dtype)
        with b.loop(0, s // TILE) as i:
            query = b.sbuf("q_t", (head, TILE), dtype)
            _turn(b, q, (n * s + i * TILE) * head, identity, query, 0, head, TILE, dtype)
            state = _State(b, head)
            blocks = (i // (COLUMNS // TILE)) if causal else t // COLUMNS
            with b.loop(0, blocks) as j:
                _block(b, state, query, keys, v, (n * t) * head, j, identity, head, dtype, None)
            if causal:
                with b.loop(i // (COLUMNS // TILE), i // (COLUMNS // TILE) + 1) as j:
                    _block(
                        b,
                        state,
                        query,
                        keys,
                        v,
                        (n * t) * head,
                        j,
                        identity,
                        head,
                        dtype,
                        i * TILE - j * COLUMNS,
                    )
            state.finish(out, (n * s + i * TILE) * head, dtype)
    return b.finish()


def _turn(
    b: Builder,
    source: Any,
    at: Any,
    identity: Any,
    target: Any,
    column: Any,
    head: int,
    width: int,
    dtype: str,
) -> None:
    """128 rows of a [.., D] tensor, transposed into columns of an SBUF tile [D, width]."""
    b.here()
    rows = b.sbuf("rows", (TILE, head), dtype)
    turned = b.psum("turned", (head, TILE), dtype)
    b.emit("dma_copy", dst=rows, src=b.access(source, ((head, TILE), (1, head)), at))
    b.emit("nc_matmul", dst=turned, stationary=rows, moving=identity, is_transpose=True)
    b.emit("tensor_copy", dst=b.access(target, ((width, head), (1, TILE)), column), src=turned)


class _State:
    """Running maximum (negated, scaled), sum and output of 128 query rows."""

    def __init__(self, b: Builder, head: int) -> None:
        self.b, self.head = b, head
        b.here()
        self.maximum, self.total = (
            b.sbuf("maximum", (TILE, 1), "float32"),
            b.sbuf("total", (TILE, 1), "float32"),
        )
        self.output = b.sbuf("output", (TILE, head), "float32")
        b.emit("memset", dst=self.maximum, value=-30000.0)
        b.emit("memset", dst=self.total, value=0.0)
        b.emit("memset", dst=self.output, value=0.0)

    def finish(self, out: Any, at: Any, dtype: str) -> None:
        b = self.b
        b.here()
        inverse, result = b.sbuf("inverse", (TILE, 1), "float32"), b.sbuf("o", (TILE, self.head), dtype)
        b.emit("reciprocal", dst=inverse, data=self.total)
        b.emit("tensor_scalar", dst=result, data=self.output, op0="multiply", operand0=inverse)
        b.emit(
            "dma_copy",
            dst=b.access(out, ((self.head, TILE), (1, self.head)), at),
            src=result,
            engine="scalar",
        )


def _block(
    b: Builder,
    state: _State,
    query: Any,
    keys: Any,
    v: Any,
    base: Any,
    j: Any,
    identity: Any,
    head: int,
    dtype: str,
    diagonal: Any,
) -> None:
    """One block of 512 keys. diagonal: row - column of the block's first element, for the causal mask."""
    scale = 1.0 / math.sqrt(head)
    b.here()
    scores = b.psum("scores", (TILE, COLUMNS), "float32")
    b.emit(
        "nc_matmul",
        dst=scores,
        stationary=query,
        moving=b.access(keys, ((KEYS_MAX, head), (1, COLUMNS)), j * COLUMNS),
    )
    source = scores
    if diagonal is not None:
        copied = b.sbuf("scores_copy", (TILE, COLUMNS), "float32")
        masked = b.sbuf("scores_masked", (TILE, COLUMNS), "float32")
        b.emit("tensor_copy", dst=copied, src=scores)
        b.emit(
            "affine_select",
            dst=masked,
            pattern=[[-1, COLUMNS]],
            channel_multiplier=1,
            offset=diagonal,
            on_true_tile=copied,
            on_false_value=-30000.0,
            cmp_op="greater_equal",
        )
        source = masked
    block_maximum, maximum, shrink, minus = (
        b.sbuf(name, (TILE, 1), "float32") for name in ("block_max", "new_max", "shrink", "minus")
    )
    b.emit("tensor_reduce", dst=block_maximum, op="maximum", data=source, axis=[1])
    b.emit("tensor_tensor", dst=maximum, data1=state.maximum, data2=block_maximum, op="maximum")
    b.emit("tensor_scalar", dst=minus, data=maximum, op0="multiply", operand0=-scale)
    b.emit("activation", dst=shrink, op="exp", data=state.maximum, bias=minus, scale=scale)
    b.emit("tensor_copy", dst=state.maximum, src=maximum)
    weights, block_total = (
        b.sbuf("weights", (TILE, COLUMNS), dtype),
        b.sbuf("block_sum", (TILE, 1), "float32"),
    )
    b.emit(
        "activation_reduce",
        dst=weights,
        op="exp",
        data=source,
        bias=minus,
        scale=scale,
        reduce_op="add",
        reduce_res=block_total,
    )
    b.emit(
        "scalar_tensor_tensor",
        dst=state.total,
        data=state.total,
        op0="multiply",
        operand0=shrink,
        op1="add",
        operand1=block_total,
    )
    values = b.sbuf("values", (TILE, COLUMNS // TILE, head), dtype)
    b.emit(
        "dma_copy",
        dst=values,
        src=b.access(
            v, ((head, TILE), (TILE * head, COLUMNS // TILE), (1, head)), base + j * (COLUMNS * head)
        ),
    )
    product = b.psum("product", (TILE, head), "float32")
    for step in range(COLUMNS // TILE):
        turned, moved = (
            b.psum("weights_turned", (TILE, TILE), dtype),
            b.sbuf("weights_t", (TILE, TILE), dtype),
        )
        b.emit(
            "nc_matmul",
            dst=turned,
            is_transpose=True,
            moving=identity,
            stationary=b.access(weights, ((COLUMNS, TILE), (1, TILE)), step * TILE),
        )
        b.emit("tensor_copy", dst=moved, src=turned)
        b.emit(
            "nc_matmul",
            dst=product,
            stationary=moved,
            moving=b.access(values, ((COLUMNS // TILE * head, TILE), (1, head)), step * head),
        )
    b.emit(
        "scalar_tensor_tensor",
        dst=state.output,
        data=state.output,
        op0="multiply",
        operand0=shrink,
        op1="add",
        operand1=product,
    )
