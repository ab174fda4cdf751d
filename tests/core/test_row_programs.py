"""Programs of statistics, running sums, normalisation over channels, and indices: values against NumPy,
over whole and ragged sizes.
"""

from __future__ import annotations

import numpy as np
import pytest

from opentrn.core import execute
from opentrn.core.library import channels, indexed, row_times, statistics
from opentrn.core.library.operators import operator_time

RNG = np.random.default_rng(23)
FP = "float32"
GAINS = (FP, FP)
EXTREME = (("y", FP), ("index", "int64"))


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def words(numbers: np.ndarray) -> np.ndarray:
    """64-bit integers as a program sees them."""
    return np.ascontiguousarray(numbers, np.int64).view(np.int32).ravel()


def numbers(found: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(found).view(np.int64).ravel()


# ---- Statistics and running sums -----------------------------------------------------------------


@pytest.mark.parametrize("rows,columns,room", ((3, 9, 512), (200, 3000, None), (130, 5000, 8192)))
def test_statistics_of_rows(rows: int, columns: int, room: int | None) -> None:
    x, symbols = normal(rows, columns) + 3, {"M": rows, "N": columns}
    for kind, expected in (("var", x.var(1, ddof=1)), ("std", x.std(1, ddof=1))):
        program = statistics.statistic_program(kind, FP, (("y", FP), ("mean", FP)), room)
        found = execute(program, {"x0": x}, symbols)
        np.testing.assert_allclose(found["y"][:, 0], expected, rtol=1e-3)
        np.testing.assert_allclose(found["mean"][:, 0], x.mean(1), rtol=1e-4)
    x = np.round(x, 1)  # equal values: the first counts
    for kind, best, place in (("maximum", x.max(1), x.argmax(1)), ("minimum", x.min(1), x.argmin(1))):
        found = execute(statistics.statistic_program(kind, FP, EXTREME, room), {"x0": x}, symbols)
        np.testing.assert_array_equal(found["y"][:, 0], best)
        np.testing.assert_array_equal(numbers(found["index"]), place)


@pytest.mark.parametrize("rows,columns,room", ((3, 9, 512), (130, 5000, None)))
def test_running_sums_and_products(rows: int, columns: int, room: int | None) -> None:
    x, symbols = normal(rows, columns), {"M": rows, "N": columns}
    found = execute(statistics.scan_program("add", FP, FP, room), {"x0": x}, symbols)["y0"]
    np.testing.assert_allclose(found, x.cumsum(1, dtype=np.float64), rtol=1e-3, atol=1e-3)
    x = 1 + x / 100
    found = execute(statistics.scan_program("multiply", FP, FP, room), {"x0": x}, symbols)["y0"]
    np.testing.assert_allclose(found, x.cumprod(1, dtype=np.float64), rtol=1e-3)


@pytest.mark.parametrize("batch,depth,lanes", ((2, 300, 200), (1, 9, 5), (1, 2500, 130)))
def test_rows_that_lie_across(batch: int, depth: int, lanes: int) -> None:
    x = normal(batch, depth, lanes)
    given = {"x0": x.reshape(batch * lanes, depth)}
    symbols = {"M": batch * lanes, "N": depth, "B": batch, "L": lanes}
    program = statistics.statistic_program("var", FP, (("y", FP),), 4096, True)
    found = execute(program, given, symbols)["y"].reshape(batch, lanes)
    np.testing.assert_allclose(found, x.var(1, ddof=1), rtol=1e-3)
    program = statistics.statistic_program("maximum", FP, EXTREME, 4096, True)
    found = numbers(execute(program, given, symbols)["index"]).reshape(batch, lanes)
    np.testing.assert_array_equal(found, x.argmax(1))
    program = statistics.scan_program("add", FP, FP, 4096, True)
    found = execute(program, given, symbols)["y0"].reshape(x.shape)
    np.testing.assert_allclose(found, x.cumsum(1, dtype=np.float64), rtol=1e-3, atol=1e-3)


def test_the_extreme_of_a_long_row_is_picked_from_its_pieces() -> None:
    rows, pieces, size = 5, 16, 100
    x = RNG.integers(0, 40, (rows, pieces * size)).astype(np.float32)
    program = statistics.statistic_program("maximum", FP, EXTREME, None)
    parts = execute(program, {"x0": x.reshape(-1, size)}, {"M": rows * pieces, "N": size})
    given = {"x0": parts["y"].reshape(rows, pieces), "x1": parts["index"].reshape(rows, pieces, 2)}
    program = statistics.pick_program("maximum", EXTREME, pieces)
    found = execute(program, given, {"M": rows, "N": pieces, "S": size})
    np.testing.assert_array_equal(found["y"][:, 0], x.max(1))
    np.testing.assert_array_equal(numbers(found["index"]), x.argmax(1))


# ---- Normalisation over channels -----------------------------------------------------------------


def _normalised(x: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mean = x.mean(axes, keepdims=True, dtype=np.float64)
    rstd = 1 / np.sqrt(x.var(axes, keepdims=True, dtype=np.float64) + 1e-5)
    return (x - mean) * rstd, mean, rstd


def _backward(
    gradient: np.ndarray, normalised: np.ndarray, rstd: np.ndarray, gain: np.ndarray, axes: tuple[int, ...]
) -> np.ndarray:
    inner = gradient * gain
    along = (inner * normalised).mean(axes, keepdims=True)
    return rstd * (inner - inner.mean(axes, keepdims=True) - normalised * along)


def _close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found.ravel(), expected.ravel(), rtol=2e-3, atol=3e-3)


@pytest.mark.parametrize("batch,count,inner", ((7, 20, 9), (3, 200, 49), (2, 70, 2500)))
def test_batch_normalisation(batch: int, count: int, inner: int) -> None:
    x, gradient = 2 * normal(batch, count, inner) + 1, normal(batch, count, inner)
    gain, shift, means, squares = normal(count), normal(count), normal(count), normal(count) ** 2
    images, symbols = channels.lanes(batch, count).images, channels.symbols(batch, count, inner)
    normalised, mean, rstd = _normalised(x, (0, 2))
    wide = lambda vector: vector[None, :, None]  # noqa: E731
    given = {"x0": x, "w0": gain, "w1": shift, "r0": means, "r1": squares}
    found = execute(channels.channels_program("batch", FP, images, GAINS, FP), given, symbols)
    _close(found["y0"], normalised * wide(gain) + wide(shift))
    _close(found["mean"], mean)
    _close(found["rstd"], rstd)
    _close(found["u0"], 0.9 * means + 0.1 * mean.ravel())
    found = execute(channels.channels_program("batch_fixed", FP, images, GAINS, FP), given, symbols)
    _close(found["y0"], (x - wide(means)) / np.sqrt(wide(squares) + 1e-5) * wide(gain) + wide(shift))
    given = {"x0": gradient, "x1": x, "w0": gain, "w1": shift}
    given |= {"mean": mean.astype(np.float32).ravel(), "rstd": rstd.astype(np.float32).ravel()}
    found = execute(channels.channels_program("batch_backward", FP, images, GAINS, None), given, symbols)
    _close(found["y0"], _backward(gradient, normalised, rstd, wide(gain), (0, 2)))
    _close(found["d0"], (gradient * normalised).sum((0, 2)))
    _close(found["d1"], gradient.sum((0, 2)))


@pytest.mark.parametrize(
    "batch,count,inner,groups", ((7, 20, 9, 5), (3, 320, 49, 32), (2, 64, 2500, 32), (5, 256, 64, 2))
)
def test_group_normalisation(batch: int, count: int, inner: int, groups: int) -> None:
    shape, split = (batch, count, inner), (batch, groups, count // groups, inner)
    x, gradient, gain, shift = 2 * normal(*shape) + 1, normal(*shape), normal(count), normal(count)
    images = channels.lanes(batch, count, count // groups).images
    symbols = channels.symbols(batch, count, inner, count // groups)
    normalised, mean, rstd = _normalised(x.reshape(split), (2, 3))
    per_group = gain.reshape(1, groups, -1, 1)
    program = channels.channels_program("group", FP, images, GAINS, None)
    found = execute(program, {"x0": x, "w0": gain, "w1": shift}, symbols)
    _close(found["y0"], normalised * per_group + shift.reshape(per_group.shape))
    _close(found["mean"], mean)
    _close(found["rstd"], rstd)
    given = {"x0": gradient, "x1": x, "w0": gain, "w1": shift}
    given |= {"mean": mean.astype(np.float32).ravel(), "rstd": rstd.astype(np.float32).ravel()}
    found = execute(channels.channels_program("group_backward", FP, images, GAINS, None), given, symbols)
    _close(found["y0"], _backward(gradient.reshape(split), normalised, rstd, per_group, (2, 3)))
    _close(found["d0"], (gradient * normalised.reshape(shape)).sum((0, 2)))
    _close(found["d1"], gradient.sum((0, 2)))


def test_groups_that_no_tile_holds_have_no_program() -> None:
    assert channels.lanes(4, 1024, 256) is None
    assert row_times.channels_time("group", 4, 1024, 64, 256, FP, GAINS, None) is None


# ---- Indices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count,table,width,outer", ((5, 9, 3, 1), (1000, 70, 33, 2), (300, 50, 9000, 1)))
def test_gathers_and_scatters(count: int, table: int, width: int, outer: int) -> None:
    x, rows, index = normal(outer, table, width), normal(outer, count, width), RNG.integers(0, table, count)
    fold = indexed.indices_per_partition(count)
    symbols = {"A": outer, "R": count, "T": table, "D": width, "I": fold}
    for dtype, given in (("int64", words(index)), ("int32", index.astype(np.int32))):
        found = execute(indexed.gather_program(FP, dtype), {"x": x, "index": given}, symbols)["y"]
        np.testing.assert_array_equal(found, x[:, index])
    program = indexed.scatter_program(FP, "int64", True, True)
    found = execute(program, {"x": rows, "index": words(index)}, symbols)["y"]
    expected = np.zeros_like(x)
    for a in range(outer):
        np.add.at(expected[a], index, rows[a])
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("reduced", (True, False))
@pytest.mark.parametrize("count,width", ((5, 9), (1000, 300)))
def test_the_loss_of_picked_scores(count: int, width: int, reduced: bool) -> None:
    x, target = normal(count, width), RNG.integers(0, width, count)
    target[1] = -100
    counts = target >= 0
    symbols = {"R": count, "D": width, "I": indexed.indices_per_partition(count)}
    losses = np.where(counts, -x[np.arange(count), np.maximum(target, 0)], 0)
    program = indexed.picked_program(FP, "int64", reduced)
    found = execute(program, {"x": x.reshape(-1, 1), "index": words(target)}, symbols)
    expected = losses.sum(keepdims=True) / counts.sum() if reduced else losses
    np.testing.assert_allclose(found["y"], expected, rtol=1e-4, atol=1e-5)
    assert found["t"][0] == count - 1
    gradient = normal(1 if reduced else count)
    given = {"g": gradient, "index": words(target)} | ({"t": found["t"]} if reduced else {})
    found = execute(indexed.picked_backward_program(FP, "int64", reduced), given, symbols)
    slopes = np.zeros_like(x)
    slopes[np.arange(count), np.maximum(target, 0)] = -gradient / (counts.sum() if reduced else 1) * counts
    np.testing.assert_allclose(found["dx"].reshape(x.shape), slopes, rtol=1e-4, atol=1e-6)


# ---- Times ---------------------------------------------------------------------------------------


def test_few_long_rows_are_cut() -> None:
    """A row of a million is spread over the partitions."""
    for time in (
        lambda rows, columns: row_times.statistic_time(rows, columns, FP, "maximum", (("index", "int64"),)),
        lambda rows, columns: row_times.statistic_time(rows, columns, FP, "var", (("y", FP),)),
        lambda rows, columns: row_times.scan_time(rows, columns, FP, "add", FP),
    ):
        assert time(1, 1 << 20) < 4 * time(128, 1 << 13)


def test_a_batch_norm_moves_its_bytes_twice_at_least() -> None:
    """Statistics first, then the result: 3 passes of the data forward, 5 backward, at 368 GB/s."""
    for kind, passes in (("batch", 3), ("batch_backward", 5)):
        found = row_times.channels_time(kind, 32, 64, 112 * 112, 1, FP, GAINS, None)
        floor = passes * 32 * 64 * 112 * 112 * 4 / 368
        assert floor <= found < 1.5 * floor


def test_cumulative_and_indexed_operators_have_times() -> None:
    one, index = ("Float", "whole"), ("Long", "whole")
    shape = (1 << 20, 1024, 1024, 1, 0, 0, 0, 0)
    assert operator_time("cumsum", "scan", shape, (one,), (one,)) > 0
    assert operator_time("cumsum", "scan", shape, (index,), (index,)) is None
    rows = (4096, 1024, 1, 32000, 0, 0, 0, 0)
    assert operator_time("index_select", "gather", rows, (one, index), (one,)) > 0
    assert operator_time("gather", "gather", rows, (one, index), (one,)) is None
