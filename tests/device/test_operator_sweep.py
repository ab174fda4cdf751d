"""`opentrn quality ops`: the operator database on the device, and proof that the sweep finds defects."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch

from opentrn.cli.main import main
from opentrn.errors import ConfigurationError
from opentrn.quality.operators import CHECKS, DTYPES, catalogue, documents, exceptions, report, sweep
from opentrn.quality.operators.checks import OperatorCheck, Tally
from opentrn.quality.operators.placement import Side, parse_side, place

UNSUPPORTED = Path(__file__).parents[2] / "docs" / "unsupported.md"


@functools.cache
def operators() -> dict[str, Any]:
    return catalogue.load()


def check(name: str, device: str, dtype: torch.dtype = torch.float32) -> tuple[OperatorCheck, list[Tally]]:
    one = OperatorCheck(
        name,
        operators()[name],
        dtype,
        Side("cpu"),
        parse_side(device),
        exceptions.load(),
        lambda position: None,
    )
    return one, one.run(CHECKS)


def failed_checks(tallies: list[Tally]) -> set[str]:
    return {tally.check for tally in tallies if tally.failed}


# --- the device ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_operator_runs_dry() -> None:
    """Shapes, strides, dtypes and aliasing of dry runs; one dtype here, `make sweep` takes all.

    No float has bytes in this sweep, so what depends on values by its nature differs: that is listed and
    counted apart.
    """
    done = sweep.run(sweep.Request(device="neuron", dry=True, dtypes=("float32",)))
    summary = report.summarize(done, exceptions.load(dry=True))
    unexcused = [failure for failure in done.failures if not failure["excused_by"]]
    assert not done.crashes and not done.unsampled and not unexcused, unexcused[:5]
    assert summary["rate"] >= 0.995
    assert summary["values"] < 0.01 * summary["compared"]
    assert summary["operators"] > 690 and summary["passed"] > 70_000


@pytest.mark.parametrize(
    ("name", "dtype", "kind"),
    [
        ("linalg.lu_solve", torch.complex64, "out"),  # gives its result conjugated
        ("linalg.solve_triangular", torch.complex64, "noncontiguous"),  # of a conjugated argument with bytes
        ("svd", torch.complex64, "backward"),  # empty magnitudes keep their layout
        ("add", torch.complex32, "backward"),  # CPU has no sum of complex32
    ],
)
def test_complex_operators_run_dry(name: str, dtype: torch.dtype, kind: str) -> None:
    one = OperatorCheck(
        name,
        operators()[name],
        dtype,
        Side("neuron"),
        parse_side("neuron", dry=True),
        exceptions.load(dry=True),
        lambda position: None,
    )
    (tally,) = one.run((kind,))
    assert tally.passed and not tally.failed, one.failures[0]


@pytest.mark.slow
def test_every_operator_is_cpus(tmp_path: Path) -> None:
    done = sweep.run(sweep.Request(device="neuron"))
    summary = report.summarize(done, exceptions.load())
    report.write_results(summary, done, tmp_path)
    unexcused = [failure for failure in done.failures if not failure["excused_by"]]
    assert not unexcused, unexcused[:5]
    assert not done.crashes and not done.unsampled
    assert not summary["stale_exceptions"]
    assert summary["rate"] >= 0.995
    assert summary["operators"] > 690 and summary["passed"] > 400_000
    assert all(row["passed"] for row in summary["checks"].values())
    assert "not the chip's numerics" in summary["note"]


def test_document_is_in_step_with_the_table() -> None:
    assert documents.is_in_step(UNSUPPORTED), f"opentrn quality ops --update-docs {UNSUPPORTED}"


def test_document_needs_its_markers() -> None:
    with pytest.raises(ConfigurationError, match="operators: begin"):
        documents.replace_section("# Unsupported\n")


# --- controls: what the sweep must find -------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["add", "max/reduction_with_dim", "index_put", "svd", "tensor_split", "as_strided"]
)
def test_cpu_against_cpu_finds_nothing(name: str) -> None:
    found, tallies = check(name, "cpu")
    assert not failed_checks(tallies), found.failures[0]
    assert sum(tally.passed for tally in tallies) > 0


def test_every_check_kind_compares_something() -> None:
    _, tallies = check("add", "cpu")
    assert {tally.check for tally in tallies if tally.passed} == set(CHECKS)


@pytest.mark.parametrize(
    ("fault", "name", "kind", "where"),
    [
        ("last-bit", "add", "bits", set(CHECKS)),
        ("negative-zero", "trunc", "bits", {"forward"}),
        ("views", "transpose", "aliasing", {"forward", "noncontiguous"}),
        ("strides", "transpose", "metadata", {"forward", "noncontiguous"}),
        ("refuse@aten::add", "add", "error", set(CHECKS) - {"inplace"}),
        ("refuse@aten::mm", "mm", "error", {"forward", "backward", "out", "noncontiguous"}),
    ],
)
def test_a_broken_device_is_found(fault: str, name: str, kind: str, where: set[str]) -> None:
    found, tallies = check(name, f"broken:{fault}")
    assert where <= failed_checks(tallies)
    assert kind in {failure.kind for failure in found.failures}
    assert all(failure.arguments and failure.text for failure in found.failures)


def test_a_random_operator_is_excused_only_because_cpu_varies_too() -> None:
    table = exceptions.Exceptions((exceptions.ExceptionEntry(("add",), "random", "says it is random"),))
    one = OperatorCheck(
        "add",
        operators()["add"],
        torch.float32,
        Side("cpu"),
        parse_side("broken:last-bit"),
        table,
        lambda position: None,
    )
    tallies = one.run(("forward",))
    assert tallies[0].failed and not tallies[0].undefined


def test_a_crash_costs_one_operator_and_is_named() -> None:
    request = sweep.Request(
        device="broken:crash@aten::trunc", only="^(sign|trunc|square)$", dtypes=("float32",), workers=1
    )
    done = sweep.run(request)
    (crash,) = done.crashes
    assert (crash.operator, crash.cause, crash.dtype) == ("trunc", "SIGSEGV", "float32")
    assert crash.check == "forward" and "Segmentation fault" in crash.stderr
    assert {row["operator"] for row in done.tallies if row["passed"]} == {"sign", "square"}
    summary = report.summarize(done, exceptions.load())
    assert not summary["ok"] and summary["statuses"] == {"pass": 2, "crash": 1}


def test_a_hang_costs_one_operator_and_is_named() -> None:
    request = sweep.Request(
        device="broken:hang@aten::trunc", only="^(sign|trunc)$", dtypes=("float32",), workers=1, timeout=10.0
    )
    done = sweep.run(request)
    assert [(crash.operator, crash.cause) for crash in done.crashes] == [("trunc", "no answer for 10 s")]
    assert {row["operator"] for row in done.tallies} == {"sign"}


# --- samples ---------------------------------------------------------------------------------------------


def test_placement_keeps_layout_aliases_and_bits() -> None:
    base = torch.arange(24, dtype=torch.float32).view(4, 6)
    pair = [base[1:, ::2], base.t()]
    conjugate = torch.view_as_complex(torch.randn(3, 2)).conj()

    @dataclasses.dataclass
    class Sample:
        input: Any
        args: tuple[Any, ...]
        kwargs: dict[str, Any]

    sample = Sample(pair, (conjugate, pair[0]), {"device": "cpu"})
    placed = place(sample, Side("cpu"))
    for source, moved in zip(pair, placed.input, strict=True):
        assert torch.equal(source, moved) and source.data_ptr() != moved.data_ptr()
        assert (source.stride(), source.storage_offset()) == (moved.stride(), moved.storage_offset())
    assert placed.input[0].untyped_storage()._cdata == placed.input[1].untyped_storage()._cdata
    assert placed.args[1] is placed.input[0]
    assert placed.args[0].is_conj() and torch.equal(placed.args[0], conjugate)


def test_samples_do_not_depend_on_what_ran_before() -> None:
    def bits() -> list[torch.Tensor]:
        made = catalogue.samples("add", operators()["add"], torch.float32, requires_grad=False)
        return [sample.input for sample in made]

    first = bits()
    torch.rand(7)
    assert all(torch.equal(one, other) for one, other in zip(first, bits(), strict=True))


def test_dtype_names_are_complete() -> None:
    used = {
        catalogue.dtype_name(dtype) for entry in operators().values() for dtype in catalogue.dtypes(entry)
    }
    assert used <= set(DTYPES)


# --- requests, files, command line -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "cause"),
    [
        (sweep.Request(only="("), "regular expression"),
        (sweep.Request(dtypes=("float33",)), "no dtype 'float33'"),
        (sweep.Request(checks=("sideways",)), "no check 'sideways'"),
        (sweep.Request(workers=0), "0 workers"),
        (sweep.Request(device="broken:nothing"), "no fault 'nothing'"),
        (sweep.Request(device="nonsense"), "no device 'nonsense'"),
        (sweep.Request(device="cpu", only="^no_such_operator$"), "matches none"),
    ],
)
def test_impossible_requests_are_refused(request_: sweep.Request, cause: str) -> None:
    with pytest.raises(ConfigurationError, match=cause):
        sweep.run(request_)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[[exception", "not valid TOML"),
        ('[[exception]]\noperators = ["add"]\nrule = "random"', "wants operators, rule and reason"),
        ('[[exception]]\noperators = ["add"]\nrule = "luck"\nreason = "none"', "no rule 'luck'"),
    ],
)
def test_a_malformed_exception_table_is_refused(tmp_path: Path, text: str, cause: str) -> None:
    path = tmp_path / "exceptions.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=cause):
        exceptions.load(path)


def test_exceptions_name_operators_that_exist() -> None:
    named = {name for entry in exceptions.load().entries for name in entry.operators}
    assert named <= set(operators())


def test_command_line_reports_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "results"
    command = ["quality", "ops", "--device", "broken:last-bit@aten::trunc", "--only", "^(trunc|sign)$"]
    with pytest.raises(SystemExit) as exit_:
        main([*command, "--dtypes", "float32,int64", "--results", str(folder), "--json"])
    assert exit_.value.code == 1
    summary = json.loads(capsys.readouterr().out)
    assert not summary["ok"] and {row["operator"] for row in summary["failures"]} == {"trunc"}
    assert summary["statuses"] == {"fail": 1, "pass": 1}
    rows = pyarrow.parquet.read_table(folder / "operators.parquet").to_pylist()
    assert {row["operator"] for row in rows if row["failed"]} == {"trunc"}
    assert all(row["dtype"] == "float32" for row in rows if row["failed"])
    assert '<failure message="' in (folder / "failures.xml").read_text()
    assert "**fail** (1): `trunc`" in (folder / "summary.md").read_text()
