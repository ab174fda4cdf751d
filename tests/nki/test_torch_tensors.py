"""Kernels on PyTorch tensors: CPU and `neuron`, operators with autograd, dry runs, the trace."""

from __future__ import annotations

import gc

import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
import torch

import nki
import opentrn
from opentrn.device import _C
from opentrn.errors import ConfigurationError, OpenTRNError, UndefinedBehaviourError, UnsupportedError
from opentrn.nki import nki_op, wrap_nki
from opentrn.nki.traced import trace
from opentrn.trace.export import export
from opentrn.trace.reader import Trace
from opentrn.trace.session import Session, SessionOptions
from opentrn.trace.source import DeviceSource


@nki.jit
def scale_kernel(x, factor=2.0):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=factor)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def add_into(total, x):
    """total += x; returns total."""
    a, b = nl.load(total), nl.load(x)
    nisa.tensor_tensor(a, a, b, nl.add)
    nisa.dma_copy(dst=total, src=a)
    return total


@nki.jit
def both_cores(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = x.shape[0] // nl.num_programs(0)
    first = nl.program_id(0) * rows
    tile = nl.load(x[first : first + rows])
    nisa.tensor_scalar(tile, tile, nl.add, 1.0)
    nisa.dma_copy(dst=out[first : first + rows], src=tile)
    return out


def bits(tensor):
    return tensor.detach().cpu().contiguous().view(torch.uint8)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2, torch.int32]
)
def test_values_are_those_of_the_cpu_call(dtype):
    x = (torch.randn(64, 32) * 4).to(dtype)
    got = scale_kernel(x.to("neuron"), 3)
    assert got.device == torch.device("neuron", 0) and got.dtype is dtype
    assert torch.equal(bits(got), bits(scale_kernel(x, 3)))
    expected = (x.to(torch.float32) * 3).to(dtype)
    assert torch.equal(bits(got), bits(expected))


def test_inputs_of_any_strides():
    x = torch.randn(32, 64).to("neuron")
    assert torch.equal(scale_kernel(x.T).cpu(), (x.T * 2).cpu())
    assert torch.equal(scale_kernel(x[:, ::2]).cpu(), (x[:, ::2] * 2).cpu())
    assert torch.equal(scale_kernel(x[:1].expand(32, 64)).cpu(), (x[:1].expand(32, 64) * 2).cpu())


@pytest.mark.parametrize("device", ["cpu", "neuron"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_written_arguments_are_updated_and_returned(device, dtype):
    total = torch.zeros(64, 32, dtype=dtype, device=device)
    view = total.T  # not contiguous
    x = torch.ones(32, 64, dtype=dtype, device=device)
    version = total._version
    result = add_into(view, x)
    assert result is view and (total == 1).all() and total._version > version


def test_a_call_takes_its_simulated_time_on_the_current_stream():
    x = torch.randn(128, 512).to("neuron")
    scale_kernel(x)
    traced, _ = trace(scale_kernel.func, None, (np.zeros((128, 512), np.float32), 2.0), {}, chip="trn2")
    stream = torch.neuron.Stream()
    torch.neuron.synchronize()
    before = _C.totals(0)
    with torch.neuron.stream(stream):
        scale_kernel(x)
        start = _C.stream_time(0, stream.stream_id)
    after = _C.totals(0)
    nanoseconds = round(traced.timing.nanoseconds)
    assert after["simulated_ns"] - before["simulated_ns"] == nanoseconds
    assert after["modelled_ns"] == before["modelled_ns"], "a result is device memory already: no transfer"
    assert after["hbm_bytes"] - before["hbm_bytes"] == 2 * 128 * 512 * 4
    assert start >= nanoseconds and start > _C.stream_time(0, 0)


def test_both_cores_of_a_logical_core(monkeypatch):
    x = torch.randn(128, 32)
    assert torch.equal(both_cores[2](x.to("neuron")).cpu(), x + 1)
    assert torch.equal(both_cores[2](x), x + 1)
    from opentrn.device.programs import KernelConnection

    monkeypatch.setattr(KernelConnection, "cores", lambda self, device: 1)
    with pytest.raises(ConfigurationError, match="2 cores"):
        both_cores[2](x.to("neuron"))


def test_memory_of_a_call_is_its_results():
    x = torch.randn(128, 512).to("neuron")
    scale_kernel(x)
    gc.collect()
    before = torch.neuron.memory_allocated()
    result = scale_kernel(x)
    assert torch.neuron.memory_allocated() - before == 128 * 512 * 4
    del result
    assert torch.neuron.memory_allocated() == before


def test_wrong_arguments_say_which():
    x = torch.randn(64, 32)
    with pytest.raises(ConfigurationError, match=r"'total' on neuron:0, 'x' on cpu"):
        add_into(x.to("neuron"), x)
    with pytest.raises(ConfigurationError, match=r"'x' on cpu"):
        add_into(x.to("neuron"), x.numpy())
    with pytest.raises(UnsupportedError, match=r"argument 'x' of kernel scale_kernel.*float64"):
        scale_kernel(x.double().to("neuron"))
    with pytest.raises(OpenTRNError, match="partition"):
        scale_kernel(torch.randn(256, 8).to("neuron"))
    assert torch.equal(scale_kernel(x.to("neuron")).cpu(), x * 2), "the device survives all of them"


def test_a_kernel_for_another_chip_is_refused(monkeypatch):
    monkeypatch.setenv("NKI_NC_VERSION", "gen4")
    with pytest.raises(ConfigurationError, match=r"built for trn3.*is a trn2"):
        scale_kernel(torch.ones(8, 8).to("neuron"))


def test_undefined_behaviour_raises_on_the_device():
    @nki.jit
    def unwritten(x):
        out, tile = nl.ndarray(x.shape, x.dtype, nl.shared_hbm), nl.ndarray(x.shape, x.dtype, nl.sbuf)
        nisa.dma_copy(dst=out, src=tile)
        return out

    with pytest.raises(UndefinedBehaviourError):
        unwritten(torch.ones(8, 8).to("neuron"))


def test_the_profiler_sees_calls():
    from torch.profiler import ProfilerActivity, profile

    x = torch.randn(128, 512).to("neuron")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as recorded:
        scale_kernel(x)
    event = {event.key: event for event in recorded.key_averages()}["nki::scale_kernel"]
    assert event.count == 1 and event.device_time_total > 1


# -- operators -----------------------------------------------------------------------------------------------
@nki_op("opentrn_tests::scale")
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return scale_kernel(x, factor)


def keep(ctx, inputs, output):
    ctx.factor = inputs[1]


scale.register_autograd(
    lambda ctx, gradient: (scale(gradient.contiguous(), ctx.factor), None), setup_context=keep
)


@nki_op("opentrn_tests::accumulate", mutates_args=("total",))
def accumulate(total: torch.Tensor, x: torch.Tensor) -> None:
    add_into(total, x)


@pytest.mark.parametrize("device", ["cpu", "neuron"])
def test_operators_with_autograd(device):
    x = torch.randn(64, 32, device=device, requires_grad=True)
    (scale(x, 3.0) * x).sum().backward()
    torch.testing.assert_close(x.grad, 6 * x.detach())
    total = torch.zeros(64, 32, device=device)
    accumulate(total, x.detach())
    assert torch.equal(total, x.detach())
    torch.library.opcheck(scale, (torch.randn(8, 8, device=device), 2.0), test_utils="test_schema")
    torch.library.opcheck(scale, (torch.randn(8, 8, device=device), 2.0), test_utils="test_faketensor")


def test_operators_in_graph_captures():
    """Shapes come from the launcher itself, whose kernels only trace."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(64, 32, dtype=torch.bfloat16))
        assert scale(fake, 2.0).shape == (64, 32) and scale_kernel(fake).dtype is torch.bfloat16
    assert scale_kernel(torch.ones(64, 32, device="meta")).shape == (64, 32)
    compiled = torch.compile(lambda x: scale(x, 2.0) + 1, backend="aot_eager", fullgraph=True)
    x = torch.randn(64, 32).to("neuron")
    assert torch.equal(compiled(x).cpu(), (x * 2 + 1).cpu())
    direct = torch.compile(lambda x: scale_kernel(x) + 1, backend="aot_eager")
    assert torch.equal(direct(x).cpu(), (x * 2 + 1).cpu())


@pytest.mark.parametrize("device", ["cpu", "neuron"])
def test_a_direct_call_has_no_backward_and_says_so(device):
    x = torch.randn(8, 8, device=device, requires_grad=True)
    y = scale_kernel(x)
    assert y.requires_grad and torch.equal(y.detach(), 2 * x.detach())
    with pytest.raises(ConfigurationError, match="nki_op"):
        y.sum().backward()
    with torch.no_grad():
        assert not scale_kernel(x).requires_grad
    with pytest.raises(ConfigurationError, match="requires a gradient"):
        add_into(x, x.detach())


def test_wrapped_kernels():
    x = torch.randn(128, 32).to("neuron")
    assert torch.equal(wrap_nki(both_cores)[2](x=x).cpu(), (x + 1).cpu())
    total = torch.zeros_like(x)
    wrapped = wrap_nki(add_into, operand_output_aliases={0: 0})
    assert wrapped(total=total, x=x) is total
    with pytest.raises(ConfigurationError, match="operand_output_aliases"):
        wrap_nki(scale_kernel, operand_output_aliases={0: 0})(x=x)
    with pytest.raises(ConfigurationError, match="wraps kernels"):
        wrap_nki(3)


def test_classic_kernels():
    import neuronxcc.nki as classic
    import neuronxcc.nki.language as cl

    @classic.jit
    def exponential(x):
        out = cl.ndarray(x.shape, dtype=x.dtype, buffer=cl.shared_hbm)
        cl.store(out, value=cl.exp(cl.load(x)))
        return out

    x = torch.randn(64, 32)
    torch.testing.assert_close(exponential(x.to("neuron")).cpu(), x.exp())
    torch.testing.assert_close(exponential(x), x.exp())


# -- dry runs, the trace -------------------------------------------------------------------------------------
@nki.jit
def large(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    count = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.shared_hbm)
    total = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(total, 7)
    nisa.dma_copy(dst=count, src=total)
    for i in nl.affine_range(x.shape[0] // 128):
        tile = nl.load(x[i * 128 : (i + 1) * 128])
        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128], src=tile)
    return out, count


def test_dry_runs_have_shapes_and_time():
    real = torch.randn(2048, 512).to("neuron")
    before = _C.totals(0)["simulated_ns"]
    large(real)
    nanoseconds = _C.totals(0)["simulated_ns"] - before
    with opentrn.dry_run():
        x = torch.empty(2048, 512, device="neuron")
        before = _C.totals(0)["simulated_ns"]
        out, count = large(x)
        assert out.shape == (2048, 512) and out.dtype is torch.float32 and not _C.is_backed(out)
        assert _C.is_backed(count) and count.item() == 0, "a small integer is made by a stated rule"
        assert _C.totals(0)["simulated_ns"] - before == nanoseconds
        kept = torch.zeros(8, 8, device="neuron")
        assert _C.is_backed(kept) and (scale_kernel(kept + 1) == 2).all(), "small and known data stays exact"
        total = torch.zeros(128, 8, device="neuron")
        unknown = torch.empty(128, 65536, device="neuron")[:, :8]
        assert not _C.is_backed(unknown)
        add_into(total, unknown)
        assert not _C.is_backed(total), "written from data without bytes"
        from opentrn.device.dry import ledger

        assert any(entry.operator == "nki::large" for entry in ledger())


@pytest.fixture
def recorded(tmp_path):
    x = torch.randn(128, 512).to("neuron")
    session = Session(DeviceSource(), SessionOptions("test", trace=tmp_path / "trace"))
    session.start()
    scale_kernel(x)
    y = x + 1
    scale_kernel(y)
    both_cores[2](x)
    session.stop("completed")
    return Trace(tmp_path / "trace")


def test_the_trace_shows_engines(recorded, tmp_path):
    operators = [row for row in recorded.table("operators").to_pylist() if row["name"].startswith("nki::")]
    assert [row["name"] for row in operators] == ["nki::scale_kernel"] * 2 + ["nki::both_cores"]
    assert {row["kind"] for row in operators} == {"simulated"}
    assert operators[0]["shapes"] == "[128,512]->[128,512]"
    launches = recorded.table("launches").to_pylist()
    assert [row["device_start"] for row in launches] == [row["device_start"] for row in operators]
    assert launches[0]["program"] == launches[1]["program"] != launches[2]["program"]
    intervals = recorded.table("engine_intervals").to_pylist()
    first = [row for row in intervals if row["program"] == launches[0]["program"]]
    assert [row["instruction"] for row in first] == ["dma_copy", "tensor_scalar", "dma_copy"]
    assert [row["engine"] for row in first] == ["dma", "vector", "dma"]
    assert all("test_torch_tensors.py:" in row["source"] for row in first)
    assert max(row["end"] for row in first) <= operators[0]["device_end"] - operators[0]["device_start"] + 1
    assert {row["core"] for row in intervals if row["program"] == launches[2]["program"]} == {0, 1}

    import json

    export(recorded, tmp_path / "trace.json", "chrome")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    vector = [e for e in events if e["ph"] == "X" and names[e["tid"]] == "neuron:0 core 0 vector"]
    assert len(vector) == 3 and "neuron:0 core 1 vector" in names.values()
    assert launches[0]["device_start"] <= vector[0]["ts"] * 1000 <= launches[0]["device_end"]
