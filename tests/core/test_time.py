"""Time: the documented formulas, order and overlap, exactness of extrapolation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.core import Builder, Program, time
from opentrn.core.library import reductions
from opentrn.core.library.attention import flash_attention_program
from opentrn.core.library.elementwise import Operand, flat_program
from opentrn.core.library.fused import rmsnorm_matmul_silu_program
from opentrn.core.library.matmul import matmul_program
from opentrn.core.library.normalisations import softmax_like_program
from opentrn.core.machine import constants, timing_tables


def tiles(builder: Builder, /, **shapes: tuple[int, ...]) -> list:
    made = []
    for name, shape in shapes.items():
        space = "psum" if name.startswith("p") else "sbuf"
        dtype = "bfloat16" if name.endswith("h") else "float32"
        made.append(getattr(builder, space)(name, shape, dtype))
    return made


# (what is emitted on a fresh builder, engine, cycles by the published formula)
COSTS = {
    "matmul bf16": (
        "tensor",
        512,
        lambda b, t: b.emit("nc_matmul", dst=t["p"], stationary=t["ah"], moving=t["bh"]),
    ),
    "matmul fp32": (
        "tensor",
        4 * 512,
        lambda b, t: b.emit("nc_matmul", dst=t["p"], stationary=t["a"], moving=t["b"]),
    ),
    "activation": ("scalar", 512, lambda b, t: b.emit("activation", dst=t["b"], op="exp", data=t["c"])),
    "activation_reduce": (
        "scalar",
        512 + 64,
        lambda b, t: b.emit(
            "activation_reduce", dst=t["b"], op="exp", data=t["c"], reduce_op="add", reduce_res=t["one"]
        ),
    ),
    "tensor_tensor fp32": (
        "vector",
        2 * 512,
        lambda b, t: b.emit("tensor_tensor", dst=t["b"], data1=t["b"], data2=t["c"], op="add"),
    ),
    "tensor_tensor half PSUM": (
        "vector",
        512,
        lambda b, t: b.emit("tensor_tensor", dst=t["b"], data1=t["p2"], data2=t["c"], op="add"),
    ),
    "tensor_copy bf16": ("vector", 128, lambda b, t: b.emit("tensor_copy", dst=t["bh"], src=t["ch"])),
    "tensor_scalar": (
        "vector",
        512,
        lambda b, t: b.emit("tensor_scalar", dst=t["b"], data=t["c"], op0="add", operand0=1.0),
    ),
    "small": (
        "vector",
        64,
        lambda b, t: b.emit("tensor_scalar", dst=t["one"], data=t["one"], op0="add", operand0=1.0),
    ),
    "scan": (
        "vector",
        1024,
        lambda b, t: b.emit(
            "tensor_tensor_scan",
            dst=t["b"],
            data0=t["b"],
            data1=t["c"],
            initial=0.0,
            op0="multiply",
            op1="add",
        ),
    ),
    "bn_stats": ("vector", 512, lambda b, t: b.emit("bn_stats", dst=t["six"], data=t["c"])),
    "reciprocal": ("vector", 8 * 512, lambda b, t: b.emit("reciprocal", dst=t["b"], data=t["c"])),
    "memset": ("vector", 256, lambda b, t: b.emit("memset", dst=t["bh"], value=0)),
    "iota": ("gpsimd", 150 + 512, lambda b, t: b.emit("iota", dst=t["b"], pattern=[[1, 512]])),
    "transpose": ("tensor", 128, lambda b, t: b.emit("nc_transpose", dst=t["p128"], data=t["a"])),
}


@pytest.mark.parametrize("case", COSTS)
def test_costs_are_the_published_formulas(case: str) -> None:
    engine, cycles, emit = COSTS[case]
    b = Builder()
    names = dict(
        a=(128, 128),
        ah=(128, 128),
        b=(128, 512),
        bh=(128, 512),
        c=(128, 512),
        ch=(128, 512),
        one=(128, 1),
        six=(128, 6),
        p=(128, 512),
        p2=(128, 512),
        p128=(128, 128),
    )
    emit(b, dict(zip(names, tiles(b, **names), strict=True)))
    busy = time(b.finish()).busy
    assert busy[engine] * constants("trn2")[f"{engine}_ghz"] == pytest.approx(cycles)
    assert sum(busy.values()) == busy[engine]


def test_a_dependent_chain_waits_and_an_independent_one_does_not() -> None:
    """One-element activations: dependent ones issue every 264 cycles (189 ns at 1.4 GHz) as documented;
    others every 64.
    """

    def chain(dependent: bool) -> float:
        b = Builder(chip="trn1")
        data = tiles(b, **{f"x{k}": (128, 1) for k in range(65)})
        for k in range(64):
            b.emit("activation", dst=data[k + 1], op="exp", data=data[k] if dependent else data[0])
        return time(b.finish()).nanoseconds / 64

    assert chain(True) == pytest.approx(189, rel=0.02)
    assert chain(False) == pytest.approx(64 / 1.4, rel=0.1)


def test_engines_overlap_and_queues_keep_order() -> None:
    b = Builder()
    x, y, z = tiles(b, x=(128, 512), y=(128, 512), z=(128, 512))
    b.emit("activation", dst=y, op="exp", data=x)
    b.emit("tensor_scalar", dst=z, data=x, op0="add", operand0=1.0)
    both = time(b.finish(), record=True)
    assert both.nanoseconds < 1.2 * max(both.busy.values()) + 200
    starts = both.intervals["start_ns"]
    assert starts[0] == starts[1] == 0


def test_waits_have_causes_and_the_critical_path_explains_the_duration() -> None:
    b = Builder()
    b.source("kernel.py", 5)
    x = b.hbm("x", (128, 512), "float32")
    a, c = tiles(b, a=(128, 512), c=(128, 512))
    b.emit("dma_copy", dst=a, src=x)
    b.source("kernel.py", 6)
    b.emit("activation", dst=c, op="exp", data=a)
    b.emit("dma_copy", dst=b.hbm("y", (128, 512), "float32", kind="output"), src=c)
    timing = time(b.finish(), record=True)
    assert [step.engine for step in timing.critical_path] == ["dma", "scalar", "dma"]
    assert timing.critical_path[-1].end == timing.nanoseconds
    assert any(
        "waits for data of dma_copy (kernel.py:5)" in stall.cause and stall.source == "kernel.py:6"
        for stall in timing.stalls
    )
    assert timing.bytes == {"hbm->sbuf": 128 * 512 * 4, "sbuf->hbm": 128 * 512 * 4}
    assert "bound by" in timing.table()


def test_accumulating_matmuls_do_not_wait_for_each_other() -> None:
    b = Builder()
    a, m = tiles(b, ah=(128, 128), mh=(128, 512))
    total = b.psum("total", (128, 512), "float32")
    for _ in range(16):
        b.emit("nc_matmul", dst=total, stationary=a, moving=m)
    timing = time(b.finish())
    assert timing.nanoseconds == pytest.approx(
        16 * 512 / 2.4 + constants("trn2")["matmul_latency_ns"], rel=1e-3
    )
    assert timing.flops == 16 * 2 * 128 * 128 * 512


def test_gen2_vector_and_gpsimd_share_a_port() -> None:
    def run(chip: str) -> float:
        b = Builder(chip=chip)
        x, y = tiles(b, x=(128, 512), y=(128, 512))
        b.emit("tensor_scalar", dst=x, data=x, op0="add", operand0=1.0)
        b.emit("iota", dst=y, pattern=[[1, 512]])
        timing = time(b.finish())
        return timing.nanoseconds / (timing.busy["vector"] + timing.busy["gpsimd"])

    assert run("trn1") > 0.99
    assert run("trn2") < 0.9


ADDITION = flat_program("y0 = x0 + x1", (Operand("bfloat16"),) * 2, (Operand("bfloat16"),))
PROGRAMS = {
    "matmul": (matmul_program("bfloat16"), {"M": 2048, "N": 4096, "K": 1024}),
    "ragged matmul": (matmul_program("float32"), {"M": 1500, "N": 5000, "K": 1100}),
    "pointwise": (ADDITION, {"T": 1, "E": 40_000_000, "W": 2048}),
    "activation": (
        flat_program("y0 = exp(x0)", (Operand("float32"),), (Operand("float32"),)),
        {"T": 1, "E": 20_000_123, "W": 2048},
    ),
    "reduction": (reductions.rows_program("bfloat16", "bfloat16"), {"M": 4096, "N": 8192, "R": 1}),
    "softmax": (
        softmax_like_program("softmax", ("bfloat16",), "bfloat16", 2048),
        {"M": 8192, "N": 2048},
    ),
    "attention": (flash_attention_program(128), {"H": 4, "S": 2048, "T": 4096}),
    "causal attention": (flash_attention_program(64, "bfloat16", True), {"H": 2, "S": 4096, "T": 4096}),
    "fused": (rmsnorm_matmul_silu_program("bfloat16"), {"M": 2048, "N": 4096, "K": 2048}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_extrapolation_agrees_with_the_full_walk(name: str) -> None:
    """The bound: half a per cent of the duration, every counter exact."""
    program, symbols = PROGRAMS[name]
    fast, full = (time(program, symbols, extrapolate=extrapolate) for extrapolate in (True, False))
    assert abs(fast.nanoseconds / full.nanoseconds - 1) < 0.005
    assert fast.instructions == full.instructions
    assert fast.bytes == full.bytes and fast.flops == full.flops
    for engine, busy in full.busy.items():
        assert fast.busy[engine] == pytest.approx(busy, rel=1e-9)


def test_steady_loops_are_skipped() -> None:
    program, symbols = PROGRAMS["pointwise"]
    fast, full = (time(program, symbols, extrapolate=extrapolate) for extrapolate in (True, False))
    assert fast.extrapolated_loops >= 1
    assert fast.stepped < full.stepped / 3


def test_large_programs_are_timed_in_milliseconds() -> None:
    program, symbols = ADDITION, {"T": 1, "E": 1 << 34, "W": 2048}
    assert time(program, symbols).stepped < 3000


def test_two_cores_share_the_work() -> None:
    b = Builder(cores=2)
    for core in range(2):
        b.core(core)
        x = b.hbm("x", (2, 128, 2048), "float32")
        data = b.sbuf("d", (128, 2048), "float32")
        b.emit("dma_copy", dst=data, src=b.access(x, ((2048, 128), (1, 2048)), core * 128 * 2048))
        b.emit("activation", dst=data, op="exp", data=data)
        b.emit("core_barrier", cores=(0, 1))
    timing = time(b.finish())
    assert timing.core_nanoseconds[0] == timing.core_nanoseconds[1]
    assert timing.busy["scalar"] == pytest.approx(2 * 2048 / 1.2)


def test_unknown_trip_counts_are_assumed_aloud() -> None:
    b = Builder()
    x, data = b.hbm("n", (1, 1), "int32"), b.sbuf("d", (128, 512), "float32")
    n = b.register(name="trips")
    b.emit("register_load", dst=n, src=b.access(x))
    with b.loop(0, n, kind="dynamic"):
        b.emit("activation", dst=data, op="exp", data=data)
    program = b.finish()
    assert any("trips" in note for note in time(program).assumptions)
    assert time(program, registers={"trips": 20}).counts["scalar"] == 20


def test_every_timing_constant_says_how_it_is_known() -> None:
    tables = timing_tables()
    status = {key for kind in ("documented", "fitted", "assumed") for key in tables["status"][kind]}
    for generation in ("gen2", "gen3", "gen4"):
        assert set(tables[generation]) - {"hbm_bytes"} <= status, set(tables[generation]) - status


def test_time_is_deterministic() -> None:
    program, symbols = PROGRAMS["attention"]
    first = time(program, symbols, extrapolate=False)
    again = time(Program.from_bytes(program.to_bytes()), symbols, extrapolate=False)
    assert first.nanoseconds == again.nanoseconds and first.busy == again.busy
    assert np.isfinite(first.nanoseconds)


def overlapping_pieces(pieces: int) -> Program:
    """Scalar and Vector take turns on each piece; the pieces are independent."""
    b = Builder(chip="trn2")
    with b.loop(0, pieces):
        (tile,) = tiles(b, tile=(128, 512))
        b.emit("memset", dst=tile, value=0.5, engine="gpsimd")
        for _ in range(4):
            b.emit("activation", dst=tile, op="exp", data=tile)
            b.emit("tensor_scalar", dst=tile, data=tile, op0="minimum", operand0=1.0)
    return b.finish()


def test_reordering_fills_idle_time_and_nothing_else() -> None:
    program = overlapping_pieces(200)
    kept, free = time(program), time(program, reorder=True)
    assert max(free.busy.values()) <= free.nanoseconds < 0.7 * kept.nanoseconds
    assert free.busy == kept.busy and free.counts == kept.counts


def test_reordering_keeps_every_dependence() -> None:
    """Intervals of one engine never overlap, and a piece's steps stay in their order."""
    timing = time(overlapping_pieces(12), reorder=True, record=True)
    starts, ends, engines = (np.asarray(timing.intervals[k]) for k in ("start_ns", "end_ns", "engine"))
    for engine in set(engines):
        order = np.argsort(starts[engines == engine], kind="stable")
        begin, stop = starts[engines == engine][order], ends[engines == engine][order]
        assert (begin[1:] >= stop[:-1] - 1e-6).all()
    for piece in range(12):
        steps = slice(piece * 9, piece * 9 + 9)
        assert (starts[steps][1:] >= ends[steps][:-1] - 1e-6).all()


def test_reordered_loops_are_extrapolated_within_one_per_cent() -> None:
    program = overlapping_pieces(400)
    short, whole = time(program, reorder=True), time(program, reorder=True, extrapolate=False)
    assert short.nanoseconds == pytest.approx(whole.nanoseconds, rel=0.01)
    assert short.stepped < whole.stepped


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["vector", "scalar", "gpsimd"]), *[st.integers(0, 3)] * 2, st.integers(0, 3)
        ),
        min_size=2,
        max_size=24,
    )
)
def test_reordered_instructions_never_pass_what_they_depend_on(
    steps: list[tuple[str, int, int, int]],
) -> None:
    """Random copies between halves of a few tiles. What shares bytes, and is written once, keeps its order;
    what an engine reads of its own result may follow it element by element."""
    b = Builder(chip="trn2")
    pool = [b.sbuf(f"t{n}", (128, 512), "float32") for n in range(4)]
    for tile in pool:
        b.emit("memset", dst=tile, value=1.0, engine="vector")
    plan = [("vector", {(n, 0), (n, 1)}, set()) for n in range(4)]
    for engine, target, source, halves in steps:
        width, start = (512, 0) if halves > 1 else (256, 256 * halves)
        parts = [b.access(pool[n], ((512, 128), (1, width)), start) for n in (target, source)]
        if engine == "scalar":
            b.emit("activation", dst=parts[0], op="exp", data=parts[1])
        else:
            b.emit("tensor_copy", dst=parts[0], src=parts[1], engine=engine)
        covered = {0, 1} if halves > 1 else {halves}
        plan.append((engine, {(target, h) for h in covered}, {(source, h) for h in covered}))
    intervals = time(b.finish(), reorder=True, record=True).intervals
    starts, ends = np.asarray(intervals["start_ns"]), np.asarray(intervals["end_ns"])
    assert len(starts) == len(plan)
    for later in range(len(plan)):
        for earlier in range(later):
            engine, wrote, read = plan[earlier]
            mine, writes, reads = plan[later]
            if wrote & reads and engine == mine:
                assert starts[later] >= starts[earlier]
            elif wrote & (reads | writes) or read & writes:
                assert starts[later] >= ends[earlier] - 1e-6, (earlier, later)
            if engine == mine:
                assert starts[later] >= ends[earlier] - 1e-6 or starts[earlier] >= ends[later] - 1e-6


def test_a_reordered_load_is_at_most_one_version_ahead() -> None:
    """Its tile has two places in time: the readers of the version before the last are done when it starts."""
    b = Builder(chip="trn2")
    source = b.hbm("source", (128, 16 * 512), "float32")
    tile, total = b.sbuf("tile", (128, 512), "float32"), b.sbuf("total", (128, 512), "float32")
    b.emit("memset", dst=total, value=0.0)
    for k in range(16):
        b.emit("dma_copy", dst=tile, src=b.access(source, ((16 * 512, 128), (1, 512)), k * 512))
        for _ in range(8):
            b.emit("tensor_tensor", dst=total, data1=total, data2=tile, op="add")
    program = b.finish()
    free, kept = (time(program, reorder=reorder, record=True) for reorder in (True, False))
    starts, ends = (np.asarray(free.intervals[k])[1:].reshape(16, 9) for k in ("start_ns", "end_ns"))
    assert (starts[2:, 0] >= ends[:-2, 8] - 1e-6).all()
    assert (starts[1:, 0] < ends[:-1, 8]).all() and free.nanoseconds < kept.nanoseconds
    assert (starts[:, 1] >= ends[:, 0] - 1e-6).all()


def test_many_small_transfers_are_bound_by_their_issue() -> None:
    """Descriptors of one queue are written one after another, at about 600 ns for each transfer."""
    b = Builder(chip="trn2")
    source = b.hbm("source", (128, 4096), "float32")
    for k in range(64):
        tile = b.sbuf(f"t{k}", (128, 16), "float32")
        b.emit("dma_copy", dst=tile, src=b.access(source, ((4096, 128), (1, 16)), 16 * k))
    timing = time(b.finish())
    assert timing.bound == "dma issue" and max(timing.busy.values()) < timing.dma_issue <= timing.nanoseconds
    assert timing.dma_issue == pytest.approx(64 * constants("trn2")["dma_issue_ns"], rel=0.01)
    assert "issue" in timing.table()
