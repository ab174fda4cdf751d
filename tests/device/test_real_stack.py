"""`--as torchneuron-2.33` and `opentrn check`: each kind of place in a program is found, with its line."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import opentrn
from opentrn.device import _C
from opentrn.errors import UnsupportedError
from opentrn.port import charges, real_stack
from opentrn.port.behaviours import Finding, release

STACK = "torchneuron-2.33"
ONES = {dtype: torch.ones(2, 2, dtype=dtype, device="neuron") for dtype in (torch.float32, torch.int64)}


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[real_stack.RealStack]:
    monkeypatch.delenv("OPENTRN_STRICT", raising=False)
    yield real_stack.install(STACK, behaves=False)
    real_stack.uninstall()


def names(watched: real_stack.RealStack) -> set[str]:
    return {finding.behaviour.name for finding in watched.findings()}


OPERATORS = [
    ("float64", lambda: torch.zeros(3, dtype=torch.float64, device="neuron")),
    ("float64", lambda: ONES[torch.float32].double()),
    ("float64", lambda: torch.ones(3, dtype=torch.float64).to("neuron")),
    ("float8-e4m3fn", lambda: ONES[torch.float32].to(torch.float8_e4m3fn)),
    ("float8-fnuz", lambda: ONES[torch.float32].to(torch.float8_e5m2fnuz)),
    ("complex128", lambda: torch.zeros(3, dtype=torch.complex128, device="neuron")),
    ("complex64", lambda: torch.zeros(3, dtype=torch.complex64, device="neuron")),
    ("integer-matmul", lambda: ONES[torch.int64] @ ONES[torch.int64]),
    (
        "integer-scatter",
        lambda: ONES[torch.int64].clone().index_add_(0, ONES[torch.int64][0], ONES[torch.int64]),
    ),
    ("integer-power", lambda: ONES[torch.int64].pow(3)),
    ("integer-topk", lambda: ONES[torch.int64].topk(1)),
    ("int64-arithmetic", lambda: ONES[torch.int64] * 3),
    ("data-dependent-size", lambda: ONES[torch.float32].nonzero()),
    ("boolean-index", lambda: ONES[torch.float32][ONES[torch.float32] > 0]),
    ("linear-algebra", lambda: torch.linalg.cholesky(ONES[torch.float32] + torch.eye(2, device="neuron"))),
]


@pytest.mark.parametrize(
    ("behaviour", "act"), OPERATORS, ids=[f"{n}-{i}" for i, (n, _) in enumerate(OPERATORS)]
)
def test_operators_are_judged(behaviour: str, act, watched: real_stack.RealStack) -> None:  # type: ignore[no-untyped-def]
    act()
    found = {finding.behaviour.name: finding for finding in watched.findings()}
    assert behaviour in found
    assert "test_real_stack.py:" in found[behaviour].where


def test_ordinary_training_in_float32_is_not_reported(watched: real_stack.RealStack) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8)).to("neuron")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        tokens = torch.randint(0, 8, (2, 5)).to("neuron")
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    scaled = torch.ones(3, dtype=torch.float64).to("neuron", torch.float32) * 0.5
    assert float(scaled.cpu().double().sum()) == 1.5, "float64 on the host is the host's affair"
    assert names(watched) == set()
    assert watched.compilations > 10


def test_new_shapes_in_later_rounds_are_recompilations(watched: real_stack.RealStack) -> None:
    layer = torch.nn.Linear(4, 4).to("neuron")
    for length in (3, 4, 5):
        layer(torch.ones(length, 4, device="neuron"))
    found: list[Finding] = [f for f in watched.findings() if f.behaviour.name == "eager-shapes"]
    assert [finding.operator for finding in found] == ["aten::addmm"]
    assert found[0].count == 3 and "[3, 4]" in found[0].detail and "[5, 4]" in found[0].detail


def test_layers_of_many_shapes_are_not_recompilations(watched: real_stack.RealStack) -> None:
    sizes = (4, 5, 6, 7, 8)
    layers = [torch.nn.Linear(a, b) for a, b in pairwise(sizes)]
    model = torch.nn.Sequential(*layers).to("neuron")
    for _ in range(3):
        model(torch.ones(2, 4, device="neuron")).sum().backward()
    assert "eager-shapes" not in names(watched)


@pytest.fixture
def behaving(monkeypatch: pytest.MonkeyPatch) -> Iterator[real_stack.RealStack]:
    monkeypatch.delenv("OPENTRN_STRICT", raising=False)
    yield real_stack.install(STACK)
    real_stack.uninstall()


def test_behaving_refuses_at_the_users_line_and_lists_it(behaving: real_stack.RealStack) -> None:
    with pytest.raises(UnsupportedError, match=r"float64(.|\n)*test_real_stack.py(.|\n)*https://"):
        ONES[torch.float32].double()
    assert names(behaving) == {"float64"}
    assert (torch.ones(3, dtype=torch.float64) * 2).sum().item() == 6, "the host has float64"


@pytest.mark.parametrize("dry", [False, True])
def test_each_new_signature_is_charged_one_compilation(behaving: real_stack.RealStack, dry: bool) -> None:
    seconds = release(STACK).compile_time.seconds  # type: ignore[union-attr]
    with opentrn.dry_run() if dry else contextlib.nullcontext():
        x = torch.ones(7, 11, device="neuron")
        for expected in (1, 0, 0):  # the first time only
            start = _C.host_time()
            x + x
            took = (_C.host_time() - start) / 1e9
            assert took == pytest.approx(expected * seconds, abs=0.01)
    assert any(f"{seconds} s each (fitted" in line for line in behaving.notes())


def test_a_fallback_is_charged_both_transfers(behaving: real_stack.RealStack) -> None:
    x = torch.ones(1 << 20, device="neuron")
    _C.reset_operator_totals()
    start = _C.host_time()
    found = x.nonzero()
    totals = _C.operator_totals()
    down, up = totals[charges.TO_HOST], totals[charges.TO_DEVICE]
    assert down["count"] == up["count"] == 1 and down["class"] == up["class"] == "transfer"
    assert down["bytes"] * found.nbytes == up["bytes"] * x.nbytes > 0
    assert _C.host_time() - start >= down["device_ns"] > 0, "the host waits for what it reads"
    assert behaving.charges.fallbacks == 1


def test_watching_alone_charges_nothing(watched: real_stack.RealStack) -> None:
    start = _C.host_time()
    ONES[torch.float32].nonzero()
    torch.ones(5, 13, device="neuron") + 1
    assert (_C.host_time() - start) / 1e9 < 0.01 and not watched.charges.compilations


def test_what_the_compiler_refuses_falls_back_in_eager_mode(behaving: real_stack.RealStack) -> None:
    assert (ONES[torch.int64] @ ONES[torch.int64]).tolist() == [[2, 2], [2, 2]]
    (found,) = [f for f in behaving.findings() if f.behaviour.name == "integer-matmul"]
    assert found.as_json()["outcome"] == "refuses" and found.as_json()["eager"] == "falls back"
    assert behaving.charges.fallbacks == 1


def script(tmp_path: Path, code: str) -> Path:
    path = tmp_path / "script.py"
    path.write_text(code)
    return path


REFUSED = "import torch\nx = torch.ones(2, device='neuron')\nx.nonzero()\nx.double()\n"


def test_the_environment_variable_alone_is_enough(tmp_path: Path) -> None:
    command = [sys.executable, str(script(tmp_path, REFUSED))]
    environment = {**os.environ, "OPENTRN_AS": STACK}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 1 and "UnsupportedError" in done.stderr and "script.py:4" in done.stderr
    wrong = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "OPENTRN_AS": "zzz"}
    )
    assert wrong.returncode == 1 and "OPENTRN_AS=zzz is not one of" in wrong.stderr


@pytest.mark.parametrize("options", [["--as", STACK], ["--dry", "--as", STACK], ["--dry"]])
def test_run_behaves_and_reports(tmp_path: Path, options: list[str]) -> None:
    command = [sys.executable, "-m", "opentrn.cli.main", "run", *options, "--no-trace", "--json"]
    done = subprocess.run(
        [*command, str(script(tmp_path, REFUSED))], capture_output=True, text=True, timeout=300
    )
    report = json.loads(done.stdout.splitlines()[-1])
    notes = "\n".join(report["notes"])
    assert "falls back: aten::nonzero at" in notes and "script.py:3" in notes and "https://" in notes
    if "--as" in options:
        assert done.returncode == 1 and "UnsupportedError" in report["ended"]
        assert "charged the transfers of 1 operators" in notes
    else:  # a dry run lists what would be refused, and goes on
        assert done.returncode == 0 and report["ended"] == "completed" and report["fits"] is True
        assert "refuses: .double() at" in notes or "refuses: aten::_to_copy at" in notes


def test_strict_raises_at_the_users_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENTRN_STRICT", "1")
    real_stack.install(STACK, behaves=False)
    try:
        with pytest.raises(UnsupportedError, match=r"float64(.|\n)*test_real_stack.py(.|\n)*https://"):
            torch.zeros(2, dtype=torch.float64, device="neuron")
        torch.ones(2, device="neuron").nonzero()  # falls back there, so it runs
    finally:
        real_stack.uninstall()


def test_fp8_is_refused_by_generation(watched: real_stack.RealStack) -> None:
    behaviour = release(STACK).named("float8-e4m3fn")
    assert "v3" in behaviour.generations and "v4" not in behaviour.generations


SCRIPT = """
import sys, torch
from beside import double
print("args", sys.argv[1:])
x = torch.ones(2, 2, device="neuron")
y = double(x)
torch.compile(lambda t: t, dynamic=True)
"""


def check(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(SCRIPT)
    (folder / "beside.py").write_text("def double(x):\n    return x.double()\n")
    (folder / "clean.py").write_text("import torch\nprint(torch.ones(2, device='neuron').sum().item())\n")
    (folder / "fails.py").write_text("raise SystemExit(3)\n")
    command = [sys.executable, "-m", "opentrn.cli.main", "check", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_check_lists_places_of_the_run_and_of_the_text(tmp_path: Path) -> None:
    done = check(tmp_path, "--json", "script.py", "one", "two")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert "args ['one', 'two']" in done.stderr, "the program's output is not the report's"
    places = {(f["behaviour"], Path(f["where"].split()[0]).name) for f in report["findings"]}
    assert ("float64", "beside.py:2") in places and ("compile-dynamic", "script.py:7") in places
    assert report["ended"] == "completed" and report["compilations"] >= 1


def test_check_goes_on_where_the_memory_ends(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(
        "import torch\nx = torch.empty(1 << 36, device='neuron')\ntorch.ones(2, device='neuron').double()\n"
    )
    done = check(tmp_path, "--json", "large.py")
    report = json.loads(done.stdout)
    assert report["ended"] == "completed", done.stderr
    assert [finding["behaviour"] for finding in report["findings"]].count("float64") >= 1


def test_check_in_words_names_outcome_link_and_line(tmp_path: Path) -> None:
    done = check(tmp_path, "script.py")
    assert "REFUSES" in done.stdout and "beside.py:2" in done.stdout
    assert "https://awsdocs-neuron.readthedocs-hosted.com" in done.stdout


def test_check_of_a_clean_script_exits_zero_and_of_a_failing_one_with_its_code(tmp_path: Path) -> None:
    clean = check(tmp_path, "clean.py")
    assert clean.returncode == 0 and "nothing that its documentation treats otherwise" in clean.stdout
    assert check(tmp_path, "fails.py").returncode == 3
    assert check(tmp_path, "absent.py").returncode == 2


def test_check_without_a_run_reads_the_source(tmp_path: Path) -> None:
    done = check(tmp_path, "--no-run", "--json", "script.py")
    report = json.loads(done.stdout)
    assert report["compilations"] is None and "args" not in done.stderr
    assert {f["behaviour"] for f in report["findings"]} == {"compile-dynamic"}
