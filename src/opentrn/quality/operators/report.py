"""A sweep as a table in the terminal, as JSON, and as files: Parquet, a JUnit list and a one-page summary."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opentrn.quality.operators import CHECKS
from opentrn.quality.operators.exceptions import Exceptions
from opentrn.quality.operators.sweep import Sweep

if TYPE_CHECKING:
    from rich.console import Console

REQUIRED_RATE = 0.995
VERDICTS = ("passed", "failed", "undefined", "unsupported", "values")
NOTE = (
    "This checks the device (registration, placement, aliasing, autograd), not the chip's numerics: "
    "values on both sides come from the host's kernels."
)
DRY_NOTE = (
    "This compares dry runs with real runs of the device: shapes, strides, dtypes, aliasing and storage "
    "offsets. Values are not compared."
)


def summarize(sweep: Sweep, exceptions: Exceptions) -> dict[str, Any]:
    """Counts by check, status by operator, failures and what went wrong with the sweep itself.

    compared: verdicts over all checks but `values`; what CPU refuses as well is skipped, with the reason, and
    not among them. rate: those equal in all that is defined (passed + undefined) / compared. bitwise_rate:
    passed / compared.
    """
    checks = {check: _count(sweep, check) for check in CHECKS if check in sweep.request.checks}
    counts = {verdict: sum(row[verdict] for row in checks.values()) for verdict in VERDICTS}
    # What depends on values by its nature has nothing to be equal to in a dry run.
    compared = sum(counts.values()) - counts["values"]
    statuses = _statuses(sweep)
    whole = (
        sweep.request.only is None and not sweep.request.dtypes and set(sweep.request.checks) == set(CHECKS)
    )
    # Most entries are about bits, which a dry run has none of.
    stale = _stale(sweep, exceptions) if whole and not sweep.request.dry else []
    rate = (counts["passed"] + counts["undefined"]) / compared if compared else 0.0
    return {
        "device": sweep.request.device,
        "dry": sweep.request.dry,
        "torch": sweep.torch_version,
        "operators": len(sweep.operators),
        "statuses": dict(Counter(row["status"] for row in statuses)),
        "checks": checks,
        "compared": compared,
        **counts,
        "rate": rate,
        "bitwise_rate": counts["passed"] / compared if compared else 0.0,
        "required_rate": REQUIRED_RATE,
        "wall_seconds": round(sweep.wall_seconds, 1),
        "worker_seconds": round(sum(row["seconds"] for row in sweep.tallies), 1),
        "slowest": [
            {"operator": name, "seconds": round(took, 2)} for name, took in seconds(sweep).most_common(20)
        ],
        "crashes": [asdict(crash) for crash in sweep.crashes],
        "unsampled": sweep.unsampled,
        "stale_exceptions": stale,
        "interrupted": sweep.interrupted,
        "ok": not (counts["failed"] or sweep.crashes or sweep.unsampled or stale or sweep.interrupted)
        and rate >= REQUIRED_RATE,
        "note": DRY_NOTE if sweep.request.dry else NOTE,
    }


def _stale(sweep: Sweep, exceptions: Exceptions) -> list[str]:
    """Operators in the table that no difference needed: it must not outlive its reasons."""
    met = {(failure["operator"], failure["excused_by"]) for failure in sweep.failures}
    return [
        f"{name} ({entry.reason})"
        for entry in exceptions.entries
        for name in entry.operators
        if (name, entry.reason) not in met
    ]


def seconds(sweep: Sweep) -> Counter[str]:
    """Measured seconds by operator, both sides and all checks."""
    found: Counter[str] = Counter()
    for row in sweep.tallies:
        found[row["operator"]] += row["seconds"]
    return found


def _count(sweep: Sweep, check: str) -> dict[str, Any]:
    rows = [row for row in sweep.tallies if row["check"] == check]
    counted: dict[str, Any] = {key: sum(row[key] for row in rows) for key in (*VERDICTS, "nan_payload")}
    skipped: Counter[str] = Counter()
    for row in rows:
        skipped.update(row["skipped"])
    counted["skipped"] = sum(skipped.values())
    counted["skip_reasons"] = dict(skipped.most_common())
    return counted


def _statuses(sweep: Sweep) -> list[dict[str, Any]]:
    """One row for each operator: its worst verdict, "crash", or "refused by CPU" (no sample it accepts)."""
    crashed = {crash.operator for crash in sweep.crashes}
    counts: dict[str, Counter[str]] = {name: Counter() for name in sweep.operators}
    for row in sweep.tallies:
        for key in VERDICTS:
            counts[row["operator"]][key] += row[key]
    rows = []
    for name in sweep.operators:
        count = counts[name]
        if name in crashed:
            status = "crash"
        elif count["failed"]:
            status = "fail"
        elif count["unsupported"]:
            status = "exception"
        elif count["values"]:
            status = "depends on values"
        elif count["undefined"]:
            status = "pass, undefined values"
        else:
            status = "pass" if count["passed"] else "refused by CPU"
        rows.append(
            {
                "operator": name,
                "status": status,
                **{key: count[key] for key in VERDICTS},
            }
        )
    return rows


# --- terminal -----------------------------------------------------------------------------------------------


def print_summary(summary: dict[str, Any], sweep: Sweep, console: Console) -> None:
    _print_checks(summary, console)
    _print_failures(sweep, console)
    slowest = ", ".join(f"{row['operator']} {row['seconds']:.1f}" for row in summary["slowest"])
    console.print(f"\n[bold]Slowest[/] (s, measured): {slowest}", highlight=False)
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(summary["statuses"].items()))
    console.print(f"[bold]Operators[/]: {statuses}", highlight=False)
    for reason in summary["stale_exceptions"]:
        console.print(f"[red]exceptions.toml excuses nothing any more for[/]: {reason}", highlight=False)
    for broken in summary["unsampled"]:
        console.print(
            f"[red]no verdict[/] on {broken['operator']} {broken['dtype']}: {broken['broken']}",
            highlight=False,
        )
    if summary["interrupted"]:
        console.print("[red]interrupted[/]: the figures are of what had run")
    verdict = "[green]passes[/]" if summary["ok"] else "[red]does not pass[/]"
    console.print(
        f"\n{summary['device']}{' (dry)' if summary['dry'] else ''} {verdict}: {summary['rate']:.4%} of "
        f"{summary['compared']:,} comparisons equal (≥ {summary['required_rate']:.1%} wanted), "
        f"{summary['bitwise_rate']:.4%} bit for bit; {summary['undefined']:,} of undefined values, "
        f"{summary['unsupported']:,} listed exceptions, {summary['failed']:,} failed"
        f"{_apart(summary)}; "
        f"{summary['wall_seconds']:.0f} s.",
        highlight=False,
    )
    console.print(summary["note"], highlight=False)


def _apart(summary: dict[str, Any]) -> str:
    return f", {summary['values']:,} more that depend on values" if summary["values"] else ""


def _print_checks(summary: dict[str, Any], console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("check")
    for column in (*VERDICTS, "skipped"):
        table.add_column(column, justify="right")
    table.add_column("why skipped", overflow="fold")
    for check, row in summary["checks"].items():
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in row["skip_reasons"].items())
        numbers = [f"{row[key]:,}" for key in (*VERDICTS, "skipped")]
        table.add_row(check, *numbers, reasons)
    console.print(table)
    payload = sum(row["nan_payload"] for row in summary["checks"].values())
    if payload:
        console.print(f"{payload:,} passed with other NaN payloads than CPU's", highlight=False)


def _print_failures(sweep: Sweep, console: Console) -> None:
    for crash in sweep.crashes:
        where = f"{crash.operator} {crash.dtype} {crash.check} {crash.form} sample {crash.sample}".replace(
            "  ", " "
        )
        console.print(f"[red]CRASH[/] {where}: {crash.cause}", highlight=False)
        last = [line for line in crash.stderr.splitlines() if line.strip()][:1]
        console.print(f"      {last[0] if last else 'no message'}", highlight=False, markup=False)
    shown: Counter[tuple[str, ...]] = Counter()
    unexcused = [failure for failure in sweep.failures if not failure["excused_by"]]
    for failure in unexcused:
        # One line for each way in which an operator fails; the files have them all.
        key = (failure["operator"], failure["check"], failure["form"], failure["kind"])
        shown[key] += 1
        if shown[key] > 1 or len(shown) > 60:
            continue
        form = f" ({failure['form']})" if failure["form"] else ""
        unstable = f" [CPU itself varies with {failure['explanation']}]" if failure["explanation"] else ""
        console.print(
            f"FAIL  {failure['operator']} {failure['dtype']} {failure['check']}{form} "
            f"sample {failure['sample']}: {failure['text']}{unstable}",
            highlight=False,
            markup=False,
        )
    if len(shown) > 60:
        console.print(
            f"      … and {len(shown) - 60} more ways (--results DIR writes them all)", highlight=False
        )


# --- files --------------------------------------------------------------------------------------------------


def write_results(summary: dict[str, Any], sweep: Sweep, folder: Path) -> list[Path]:
    """operators.parquet, failures.parquet, failures.xml (JUnit), summary.json and summary.md in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / name for name in ("operators.parquet", "failures.parquet")]
    _write_operators(sweep, written[0])
    _write_failures(sweep, written[1])
    for name, text in (
        ("failures.xml", junit(sweep)),
        ("summary.json", json.dumps(summary, indent=2) + "\n"),
        ("summary.md", one_page(summary, sweep)),
    ):
        (folder / name).write_text(text)
        written.append(folder / name)
    return written


def _write_operators(sweep: Sweep, path: Path) -> None:
    """One row for each operator, dtype and check."""
    import pyarrow
    import pyarrow.parquet

    text, count = pyarrow.string(), pyarrow.int64()
    schema = pyarrow.schema(
        [(name, text) for name in ("operator", "dtype", "check")]
        + [(name, count) for name in (*VERDICTS, "nan_payload", "skipped")]
        + [("skip_reasons", text), ("seconds", pyarrow.float64())]
    )
    rows = [
        {**row, "skipped": sum(row["skipped"].values()), "skip_reasons": "; ".join(row["skipped"])}
        for row in sweep.tallies
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), path)


def _write_failures(sweep: Sweep, path: Path) -> None:
    """Up to five described samples for each operator, dtype and check, excused ones too, and the crashes."""
    import pyarrow
    import pyarrow.parquet

    text = pyarrow.string()
    schema = pyarrow.schema(
        [(name, text) for name in ("operator", "dtype", "check", "form")]
        + [("sample", pyarrow.int64())]
        + [(name, text) for name in ("kind", "text", "explanation", "arguments", "excused_by", "rule")]
    )
    crashes = [
        {
            **asdict(crash),
            "kind": "crash",
            "text": crash.cause,
            "explanation": "",
            "arguments": "",
            "excused_by": "",
            "rule": "",
        }
        for crash in sweep.crashes
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([*sweep.failures, *crashes], schema=schema), path)


def junit(sweep: Sweep) -> str:
    """One test case for each operator and check, so that a CI page shows which fails."""
    root = ElementTree.Element("testsuites", name=f"operators on {sweep.request.device}")
    crashes = {crash.operator: crash for crash in sweep.crashes}
    for check in sweep.request.checks:
        rows = [row for row in sweep.tallies if row["check"] == check]
        suite = ElementTree.SubElement(root, "testsuite", name=check)
        failed = 0
        for name in sweep.operators:
            mine = [row for row in rows if row["operator"] == name]
            took = sum(row["seconds"] for row in mine)
            case = ElementTree.SubElement(suite, "testcase", classname=check, name=name, time=f"{took:.3f}")
            crash = crashes.get(name)
            if crash is not None and crash.check == check:
                ElementTree.SubElement(case, "error", message=crash.cause).text = crash.stderr
            count = sum(row["failed"] for row in mine)
            if count:
                failed += 1
                described = [
                    row for row in sweep.failures if (row["operator"], row["check"]) == (name, check)
                ]
                lines = [
                    f"{row['dtype']} {row['form']} sample {row['sample']}: {row['text']}" for row in described
                ]
                ElementTree.SubElement(case, "failure", message=f"{count} samples").text = "\n".join(lines)
        suite.set("tests", str(len(sweep.operators)))
        suite.set("failures", str(failed))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def one_page(summary: dict[str, Any], sweep: Sweep) -> str:
    """The status of every operator on one page of Markdown."""
    lines = [
        f"# Operators on `{summary['device']}`{' (dry run)' if summary['dry'] else ''}",
        "",
        f"PyTorch {summary['torch']}, {summary['operators']} entries of its operator database. "
        f"{summary['rate']:.4%} of {summary['compared']:,} comparisons are equal, "
        f"{summary['bitwise_rate']:.4%} bit for bit.",
        summary["note"],
        "",
        "| check | passed | failed | undefined values | listed exceptions | depends on values | skipped |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for check, row in summary["checks"].items():
        numbers = [f"{row[key]:,}" for key in (*VERDICTS, "skipped")]
        lines.append(f"| {check} | {' | '.join(numbers)} |")
    statuses = _statuses(sweep)
    for status in (
        "crash",
        "fail",
        "exception",
        "depends on values",
        "refused by CPU",
        "pass, undefined values",
        "pass",
    ):
        names = [f"`{row['operator']}`" for row in statuses if row["status"] == status]
        if names:
            lines += ["", f"**{status}** ({len(names)}): {' '.join(names)}"]
    return "\n".join(lines) + "\n"
