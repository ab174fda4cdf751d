"""`opentrn`: one table of sub-commands, each imported when it is called, so that `opentrn --help` is quick.

A sub-command lives in `opentrn.cli.<name>_command`: `app`, a typer.Typer, or a function of its name. Errors
of class OpenTRNError end with their cause and cure and exit code 2; `opentrn --debug …` shows their
traceback.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import platform
import sys
from importlib import metadata
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from opentrn.errors import ConfigurationError, OpenTRNError, UnimplementedError

ERROR_EXIT = 2
WIDE = {"max_content_width": 110}

# Sub-command → what it is for, one line.
COMMANDS: dict[str, str] = {
    "run": "Run an unchanged script on the virtual device and report time, memory and utilization.",
    "predict": "Will a model fit, and how fast does it train or serve? Without a script.",
    "check": "List what the real stack would refuse, fall back on or recompile in a script.",
    "trace": "Show a recorded trace, or export it to Perfetto or Chrome.",
    "program": "Print, verify, time and compare programs of NeuronCore instructions.",
    "kernel": "Run, check and time an NKI kernel.",
    "quality": "Compare operators, models and masks on the device with the CPU.",
    "chips": "Print chips and instances with the source of every constant.",
}
# Python module that a sub-command imports while it works → the extra of this package that brings it.
EXTRAS = {"transformers": "predict", "expecttest": "quality", "hypothesis": "quality", "scipy": "quality"}
BUILT_IN = {"version": "Print the versions that matter in a bug report."}


class _Commands(TyperGroup):
    """Lists commands from the table; imports one only to run it."""

    def list_commands(self, ctx: Any) -> list[str]:
        # Only what this installation has.
        present = [name for name in COMMANDS if importlib.util.find_spec(f"opentrn.cli.{name}_command")]
        return [*present, *BUILT_IN]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS:
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name])
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name in COMMANDS else command, rest


def load_command(name: str) -> Any:
    """Imports a sub-command; UnimplementedError or ConfigurationError where it, or what it needs, is not
    installed."""
    module_name = f"opentrn.cli.{name}_command"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name == module_name:
            raise UnimplementedError(
                f"this installation of OpenTRN has no '{name}' command",
                cure="opentrn --help lists the commands",
            ) from error
        raise ConfigurationError(
            f"'opentrn {name}' needs the Python module '{error.name}', which is not installed",
            cure=f"pip install {(error.name or '').partition('.')[0]}",
        ) from error
    command = typer.main.get_command(_app_of(module, name))
    command.name = name
    return command


def _app_of(module: ModuleType, name: str) -> typer.Typer:
    """The module's `app`, or one around its single function of the command's name."""
    if hasattr(module, "app"):
        return module.app
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command()(getattr(module, name))
    return single


app = typer.Typer(
    cls=_Commands, no_args_is_help=True, add_completion=False, rich_markup_mode=None, context_settings=WIDE
)


@app.callback()
def _options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of OpenTRN's own errors.")
    ] = False,
) -> None:
    """Trainium-class accelerators without the accelerator: run, time and inspect PyTorch programs."""


@app.command(help=BUILT_IN["version"])
def version(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    versions = {
        "opentrn": _version("opentrn"),
        "torch": _version("torch"),
        "python": platform.python_version(),
    }
    versions["platform"] = platform.platform()
    if as_json:
        print(json.dumps(versions))
        return
    for name, value in versions.items():
        print(f"{name} {value}")


def _version(package: str) -> str:
    """From the package's metadata: importing torch takes seconds."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def main(arguments: list[str] | None = None) -> None:
    """The console script. Exits; never returns."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        sys.exit(typer.main.get_command(app).main(arguments, prog_name="opentrn"))
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        print(
            f"opentrn: this needs the Python package '{error.name}', which is not installed", file=sys.stderr
        )
        print(f"  what to do: pip install 'opentrn[{EXTRAS[error.name]}]'", file=sys.stderr)
        sys.exit(ERROR_EXIT)
    except OpenTRNError as error:
        # Only before the sub-command: after it, --debug may be the script's.
        if arguments[:1] == ["--debug"]:
            raise
        print(f"opentrn: {error}", file=sys.stderr)
        sys.exit(ERROR_EXIT)


if __name__ == "__main__":
    main()
