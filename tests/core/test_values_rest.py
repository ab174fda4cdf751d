"""Instructions that `test_values` leaves out, against NumPy: random numbers and their state, dynamic copies,
the rank, and tiles that begin their life.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from casting import FLOATS, Case, counts, partitions, patterns, values
from hypothesis import given
from hypothesis import strategies as st

from opentrn.core import Builder, execute, execute_ranks, time
from opentrn.core.machine import constants
from opentrn.errors import OpenTRNError

WORD, TOP = (1 << 64) - 1, 1 << 24
seeds = st.integers(0, 10_000)
words = st.integers(0, (1 << 32) - 1)


def mix(value: int) -> int:
    """The finaliser of SplitMix64."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & WORD
    value = (value ^ value >> 27) * 0x94D049BB133111EB & WORD
    return value ^ value >> 31


class Generator:
    """One partition's xorshift128+, in Python's integers."""

    def __init__(self, low: int, high: int) -> None:
        self.state = [low, high]

    @classmethod
    def seeded(cls, first: int, second: int) -> Generator:
        return cls(mix(first + 0x9E3779B97F4A7C15 & WORD), mix(second + 0x3C6EF372FE94F82A & WORD) | 1)

    def next(self) -> int:
        x, y = self.state
        x ^= x << 23 & WORD
        self.state = [y, x ^ y ^ x >> 17 ^ y >> 26]
        return (self.state[1] + y & WORD) >> 32

    def uniform(self, count: int) -> np.ndarray:
        """Numbers in [0, 1) of 24 bits, as float32."""
        return np.array([self.next() >> 8 for _ in range(count)], np.float32) * np.float32(1 / TOP)

    @property
    def words(self) -> list[int]:
        return [part >> shift & 0xFFFFFFFF for part in self.state for shift in (0, 32)]


def outputs(case: Case, *tiles: Any) -> list[np.ndarray]:
    """What the program leaves in the tiles."""
    for number, tile in enumerate(tiles):
        out = case.builder.hbm(f"out{number}", tile.shape, tile.dtype, kind="output")
        case.builder.emit("dma_copy", dst=out, src=tile)
    found = execute(case.builder.finish(), case.inputs)
    return [found[f"out{number}"] for number in range(len(tiles))]


def set_state(case: Case, rows: int, seed: int) -> list[Generator]:
    """Every partition's state set to random words; the generators that stand there then."""
    given_words = np.random.default_rng(seed).integers(0, 1 << 32, (rows, 4)).astype(np.uint32)
    case.builder.emit("rand_set_state", src_seeds=case.tile((rows, 4), "uint32", data=given_words))
    pairs = given_words.astype(object)
    return [Generator(a | b << 32, c | d << 32) for a, b, c, d in pairs.tolist()]


@given(st.integers(1, 128), st.integers(1, 9), seeds)
def test_states_are_set_drawn_from_and_read_back(rows: int, width: int, seed: int) -> None:
    case = Case(seed=seed)
    generators = set_state(case, rows, seed)
    numbers = case.builder.sbuf("numbers", (rows, width), "uint32")
    state = case.builder.sbuf("state", (rows, 4), "uint32")
    case.builder.emit("rng", dst=numbers)
    case.builder.emit("rand_get_state", dst=state)
    drawn, left = outputs(case, numbers, state)
    assert drawn.tolist() == [[generator.next() for _ in range(width)] for generator in generators]
    assert left.tolist() == [generator.words for generator in generators]


@given(st.data(), seeds)
def test_rand2_is_uniform_between_its_bounds(data: Any, seed: int) -> None:
    case, rows, width = Case(seed=seed), data.draw(st.integers(1, 128)), data.draw(st.integers(1, 40))
    generators = set_state(case, rows, seed)
    bounds: list[Any] = []
    columns = []
    for low, high in ((-3.0, 1.0), (1.5, 4.0)):
        if data.draw(st.booleans()):
            column = values("float32", (rows, 1), seed + len(bounds), low, high)
            bounds.append(case.tile((rows, 1), "float32", data=column))
        else:
            column = np.full((rows, 1), high, np.float32)
            bounds.append(high)
        columns.append(column)
    out = case.builder.sbuf("out", (rows, width), "float32")
    case.builder.emit("rand2", dst=out, min=bounds[0], max=bounds[1])
    (found,) = outputs(case, out)
    uniform = np.stack([generator.uniform(width) for generator in generators])
    np.testing.assert_array_equal(found, columns[0] + (columns[1] - columns[0]) * uniform)


@given(st.data(), seeds)
def test_dropout_keeps_what_the_generator_draws_above_its_probability(data: Any, seed: int) -> None:
    case, rows, width = Case(seed=seed), data.draw(st.integers(1, 128)), data.draw(st.integers(1, 40))
    generators = set_state(case, rows, seed)
    kind = data.draw(st.sampled_from(FLOATS))
    source = values(kind, (rows, width), seed, 1.0, 4.0)
    src, out = case.tile((rows, width), kind, data=source), case.builder.sbuf("out", (rows, width), kind)
    drop: Any = data.draw(st.sampled_from((0.0, 0.25, 0.5, 1.0)))
    chance = np.full((rows, 1), drop, np.float32)
    if data.draw(st.booleans()):
        chance = values("float32", (rows, 1), seed, 0.0, 1.0)
        drop = case.tile((rows, 1), "float32", data=chance)
    case.builder.emit("dropout", dst=out, data=src, prob=drop)
    (found,) = outputs(case, out)
    uniform = np.stack([generator.uniform(width) for generator in generators])
    np.testing.assert_array_equal(found, np.where(uniform < chance, 0, source).astype(source.dtype))


@given(st.integers(1, 128), st.integers(1, 2), seeds)
def test_one_seed_gives_every_partition_its_own_state(rows: int, width: int, seed: int) -> None:
    case = Case(seed=seed)
    given_seeds = np.random.default_rng(seed).integers(0, 1 << 31, (rows, width)).astype(np.int32)
    case.builder.emit("set_rng_seed", src_seeds=case.tile((rows, width), "int32", data=given_seeds))
    state = case.builder.sbuf("state", (rows, 4), "uint32")
    case.builder.emit("rand_get_state", dst=state)
    (found,) = outputs(case, state)
    for row, seeds_of_row in enumerate(given_seeds.tolist()):
        second = seeds_of_row[1] if width > 1 else row
        expected = Generator.seeded(seeds_of_row[0] + row * 0x632BE59BD9B4E019, second)
        assert found[row].tolist() == expected.words
    assert len({tuple(row) for row in found.tolist()}) == rows


@given(st.data(), seeds)
def test_dynamic_copies_move_as_a_copy_with_that_offset_does(data: Any, seed: int) -> None:
    """Offsets in registers, loaded from memory."""
    case, rows, width = Case(seed=seed), data.draw(st.integers(1, 128)), data.draw(st.integers(1, 20))
    b = case.builder
    kind = data.draw(st.sampled_from(FLOATS))
    source = values(kind, (rows, 64), seed)
    src, dst = case.tile((rows, 64), kind, data=source), case.tile((rows, 64), kind)
    places = [data.draw(st.integers(0, 64 - width)) for _ in range(2)]
    registers = []
    for place in places:
        where = case.tile((1, 1), "int32", data=np.array([[place]], np.int32))
        registers.append(b.register())
        b.emit("register_load", dst=registers[-1], src=b.access(where))
    piece = b.sbuf("piece", (rows, width), kind)
    b.emit(
        "tensor_copy_dynamic_src",
        dst=b.access(piece),
        src=b.access(src, ((64, rows), (1, width)), registers[0]),
    )
    b.emit(
        "tensor_copy_dynamic_dst",
        dst=b.access(dst, ((64, rows), (1, width)), registers[1]),
        src=b.access(piece),
    )
    before = case.inputs["t1"].copy()
    found, moved = outputs(case, dst, piece)
    np.testing.assert_array_equal(moved, source[:, places[0] : places[0] + width])
    before[:, places[1] : places[1] + width] = moved
    np.testing.assert_array_equal(found, before)


@pytest.mark.parametrize("name", ["tensor_copy_dynamic_src", "tensor_copy_dynamic_dst"])
def test_dynamic_copies_check_their_sizes_and_cost_600_cycles(name: str) -> None:
    b = Builder()
    src, dst = b.sbuf("src", (8, 16), "float32"), b.sbuf("dst", (8, 16), "float32")
    b.emit(name, dst=dst, src=src)
    timing = time(b.finish())
    assert timing.busy["vector"] * constants(timing.chip)["vector_ghz"] == pytest.approx(600)
    b = Builder()
    src, small = b.sbuf("src", (8, 16), "float32"), b.sbuf("small", (8, 8), "float32")
    with pytest.raises(OpenTRNError, match="equally many elements"):
        b.emit(name, dst=small, src=src)
        b.finish().verify()


@given(st.data(), seeds)
def test_dynamic_copies_take_any_pattern_and_dtype(data: Any, seed: int) -> None:
    case, shape, place = Case(seed=seed), data.draw(counts()), data.draw(partitions())
    for name in ("tensor_copy_dynamic_src", "tensor_copy_dynamic_dst"):
        src = case.operand(data.draw(patterns(shape, True)), data.draw(st.sampled_from(FLOATS)), place)
        dst = case.keep(case.operand(data.draw(patterns(shape)), data.draw(st.sampled_from(FLOATS)), place))
        case.builder.emit(name, dst=dst, src=src)
    case.run()


@pytest.mark.parametrize("world", [1, 2, 5])
def test_each_rank_knows_its_number(world: int) -> None:
    programs = []
    for _ in range(world):
        case = Case()
        b = case.builder
        rank, tile = b.register(), b.sbuf("rank", (1, 1), "int32")
        b.emit("rank_id", dst=rank)
        b.emit("register_store", dst=b.access(tile), src=rank * 3 + 1)
        b.emit("dma_copy", dst=b.hbm("y", (1, 1), "int32", kind="output"), src=tile)
        programs.append(b.finish())
    found = execute_ranks(programs, [{}] * world)
    assert [int(result["y"][0, 0]) for result in found] == [3 * rank + 1 for rank in range(world)]
    assert time(programs[0]).nanoseconds > 0


@given(st.integers(1, 6), st.integers(1, 128), st.integers(1, 30))
def test_a_tile_of_a_loop_begins_anew_in_every_iteration(trips: int, rows: int, width: int) -> None:
    """`tensor_begin` stands at the head of each iteration's tile: what the last one wrote cannot be read."""
    for reads_before_writing in (False, True):
        case = Case()
        b = case.builder
        total = case.tile((rows, width), "float32")
        with b.loop(0, trips):
            tile = b.sbuf("tile", (rows, width), "float32")
            if reads_before_writing:
                b.emit("tensor_tensor", dst=total, data1=total, data2=tile, op="add")
            b.emit("memset", dst=tile, value=2.0)
            if not reads_before_writing:
                b.emit("tensor_tensor", dst=total, data1=total, data2=tile, op="add")
        if reads_before_writing:
            with pytest.raises(OpenTRNError, match=r"(?i)read|written|uninit"):
                outputs(case, total)
            continue
        out = b.hbm("out", (rows, width), "float32", kind="output")
        b.emit("dma_copy", dst=out, src=total)
        program = b.finish()
        names = [instruction[0] for instruction in program.tables()["instructions"]]
        assert "tensor_begin" in names
        expected = case.inputs["t0"].copy()
        for _ in range(trips):
            expected += np.float32(2)
        np.testing.assert_array_equal(execute(program, case.inputs)["out"], expected)
