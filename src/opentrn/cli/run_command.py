"""`opentrn run`: an unchanged script on the virtual device, then the report."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from opentrn import settings
from opentrn.cli.script import Outcome, Target, check_target, run_target
from opentrn.errors import ConfigurationError, UnimplementedError

if TYPE_CHECKING:
    from opentrn.trace.record import RunRecord

DEFAULT_TRACES = Path("opentrn-trace")
# Option → the module that carries it out.
_PARTS = {
    "--as": "opentrn.port.real_stack",
    "--from-cuda": "opentrn.port.from_cuda",
    "--dry": "opentrn.device.dry",
}


class StepsBy(StrEnum):
    """Values of --steps-by."""

    auto = "auto"
    optimizer = "optimizer"
    manual = "manual"


class _RunCommand(TyperCommand):
    """Everything after the script, or after `-m module`, is the program's, as with `python`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _end_options_after_module(args, self._names_with_value()))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", "SCRIPT [ARGUMENTS]... | -m MODULE [ARGUMENTS]..."]

    def _names_with_value(self) -> set[str]:
        return {name for p in self.params if not getattr(p, "is_flag", True) for name in p.opts}


def _end_options_after_module(args: list[str], with_value: set[str]) -> list[str]:
    """Puts `--` behind `-m module`."""
    position = 0
    while position < len(args) and args[position].startswith("-") and args[position] != "--":
        name = args[position]
        if name == "-m":
            return [*args[: position + 2], "--", *args[position + 2 :]]
        position += 2 if name in with_value else 1
    return args


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(cls=_RunCommand, context_settings={"allow_interspersed_args": False, "max_content_width": 110})
def run(
    program: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCRIPT", help="A Python script; what follows is its arguments."),
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", metavar="MODULE", help="Run a module, as python -m.")
    ] = None,
    instance: Annotated[
        str | None, typer.Option(help="The machine to attach, as trn2.48xlarge (opentrn chips lists them).")
    ] = None,
    from_cuda: Annotated[
        bool, typer.Option("--from-cuda", help="Run a CUDA script unchanged on neuron.")
    ] = False,
    dry: Annotated[bool, typer.Option("--dry", help="Shapes, memory and time only: no data.")] = False,
    wall_clock: Annotated[
        bool,
        typer.Option(
            "--wall-clock", help="With --dry: the program's clock stays the host's, not the chip's."
        ),
    ] = False,
    behave_as: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="STACK",
            help="Refuse, fall back and compile as torchneuron-2.33 does.",
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Directory of the trace; by default opentrn-trace/SCRIPT-N.")
    ] = None,
    no_trace: Annotated[bool, typer.Option("--no-trace", help="Record no trace; the report stays.")] = False,
    trace_limit: Annotated[float, typer.Option(metavar="GIB", help="Stop tracing at this size.")] = 8.0,
    frames: Annotated[
        bool, typer.Option("--frames", help="Record the Python line of each operator.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Also write the report as a page.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as one JSON object, last, on standard output.")
    ] = False,
    steps_by: Annotated[
        StepsBy, typer.Option(help="Where steps end; manual: opentrn.step().")
    ] = StepsBy.auto,
    tokens_per_step: Annotated[
        int | None, typer.Option(min=1, help="Tokens per step, instead of counted.")
    ] = None,
) -> None:
    """Run an unchanged script on the virtual device and report time, memory and utilization."""
    target = _target(program or [], module)
    check_target(target)
    if no_trace and trace is not None:
        raise ConfigurationError("--trace and --no-trace exclude each other", cure="give one of them")
    if wall_clock and not dry:
        raise ConfigurationError("--wall-clock says what --dry does with clocks", cure="give --dry with it")
    if report is not None and not report.absolute().parent.is_dir():
        raise ConfigurationError(f"there is no directory for the report '{report}'", cure="create it first")
    wishes = _Wishes(
        target, instance, from_cuda, dry, wall_clock, behave_as, frames, steps_by.value, tokens_per_step
    )
    directory = None if no_trace else _trace_directory(trace, target)
    outcome, record = _watched(wishes, directory, trace is not None, int(trace_limit * (1 << 30)))
    _report(record, outcome, report, as_json)
    sys.exit(outcome.exit_code)


@dataclass(frozen=True)
class _Wishes:
    """The options of one run."""

    target: Target
    instance: str | None
    from_cuda: bool
    dry: bool
    wall_clock: bool
    behave_as: str | None
    frames: bool
    steps_by: str
    tokens_per_step: int | None


def _target(program: list[str], module: str | None) -> Target:
    if module is not None:
        return Target(module, True, tuple(program))
    if not program:
        raise ConfigurationError(
            "there is nothing to run", cure="opentrn run SCRIPT, or opentrn run -m MODULE"
        )
    return Target(program[0], False, tuple(program[1:]))


def _trace_directory(given: Path | None, target: Target) -> Path:
    """Where the trace goes; one directory per rank under torchrun."""
    rank = os.environ.get("RANK")
    if given is not None:
        return given / f"rank-{rank}" if rank is not None else given
    stem = target.stem if rank is None else f"{target.stem}-rank-{rank}"
    number = 1
    while (directory := DEFAULT_TRACES / f"{stem}-{number}").exists():
        number += 1
    return directory


def _watched(
    wishes: _Wishes, directory: Path | None, demanded: bool, limit_bytes: int
) -> tuple[Outcome, RunRecord]:
    """Prepares the device, runs the program under a trace session, and returns how it ended with what was
    recorded."""
    if wishes.instance is not None:
        os.environ["OPENTRN_INSTANCE"] = wishes.instance
    if wishes.behave_as is not None:
        os.environ["OPENTRN_AS"] = wishes.behave_as
    source = _source(wishes.dry)
    from opentrn.trace.session import Session, SessionOptions

    def options(where: Path | None) -> SessionOptions:
        return SessionOptions(
            str(wishes.target),
            where,
            wishes.frames,
            wishes.steps_by,
            wishes.tokens_per_step,
            limit_bytes,
            wishes.dry,
        )

    with contextlib.ExitStack() as modes:
        noted = _prepare(wishes, modes)
        metadata = _metadata()
        try:
            session = Session(source, options(directory), metadata)
        except ConfigurationError as error:
            # A trace nobody asked for is not worth the run.
            if demanded:
                raise
            print(f"opentrn: running without a trace: {error.cause}", file=sys.stderr)
            session = Session(source, options(None), metadata)
        session.start()
        outcome = run_target(wishes.target)
        record = session.stop(outcome.ended, noted.lines())
    return outcome, record


def _source(dry: bool) -> Any:
    """The device with its machine attached; ConfigurationError where the extension was not built."""
    try:
        import torch  # noqa: F401  (loads the device)

        from opentrn.trace.shortage import WatchingSource
        from opentrn.trace.source import DeviceSource

        return WatchingSource() if dry else DeviceSource()
    except ImportError as error:
        raise ConfigurationError(
            f"the device extension cannot be loaded: {error}",
            cure="make setup, or pip install . in the repository",
        ) from error


def _prepare(wishes: _Wishes, modes: contextlib.ExitStack) -> _Noted:
    """Turns on what the options ask for; returns what they noted when the program has ended."""
    redirections = watch = None
    behaves = bool(settings.get("OPENTRN_AS"))
    if behaves or wishes.dry:
        # A dry run also says what would not run on the real stack.
        watch = _part("--as").install(behaves=behaves)
        modes.callback(_part("--as").uninstall)
    if wishes.from_cuda:
        redirections = _part("--from-cuda").install()
    if wishes.dry:
        modes.enter_context(_part("--dry").dry_run(wall_clock=wishes.wall_clock))
        # What does not fit is an answer: the run goes on, and the report says by how much.
        modes.enter_context(importlib.import_module("opentrn.device.memory").without_limit())
    return _Noted(wishes, redirections, watch)


@dataclass(frozen=True)
class _Noted:
    """What the options' modules note during a run."""

    wishes: _Wishes
    redirections: Any
    watch: Any

    def lines(self) -> list[str]:
        """What the answer rests on: what the real stack would do otherwise, redirections of --from-cuda,
        stand-ins of --dry."""
        lines = [] if self.watch is None else self.watch.notes(self._in_the_sources())
        if self.redirections is not None:
            lines += [f"redirected: {redirection}" for redirection in self.redirections.redirections]
            lines += [f"refused: {refusal}" for refusal in self.redirections.refusals]
        if self.wishes.dry:
            lines += _part("--dry").ledger_lines() or ["nothing stood in: every value was computed"]
        return lines

    def _in_the_sources(self) -> list[Any]:
        from opentrn.port.static_check import check_program

        target = self.wishes.target
        return check_program(target.name, target.is_module, self.watch.release, self.wishes.from_cuda)


def _part(option: str) -> Any:
    """The module behind an option; UnimplementedError where this installation lacks it."""
    module = _PARTS[option]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise UnimplementedError(
            f"this installation of OpenTRN has no {option}", cure=f"run without {option}"
        ) from error


def _metadata() -> dict[str, Any]:
    import torch

    return {
        "argv": sys.argv[1:],
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "process": os.getpid(),
        "rank": os.environ.get("RANK"),
    }


def _report(record: RunRecord, outcome: Outcome, page: Path | None, as_json: bool) -> None:
    """To standard error, so that the program's output stays its own; JSON goes last to standard output.

    Of the ranks of one job only the first reports; each has its own trace.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    from opentrn.explorer.summary import summarize

    summary = summarize(record)
    with contextlib.suppress(ValueError, OSError):  # the program may have closed it
        sys.stdout.flush()
    if page is not None:
        from opentrn.explorer.html import write_report

        write_report(summary, page)
    if as_json:
        print(
            json.dumps({**summary.as_json(), "exit_code": outcome.exit_code}), file=sys.__stdout__, flush=True
        )
        return
    from opentrn.explorer.terminal import print_report, report_console

    print_report(summary, report_console(sys.__stderr__))
    if page is not None:
        print(f"report: {page}", file=sys.stderr)
