"""`opentrn trace`: look at a recorded trace, export it, print its schema."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


class Format(StrEnum):
    """Values of --format."""

    perfetto = "perfetto"
    chrome = "chrome"


@app.callback()
def _options() -> None:
    """Show a recorded trace, or export it to Perfetto or Chrome."""


Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="A trace directory, as opentrn run writes it.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def export(
    directory: Directory,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")],
    format: Annotated[Format, typer.Option(help="perfetto (ui.perfetto.dev) or chrome.")] = Format.perfetto,
    as_json: Json = False,
) -> None:
    """Write a trace as one file for a trace viewer."""
    from opentrn.trace.export import export as write
    from opentrn.trace.reader import Trace

    count = write(Trace(directory), output, format.value)
    if as_json:
        print(json.dumps({"output": str(output), "format": format.value, "operators": count}))
    else:
        print(f"{output}: {count:,} operators, format {format.value}")


@app.command()
def show(
    directory: Directory,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write the report as a page.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the report of a recorded run, also of one that was killed."""
    from opentrn.explorer.html import write_report
    from opentrn.explorer.summary import summarize
    from opentrn.explorer.terminal import print_report, report_console
    from opentrn.trace.reader import Trace
    from opentrn.trace.rebuild import rebuild

    summary = summarize(rebuild(Trace(directory)))
    if report is not None:
        write_report(summary, report)
    if as_json:
        print(json.dumps(summary.as_json()))
    else:
        print_report(summary, report_console(sys.stdout))


@app.command()
def schema(as_json: Json = False) -> None:
    """Print the tables and columns of a trace."""
    from opentrn.trace.schema import TABLES, documentation

    if not as_json:
        print(documentation(), end="")
        return
    tables = {
        table.name: [
            {"name": c.name, "type": c.type, "unit": c.unit, "meaning": c.meaning} for c in table.columns
        ]
        for table in TABLES.values()
    }
    print(json.dumps(tables))
