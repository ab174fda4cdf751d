"""Row programs: softmax, pointwise operators and reductions over [M, N]."""

from __future__ import annotations

import functools

from opentrn.core.builder import Builder
from opentrn.core.machine import DEFAULT_CHIP
from opentrn.core.program import Program

TILE = 128
CHUNK = 2048  # elements of a partition that one instruction works on
ROW_MAX = 16384  # a softmax row stays in SBUF, in and out


@functools.lru_cache(maxsize=32)
def softmax_program(dtype: str = "bfloat16", chip: str = DEFAULT_CHIP) -> Program:
    """y = softmax(x) over the last axis; symbols M, N (N <= 16384)."""
    b = Builder(chip=chip, name=f"softmax_{dtype}")
    m, n = b.symbol("M"), b.symbol("N")
    x, y = b.hbm("x", (m, n), dtype), b.hbm("y", (m, n), dtype, kind="output")
    with b.loop(0, b.ceildiv(m, TILE)) as i:
        rows = b.min(TILE, m - i * TILE)
        b.here()
        raw, raised = (
            b.sbuf("x", (TILE, ROW_MAX), dtype),
            b.sbuf("e", (TILE, ROW_MAX), "float32" if dtype == "float32" else dtype),
        )
        largest, total = b.sbuf("max", (TILE, 1), "float32"), b.sbuf("sum", (TILE, 1), "float32")
        row, out = (b.access(tile, ((ROW_MAX, rows), (1, n))) for tile in (raw, raised))
        top, below = (b.access(tile, ((1, rows), (1, 1))) for tile in (largest, total))
        b.emit("dma_copy", dst=row, src=b.access(x, ((n, rows), (1, n)), i * TILE * n))
        b.emit("tensor_reduce", dst=top, op="maximum", data=row, axis=[1], negate=True)
        b.emit("activation_reduce", dst=out, op="exp", data=row, bias=top, reduce_op="add", reduce_res=below)
        b.emit("reciprocal", dst=below, data=below)
        b.emit("tensor_scalar", dst=out, data=out, op0="multiply", operand0=below)
        b.emit("dma_copy", dst=b.access(y, ((n, rows), (1, n)), i * TILE * n), src=out, engine="scalar")
    return b.finish()


@functools.lru_cache(maxsize=64)
def pointwise_program(
    dtype: str = "bfloat16",
    inputs: int = 1,
    function: str | None = None,
    out: str | None = None,
    chip: str = DEFAULT_CHIP,
) -> Program:
    """y = f(x0, x1 ...) on E elements (a symbol). function: an activation of the Scalar engine, else
    additions on Vector.
    """
    b = Builder(chip=chip, name=f"pointwise_{inputs}_{function or 'add'}_{dtype}")
    e = b.symbol("E")
    sources = [b.hbm(f"x{k}", (e,), dtype) for k in range(inputs)]
    result = b.hbm("y", (e,), out or dtype, kind="output")
    per_tile = TILE * CHUNK

    def one(first: object, rows: object, width: object) -> None:
        tiles = []
        for k, source in enumerate(sources):
            tile = b.access(b.sbuf(f"x{k}", (TILE, CHUNK), dtype), ((CHUNK, rows), (1, width)))
            b.emit(
                "dma_copy",
                dst=tile,
                src=b.access(source, ((CHUNK, rows), (1, width)), first),
                engine=("sync", "scalar")[k % 2],
            )
            tiles.append(tile)
        target = b.access(b.sbuf("y", (TILE, CHUNK), out or dtype), ((CHUNK, rows), (1, width)))
        if function is not None:
            b.emit("activation", dst=target, op=function, data=tiles[0])
        elif inputs == 1:
            b.emit("tensor_scalar", dst=target, data=tiles[0], op0="multiply", operand0=1.0)
        else:
            b.emit("tensor_tensor", dst=target, data1=tiles[0], data2=tiles[1], op="add")
            for tile in tiles[2:]:
                b.emit("tensor_tensor", dst=target, data1=target, data2=tile, op="add")
        b.emit(
            "dma_copy", dst=b.access(result, ((CHUNK, rows), (1, width)), first), src=target, engine="scalar"
        )

    b.here()
    with b.loop(0, e // per_tile) as i:
        one(i * per_tile, TILE, CHUNK)
    done = e // per_tile * per_tile
    with b.loop(
        0, b.ceildiv(e - done, per_tile)
    ):  # whole rows of the last tile, then what is left of one row
        one(done, (e - done) // CHUNK, CHUNK)
    rest = e // CHUNK * CHUNK
    with b.loop(0, b.ceildiv(e - rest, CHUNK)):
        one(rest, 1, e - rest)
    return b.finish()


@functools.lru_cache(maxsize=32)
def reduction_program(dtype: str = "bfloat16", op: str = "add", chip: str = DEFAULT_CHIP) -> Program:
    """y[M] = reduce x[M, N] over N; symbols M, N. Each partition takes one row, 2048 elements at a time."""
    b = Builder(chip=chip, name=f"reduce_{op}_{dtype}")
    m, n = b.symbol("M"), b.symbol("N")
    x, y = b.hbm("x", (m, n), dtype), b.hbm("y", (m, 1), dtype, kind="output")
    start = {"add": 0.0, "maximum": -3.0e38, "minimum": 3.0e38, "multiply": 1.0}[op]
    with b.loop(0, b.ceildiv(m, TILE)) as i:
        rows = b.min(TILE, m - i * TILE)
        b.here()
        total = b.access(b.sbuf("total", (TILE, 1), "float32"), ((1, rows), (1, 1)))
        b.emit("memset", dst=total, value=start)
        with b.loop(0, b.ceildiv(n, CHUNK)) as j:
            width = b.min(CHUNK, n - j * CHUNK)
            tile = b.access(b.sbuf("x", (TILE, CHUNK), dtype), ((CHUNK, rows), (1, width)))
            part = b.access(b.sbuf("part", (TILE, 1), "float32"), ((1, rows), (1, 1)))
            b.emit("dma_copy", dst=tile, src=b.access(x, ((n, rows), (1, width)), i * TILE * n + j * CHUNK))
            b.emit("tensor_reduce", dst=part, op=op, data=tile, axis=[1])
            b.emit("tensor_tensor", dst=total, data1=total, data2=part, op=op)
        out = b.access(b.sbuf("y", (TILE, 1), dtype), ((1, rows), (1, 1)))
        b.emit("tensor_copy", dst=out, src=total)
        b.emit("dma_copy", dst=b.access(y, ((1, rows), (1, 1)), i * TILE), src=out, engine="scalar")
    return b.finish()
