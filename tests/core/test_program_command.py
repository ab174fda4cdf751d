"""`opentrn program`: print, verify, time, diff, kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from opentrn.cli.program_command import app
from opentrn.core import Program
from opentrn.errors import ConfigurationError, CorruptFileError

SYMBOLS = ["-s", "M=300", "-s", "N=600", "-s", "K=256"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code in (0, 1), result.output
    return result.output


def test_print_writes_text_that_parses_and_bytes_that_load(tmp_path: Path) -> None:
    text = run("print", "lib:matmul")
    file, binary = tmp_path / "p.txt", tmp_path / "p.otrn"
    file.write_text(text)
    run("print", str(file), "-o", str(binary))
    assert Program.from_bytes(binary.read_bytes()).text() == text
    assert run("diff", str(file), str(binary)).strip() == "equal"


def test_verify_and_time() -> None:
    assert "verified" in run("verify", "lib:matmul", *SYMBOLS)
    output = run("time", "lib:matmul", *SYMBOLS)
    assert "simulated" in output and "bound by" in output
    report = json.loads(run("time", "lib:matmul", *SYMBOLS, "--json"))
    assert report["kind"] == "simulated" and report["flops"] == 2 * 300 * 600 * 256
    assert "critical path" in run("time", "lib:softmax", "-s", "M=128", "-s", "N=64", "--path")


def test_diff_shows_what_changed() -> None:
    output = run("diff", "lib:softmax", "lib:reduction")
    assert "-program" in output and "+program" in output


def test_bad_arguments(tmp_path: Path) -> None:
    damaged = tmp_path / "bad.otrn"
    damaged.write_bytes(b"OTRNPRG1" + bytes(40))
    for arguments, error in (
        (["verify", str(damaged)], CorruptFileError),
        (["verify", "lib:matmul"], ConfigurationError),
        (["time", "no-such-file"], ConfigurationError),
        (["time", "lib:nothing"], ConfigurationError),
        (["time", "lib:softmax", "-s", "M=x"], ConfigurationError),
    ):
        with pytest.raises(error):
            run(*arguments)
