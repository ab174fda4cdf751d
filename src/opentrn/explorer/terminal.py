"""The report in the terminal: one page, every figure with how it is known."""

from __future__ import annotations

from typing import IO

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from opentrn.explorer import units
from opentrn.explorer.summary import Share, StepRow, Summary
from opentrn.trace.memory import Timeline

_BLOCKS = " ▁▂▃▄▅▆▇█"
# Steps shown before and after an ellipsis when there are many.
_FIRST_STEPS, _LAST_STEPS = 3, 5
_SPARKLINE = 60
_UNKNOWN_WIDTH = 140


def print_report(summary: Summary, console: Console) -> None:
    """Prints the whole page."""
    console.print(Panel(Group(*_parts(summary)), title=f"opentrn run {summary.command}", title_align="left"))


def _parts(summary: Summary) -> list[Table | Text]:
    parts: list[Table | Text] = [_headline(summary)]
    if summary.steps:
        parts += [Text(), _steps(summary)]
    if summary.split:
        parts += [Text(), _shares("Step time", summary.split, summary.how_timed)]
    if summary.peak is not None:
        parts += [Text(), _memory(summary)]
    if summary.operators:
        parts += [Text(), _operators(summary)]
    if summary.modules:
        parts += [
            Text(),
            _shares("Device time by module", summary.modules, summary.how_timed, counts="modules"),
        ]
    parts += [Text(f"→ {advice}", style="green") for advice in summary.advice]
    parts += [Text(f"• {note}", style="yellow") for note in summary.notes]
    if summary.trace_directory is not None:
        parts.append(
            Text(
                f"trace: {summary.trace_directory}  (opentrn trace export {summary.trace_directory} -o FILE)"
            )
        )
    return parts


def _maybe(value: float | None, text: str) -> str:
    return text if value is not None else "—"


def _headline(summary: Summary) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for name, value, how in headline_figures(summary):
        table.add_row(name, value, how)
    return table


def headline_figures(summary: Summary) -> list[tuple[str, str, str]]:
    """(name, value, how it is known) of the figures at the top of every report."""
    row, how = summary.headline, summary.how_timed
    figures = [("machine", summary.machine, f"{summary.devices} device(s) in use")]
    if summary.ended != "completed":
        figures.append(("ended", summary.ended, "the report covers what ran"))
    if summary.dry:
        figures.append(_fit(summary))
    if row is not None:
        peak = f"of {units.three_digits(summary.peak_tflops)} TFLOP/s per device: {summary.peak_how}"
        name = "run time" if row.kind == "span" else "step time"
        figures += [
            (name, units.time(row.duration_ns), f"{how}; {summary.basis}"),
            ("  on this host", units.time(row.measured_ns), "measured: not the chip's"),
            (
                "tokens/s",
                _maybe(row.tokens_per_s, units.amount(row.tokens_per_s or 0)),
                f"{how}; {_tokens(row)}",
            ),
            ("MFU, TorchTitan's formula", _percent(row.mfu_formula), f"{how}; {peak}"),
            ("MFU, counted FLOPs", _percent(row.mfu_counted), how),
            ("HFU (with recomputation)", _percent(row.hfu), how),
        ]
    if summary.peak is not None:
        share = summary.peak.allocated / summary.memory_capacity if summary.memory_capacity > 0 else 0.0
        of = f"{units.percent(share)} of {units.size(summary.memory_capacity)}; exact: allocator events"
        figures.append(("peak memory", units.size(summary.peak.allocated), of))
    figures.append(
        ("modelled share", units.percent(summary.modelled_share), "of device time; the rest is simulated")
    )
    figures.append(("whole run on this host", units.time(summary.wall_ns), "measured"))
    return figures


def _fit(summary: Summary) -> tuple[str, str, str]:
    short = summary.shortage
    if short is None:
        return "fits", "yes", "a dry run: shapes, memory and time, no data"
    held = ", ".join(f"{name} {units.size(size)}" for name, size in short.held)
    return "fits", f"no, by {units.size(short.missing)}", f"first at {short.place()}; held by {held}"


def _tokens(row: StepRow) -> str:
    return f"{row.tokens:,} tokens" if row.tokens is not None else "tokens unknown"


def _percent(share: float | None) -> str:
    return "—" if share is None else units.percent(share)


def _steps(summary: Summary) -> Table:
    table = Table(title=f"Steps ({summary.how_timed})", title_justify="left", box=None, padding=(0, 2))
    for name in (
        "step",
        "time",
        "measured here",
        "tokens",
        "tokens/s",
        "MFU",
        "MFU counted",
        "HFU",
        "peak memory",
        "",
    ):
        table.add_column(name, justify="right")
    rows = summary.steps
    hidden = len(rows) - _FIRST_STEPS - _LAST_STEPS
    shown = rows if hidden <= 1 else rows[:_FIRST_STEPS] + rows[-_LAST_STEPS:]
    for position, row in enumerate(shown):
        if hidden > 1 and position == _FIRST_STEPS:
            table.add_row("…", *[""] * 8, f"{hidden} more")
        table.add_row(
            str(row.index + 1),
            units.time(row.duration_ns),
            units.time(row.measured_ns),
            _maybe(row.tokens, f"{row.tokens:,}" if row.tokens is not None else ""),
            _maybe(row.tokens_per_s, units.amount(row.tokens_per_s or 0)),
            _percent(row.mfu_formula),
            _percent(row.mfu_counted),
            _percent(row.hfu),
            _maybe(row.peak_allocated, units.size(row.peak_allocated or 0)),
            "skipped: overflow" if row.kind == "skipped" else "",
        )
    return table


def _shares(title: str, shares: list[Share], how: str, counts: str = "") -> Table:
    table = Table(title=f"{title} ({how})", title_justify="left", box=None, padding=(0, 2), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column()
    for share in shares:
        note = f"× {share.count} {counts}" if counts and share.count > 1 else ""
        table.add_row(share.name, units.time(share.device_ns), units.percent(share.share), note)
    return table


def _operators(summary: Summary) -> Table:
    table = Table(title="Heaviest operators, whole run", title_justify="left", box=None, padding=(0, 2))
    for name, justify in (
        ("operator", "left"),
        ("class", "left"),
        ("count", "right"),
        ("device time", "right"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("share", justify="right")
    table.add_column("how")
    for share in summary.operators:
        time, part = units.time(share.device_ns), units.percent(share.share)
        table.add_row(share.name, share.note, f"{share.count:,}", time, part, share.how)
    return table


def _memory(summary: Summary) -> Table:
    peak = summary.peak
    assert peak is not None
    table = Table(
        title=f"Peak memory of device {peak.device}, at {units.time(peak.time)} (exact)",
        title_justify="left",
        box=None,
        padding=(0, 2),
        show_header=False,
    )
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    held = {name: value for name, value in peak.categories.items()}
    for name, value in sorted(held.items(), key=lambda item: -item[1]):
        holder = next((h for h in peak.holders if h[1] == name), None)
        note = f"largest: {holder[0] or 'outside any module'}, {units.size(holder[2])}" if holder else ""
        table.add_row(name, units.size(value), note)
    table.add_row("over the run", "", sparkline(summary.timeline, _SPARKLINE))
    return table


def sparkline(timeline: Timeline, width: int) -> str:
    """The timeline as block characters; each column shows the maximum of its interval, the tallest is the
    peak."""
    if not timeline.times:
        return ""
    first, last, top = timeline.times[0], timeline.times[-1], max(max(timeline.allocated), 1)
    columns: list[int | None] = [None] * width
    for time, value in zip(timeline.times, timeline.allocated, strict=True):
        place = min((time - first) * width // max(last - first, 1), width - 1)
        columns[place] = max(columns[place] or 0, value)
    text, level = "", 0
    for column in columns:
        # Memory stays as it was where nothing happened.
        level = level if column is None else column
        text += _BLOCKS[round(level / top * (len(_BLOCKS) - 1))]
    return text


def report_console(file: IO[str] | None) -> Console:
    """A console for the page; wide enough where the width is unknown."""
    console = Console(file=file)
    return console if console.is_terminal else Console(file=file, width=_UNKNOWN_WIDTH)
