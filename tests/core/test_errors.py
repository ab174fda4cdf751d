"""What a program may not do: each is caught, with the instruction, the limit and the user's line."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from opentrn.core import Builder, execute, execute_ranks, time
from opentrn.errors import (
    CapacityError,
    ConfigurationError,
    OpenTRNError,
    OutOfBoundsError,
    UndefinedBehaviourError,
    UnsupportedError,
)


def build(chip: str = "trn2", cores: int = 1) -> Builder:
    b = Builder(chip=chip, cores=cores, name="bad")
    b.source("kernel.py", 42)
    return b


def tile(
    b: Builder, shape: tuple[int, ...] = (128, 64), dtype: str = "float32", space: str = "sbuf", **where: Any
) -> Any:
    made = getattr(b, space)("t", shape, dtype, **where)
    b.emit("memset", dst=made, value=0)
    return made


def tiled_matmul(b: Builder, contraction: int = 64, **where: Any) -> None:
    """A product that uses a part of the Tensor engine's array."""
    b.emit(
        "nc_matmul",
        dst=b.psum("o", (32, 64), "float32"),
        stationary=tile(b, (contraction, 32)),
        moving=tile(b, (contraction, 64)),
        **where,
    )


LIMITS: dict[str, tuple[type[OpenTRNError], str, Callable[[Builder], None]]] = {
    "stationary too wide": (
        UnsupportedError,
        "stationary free size is at most 128",
        lambda b: b.emit(
            "nc_matmul", dst=b.psum("o", (128, 64), "float32"), stationary=tile(b, (128, 129)), moving=tile(b)
        ),
    ),
    "moving too wide": (
        UnsupportedError,
        "moving free size is at most 512",
        lambda b: b.emit(
            "nc_matmul", dst=b.psum("o", (64, 513), "float32"), stationary=tile(b), moving=tile(b, (128, 513))
        ),
    ),
    "contraction differs": (
        UnsupportedError,
        "contract over equally many partitions",
        lambda b: b.emit(
            "nc_matmul", dst=b.psum("o", (64, 64), "float32"), stationary=tile(b, (64, 64)), moving=tile(b)
        ),
    ),
    "tile_position alone": (
        UnsupportedError,
        "given together",
        lambda b: tiled_matmul(b, tile_position=(0, 0)),
    ),
    "tile_size not a multiple of 32": (
        UnsupportedError,
        "multiple of 32",
        lambda b: tiled_matmul(b, tile_position=(0, 0), tile_size=(48, 64)),
    ),
    "tile_position not a multiple of 32": (
        UnsupportedError,
        "multiple of 32",
        lambda b: tiled_matmul(b, tile_position=(16, 0), tile_size=(32, 64)),
    ),
    "tile beyond the array": (
        UnsupportedError,
        "within the 128 x 128",
        lambda b: tiled_matmul(b, tile_position=(96, 0), tile_size=(64, 64)),
    ),
    "stationary beyond its tile": (
        UnsupportedError,
        "fits in the tile",
        lambda b: tiled_matmul(b, tile_position=(0, 0), tile_size=(32, 64)),
    ),
    "matmul into SBUF": (
        UnsupportedError,
        "'dst' may not be in sbuf",
        lambda b: b.emit("nc_matmul", dst=tile(b, (64, 64)), stationary=tile(b), moving=tile(b)),
    ),
    "both inputs in PSUM": (
        UnsupportedError,
        "not both in PSUM",
        lambda b: b.emit(
            "tensor_tensor", dst=tile(b), data1=tile(b, space="psum"), data2=tile(b, space="psum"), op="add"
        ),
    ),
    "element counts differ": (
        UnsupportedError,
        "equally many elements",
        lambda b: b.emit("tensor_copy", dst=tile(b), src=tile(b, (128, 63))),
    ),
    "bn_stats too long": (
        UnsupportedError,
        "at most 512 elements",
        lambda b: b.emit("bn_stats", dst=tile(b, (128, 6)), data=tile(b, (128, 513))),
    ),
    "partition start": (
        UnsupportedError,
        "starts at partition 16",
        lambda b: b.emit("memset", dst=b.access(tile(b), ((64, 32), (1, 64)), 16 * 64), value=0),
    ),
    "wide block in the upper half": (
        UnsupportedError,
        "starts at partition 32 with 65",
        lambda b: b.emit("memset", dst=b.access(tile(b), ((64, 65), (1, 64)), 32 * 64), value=0),
    ),
    "one element too far": (
        OutOfBoundsError,
        "reaches element 64 of a partition",
        lambda b: b.emit("memset", dst=b.access(tile(b), ((64, 128), (1, 64)), 1), value=0),
    ),
    "one row too far": (
        OutOfBoundsError,
        "which has 512",
        lambda b: b.emit(
            "dma_copy", dst=tile(b, (9, 64)), src=b.access(b.hbm("x", (8, 64), "float32"), ((64, 9), (1, 64)))
        ),
    ),
    "129 partitions": (CapacityError, "129 partitions", lambda b: tile(b, (129, 4))),
    "PSUM too small": (CapacityError, "16384", lambda b: tile(b, (128, 4097), space="psum")),
    "pinned beyond the end": (OutOfBoundsError, "pinned", lambda b: tile(b, address=(0, 229376 - 100))),
    "double_row of bf16": (
        UnsupportedError,
        "double_row takes fp8",
        lambda b: b.emit(
            "nc_matmul",
            dst=b.psum("o", (32, 32), "float32"),
            stationary=tile(b, (128, 2, 32)),
            moving=tile(b, (128, 2, 32)),
            perf_mode="double_row",
        ),
    ),
    "MX before gen4": (
        UnsupportedError,
        "generation 4",
        lambda b: b.emit(
            "quantize_mx",
            dst=tile(b, (32, 4), "float8_e4m3fn_x4"),
            src=tile(b, (32, 16)),
            dst_scale=tile(b, (32, 4), "uint8"),
        ),
    ),
    "wrong engine": (
        UnsupportedError,
        "engine 'tensor' cannot execute",
        lambda b: b.emit("tensor_copy", dst=tile(b), src=tile(b), engine="tensor"),
    ),
    "unknown operation": (
        UnsupportedError,
        "'plus' is not an ALU operation",
        lambda b: b.emit("tensor_tensor", dst=tile(b), data1=tile(b), data2=tile(b), op="plus"),
    ),
    "unknown instruction": (
        UnsupportedError,
        "'tensor_frobnicate' is not an instruction",
        lambda b: b.emit("tensor_frobnicate"),
    ),
    "unknown argument": (
        ConfigurationError,
        "no argument 'source'",
        lambda b: b.emit("tensor_copy", dst=tile(b), source=tile(b)),
    ),
    "missing argument": (
        ConfigurationError,
        "'src' is missing",
        lambda b: b.emit("tensor_copy", dst=tile(b)),
    ),
    "number for a tensor": (
        ConfigurationError,
        "must be a tensor",
        lambda b: b.emit("tensor_copy", dst=tile(b), src=3),
    ),
    "64-bit arithmetic": (
        UnsupportedError,
        "8-byte elements",
        lambda b: b.emit("tensor_copy", dst=tile(b), src=tile(b, dtype="int64")),
    ),
    "six dimensions": (
        UnsupportedError,
        "1 to 5 entries",
        lambda b: b.access(tile(b), ((64, 128), *((1, 1),) * 5)),
    ),
    "the other core's tile": (ConfigurationError, "belongs to core", lambda b: _foreign(b)),
}


def _foreign(b: Builder) -> None:
    b = build(cores=2)
    mine = tile(b)
    b.core(1)
    b.emit("memset", dst=mine, value=0)


@pytest.mark.parametrize("case", LIMITS)
def test_limits_are_refused_where_they_are_broken(case: str) -> None:
    category, text, action = LIMITS[case]
    b = build()
    with pytest.raises(category) as caught:
        action(b)
    assert text in str(caught.value)
    assert "kernel.py:42" in str(caught.value)


def finish(b: Builder, source: Any) -> dict[str, np.ndarray]:
    b.emit("dma_copy", dst=b.hbm("y", source.shape, source.dtype, kind="output"), src=source)
    return execute(b.finish(), {})


def test_uninitialised_reads() -> None:
    b = build()
    part = b.sbuf("part", (128, 64), "float32")
    b.emit("memset", dst=b.access(part, ((64, 128), (1, 63))), value=1.0)
    b.source("kernel.py", 77)
    b.emit("tensor_copy", dst=tile(b), src=part)
    program = b.finish()
    with pytest.raises(
        UndefinedBehaviourError, match=r"tensor_copy.*'src'.*nothing has written.*kernel.py:77"
    ):
        execute(program, {})
    out = build()
    part = out.sbuf("part", (128, 64), "float32")
    out.emit("dma_copy", dst=out.hbm("y", (128, 64), "float32", kind="output"), src=part)
    assert np.isnan(execute(out.finish(), {}, check=False)["y"]).all()


def test_memory_of_earlier_results_shows_in_none() -> None:
    """Large results take the memory of results that are gone; those that are held keep theirs."""

    def filled(rows: int, value: float) -> Builder:
        b = build()
        y = b.hbm("y", (128, 1024), "float32", kind="output")
        source = b.sbuf("s", (rows, 1024), "float32")
        b.emit("memset", dst=source, value=value)
        b.emit("dma_copy", dst=b.access(y, ((1024, rows), (1, 1024))), src=source)
        return b

    whole, part = filled(128, 7.0).finish(), filled(64, 3.0).finish()
    held = execute(whole, {})["y"]
    for _ in range(3):
        assert (execute(whole, {})["y"] == 7.0).all()
        result = execute(part, {})["y"]
        assert (result[:64] == 3.0).all() and np.isnan(result[64:]).all()
        assert np.isnan(execute(part, {}, check=False)["y"][64:]).all()
    assert (held == 7.0).all()


def test_a_reused_tile_starts_unwritten() -> None:
    b = build()
    with b.loop(0, 3) as i:
        fresh = b.sbuf("fresh", (128, 8), "float32")
        with b.loop(i, 1):  # writes it in the first iteration only
            b.emit("memset", dst=fresh, value=1.0)
        b.emit("tensor_copy", dst=tile(b, (128, 8)), src=fresh)
    with pytest.raises(UndefinedBehaviourError, match="nothing has written"):
        execute(b.finish(), {})


def test_pinned_tensors_alias() -> None:
    b = build()
    low = b.sbuf("low", (128, 16), "float32", address=(0, 0))
    high = b.sbuf("high", (128, 16), "float32", address=(0, 32))
    b.emit("memset", dst=low, value=1.0)
    b.emit("memset", dst=high, value=2.0)
    out = finish(b, low)["y"]
    assert out[0].tolist() == [1.0] * 8 + [2.0] * 8


def test_matmul_accumulates_from_its_first_write() -> None:
    b = build()
    ones = b.sbuf("ones", (128, 8), "float32")
    b.emit("memset", dst=ones, value=1.0)
    total = b.psum("total", (8, 8), "float32")
    for _ in range(3):
        b.emit("nc_matmul", dst=total, stationary=ones, moving=ones)
    staged = b.sbuf("staged", (8, 8), "float32")
    b.emit("tensor_copy", dst=staged, src=total)
    assert finish(b, staged)["y"][0, 0] == 384


def test_accumulation_belongs_to_the_tensor_not_to_its_bank() -> None:
    b = build()
    ones = b.sbuf("ones", (128, 8), "float32")
    b.emit("memset", dst=ones, value=1.0)
    first, second = (b.psum(name, (8, 8), "float32", address=(0, 0)) for name in ("first", "second"))
    b.emit("nc_matmul", dst=first, stationary=ones, moving=ones)
    b.emit("nc_matmul", dst=second, stationary=ones, moving=ones)  # overwrites: `second` was not written yet
    b.emit("nc_matmul", dst=second, stationary=ones, moving=ones)
    staged = b.sbuf("staged", (8, 8), "float32")
    b.emit("tensor_copy", dst=staged, src=second)
    assert finish(b, staged)["y"][0, 0] == 256


def test_a_snapshot_runs_while_building_goes_on() -> None:
    b = build()
    data = tile(b, (2, 4))
    out = b.hbm("y", (2, 4), "float32", kind="internal")
    b.emit("dma_copy", dst=out, src=data)
    b.set_kind(out, "output")
    assert execute(b.snapshot(), {})["y"].sum() == 0
    b.emit("tensor_scalar", dst=data, data=data, op0="add", operand0=3.0)
    b.emit("dma_copy", dst=out, src=data)
    assert execute(b.finish(), {})["y"].sum() == 24


def test_programs_without_the_capacity_limit() -> None:
    b = build()
    tiles = [tile(b, (128, 8192)) for _ in range(9)]
    for k, one in enumerate(tiles):
        b.emit("tensor_scalar", dst=one, data=one, op0="add", operand0=float(k))
    b.emit("dma_copy", dst=b.hbm("y", (128, 8192), "float32", kind="output"), src=tiles[8])
    for one in tiles:
        b.emit("tensor_copy", dst=one, src=one)
    program = b.finish(capacity=False)
    assert execute(program, {})["y"][0, 0] == 8
    assert time(program).nanoseconds > 0


def test_dynamic_bounds_are_checked_as_they_run() -> None:
    b = build()
    data = tile(b, (128, 64))
    with b.loop(0, 9) as i:  # one iteration too many
        b.emit("memset", dst=b.access(data, ((64, 128), (1, 8)), i * 8), value=0)
    with pytest.raises(OutOfBoundsError, match=r"memset.*element 8199.*kernel.py:42"):
        execute(b.finish(), {})


def test_indices_out_of_range_and_duplicates() -> None:
    for indices, mode, category in (
        ([1, 5], "error", OutOfBoundsError),
        ([2, 2], "error", UndefinedBehaviourError),
    ):
        b = build()
        index = b.sbuf("index", (2, 1), "int32")
        b.emit("dma_copy", dst=index, src=b.hbm("i", (2, 1), "int32"))
        out = b.hbm("y", (4, 8), "float32", kind="inout")
        target = b.access(
            out, ((8, 2), (1, 8)), vector_offset=b.access(index), vector_stride=8, vector_bound=4
        )
        b.emit(
            "dma_compute",
            dst=target,
            srcs=[target, b.access(tile(b, (2, 8)))],
            reduce_op="add",
            oob_mode=mode,
        )
        with pytest.raises(category):
            execute(
                b.finish(), {"i": np.array(indices, np.int32)[:, None], "y": np.zeros((4, 8), np.float32)}
            )


def test_an_affine_loop_that_carries_a_value_is_a_race() -> None:
    def program(kind: str) -> Any:
        b = build()
        total = b.sbuf("total", (128, 1), "float32")
        with b.loop(0, 4, kind=kind) as i:
            with b.loop(i, 1):
                b.emit("memset", dst=total, value=0.0)
            b.emit("tensor_scalar", dst=total, data=total, op0="add", operand0=1.0)
        b.emit("dma_copy", dst=b.hbm("y", (128, 1), "float32", kind="output"), src=total)
        return b.finish()

    assert execute(program("sequential"), {})["y"][0, 0] == 4
    with pytest.raises(UndefinedBehaviourError, match="loop-carried dependence"):
        execute(program("affine"), {})


def two_cores(barrier: bool) -> Any:
    b = build(cores=2)
    for core in range(2):
        b.core(core)
        shared = b.hbm("shared", (2, 64), "float32", kind="internal")
        out = b.hbm("y", (2, 64), "float32", kind="output")
        mine = b.sbuf("mine", (1, 64), "float32")
        b.emit("memset", dst=mine, value=core + 1.0)
        b.emit("dma_copy", dst=b.access(shared, ((64, 1), (1, 64)), core * 64), src=mine)
        if barrier:
            b.emit("core_barrier", data=b.access(shared), cores=(0, 1))
        b.emit("dma_copy", dst=mine, src=b.access(shared, ((64, 1), (1, 64)), (1 - core) * 64))
        b.emit("dma_copy", dst=b.access(out, ((64, 1), (1, 64)), core * 64), src=mine)
    return b.finish()


def test_cores_share_hbm_behind_a_barrier_only() -> None:
    assert execute(two_cores(True), {})["y"][:, 0].tolist() == [2.0, 1.0]
    with pytest.raises(UndefinedBehaviourError, match=r"race.*'shared'|nothing has written"):
        execute(two_cores(False), {})
    assert execute(two_cores(False), {}, check=False)["y"].shape == (2, 64)  # unchecked: whatever came first


def test_two_cores_writing_one_place_is_a_race() -> None:
    b = build(cores=2)
    for core in range(2):
        b.core(core)
        mine = b.sbuf("mine", (1, 64), "float32")
        b.emit("memset", dst=mine, value=(1.1, 2.3)[core])  # equal bytes would be no race
        b.emit("dma_copy", dst=b.hbm("y", (1, 64), "float32", kind="output"), src=mine)
    program = b.finish()
    with pytest.raises(
        UndefinedBehaviourError, match=r"race: core \d writes byte 0 of HBM tensor 'y'.*kernel.py:42"
    ):
        execute(program, {})
    assert execute(program, {}, check=False)["y"][0, 0] in np.float32((1.1, 2.3))


def exchange(pipes: tuple[int, int]) -> Any:
    b = build(cores=2)
    for core in range(2):
        b.core(core)
        mine, other = b.sbuf("mine", (16, 4), "float32"), b.sbuf("other", (16, 4), "float32")
        b.emit("memset", dst=mine, value=10.0 * (core + 1))
        b.emit(
            "sendrecv",
            src=mine,
            dst=other,
            send_to_rank=1 - core,
            recv_from_rank=1 - core,
            pipe_id=pipes[core],
        )
        out = b.hbm("y", (32, 4), "float32", kind="output")
        b.emit("dma_copy", dst=b.access(out, ((4, 16), (1, 4)), core * 64), src=other)
    return b.finish()


def test_sendrecv_and_deadlock() -> None:
    assert execute(exchange((0, 0)), {})["y"][[0, 16], 0].tolist() == [20.0, 10.0]
    assert time(exchange((0, 0))).nanoseconds > 1000
    with pytest.raises(
        UndefinedBehaviourError, match=r"deadlock.*core 0 waits at sendrecv.*core 1 waits at sendrecv"
    ):
        execute(exchange((0, 1)), {})


def collective(name: str, **arguments: Any) -> Any:
    b = build()
    rows = {"all_gather": 4, "reduce_scatter": 1}.get(name, 2)
    x, y = b.hbm("x", (2, 4), "float32"), b.hbm("y", (rows, 4), "float32", kind="output")
    b.emit(name, srcs=[b.access(x)], dsts=[b.access(y)], **arguments)
    return b.finish()


def test_collectives_between_ranks() -> None:
    data = [np.arange(8, dtype=np.float32).reshape(2, 4) + 100 * rank for rank in range(2)]
    groups = [[0, 1]]
    expected = {
        "all_reduce": [data[0] + data[1]] * 2,
        "all_gather": [np.concatenate(data)] * 2,
        "reduce_scatter": [(data[0] + data[1])[:1], (data[0] + data[1])[1:]],
        "all_to_all": [np.stack([data[0][0], data[1][0]]), np.stack([data[0][1], data[1][1]])],
    }
    for name, results in expected.items():
        program = collective(name, replica_group=groups, **({"op": "add"} if "reduce" in name else {}))
        outputs = execute_ranks([program] * 2, [{"x": part} for part in data])
        for found, wanted in zip(outputs, results, strict=True):
            np.testing.assert_array_equal(found["y"], wanted, err_msg=name)
    permuted = execute_ranks(
        [collective("collective_permute", source_target_pairs=[[0, 1], [1, 0]])] * 2,
        [{"x": part} for part in data],
    )
    np.testing.assert_array_equal(permuted[0]["y"], data[1])
    with pytest.raises(ConfigurationError, match="there are 1 ranks"):
        execute(collective("all_reduce", replica_group=groups, op="add"), {"x": data[0]})


def endless() -> Any:
    b = build()
    forever, data = b.register(1), tile(b)
    with b.while_loop(forever):
        b.emit("tensor_copy", dst=data, src=data)
    return b.finish()


def test_a_kernel_that_never_ends_is_stopped() -> None:
    with pytest.raises(UndefinedBehaviourError, match="does not end"):
        execute(endless(), {}, step_limit=50_000)


def test_interrupting_an_endless_kernel() -> None:
    def raise_interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, raise_interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            execute(endless(), {})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_wrong_inputs() -> None:
    b = build()
    x = b.hbm("x", (2, 4), "float32")
    b.emit("dma_copy", dst=b.hbm("y", (2, 4), "float32", kind="output"), src=x)
    program = b.finish()
    for array in (np.zeros((2, 5), np.float32), np.zeros((2, 4), np.float64)):
        with pytest.raises(ConfigurationError, match="'x'"):
            execute(program, {"x": array})


def test_activation_ranges_are_a_mode() -> None:
    def program(function: str, value: float) -> Any:
        b = build()
        data = b.sbuf("d", (1, 1), "float32")
        b.emit("memset", dst=data, value=value)
        b.emit("activation", dst=data, op=function, data=data)
        b.emit("dma_copy", dst=b.hbm("y", (1, 1), "float32", kind="output"), src=data)
        return b.finish()

    assert execute(program("sin", 9.0), {})["y"][0, 0] == pytest.approx(np.sin(9.0), rel=1e-6)
    assert execute(program("sin", 9.0), {}, activation_ranges=True)["y"][0, 0] == pytest.approx(
        27.65, rel=0.01
    )
    with pytest.raises(UndefinedBehaviourError, match="defined on"):
        execute(program("log", 1e-30), {}, activation_ranges=True)


def test_device_print() -> None:
    b = build()
    data = tile(b, (2, 3), "bfloat16")
    b.emit("device_print", prefix="data", src=data)
    seen: list = []
    execute(
        b.finish(), {}, on_print=lambda prefix, array: seen.append((prefix, array.shape, str(array.dtype)))
    )
    assert seen == [("data", (2, 3), "bfloat16")]


def test_the_smallest_tile_of_the_array_needs_the_third_generation() -> None:
    smallest = {"tile_position": (0, 0), "tile_size": (32, 32)}
    tiled_matmul(build("trn2"), 32, **smallest)
    with pytest.raises(UnsupportedError, match="NeuronCore-v3"):
        tiled_matmul(build("trn1"), 32, **smallest)
