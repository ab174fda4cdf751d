"""`opentrn quality nki --suite DIR`: run a public kernel suite from a checkout, and keep the results.

The suite's code stays where it is; only outcomes are stored (JSON lines, one per case, and a summary).
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from opentrn.errors import ConfigurationError
from opentrn.quality.kernels import results as outcomes
from opentrn.quality.kernels.run import Request, run
from opentrn.quality.kernels.suites import detect

LARGE = ("skip", "include", "only")


def nki(
    suite: Annotated[Path, typer.Option("--suite", metavar="DIR", help="A checkout of it.")],
    tests: Annotated[
        list[str] | None, typer.Argument(help="Test files or directories inside it; all.")
    ] = None,
    target: Annotated[str, typer.Option(help="A chip of `opentrn chips`.")] = "trn2",
    sample: Annotated[int, typer.Option(help="Cases per test file, drawn at random; 0: all.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the sample; a larger one contains the smaller.")] = 0,
    large: Annotated[
        str | None,
        typer.Option(metavar="|".join(LARGE), help="Cases with large sizes; as the suite itself does."),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes, one thread each.")] = 1,
    timeout: Annotated[float, typer.Option(help="Processor seconds per case; 0: none.")] = 0.0,
    memory: Annotated[float, typer.Option(help="GiB of address space per process; 0: no limit.")] = 0.0,
    budget: Annotated[
        float, typer.Option(help="Processor seconds per file, cases in random order; 0: no limit.")
    ] = 0.0,
    results: Annotated[Path, typer.Option(metavar="FILE.jsonl", help="Where outcomes go.")] = Path(
        "nki_suite.jsonl"
    ),
    resume: Annotated[bool, typer.Option("--resume", help="Keep the outcomes that are there.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="As --resume; run again what did not pass.")] = False,
    timing: Annotated[
        bool, typer.Option(help="Only the cases that read latencies, from the virtual clock.")
    ] = False,
    least: Annotated[float, typer.Option(help="Share of passed cases, of those that ran.")] = 0.98,
    least_per_file: Annotated[float, typer.Option(help="The same, of each file.")] = 0.9,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a public kernel suite's own tests on the virtual core. Exit code 1 below the shares asked for."""
    if large is None:
        large = "skip" if detect(suite.resolve()).targets else "include"
    if large not in LARGE:
        raise ConfigurationError(f"--large {large}", cure=f"one of {', '.join(LARGE)}")
    results = results.resolve()
    if not (resume or retry):
        results.unlink(missing_ok=True)
    request = Request(
        directory=suite.resolve(),
        results=results,
        target=target,
        tests=tests or [],
        sample=sample,
        seed=seed,
        workers=workers,
        timeout=timeout,
        memory=memory,
        budget=budget,
        large=large,
        retry=retry,
        timing=timing,
    )
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends the processes as well
    summary = run(request, (lambda line: None) if as_json else (lambda line: typer.echo(line, err=True)))
    summary["missed"] = outcomes.below(summary, least, least_per_file)
    results.with_suffix(".summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(summary))
    else:
        _print(outcomes.table(summary))
        for row in summary["latencies"]:
            typer.echo(f"{row['simulated_us']} us, bound {row['bound_us']}: {row['outcome']} {row['case']}")
    if summary["missed"]:
        raise typer.Exit(1)


def _print(lines: list[list[str]]) -> None:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        typer.echo("  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]))


def command_line() -> typer.Typer:
    """The command alone, as `opentrn quality` registers it."""
    app = typer.Typer(add_completion=False)
    app.command()(nki)
    return app
