"""The C++ unit tests of the core, compiled from source and run: no Python, no torch."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CORE = Path(__file__).parents[2] / "csrc" / "core"
PARTS = ("expression", "table", "dtype", "memory", "tile", "gemm", "team")


@pytest.mark.slow
def test_units(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    assert compiler, "g++ is not on PATH: building opentrn needs it too (Debian: apt-get install g++)"
    binary = tmp_path / "units"
    sources = [str(CORE / "tests" / "units.cpp"), *(str(CORE / f"{part}.cpp") for part in PARTS)]
    subprocess.run(
        [compiler, "-std=c++20", "-O0", f"-I{CORE.parent}", *sources, "-o", str(binary)], check=True
    )
    result = subprocess.run([str(binary)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    assert "0 failed" in result.stdout
