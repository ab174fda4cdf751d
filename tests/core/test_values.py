"""Each instruction against the NumPy oracle, over random shapes, strides, dtypes and access patterns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from casting import FLOATS, INTEGERS, SMALL_FLOATS, Case, counts, partitions, patterns, values
from hypothesis import given
from hypothesis import strategies as st
from oracle_values import ACTIVATION

ARITHMETIC = (
    "add",
    "subtract",
    "multiply",
    "maximum",
    "minimum",
    "abs_max",
    "equal",
    "not_equal",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
)
seeds = st.integers(0, 10_000)


@given(st.data(), seeds)
def test_tensor_copy_converts_between_dtypes(data: Any, seed: int) -> None:
    case, shape, place = Case(seed=seed), data.draw(counts()), data.draw(partitions())
    kinds = st.sampled_from(FLOATS + SMALL_FLOATS + INTEGERS + ("tfloat32",))
    src = case.operand(data.draw(patterns(shape, True)), data.draw(kinds), place)
    dst = case.keep(case.operand(data.draw(patterns(shape)), data.draw(kinds), place))
    case.builder.emit("tensor_copy", dst=dst, src=src)
    case.run()


@given(st.data(), seeds)
def test_memset_and_iota(data: Any, seed: int) -> None:
    case, shape, place = Case(seed=seed), data.draw(counts()), data.draw(partitions())
    kind = data.draw(st.sampled_from(FLOATS + INTEGERS))
    dst = case.keep(case.operand(data.draw(patterns(shape)), kind, place))
    case.builder.emit("memset", dst=dst, value=data.draw(st.sampled_from((0, 3, 7.5, 0.0))))
    other = case.keep(
        case.operand(
            data.draw(patterns(shape)), data.draw(st.sampled_from(("int32", "float32", "uint32"))), place
        )
    )
    steps = [[data.draw(st.integers(0, 9)), count] for count in shape]
    case.builder.emit(
        "iota",
        dst=other,
        pattern=steps,
        offset=data.draw(st.integers(0, 50)),
        channel_multiplier=data.draw(st.integers(0, 20)),
    )
    case.run()


@given(st.data(), seeds)
def test_tensor_tensor(data: Any, seed: int) -> None:
    case, shape, place = Case(seed=seed), data.draw(counts()), data.draw(partitions())
    kind = st.sampled_from(FLOATS)
    a = case.operand(
        data.draw(patterns(shape, True)), data.draw(kind), place, data.draw(st.sampled_from(("sbuf", "psum")))
    )
    b = case.operand(data.draw(patterns(shape, True)), data.draw(kind), place)
    dst = case.keep(
        case.operand(
            data.draw(patterns(shape)), data.draw(st.sampled_from((*FLOATS, "int32", "uint8"))), place
        )
    )
    case.builder.emit("tensor_tensor", dst=dst, data1=a, data2=b, op=data.draw(st.sampled_from(ARITHMETIC)))
    case.run()


@given(st.data(), seeds)
def test_integer_arithmetic_on_gpsimd_and_bits_everywhere(data: Any, seed: int) -> None:
    case, shape, place = Case(seed=seed), data.draw(counts()), data.draw(partitions())
    kind = data.draw(st.sampled_from(("int32", "uint32")))
    big = np.random.default_rng(seed).integers(0, 2**30, (128, 64)).astype(kind)
    op = data.draw(
        st.sampled_from(
            ("add", "subtract", "multiply", "maximum", "bitwise_and", "bitwise_or", "bitwise_xor")
        )
    )
    pattern = data.draw(patterns(shape, True))
    a = case.operand(pattern, kind, place, data=np.resize(big, (128, pattern.row)))
    b = case.operand(data.draw(patterns(shape, True)), kind, place)
    dst = case.keep(case.operand(data.draw(patterns(shape)), kind, place))
    case.builder.emit("tensor_tensor", dst=dst, data1=a, data2=b, op=op)
    shifted = case.keep(case.operand(data.draw(patterns(shape)), kind, place))
    case.builder.emit(
        "tensor_scalar",
        dst=shifted,
        data=a,
        op0=data.draw(st.sampled_from(("left_shift", "right_shift"))),
        operand0=data.draw(st.integers(0, 8)),
        op1="bitwise_and",
        operand1=0xFFFF,
    )
    case.run()


@given(st.data(), seeds)
def test_tensor_scalar(data: Any, seed: int) -> None:
    case, shape, place = Case(seed=seed), data.draw(counts()), data.draw(partitions())
    src = case.operand(
        data.draw(patterns(shape, True)), data.draw(st.sampled_from((*FLOATS, "int32", "uint8"))), place
    )
    dst = case.keep(
        case.operand(data.draw(patterns(shape)), data.draw(st.sampled_from((*FLOATS, "int32"))), place)
    )

    def scalar() -> Any:
        if data.draw(st.booleans()):
            return data.draw(st.sampled_from((0, 1, -2.5, 0.125, 3)))
        return case.operand(data.draw(patterns((1,))), data.draw(st.sampled_from(FLOATS)), place)

    arguments: dict[str, Any] = {
        "op0": data.draw(st.sampled_from(ARITHMETIC)),
        "operand0": scalar(),
        "reverse0": data.draw(st.booleans()),
    }
    if data.draw(st.booleans()):
        arguments |= {
            "op1": data.draw(st.sampled_from(ARITHMETIC)),
            "operand1": scalar(),
            "reverse1": data.draw(st.booleans()),
        }
    case.builder.emit("tensor_scalar", dst=dst, data=src, **arguments)
    case.run()


@given(st.data(), seeds)
def test_scalar_tensor_tensor_and_predicated_copy(data: Any, seed: int) -> None:
    case, shape, place = Case(seed=seed), data.draw(counts()), data.draw(partitions())
    a = case.operand(data.draw(patterns(shape, True)), "float32", place)
    b = case.operand(data.draw(patterns(shape, True)), data.draw(st.sampled_from(FLOATS)), place)
    dst = case.keep(case.operand(data.draw(patterns(shape)), "float32", place))
    case.builder.emit(
        "scalar_tensor_tensor",
        dst=dst,
        data=a,
        op0=data.draw(st.sampled_from(ARITHMETIC)),
        operand0=1.5,
        op1=data.draw(st.sampled_from(ARITHMETIC)),
        operand1=b,
        reverse0=data.draw(st.booleans()),
        reverse1=data.draw(st.booleans()),
    )
    mask = case.operand(data.draw(patterns(shape, True)), "uint8", place, data=None)
    masked = case.keep(case.operand(data.draw(patterns(shape)), "bfloat16", place))
    predicate = case.operand(data.draw(patterns(shape)), "uint8", place)
    case.builder.emit("tensor_scalar", dst=predicate, data=mask, op0="less", operand0=128)
    case.builder.emit(
        "tensor_copy_predicated",
        dst=masked,
        src=b,
        predicate=predicate,
        reverse_pred=data.draw(st.booleans()),
    )
    case.run()


@pytest.mark.parametrize("function", sorted(ACTIVATION))
def test_activation_functions(function: str) -> None:
    positive = function in ("sqrt", "rsqrt", "log", "log2", "log1p", "reciprocal")
    case = Case(seed=sum(map(ord, function)))
    src = case.tile((64, 300), "float32", low=0.01 if positive else -4.0, high=6.0 if positive else 4.0)
    dst = case.keep(case.tile((64, 300), "float32"))
    case.builder.emit("activation", dst=dst, op=function, data=src)
    case.run(exact=False, tolerance={"float32": 3e-6})


@given(st.data(), seeds)
def test_activation_with_scale_bias_and_reduction(data: Any, seed: int) -> None:
    case, shape, place = Case(seed=seed), data.draw(counts()), data.draw(partitions())
    src = case.operand(data.draw(patterns(shape, True)), data.draw(st.sampled_from(FLOATS)), place)
    dst = case.keep(case.operand(data.draw(patterns(shape)), data.draw(st.sampled_from(FLOATS)), place))
    total = case.keep(case.operand(data.draw(patterns((1,))), "float32", place))
    bias = case.operand(data.draw(patterns((1,))), "float32", place) if data.draw(st.booleans()) else None
    scale = case.operand(data.draw(patterns((1,))), "float32", place) if data.draw(st.booleans()) else 0.5
    case.builder.emit(
        "activation_reduce",
        dst=dst,
        op="square",
        data=src,
        reduce_op="add",
        reduce_res=total,
        bias=bias,
        scale=scale,
    )
    case.builder.emit(
        "activation",
        dst=dst,
        op="exp",
        data=src,
        bias=bias,
        scale=0.1,
        reduce_op="add",
        reduce_res=total,
        reduce_cmd="reduce",
    )
    case.run(exact=False)


@given(st.data(), seeds)
def test_tensor_reduce_over_any_free_axes(data: Any, seed: int) -> None:
    case, shape, place = Case(seed=seed), data.draw(counts(4, 5)), data.draw(partitions())
    axes = data.draw(st.lists(st.integers(1, len(shape)), min_size=1, max_size=len(shape), unique=True))
    kept = tuple(count for k, count in enumerate(shape, 1) if k not in axes) or (1,)
    src = case.operand(data.draw(patterns(shape, True)), data.draw(st.sampled_from(FLOATS)), place)
    dst = case.keep(case.operand(data.draw(patterns(kept)), "float32", place))
    case.builder.emit(
        "tensor_reduce",
        dst=dst,
        op=data.draw(st.sampled_from(("add", "maximum", "minimum"))),
        data=src,
        axis=axes,
        negate=data.draw(st.booleans()),
    )
    case.run(exact=False)


@given(st.data(), seeds)
def test_scans(data: Any, seed: int) -> None:
    case, shape, place = Case(seed=seed), data.draw(counts()), data.draw(partitions())
    a = case.operand(data.draw(patterns(shape, True)), "float32", place, low=-0.9, high=0.9)
    b = case.operand(data.draw(patterns(shape, True)), "float32", place)
    dst = case.keep(case.operand(data.draw(patterns(shape)), "float32", place))
    initial = case.operand(data.draw(patterns((1,))), "float32", place) if data.draw(st.booleans()) else 0.25
    case.builder.emit(
        "tensor_tensor_scan",
        dst=dst,
        data0=a,
        data1=b,
        initial=initial,
        op0=data.draw(st.sampled_from(("multiply", "add", "maximum"))),
        op1=data.draw(st.sampled_from(("add", "minimum"))),
        reverse0=data.draw(st.booleans()),
    )
    running = case.keep(case.operand(data.draw(patterns(shape)), "float32", place))
    case.builder.emit("tensor_scalar_cumulative", dst=running, src=b, op0="multiply", op1="add", imm0=0.5)
    case.run(exact=False)


@given(st.data(), seeds)
def test_selections_and_their_accumulators(data: Any, seed: int) -> None:
    case, shape, place = Case(seed=seed), data.draw(counts()), data.draw(partitions())
    value = case.operand(data.draw(patterns(shape, True)), "float32", place)
    out = case.keep(case.operand(data.draw(patterns(shape)), "float32", place))
    largest = case.keep(case.operand(data.draw(patterns((1,))), "float32", place))
    low, high = (case.operand(data.draw(patterns((1,))), "float32", place, low=-2, high=20) for _ in range(2))
    case.builder.emit(
        "range_select",
        dst=out,
        on_true_tile=value,
        comp_op0="greater_equal",
        comp_op1="less",
        bound0=low,
        bound1=high,
        reduce_res=largest,
        range_start=data.draw(st.integers(0, 5)),
        on_false_value=-9.0,
    )
    mask = case.operand(data.draw(patterns(shape)), "uint8", place)
    case.builder.emit("tensor_scalar", dst=mask, data=value, op0="greater", operand0=0.0)
    chosen = case.keep(case.operand(data.draw(patterns(shape)), "float32", place))
    case.builder.emit(
        "select_reduce",
        dst=chosen,
        predicate=mask,
        on_true=value,
        on_false=-1.0,
        reduce_res=largest,
        reduce_cmd="reduce",
        reverse_pred=data.draw(st.booleans()),
    )
    tri = case.keep(case.operand(data.draw(patterns(shape)), "float32", place))
    case.builder.emit(
        "affine_select",
        dst=tri,
        pattern=[[data.draw(st.integers(-3, 3)), count] for count in shape],
        offset=data.draw(st.integers(-9, 9)),
        channel_multiplier=data.draw(st.integers(-2, 2)),
        on_true_tile=value,
        on_false_value=7.0,
        cmp_op=data.draw(st.sampled_from(("greater_equal", "equal", "less"))),
    )
    total = case.keep(case.operand(data.draw(patterns((1,))), "float32", place))
    case.builder.emit(
        "tensor_scalar_reduce",
        dst=out,
        data=value,
        op0="multiply",
        operand0=2.0,
        reduce_op="add",
        reduce_res=total,
    )
    case.run(exact=False)


@given(seeds, st.integers(3, 130))
def test_batch_statistics(seed: int, width: int) -> None:
    case = Case(seed=seed)
    src = case.tile((128, width), "float32")
    stats = case.keep(case.tile((128, 12), "float32"))
    case.builder.emit("bn_stats", dst=case.builder.access(stats, ((12, 128), (1, 6))), data=src)
    case.builder.emit(
        "bn_stats",
        dst=case.builder.access(stats, ((12, 128), (1, 6)), 6),
        data=case.builder.access(src, ((width, 128), (1, width // 2))),
    )
    final = case.keep(case.tile((128, 2), "float32"))
    case.builder.emit("bn_aggr", dst=final, data=stats)
    case.run(exact=False)


@given(st.data(), seeds)
def test_searches(data: Any, seed: int) -> None:
    case, width = Case(chip="trn2", seed=seed), data.draw(st.integers(8, 60))
    grid = np.random.default_rng(seed).integers(0, 12, (32, width)).astype(np.float32)
    src = case.tile((32, width), "float32", data=grid)
    best = case.keep(case.tile((32, 8), "float32"))
    index = case.keep(case.tile((32, 8), data.draw(st.sampled_from(("uint32", "uint16")))))
    case.builder.emit("max8", dst=best, src=src)
    case.builder.emit("nc_find_index8", dst=index, data=src, vals=best)
    replaced, where = case.keep(case.tile((32, width), "float32")), case.keep(case.tile((32, 8), "uint32"))
    case.builder.emit("nc_match_replace8", dst=replaced, data=src, vals=best, imm=-5.0, dst_idx=where)
    n = data.draw(st.integers(1, width))
    top, order = case.keep(case.tile((32, n), "float32")), case.keep(case.tile((32, n), "uint32"))
    case.builder.emit("topk", val_dst=top, idx_dst=order, src=src, n=n)
    hits = case.keep(case.tile((32, width + 1), "int32"))
    case.builder.emit("nonzero_with_count", dst=hits, src=src, index_offset=3)
    bounds = case.keep(case.tile((32, 2, width), "float32"))
    ids = case.tile((32, width), "float32", data=np.sort(grid, axis=1))
    case.builder.emit("sequence_bounds", dst=bounds, segment_ids=ids)
    case.run()


@given(st.data(), seeds)
def test_shuffles_transposes_and_gathers(data: Any, seed: int) -> None:
    case, width = Case(seed=seed), data.draw(st.integers(1, 40))
    src = case.tile((128, width), data.draw(st.sampled_from(("float32", "bfloat16"))))
    dst = case.keep(case.tile((128, width), src.dtype))
    mask = data.draw(st.lists(st.sampled_from((*range(32), 255)), min_size=32, max_size=32))
    case.builder.emit("nc_stream_shuffle", dst=dst, src=src, shuffle_mask=mask)
    rows, columns = data.draw(st.integers(1, 32)), data.draw(st.integers(1, min(32, width)))
    turned = case.keep(case.tile((32, 32), src.dtype))
    case.builder.emit(
        "nc_transpose",
        dst=case.builder.access(turned, ((32, columns), (1, rows))),
        data=case.builder.access(src, ((width, rows), (1, columns))),
    )
    wide = case.keep(case.tile((width, 128), src.dtype, "psum"))
    case.builder.emit("nc_transpose", dst=wide, data=src)
    index = case.tile(
        (128, 5), "uint32", data=np.random.default_rng(seed).integers(0, width, (128, 5)).astype(np.uint32)
    )
    picked = case.keep(case.tile((128, 5), src.dtype))
    case.builder.emit("nc_n_gather", dst=picked, data=src, indices=index)
    each = data.draw(st.sampled_from((1, 2, 4)))
    entries = case.tile((32, width + each - 1), "float32")
    spots = case.tile(
        (32, 2), "uint16", data=np.random.default_rng(seed).integers(0, width, (32, 2)).astype(np.uint16)
    )
    local = case.keep(case.tile((32, 32 * each), "float32"))
    case.builder.emit("local_gather", dst=local, src_buffer=entries, index=spots, num_elem_per_idx=each)
    case.run()


@given(st.data(), seeds)
def test_matmul(data: Any, seed: int) -> None:
    kind = data.draw(st.sampled_from(("float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2")))
    k, m, n = data.draw(st.integers(1, 128)), data.draw(st.integers(1, 128)), data.draw(st.integers(1, 512))
    case = Case(seed=seed)
    a, b = case.tile((k, m), kind), case.tile((k, n), kind)
    out = case.keep(case.builder.psum("out", (m, n), data.draw(st.sampled_from(("float32", "bfloat16")))))
    for accumulate in data.draw(
        st.lists(st.sampled_from((None, True, False)), min_size=1, max_size=3).filter(
            lambda x: x[0] is not True
        )
    ):
        case.builder.emit("nc_matmul", dst=out, stationary=a, moving=b, accumulate=accumulate)
    case.run(exact=False, tolerance={"float32": 1e-3, "bfloat16": 3e-2})


@given(seeds)
def test_matmul_of_strided_operands_and_double_row(seed: int) -> None:
    case = Case(seed=seed)
    a, b = case.tile((64, 3, 40), "float32"), case.tile((64, 2, 50), "bfloat16")
    out = case.keep(case.builder.psum("out", (40, 50), "float32"))
    case.builder.emit(
        "nc_matmul",
        dst=out,
        stationary=case.builder.access(a, ((120, 64), (3, 40)), 1),
        moving=case.builder.access(b, ((100, 64), (2, 50)), 0),
    )
    fast_a, fast_b = case.tile((128, 2, 32), "float8_e4m3"), case.tile((128, 2, 64), "float8_e4m3")
    fast = case.keep(case.builder.psum("fast", (32, 64), "float32"))
    case.builder.emit("nc_matmul", dst=fast, stationary=fast_a, moving=fast_b, perf_mode="double_row")
    case.run(exact=False, tolerance={"float32": 1e-3})


def test_transpose_by_matmul_moves_infinities_and_nan_exactly() -> None:
    case = Case()
    data = values("float32", (32, 48), 3)
    data[3, 4], data[5, 6], data[0, 0] = np.inf, np.nan, -np.inf
    a = case.tile((32, 48), "float32", data=data)
    identity = case.tile((32, 32), "float32", data=np.eye(32, dtype=np.float32))
    out = case.builder.psum("out", (48, 32), "float32")
    case.keep(out)
    case.builder.emit("nc_matmul", dst=out, stationary=a, moving=identity, is_transpose=True)
    program_outputs = _run_without_oracle(case)
    np.testing.assert_array_equal(program_outputs["out0"], data.T)


def _run_without_oracle(case: Case) -> dict[str, np.ndarray]:
    from opentrn.core import execute

    tensor, name = case.read_back[0]
    staged = case.builder.sbuf("staged", tensor.shape, tensor.dtype)
    case.builder.emit("tensor_copy", dst=staged, src=tensor)
    case.builder.emit(
        "dma_copy", dst=case.builder.hbm(name, tensor.shape, tensor.dtype, kind="output"), src=staged
    )
    return execute(case.builder.finish(), case.inputs)


@given(
    seeds,
    st.sampled_from(("float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4")),
    st.sampled_from((32, 64, 128)),
)
def test_mx_quantisation_and_matmul(seed: int, kind: str, rows: int) -> None:
    case = Case(chip="trn3", seed=seed)
    packed, scales = [], []
    for columns in (16, 24):
        src = case.tile((rows, 4 * columns), "float32", low=-30, high=30)
        q = case.keep(
            case.tile(
                (rows, columns),
                kind,
                data=np.zeros((rows, columns), np.uint16 if "float4" in kind else np.uint32),
            )
        )
        s = case.keep(case.tile((rows, columns), "uint8"))
        case.builder.emit("quantize_mx", dst=q, src=src, dst_scale=s)
        packed.append(q)
        scales.append(s)
    out = case.keep(case.builder.psum("out", (16, 24), "float32"))
    case.builder.emit(
        "nc_matmul_mx",
        dst=out,
        stationary=packed[0],
        moving=packed[1],
        stationary_scale=scales[0],
        moving_scale=scales[1],
    )
    case.run(exact=False, tolerance={"float32": 1e-3})


@given(st.data(), seeds)
def test_dma_copies_between_any_patterns(data: Any, seed: int) -> None:
    case = Case(seed=seed)
    kind, other = (data.draw(st.sampled_from(FLOATS + INTEGERS)) for _ in range(2))
    shape = data.draw(counts(3, 6))
    rows = data.draw(st.integers(1, 9))
    pattern = data.draw(patterns((rows, *shape), True))
    source = case.builder.hbm("x", (pattern.row,), kind)
    case.inputs["x"] = values(kind, (pattern.row,), seed)
    place = data.draw(st.integers(0, 119))
    tile = data.draw(patterns(shape))
    dst = case.operand(tile, other, (place, rows))
    case.keep(dst)
    case.builder.emit("dma_copy", dst=dst, src=case.builder.access(source, pattern.dims, pattern.offset))
    case.run()


@given(st.data(), seeds)
def test_gathering_and_scattering_dma(data: Any, seed: int) -> None:
    case, width = Case(seed=seed), data.draw(st.integers(1, 20))
    rng = np.random.default_rng(seed)
    table = case.builder.hbm("table", (50, width), "float32")
    case.inputs["table"] = values("float32", (50, width), seed)
    picks = rng.permutation(60)[:32].astype(np.int32)[:, None]  # some beyond the table
    index = case.tile((32, 1), "int32", data=picks)
    got = case.keep(case.tile((32, width), "float32"))
    column = case.builder.access(index, ((1, 32), (1, 1)))
    case.builder.emit(
        "dma_copy",
        dst=got,
        oob_mode="skip",
        src=case.builder.access(
            table, ((width, 32), (1, width)), vector_offset=column, vector_stride=width, vector_bound=50
        ),
    )
    out = case.builder.hbm("scattered", (60, width), "float32", kind="output")
    zero = case.builder.sbuf("zero", (60, width), "float32")
    case.builder.emit("memset", dst=zero, value=0.0)
    case.builder.emit("dma_copy", dst=out, src=zero)
    target = case.builder.access(
        out, ((width, 32), (1, width)), vector_offset=column, vector_stride=width, vector_bound=60
    )
    case.builder.emit("dma_copy", dst=target, src=got)
    case.builder.emit(
        "dma_compute", dst=target, srcs=[target, case.builder.access(got)], scales=[1.0, 2.0], reduce_op="add"
    )
    position = case.tile((1, 1), "int32", data=np.array([[7]], np.int32))
    row = case.keep(case.tile((1, width), "float32"))
    case.builder.emit(
        "dma_copy",
        dst=row,
        src=case.builder.access(
            table, ((width, 1), (1, width)), scalar_offset=case.builder.access(position), scalar_stride=width
        ),
    )
    case.run()


@given(st.data(), seeds)
def test_dma_transposes(data: Any, seed: int) -> None:
    case = Case(seed=seed)
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=4)))
    kind = data.draw(st.sampled_from(("float32", "bfloat16")))
    source = case.builder.hbm("x", shape, kind)
    case.inputs["x"] = values(kind, shape, seed)
    order = {2: [1, 0], 3: [2, 1, 0], 4: [3, 1, 2, 0]}[len(shape)]
    axes = data.draw(st.sampled_from((None, list(data.draw(st.permutations(range(len(shape))))))))
    turned = tuple(shape[a] for a in (axes or order))
    dst = case.keep(case.tile((turned[0], int(np.prod(turned[1:]))), kind))
    case.builder.emit("dma_transpose", dst=dst, src=case.builder.access(source), axes=axes)
    case.run()


@given(st.data(), seeds)
def test_partition_reduction_reciprocal_exponential_activate2(data: Any, seed: int) -> None:
    case, width = Case(chip="trn3", seed=seed), data.draw(st.integers(1, 70))
    src = case.tile((128, width), "float32", low=0.5)
    total = case.keep(case.tile((1, width), "float32"))
    case.builder.emit(
        "tensor_partition_reduce", dst=total, op=data.draw(st.sampled_from(("add", "maximum"))), data=src
    )
    out = case.keep(case.tile((128, width), "float32"))
    case.builder.emit("reciprocal", dst=out, data=src)
    raised, summed = case.keep(case.tile((128, width), "float32")), case.keep(case.tile((128, 1), "float32"))
    largest = case.tile((128, 1), "float32")
    case.builder.emit(
        "exponential", dst=raised, src=src, max_value=largest, reduce_res=summed, reduce_cmd="reset_reduce"
    )
    again = case.keep(case.tile((128, width), "float32"))
    case.builder.emit(
        "activate2", dst=again, op="tanh", data=src, imm0=0.5, imm1=largest, op0="multiply", op1="add"
    )
    case.run(exact=False, tolerance={"float32": 1e-4})


def test_registers_and_loops() -> None:
    case = Case()
    b = case.builder
    src, dst = case.tile((4, 64), "float32"), case.keep(case.tile((4, 64), "float32"))
    bound = case.tile((1, 1), "int32", data=np.array([[5]], np.int32))
    trips = b.register()
    b.emit("register_load", dst=trips, src=b.access(bound))
    with b.loop(0, trips, kind="dynamic") as i:
        b.emit(
            "tensor_copy",
            dst=b.access(dst, ((64, 4), (1, 4)), i * 8),
            src=b.access(src, ((64, 4), (1, 4)), i * 4),
        )
    left = b.register(3)
    with b.while_loop(left):
        b.emit(
            "tensor_scalar",
            dst=b.access(dst, ((64, 4), (1, 2)), left * 10),
            data=b.access(src, ((64, 4), (1, 2))),
            op0="multiply",
            operand0=left,
        )
        b.emit("register_move", dst=left, src=left - 1)
    count = case.keep(case.tile((1, 1), "int32"))
    b.emit("register_store", dst=b.access(count), src=left + 41)
    out = case.run()
    assert out["out1"][0, 0] == 41
