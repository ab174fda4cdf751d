"""The report as one self-contained HTML page: no script, no network, light and dark."""

from __future__ import annotations

import os
from collections.abc import Iterable
from html import escape
from pathlib import Path

from opentrn.errors import ConfigurationError
from opentrn.explorer import figures, units
from opentrn.explorer.summary import Share, StepRow, Summary
from opentrn.explorer.terminal import headline_figures

_STYLE = Path(__file__).with_name("report.css")


def write_report(summary: Summary, path: Path) -> None:
    """Writes the page whole or not at all; ConfigurationError if it cannot be written."""
    temporary = path.with_name(path.name + ".unfinished")
    try:
        temporary.write_text(page(summary), encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConfigurationError(
            f"cannot write the report to '{path}': {error.strerror or error}",
            cure="name a file that can be written",
        ) from error


def page(summary: Summary) -> str:
    """The page as text."""
    sections = [
        _headline(summary),
        _section("Step time", _share_table(summary.split, summary.how_timed)),
        _section("Memory", _memory(summary)),
        _section("Heaviest operators, whole run", _operators(summary)),
        _section("By operator class", _share_table(summary.classes, summary.how_timed, "operators")),
        _section(
            "By module, equal ones of all layers together",
            _share_table(summary.modules, summary.how_timed, "modules"),
        ),
        _section("Steps", _steps(summary)),
        _section("What to try", _list(summary.advice)),
        _section("Notes", _list(summary.notes)),
    ]
    title = escape(f"opentrn run {summary.command}")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    body = "".join(sections)
    head += f"<style>{_STYLE.read_text(encoding='utf-8')}</style>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body><h1>{title}</h1>{body}</body></html>\n'


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2>{body}" if body else ""


def _row(cells: Iterable[str]) -> str:
    """Cells are HTML already."""
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _header(*names: str) -> str:
    return "<tr>" + "".join(f"<th>{escape(name)}</th>" for name in names) + "</tr>"


def _headline(summary: Summary) -> str:
    rows = "".join(
        f"<tr><td>{escape(name.strip())}</td><td>{escape(value)}</td>"
        f'<td class="text how">{escape(how)}</td></tr>'
        for name, value, how in headline_figures(summary)
    )
    return f"<table>{rows}</table>"


def _bar(share: float) -> str:
    return f'<td class="bar"><div style="width:{min(max(share, 0.0), 1.0) * 100:.1f}%"></div></td>'


def _share_table(shares: list[Share], how: str, counted: str = "") -> str:
    if not shares:
        return ""
    rows = "".join(
        f"<tr><td>{escape(s.name)}</td><td>{f'{s.count:,}' if counted else ''}</td>"
        f"<td>{units.time(s.device_ns)}</td><td>{units.percent(s.share)}</td>{_bar(s.share)}</tr>"
        for s in shares
    )
    return f"<table>{_header('', counted, f'time ({how})', 'share', '')}{rows}</table>"


def _operators(summary: Summary) -> str:
    if not summary.operators:
        return ""
    rows = "".join(
        f'<tr><td><code>{escape(s.name)}</code></td><td class="text">{escape(s.note)}</td>'
        f"<td>{s.count:,}</td><td>{units.time(s.device_ns)}</td><td>{units.percent(s.share)}</td><td>{escape(s.how)}</td></tr>"
        for s in summary.operators
    )
    return (
        f"<table>{_header('operator', 'class', 'count', 'device time', 'share', 'how known')}{rows}</table>"
    )


def _memory(summary: Summary) -> str:
    peak = summary.peak
    if peak is None:
        return ""
    where = (
        f"Peak {units.size(peak.allocated)} on device {peak.device} at {units.time(peak.time)} virtual time"
    )
    of = f", of {units.size(summary.memory_capacity)}" if summary.memory_capacity > 0 else ""
    parts = [f"<p>{escape(where + of)} (exact: allocator events).</p>"]
    parts.append(figures.memory_timeline(summary.timeline, summary.memory_capacity))
    parts.append("<p>By category, over the step that holds the peak:</p>")
    parts += [figures.memory_stack(summary.stack), figures.legend(list(summary.stack.categories))]
    holders = "".join(
        f'<tr><td>{escape(module or "outside any module")}</td><td class="text">{escape(category)}</td>'
        f"<td>{count:,}</td><td>{units.size(held)}</td></tr>"
        for module, category, held, count in peak.holders
    )
    parts.append(f"<table>{_header('held at the peak by', 'as', 'storages', 'bytes')}{holders}</table>")
    return "".join(parts)


def _steps(summary: Summary) -> str:
    if not summary.steps:
        return ""
    rows = "".join(_row(_step_cells(row)) for row in summary.steps)
    names = (
        "step",
        f"time ({summary.how_timed})",
        "measured here",
        "tokens",
        "tokens/s",
        "MFU",
        "counted",
        "HFU",
        "peak memory",
    )
    return f"<table>{_header(*names)}{rows}</table>"


def _step_cells(row: StepRow) -> list[str]:
    def share(value: float | None) -> str:
        return "—" if value is None else units.percent(value)

    return [
        f"{row.index + 1}{' (skipped)' if row.kind == 'skipped' else ''}",
        units.time(row.duration_ns),
        units.time(row.measured_ns),
        "—" if row.tokens is None else f"{row.tokens:,}",
        "—" if row.tokens_per_s is None else units.amount(row.tokens_per_s),
        share(row.mfu_formula),
        share(row.mfu_counted),
        share(row.hfu),
        "—" if row.peak_allocated is None else units.size(row.peak_allocated),
    ]


def _list(lines: list[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>" if lines else ""
