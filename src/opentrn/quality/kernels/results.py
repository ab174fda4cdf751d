"""Outcomes of a suite: one JSON line per case; counts per file; the table.

A row: case, file, target, outcome (passed, failed, crashed, timeout, memory: the host had too little,
skipped), seconds, kind (positive: a kernel ran and its values were compared; negative: the suite expects the
kernel to be refused; none: no kernel ran), large (the suite itself skips it in simulation, by name), ranks,
message.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RAN = ("passed", "failed", "crashed")
OUTCOMES = (*RAN, "timeout", "memory", "skipped")


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The latest row of each case; a case that only started is left out. A torn last line is skipped."""
    latest: dict[str, dict[str, Any]] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if row.get("outcome") in OUTCOMES:
                latest[row["case"]] = row
    return latest


def share(counts: Counter[str]) -> float | None:
    """Passed cases of those that ran to an end; None if none did."""
    ran = sum(counts[outcome] for outcome in RAN)
    return counts["passed"] / ran if ran else None


def interval(passed: int, ran: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: what a sample says about all cases of the file."""
    z = 1.96
    p = passed / ran
    middle = (p + z * z / (2 * ran)) / (1 + z * z / ran)
    half = z / (1 + z * z / ran) * math.sqrt(p * (1 - p) / ran + z * z / (4 * ran * ran))
    return max(0.0, middle - half), min(1.0, middle + half)


def _count(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    rows = list(rows)
    counts = Counter(row["outcome"] for row in rows)
    ran = sum(counts[outcome] for outcome in RAN)
    result: dict[str, Any] = {outcome: counts[outcome] for outcome in OUTCOMES}
    result["cases"], result["ran"], result["share"] = len(rows), ran, share(counts)
    result["interval"] = interval(counts["passed"], ran) if ran else None
    done = [row for row in rows if row["outcome"] in RAN]
    result["positive"] = sum(row.get("kind") == "positive" for row in done)
    result["negative"] = sum(row.get("kind") == "negative" for row in done)
    result["large"] = sum(bool(row.get("large")) for row in done)
    result["several_ranks"] = sum(row.get("ranks", 1) > 1 for row in done)
    result["seconds"] = round(sum(row.get("seconds", 0.0) for row in rows), 1)
    return result


def summarise(path: Path) -> dict[str, Any]:
    """Counts per file and in all. `share` is of the cases that ran to an end; timeouts stand beside it."""
    latest = list(read(path).values())
    files = sorted({row["file"] for row in latest})
    return {
        **_count(latest),
        "files": {name: _count(row for row in latest if row["file"] == name) for name in files},
        "failures": [
            {key: row.get(key, "") for key in ("case", "outcome", "message", "place")}
            for row in latest
            if row["outcome"] in ("failed", "crashed")
        ],
        "latencies": [
            {
                "case": row["case"],
                "simulated_us": row["latency_us"],
                "bound_us": row["bound_us"],
                "outcome": row["outcome"],
            }
            for row in latest
            if row.get("latency_us")
        ],
        "timeouts": [row["case"] for row in latest if row["outcome"] == "timeout"],
        "skips": dict(Counter(row["message"] for row in latest if row["outcome"] == "skipped")),
    }


COLUMNS = (*OUTCOMES, "positive", "negative", "large", "several_ranks")


def table(summary: dict[str, Any]) -> list[list[str]]:
    """Rows of text, the header first, the total last."""
    lines = [["file", *(name.replace("_", " ") for name in COLUMNS), "share"]]
    for name, counts in [*summary["files"].items(), ("all", summary)]:
        got = "" if counts["share"] is None else f"{100 * counts['share']:.1f} %"
        lines.append([name, *(str(counts[column]) for column in COLUMNS), got])
    return lines


def below(summary: dict[str, Any], least: float, least_per_file: float) -> list[str]:
    """What misses its bound: files by name, and "all"."""
    missed = [
        name
        for name, counts in summary["files"].items()
        if counts["share"] is not None and counts["share"] < least_per_file
    ]
    if summary["share"] is None or summary["share"] < least:
        missed.append("all")
    return missed
