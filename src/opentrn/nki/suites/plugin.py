"""pytest plugin of `opentrn quality nki`: shims, a sample of the cases, and one JSON line per result.

Environment: OPENTRN_SUITE_RESULTS (file), OPENTRN_SUITE_SAMPLE (cases per test file; 0: all).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from typing import Any

import pytest

import opentrn.nki  # noqa: F401 - makes `nki` importable
from opentrn.nki import timing
from opentrn.nki.suites import shims

shims.install_simulator()
shims.install_missing_test_modules()
shims.install_product_name()


def pytest_sessionstart(session: Any) -> None:
    """The library's simulation mode reads an attribute that only its compiling modes set."""
    try:
        from test.utils.test_orchestrator import Orchestrator
    except ImportError:
        return
    if not hasattr(Orchestrator, "_compiled_kernel"):
        Orchestrator._compiled_kernel = None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Keep an evenly spaced, deterministic sample of each file's cases."""
    count = int(os.environ.get("OPENTRN_SUITE_SAMPLE", "0"))
    if not count:
        return
    by_file: dict[str, list[Any]] = {}
    for item in items:
        if not any(mark.name == "skip" for mark in item.iter_markers()):
            by_file.setdefault(str(item.fspath), []).append(item)
    kept: set[int] = set()
    for cases in by_file.values():
        step = max(1.0, len(cases) / count)
        kept.update(id(cases[int(place * step)]) for place in range(min(count, len(cases))))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = [item for item in items if id(item) in kept]


def pytest_collectreport(report: Any) -> None:
    """A file that cannot be imported counts as a failed case."""
    if report.failed:
        last = str(report.longrepr).strip().splitlines()[-1]
        _append(
            {
                "case": report.nodeid,
                "outcome": "failed",
                "seconds": 0.0,
                "message": f"collection: {last}"[:500],
            }
        )


def _append(row: dict[str, Any]) -> None:
    path = os.environ.get("OPENTRN_SUITE_RESULTS")
    if path is None:
        return
    file = os.path.basename(row["case"].split("::")[0])
    with open(path, "a") as stream:
        stream.write(json.dumps({"file": file, **row, "time": time.time()}) + "\n")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: Any) -> None:
    """Forget the latencies of the case before."""
    timing.measured.clear()


def _latencies(item: Any) -> dict[str, Any]:
    """What the case's benchmarks read from the virtual clock, and the bound among its parameters, in
    microseconds."""
    if not timing.measured:
        return {}
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    bounds = [value for name, value in parameters.items() if "latency" in name]
    return {
        "latency_us": [round(result.nc_latency.mean, 3) for result in timing.measured],
        "bound_us": bounds[0] if bounds else None,
    }


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Generator[None, Any, None]:
    """Append the outcome of a case to the results file."""
    outcome = yield
    report = outcome.get_result()
    if not (report.when == "call" or (report.when == "setup" and report.outcome != "passed")):
        return
    message = ""
    if call.excinfo is not None:
        error: BaseException = call.excinfo.value
        while error.__cause__ is not None:
            error = error.__cause__
        message = f"{type(error).__name__}: {error}"[:500]
    expected_failure = hasattr(report, "wasxfail")
    _append(
        {
            "case": item.nodeid,
            "outcome": "xfailed" if expected_failure and report.outcome == "skipped" else report.outcome,
            "seconds": round(report.duration, 3),
            "message": message,
            **_latencies(item),
        }
    )
