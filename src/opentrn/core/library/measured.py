"""Kernels with a published duration, written out as programs: how far the timing model is from the chip.

`python -m opentrn.core.library.measured` (or `opentrn program kernels`) prints the signed error of each. Only
the order of instructions and the tile sizes matter here; values are not checked.
"""

from __future__ import annotations

import functools
import statistics
import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from opentrn.core.builder import Builder
from opentrn.core.library.measured_bench import BENCH_PROGRAMS
from opentrn.core.program import Program
from opentrn.core.table import DATA
from opentrn.core.timing import time

M, N, K = 4096, 8192, 8192  # the tutorials' product: lhsT [K, M], rhs [K, N]
TILE, WIDE = 128, 512


def _product(chip: str, dtype: str, name: str) -> tuple[Builder, Any, Any, Any]:
    b = Builder(chip=chip, name=name)
    return (
        b,
        b.hbm("lhs_t", (K, M), dtype),
        b.hbm("rhs", (K, N), dtype),
        b.hbm("out", (M, N), dtype, kind="output"),
    )


def _store(b: Builder, out: Any, total: Any, row: Any, column: Any, dtype: str) -> None:
    done = b.sbuf("done", (TILE, WIDE), dtype)
    b.emit("tensor_copy", dst=done, src=total)
    b.emit("dma_copy", dst=b.access(out, ((N, TILE), (1, WIDE)), row * N + column), src=done)


def matmul_tiled(chip: str, dtype: str) -> Program:
    """Both operands loaded for every 128 x 128 x 512 product."""
    b, lhs, rhs, out = _product(chip, dtype, "matmul_tiled")
    with b.loop(0, M // TILE) as m, b.loop(0, N // WIDE) as n:
        total = b.psum("total", (TILE, WIDE), "float32")
        with b.loop(0, K // TILE) as k:
            left, right = b.sbuf("left", (TILE, TILE), dtype), b.sbuf("right", (TILE, WIDE), dtype)
            b.emit("dma_copy", dst=left, src=b.access(lhs, ((M, TILE), (1, TILE)), k * (TILE * M) + m * TILE))
            b.emit(
                "dma_copy", dst=right, src=b.access(rhs, ((N, TILE), (1, WIDE)), k * (TILE * N) + n * WIDE)
            )
            b.emit("nc_matmul", dst=total, stationary=left, moving=right)
        _store(b, out, total, m * TILE, n * WIDE, dtype)
    return b.finish()


def matmul_hoisted(chip: str, dtype: str) -> Program:
    """The left tiles of a row block are loaded once."""
    b, lhs, rhs, out = _product(chip, dtype, "matmul_hoisted")
    depth = K // TILE
    with b.loop(0, M // TILE) as m:
        left = b.sbuf("left", (TILE, depth, TILE), dtype)
        with b.loop(0, depth) as k:
            b.emit(
                "dma_copy",
                dst=b.access(left, ((depth * TILE, TILE), (1, TILE)), k * TILE),
                src=b.access(lhs, ((M, TILE), (1, TILE)), k * (TILE * M) + m * TILE),
            )
        with b.loop(0, N // WIDE) as n:
            total = b.psum("total", (TILE, WIDE), "float32")
            right = b.sbuf("right", (TILE, depth, WIDE), dtype)
            with b.loop(0, depth) as k:
                b.emit(
                    "dma_copy",
                    dst=b.access(right, ((depth * WIDE, TILE), (1, WIDE)), k * WIDE),
                    src=b.access(rhs, ((N, TILE), (1, WIDE)), k * (TILE * N) + n * WIDE),
                )
            with b.loop(0, depth) as k:
                b.emit(
                    "nc_matmul",
                    dst=total,
                    stationary=b.access(left, ((depth * TILE, TILE), (1, TILE)), k * TILE),
                    moving=b.access(right, ((depth * WIDE, TILE), (1, WIDE)), k * WIDE),
                )
            _store(b, out, total, m * TILE, n * WIDE, dtype)
    return b.finish()


def matmul_free_blocked(chip: str, dtype: str) -> Program:
    """Blocks of 256 rows and 1024 columns; the whole contraction of a block from tiles loaded once."""
    b, lhs, rhs, out = _product(chip, dtype, "matmul_free_blocked")
    depth, rows, columns = K // TILE, 2 * TILE, 2 * WIDE
    with b.loop(0, M // rows) as m:
        left = b.sbuf("left", (TILE, depth, rows), dtype)
        with b.loop(0, depth) as k:
            b.emit(
                "dma_copy",
                dst=b.access(left, ((depth * rows, TILE), (1, rows)), k * rows),
                src=b.access(lhs, ((M, TILE), (1, rows)), k * (TILE * M) + m * rows),
            )
        with b.loop(0, N // columns) as n:
            totals = [b.psum(f"total{t}", (TILE, WIDE), "float32") for t in range(4)]
            with b.loop(0, depth) as k:
                right = b.sbuf("right", (TILE, columns), dtype)
                b.emit(
                    "dma_copy",
                    dst=right,
                    src=b.access(rhs, ((N, TILE), (1, columns)), k * (TILE * N) + n * columns),
                )
                for t, total in enumerate(totals):
                    b.emit(
                        "nc_matmul",
                        dst=total,
                        moving=b.access(right, ((columns, TILE), (1, WIDE)), t % 2 * WIDE),
                        stationary=b.access(
                            left, ((depth * rows, TILE), (1, TILE)), k * rows + t // 2 * TILE
                        ),
                    )
            for t, total in enumerate(totals):
                _store(b, out, total, m * rows + t // 2 * TILE, n * columns + t % 2 * WIDE, dtype)
    return b.finish()


def matmul_blocked(chip: str, dtype: str) -> Program:
    """Blocked in all three dimensions; partial sums of 1024 contraction rows are added in SBUF."""
    b, lhs, rhs, out = _product(chip, dtype, "matmul_blocked")
    depth, columns = 8, 2 * WIDE
    row_tiles = 16 if dtype == "bfloat16" else 8
    rows, blocks = row_tiles * TILE, M // (row_tiles * TILE)
    with b.loop(0, N // columns) as n:
        result = b.sbuf("result", (TILE, blocks * row_tiles * 2, WIDE), dtype)
        width = blocks * row_tiles * 2 * WIDE
        b.emit("memset", dst=result, value=0.0)
        with b.loop(0, K // (depth * TILE)) as k:
            right = b.sbuf("right", (TILE, depth, columns), dtype)
            for d in range(depth):
                b.emit(
                    "dma_copy",
                    dst=b.access(right, ((depth * columns, TILE), (1, columns)), d * columns),
                    src=b.access(rhs, ((N, TILE), (1, columns)), (k * depth + d) * (TILE * N) + n * columns),
                )
            with b.loop(0, blocks) as m:
                left = b.sbuf("left", (TILE, depth, rows), dtype)
                for d in range(depth):
                    b.emit(
                        "dma_copy",
                        dst=b.access(left, ((depth * rows, TILE), (1, rows)), d * rows),
                        src=b.access(lhs, ((M, TILE), (1, rows)), (k * depth + d) * (TILE * M) + m * rows),
                    )
                with b.loop(0, 2) as c, b.loop(0, row_tiles) as r:
                    total = b.psum("total", (TILE, WIDE), "float32")
                    for d in range(depth):
                        b.emit(
                            "nc_matmul",
                            dst=total,
                            moving=b.access(
                                right, ((depth * columns, TILE), (1, WIDE)), c * WIDE + d * columns
                            ),
                            stationary=b.access(left, ((depth * rows, TILE), (1, TILE)), r * TILE + d * rows),
                        )
                    target = b.access(
                        result, ((width, TILE), (1, WIDE)), ((m * row_tiles + r) * 2 + c) * WIDE
                    )
                    b.emit("tensor_tensor", dst=target, data1=total, data2=target, op="add")
        with b.loop(0, blocks * row_tiles) as r:
            b.emit(
                "dma_copy",
                dst=b.access(out, ((N, TILE), (1, columns)), r * (TILE * N) + n * columns),
                src=b.access(result, ((width, TILE), (1, columns)), r * columns),
            )
    return b.finish()


def vector_add(chip: str, rows: int) -> Program:
    """c = a + b of 25600 elements, `rows` of them in one tile of one column."""
    b = Builder(chip=chip, name=f"vec_add_{rows}")
    size = 25600
    sources = [b.hbm(name, (size,), "float32") for name in "ab"]
    out = b.hbm("c", (size,), "float32", kind="output")
    with b.loop(0, size // rows) as i:
        tiles = [b.sbuf(name, (rows, 1), "float32") for name in "ab"]
        for tile, source in zip(tiles, sources, strict=True):
            b.emit("dma_copy", dst=tile, src=b.access(source, ((1, rows), (1, 1)), i * rows))
        total = b.sbuf("c", (rows, 1), "float32")
        b.emit("tensor_tensor", dst=total, data1=tiles[0], data2=tiles[1], op="add")
        b.emit("dma_copy", dst=b.access(out, ((1, rows), (1, 1)), i * rows), src=total)
    return b.finish()


def mamba(chip: str, channels: int, hoisted: bool, length: int = 512, states: int = 16) -> Program:
    """The selective scan of the tutorial: per channel tile and state five Vector instructions; v2 hoists
    delta * u.
    """
    b = Builder(chip=chip, name="mamba")
    delta, u = (b.hbm(name, (channels, length), "float32") for name in ("delta", "u"))
    a = b.hbm("A", (channels, states), "float32")
    rows = [b.hbm(name, (states, length), "float32") for name in ("B", "C")]
    out = b.hbm("y", (channels, length), "float32", kind="output")
    ones = b.sbuf("ones", (1, TILE), "float32")
    b.emit("memset", dst=ones, value=1.0)

    def load(source: Any, channel: Any) -> Any:
        tile = b.sbuf("in", (TILE, length), "float32")
        b.emit(
            "dma_copy",
            dst=tile,
            src=b.access(source, ((length, TILE), (1, length)), channel * (TILE * length)),
        )
        return tile

    def pointwise(op: str, dst: Any, data1: Any, data2: Any) -> Any:
        b.emit("tensor_tensor", dst=dst, data1=data1, data2=data2, op=op)
        return dst

    def one(channel: Any, state: Any, delta_tile: Any, product: Any, u_tile: Any, total: Any) -> None:
        column = b.sbuf("A", (TILE, 1), "float32")
        b.emit(
            "dma_copy",
            dst=column,
            src=b.access(a, ((states, TILE), (1, 1)), channel * (TILE * states) + state),
        )
        decay = b.sbuf("decay", (TILE, length), "float32")
        b.emit("activation", dst=decay, op="exp", data=delta_tile, scale=b.access(column))
        spread = []
        for source in rows:  # one row over all partitions: a matmul with ones, into PSUM
            row, wide = b.sbuf("row", (1, length), "float32"), b.psum("wide", (TILE, length), "float32")
            b.emit("dma_copy", dst=row, src=b.access(source, ((length, 1), (1, length)), state * length))
            b.emit("nc_matmul", dst=wide, stationary=ones, moving=row)
            spread.append(wide)
        if product is None:
            product = pointwise("multiply", b.sbuf("delta_u", (TILE, length), "float32"), delta_tile, u_tile)
        drive = pointwise("multiply", b.sbuf("drive", (TILE, length), "float32"), product, spread[0])
        scanned = b.sbuf("scanned", (TILE, length), "float32")
        b.emit(
            "tensor_tensor_scan",
            dst=scanned,
            data0=decay,
            data1=drive,
            initial=0.0,
            op0="multiply",
            op1="add",
        )
        read = pointwise("multiply", b.sbuf("read", (TILE, length), "float32"), scanned, spread[1])
        pointwise("add", total, total, read)

    tiles = channels // TILE
    if hoisted:
        with b.loop(0, tiles) as channel:
            delta_tile, u_tile = load(delta, channel), load(u, channel)
            product = pointwise("multiply", b.sbuf("delta_u", (TILE, length), "float32"), delta_tile, u_tile)
            total = b.sbuf("total", (TILE, length), "float32")
            b.emit("memset", dst=total, value=0.0)
            with b.loop(0, states) as state:
                one(channel, state, delta_tile, product, u_tile, b.access(total))
            b.emit(
                "dma_copy",
                dst=b.access(out, ((length, TILE), (1, length)), channel * (TILE * length)),
                src=total,
            )
        return b.finish()
    totals = b.sbuf("totals", (TILE, tiles, length), "float32")
    b.emit("memset", dst=totals, value=0.0)
    with b.loop(0, states) as state, b.loop(0, tiles) as channel:
        total = b.access(totals, ((tiles * length, TILE), (1, length)), channel * length)
        one(channel, state, load(delta, channel), None, load(u, channel), total)
    with b.loop(0, tiles) as channel:
        b.emit(
            "dma_copy",
            dst=b.access(out, ((length, TILE), (1, length)), channel * (TILE * length)),
            src=b.access(totals, ((tiles * length, TILE), (1, length)), channel * length),
        )
    return b.finish()


def mamba_long(chip: str, channels: int, chunks: int, length: int = 512, states: int = 16) -> Program:
    """The tutorial's v3: the sequence in pieces of 512 that hand the scan's last column on."""
    b = Builder(chip=chip, name="mamba_long")
    whole = length * chunks
    delta, u = (b.hbm(name, (channels, whole), "float32") for name in ("delta", "u"))
    a = b.hbm("A", (channels, states), "float32")
    rows = [b.hbm(name, (states, whole), "float32") for name in ("B", "C")]
    out = b.hbm("y", (channels, whole), "float32", kind="output")
    ones = b.sbuf("ones", (1, TILE), "float32")
    b.emit("memset", dst=ones, value=1.0)

    def pointwise(op: str, dst: Any, data1: Any, data2: Any) -> Any:
        b.emit("tensor_tensor", dst=dst, data1=data1, data2=data2, op=op)
        return dst

    with b.loop(0, channels // TILE) as channel:
        delta_tile, u_tile, product, total = (
            b.sbuf(name, (TILE, whole), "float32") for name in ("delta", "u", "delta_u", "total")
        )
        for tile, source in ((delta_tile, delta), (u_tile, u)):
            b.emit(
                "dma_copy",
                dst=tile,
                src=b.access(source, ((whole, TILE), (1, whole)), channel * (TILE * whole)),
            )
        pointwise("multiply", product, delta_tile, u_tile)
        b.emit("memset", dst=total, value=0.0)
        with b.loop(0, states) as state:
            column, carry = b.sbuf("A", (TILE, 1), "float32"), b.sbuf("carry", (TILE, 1), "float32")
            start = channel * (TILE * states) + state
            b.emit("dma_copy", dst=column, src=b.access(a, ((states, TILE), (1, 1)), start))
            b.emit("memset", dst=carry, value=0.0)
            with b.loop(0, chunks) as chunk:

                def piece(tile: Any, chunk: Any = chunk) -> Any:
                    return b.access(tile, ((whole, TILE), (1, length)), chunk * length)

                decay, drive, scanned = (
                    b.sbuf(name, (TILE, length), "float32") for name in ("decay", "drive", "scanned")
                )
                b.emit("activation", dst=decay, op="exp", data=piece(delta_tile), scale=b.access(column))
                spread = []
                for source in rows:
                    row, wide = (
                        b.sbuf("row", (1, length), "float32"),
                        b.psum("wide", (TILE, length), "float32"),
                    )
                    start = state * whole + chunk * length
                    b.emit("dma_copy", dst=row, src=b.access(source, ((whole, 1), (1, length)), start))
                    b.emit("nc_matmul", dst=wide, stationary=ones, moving=row)
                    spread.append(wide)
                pointwise("multiply", drive, piece(product), spread[0])
                b.emit(
                    "tensor_tensor_scan",
                    dst=scanned,
                    data0=decay,
                    data1=drive,
                    initial=b.access(carry),
                    op0="multiply",
                    op1="add",
                )
                last = b.access(scanned, ((length, TILE), (1, 1)), length - 1)
                b.emit("tensor_copy", dst=carry, src=last, engine="scalar")
                read = pointwise("multiply", b.sbuf("read", (TILE, length), "float32"), scanned, spread[1])
                pointwise("add", piece(total), piece(total), read)
        b.emit(
            "dma_copy",
            dst=b.access(out, ((whole, TILE), (1, whole)), channel * (TILE * whole)),
            src=total,
        )
    return b.finish()


PROGRAMS: dict[str, Callable[..., Program]] = {
    "matmul_tiled": matmul_tiled,
    "matmul_hoisted": matmul_hoisted,
    "matmul_free_blocked": matmul_free_blocked,
    "matmul_blocked": matmul_blocked,
    "vector_add": vector_add,
    "mamba": mamba,
    "mamba_long": mamba_long,
    **BENCH_PROGRAMS,
}


@dataclass(frozen=True)
class Row:
    """One kernel: measured on the chip, simulated here, signed relative error."""

    name: str
    chip: str
    role: str
    family: str
    chain: str
    measured_us: float
    simulated_us: float
    source: str
    program: str

    @property
    def error(self) -> float:
        return self.simulated_us / self.measured_us - 1

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"error": self.error}


@functools.cache
def rows() -> tuple[Row, ...]:
    """Every kernel of data/measured_kernels.toml, timed."""
    entries = tomllib.loads((DATA / "measured_kernels.toml").read_text())["kernel"]
    result = []
    for entry in entries:
        program = PROGRAMS[entry["program"]](**entry["arguments"])
        result.append(
            Row(
                entry["name"],
                entry["arguments"]["chip"],
                entry["role"],
                entry["family"],
                entry["chain"],
                entry["measured_us"],
                # The classic compiler reschedules; the modern one leaves the order to the kernel.
                time(program, reorder=entry["family"] == "classic").nanoseconds / 1e3,
                entry["source"],
                entry["program"],
            )
        )
    return tuple(result)


def median_error(role: str | None = None, family: str | None = None) -> float:
    """Median absolute error of the kernels of that role and family."""
    return statistics.median(
        abs(row.error) for row in rows() if role in (None, row.role) and family in (None, row.family)
    )


# Versions whose durations differ by less are no order: the three compute-bound versions of the optimisation
# tutorial were measured within 0.8 % of each other.
TIE = 0.03


def _ranks(values: list[float]) -> list[float]:
    """Mean rank of each value; values closer than TIE to their neighbour share a rank."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    ranks, at = [0.0] * len(values), 0
    while at < len(order):
        end = at + 1
        while end < len(order) and values[order[end]] <= values[order[end - 1]] * (1 + TIE):
            end += 1
        for index in order[at:end]:
            ranks[index] = (at + end - 1) / 2
        at = end
    return ranks


def rank_correlation(chain: str) -> float:
    """Spearman's correlation of measured and simulated durations within one chain of versions."""
    members = [row for row in rows() if row.chain == chain]
    measured = _ranks([row.measured_us for row in members])
    simulated = _ranks([row.simulated_us for row in members])
    mean = (len(members) - 1) / 2
    product = sum((a - mean) * (b - mean) for a, b in zip(measured, simulated, strict=True))
    norm = sum((a - mean) ** 2 for a in measured) * sum((b - mean) ** 2 for b in simulated)
    return product / norm**0.5 if norm else 1.0


# Errors from which on the table shows what was observed about a kernel.
OFF = 0.249


@functools.cache
def observations() -> dict[str, str]:
    """Program or chain → what is seen beside its error; no constant is set from it."""
    return tomllib.loads((DATA / "measured_kernels.toml").read_text())["observations"]


def _mark(row: Row) -> str:
    known = list(observations())
    key = row.program if row.program in known else row.chain
    return f" ({known.index(key) + 1})" if abs(row.error) > OFF and key in known else ""


def table() -> str:
    lines = [
        f"{'kernel':<56}{'chip':<6}{'role':<7}{'family':<9}{'measured µs':>12}{'simulated µs':>13}{'error':>9}"  # noqa: E501
    ]
    for row in rows():
        lines.append(
            f"{row.name:<56}{row.chip:<6}{row.role:<7}{row.family:<9}{row.measured_us:>12.1f}{row.simulated_us:>13.1f}{row.error:>+9.1%}{_mark(row)}"
        )
    for family in ("modern", "classic"):
        for role in ("fit", "check"):
            count = sum(row.family == family and row.role == role for row in rows())
            lines.append(
                f"median absolute error, {family}, {role} ({count} kernels): {median_error(role, family):.1%}"
            )
    for chain in dict.fromkeys(row.chain for row in rows() if row.chain):
        lines.append(f"order within '{chain}': Spearman {rank_correlation(chain):.2f}")
    marks = {_mark(row) for row in rows()}
    for number, text in enumerate(observations().values(), 1):
        if f" ({number})" in marks:
            lines.append(f"({number}) {text}")
    lines.append("Generation 4: no public measurement; its timing is unvalidated.")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
