"""What goes wrong before a program runs: one line of cause, one of cure, exit code 2, no traceback."""

import json
import subprocess
import sys

import pytest

from opentrn.cli import main as cli
from opentrn.cli.run_command import _end_options_after_module
from opentrn.errors import ConfigurationError


def run(*arguments, directory):
    command = [sys.executable, "-m", "opentrn.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=directory)


@pytest.mark.parametrize(
    "arguments, cause, cure",
    [
        (["run", "trian.py"], "there is no script 'trian.py'", "did you mean train.py"),
        (["run", "nowhere/x.py"], "there is no script", "check the path"),
        (["run"], "there is nothing to run", "opentrn run SCRIPT"),
        (["run", "-m", "no_such_module"], "there is no module 'no_such_module'", "install"),
        (["run", "--trace", "t", "--no-trace", "train.py"], "exclude each other", "one of them"),
        (["run", "--report", "no/where.html", "train.py"], "no directory for the report", "create it"),
        (["run", "--wall-clock", "train.py"], "says what --dry does", "--dry"),
        (["trace", "show", "nothing"], "there is no trace directory 'nothing'", "check the path"),
        (["trace", "export", ".", "-o", "x"], "is not a trace", "name the directory"),
    ],
)
def test_one_line_and_a_cure(tmp_path, arguments, cause, cure):
    (tmp_path / "train.py").write_text("print('ran')")
    done = run(*arguments, directory=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith("opentrn: ") and cause in first
    assert second.startswith("  what to do: ") and cure in second


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--steps-by", "moon", "x.py"],
        ["nonsense"],
        ["trace", "export", ".", "-o", "x", "--format", "y"],
    ],
)
def test_usage_errors(tmp_path, arguments):
    done = run(*arguments, directory=tmp_path)
    assert done.returncode == 2 and "Error" in done.stderr and "Traceback" not in done.stderr


def test_debug_shows_the_traceback(tmp_path):
    done = run("--debug", "run", "x.py", directory=tmp_path)
    assert "Traceback" in done.stderr and "ConfigurationError" in done.stderr


def test_a_command_that_is_not_installed(monkeypatch):
    from opentrn.errors import UnimplementedError

    monkeypatch.setitem(cli.COMMANDS, "imaginary", "…")
    with pytest.raises(UnimplementedError, match="no 'imaginary' command"):
        cli.load_command("imaginary")


def test_a_missing_module_is_named(monkeypatch, tmp_path):
    (tmp_path / "needs_command.py").write_text("import a_package_nobody_has\n")
    import opentrn.cli

    monkeypatch.setattr(opentrn.cli, "__path__", [*opentrn.cli.__path__, str(tmp_path)])
    monkeypatch.setitem(cli.COMMANDS, "needs", "…")
    with pytest.raises(
        ConfigurationError, match="'opentrn needs' needs the Python module 'a_package_nobody_has'"
    ):
        cli.load_command("needs")


@pytest.mark.parametrize("option", ["--dry", "--as", "--from-cuda"])
def test_a_part_that_is_not_installed(monkeypatch, option):
    from opentrn.cli import run_command
    from opentrn.errors import UnimplementedError

    monkeypatch.setattr(run_command, "_PARTS", {option: "opentrn.no_such_part"})
    with pytest.raises(UnimplementedError, match=f"has no {option}"):
        run_command._part(option)


@pytest.mark.parametrize(
    ("command", "module"), [("quality ops", "expecttest"), ("predict gpt2", "transformers")]
)
def test_a_missing_extra_is_named(command, module):
    code = f"""
import sys
sys.modules[{module!r}] = None
from opentrn.cli.main import main
main({command.split()!r})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and f"needs the Python package '{module}'" in done.stderr
    assert "pip install 'opentrn[" in done.stderr and "Traceback" not in done.stderr


def test_version_json(tmp_path):
    versions = json.loads(run("version", "--json", directory=tmp_path).stdout)
    assert set(versions) == {"opentrn", "torch", "python", "platform"}


def test_schema_json(tmp_path):
    tables = json.loads(run("trace", "schema", "--json", directory=tmp_path).stdout)
    assert "operators" in tables and tables["steps"][0]["name"] == "index"


@pytest.mark.parametrize(
    "before, after",
    [
        (["-m", "mod", "--json", "x"], ["-m", "mod", "--", "--json", "x"]),
        (["--instance", "a", "-m", "mod", "-m", "b"], ["--instance", "a", "-m", "mod", "--", "-m", "b"]),
        (["--json", "s.py", "-m", "b"], ["--json", "s.py", "-m", "b"]),
        (["--instance", "-m", "s.py"], ["--instance", "-m", "s.py"]),
        (["--", "-m"], ["--", "-m"]),
    ],
)
def test_everything_after_the_program_is_its_own(before, after):
    assert _end_options_after_module(before, {"--instance", "-m"}) == after
