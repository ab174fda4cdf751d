"""Kernels of NKIBench and of the layer-norm tutorial, written out again as programs (timing only).

Loop orders, tile sizes and instructions follow the published kernels; loads stand where the published byte
counters say that the compiler put them. All are fp32 on one core of a trn1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentrn.core.builder import Builder
from opentrn.core.program import Program

TILE, WIDE, BLOCK = 128, 512, 1024


class _Kernel:
    """A builder with the few moves that these kernels are made of; tiles are fp32, offsets count elements."""

    def __init__(self, chip: str, name: str) -> None:
        self.b = Builder(chip=chip, name=name)
        self.b.compiler_engines = True  # as their compiler chose; the published programs leave engines open

    def hbm(self, name: str, *shape: int, kind: str = "input") -> Any:
        return self.b.hbm(name, shape, "float32", kind=kind)

    def tile(self, columns: int, rows: int = TILE, name: str = "tile") -> Any:
        return self.b.sbuf(name, (rows, columns), "float32")

    def sums(self, columns: int = WIDE, rows: int = TILE) -> Any:
        return self.b.psum("sums", (rows, columns), "float32")

    def cut(self, tile: Any, width: int, start: Any, columns: int, rows: int = TILE) -> Any:
        """`columns` of a tile that is `width` wide."""
        return self.b.access(tile, ((width, rows), (1, columns)), start)

    def load(
        self, source: Any, pitch: int, start: Any, columns: int, rows: int = TILE, into: Any = None
    ) -> Any:
        """Rows of HBM `pitch` elements apart into `into`, or into a new tile, which is returned."""
        target = self.tile(columns, rows) if into is None else into
        self.b.emit("dma_copy", dst=target, src=self.cut(source, pitch, start, columns, rows))
        return target

    def store(self, target: Any, pitch: int, start: Any, columns: int, source: Any) -> None:
        self.b.emit("dma_copy", dst=self.cut(target, pitch, start, columns), src=source)

    def multiply(self, dst: Any, stationary: Any, moving: Any, **modes: Any) -> None:
        self.b.emit("nc_matmul", dst=dst, stationary=stationary, moving=moving, **modes)

    def turn(self, block: Any, identity: Any, into: Any, columns: int = TILE, **modes: Any) -> None:
        """A transpose on the Tensor engine by a product with the identity, and its copy to SBUF."""
        turned = self.sums(TILE, columns)
        self.multiply(turned, block, identity, **modes)
        self.b.emit("tensor_copy", dst=into, src=turned)

    def copy(self, dst: Any, src: Any) -> None:
        self.b.emit("tensor_copy", dst=dst, src=src)

    def scale(self, dst: Any, data: Any, operand: Any, op: str = "multiply", **more: Any) -> Any:
        self.b.emit("tensor_scalar", dst=dst, data=data, op0=op, operand0=operand, **more)
        return dst

    def pair(self, op: str, dst: Any, data1: Any, data2: Any) -> Any:
        self.b.emit("tensor_tensor", dst=dst, data1=data1, data2=data2, op=op)
        return dst

    def function(self, op: str, dst: Any, data: Any, **more: Any) -> Any:
        self.b.emit("activation", dst=dst, op=op, data=data, **more)
        return dst

    def identity(self) -> Any:
        return self.load(self.hbm("identity", TILE, TILE), TILE, 0, TILE)


def bench_transpose_matmul(chip: str) -> Program:
    """c[4096, 10944] = a[2048, 4096].T @ b[2048, 10944]; the last columns are padded to whole tiles."""
    m, depth, n = 4096, 16, 10944
    k = _Kernel(chip, "bench_transpose_matmul")
    a, b, c = k.hbm("a", TILE, depth, m), k.hbm("b", TILE, depth, n), k.hbm("c", m, n, kind="output")

    def columns_of(i: Any, left: Any, first: Any, width: int) -> None:
        right = k.tile(depth * BLOCK, name="right")
        with k.b.loop(0, depth) as d:
            k.load(b, depth * n, d * n + first, width, into=k.cut(right, depth * BLOCK, d * BLOCK, width))
        with k.b.loop(0, 8) as r:
            out = k.tile(BLOCK, name="out")
            for half in range(2):
                total = k.sums()
                with k.b.loop(0, depth) as d:
                    k.multiply(
                        total,
                        k.cut(left, depth * BLOCK, d * BLOCK + r * TILE, TILE),
                        k.cut(right, depth * BLOCK, d * BLOCK + half * WIDE, WIDE),
                    )
                k.copy(k.cut(out, BLOCK, half * WIDE, WIDE), total)
            k.store(c, n, (i * BLOCK + r * TILE) * n + first, width, k.cut(out, BLOCK, 0, width))

    with k.b.loop(0, m // BLOCK) as i:
        left = k.tile(depth * BLOCK, name="left")
        with k.b.loop(0, depth) as d:
            k.load(a, depth * m, d * m + i * BLOCK, BLOCK, into=k.cut(left, depth * BLOCK, d * BLOCK, BLOCK))
        with k.b.loop(0, n // BLOCK) as j:
            columns_of(i, left, j * BLOCK, BLOCK)
        columns_of(i, left, n // BLOCK * BLOCK, n % BLOCK)
    return k.b.finish()


def bench_matmul(chip: str) -> Program:
    """a[4096, 5120] @ b[5120, 12288]; a is transposed here, b is loaded again for every row block."""
    rows, blocks, n, depth = 32, 12, 12288, 40
    k = _Kernel(chip, "bench_matmul")
    a, b = k.hbm("a", rows * TILE, depth * TILE), k.hbm("b", depth * TILE, n)
    c, identity = k.hbm("c", rows * TILE, n, kind="output"), k.identity()
    with k.b.loop(0, blocks) as j, k.b.loop(0, rows) as i:
        turned = k.tile(depth * TILE, name="turned")
        with k.b.loop(0, 5) as g:
            part = k.load(a, depth * TILE, i * TILE * depth * TILE + g * BLOCK, BLOCK)
            with k.b.loop(0, 8) as s:
                into = k.cut(turned, depth * TILE, g * BLOCK + s * TILE, TILE)
                k.turn(k.cut(part, BLOCK, s * TILE, TILE), identity, into, is_transpose=True)
        out, totals = k.tile(BLOCK, name="out"), [k.sums() for _ in range(2)]
        with k.b.loop(0, depth) as d:
            right = k.load(b, n, d * TILE * n + j * BLOCK, BLOCK)
            for half, total in enumerate(totals):
                k.multiply(
                    total,
                    k.cut(turned, depth * TILE, d * TILE, TILE),
                    k.cut(right, BLOCK, half * WIDE, WIDE),
                )
        for half, total in enumerate(totals):
            k.copy(k.cut(out, BLOCK, half * WIDE, WIDE), total)
        k.store(c, n, i * TILE * n + j * BLOCK, BLOCK, out)
    return k.b.finish()


def bench_bmm(chip: str) -> Program:
    """Sixteen products [4096, 64] @ [64, 4096]; left rows are loaded and turned for every column block."""
    batch, m, n, depth = 16, 4096, 4096, 64
    k = _Kernel(chip, "bench_bmm")
    a, b = k.hbm("a", batch, m, depth), k.hbm("b", batch, depth, n)
    c, identity = k.hbm("c", batch, m, n, kind="output"), k.identity()
    with k.b.loop(0, batch) as i, k.b.loop(0, n // BLOCK) as j:
        right = k.load(b, n, i * depth * n + j * BLOCK, BLOCK, depth)
        with k.b.loop(0, m // BLOCK) as g:
            turned = k.tile(BLOCK, depth, "turned")
            with k.b.loop(0, 8) as s:
                part = k.load(a, depth, i * m * depth + (g * BLOCK + s * TILE) * depth, depth)
                k.turn(part, identity, k.cut(turned, BLOCK, s * TILE, TILE, depth), depth, is_transpose=True)
            with k.b.loop(0, 8) as s:
                out = k.tile(BLOCK, name="out")
                for half in range(2):
                    total = k.sums()
                    k.multiply(
                        total,
                        k.cut(turned, BLOCK, s * TILE, TILE, depth),
                        k.cut(right, BLOCK, half * WIDE, WIDE, depth),
                    )
                    k.copy(k.cut(out, BLOCK, half * WIDE, WIDE), total)
                k.store(c, n, i * m * n + (g * BLOCK + s * TILE) * n + j * BLOCK, BLOCK, out)
    return k.b.finish()


def bench_rmsnorm_matmul(chip: str) -> Program:
    """rmsnorm(x[4096, 1024]) @ w[1024, 2048]: rows are read twice, turned, and multiplied by blocks."""
    width, n, depth = 1024, 2048, 8
    k = _Kernel(chip, "bench_rmsnorm_matmul")
    x, w = k.hbm("x", 4096, width), k.hbm("w", width, n)
    y, identity = k.hbm("y", 4096, n, kind="output"), k.identity()
    with k.b.loop(0, 4) as i:
        turned = k.tile(8 * width, name="turned")
        with k.b.loop(0, 8) as r:
            first = (i * 8 + r) * TILE * width
            row, sums, scale = k.load(x, width, first, width), k.tile(2), k.tile(1)
            for half in range(2):
                part = k.function("square", k.tile(WIDE), k.cut(row, width, half * WIDE, WIDE))
                k.scale(part, part, 1 / width)
                k.b.emit(
                    "tensor_reduce", dst=k.cut(sums, 2, half, 1), op="add", data=k.b.access(part), axis=[1]
                )
            k.pair("add", scale, k.cut(sums, 2, 0, 1), k.cut(sums, 2, 1, 1))
            k.function("rsqrt", scale, scale)
            again = k.load(x, width, first, width)
            for half in range(2):
                part = k.scale(k.tile(WIDE), k.cut(again, width, half * WIDE, WIDE), k.b.access(scale))
                for s in range(4):
                    into = k.cut(turned, 8 * width, ((half * 4 + s) * 8 + r) * TILE, TILE)
                    k.turn(k.cut(part, WIDE, s * TILE, TILE), identity, into, is_transpose=True)
        with k.b.loop(0, n // BLOCK) as j:
            right = k.tile(depth * BLOCK, name="right")
            with k.b.loop(0, depth) as d:
                k.load(
                    w,
                    n,
                    d * TILE * n + j * BLOCK,
                    BLOCK,
                    into=k.cut(right, depth * BLOCK, d * BLOCK, BLOCK),
                )
            with k.b.loop(0, 8) as r:
                out = k.tile(BLOCK, name="out")
                for half in range(2):
                    total = k.sums()
                    with k.b.loop(0, depth) as d:
                        k.multiply(
                            total,
                            k.cut(turned, 8 * width, (d * 8 + r) * TILE, TILE),
                            k.cut(right, depth * BLOCK, d * BLOCK + half * WIDE, WIDE),
                        )
                    k.copy(k.cut(out, BLOCK, half * WIDE, WIDE), total)
                k.store(y, n, (i * 8 + r) * TILE * n + j * BLOCK, BLOCK, out)
    return k.b.finish()


def bench_matmul_add_rmsnorm(chip: str) -> Program:
    """rmsnorm(x[4096, 2048] @ w[2048, 2048] + z) * g; weights hoisted, rows turned for every 512 columns."""
    width, depth = 2048, 16
    k = _Kernel(chip, "bench_matmul_add_rmsnorm")
    x, w, z = k.hbm("x", 4096, width), k.hbm("w", width, width), k.hbm("z", 4096, width)
    g, y, identity = k.hbm("g", 1, width), k.hbm("y", 4096, width, kind="output"), k.identity()
    weights, gain = k.tile(depth * width, name="weights"), k.load(g, width, 0, width, 1)
    with k.b.loop(0, depth) as d:
        k.load(w, width, d * TILE * width, width, into=k.cut(weights, depth * width, d * width, width))
    ones = k.tile(TILE, 1)
    k.b.emit("memset", dst=ones, value=1.0)
    with k.b.loop(0, 32) as i:
        rows, sums = k.load(x, width, i * TILE * width, width), k.tile(width, name="sums")
        with k.b.loop(0, 4) as j:
            total = k.sums()
            with k.b.loop(0, depth) as d:
                turned = k.tile(TILE, name="turned")
                k.turn(k.cut(rows, width, d * TILE, TILE), identity, turned)
                k.multiply(total, turned, k.cut(weights, depth * width, d * width + j * WIDE, WIDE))
            k.copy(k.cut(sums, width, j * WIDE, WIDE), total)
        added = k.pair("add", k.tile(width), sums, k.load(z, width, i * TILE * width, width))
        power = k.function("square", k.tile(width), added)
        scale = k.tile(1)
        k.b.emit("tensor_reduce", dst=scale, op="add", data=k.b.access(power), axis=[1])
        k.scale(scale, scale, 1 / width, op1="add", operand1=1e-6)
        k.function("rsqrt", scale, scale)
        out = k.scale(k.tile(width), added, k.b.access(scale))
        for j in range(4):
            spread = k.sums()
            k.multiply(spread, ones, k.cut(gain, width, j * WIDE, WIDE, 1))
            part = k.cut(out, width, j * WIDE, WIDE)
            k.pair("multiply", part, part, spread)
        k.store(y, width, i * TILE * width, width, out)
    return k.b.finish()


def bench_swiglu(chip: str) -> Program:
    """(silu(x w1) * (x w2)) w3 for x[4096, 1024], 3072 hidden columns, spilled and reloaded; rows turned once
    for each projection."""
    width, hidden = 1024, 3072
    k = _Kernel(chip, "bench_swiglu")
    x, y, identity = k.hbm("x", 4096, width), k.hbm("y", 4096, width, kind="output"), k.identity()
    up, gate, down = k.hbm("up", width, hidden), k.hbm("gate", width, hidden), k.hbm("down", hidden, width)
    spilled = k.hbm("spilled", 24, TILE, 4096, kind="internal")
    gated = k.hbm("gated", 24, TILE, 4096, kind="internal")

    def project(weight: Any, finish: Any) -> None:
        """weight.T @ x.T; finish(index of 128 hidden columns, index of 512 rows, PSUM tile) of each tile."""
        columns = k.tile(8 * hidden, name="weights")
        with k.b.loop(0, 8) as d:
            into = k.cut(columns, 8 * hidden, d * hidden, hidden)
            k.load(weight, hidden, d * TILE * hidden, hidden, into=into)
        with k.b.loop(0, 8) as i:
            turned = k.tile(8 * WIDE, name="turned")
            with k.b.loop(0, 4) as r:
                row = k.load(x, width, (i * 4 + r) * TILE * width, width)
                with k.b.loop(0, 8) as s:
                    into = k.cut(turned, 8 * WIDE, s * WIDE + r * TILE, TILE)
                    k.turn(k.cut(row, width, s * TILE, TILE), identity, into, is_transpose=True)
            with k.b.loop(0, 24) as c:
                total = k.sums()
                with k.b.loop(0, 8) as d:
                    k.multiply(
                        total,
                        k.cut(columns, 8 * hidden, d * hidden + c * TILE, TILE),
                        k.cut(turned, 8 * WIDE, d * WIDE, WIDE),
                    )
                finish(c, i, total)

    def keep(c: Any, i: Any, total: Any) -> None:
        out = k.tile(WIDE)
        k.copy(out, total)
        k.store(spilled, 4096, c * TILE * 4096 + i * WIDE, WIDE, out)

    def combine(c: Any, i: Any, total: Any) -> None:
        first = k.load(spilled, 4096, c * TILE * 4096 + i * WIDE, WIDE)
        power = k.function("exp", k.tile(WIDE), first, scale=-1.0)
        k.scale(power, power, 1.0, "add")
        k.b.emit("activation", dst=power, op="reciprocal", data=power)
        out = k.pair("multiply", k.tile(WIDE), first, power)
        k.pair("multiply", out, out, total)
        k.store(gated, 4096, c * TILE * 4096 + i * WIDE, WIDE, out)

    project(gate, keep)
    project(up, combine)
    weights = k.tile(24 * width, name="down")
    with k.b.loop(0, 24) as d:
        k.load(down, width, d * TILE * width, width, into=k.cut(weights, 24 * width, d * width, width))
    with k.b.loop(0, 8) as i:
        inner = k.tile(24 * WIDE, name="gated")
        with k.b.loop(0, 24) as d:
            k.load(
                gated, 4096, d * TILE * 4096 + i * WIDE, WIDE, into=k.cut(inner, 24 * WIDE, d * WIDE, WIDE)
            )
        with k.b.loop(0, 4) as r:
            out = k.tile(width, name="out")
            for half in range(2):
                total = k.sums()
                with k.b.loop(0, 24) as d:
                    k.multiply(
                        total,
                        k.cut(inner, 24 * WIDE, d * WIDE + r * TILE, TILE),
                        k.cut(weights, 24 * width, d * width + half * WIDE, WIDE),
                    )
                k.copy(k.cut(out, width, half * WIDE, WIDE), total)
            k.store(y, width, (i * 4 + r) * TILE * width, width, out)
    return k.b.finish()


def bench_adamw(chip: str) -> Program:
    """One AdamW step on [10944, 2048] parameters, 512 columns at a time; the last tile has 64 rows."""
    rows, width = 10944, 2048
    k = _Kernel(chip, "bench_adamw")
    sources = [k.hbm(name, rows, width) for name in ("theta", "m", "v", "g")]
    target = k.hbm("out", rows, width, kind="output")

    def step(first: Any, count: int) -> None:
        with k.b.loop(0, 2) as half:
            start = first * width + half * BLOCK
            theta, m, v, g = (k.load(source, width, start, BLOCK, count) for source in sources)
            out = k.tile(BLOCK, count, "out")
            for part in range(2):

                def of(tile: Any, part: int = part) -> Any:
                    return k.cut(tile, BLOCK, part * WIDE, WIDE, count)

                def new() -> Any:
                    return k.tile(WIDE, count)

                decayed = k.pair("subtract", new(), of(theta), k.scale(new(), of(theta), 1e-5))
                mean = k.pair("add", new(), k.scale(new(), of(m), 0.9), k.scale(new(), of(g), 0.1))
                k.scale(mean, mean, 0.01)
                square = k.pair("multiply", new(), k.scale(new(), of(g), 0.001), of(g))
                variance = k.pair("add", new(), k.scale(new(), of(v), 0.999), square)
                root = k.function("sqrt", new(), variance, scale=1000.0)
                k.scale(root, root, 1e-8, "add")
                k.function("reciprocal", root, root)
                k.pair("subtract", of(out), decayed, k.pair("multiply", new(), mean, root))
            k.b.emit("dma_copy", dst=k.cut(target, width, start, BLOCK, count), src=out)

    with k.b.loop(0, rows // TILE) as i:
        step(i * TILE, TILE)
    step(rows // TILE * TILE, rows % TILE)
    return k.b.finish()


def bench_silu(chip: str) -> Program:
    """x / (1 + exp(-x)) of [4096, 7168], 512 columns at a time."""
    width = 7168
    k = _Kernel(chip, "bench_silu")
    x, y = k.hbm("x", 4096, width), k.hbm("y", 4096, width, kind="output")
    with k.b.loop(0, 32) as i, k.b.loop(0, width // BLOCK) as j:
        start = i * TILE * width + j * BLOCK
        raw, out = k.load(x, width, start, BLOCK), k.tile(BLOCK, name="out")
        for half in range(2):
            part = k.cut(raw, BLOCK, half * WIDE, WIDE)
            power = k.function("exp", k.tile(WIDE), part, scale=-1.0)
            k.scale(power, power, 1.0, "add")
            k.function("reciprocal", power, power)
            k.pair("multiply", k.cut(out, BLOCK, half * WIDE, WIDE), part, power)
        k.store(y, width, start, BLOCK, out)
    return k.b.finish()


def layernorm(chip: str, fused: bool, rows: int = 4096, width: int = 8192) -> Program:
    """The layer-norm tutorial: v1 by language functions, v2 (fused) by bn_stats and one tensor_scalar."""
    k = _Kernel(chip, "layernorm")
    x, y = k.hbm("x", rows, width), k.hbm("y", rows, width, kind="output")
    spread = []
    ones = k.tile(TILE, 1)
    k.b.emit("memset", dst=ones, value=1.0)
    for name in ("gamma", "beta"):
        row, wide = k.load(k.hbm(name, 1, width), width, 0, width, 1), k.tile(width, name=name)
        for j in range(width // WIDE):
            total = k.sums()
            k.multiply(total, ones, k.cut(row, width, j * WIDE, WIDE, 1))
            k.copy(k.cut(wide, width, j * WIDE, WIDE), total)
        spread.append(wide)
    with k.b.loop(0, rows // TILE) as i:
        row = k.load(x, width, i * TILE * width, width)
        mean, variance = k.tile(1, name="mean"), k.tile(1, name="variance")
        if fused:
            parts = width // WIDE
            statistics, pair = k.tile(6 * parts), k.tile(2)
            for j in range(parts):
                k.b.emit(
                    "bn_stats",
                    dst=k.cut(statistics, 6 * parts, 6 * j, 6),
                    data=k.cut(row, width, j * WIDE, WIDE),
                )
            k.b.emit("bn_aggr", dst=pair, data=statistics)
            mean, variance = k.cut(pair, 2, 0, 1), k.cut(pair, 2, 1, 1)
            k.scale(variance, variance, 1e-5, "add")
            k.function("rsqrt", variance, variance)
            k.scale(row, row, mean, "subtract", op1="multiply", operand1=variance)
        else:
            k.b.emit("tensor_reduce", dst=mean, op="add", data=k.b.access(row), axis=[1])
            k.scale(mean, mean, 1 / width)
            power = k.function("square", k.tile(width), row)
            k.b.emit("tensor_reduce", dst=variance, op="add", data=k.b.access(power), axis=[1])
            k.scale(variance, variance, 1 / width, op1="add", operand1=1e-5)
            k.pair("subtract", variance, variance, k.pair("multiply", k.tile(1), mean, mean))
            k.function("rsqrt", variance, variance)
            k.scale(row, row, k.b.access(mean), "subtract")
            k.scale(row, row, k.b.access(variance))
        k.pair("multiply", row, row, spread[0])
        k.pair("add", row, row, spread[1])
        k.store(y, width, i * TILE * width, width, row)
    return k.b.finish()


BENCH_PROGRAMS: dict[str, Callable[..., Program]] = {
    "bench_transpose_matmul": bench_transpose_matmul,
    "bench_matmul": bench_matmul,
    "bench_bmm": bench_bmm,
    "bench_rmsnorm_matmul": bench_rmsnorm_matmul,
    "bench_matmul_add_rmsnorm": bench_matmul_add_rmsnorm,
    "bench_swiglu": bench_swiglu,
    "bench_adamw": bench_adamw,
    "bench_silu": bench_silu,
    "layernorm": layernorm,
}
