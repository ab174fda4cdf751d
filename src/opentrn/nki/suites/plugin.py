"""pytest plugin of `opentrn quality nki`: shims, a sample of the cases, a time limit, a JSON line per case.

``--opentrn-plan FILE`` is a JSON object: results (file), current (file that holds the case that runs),
target, sample (cases per test file; 0: all), seed, timeout (processor seconds per case; 0: none), memory (GiB
of address space; 0: unlimited), budget (processor seconds per file; 0: unlimited), large ("skip", "include"
or "only": the cases that the suite itself skips in simulation, by name), done (cases with an outcome).
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import opentrn.nki  # noqa: F401 - makes `nki` importable
from opentrn.nki import timing
from opentrn.nki.suites import shims
from opentrn.nki.suites.probe import Probe
from opentrn.nki.traced import forget_programs

shims.install_simulator()
shims.install_packed_names()
shims.install_missing_test_modules()
shims.install_product_name()

_LARGE = ("4096", "5120", "8192", "16384", "32768", "36864")
_PLAN: dict[str, Any] = {}
_PROBE = Probe()
_SPENT: dict[str, float] = {}  # processor seconds by file


class CaseTimeout(BaseException):
    """A case took more processor time than the plan allows (another process's load does not count).

    No `Exception`: the suites catch those and go on.
    """


def pytest_addoption(parser: Any) -> None:
    """The plan's file."""
    parser.addoption("--opentrn-plan", default=None, help="JSON plan of `opentrn quality nki`")


def pytest_configure(config: Any) -> None:
    """Read the plan; bound the process's memory."""
    path = config.getoption("--opentrn-plan")
    if path is None:
        return
    _PLAN.update(json.loads(Path(path).read_text(encoding="utf-8")))
    if _PLAN.get("memory"):
        limit = int(_PLAN["memory"] * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def pytest_sessionstart(session: Any) -> None:
    """Watch what runs, and join several ranks where a suite's simulation mode has one."""
    _PROBE.install()
    try:
        from test.utils import test_orchestrator
    except ImportError:
        return
    shims.install_orchestrator(test_orchestrator, _PROBE)


def is_large(item: Any) -> bool:
    """Whether nki-library skips the case in simulation: a dimension in its name, or its marker."""
    return item.get_closest_marker("slow_simulation") is not None or any(
        number in item.name for number in _LARGE
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Keep the plan's sample: the first cases of a seeded permutation of each file, so a larger sample of the
    same seed contains the smaller one; then leave out what is done."""
    if not _PLAN:
        return
    by_file: dict[str, list[Any]] = {}
    for item in items:
        if _PLAN["large"] == "include" or is_large(item) == (_PLAN["large"] == "only"):
            by_file.setdefault(item.nodeid.split("::")[0], []).append(item)
    kept: list[Any] = []
    for name, cases in by_file.items():
        if _PLAN["sample"] or _PLAN["budget"]:
            cases.sort(key=lambda item: item.nodeid)
            random.Random(f"{_PLAN['seed']}:{name}").shuffle(cases)
        kept += cases[: _PLAN["sample"] or None]
    done = set(_PLAN["done"])
    left = [item for item in kept if item.nodeid not in done]
    chosen = {id(item) for item in left}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in chosen])
    items[:] = left


def _write(row: dict[str, Any]) -> None:
    if _PLAN:
        with open(_PLAN["results"], "a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")


def _announce(row: dict[str, Any] | None) -> None:
    """Leave word of the case that runs, for whoever finds this process dead."""
    if _PLAN:
        Path(_PLAN["current"]).write_text("" if row is None else json.dumps(row), encoding="utf-8")


def _row(item: Any, outcome: str) -> dict[str, Any]:
    return {
        "case": item.nodeid,
        "file": item.nodeid.split("::")[0],
        "target": _PLAN.get("target", ""),
        "outcome": outcome,
        "large": is_large(item),
    }


def pytest_collectreport(report: Any) -> None:
    """A file that cannot be collected is a failure of its own."""
    if report.failed:
        file = report.nodeid.split("::")[0]
        _write(
            {
                "case": report.nodeid,
                "file": file,
                "outcome": "failed",
                "message": str(report.longrepr)[-800:],
                "time": time.time(),
            }
        )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: Any, nextitem: Any) -> bool | None:
    """Leave out the rest of a file whose budget is used up; its cases come in random order."""
    budget = _PLAN.get("budget", 0.0)
    if not budget or _SPENT.get(item.nodeid.split("::")[0], 0.0) <= budget:
        return None
    # The case that ran last left standing what this one would have used.
    item.session._setupstate.teardown_exact(nextitem)
    return True


def _alarm(number: int, frame: Any) -> None:
    raise CaseTimeout(f"longer than {_PLAN['timeout']:g} s of processor time")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: Any) -> Generator[None, Any, None]:
    """Announce the case, start its clock, and forget its programs afterwards."""
    _announce(_row(item, "started"))
    _PROBE.reset()
    timing.measured.clear()
    limit = _PLAN.get("timeout", 0.0)
    if limit:
        signal.signal(signal.SIGPROF, _alarm)
        signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        yield
    finally:
        if limit:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
        file = item.nodeid.split("::")[0]
        _SPENT[file] = _SPENT.get(file, 0.0) + _PROBE.seconds()
        forget_programs()
        _announce(None)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Generator[None, Any, None]:
    """Append the outcome of a case to the results file."""
    outcome = yield
    report = outcome.get_result()
    if not (report.when == "call" or (report.when == "setup" and report.outcome != "passed")):
        return
    row = _row(item, _outcome(report, call))
    row["seconds"] = round(report.duration, 3)
    row.update(_PROBE.row())
    row.update(_latencies(item))
    row["message"], row["place"] = _message(call)
    row["time"] = round(time.time(), 1)
    if hasattr(report, "wasxfail"):
        row["marked"] = f"xfail {report.wasxfail}"
    _write(row)


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


def _outcome(report: Any, call: Any) -> str:
    """A case that the suite marks as expected to fail counts as what it did; `pytest.xfail()` is a skip."""
    if call.excinfo is None:
        return "passed" if report.outcome != "skipped" else "skipped"
    if call.excinfo.errisinstance(CaseTimeout):
        return "timeout"
    # A suite may wrap it, or meet it where it expects a refusal and find the wrong words.
    if any(isinstance(error, MemoryError) for error in _chain(call.excinfo.value)):
        return "memory"
    if call.excinfo.errisinstance((pytest.skip.Exception, pytest.xfail.Exception)):
        return "skipped"
    return "failed"


def _chain(error: BaseException | None) -> Generator[BaseException, None, None]:
    """An exception and those that led to it, the first cause last."""
    while error is not None:
        yield error
        handled = None if error.__suppress_context__ else error.__context__
        error = error.__cause__ or handled


def _message(call: Any) -> tuple[str, str]:
    """The first cause of a failure, and the innermost line of the suite's own code."""
    if call.excinfo is None:
        return "", ""
    error: BaseException = call.excinfo.value
    while error.__cause__ is not None:
        error = error.__cause__
    place = ""
    trace = error.__traceback__
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(package) and "site-packages" not in name:
            place = f"{os.path.basename(name)}:{trace.tb_lineno}"
        trace = trace.tb_next
    text = f"{type(error).__name__}: {error}"
    # A bare assertion about an exception says nothing itself.
    if error.__context__ is not None and not error.__suppress_context__:
        text += f" (of {type(error.__context__).__name__}: {error.__context__})"
    return text.replace(os.getcwd() + os.sep, "")[:1000], place  # paths inside the checkout
