"""`opentrn check`: what the real stack would refuse, fall back on, recompile or compute otherwise."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opentrn.cli.run_command import _RunCommand, _target
from opentrn.cli.script import Outcome, Target, check_target, run_target
from opentrn.port.behaviours import DEFAULT

if TYPE_CHECKING:
    from opentrn.port.behaviours import Finding, Release
    from opentrn.port.real_stack import RealStack

REFUSED_EXIT = 1

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(cls=_RunCommand, context_settings={"allow_interspersed_args": False, "max_content_width": 110})
def check(
    program: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCRIPT", help="A Python script; what follows is its arguments."),
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", metavar="MODULE", help="Check a module, as python -m.")
    ] = None,
    behave_as: Annotated[str, typer.Option("--as", metavar="STACK", help="The release.")] = DEFAULT,
    from_cuda: Annotated[
        bool,
        typer.Option("--from-cuda", help="Run a CUDA script unchanged; its device names are no finding."),
    ] = False,
    no_run: Annotated[bool, typer.Option("--no-run", help="Read the source only.")] = False,
    real: Annotated[bool, typer.Option("--real", help="Run with data, not dry.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, last.")] = False,
) -> None:
    """List what the real stack would refuse, fall back on or recompile in a script.

    Exit code 1 if something would be refused; else the script's own.
    """
    from opentrn.port.behaviours import release

    target = _target(program or [], module)
    check_target(target)
    stack = release(behave_as)
    result = _Result(stack, from_cuda)
    if not no_run:
        result.run(target, dry=not real)
    result.read_sources(target)
    result.print(as_json)
    sys.exit(result.exit_code)


class _Result:
    """The findings of one program, from its run and from its text."""

    def __init__(self, stack: Release, from_cuda: bool) -> None:
        self._stack, self._from_cuda = stack, from_cuda
        self._watched: RealStack | None = None
        self._outcome = Outcome(0, "not run")
        self._dry = False
        self.findings: list[Finding] = []

    def run(self, target: Target, dry: bool) -> None:
        """Runs the program with its output on standard error, dry where that is possible."""
        from opentrn.port import from_cuda, real_stack

        with contextlib.ExitStack() as modes:
            if self._from_cuda:
                from_cuda.install()
            self._dry = dry and _enter_dry(modes)
            self._watched = real_stack.install(self._stack.name, behaves=False)
            modes.callback(real_stack.uninstall)
            with contextlib.redirect_stdout(sys.stderr):
                self._outcome = run_target(target)
        self.findings.extend(self._watched.findings())

    def read_sources(self, target: Target) -> None:
        """The script and the modules beside it that it imported."""
        from opentrn.port.behaviours import in_order
        from opentrn.port.static_check import check_program

        found = check_program(target.name, target.is_module, self._stack, self._from_cuda)
        self.findings = in_order([*self.findings, *found])

    @property
    def exit_code(self) -> int:
        refused = any(finding.behaviour.outcome == "refuses" for finding in self.findings)
        return REFUSED_EXIT if refused else self._outcome.exit_code

    def print(self, as_json: bool) -> None:
        if as_json:
            print(json.dumps(self._as_json()))
        else:
            print_findings(self.findings, self._stack, self._summary())

    def _summary(self) -> str:
        run = f"{'dry run' if self._dry else 'run'} {self._outcome.ended}" if self._watched else "not run"
        compiled = (
            f"; {self._watched.compilations} operators to compile in eager mode" if self._watched else ""
        )
        return run + compiled

    def _as_json(self) -> dict[str, Any]:
        return {
            "stack": self._stack.name,
            "source": self._stack.source,
            "ended": self._outcome.ended,
            "dry": self._dry,
            "compilations": self._watched.compilations if self._watched else None,
            "findings": [finding.as_json() for finding in self.findings],
            "exit_code": self.exit_code,
        }


def _enter_dry(modes: contextlib.ExitStack) -> bool:
    """Whether this installation has dry runs; then the mode is on until `modes` closes."""
    try:
        from opentrn import dry_run
        from opentrn.device.memory import without_limit
    except ImportError:
        return False
    modes.enter_context(dry_run())
    # What does not fit runs on, so that the places after it are found too.
    modes.enter_context(without_limit())
    return True


PLACES_SHOWN = 8


def print_findings(findings: list[Finding], stack: Release, summary: str) -> None:
    """One block for each behaviour: what the stack does, its link, and the places."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{stack.title}: {summary}")
    by_behaviour: dict[str, list[Finding]] = {}
    for finding in findings:
        by_behaviour.setdefault(finding.behaviour.name, []).append(finding)
    for places in by_behaviour.values():
        behaviour = places[0].behaviour
        console.print(f"\n{behaviour.outcome.upper()}  {behaviour.text} ({behaviour.status})", markup=False)
        console.print(f"  instead: {behaviour.instead}\n  source:  {behaviour.source}", markup=False)
        for finding in places[:PLACES_SHOWN]:
            times = f" ×{finding.count}" if finding.count > 1 else ""
            detail = f"  {finding.detail}" if finding.detail else ""
            console.print(f"  {finding.where}  {finding.operator}{times}{detail}", markup=False)
        if len(places) > PLACES_SHOWN:
            console.print(
                f"  … and {len(places) - PLACES_SHOWN} more places (--json lists them)", markup=False
            )
    if not findings:
        console.print("nothing that its documentation treats otherwise")
