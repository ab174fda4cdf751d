"""Two worker processes fed from one queue, outliving their crashes.

The queue is ordered by measured cost, dearest first, and handed out one operator at a time, so that the
workers end within a second of each other whatever the machine. A worker that dies or hangs costs the operator
it was on: its name goes into the result, a new worker takes over.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from opentrn.errors import ConfigurationError, OpenTRNError
from opentrn.quality.operators import CHECKS, DTYPES
from opentrn.quality.operators.worker import CRUMB_BYTES, read_crumb

_WORKER = "opentrn.quality.operators.worker"
COSTS = Path(__file__).with_name("costs.toml")


@dataclass(frozen=True)
class Request:
    """What to sweep. Empty `dtypes`: all. timeout: seconds one sample may take."""

    device: str = "neuron"
    only: str | None = None
    dtypes: tuple[str, ...] = ()
    checks: tuple[str, ...] = CHECKS
    dry: bool = False
    workers: int = 2
    timeout: float = 300.0

    def validate(self) -> None:
        """Raises ConfigurationError for what no worker could do."""
        try:
            re.compile(self.only or "")
        except re.error as error:
            raise ConfigurationError(f"--only {self.only!r} is not a regular expression: {error}") from error
        for given, known, what in ((self.dtypes, DTYPES, "dtype"), (self.checks, CHECKS, "check")):
            unknown = [name for name in given if name not in known]
            if unknown:
                raise ConfigurationError(f"no {what} {unknown[0]!r}", cure=f"one of {', '.join(known)}")
        if self.workers < 1:
            raise ConfigurationError(
                f"{self.workers} workers cannot check anything", cure="--workers 1 or more"
            )


@dataclass
class Crash:
    """A worker that died or hung. cause: "SIGSEGV", "exit code 1", "no answer for 120 s"."""

    operator: str
    dtype: str
    check: str
    form: str
    sample: int
    cause: str
    stderr: str


@dataclass
class Sweep:
    """Everything the workers reported. Rows are dictionaries of checks.Tally and checks.Failure."""

    request: Request
    operators: list[str] = field(default_factory=list)
    tallies: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    crashes: list[Crash] = field(default_factory=list)
    unsampled: list[dict[str, Any]] = field(default_factory=list)
    torch_version: str = ""
    wall_seconds: float = 0.0
    interrupted: bool = False


def write_costs(seconds: Mapping[str, float], path: Path = COSTS) -> None:
    """Rewrites costs.toml with what a sweep measured, dearest first, down to half a second."""
    head, _, _ = path.read_text().partition("[seconds]")
    rows = [
        f'"{name}" = {took:.1f}'
        for name, took in sorted(seconds.items(), key=lambda row: -row[1])
        if took >= 0.5
    ]
    path.write_text("\n".join([head + "[seconds]", *rows, ""]))


def costs() -> dict[str, float]:
    """Measured seconds of the dearest operators; one that is not in the table is cheap."""
    return dict(tomllib.loads(COSTS.read_text())["seconds"])


Progress = Callable[[int, int, str], None]


def run(request: Request, progress: Progress | None = None) -> Sweep:
    """Sweeps the operators. `progress(done, total, name)` is called after each operator.

    Raises ConfigurationError for a bad request or device, OpenTRNError if no worker can start.
    """
    request.validate()
    started = time.monotonic()
    sweep = Sweep(request)
    with tempfile.TemporaryDirectory(prefix="opentrn-operators-") as folder:
        _Pool(request, sweep, Path(folder), progress or (lambda done, total, name: None)).run()
    sweep.wall_seconds = time.monotonic() - started
    sweep.tallies.sort(key=lambda row: (row["operator"], row["dtype"], CHECKS.index(row["check"])))
    sweep.failures.sort(
        key=lambda row: (row["operator"], row["dtype"], CHECKS.index(row["check"]), row["sample"])
    )
    return sweep


class _Worker:
    """One process, its pipes, its crumb and what it is doing."""

    def __init__(self, request: Request, folder: Path, number: int) -> None:
        self.crumb = folder / f"crumb-{number}"
        self.crumb.write_bytes(b"\0" * CRUMB_BYTES)
        self.errors = folder / f"stderr-{number}"
        reader, writer = os.pipe()
        environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONHASHSEED="0")
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", _WORKER, str(writer), str(self.crumb), request.device],
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                pass_fds=(writer,),
                env=environment,
            )
        os.close(writer)
        self.answers: BinaryIO = os.fdopen(reader, "rb", buffering=0)
        self.operator: str | None = None
        self.heard = time.monotonic()
        self.ready = False
        self.doomed = ""
        self._partial = self._last_crumb = b""

    def give(self, task: dict[str, Any]) -> None:
        self.operator = task["operator"]
        self.crumb_reset()
        assert self.process.stdin is not None
        self.process.stdin.write((json.dumps(task) + "\n").encode())
        self.process.stdin.flush()

    def crumb_reset(self) -> None:
        with self.crumb.open("r+b") as file:
            file.write(b"\0" * CRUMB_BYTES)

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """(complete messages, whether the pipe has ended)."""
        data = self.answers.read(1 << 20)
        self.heard = time.monotonic()
        lines = (self._partial + (data or b"")).split(b"\n")
        self._partial = lines.pop()
        return [json.loads(line) for line in lines], not data

    def notice_progress(self) -> None:
        """A new sample counts as a sign of life, so that a slow machine is not taken for a hang."""
        crumb = self.crumb.read_bytes()
        if crumb != self._last_crumb:
            self._last_crumb, self.heard = crumb, time.monotonic()

    def kill(self, reason: str) -> None:
        self.doomed = reason
        self.process.kill()

    def close(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.answers.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def cause_of_death(self) -> str:
        code = self.process.wait()
        if self.doomed:
            return self.doomed
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def last_words(self) -> str:
        """What it wrote when it ended: faulthandler's Python stack, or the exception."""
        text = self.errors.read_text(errors="replace")
        fatal = text.rfind("Fatal Python error")
        return text[fatal : fatal + 2000] if fatal >= 0 else text[-2000:]


class _Pool:
    """The event loop: hands out operators, collects answers, replaces dead workers."""

    # PyTorch and its operator database take 7 s to import; a machine with other work, many times that.
    _STARTUP_SECONDS = 1200.0

    def __init__(self, request: Request, sweep: Sweep, folder: Path, progress: Progress) -> None:
        self.request, self.sweep, self.folder, self.progress = request, sweep, folder, progress
        self.selector = selectors.DefaultSelector()
        self.workers: list[_Worker] = []
        self.queue: deque[str] | None = None
        self.started = self.done = self.total = 0

    def run(self) -> None:
        try:
            self._start()
            while self.workers:
                for key, _ in self.selector.select(timeout=1.0):
                    self._listen(key.data)
                self._end_the_silent()
        except KeyboardInterrupt:
            self.sweep.interrupted = True  # what had run is reported
        finally:
            for worker in list(self.workers):
                self._drop(worker)
            self.selector.close()

    def _start(self) -> None:
        """One more worker; both at once if there is work for both (the first one's hello lists it)."""
        worker = _Worker(self.request, self.folder, self.started)
        self.started += 1
        self.workers.append(worker)
        self.selector.register(worker.answers, selectors.EVENT_READ, worker)
        if self.queue is None and self.request.only is None and len(self.workers) < self.request.workers:
            self._start()

    def _drop(self, worker: _Worker) -> None:
        self.selector.unregister(worker.answers)
        self.workers.remove(worker)
        worker.close()

    def _listen(self, worker: _Worker) -> None:
        messages, ended = worker.read()
        for message in messages:
            self._take(worker, message)
        if ended and worker in self.workers:
            self._bury(worker)

    def _take(self, worker: _Worker, message: dict[str, Any]) -> None:
        if "refused" in message:
            raise ConfigurationError(message["refused"], cure=message["cure"])
        if "hello" in message:
            worker.ready = True
            self.sweep.torch_version = message["torch"]
            if self.queue is None:
                self._fill_queue(message["hello"])
            self._feed(worker)
        elif "done" in message:
            self._finish(worker)
            self._feed(worker)
        elif "broken" in message:
            self.sweep.unsampled.append(message)
        else:
            self.sweep.tallies += message["tallies"]
            self.sweep.failures += message["failures"]

    def _fill_queue(self, names: list[str]) -> None:
        wanted = [name for name in names if self.request.only is None or re.search(self.request.only, name)]
        if not wanted:
            raise ConfigurationError(f"--only {self.request.only!r} matches none of {len(names)} operators")
        price = costs()
        self.queue = deque(sorted(wanted, key=lambda name: (-price.get(name, 0.0), name)))
        self.sweep.operators = sorted(wanted)
        self.total = len(wanted)
        # A start costs seven seconds: a second worker for a handful of cheap operators would come too late.
        while len(self.workers) < self.request.workers and len(wanted) > 20 * len(self.workers):
            self._start()

    def _feed(self, worker: _Worker) -> None:
        assert self.queue is not None
        if not self.queue:
            self._drop(worker)
            return
        request = self.request
        task = {
            "operator": self.queue.popleft(),
            "device": request.device,
            "dry": request.dry,
            "checks": request.checks,
            "dtypes": list(request.dtypes) or None,
        }
        worker.give(task)

    def _finish(self, worker: _Worker) -> None:
        self.done += 1
        self.progress(self.done, self.total, worker.operator or "")
        worker.operator = None

    def _bury(self, worker: _Worker) -> None:
        """Records the operator that a worker died on and starts another if there is work left."""
        cause, words = worker.cause_of_death(), worker.last_words()
        if worker.operator is None and not self.sweep.tallies:
            raise OpenTRNError(f"a worker ended before its first operator ({cause}): {words.strip()[-400:]}")
        if worker.operator is None:
            # What the others found must not be lost; they do the rest.
            self.sweep.crashes.append(Crash("(worker start)", "", "", "", 0, cause, words))
            self._drop(worker)
            return
        dtype, check, form, sample = read_crumb(worker.crumb) or ("", "start", "", 0)
        self.sweep.crashes.append(Crash(worker.operator, dtype, check, form, sample, cause, words))
        self._finish(worker)
        self._drop(worker)
        if self.queue:
            self._start()

    def _end_the_silent(self) -> None:
        for worker in self.workers:
            worker.notice_progress()
            limit = self.request.timeout if worker.ready else self._STARTUP_SECONDS
            if not worker.doomed and time.monotonic() - worker.heard > limit:
                worker.kill(f"no answer for {limit:.0f} s")
