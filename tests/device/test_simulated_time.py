"""Operators take their time from programs of NeuronCore instructions; what has none is modelled, counted
and listed.
"""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from device_helpers import NEURON, succeeds

import opentrn
from opentrn.device import _C, attach, simulated
from opentrn.trace.session import operator_totals
from opentrn.trace.source import DeviceSource


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    _C.reset_operator_totals()
    yield
    _C.use_programs(True)


def device_ns(call: Callable[[], object]) -> int:
    """Busy time of the device during a call."""
    before = _C.totals(0)["device_busy_ns"]
    call()
    return _C.totals(0)["device_busy_ns"] - before


def by_kind(call: Callable[[], object]) -> tuple[int, int]:
    """(simulated, modelled) ns of a call."""
    before = _C.totals(0)
    call()
    after = _C.totals(0)
    return after["simulated_ns"] - before["simulated_ns"], after["modelled_ns"] - before["modelled_ns"]


def bf16(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, dtype=torch.bfloat16, device=NEURON)


def machine() -> dict[str, float]:
    return attach.attached().device_parameters()


@pytest.fixture(scope="module")
def operands() -> dict[str, torch.Tensor]:
    return {
        "square": bf16(512, 512),
        "other": bf16(512, 512),
        "row": bf16(512),
        "heads": bf16(1, 4, 256, 64),
        "mask": bf16(512, 512) > 0,
        "out": bf16(512, 512),
        "images": bf16(4, 64, 14, 14),
        "channels": bf16(64),
        "index": torch.arange(300, device=NEURON) % 97,
    }


SIMULATED: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
    "mm": lambda o: o["square"].mm(o["other"]),
    "linear": lambda o: F.linear(o["square"], o["other"], o["row"]),
    "bmm": lambda o: o["square"].view(2, 256, 512).bmm(o["other"].view(2, 512, 256)),
    "add": lambda o: o["square"] + o["other"],
    "add a number": lambda o: o["square"] + 1.5,
    "add a row": lambda o: o["square"] + o["row"],
    "a column": lambda o: o["square"] * o["square"][:, :1],
    "scattered": lambda o: o["square"].t() + o["other"],
    "in place": lambda o: o["other"].mul_(1.0),
    "silu": lambda o: F.silu(o["square"]),
    "where": lambda o: torch.where(o["mask"], o["square"], o["other"]),
    "cast": lambda o: o["square"].float(),
    "cat": lambda o: torch.cat([o["square"], o["other"]]),
    "cat into": lambda o: torch.cat([o["square"][:256], o["other"][:256]], out=o["out"]),
    "sum": lambda o: o["square"].sum(),
    "sum of rows": lambda o: o["square"].sum(0),
    "mean of columns": lambda o: o["square"].mean(1),
    "softmax": lambda o: o["square"].softmax(-1),
    "log softmax": lambda o: o["square"].log_softmax(-1),
    "layer norm": lambda o: F.layer_norm(o["square"], (512,), o["row"], o["row"]),
    "attention": lambda o: F.scaled_dot_product_attention(o["heads"], o["heads"], o["heads"]),
    "var": lambda o: o["square"].var(1),
    "std of rows": lambda o: o["square"].std(0),
    "var_mean": lambda o: torch.var_mean(o["square"]),
    "argmax": lambda o: o["square"].argmax(-1),
    "argmin of rows": lambda o: o["square"].argmin(0),
    "argmax of all": lambda o: o["square"].argmax(),
    "max": lambda o: o["square"].max(1),
    "any": lambda o: o["mask"].any(1),
    "norm": lambda o: torch.linalg.vector_norm(o["square"], dim=1),
    "logsumexp": lambda o: o["square"].logsumexp(-1),
    "cumsum": lambda o: o["square"].cumsum(-1),
    "cumprod of rows": lambda o: o["square"].cumprod(0),
    "batch norm": lambda o: F.batch_norm(o["images"], None, None, o["channels"], o["channels"], True),
    "batch norm, fixed": lambda o: F.batch_norm(o["images"], o["channels"], o["channels"]),
    "group norm": lambda o: F.group_norm(o["images"], 8, o["channels"], o["channels"]),
    "cross entropy": lambda o: F.cross_entropy(o["square"][:300], o["index"]),
    "embedding": lambda o: F.embedding(o["index"], o["square"]),
    "index": lambda o: o["square"][o["index"]],
    "index_add": lambda o: o["out"].index_add_(0, o["index"], o["square"][:300]),
    "dropout": lambda o: F.dropout(o["square"], 0.1),
    "normal": lambda o: torch.empty_like(o["square"]).normal_(),
    "clone of 64-bit integers": lambda o: o["index"].clone(),
    "foreach": lambda o: torch._foreach_mul([o["square"], o["other"]], 0.5),
}


@pytest.mark.parametrize("name", sorted(SIMULATED))
def test_operators_with_a_program_are_simulated(name: str, operands: dict[str, torch.Tensor]) -> None:
    found, modelled = by_kind(lambda: SIMULATED[name](operands))
    assert found > 0 and modelled == 0, simulated.failures()


def _gradients(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Callable[[], object]:
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    result = function(*leaves)
    return lambda: torch.autograd.grad(result, leaves, torch.ones_like(result))


@pytest.mark.parametrize(
    "name,function,shapes",
    (
        ("linear", F.linear, ((256, 512), (384, 512), (384,))),
        ("silu", F.silu, ((256, 512),)),
        ("softmax", lambda x: x.softmax(-1), ((256, 512),)),
        ("layer norm", lambda x, w, b: F.layer_norm(x, (512,), w, b), ((256, 512), (512,), (512,))),
        (
            "batch norm",
            lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
            ((8, 64, 14, 14), (64,), (64,)),
        ),
        ("group norm", lambda x, w, b: F.group_norm(x, 8, w, b), ((8, 64, 14, 14), (64,), (64,))),
        (
            "cross entropy",
            lambda x: F.cross_entropy(x, torch.zeros(256, dtype=torch.int64, device=NEURON)),
            ((256, 512),),
        ),
        (
            "embedding",
            lambda x: F.embedding(torch.zeros(300, dtype=torch.int64, device=NEURON), x),
            ((256, 512),),
        ),
        ("attention", F.scaled_dot_product_attention, ((1, 2, 256, 64),) * 3),
    ),
)
def test_backward_is_simulated(
    name: str, function: Callable[..., torch.Tensor], shapes: tuple[tuple[int, ...], ...]
) -> None:
    backward = _gradients(function, *(bf16(*shape) for shape in shapes))
    found, modelled = by_kind(backward)
    assert found > 0 and modelled <= 0.02 * found, (_C.operator_totals(), simulated.failures())


def test_what_has_no_program_is_modelled_counted_and_listed() -> None:
    square = bf16(64, 64)
    whole = torch.ones(64, dtype=torch.int64, device=NEURON)
    _C.reset_operator_totals()
    found, modelled = by_kind(lambda: (square.sort(), whole + whole, square.topk(3), square.mm(square)))
    assert found > 0 and modelled > 0
    kinds = {total.name: (total.kind, total.count) for total in operator_totals(DeviceSource())}
    assert kinds["aten::sort.stable"] == ("modelled", 1)
    assert kinds["aten::topk"] == ("modelled", 1)
    assert kinds["aten::add.Tensor"] == ("modelled", 1)
    assert kinds["aten::mm"] == ("simulated", 1)
    assert not simulated.failures(), "lacking a program is no failure"


def test_an_operator_timed_both_ways_has_a_line_for_each() -> None:
    _C.reset_operator_totals()
    floats, integers = bf16(300), torch.ones(300, dtype=torch.int64, device=NEURON)
    _ = floats + floats, integers + integers, integers + integers
    lines = [(t.kind, t.count) for t in operator_totals(DeviceSource()) if t.name == "aten::add.Tensor"]
    assert sorted(lines) == [("modelled", 2), ("simulated", 1)]


@pytest.mark.parametrize("size", (64, 512, 1024))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_no_operator_is_faster_than_the_roofline(size: int, dtype: torch.dtype) -> None:
    numbers = machine()
    left = torch.ones(size, size, dtype=dtype, device=NEURON)
    passes = numbers["tensor_fp32_passes"] if dtype == torch.float32 else 1
    peak = 2 * 128 * 128 * numbers["tensor_clock_ghz"] * numbers["cores_per_logical"]  # FLOP per ns
    slower = min(numbers["hbm_bytes_per_s"], numbers["dma_bytes_per_s"]) * 1e-9
    moved = 3 * left.nbytes / slower
    # Times are whole ns.
    assert device_ns(lambda: left.mm(left)) + 1 >= max(passes * 2 * size**3 / peak, moved)
    assert device_ns(lambda: left + left) + 1 >= moved
    assert device_ns(lambda: F.silu(left)) + 1 >= moved * 2 / 3
    assert device_ns(lambda: left.softmax(-1)) + 1 >= moved * 2 / 3
    assert device_ns(lambda: left.sum()) + 1 >= moved / 3


def test_a_causal_attention_takes_about_half() -> None:
    heads = bf16(1, 4, 2048, 64)
    whole = device_ns(lambda: F.scaled_dot_product_attention(heads, heads, heads))
    causal = device_ns(lambda: F.scaled_dot_product_attention(heads, heads, heads, is_causal=True))
    assert 0.45 * whole < causal < 0.75 * whole


def test_a_signature_asks_for_its_program_once() -> None:
    a, b = bf16(77, 33), bf16(33, 91)
    _ = a.mm(b)
    before = _C.program_counters()
    times = {device_ns(lambda: a.mm(b)) for _ in range(5)}
    after = _C.program_counters()
    assert len(times) == 1 and after["misses"] == before["misses"]
    assert after["lookups"] == before["lookups"], "a call like the one before needs no signature"


def test_kept_costs_are_of_the_programs_in_use() -> None:
    """Simulation off and on again: the cost kept for a call is worked out anew each time."""
    a, b = bf16(77, 33), bf16(33, 91)

    def time() -> int:
        return device_ns(lambda: a.mm(b))

    simulated = time()
    before = _C.use_programs(False)
    try:
        modelled = time()
    finally:
        _C.use_programs(before)
    assert modelled != simulated == time()


def test_signatures_share_an_answer_only_where_they_are_equal() -> None:
    """Same sizes, other strides or another dtype: other programs."""
    a = bf16(512, 512)
    times = {
        device_ns(lambda: a.mm(a)),
        device_ns(lambda: a.t().mm(a)),
        device_ns(lambda: a.mm(a.t())),
        device_ns(lambda: a.float().mm(a.float())),
    }
    assert len(times) == 4


def test_the_dimension_of_a_call_counts() -> None:
    """A square whose columns are summed up, or its rows: the sizes do not tell, the argument does."""
    square = bf16(512, 512)
    assert device_ns(lambda: square.cumsum(0)) > 1.1 * device_ns(lambda: square.cumsum(1))
    assert device_ns(lambda: square.argmax(0)) != device_ns(lambda: square.argmax(1))
    with opentrn.dry_run():
        large = bf16(4096, 4096)
        assert device_ns(lambda: large.cumsum(0)) > 1.1 * device_ns(lambda: large.cumsum(1))


def test_operands_that_lie_across_are_dearer() -> None:
    """DMA moves single elements where neighbours of the result are none of the operand."""
    a, b = bf16(1024, 1024), bf16(1024, 1024)
    along = device_ns(lambda: a + b)
    assert device_ns(lambda: a.t() + b) > 2 * along
    assert device_ns(lambda: a + b.t()) > 2 * along
    assert device_ns(lambda: a.t() + b.t()) == along


def test_a_growing_cache_seldom_needs_a_new_attention_program() -> None:
    """One new token at a time, as generation has it: lengths are padded as the program pads them."""
    query = bf16(1, 4, 1, 64)
    keys = [bf16(1, 4, length, 64) for length in range(1, 300)]
    before = _C.program_counters()["misses"]
    times = [device_ns(lambda k=k: F.scaled_dot_product_attention(query, k, k)) for k in keys]
    assert times == sorted(times), "more keys never take less time"
    # Each length has a signature of its own, but only every 128th a program that was not timed before.
    assert len(set(times)) == 3
    assert _C.program_counters()["misses"] - before <= 2 * len(keys)


def test_a_program_that_fails_is_counted_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentrn.core.library import operators

    def broken(*_: object) -> float:
        raise ValueError("no room for this tile\nsecond line")

    monkeypatch.setattr(operators, "operator_time", broken)
    simulated.install(attach.attached())
    try:
        a = bf16(40, 40)
        found, modelled = by_kind(lambda: (a.mm(a), a.mm(a)))
        assert found == 0 and modelled > 0, "the operators ran, and are modelled"
        (failure,) = [f for f in simulated.failures() if f.operator == "mm"]
        assert failure == simulated.Failure("mm", "ValueError: no room for this tile", 1)
        assert any("mm" in line and "no room" in line for line in DeviceSource().program_failures())
    finally:
        monkeypatch.undo()
        simulated.install(attach.attached())
    assert by_kind(lambda: a.mm(a))[0] > 0 and not simulated.failures()


def test_threads_that_miss_at_once_agree() -> None:
    sizes = list(range(150, 190))
    operands = [bf16(size, 64) for size in sizes]

    def work(operand: torch.Tensor) -> float:
        result = operand.detach().requires_grad_()
        F.silu(result @ operand.t()).sum().backward()
        return float(result.grad.sum())

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, operands * 2))
    assert found[: len(sizes)] == found[len(sizes) :]
    assert not simulated.failures()


def test_a_dry_run_takes_the_times_of_a_real_one() -> None:
    def step() -> int:
        model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.SiLU(), torch.nn.Linear(512, 256))
        model, x = model.to(NEURON), torch.ones(512, 256, device=NEURON)
        return device_ns(lambda: model(x).square().mean().backward())

    real = step()
    with opentrn.dry_run():
        assert step() == real


def test_programs_can_be_switched_off_to_compare() -> None:
    a = bf16(300, 300)
    assert by_kind(lambda: a.mm(a))[0] > 0
    assert _C.use_programs(False) is True
    found, modelled = by_kind(lambda: a.mm(a))
    assert found == 0 and modelled > 0


def test_the_trace_says_simulated() -> None:
    _C.trace_start({"shapes": True, "frames": False})
    a = bf16(64, 64)
    _ = a.mm(a)
    a.topk(3)
    _C.trace_stop()
    drained, names = _C.trace_drain(), _C.trace_names()["operators"]
    kinds = {names[i]: int(kind) for i, kind in zip(drained["operator"], drained["kind"], strict=True)}
    assert kinds["aten::mm"] == 1 and kinds["aten::topk"] == 0


def test_importing_torch_does_not_load_the_core() -> None:
    code = """
    import sys, torch
    print("opentrn.core" in sys.modules)
    a = torch.ones(4, 4, device="neuron")
    b = a @ a
    print("opentrn.core" in sys.modules)
    """
    assert succeeds(code).split() == ["False", "True"]


def test_chips_without_a_core_are_modelled_and_generations_differ() -> None:
    code = """
    import json, torch
    from opentrn.device import _C
    a = torch.ones(1024, 1024, dtype=torch.bfloat16, device="neuron")
    a @ a; a + a
    print(json.dumps(_C.totals(0)))
    """
    totals = {
        instance: json.loads(succeeds(code, environment={"OPENTRN_INSTANCE": instance}))
        for instance in ("p5.48xlarge", "trn1.32xlarge", "trn2.48xlarge", "trn3-gen1")
    }
    assert totals["p5.48xlarge"]["simulated_ns"] == 0 < totals["p5.48xlarge"]["modelled_ns"]
    times = [totals[name]["simulated_ns"] for name in ("trn1.32xlarge", "trn2.48xlarge", "trn3-gen1")]
    assert times == sorted(times, reverse=True) and min(times) > 0


def test_logical_cores_of_one_and_of_two() -> None:
    code = """
    import torch
    from opentrn.device import _C
    a = torch.ones(2048, 1024, dtype=torch.bfloat16, device="neuron")
    before = _C.totals(0)["device_busy_ns"]
    a + a; a @ a.t(); a.softmax(-1)
    print(_C.totals(0)["device_busy_ns"] - before)
    """
    one, two = (
        int(succeeds(code, environment={"NEURON_LOGICAL_NC_CONFIG": size, "NEURON_RT_VISIBLE_CORES": "0"}))
        for size in "12"
    )
    assert 0.5 * one <= two <= 0.7 * one
