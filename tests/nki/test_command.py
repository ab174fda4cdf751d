"""`opentrn kernel`: results, times, traces and refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from opentrn.cli import program_command
from opentrn.cli.kernel_command import app
from opentrn.errors import ConfigurationError, UndefinedBehaviourError
from opentrn.nki.check import check_kernel
from opentrn.nki.specification import load_kernel, parse_argument, parse_grid

KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl
import neuronxcc.nki as old
import neuronxcc.nki.language as onl

@nki.jit
def softmax(x, scale=1.0):
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    for i in nl.affine_range(x.shape[0] // 128):
        tile = nl.load(x[i * 128:(i + 1) * 128])
        nl.store(out[i * 128:(i + 1) * 128], nl.softmax(tile, 1))
    return out

@old.jit
def square(x):
    out = onl.ndarray(x.shape, dtype=x.dtype, buffer=onl.shared_hbm)
    onl.store(out, value=onl.square(onl.load(x)))
    return out

def helper(x):
    try:
        return x
    except ValueError:
        return {1: x}

@nki.jit
def careless(x):
    import os
    print(np.sum(x.shape))
    return helper(x)
"""


@pytest.fixture
def kernel_file(tmp_path):
    path = tmp_path / "kernels.py"
    path.write_text(KERNEL)
    return path


def invoke(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    return result.exit_code, result.output


def test_run_prints_results_and_time(kernel_file, tmp_path):
    out = tmp_path / "result.npz"
    code, text = invoke(
        "run", f"{kernel_file}:softmax", "-a", "zeros:float32[256,64]", "-a", "scale=0.5", "--out", out
    )
    assert code == 0
    assert "result 0: float32 (256, 64)" in text and "Tensor cycles" in text and "bound by" in text
    np.testing.assert_allclose(np.load(out)["arr_0"], 1 / 64)
    assert invoke("run", f"{kernel_file}:square", "-a", "float32[128,16]")[0] == 0


def test_time_as_json_and_profile_writes_a_trace(kernel_file, tmp_path):
    code, text = invoke("time", f"{kernel_file}:softmax", "-a", "bfloat16[512,128]", "--json")
    figures = json.loads(text)
    assert code == 0 and figures["kind"] == "simulated" and figures["nanoseconds"] > 0
    assert figures["bytes"]["hbm->sbuf"] == 512 * 128 * 2
    trace = tmp_path / "trace.json"
    invoke("profile", f"{kernel_file}:softmax", "-a", "bfloat16[512,128]", "--trace", trace)
    events = json.loads(trace.read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {"dma_copy", "activation", "tensor_reduce"} <= {event["name"] for event in slices}
    assert {event["args"]["name"] for event in events if event["name"] == "thread_name"} >= {
        "vector",
        "scalar",
        "dma",
    }
    assert any(
        event["args"]["source"].endswith("kernels.py:12") for event in slices if event["name"] == "dma_copy"
    )


def test_check_lists_python_that_the_real_compiler_refuses(kernel_file):
    code, text = invoke("check", f"{kernel_file}:careless")
    assert code == 1
    for reason in (
        "imports belong outside",
        "np.sum() runs on the host",
        "exceptions cannot be caught",
        "keys of dictionaries",
    ):
        assert reason in text
    assert invoke("check", f"{kernel_file}:softmax")[0] == 0
    assert not check_kernel(load_kernel(f"{kernel_file}:softmax"))


def test_arguments_and_names(kernel_file):
    assert parse_argument("float32[2, 3]")[1].shape == (2, 3)
    assert parse_argument("x=arange:int32[4]")[1].tolist() == [0, 1, 2, 3]
    assert parse_argument("flag=True") == ("flag", True)
    assert parse_argument("mode=fast") == ("mode", "fast")
    assert parse_grid("2") == 2 and parse_grid("1,3") == (1, 3) and parse_grid(None) is None
    with pytest.raises(ConfigurationError, match="softmax"):
        load_kernel(f"{kernel_file}:missing")
    with pytest.raises(ConfigurationError, match="no file"):
        load_kernel("nowhere.py:kernel")


DYNAMIC = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def repeat(x, n):
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    tile = nl.load(x)
    trips = nisa.register_alloc()
    nisa.register_load(trips, n)
    for i in nl.dynamic_range(2, trips + 2):
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    nl.store(out, tile)
    return out

@nki.jit
def endless(x):
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    tile = nl.load(x)
    register = nisa.register_alloc(1)
    while register:
        nisa.activation(dst=tile, data=tile, op=nl.exp)
    nl.store(out, tile)
    return out

@nki.jit
def logarithm(x):
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nl.store(out, nl.log(nl.load(x)))
    return out
"""


@pytest.fixture
def dynamic_file(tmp_path):
    path = tmp_path / "dynamic.py"
    path.write_text(DYNAMIC)
    return path


def test_programs_of_kernels_are_read_by_the_program_command(kernel_file, tmp_path):
    binary, text = tmp_path / "softmax.bin", tmp_path / "softmax.txt"
    call = (f"{kernel_file}:softmax", "-a", "float32[256,64]")
    table = invoke("time", *call, "--program", binary)[1]
    assert invoke("run", *call, "--program", text)[0] == 0
    assert text.read_text().startswith("program ")

    def program(*arguments):
        result = CliRunner().invoke(program_command.app, [str(a) for a in arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    assert program("print", binary) == text.read_text()
    assert "verified" in program("verify", text)
    assert program("time", binary) == table
    assert "equal" in program("diff", binary, text)
    with pytest.raises(ConfigurationError, match="cannot be written"):
        invoke("time", *call, "--program", tmp_path / "no folder" / "x.bin")


def test_one_args_takes_several_values(dynamic_file):
    several = ("--args", "ones:float32[128,8]", "n=zeros:int32[1,1]", "--json")
    once = json.loads(invoke("time", f"{dynamic_file}:repeat", *several)[1])
    each = ("-a", "ones:float32[128,8]", "-a", "zeros:int32[1,1]", "--json")
    assert json.loads(invoke("time", f"{dynamic_file}:repeat", *each)[1]) == once
    first = ("-a", "ones:float32[128,8]", f"{dynamic_file}:repeat", "-a", "zeros:int32[1,1]", "--json")
    assert json.loads(invoke("time", *first)[1]) == once
    assert "unexpected extra" in invoke("check", f"{dynamic_file}:repeat", "more")[1]


@pytest.mark.parametrize(("kernel", "busy"), [("repeat", "vector"), ("endless", "scalar")])
def test_trips_of_loops_over_registers_are_an_assumption_said_first(dynamic_file, kernel, busy, tmp_path):
    values = ["float32[128,512]"] + ["int32[1,1]"] * (kernel == "repeat")
    call = (f"{dynamic_file}:{kernel}", "--args", *values)

    def lines(*more):
        text = invoke("time", *call, *more)[1].splitlines()
        assert text[0].startswith("assumed: ") and "simulated" in text[1]
        return text

    row = next(line for line in lines("--trips", 50) if line.startswith(busy))
    assert row.split()[-1] == "50"
    assert "50" in lines("--trips", 50)[0]
    assert next(line for line in lines() if line.startswith(busy)).split()[-1] != "50"
    program = tmp_path / "kernel.bin"
    invoke("time", *call, "--program", program)
    arguments = ["time", str(program), "--trips", "50", "--json"]
    figures = json.loads(CliRunner().invoke(program_command.app, arguments, catch_exceptions=False).output)
    assert (
        figures["nanoseconds"] == json.loads(invoke("time", *call, "--trips", 50, "--json")[1])["nanoseconds"]
    )
    assert figures["assumptions"]


def test_activation_ranges_are_a_flag(dynamic_file):
    call = (f"{dynamic_file}:logarithm", "-a", "zeros:float32[128,8]")
    assert invoke("run", *call)[0] == 0
    with pytest.raises(UndefinedBehaviourError, match="defined on"):
        invoke("run", *call, "--activation-ranges")
