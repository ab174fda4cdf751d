"""`NkiTensor`: indexing, `.ap()`, reshape and view against NumPy on the flattened storage."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
from opentrn.errors import OutOfBoundsError, UnsupportedError
from opentrn.nki import engine_hook
from opentrn.nki import version as nki_version
from opentrn.nki.affine import Affine, Symbol
from opentrn.nki.enums import MemoryRegion
from opentrn.nki.tensor import DynamicSlice, NKIObject, NkiTensor
from opentrn.nki.tracing import Tracer

SBUF, HBM = MemoryRegion.sbuf, MemoryRegion.shared_hbm


@pytest.fixture
def tracer():
    old = engine_hook.use(oracle)
    with Tracer("trn2", 1, 0, "views") as result:
        yield result
    engine_hook.use(old)


def values(tensor: NkiTensor) -> np.ndarray:
    """The flat positions that a view selects."""
    result = np.full((), tensor.offset)
    for step, count in tensor.get_pattern():
        result = result[..., None] + np.arange(count) * step
    return result


def flat(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(int(np.prod(shape))).reshape(shape)


def test_integer_index_keeps_the_partition_on_chip_and_drops_it_in_hbm(tracer):
    on_chip = tracer.allocate((64, 8, 16), "float32", SBUF, "t", None)
    in_hbm = tracer.allocate((64, 8, 16), "float32", HBM, "t", None)
    assert on_chip[3].shape == (1, 8, 16)
    assert on_chip[3, 2].shape == (1, 16)
    assert on_chip[3, 2, 5].shape == (1, 1)
    assert on_chip[:, 2].shape == (64, 16)
    assert on_chip[:, 2, 5].shape == (64, 1)
    assert in_hbm[3].shape == (8, 16)
    assert in_hbm[3, 2, 5].shape == (1,)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_slices_select_what_numpy_selects(data):
    old = engine_hook.use(oracle)
    try:
        with Tracer("trn2", 1, 0, "views") as tracer:
            shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
            tensor = tracer.allocate(shape, "float32", HBM, "t", None)
            key = []
            for size in shape:
                start = data.draw(st.integers(0, size - 1))
                stop = data.draw(st.integers(start + 1, size))
                step = data.draw(st.integers(1, 3))
                key.append(
                    data.draw(st.sampled_from([slice(start, stop, step), start, start - size, slice(None)]))
                )
            expected = flat(shape)[tuple(key)]
            got = values(tensor[tuple(key)])
            np.testing.assert_array_equal(got.reshape(-1), expected.reshape(-1))
            if expected.ndim:
                assert got.shape == expected.shape
    finally:
        engine_hook.use(old)


def test_ellipsis_and_missing_indices(tracer):
    tensor = tracer.allocate((4, 5, 6), "float32", HBM, "t", None)
    np.testing.assert_array_equal(values(tensor[..., 2]), flat((4, 5, 6))[..., 2])
    np.testing.assert_array_equal(values(tensor[1, ...]), flat((4, 5, 6))[1])
    np.testing.assert_array_equal(values(tensor[...]), flat((4, 5, 6)))


def test_an_index_off_by_one_is_an_error(tracer):
    tensor = tracer.allocate((128, 64), "float32", SBUF, "t", None)
    for key in [
        (slice(0, 129),),
        (slice(None), 64),
        (slice(0, 128), slice(32, 65)),
        (-129,),
        (slice(None), DynamicSlice(60, 5)),
    ]:
        with pytest.raises(OutOfBoundsError, match="outside dimension"):
            tensor[key]


def test_ap_addresses_the_flattened_storage_not_the_view(tracer):
    tensor = tracer.allocate((16, 32), "float32", SBUF, "t", None)
    view = tensor[4:8, 8:16].ap(pattern=[[32, 16], [2, 8]], offset=3)
    assert view.shape == (16, 8)
    np.testing.assert_array_equal(values(view), flat((16, 32))[:, 3:19:2])
    nki_version.use("0.5.0")
    try:
        assert tensor[4:8, 8:16].ap(pattern=[[32, 2], [1, 8]]).offset == 4 * 32 + 8
    finally:
        nki_version.use(None)
    assert tensor[4:8, 8:16].ap(pattern=[[32, 2], [1, 8]]).offset == 0


def test_ap_refuses_what_the_hardware_cannot_address(tracer):
    tensor = tracer.allocate((16, 32), "float32", SBUF, "t", None)
    with pytest.raises(UnsupportedError, match="partition step is 64"):
        tensor.ap(pattern=[[64, 8], [1, 32]], offset=0)
    with pytest.raises(UnsupportedError, match="indirect_dim=0"):
        tensor.ap(pattern=[[32, 16], [1, 32]], vector_offset=tensor, indirect_dim=1)


def test_ap_reinterprets_bytes(tracer):
    tensor = tracer.allocate((128, 256), "int32", SBUF, "t", None)
    cast = tensor.ap(pattern=[[512, 128], [1, 512]], offset=0, dtype="bfloat16")
    assert cast.shape == (128, 512) and cast.dtype == "bfloat16"


def test_scalar_offset_scales_by_what_lies_right_of_the_dimension(tracer):
    tensor = tracer.allocate((8, 4, 6), "float32", HBM, "t", None)
    register = Affine(0, {Symbol("r", "r"): 1})
    assert tensor.ap([[6, 4], [1, 6]], scalar_offset=register, indirect_dim=0).offset == register * 24
    assert (
        tensor.ap([[6, 4], [1, 6]], offset=5, scalar_offset=register, indirect_dim=1).offset
        == register * 6 + 5
    )
    reshaped = tensor.reshape((32, 6))
    assert reshaped.ap([[6, 4], [1, 6]], scalar_offset=register, indirect_dim=0).offset == register * 6


@settings(max_examples=100, deadline=None)
@given(st.permutations([2, 3, 4, 5]), st.lists(st.sampled_from([2, 3, 4, 5]), min_size=0, max_size=2))
def test_reshape_keeps_the_order_of_elements(dims, _):
    old = engine_hook.use(oracle)
    try:
        with Tracer("trn2", 1, 0, "views") as tracer:
            tensor = tracer.allocate(tuple(dims), "float32", HBM, "t", None)
            for new in [(120,), (dims[0] * dims[1], -1), (dims[0], dims[1], -1), (1, 120, 1)]:
                np.testing.assert_array_equal(values(tensor.reshape(new)), flat(tuple(dims)).reshape(new))
    finally:
        engine_hook.use(old)


def test_reshape_refuses_to_move_data(tracer):
    tensor = tracer.allocate((64, 8), "float32", SBUF, "t", None)
    with pytest.raises(UnsupportedError, match="between partitions"):
        tensor.reshape((32, 16))
    with pytest.raises(UnsupportedError, match="without a copy"):
        tensor.reshape((64, 2, 4))[:, :, 0:2].reshape((64, 4))
    with pytest.raises(OutOfBoundsError, match="cannot be reshaped"):
        tensor.reshape((64, 9))


def test_view_rescales_the_last_dimension(tracer):
    tensor = tracer.allocate((64, 8), "float32", SBUF, "t", None)
    assert tensor.view("bfloat16").shape == (64, 16)
    assert tensor[:, 2:6].view("uint8").shape == (64, 16)
    assert tensor[:, 2:6].view("uint8").offset == 8
    assert tensor.view("bfloat16").view("float32").get_pattern() == tensor.get_pattern()
    with pytest.raises(UnsupportedError):
        tracer.allocate((64, 3), "uint8", SBUF, "u", None).view("float32")


@pytest.fixture
def views_by_method():
    """NKI 0.5.0, which added them."""
    nki_version.use("0.5.0")
    yield
    nki_version.use(None)


def test_rearrange_splits_orders_and_merges(tracer, views_by_method):
    tensor = tracer.allocate((128, 24), "float32", SBUF, "t", None)
    view = tensor.rearrange(("b", ("h", "w")), ("b", "w", "h"), {"h": 4})
    assert view.shape == (128, 6, 4) and view.strides == (24, 1, 6)
    assert not view.is_contiguous() and tensor.is_contiguous()
    merged = tensor.reshape((128, 4, 6)).rearrange(("b", "h", "w"), ("b", ("h", "w")))
    assert merged.get_pattern() == tensor.get_pattern()
    hbm = tracer.allocate((6, 4, 2), "float32", HBM, "u", None)
    assert hbm.rearrange(("a", "b", "c"), ("c", "a", "b")).strides == (1, 8, 2)
    for patterns, sizes, match in (
        ((("b", ("h", "w")), ("b", "w", "h")), None, "not known"),
        ((("b", ("h", "w")), ("b", "w", "h")), {"h": 5}, "do not make up"),
        ((("b", "h"), ("b", "w")), None, "does not have the dimensions"),
        ((("b",), ("b",)), None, "names 1 of 2"),
        ((("b", "h"), ("h", "b")), None, "partition dimension"),
    ):
        with pytest.raises(UnsupportedError, match=match):
            tensor.rearrange(*patterns, sizes)
    with pytest.raises(UnsupportedError, match="without a copy"):
        tensor.rearrange(("b", ("h", "w")), ("b", ("w", "h")), {"h": 4})


def test_selections_at_run_time(views_by_method):
    """Rows by a column of numbers, one plane by a single number: `vector_select` and `select`."""

    @nki.jit
    def kernel(table, rows, plane):
        index = nl.ndarray((32, 1), nl.int32, nl.sbuf)
        nisa.dma_copy(index, rows)
        taken = nl.ndarray((32, 4, 6), table.dtype, nl.sbuf)
        nisa.dma_copy(taken, table.vector_select(0, index))
        out = nl.ndarray((32, 4, 6), table.dtype, nl.shared_hbm)
        nisa.dma_copy(out, taken)
        one = nl.ndarray((1, 1), nl.int32, nl.sbuf)
        nisa.dma_copy(one, plane)
        tile = nl.ndarray((50, 6), table.dtype, nl.sbuf)
        nisa.dma_copy(tile, table.select(1, one))
        second = nl.ndarray((50, 6), table.dtype, nl.shared_hbm)
        nisa.dma_copy(second, tile)
        return out, second

    rng = np.random.default_rng(3)
    table = rng.normal(size=(50, 4, 6)).astype(np.float32)
    rows = rng.integers(0, 50, (32, 1)).astype(np.int32)
    out, second = kernel(table, rows, np.array([[2]], np.int32))
    np.testing.assert_array_equal(out, table[rows[:, 0]])
    np.testing.assert_array_equal(second, table[:, 2])


def test_what_a_view_cannot_select(tracer, views_by_method):
    tile = tracer.allocate((64, 8), "float32", SBUF, "t", None)
    hbm = tracer.allocate((64, 8), "float32", HBM, "u", None)
    index = tracer.allocate((64, 1), "int32", SBUF, "i", None)
    chosen = hbm.vector_select(0, index)
    assert chosen.is_indirect() and not hbm.is_indirect() and chosen.shape == (64, 8)
    for call in (
        lambda: tile.vector_select(0, index),
        lambda: tile.select(0, index),
        lambda: chosen.vector_select(0, index),
        lambda: tile.indirect(index),
    ):
        with pytest.raises(UnsupportedError):
            call()


def test_affine_offsets_of_dynamic_slices(tracer):
    i = Affine(0, {Symbol("i", "i"): 1})
    tensor = tracer.allocate((1024, 16), "float32", HBM, "t", None)
    view = tensor[i * 128 : (i + 1) * 128, 4:8]
    assert view.shape == (128, 4)
    assert view.offset == i * 2048 + 4
    assert tensor[DynamicSlice(i, 7)].shape == (7, 16)
    with pytest.raises(UnsupportedError, match="constant"):
        tensor[i : 2 * i]
    with pytest.raises(UnsupportedError, match="Python condition"):
        bool(i)


def test_fields_of_kernel_objects_follow_the_kernel_compiler():
    from dataclasses import dataclass

    @dataclass
    class Plain(NKIObject):
        size: int
        unannotated = None
        count: int = 3

    class Bare(NKIObject):
        x: int
        y: bool = False

        def __post_init__(self):
            self.z = (self.x, self.y)

    assert Plain(count=5).size is None
    assert Plain(1, unannotated=7).unannotated == 7
    assert Bare(1).z == (1, False)
    assert Bare(x=2, y=True).z == (2, True)
    with pytest.raises(TypeError):
        Bare(w=1)
