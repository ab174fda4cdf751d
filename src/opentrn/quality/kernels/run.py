"""Running a suite: one pytest process per batch of files, a few at a time, restarted where one dies.

A suite's collection can cost more than its cases (all-pairs parameters), so no process collects the whole,
and a batch is collected again only if its process died. Each process gets a plan (JSON): which cases to
take, which are done, how long one may take.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentrn.errors import ConfigurationError
from opentrn.quality.kernels import results, suites

# A case that ignores its time limit (a long call into a library) is ended from outside after this many limits
# of elapsed time, for the machine may be busy.
PATIENCE = 10.0
PATIENCE_SECONDS = 600.0
# How often a batch goes on after its process died.
ATTEMPTS = 50


@dataclass
class Request:
    """What to run. sample: cases per file, 0 for all; timeout: processor seconds per case, 0 for none;
    memory: GiB of address space per process, 0 for no limit; budget: processor seconds per file, after which
    its other cases (they come in random order) are left out; 0 for none."""

    directory: Path
    results: Path
    target: str
    tests: list[str] = field(default_factory=list)
    sample: int = 0
    seed: int = 0
    workers: int = 1
    timeout: float = 0.0
    memory: float = 0.0
    budget: float = 0.0
    large: str = "skip"
    retry: bool = False
    timing: bool = False
    since: float = field(default_factory=time.time)


@dataclass
class _Job:
    files: list[str]
    attempts: int = 0


def _batches(files: list[str], workers: int, sample: int) -> list[_Job]:
    """All cases: a file each. A sample: few enough processes that starting them does not dominate."""
    if sample == 0 or len(files) <= workers:
        return [_Job([file]) for file in files]
    count = min(len(files), workers * 4)
    return [_Job(files[place::count]) for place in range(count)]


class _Running:
    """One pytest process; `current` is the file in which it leaves word of the case that runs."""

    def __init__(self, job: _Job, request: Request, suite: suites.Suite, folder: Path, number: int) -> None:
        self.job, self.request = job, request
        self.current = folder / f"current{number}.json"
        plan = folder / f"plan{number}.json"
        plan.write_text(json.dumps(self._plan()), encoding="utf-8")
        self.log = (folder / f"log{number}.txt").open("w", encoding="utf-8")
        self.process = subprocess.Popen(
            suites.command(suite, job.files, request.target, plan, request.timing),
            cwd=request.directory,
            env=suites.environment(suite, request.directory, request.target, request.large != "skip"),
            stdout=self.log,
            stderr=self.log,
        )
        self.overdue = False

    def _plan(self) -> dict[str, Any]:
        request = self.request
        done = [
            case
            for case, row in results.read(request.results).items()
            if row["time"] >= request.since or not request.retry or row["outcome"] in ("passed", "skipped")
        ]
        return {
            "results": str(request.results),
            "current": str(self.current),
            "target": request.target,
            "sample": request.sample,
            "seed": request.seed,
            "timeout": request.timeout,
            "memory": request.memory,
            "budget": request.budget,
            "large": request.large,
            "done": done,
        }

    def finished(self) -> bool:
        """Whether the process ended; ends it if a case ignores its time limit."""
        if self.process.poll() is not None:
            return True
        limit = self.request.timeout * PATIENCE + PATIENCE_SECONDS
        if not self.request.timeout or self._case() is None:
            return False
        self.overdue = time.time() - self.current.stat().st_mtime > limit
        if self.overdue:
            self.stop()
        return self.overdue

    def stop(self) -> None:
        """End the process."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _case(self) -> dict[str, Any] | None:
        """The row of the case that runs, or ran when the process died."""
        try:
            row: dict[str, Any] = json.loads(self.current.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return row

    def close(self) -> bool:
        """Write the outcome of a case within which the process died; True if there was one."""
        self.log.close()
        row = self._case()
        if row is None:
            return False
        row["outcome"] = "timeout" if self.overdue else "crashed"
        row["message"] = f"the process ended within the case, with status {self.process.returncode}"
        row["time"] = time.time()
        with self.request.results.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
        return True


def run(request: Request, report: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Run what the request asks for and is not in its results file yet; the summary.

    The logs of the processes stay beside the results, in a folder of the same name ending in .logs.
    """
    suite = suites.detect(request.directory)
    if request.timing and not suite.timing:
        raise ConfigurationError(f"{suite.name} has no cases that read latencies", cure="leave out --timing")
    waiting = _batches(
        suites.test_files(suite, request.directory, request.tests), request.workers, request.sample
    )
    folder = request.results.with_suffix(".logs")
    folder.mkdir(parents=True, exist_ok=True)
    running: list[_Running] = []
    with tempfile.TemporaryDirectory(dir=folder, prefix="run") as scratch:
        number = 0
        try:
            while waiting or running:
                while waiting and len(running) < request.workers:
                    number += 1
                    running.append(_Running(waiting.pop(0), request, suite, Path(scratch), number))
                time.sleep(0.2)
                for one in [item for item in running if item.finished()]:
                    running.remove(one)
                    if one.close() and one.job.attempts < ATTEMPTS:
                        waiting.insert(0, _Job(one.job.files, one.job.attempts + 1))
                    report(f"{', '.join(one.job.files)}: status {one.process.returncode}")
                    _keep_log(one, folder)
        finally:
            for one in running:
                one.stop()
    summary = results.summarise(request.results)
    summary["suite"], summary["target"] = suite.name, request.target
    summary["revision"], summary["date"] = _revision(request.directory), time.strftime("%Y-%m-%d")
    summary["request"] = {
        "sample": request.sample,
        "seed": request.seed,
        "timeout": request.timeout,
        "budget": request.budget,
        "large": request.large,
    }
    return summary


def _revision(directory: Path) -> str:
    """Tag or commit of the checkout, where git knows it."""
    line = ["git", "-C", str(directory), "describe", "--tags", "--always"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _keep_log(one: _Running, folder: Path) -> None:
    name = Path(one.job.files[0].split("::")[0]).stem
    (folder / f"{name}.txt").write_bytes(Path(one.log.name).read_bytes())
