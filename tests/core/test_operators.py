"""Programs of eager operators: values against NumPy, and times that obey the roofline, grow with the work,
and do not depend on how they were extrapolated.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.core import execute
from opentrn.core.execution import numpy_dtype
from opentrn.core.library import normalisations, reductions, signatures
from opentrn.core.library.attention import flash_attention_program
from opentrn.core.library.attention_backward import flash_attention_backward_program
from opentrn.core.library.elementwise import Operand, flat_program, rows_program
from opentrn.core.library.extended import Axis, program_ns
from opentrn.core.library.formula import parse
from opentrn.core.library.matmul import matmul_program
from opentrn.core.library.operators import operator_time
from opentrn.core.machine import constants
from opentrn.errors import ConfigurationError

RNG = np.random.default_rng(11)
FULL = Operand("float32")


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# ---- Values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("elements,tensors,width", ((5, 1, 64), (1000, 3, 64), (131 * 2048 + 7, 2, 2048)))
def test_flat_formula_of_any_size(elements: int, tensors: int, width: int) -> None:
    inputs = (FULL, Operand("float32", "row"), Operand("float32", "scalar"), Operand("float32", "number"))
    outputs = (FULL, Operand("float32", "scattered"))
    program = flat_program("y0 = x0 + 2.0 * x1\ny1 = select(x0 > x1, x0, x2) * x3", inputs, outputs)
    x, row, scalar = normal(tensors * elements), normal(elements), np.array([3.0], np.float32)
    found = execute(program, {"x0": x, "x1": row, "x2": scalar}, {"T": tensors, "E": elements, "W": width})
    whole = x.reshape(tensors, elements)
    np.testing.assert_allclose(found["y0"].reshape(whole.shape), whole + 2 * row, rtol=1e-5, atol=1e-5)
    chosen = np.where(whole > row, whole, 3.0)
    np.testing.assert_array_equal(found["y1"][::2].reshape(whole.shape), chosen)


@pytest.mark.parametrize(
    "rows,columns,width,fold", ((300, 70, 70, 20), (300, 3000, 2048, 1), (5, 128, 128, 1), (1000, 16, 16, 8))
)
def test_rows_formula_with_gains_and_statistics(rows: int, columns: int, width: int, fold: int) -> None:
    inputs = (FULL, Operand("float32", "column"), Operand("float32", "row"))
    program = rows_program("y0 = x0 * x1 + x2", inputs, (FULL,), fold > 1)
    x, column, row = normal(rows, columns), normal(rows), normal(columns)
    symbols = {"M": rows, "N": columns, "W": width, "R": fold}
    found = execute(program, {"x0": x.ravel(), "x1": column, "x2": row}, symbols)["y0"]
    np.testing.assert_allclose(found.reshape(x.shape), x * column[:, None] + row, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows,columns", ((300, 70), (300, 3000), (1, 5), (1000, 128)))
def test_reductions_over_columns(rows: int, columns: int) -> None:
    x, symbols = normal(rows, columns), reductions.folded_symbols(rows, columns)
    folded = symbols["R"] > 1
    for op, function, expected in (
        ("add", None, x.sum(1)),
        ("maximum", None, x.max(1)),
        ("add", "square", (x * x).sum(1)),
    ):
        program = reductions.rows_program("float32", "float32", op, function, folded)
        np.testing.assert_allclose(
            execute(program, {"x": x}, symbols)["y"][:, 0], expected, rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("batch,rows,columns", ((1, 300, 70), (2, 130, 3000), (3, 5, 512)))
def test_reductions_over_rows(batch: int, rows: int, columns: int) -> None:
    x, symbols = normal(batch, rows, columns), {"B": batch, "K": rows, "N": columns}
    found = execute(reductions.columns_program("float32", "float32"), {"x": x}, symbols)["y"]
    np.testing.assert_allclose(found, x.sum(1), rtol=1e-4, atol=1e-4)
    found = execute(reductions.extremes_program("float32", "maximum"), {"x": x}, symbols)["y"]
    np.testing.assert_array_equal(found, x.max(1))


@pytest.mark.parametrize("room", (4096, None))
@pytest.mark.parametrize("rows,columns", ((3, 7), (200, 3000)))
def test_softmax_and_its_kin(rows: int, columns: int, room: int | None) -> None:
    x, gradient = 3 * normal(rows, columns), normal(rows, columns)
    soft = np.exp(x - x.max(1, keepdims=True))
    soft /= soft.sum(1, keepdims=True)
    log = np.log(soft)
    expected = {
        "softmax": ((x,), soft),
        "log_softmax": ((x,), log),
        "softmax_backward": ((gradient, soft), soft * (gradient - (gradient * soft).sum(1, keepdims=True))),
        "log_softmax_backward": ((gradient, log), gradient - soft * gradient.sum(1, keepdims=True)),
    }
    for kind, (inputs, result) in expected.items():
        program = normalisations.softmax_like_program(kind, ("float32",) * len(inputs), "float32", room)
        given_ = {f"x{k}": value for k, value in enumerate(inputs)}
        found = execute(program, given_, {"M": rows, "N": columns})["y0"]
        np.testing.assert_allclose(found, result, rtol=1e-3, atol=1e-4, err_msg=kind)


@pytest.mark.parametrize("centred", (True, False))
@pytest.mark.parametrize("rows,columns", ((3, 7), (200, 3000)))
def test_normalisations_forward_and_backward(rows: int, columns: int, centred: bool) -> None:
    x, gradient = 3 * normal(rows, columns), normal(rows, columns)
    gain, shift = normal(columns), normal(columns)
    mean = x.mean(1, keepdims=True) if centred else np.zeros((rows, 1), np.float32)
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(1, keepdims=True) + 1e-6)
    normalised = (x - mean) * rstd
    gains = ("float32",) * (2 if centred else 1)
    given_ = {"x0": x, "w0": gain} | ({"w1": shift} if centred else {})
    symbols = {"M": rows, "N": columns}
    found = execute(normalisations.norm_program(centred, "float32", gains, 4096), given_, symbols)
    expected = normalised * gain + (shift if centred else 0)
    np.testing.assert_allclose(found["y0"], expected, rtol=1e-3, atol=2e-3)
    given_ = {"x0": gradient, "x1": x, "w0": gain, "rstd": rstd} | (
        {"w1": shift, "mean": mean} if centred else {}
    )
    found = execute(normalisations.norm_backward_program(centred, "float32", gains, 4096), given_, symbols)
    g = gradient * gain
    inner = g - (g.mean(1, keepdims=True) if centred else 0)
    expected = rstd * (inner - normalised * (g * normalised).mean(1, keepdims=True))
    np.testing.assert_allclose(found["y0"], expected, rtol=1e-3, atol=2e-3)
    np.testing.assert_allclose(found["d0"][0], (gradient * normalised).sum(0), rtol=1e-3, atol=2e-3)
    if centred:
        np.testing.assert_allclose(found["d1"][0], gradient.sum(0), rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
@pytest.mark.parametrize("left,right,addend,batch", ((0, 1, "none", 1), (1, 1, "row", 2), (0, 0, "whole", 2)))
def test_products_with_transposed_operands(
    dtype: str, left: int, right: int, addend: str, batch: int
) -> None:
    m, n, k = 130, 520, 700
    a, b = (normal(batch, *shape).astype(numpy_dtype(dtype)) for shape in ((m, k), (k, n)))
    added = normal(n) if addend == "row" else normal(batch, m, n)
    expected = a.astype(np.float32) @ b.astype(np.float32) + (0 if addend == "none" else added)
    program = matmul_program(
        dtype, "trn2", bool(left), "float32", right_transposed=bool(right), addend=addend, batched=True
    )
    given_ = {
        "a": np.ascontiguousarray(a.swapaxes(1, 2)) if left else a,
        "b": np.ascontiguousarray(b.swapaxes(1, 2)) if right else b,
    } | ({} if addend == "none" else {"d": added})
    found = execute(program, given_, {"B": batch, "M": m, "N": n, "K": k})["c"]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def _scores(q: np.ndarray, k: np.ndarray, causal: bool) -> np.ndarray:
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    return np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -1e30) if causal else scores


@pytest.mark.parametrize(
    "heads,queries,keys,head,causal,across",
    (
        (1, 700, 700, 128, True, False),
        (2, 5, 1300, 32, False, False),
        (5, 3, 900, 64, False, True),
        (1, 1, 1, 16, True, False),
    ),
)
def test_attention_of_any_length(
    heads: int, queries: int, keys: int, head: int, causal: bool, across: bool
) -> None:
    q, k, v = normal(heads, queries, head), normal(heads, keys, head), normal(heads, keys, head)
    scores = _scores(q, k, causal)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v
    program = flash_attention_program(head, "float32", causal, across_heads=across)
    found = execute(program, {"q": q, "k": k, "v": v}, {"H": heads, "S": queries, "T": keys})["o"]
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize(
    "heads,queries,keys,head,causal", ((1, 1024, 1024, 128, True), (2, 256, 512, 32, False))
)
def test_attention_backward(heads: int, queries: int, keys: int, head: int, causal: bool) -> None:
    q, k, v = (normal(heads, n, head).astype(np.float64) for n in (queries, keys, keys))
    gradient = normal(heads, queries, head).astype(np.float64)
    scores = _scores(q, k, causal)
    lse = np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1, keepdims=True)) + scores.max(
        -1, keepdims=True
    )
    weights = np.exp(scores - lse)
    out = weights @ v
    slopes = (
        weights * (gradient @ v.swapaxes(1, 2) - (gradient * out).sum(-1, keepdims=True)) / math.sqrt(head)
    )
    expected = {"dq": slopes @ k, "dk": slopes.swapaxes(1, 2) @ q, "dv": weights.swapaxes(1, 2) @ gradient}
    given_ = {"q": q, "k": k, "v": v, "o": out, "do": gradient, "lse": lse}
    program = flash_attention_backward_program(head, "float32", causal, room=1024)
    found = execute(
        program,
        {name: x.astype(np.float32) for name, x in given_.items()},
        {"H": heads, "S": queries, "T": keys},
    )
    for name, result in expected.items():
        np.testing.assert_allclose(found[name], result, rtol=2e-3, atol=2e-3, err_msg=name)


def test_a_formula_that_is_none_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="not Python"):
        parse("y0 = = x0")
    with pytest.raises(ConfigurationError, match="assignments"):
        parse("x0 + x1")


# ---- Times ---------------------------------------------------------------------------------------


def _bytes_ns(count: float, chip: str = "trn2") -> float:
    """The least time of so many bytes through the DMA engines of one core."""
    values = constants(chip)
    return count / (values["dma_engines"] * values["dma_engine_bytes_per_ns"])


SIZES = st.integers(1, 3000)


@settings(max_examples=40, deadline=None)
@given(SIZES, SIZES, SIZES, st.sampled_from(("float32", "bfloat16")), st.booleans(), st.booleans())
def test_no_product_beats_the_array_or_the_dma_engines(
    m: int, n: int, k: int, dtype: str, left: bool, right: bool
) -> None:
    values = constants("trn2")
    ns = signatures.matmul_time(m, n, k, dtype, transposed=left, right_transposed=right)
    passes = values["fp32_passes"] if dtype == "float32" else 1
    assert ns >= passes * m * n * k / (128 * 128 * values["tensor_ghz"])
    assert ns >= _bytes_ns((m * k + k * n + m * n) * (4 if dtype == "float32" else 2))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 1 << 24), st.sampled_from(("float32", "bfloat16")), st.integers(1, 3))
def test_no_elementwise_operator_beats_the_dma_engines(elements: int, dtype: str, inputs: int) -> None:
    size = 4 if dtype == "float32" else 2
    ns = signatures.pointwise_time(elements, dtype, inputs)
    assert ns >= _bytes_ns((inputs + 1) * elements * size)
    # A load and a store follow each other: no operator is faster than two DMAs.
    assert ns >= 2 * constants("trn2")["dma_latency_ns"]


OPERATORS = {
    "mm": lambda s: ("mm", "matmul", (1, s, 512, 512, 0, 1, 0, 0), 2, 1),
    "add": lambda s: ("add", "pointwise", (s * 256, 0, 0, 1, 0, 0, 0, 0), 2, 1),
    "silu_backward": lambda s: ("silu_backward", "pointwise", (s * 256, 0, 0, 1, 0, 0, 0, 0), 2, 1),
    "sum": lambda s: ("sum", "reduction", (s * 512, s, 512, 1, 512, 0, 0, 0), 1, 1),
    "_softmax": lambda s: ("_softmax", "reduction", (s * 512, s, 1, 1, 512, 0, 0, 0), 1, 1),
    "var": lambda s: ("var", "reduction", (s * 512, s, 512, 1, 512, 0, 0, 0), 1, 1),
    "cumsum": lambda s: ("cumsum", "scan", (s * 512, s, 512, 1, 0, 0, 0, 0), 1, 1),
    "group norm": lambda s: ("native_group_norm", "reduction", (s * 4096, s, 64, 64, 0, s * 8, 0, 0), 1, 1),
    "attention": lambda s: (
        "_scaled_dot_product_fused_attention_overrideable",
        "attention",
        (4, 4, s, s, 64, 64, 0, 0),
        3,
        0,
    ),
}


def _time(operator: str, size: int, cores: int = 2, chip: str = "trn2") -> float:
    name, kind, dims, inputs, outputs = OPERATORS[operator](size)
    whole = ("BFloat16", "whole")
    found = operator_time(name, kind, dims, (whole,) * inputs, (whole,) * outputs, chip, cores)
    assert found is not None
    return found


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(OPERATORS)), st.integers(1, 4000), st.floats(1.3, 6.0))
def test_more_work_takes_longer(operator: str, size: int, factor: float) -> None:
    # 4 %: a ragged tile changes how loads and work overlap, and DMAs fill gaps.
    assert _time(operator, int(size * factor) + 1) >= 0.96 * _time(operator, size)


@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_two_cores_share_the_work(operator: str) -> None:
    one, two = (
        _time(operator, 8192 if operator != "attention" else 1024, 1),
        _time(operator, 8192 if operator != "attention" else 1024, 2),
    )
    assert 0.48 * one <= two <= 0.75 * one


@pytest.mark.parametrize("chip", ("trn1", "trn2", "trn3"))
def test_every_generation_has_times(chip: str) -> None:
    for operator in OPERATORS:
        assert _time(operator, 300, 1, chip) > 0


def test_what_has_no_program_says_so() -> None:
    whole = ("BFloat16", "whole")
    assert operator_time("topk", "sort", (1,) * 8, (whole,), (whole,)) is None
    assert operator_time("lgamma", "pointwise", (64, 0, 0, 1, 0, 0, 0, 0), (whole,), (whole,)) is None
    for dtype in ("Long", "Double", "ComplexFloat"):
        one = (dtype, "whole")
        assert operator_time("add", "pointwise", (64, 0, 0, 1, 0, 0, 0, 0), (one, one), (one,)) is None
    assert (
        operator_time("mm", "matmul", (1, 8, 8, 8, 0, 0, 0, 0), (("Int", "whole"),) * 2, (("Int", "whole"),))
        is None
    )


@pytest.mark.parametrize(
    "program,symbols,axes",
    (
        ("matmul", {"B": 1, "M": 6144, "N": 7168, "K": 512}, (Axis("M", 512, 3, 4), Axis("N", 512, 6, 6))),
        ("matmul", {"B": 20, "M": 300, "N": 600, "K": 128}, (Axis("B", 1, 4, 4),)),
        ("attention", {"H": 12, "S": 1024, "T": 1024}, (Axis("H", 1, 2, 2),)),
        ("backward", {"H": 12, "S": 1024, "T": 1024}, (Axis("H", 1, 6, 6),)),
        ("log_softmax", {"M": 2500, "N": 9000}, (Axis("M", 128, 4, 4),)),
    ),
)
def test_extended_times_are_those_of_the_full_walk(
    program: str, symbols: dict[str, int], axes: tuple[Axis, ...]
) -> None:
    made = {
        "matmul": lambda: matmul_program("bfloat16", batched=True),
        "attention": lambda: flash_attention_program(64, "bfloat16", True),
        "backward": lambda: flash_attention_backward_program(64, "bfloat16", True, room=1024),
        "log_softmax": lambda: normalisations.softmax_like_program(
            "log_softmax", ("float32",), "float32", None
        ),
    }[program]()
    assert program_ns(made, symbols, axes) == pytest.approx(program_ns(made, symbols), rel=0.02)


def test_long_sequences_are_put_together_from_parts() -> None:
    """Four times the length of one part, causal: ten of sixteen squares, four of them half."""
    one, four = (signatures.attention_time(1, length, length, 64, causal=True) for length in (8192, 32768))
    assert 14 * one <= four <= 17 * one


def test_all_layouts_of_one_product_take_about_equally_long() -> None:
    times = [
        signatures.matmul_time(2048, 2048, 2048, transposed=left, right_transposed=right)
        for left, right in itertools.product((False, True), repeat=2)
    ]
    assert max(times) < 1.2 * min(times)
