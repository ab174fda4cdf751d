"""`nki.benchmark` and `nki.profile`: times of the virtual clock, results, files; both generations."""

from __future__ import annotations

import json

import neuronxcc.nki as classic
import neuronxcc.nki.language as cl
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
import torch

import nki
from opentrn.errors import CapacityError, ConfigurationError, UndefinedBehaviourError

X = np.arange(128 * 64, dtype=np.float32).reshape(128, 64)


def double(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nl.store(out, tile)
    return out


def classic_double(x):
    out = cl.ndarray(x.shape, dtype=x.dtype, buffer=cl.shared_hbm)
    cl.store(out, value=cl.load(x) * 2.0)
    return out


@pytest.mark.parametrize(
    "decorate",
    [nki.benchmark, nki.benchmark(warmup=2, iters=5), lambda function: nki.benchmark(nki.jit(function))],
    ids=["plain", "with options", "of a kernel"],
)
def test_a_benchmark_runs_the_kernel_and_reads_the_virtual_clock(decorate):
    timed = decorate(double)
    assert timed.benchmark_result is None
    np.testing.assert_array_equal(timed(X), 2 * X)
    latency = timed.benchmark_result.nc_latency
    assert 1 <= latency.get_latency_percentile(50) == latency.get_latency_percentile(99) < 100
    small = latency.mean
    timed(np.zeros((128, 8192), np.float32))
    assert timed.benchmark_result.nc_latency.mean > small
    assert timed.benchmark_result.timing.seconds * 1e6 == timed.benchmark_result.nc_latency.mean


def test_a_launch_on_a_grid_sets_the_result_of_its_kernel():
    timed = nki.benchmark(double)
    np.testing.assert_array_equal(timed[1](X), 2 * X)
    assert timed.benchmark_result is timed[1].benchmark_result is not None


@pytest.mark.parametrize("device", ["cpu", "neuron"])
@pytest.mark.parametrize("decorate", [nki.benchmark, nki.profile])
def test_tensors_give_tensors_on_their_device(decorate, device):
    x = torch.from_numpy(X).to(device)
    timed = decorate(double)
    got = timed(x)
    assert got.device == x.device and torch.equal(got.cpu(), 2 * torch.from_numpy(X))
    assert timed.benchmark_result.nc_latency.get_latency_percentile(50) >= 1


@pytest.mark.parametrize("device", ["cpu", "neuron"])
def test_classic_kernels_are_timed_on_tensors_too(device, tmp_path):
    x = torch.from_numpy(X).to(device)
    timed = classic.benchmark(classic_double)
    assert timed(x) is None and timed.benchmark_result.nc_latency.mean > 0
    profiled = classic.profile(working_directory=str(tmp_path), save_trace_name="p.ntff")(classic_double)
    assert torch.equal(profiled(x).cpu(), 2 * torch.from_numpy(X)) and (tmp_path / "p.ntff").exists()


def test_the_named_files_are_written(tmp_path):
    nki.benchmark(save_trace_name=str(tmp_path / "b.json"))(double)(X)
    trace = json.loads((tmp_path / "b.json").read_text())
    assert trace["otherData"]["times"] == "simulated"
    assert {event["name"] for event in trace["traceEvents"]} >= {"dma_copy", "tensor_scalar"}
    options = {"working_directory": str(tmp_path / "runs"), "save_neff_name": "k.neff"}
    nki.profile(**options, save_trace_name="p.json", num_execs=2)(double)(X)
    found = {str(path.relative_to(tmp_path / "runs")) for path in (tmp_path / "runs").rglob("*.*")}
    assert found == {
        "k.neff",
        "p.json",
        "p_exec_2.json",
        "json_reports/p.json",
        "json_reports/p_exec_2.json",
    }
    with pytest.raises(ConfigurationError, match=r"k\.neff exists"):
        nki.profile(**options, overwrite=False)(double)(X)


# -- checks of classic kernels -------------------------------------------------------------------------------
def unwritten(x):
    out = cl.ndarray(x.shape, dtype=x.dtype, buffer=cl.shared_hbm)
    cl.store(out, value=cl.ndarray((cl.par_dim(128), x.shape[1]), dtype=cl.float32, buffer=cl.sbuf))
    return out


def crowded(x):
    """Two tiles in use at the same time, each more than half of a partition."""
    out = cl.ndarray((128, 64), dtype=x.dtype, buffer=cl.shared_hbm)
    a, b = (cl.zeros((cl.par_dim(128), 40000), dtype=cl.float32) for _ in range(2))
    cl.store(out, value=cl.add(a, b)[:, 0:64])
    return out


def one_after_another(x):
    """Tiles of the same size, of which one is in use at a time."""
    out = cl.ndarray((128, 2), dtype=x.dtype, buffer=cl.shared_hbm)
    for i in range(2):
        cl.store(out[:, i : i + 1], value=cl.zeros((cl.par_dim(128), 40000), dtype=cl.float32)[:, 0:1])
    return out


LAUNCHES = {
    "simulate_kernel": lambda kernel, **check: classic.simulate_kernel(kernel, X, **check),
    "jit": lambda kernel, **check: classic.jit(**check)(kernel)(X),
    "baremetal": lambda kernel, **check: classic.baremetal(**check)(kernel)(X),
    "a jit's": lambda kernel, **check: classic.baremetal(classic.jit(**check)(kernel))(X),
}


@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES)
def test_classic_kernels_are_checked_on_demand(launch, monkeypatch):
    assert np.isnan(launch(unwritten)).all() and not launch(crowded).any()
    for check, strict in (({"check": True}, "0"), ({}, "1")):
        monkeypatch.setenv("OPENTRN_STRICT", strict)
        with pytest.raises(UndefinedBehaviourError, match="nothing has written"):
            launch(unwritten, **check)
        with pytest.raises(CapacityError, match="sbuf of core 0 is full"):
            launch(crowded, **check)
        assert not launch(one_after_another, **check).any()
        np.testing.assert_array_equal(launch(classic_double, **check), 2 * X)
    assert np.isnan(launch(unwritten, check=False)).all()


def test_a_parameter_named_check_stays_the_kernels():
    def kernel(x, check):
        return classic_double(x) if check else unwritten(x)

    assert np.isnan(classic.simulate_kernel(kernel, X, check=False)).all()
    np.testing.assert_array_equal(classic.simulate_kernel(kernel, X, check=True), 2 * X)


def test_a_tile_that_no_partition_holds_raises_unchecked():
    def kernel(x):
        out = cl.ndarray((128, 1), dtype=x.dtype, buffer=cl.shared_hbm)
        cl.store(out, value=cl.zeros((cl.par_dim(128), 80000), dtype=cl.float32)[:, 0:1])
        return out

    with pytest.raises(CapacityError):
        classic.simulate_kernel(kernel, X)
