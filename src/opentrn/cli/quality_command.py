"""`opentrn quality`: compare with an oracle. `ops`: every operator with CPU. `nki`: a public kernel suite."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from opentrn.errors import ConfigurationError
from opentrn.quality.nki_suite import nki

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)
app.command()(nki)


@app.callback()
def _options() -> None:
    """Compare operators, models and masks on the device with the CPU."""


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name for name in (text or "").replace(",", " ").split())


@app.command()
def ops(
    only: Annotated[str | None, typer.Option(metavar="REGEX", help="Operators whose name it finds.")] = None,
    dtypes: Annotated[str | None, typer.Option(metavar="LIST", help="float32,bfloat16 … (all).")] = None,
    checks: Annotated[
        str | None, typer.Option(metavar="LIST", help="forward,backward,out,inplace,noncontiguous (all).")
    ] = None,
    device: Annotated[
        str, typer.Option(help="neuron; or a control: cpu, cpu-shifted, broken:last-bit …")
    ] = "neuron",
    dry: Annotated[bool, typer.Option("--dry", help="Compare dry runs with real ones instead.")] = False,
    workers: Annotated[int, typer.Option(help="Worker processes, one thread each.")] = 2,
    timeout: Annotated[float, typer.Option(help="Seconds one sample may take.")] = 300.0,
    results: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write Parquet, JUnit, JSON and a one-page summary.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    update_docs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Only rewrite the operator section of docs/unsupported.md."),
    ] = None,
    update_costs: Annotated[bool, typer.Option("--update-costs", hidden=True)] = False,
) -> None:
    """Run every sample of PyTorch's operator database on the device and on CPU, and compare bit for bit.

    This checks the device (registration, placement, aliasing, autograd), not the chip's numerics.
    Exit code 0 if at least 99.5 % are equal and every difference is a listed exception; 1 otherwise.
    """
    from rich.console import Console

    if importlib.util.find_spec("expecttest") is None:  # the workers' own error would be a page of PyTorch's
        raise ModuleNotFoundError("PyTorch's operator database needs it", name="expecttest")
    from opentrn.quality.operators import CHECKS, documents, exceptions, report, sweep

    if update_docs is not None:
        documents.update(update_docs)
        return
    request = sweep.Request(
        device=device,
        only=only,
        dtypes=_names(dtypes),
        checks=_names(checks) or CHECKS,
        dry=dry,
        workers=workers,
        timeout=timeout,
    )
    with _progress() as progress:
        done = sweep.run(request, progress)
    summary = report.summarize(done, exceptions.load(dry=dry))
    if results is not None:
        _write(lambda: report.write_results(summary, done, results), results)
    if update_costs:
        sweep.write_costs(report.seconds(done))
    if as_json:
        unexcused = [failure for failure in done.failures if not failure["excused_by"]]
        print(json.dumps({**summary, "failures": unexcused}))
    else:
        report.print_summary(summary, done, Console())
    if not summary["ok"]:
        raise typer.Exit(130 if done.interrupted else 1)


def _write(write: Callable[[], object], folder: Path) -> None:
    try:
        write()
    except OSError as error:
        raise ConfigurationError(
            f"cannot write the results to {folder}: {error.strerror}", cure="another --results"
        ) from error


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None] | None]:
    """A bar on standard error, so that --json stays clean; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("operators"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[name]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, name="loading the operator database")

        def show(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, name=name)

        yield show
