"""Bad input: one line of cause and what to do, never an abort, never silent wrong numbers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from device_helpers import NEURON, run_script, same


def _mixed() -> dict[str, Callable[[torch.Tensor, torch.Tensor], object]]:
    """Calls with x on neuron:0 and y somewhere else, both of shape [3, 3]."""
    return {
        "add": lambda x, y: x + y,
        "add, host first": lambda x, y: y + x,
        "in place": lambda x, y: x.add_(y),
        "in place on the other": lambda x, y: y.add_(x),
        "matmul": lambda x, y: x @ y,
        "cat": lambda x, y: torch.cat([x, y]),
        "stack": lambda x, y: torch.stack([y, x]),
        "out": lambda x, y: torch.add(x, x, out=y),
        "where": lambda x, y: torch.where(x > 0, x, y),
        "foreach": lambda x, y: torch._foreach_add([x, x], [y, y]),
        "linear": lambda x, y: F.linear(x, y),
        "embedding": lambda x, y: F.embedding(y.long().abs().clamp(max=2), x),
        "gather": lambda x, y: x.gather(0, y.long() * 0),
        "index_add": lambda x, y: x.index_add_(0, y[0].long() * 0, x),
        "scatter": lambda x, y: x.scatter_(0, y.long() * 0, 1.0),
        "cross_entropy": lambda x, y: F.cross_entropy(x, y[0].long() * 0),
        "attention": lambda x, y: F.scaled_dot_product_attention(x[None], y[None], x[None]),
        "conv": lambda x, y: F.conv1d(x[None], y[:, :, None]),
        "masked_fill": lambda x, y: x.masked_fill(y > 0, 0),
        "lerp": lambda x, y: torch.lerp(x, y, 0.5),
        "batch_norm": lambda x, y: F.batch_norm(x, y[0], y[1]),
        "equal": lambda x, y: torch.equal(x, y),
        "dot": lambda x, y: torch.dot(x[0], y[0]),
        "module": lambda x, y: torch.nn.Linear(3, 3).to(y.device)(x),
        "recurrent": lambda x, y: torch.nn.LSTM(3, 3).to(y.device)(x[None]),
        "index, assigned": lambda x, y: x.put_(torch.tensor([0], device=y.device), y[0, :1]),
    }


@pytest.mark.parametrize("other", ["cpu", "neuron:1"])
@pytest.mark.parametrize("name", _mixed())
def test_devices_are_not_mixed(name: str, other: str) -> None:
    x, y = torch.ones(3, 3, device=NEURON), torch.ones(3, 3, device=other)
    with pytest.raises(RuntimeError, match=r"same device|at the same device|same device type") as caught:
        _mixed()[name](x, y)
    assert "cpu" in str(caught.value) or "neuron:1" in str(caught.value)
    same((x, y), (torch.ones(3, 3), torch.ones(3, 3)))  # nothing was written


def test_what_may_be_mixed_as_on_cuda() -> None:
    x = torch.arange(3.0, device=NEURON)
    same(x[torch.tensor([0, 2])], torch.tensor([0.0, 2.0]))
    same(torch.arange(3.0)[torch.tensor([1], device=NEURON).cpu()], torch.tensor([1.0]))
    same(x * torch.tensor(2.0), torch.tensor([0.0, 2.0, 4.0]))
    same(torch.where(x > 0, x, torch.tensor(9.0)), torch.tensor([9.0, 1.0, 2.0]))
    x[torch.tensor([0])] = torch.tensor(5.0)
    same(x, torch.tensor([5.0, 1.0, 2.0]))


@pytest.mark.parametrize("device", ["neuron:99", "neuron:64", "neuron:127"])
def test_a_device_that_is_not_there(device: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: torch.ones(2).to(device),
        lambda: torch.empty(0, device=device),
        lambda: torch.nn.Linear(2, 2).to(device),
        lambda: torch.Generator(device),
        lambda: torch.Stream(device),
        lambda: torch.ones(2, device=NEURON).to(device),
        lambda: torch.ones(2).neuron(torch.device(device).index),
    ]
    for call in calls:
        with pytest.raises(
            RuntimeError, match=rf"there is no device {device}: trn2.48xlarge has 64.*\n.*what to do"
        ):
            call()
    assert torch.ones(2, device=NEURON).sum().item() == 2


def _sparse_gradient() -> None:
    torch.nn.Embedding(4, 3, sparse=True).to(NEURON)(torch.tensor([1], device=NEURON)).sum().backward()


LAYOUTS: dict[str, Callable[[], object]] = {
    "coo to": lambda: torch.eye(3).to_sparse().to(NEURON),
    "coo made": lambda: torch.eye(3, device=NEURON).to_sparse(),
    "coo": lambda: torch.sparse_coo_tensor(torch.zeros(2, 1), torch.ones(1), (2, 2), device=NEURON),
    "csr to": lambda: torch.eye(3).to_sparse_csr().to(NEURON),
    "csc to": lambda: torch.eye(3).to_sparse_csc().to(NEURON),
    "bsr to": lambda: torch.eye(4).to_sparse_bsr((2, 2)).to(NEURON),
    "csr made": lambda: torch.eye(3, device=NEURON).to_sparse_csr(),
    "empty sparse": lambda: torch.empty(2, 2, layout=torch.sparse_coo, device=NEURON),
    "sparse times dense": lambda: torch.sparse.mm(torch.eye(3).to_sparse(), torch.eye(3, device=NEURON)),
    "sparse gradient": lambda: _sparse_gradient(),
    "quantised to": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8).to(NEURON),
    "quantised made": lambda: torch.quantize_per_tensor(torch.ones(3, device=NEURON), 0.1, 0, torch.qint8),
    "strided nested": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]).to(NEURON),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LAYOUTS)
def test_other_layouts_are_refused_in_one_line(name: str) -> None:
    with pytest.raises((RuntimeError, NotImplementedError), match=r"opentrn: .*\n  what to do: ") as caught:
        LAYOUTS[name]()
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.filterwarnings("ignore")
def test_jagged_tensors_work() -> None:
    nested = torch.nested.nested_tensor(
        [torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged, device=NEURON
    )
    layer = torch.nn.Linear(3, 4).to(NEURON)
    assert layer(nested).to_padded_tensor(0.0).shape == (2, 4, 4)
    assert (nested * 2).sum().item() == 36


def test_an_operator_without_a_kernel_is_named() -> None:
    library = torch.library.Library("opentrn_test_errors", "DEF")
    library.define("nothing(Tensor x) -> Tensor")
    with pytest.raises(NotImplementedError, match=r"opentrn_test_errors::nothing"):
        torch.ops.opentrn_test_errors.nothing(torch.ones(2, device=NEURON))


def test_a_custom_operator_with_a_cpu_kernel_runs() -> None:
    @torch.library.custom_op("opentrn_test_errors2::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    found = double(torch.ones(2, device=NEURON))
    assert found.is_neuron
    same(found, torch.full((2,), 2.0))


def test_errors_of_cpu_kernels_come_through() -> None:
    x = torch.ones(2, 3, device=NEURON)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        x @ x
    with pytest.raises(IndexError, match=r"out of (range|bounds)"):
        x[torch.tensor([5], device=NEURON)]
    with pytest.raises(IndexError):
        F.embedding(torch.tensor([7], device=NEURON), x)
    with pytest.raises(RuntimeError, match=r"singular|factorization"):
        torch.linalg.cholesky(-torch.eye(3, device=NEURON))
    same(x, torch.ones(2, 3))


CONFIGURATION = {
    "unknown instance": ({"OPENTRN_INSTANCE": "trn9.huge"}, "trn9.huge"),
    "cores that are not there": ({"NEURON_RT_VISIBLE_CORES": "0-999"}, "NEURON_RT_VISIBLE_CORES"),
    "cores that are no numbers": ({"NEURON_RT_VISIBLE_CORES": "all"}, "NEURON_RT_VISIBLE_CORES"),
    "logical cores": ({"NEURON_LOGICAL_NC_CONFIG": "3"}, "NEURON_LOGICAL_NC_CONFIG"),
    "count of cores": ({"NEURON_RT_NUM_CORES": "-1"}, "NEURON_RT_NUM_CORES"),
    "platform": ({"NEURON_PLATFORM_TARGET_OVERRIDE": "trn77", "OPENTRN_INSTANCE": ""}, "trn77"),
    "guard": ({"OPENTRN_GUARD": "yes"}, "OPENTRN_GUARD"),
}


def test_configuration_errors_come_at_first_use_with_a_cure() -> None:
    """One process imports torch under a good configuration; forks of it see the bad ones."""
    code = f"""
    import os, sys, torch, opentrn.chips.machine
    for name, (variables, word) in {CONFIGURATION!r}.items():
        sys.stdout.flush()
        if os.fork() == 0:
            os.environ.update(variables)
            try:
                torch.ones(2, device="neuron")
                print(name, "| no error")
            except RuntimeError as error:
                print(name, "|", word in str(error) and "what to do" in str(error), "|", repr(str(error)))
            sys.stdout.flush()
            os._exit(0)
        os.wait()
    """
    done = run_script(code)
    verdicts = {line.split(" | ")[0]: line.split(" | ")[1] for line in done.stdout.splitlines()}
    wanted = {name: "True" for name in CONFIGURATION if name != "guard"}
    assert {name: verdicts.get(name) for name in wanted} == wanted, done.stdout + done.stderr


@pytest.mark.parametrize("variable", [{"OPENTRN_INSTANCE": "trn9.huge"}, {"OPENTRN_GUARD": "yes"}], ids=str)
def test_a_bad_configuration_does_not_break_import_torch(variable: dict[str, str]) -> None:
    done = run_script(
        "import torch\nprint(torch.ones(2).sum().item())\ntorch.ones(2, device='neuron')",
        environment=variable,
    )
    assert done.stdout == "2.0\n" and done.returncode == 1
    assert next(iter(variable)) in done.stderr or "trn9.huge" in done.stderr
    assert "what to do" in done.stderr


def test_attach() -> None:
    code = """
    import torch, opentrn
    opentrn.attach("trn1.2xlarge")
    print(torch.neuron.device_count(), torch.neuron.get_device_properties().name)
    opentrn.attach("trn2.3xlarge")
    print(torch.neuron.device_count(), torch.neuron.get_device_properties().name)
    held = torch.ones(1, device="neuron")
    try: opentrn.attach("trn1.2xlarge")
    except RuntimeError as error: print("what to do" in str(error))
    """
    done = run_script(code)
    assert done.stdout.splitlines()[0] == "2 trn1" and done.stdout.splitlines()[1].endswith("trn2"), (
        done.stderr
    )
    assert done.stdout.splitlines()[2] == "True"


def test_interrupt(tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(
        "import torch\n"
        "x = torch.ones(64, 64, device='neuron', requires_grad=True)\n"
        "print('ready', flush=True)\n"
        "while True: (x @ x).sum().backward()\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors and process.returncode in (1, 130, -signal.SIGINT)


def test_inductor_is_refused_by_name() -> None:
    compiled = torch.compile(lambda x: x.sin() + 1)
    with pytest.raises(Exception, match=r'generates no code for neuron\n.*backend="aot_eager"'):
        compiled(torch.ones(2, device=NEURON))
    compiled = torch.compile(lambda x: x + 1, backend="aot_eager")
    assert compiled(torch.ones(2, device=NEURON)).tolist() == [2, 2]
