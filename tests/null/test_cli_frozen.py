"""The command line as promised: a change here is a change for users, so it is made on purpose."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from opentrn.cli import kernel_command, program_command, run_command, trace_command
from opentrn.cli import main as cli

FOLDER = Path(cli.__file__).parent
COMMANDS = ["run", "predict", "check", "trace", "program", "kernel", "quality", "chips", "version"]
RUN_OPTIONS = {
    "-m", "--instance", "--wall-clock",
    "--from-cuda", "--dry", "--as", "--trace", "--no-trace", "--trace-limit", "--frames",
    "--report", "--json", "--steps-by", "--tokens-per-step", "--help",
}  # fmt: skip
TRACE_OPTIONS = {
    "export": {"--output", "-o", "--format", "--json", "--help"},
    "show": {"--report", "--json", "--help"},
    "schema": {"--json", "--help"},
}
_KERNEL_CALL = {"--args", "-a", "--grid", "--chip", "--json", "--help"}
KERNEL_OPTIONS = {
    "run": _KERNEL_CALL | {"--relaxed", "--activation-ranges", "--out", "--program", "--trips"},
    "time": _KERNEL_CALL | {"--program", "--trips"},
    "profile": _KERNEL_CALL | {"--trace"},
    "check": {"--help"},
}
_PROGRAM = {"--chip", "--dtype", "--help"}
PROGRAM_OPTIONS = {
    "print": _PROGRAM | {"--output", "-o"},
    "verify": _PROGRAM | {"--symbol", "-s"},
    "time": _PROGRAM | {"--symbol", "-s", "--path", "--trips", "--reorder", "--json"},
    "diff": _PROGRAM | {"--symbol", "-s"},
    "kernels": {"--json", "--help"},
}


def options(command):
    context = command.make_context("x", [], resilient_parsing=True)
    return {
        name for parameter in command.get_params(context) for name in parameter.opts if name.startswith("-")
    }


def test_commands():
    assert [*cli.COMMANDS, *cli.BUILT_IN] == COMMANDS


def test_run_options():
    assert options(typer.main.get_command(run_command.app)) == RUN_OPTIONS


def test_trace_options():
    group = typer.main.get_command(trace_command.app)
    assert {name: options(command) for name, command in group.commands.items()} == TRACE_OPTIONS


@pytest.mark.parametrize(
    ("module", "promised"), [(kernel_command, KERNEL_OPTIONS), (program_command, PROGRAM_OPTIONS)]
)
def test_options_of_kernels_and_programs(module, promised):
    group = typer.main.get_command(module.app)
    assert {name: options(command) for name, command in group.commands.items()} == promised


def children_seconds() -> float:
    """Processor time of finished children: another process's load does not count."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_help_is_quick_and_imports_nothing_heavy():
    """Under a second of processor time: torch alone takes longer, so it must not be imported."""
    code = (
        "import sys\nfrom opentrn.cli.main import main\ntry:\n    main(['--help'])\nexcept SystemExit as e:\n"
        "    heavy = {'torch', 'numpy', 'pyarrow', 'rich.table'} & set(sys.modules)\n"
        "    assert not heavy, heavy\n    assert e.code in (0, None)"
    )
    best = float("inf")
    for _ in range(3):
        start = children_seconds()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        best = min(best, children_seconds() - start)
        assert done.returncode == 0, done.stderr
    listed = {line.split()[0] for line in done.stdout.partition("Commands:")[2].splitlines() if line.strip()}
    present = {path.name.removesuffix("_command.py") for path in FOLDER.glob("*_command.py")}
    assert listed == present | {"version"}
    assert present <= set(COMMANDS), "a command is missing from the table"
    assert best < 1.0


@pytest.mark.parametrize("name", COMMANDS[:-1])
def test_help_lines_fit(name):
    assert len(cli.COMMANDS[name]) < 90
