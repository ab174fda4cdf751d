"""`opentrn quality nki` on a small suite of the same layout as the public ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from typer.testing import CliRunner

import nki
from opentrn.errors import ConfigurationError
from opentrn.nki.suites.shims import as_inputs, as_output
from opentrn.quality.kernels import results as outcomes
from opentrn.quality.kernels.page import page
from opentrn.quality.kernels.suites import SUITES, command, detect
from opentrn.quality.nki_suite import command_line

TEST = """
import os
import numpy as np
import pytest
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl
import nki_cpu_simulator.nki.language
import neuron_dtypes

@nki.jit
def double(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=nl.multiply(nl.load(x), 2.0))
    return out

@pytest.mark.simulation
@pytest.mark.parametrize("n", [8, 16, 32, 64, 4096])
def test_double(n):
    x = np.ones((128, n), np.float32)
    assert (nki.simulate_kernel(double, x) == 2).all()

@pytest.mark.simulation
def test_wrong():
    assert (nki.simulate_kernel(double, np.ones((128, 8), np.float32)) == 3).all()

@pytest.mark.simulation
def test_endless():
    while "TEST_ENDLESS" in os.environ:
        pass

@pytest.mark.simulation
def test_fatal():
    if "TEST_FATAL" in os.environ:
        os.abort()

@pytest.mark.simulation
def test_not_here():
    pytest.skip("no such chip")

@pytest.mark.simulation
@pytest.mark.xfail(strict=False)
def test_expected_to_fail():
    assert "TEST_FATAL" not in os.environ
"""

CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--simulation-only", action="store_true")
def pytest_configure(config):
    config.addinivalue_line("markers", "simulation: runs without a device")
"""


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "src" / "nki_samples").mkdir(parents=True)
    unit = tmp_path / "test" / "unit"
    unit.mkdir(parents=True)
    (unit / "test_double.py").write_text(TEST)
    (unit / "conftest.py").write_text(CONFTEST)
    return tmp_path


def run(checkout, *options):
    results = checkout / "results.jsonl"
    done = CliRunner().invoke(
        command_line(), ["--suite", str(checkout), "--results", str(results), "--json", *options]
    )
    return done.exit_code, json.loads(done.output.strip().splitlines()[-1]), results


def names(results):
    return {case.split("::")[1] for case in outcomes.read(results)}


def test_outcomes_are_stored_and_counted(checkout):
    code, summary, results = run(checkout, "--large", "skip")
    assert code == 1 and summary["missed"] == ["test/unit/test_double.py", "all"]
    counts = summary["files"]["test/unit/test_double.py"]
    assert (counts["passed"], counts["failed"], counts["skipped"]) == (7, 1, 1)
    assert counts["positive"] == 5 and counts["large"] == 0
    assert summary["share"] == 7 / 8 and summary["suite"] == "nki-samples"
    assert "test_wrong" in summary["failures"][0]["case"]
    assert summary["skips"] == {"Skipped: no such chip": 1}
    row = outcomes.read(results)["test/unit/test_double.py::test_double[8]"]
    assert row["kind"] == "positive" and row["processor_seconds"] > 0


def test_a_process_that_dies_and_a_case_without_end_cost_one_case_each(checkout, monkeypatch):
    monkeypatch.setenv("TEST_FATAL", "1")
    monkeypatch.setenv("TEST_ENDLESS", "1")
    _, summary, results = run(checkout, "--timeout", "1", "--large", "include")
    got = {case.split("::")[1]: row["outcome"] for case, row in outcomes.read(results).items()}
    assert got["test_fatal"] == "crashed" and got["test_endless"] == "timeout"
    assert got["test_double[4096]"] == "passed" and summary["large"] == 1
    assert got["test_expected_to_fail"] == "failed"  # a mark that allows failure does not make it a pass
    assert len(got) == 10
    monkeypatch.delenv("TEST_FATAL")
    monkeypatch.delenv("TEST_ENDLESS")
    before = os.stat(results).st_size
    _, summary, _ = run(checkout, "--retry", "--large", "include")
    assert summary["crashed"] == 0 and summary["timeout"] == 0 and summary["failed"] == 1
    assert os.stat(results).st_size > before


def test_a_larger_sample_contains_the_smaller(checkout):
    _, _, results = run(checkout, "--sample", "3", "--seed", "5")
    few = names(results)
    rows = results.read_text().count("\n")
    _, summary, _ = run(checkout, "--sample", "6", "--seed", "5", "--resume")
    assert len(few) == 3 and few < names(results) and summary["cases"] == 6
    assert results.read_text().count("\n") == 6 > rows  # what was there did not run again
    _, _, _ = run(checkout, "--sample", "3", "--seed", "6")
    assert names(results) != few


IN_CLASSES = """
import pytest

class TestWork:
    @pytest.mark.simulation
    @pytest.mark.parametrize("n", range(4))
    def test_work(self, n):
        sum(range(1_000_000))
"""


def test_a_file_whose_budget_is_used_up_does_not_harm_the_next(checkout):
    names = [f"test/unit/test_{number}.py" for number in range(5)]  # the first and the last share a process
    for name in names:
        (checkout / name).write_text(IN_CLASSES)
    _, summary, _ = run(checkout, "--budget", "0.001", "--sample", "4", *names)
    assert [summary["files"][name]["passed"] for name in names] == [1] * 5 and summary["cases"] == 5


REFUSALS = """
import pytest

@pytest.mark.simulation
@pytest.mark.parametrize("error", [MemoryError("no room"), ValueError("no such layout")], ids="mv")
def test_refusal(error):
    try:
        raise error
    except Exception as given:
        assert str(given) == "refused"

@pytest.mark.simulation
def test_wrapped():
    try:
        raise MemoryError("no room")
    except Exception as given:
        raise RuntimeError(str(given)) from given
"""


def test_a_host_without_memory_is_seen_through_what_a_suite_makes_of_it(checkout):
    (checkout / "test/unit/test_refusal.py").write_text(REFUSALS)
    _, summary, _ = run(checkout, "test/unit/test_refusal.py")
    assert (summary["memory"], summary["failed"]) == (2, 1)
    assert "(of ValueError: no such layout)" in summary["failures"][0]["message"]


def test_only_the_large_cases(checkout):
    code, summary, _ = run(checkout, "--large", "only")
    assert code == 0 and summary["large"] == summary["cases"] == 1


def test_the_interval_of_a_share():
    low, high = outcomes.interval(20, 20)
    assert high == 1.0 and 0.83 < low < 0.85  # Wilson's: 20 / (20 + 1.96²)
    low, high = outcomes.interval(10, 20)
    assert low == pytest.approx(1 - high) and 0.29 < low < 0.31


def test_the_page_is_in_step_with_the_stored_summaries():
    docs = Path(__file__).parents[2] / "docs"
    assert (docs / "nki-library.md").read_text(encoding="utf-8") == page(docs / "results")


def test_a_table_of_runs_of_several_revisions_says_which_is_of_which(checkout, tmp_path):
    _, summary, _ = run(checkout)
    (folder := tmp_path / "stored").mkdir()
    for mixed in (False, True):
        for number, counts in enumerate(summary["files"].values()):
            counts |= {"on": f"r{number}"} if mixed else {}
        (folder / "trn2.json").write_text(json.dumps(summary))
        header, rule, *rows = [line for line in page(folder).splitlines() if line.startswith("|")]
        assert header.endswith("| ran on |") == mixed
        assert len({line.count("|") for line in (header, rule, *rows)}) == 1
    assert [row.split("|")[-2].strip() for row in rows] == [*(f"r{n}" for n in range(len(rows) - 1)), ""]


def test_a_packed_result_is_read_as_the_bytes_of_the_expected_type():
    words = np.array([[0x4EAAD5B1, 0x3F800000]], np.uint32).view(nl.float8_e4m3fn_x4)
    as_floats = np.asarray(as_output(words), dtype=np.float32)
    np.testing.assert_array_equal(as_floats.view(np.uint32), words.view(np.uint32))
    assert np.asarray(as_output(words), dtype=words.dtype).dtype == words.dtype
    np.testing.assert_array_equal(as_output(as_floats), as_floats)


def add_in_place(x):
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    nisa.dma_copy(dst=x, src=tile)
    return x


def test_what_a_suite_hands_in_stays_as_it_was():
    given = {"x": np.zeros((4, 8), np.float32)}
    assert (nki.cpu_simulate(add_in_place)[1](**as_inputs(given)) == 1).all()
    assert not given["x"].any()  # expected values may be computed from it after the run
    nki.cpu_simulate(add_in_place)[1](**given)
    assert given["x"].all()


def test_two_runs_of_a_checkout_keep_their_arrays_apart(tmp_path):
    folders = set()
    for number in range(2):
        line = command(SUITES[0], ["test/integration"], "trn2", tmp_path / f"plan{number}.json")
        folders.add(line[line.index("--output-directory") + 1])
    assert len(folders) == 2 and all(Path(folder).parent == tmp_path for folder in folders)


def test_an_unknown_directory_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="none of the known"):
        detect(tmp_path)
