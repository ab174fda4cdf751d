"""`opentrn quality nki` on a small suite of the same layout as the public ones."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from opentrn.errors import ConfigurationError
from opentrn.quality.nki_suite import command_line, detect, summarise

TEST = """
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
@pytest.mark.parametrize("n", [8, 16, 32, 64])
def test_double(n):
    x = np.ones((128, n), np.float32)
    assert (nki.simulate_kernel(double, x) == 2).all()

@pytest.mark.simulation
def test_wrong():
    assert (nki.simulate_kernel(double, np.ones((128, 8), np.float32)) == 3).all()
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


def test_outcomes_are_stored_and_counted(checkout):
    code, summary, results = run(checkout)
    assert code == 1
    assert summary["outcomes"] == {"passed": 4, "failed": 1} and summary["share"] == 0.8
    assert summary["suite"] == "nki-samples"
    assert "test_wrong" in summary["failures"][0]["case"]
    assert summarise(results)["files"]["test_double.py"]["passed"] == 4


def test_a_sample_takes_cases_evenly(checkout):
    code, summary, _ = run(checkout, "--sample", "2")
    assert summary["cases"] == 2 and code == 0


def test_an_unknown_directory_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="none of the known"):
        detect(tmp_path)
