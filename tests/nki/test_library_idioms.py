"""What public kernels do beyond the letter of the documentation, on small kernels of our own."""

from __future__ import annotations

import ml_dtypes
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from neuronxcc.starfish.support.dtype import finfo, static_cast

import nki
from opentrn.errors import (
    ConfigurationError,
    OutOfBoundsError,
    UndefinedBehaviourError,
    UndefinedBehaviourWarning,
    UnsupportedError,
)


def add_to_part(x, y, first, width):
    """out = x, with y added to the columns from `first` on, through a pattern over that part."""
    rows, columns = x.shape
    whole = nl.ndarray((rows, columns), x.dtype, buffer=nl.sbuf)
    addend = nl.ndarray((rows, width), x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=whole, src=x)
    nisa.dma_copy(dst=addend, src=y)
    part = whole.ap(pattern=[[columns, rows], [1, width]], offset=first)
    again = part.ap(pattern=[[width, rows], [1, width - 1]], offset=1)
    nisa.tensor_tensor(dst=again, data1=again, data2=addend[:, 1:], op=nl.add)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=whole)
    return out


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("first", [0, 8])
def test_a_pattern_on_a_part_of_a_wider_tile_counts_from_the_part(rows, first):
    x = np.arange(rows * 16, dtype=np.float32).reshape(rows, 16)
    y = np.random.default_rng(0).normal(size=(rows, 8)).astype(np.float32)
    expected = x.copy()
    expected[:, first + 1 : first + 8] += y[:, 1:]
    np.testing.assert_array_equal(nki.simulate(add_to_part)(x, y, first, 8), expected)


def every_other_partition(x):
    tile = nl.ndarray((16, 32), x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    out = nl.ndarray((8, 32), x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile.ap(pattern=[[64, 8], [1, 32]]))
    return out


def test_a_pattern_over_every_other_partition_is_refused():
    with pytest.raises(UnsupportedError, match="partition step is 64"):
        nki.simulate(every_other_partition)(np.ones((16, 32), np.float32))


def shape_of_a_pattern(x, use):
    outside = x.ap(pattern=[[8, 8], [1, 8]])
    out = nl.ndarray(outside.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(outside.shape, x.dtype, buffer=nl.sbuf)
    nisa.memset(tile, 1.0)
    if use:
        nisa.dma_copy(dst=tile, src=outside)
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_a_pattern_is_checked_where_an_instruction_uses_it():
    x = np.ones((4, 8), np.float32)
    assert nki.simulate(shape_of_a_pattern)(x, False).shape == (8, 8)
    with pytest.raises(OutOfBoundsError, match=r"(?s)dma_copy.*has 32.*test_library_idioms"):
        nki.simulate(shape_of_a_pattern)(x, True)


def past_the_partition(x, offset):
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_copy(dst=tile, src=tile.ap(pattern=[[8, 4], [1, 8]], offset=offset))
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_a_pattern_may_not_run_over_the_end_of_a_partition():
    x = np.ones((4, 8), np.float32)
    nki.simulate(past_the_partition)(x, 0)
    with pytest.raises(OutOfBoundsError, match=r"element 8 of a partition.*has 8"):
        nki.simulate(past_the_partition)(x, 1)


def barriers(x, on_chip, cores):
    half = x.shape[1] // 2
    core = nl.program_id(0)
    tile = nl.ndarray((x.shape[0], half), x.dtype, buffer=nl.sbuf)
    exchanged = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=x[:, core * half : (core + 1) * half])
    nisa.dma_copy(dst=exchanged[:, core * half : (core + 1) * half], src=tile)
    nisa.core_barrier(tile if on_chip else exchanged, cores)
    other = (1 - core) * half
    nisa.dma_copy(dst=tile, src=exchanged[:, other : other + half])
    nisa.dma_copy(dst=out[:, core * half : (core + 1) * half], src=tile)
    return out


@pytest.mark.parametrize("on_chip", [False, True])
def test_a_barrier_may_name_a_tile_on_the_chip(on_chip):
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    got = nki.simulate(barriers)[2](x, on_chip, (0, 1))
    np.testing.assert_array_equal(got, np.concatenate([x[:, 2:], x[:, :2]], axis=1))


def alone(x, cores):
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=out, src=tile)
    nisa.core_barrier(out, cores)
    return out


@pytest.mark.parametrize("cores", [0, (0,)])
def test_a_barrier_of_one_core_takes_its_number(cores):
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(nki.simulate(alone)(x, cores), x)


def both_write(x, differ):
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=x)
    if differ:
        nisa.tensor_scalar(dst=tile[:, 3:4], data=tile[:, 3:4], op0=nl.add, operand0=1.0 * nl.program_id(0))
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_cores_that_write_the_same_value_to_the_same_place_do_not_race():
    x = np.arange(24, dtype=np.float32).reshape(3, 8)
    np.testing.assert_array_equal(nki.simulate(both_write)[2](x, False), x)
    with pytest.raises(UndefinedBehaviourError, match=r"(?s)race.*test_library_idioms"):
        nki.simulate(both_write)[2](x, True)


def both_write_and_read(x, read_first):
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    shared = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=x)
    if read_first:
        nisa.dma_copy(dst=shared, src=tile)
        nisa.core_barrier(shared, (0, 1))
        nisa.dma_copy(dst=tile, src=shared)
    nisa.dma_copy(dst=shared, src=tile)
    nisa.dma_copy(dst=tile, src=shared)
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_a_core_may_read_what_both_wrote_if_it_wrote_it_itself():
    x = np.arange(24, dtype=np.float32).reshape(3, 8)
    np.testing.assert_array_equal(nki.simulate(both_write_and_read)[2](x, False), x)
    with pytest.raises(UndefinedBehaviourError, match="race"):
        nki.simulate(both_write_and_read)[2](x, True)  # the other core may not have read the old value yet


def gather(x, groups, ranks):
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    wide = nl.ndarray((x.shape[0], x.shape[1] * ranks), x.dtype, buffer=nl.sbuf)
    out = nl.ndarray(wide.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=x)
    ncc.all_gather(srcs=[tile], dsts=[wide], replica_group=groups, collective_dim=1)
    nisa.dma_copy(dst=out, src=wide)
    return out


@pytest.mark.parametrize("cores", [1, 2])
def test_ranks_run_together(cores):
    parts = [np.full((4, 3), rank, np.float32) + np.arange(3, dtype=np.float32) / 8 for rank in range(4)]
    groups = ncc.ReplicaGroup([[0, 2], [1, 3]])
    calls = [{"x": part, "groups": groups, "ranks": 2} for part in parts]
    results = nki.simulate(gather)[cores].ranks(calls)
    for rank, result in enumerate(results):
        expected = np.concatenate([parts[rank % 2], parts[rank % 2 + 2]], axis=1)
        np.testing.assert_array_equal(result, expected)


def test_ranks_need_arguments():
    with pytest.raises(ConfigurationError, match="no ranks"):
        nki.simulate(gather).ranks([])


@pytest.mark.parametrize("name", [nl.float8_e4m3fn_x4, nl.float8_e5m2_x4, nl.float4_e2m1fn_x4])
def test_packed_types_on_the_host(name):
    element = np.dtype(getattr(ml_dtypes, name.removesuffix("_x4")))
    values = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    packed = static_cast(values, name)
    assert packed.shape == (3, 2) and packed.dtype == np.dtype(name) and "x4" in str(packed.dtype)
    expected = values.astype(element).astype(np.float32)
    np.testing.assert_array_equal(static_cast(packed, np.float32), expected)
    np.testing.assert_array_equal(static_cast(packed, np.float16), expected.astype(np.float16))
    if element.itemsize == 1 and name != nl.float4_e2m1fn_x4:
        np.testing.assert_array_equal(packed.view(np.uint8), values.astype(element).view(np.uint8))
    with pytest.raises(ConfigurationError, match="multiple of 4"):
        static_cast(values[:, :7], name)


def test_limits_of_a_type_name_what_arrays_hold_it_in():
    assert finfo(nl.bfloat16).dtype == ml_dtypes.bfloat16 and finfo(np.float32).dtype == np.float32
    assert (finfo(nl.float8_e4m3).max, finfo(nl.float8_e4m3fn).max) == (240, 448)


def clear_then_store(x):
    half = x.shape[0] // 2
    first = nl.program_id(0) * half
    zeros = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    tile = nl.ndarray((half, x.shape[1]), x.dtype, buffer=nl.sbuf)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.memset(zeros, 0.0)
    nisa.dma_copy(dst=out, src=zeros)
    nisa.dma_copy(dst=tile, src=x[first : first + half])
    nisa.dma_copy(dst=out[first : first + half], src=tile)
    return out


def test_cores_take_turns_at_their_writes_to_hbm():
    """Both cores clear the whole result, then store their halves: right only at an equal pace, and a race."""
    x = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    np.testing.assert_array_equal(nki.simulate(clear_then_store, check=False)[2](x), x)
    with pytest.raises(UndefinedBehaviourError, match="race"):
        nki.simulate(clear_then_store)[2](x)


def store_half(x):
    half = x.shape[0] // 2
    tile = nl.ndarray((half, x.shape[1]), x.dtype, buffer=nl.sbuf)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=x[:half])
    nisa.dma_copy(dst=out[:half], src=tile)
    return out


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_what_a_suite_gets_is_zero_where_the_kernel_writes_nothing(dtype):
    x = np.full((8, 16), 7, dtype)
    expected = np.concatenate([x[:4], np.zeros((4, 16), dtype)])
    np.testing.assert_array_equal(nki.cpu_simulate(store_half)[1](x), expected)
    with pytest.warns(UndefinedBehaviourWarning, match="64 of 128 elements"):
        unwritten = nki.simulate(store_half, check=False)(x)[4:]
    assert (np.isnan(unwritten) if dtype is np.float32 else unwritten == 4).all()
