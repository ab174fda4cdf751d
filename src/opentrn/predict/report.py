"""The prediction as one page, in the terminal and as self-contained HTML: the explorer's report with the
verdict before it."""

from __future__ import annotations

from html import escape
from pathlib import Path

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from opentrn.errors import ConfigurationError
from opentrn.explorer import html, terminal, units
from opentrn.predict.prediction import Prediction

_GIB = 1 << 30


def verdict(prediction: Prediction) -> str:
    """One sentence."""
    if prediction.shortage is not None:
        return prediction.shortage.sentence()
    peak, capacity = prediction.summary.peak, prediction.summary.memory_capacity
    held = peak.allocated if peak else 0
    return f"fits: {held / _GIB:.2f} of {capacity / _GIB:.2f} GiB per core"


def throughput(prediction: Prediction) -> str:
    """Tokens per second of the whole plan, "" where unknown."""
    if prediction.tokens_per_s is None:
        return ""
    per_core = prediction.tokens_per_s / prediction.plan.cores
    return (
        f"{units.amount(prediction.tokens_per_s)} tokens/s on {prediction.plan.cores} core(s), "
        f"{units.amount(per_core)} per core ({prediction.summary.how_timed})"
    )


def print_report(prediction: Prediction, console: Console) -> None:
    """The page in the terminal."""
    style = "bold green" if prediction.fits else "bold red"
    parts: list[Text | Table] = [Text(verdict(prediction), style=style)]
    if text := throughput(prediction):
        note = "" if prediction.fits else ", if it fitted"
        parts.append(Text(text + note))
    if prediction.fixes or prediction.ruled_out:
        parts += [Text(), _fixes(prediction)]
    parts += [Text(f"• {line}", style="dim") for line in prediction.assumptions]
    parts += [Text(), *terminal._parts(prediction.summary)]
    title = f"opentrn predict {prediction.model.name}: {prediction.plan.describe()}"
    console.print(Panel(Group(*parts), title=title, title_align="left"))


def _fixes_title(prediction: Prediction) -> str:
    if any(found.fits for _, found in prediction.fixes):
        return "What would make it fit (each run dry)"
    return "What was tried to make it fit (each run dry): none of it is enough"


def _fixes(prediction: Prediction) -> Table:
    table = Table(title=_fixes_title(prediction), title_justify="left", box=None, padding=(0, 2))
    for name in ("change", "", "peak per core", "tokens/s"):
        table.add_column(name)
    for row in _fix_rows(prediction):
        table.add_row(*row)
    return table


def _fix_rows(prediction: Prediction) -> list[tuple[str, ...]]:
    """What was run, then what was not."""
    run = ((change, *_fix_cells(found)) for change, found in prediction.fixes)
    not_run = (
        (change, "does not fit (not run)", f"at least {units.size(least)}", "—")
        for change, least in prediction.ruled_out
    )
    return [*run, *not_run]


def _fix_cells(found: Prediction) -> tuple[str, str, str]:
    peak = found.summary.peak
    return (
        "fits" if found.fits else f"lacks {found.shortage.missing / _GIB:.2f} GiB" if found.shortage else "",
        units.size(peak.allocated) if peak else "—",
        units.amount(found.tokens_per_s) if found.tokens_per_s else "—",
    )


def page(prediction: Prediction) -> str:
    """The page as HTML."""
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in _fix_rows(prediction)
    )
    fixes = f"<h2>{escape(_fixes_title(prediction))}</h2><table>{rows}</table>" if rows else ""
    notes = "".join(f"<li>{escape(line)}</li>" for line in prediction.assumptions)
    head = (
        f"<p><strong>{escape(verdict(prediction))}</strong></p><p>{escape(throughput(prediction))}</p>"
        f"<p>{escape(prediction.plan.describe())}</p>{fixes}<ul>{notes}</ul>"
    )
    text = html.page(prediction.summary).replace("opentrn run predict", "opentrn predict")
    before, mark, after = text.partition("</h1>")
    return before + mark + head + after


def write(prediction: Prediction, path: Path) -> None:
    """Writes the HTML page; ConfigurationError if it cannot be written."""
    try:
        path.write_text(page(prediction), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"cannot write the report to '{path}': {error.strerror or error}",
            cure="name a file that can be written",
        ) from error
