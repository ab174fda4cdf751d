"""What a dry run says when a program wants values that were never made."""

from __future__ import annotations

import copy
import time
import types
from collections.abc import Iterator

import pytest
import torch

import opentrn
from opentrn.device import _C, dry
from opentrn.errors import UnbackedReadError

LARGE = 1 << 18  # float32 elements: 1 MiB, without bytes in a dry run


@pytest.fixture
def large():
    with opentrn.dry_run():
        yield torch.randn(LARGE, device="neuron")


def rules() -> dict[str, int]:
    counts: dict[str, int] = {}
    for entry in dry.ledger():
        counts[entry.rule] = counts.get(entry.rule, 0) + entry.count
    return counts


def test_address_is_refused_in_one_line_with_cure(large):
    for read in (large.data_ptr, large.__dlpack__, lambda: torch.utils.dlpack.to_dlpack(large)):
        with pytest.raises(RuntimeError, match=r"this tensor has no bytes.*\n  what to do: ") as caught:
            read()
        assert len(str(caught.value).splitlines()) == 2


def test_numpy_is_refused_as_on_cuda_and_its_cpu_copy_is_counted(large):
    with pytest.raises(TypeError, match="can't convert neuron:0"):
        large.numpy()
    assert (large.cpu().numpy() == 0).all()
    assert rules()["copied to the host: zeros"] == 1


def test_branch_is_counted_with_its_line(large):
    if large.mean() > 0:
        pass
    entries = [entry for entry in dry.ledger() if "test_dry_reads.py" in entry.frame]
    assert entries, dry.ledger()
    assert all("test_branch_is_counted_with_its_line" in entry.frame for entry in entries)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.complex32])
def test_a_complex_value_that_the_host_reads_is_complex(dtype):
    with opentrn.dry_run():
        value = torch.zeros(LARGE, dtype=dtype, device="neuron")[3].item()
    assert type(value) is complex and value == 1


@pytest.mark.parametrize("form", ["tensor", "module", "nested", "object"])
def test_save_is_refused_and_leaves_no_file(large, tmp_path, form):
    module = torch.nn.Linear(512, 512, device="neuron")
    what = {
        "tensor": large,
        "module": module,
        "nested": {"a": [module.state_dict()]},
        "object": types.SimpleNamespace(deep=types.SimpleNamespace(weight=large)),
    }[form]
    with pytest.raises(UnbackedReadError, match="would write zeros") as caught:
        torch.save(what, tmp_path / "file.pt")
    assert "what to do" in str(caught.value)
    assert not (tmp_path / "file.pt").exists()


def test_safetensors_save_is_refused(large, tmp_path):
    from safetensors import torch as writer

    with pytest.raises(UnbackedReadError):
        writer.save_file({"weight": large}, str(tmp_path / "file.safetensors"))
    assert not (tmp_path / "file.safetensors").exists()


def test_small_tensors_save_and_load_as_always(tmp_path):
    with opentrn.dry_run():
        small = torch.arange(5, device="neuron")
        torch.save(small, tmp_path / "small.pt")
        assert torch.load(tmp_path / "small.pt").tolist() == [0, 1, 2, 3, 4]


def test_after_the_dry_run_tensors_stay_safe():
    with opentrn.dry_run():
        large = torch.randn(LARGE, device="neuron")
    assert not _C.is_dry()
    assert (large + 1).shape == large.shape
    assert not _C.is_backed(large + 1)
    with pytest.raises(RuntimeError, match="no bytes"):
        large.data_ptr()
    large.copy_(torch.ones(LARGE))
    assert large.sum().item() == LARGE


def test_after_the_dry_run_nothing_stands_in():
    """Nobody would report it."""
    with opentrn.dry_run():
        large = torch.randn(LARGE, device="neuron")
        routed = large > 0
    dry.clear_ledger()
    for read in (
        lambda: large.sum().item(),
        lambda: bool((large > 1).any()),
        lambda: large.cpu(),
        lambda: large.argmax().item(),
        lambda: torch.equal(large, large),
        lambda: large.nonzero(),
    ):
        with pytest.raises(RuntimeError, match=r"never computed \(at .*test_dry_reads.py(.|\n)*what to do"):
            read()
    assert dry.ledger() == []
    assert not routed.any().item(), "what stood in when it was made stays"


def test_contexts_may_be_left_in_any_order():
    real = time.time
    first, second = opentrn.dry_run(), opentrn.dry_run()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert _C.is_dry()
    second.__exit__(None, None, None)
    assert not _C.is_dry() and time.time is real

    def inside() -> Iterator[torch.Tensor]:
        with opentrn.dry_run():
            yield torch.randn(LARGE, device="neuron")

    with opentrn.dry_run():
        waiting = inside()
        next(waiting)
    assert _C.is_dry(), "the generator is still inside"
    waiting.close()
    assert not _C.is_dry() and time.time is real


def test_deepcopy_of_tensors_without_bytes(large):
    strided = large.view(512, 512).t()
    model = torch.nn.Linear(512, 512, device="neuron")
    model.register_buffer("table", strided)
    twin = copy.deepcopy({"model": model, "again": model})
    assert twin["model"] is twin["again"]
    table = twin["model"].table
    assert table.shape == strided.shape and not _C.is_backed(table)
    assert torch.neuron.memory_allocated() >= 2 * (LARGE * 4 + 512 * 512 * 4)


def test_a_storage_is_freed_and_restored(large):
    held = torch.neuron.memory_allocated()
    large.untyped_storage().resize_(0)
    assert held - torch.neuron.memory_allocated() == LARGE * 4
    large.untyped_storage().resize_(LARGE * 4)
    assert torch.neuron.memory_allocated() == held and not _C.is_backed(large + 1)


def test_every_read_of_an_unbacked_value_is_in_the_ledger():
    """Taint: each way a value can reach the program is tried, and each must add to the ledger."""
    with opentrn.dry_run():
        x = torch.randn(LARGE, device="neuron")
        small = x[:4]
        target, floats = torch.zeros(4), torch.zeros(4, device="neuron")
        ways = {
            "item": lambda: x.sum().item(),
            "bool": lambda: bool(x.sum() > 0),
            "float": lambda: float(x.max()),
            "tolist": lambda: small.tolist(),
            "cpu": lambda: small.cpu(),
            "to": lambda: small.to("cpu"),
            "copy_": lambda: target.copy_(small),
            "comparison": lambda: (x > 0)[:4].tolist(),
            "argmax": lambda: x.argmax(),
            "topk": lambda: x.view(512, 512).topk(2).indices,
            "sort": lambda: x.view(512, 512).sort().indices,
            "nonzero": lambda: x.nonzero(),
            "masked_select": lambda: x.masked_select(x > 0),
            "multinomial": lambda: x.view(512, 512).multinomial(1),
            "allclose": lambda: torch.allclose(x, x),
            "equal": lambda: torch.equal(x, x),
            "isfinite": lambda: x.isfinite().all(),
            "long": lambda: x.long(),
            "repr": lambda: repr(x),
            "index by unbacked mask": lambda: x[x > 0],
            "derived": lambda: floats.copy_(small).tolist(),
        }
        for name, read in ways.items():
            dry.clear_ledger()
            read()
            assert sum(entry.count for entry in dry.ledger()) > 0, f"{name} read values and left no trace"


def test_what_comes_from_backed_inputs_is_exact():
    with opentrn.dry_run():
        positions = torch.arange(4096, device="neuron")
        mask = positions[None] <= positions[:512, None]
        assert mask.sum().item() == sum(range(1, 513))
        assert torch.tensor([3, 1, 2], device="neuron").sort().values.tolist() == [1, 2, 3]
        assert dry.ledger() == []


def test_script_clock_is_virtual():
    real = time.perf_counter
    start = real()
    with opentrn.dry_run():
        before = time.time()
        time.sleep(3600)
        x = torch.randn(8192, 8192, device="neuron", dtype=torch.bfloat16)
        for _ in range(1000):
            x @ x
        torch.neuron.synchronize()
        assert 3600 < time.time() - before < 3700
        assert time.perf_counter_ns() / 1e9 == pytest.approx(time.perf_counter(), abs=1e-3)
        spin = time.monotonic()
        while time.monotonic() - spin < 1e-4:
            pass
    assert time.perf_counter is real
    assert real() - start < 60


def test_wall_clock_opts_out():
    real = time.time
    with opentrn.dry_run(wall_clock=True):
        assert time.time is real


def test_decorator_and_nesting():
    @opentrn.dry_run()
    def inside() -> bool:
        with opentrn.dry_run():
            pass
        return _C.is_dry()

    assert inside() and not _C.is_dry()
