"""`opentrn quality nki --suite DIR`: run a public kernel suite from a checkout, and keep the results.

The suite's code stays where it is; only outcomes are stored (JSON lines, one per case, and a summary).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from opentrn.errors import ConfigurationError


@dataclass(frozen=True)
class Suite:
    """How a known repository runs its own tests: a file that identifies it, its import paths, its options.

    numeric: options that leave out the cases which read latencies; `timing`: whether there are such cases.
    """

    name: str
    marker: str
    paths: tuple[str, ...]
    tests: str
    options: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    timing: bool = False


SUITES = (
    Suite(
        "nki-library",
        "src/nkilib_src/nkilib",
        ("src", "src/nkilib_src", "."),
        "test/integration",
        ("-c", "test/pytest.ini", "--rootdir=.", "--test-mode", "simulation"),
    ),
    Suite(
        "nki-samples", "src/nki_samples", ("src",), "test/unit", numeric=("--simulation-only",), timing=True
    ),
    # Its cases are those of unittest: kernels named test_… are none.
    Suite(
        "sdk-documentation",
        "test_nki_isa_activation.py",
        (".",),
        ".",
        ("-o", "python_functions=none_of_the_functions"),
    ),
)


def detect(directory: Path) -> Suite:
    """The suite in a checkout. Raises ConfigurationError for an unknown one."""
    for suite in SUITES:
        if (directory / suite.marker).exists():
            return suite
    raise ConfigurationError(
        f"{directory} is none of the known kernel suites ({', '.join(suite.name for suite in SUITES)})",
        cure="pass a checkout of nki-library or nki-samples, or the nki/test folder of the SDK documentation",
    )


def command(
    suite: Suite, tests: list[str], target: str, workers: int, timeout: float, timing: bool = False
) -> list[str]:
    """The pytest command line, to be run in the checkout."""
    line = [sys.executable, "-m", "pytest", "-p", "opentrn.nki.suites.plugin", "-q"]
    line += ["--continue-on-collection-errors", *suite.options]
    # What reads latencies is what cannot run without a clock: the cases that are not marked for a simulator.
    line += ["-m", "not simulation"] if timing else suite.numeric
    if suite.name == "nki-library":
        line += ["--platform-target", target]
    if workers > 1:
        line += ["-n", str(workers)]
    if timeout:
        line += ["--timeout", str(timeout)]
    return [*line, *(tests or [suite.tests])]


def environment(
    suite: Suite, directory: Path, results: Path, target: str, sample: int, large: bool
) -> dict[str, str]:
    """Variables of the run: the attached chip, import paths, a stable parameter order, where results go."""
    values = dict(os.environ)
    for variable in ("NKI_NC_VERSION", "NEURON_PLATFORM_TARGET_OVERRIDE"):
        values.pop(variable, None)
    values["OPENTRN_INSTANCE"] = target
    paths = [str(directory / path) for path in suite.paths]
    values["PYTHONPATH"] = os.pathsep.join([*paths, values.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    # The library's all-pairs parameters depend on the order of hashes.
    values["NEURON_PYTHONHASHSEED"] = values["PYTHONHASHSEED"] = "0"
    values["OPENTRN_SUITE_RESULTS"] = str(results)
    values["OPENTRN_SUITE_SAMPLE"] = str(sample)
    if large:
        values["NKILIB_SIMULATION_RUN_ALL"] = "1"
    return values


def summarise(results: Path) -> dict[str, Any]:
    """Counts per file and in all; the share is of the cases that ran (skipped ones do not count)."""
    latest: dict[str, dict[str, Any]] = {}
    if results.exists():
        for line in results.read_text().splitlines():
            row = json.loads(line)
            latest[row["case"]] = row
    files: dict[str, Counter[str]] = defaultdict(Counter)
    for row in latest.values():
        files[row["file"]][row["outcome"]] += 1
    total: Counter[str] = sum(files.values(), Counter())

    def share(counts: Counter[str]) -> float | None:
        ran = counts["passed"] + counts["failed"] + counts["xfailed"]
        return None if not ran else (counts["passed"] + counts["xfailed"]) / ran

    latencies = [
        {
            "case": row["case"],
            "simulated_us": row["latency_us"],
            "bound_us": row["bound_us"],
            "outcome": row["outcome"],
        }
        for row in latest.values()
        if row.get("latency_us")
    ]
    return {
        "cases": len(latest),
        "outcomes": dict(total),
        "share": share(total),
        "files": {name: {**counts, "share": share(counts)} for name, counts in sorted(files.items())},
        "failures": [
            {"case": row["case"], "message": row["message"]}
            for row in latest.values()
            if row["outcome"] == "failed"
        ],
        "latencies": latencies,
    }


def nki(
    suite: Annotated[Path, typer.Option("--suite", metavar="DIR", help="A checkout of it.")],
    tests: Annotated[
        list[str] | None, typer.Argument(help="Test files or directories inside it; all.")
    ] = None,
    target: Annotated[str, typer.Option(help="A chip of `opentrn chips`.")] = "trn2",
    timing: Annotated[
        bool, typer.Option(help="Only the cases that read latencies, from the virtual clock.")
    ] = False,
    sample: Annotated[int, typer.Option(help="Cases per test file; 0: all.")] = 0,
    large: Annotated[
        bool, typer.Option(help="Also run the cases that the suite skips in simulation.")
    ] = False,
    workers: Annotated[int, typer.Option(help="pytest-xdist workers.")] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds per case; 0: none.")] = 0.0,
    results: Annotated[Path, typer.Option(metavar="FILE.jsonl", help="Where outcomes go.")] = Path(
        "nki_suite.jsonl"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a public kernel suite's own tests on the virtual core. Exit code 1 below 98 % of the cases that
    ran."""
    directory = suite.resolve()
    found = detect(directory)
    if timing and not found.timing:
        raise ConfigurationError(f"{found.name} has no cases that read latencies", cure="leave out --timing")
    results = results.resolve()
    results.unlink(missing_ok=True)
    line = command(found, tests or [], target, workers, timeout, timing)
    variables = environment(found, directory, results, target, sample, large)
    if as_json:
        with results.with_suffix(".log").open("w") as log:
            subprocess.run(line, cwd=directory, env=variables, check=False, stdout=log, stderr=log)
    else:
        subprocess.run(line, cwd=directory, env=variables, check=False)
    summary = summarise(results)
    summary["suite"], summary["target"] = found.name, target
    results.with_suffix(".summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    if as_json:
        print(json.dumps(summary))
    else:
        for name, counts in summary["files"].items():
            print(f"{name:<48} {counts}")
        for row in summary["latencies"]:
            print(f"{row['simulated_us']} us, bound {row['bound_us']}: {row['outcome']} {row['case']}")
        print(f"{summary['outcomes']} share {summary['share']}")
    if summary["share"] is None or summary["share"] < 0.98:
        raise typer.Exit(1)


def command_line() -> typer.Typer:
    """The command alone, as `opentrn quality` registers it."""
    app = typer.Typer(add_completion=False)
    app.command()(nki)
    return app
