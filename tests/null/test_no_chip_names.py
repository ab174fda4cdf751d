"""Policy: the hardware is data. Code outside `chips/` never asks which chip it runs on.

Docstrings and comments may name chips; string literals, identifiers and C++ code may not. A file that must (a
default, a name users type) is listed below with the names it may use.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CHIP_NAME = re.compile(
    r"\b(?:trn[1-9][nu]?|inf[12]|trainium[1-9]|inferentia[1-9]?|[ah][12]00|h800|g?b[23]00|mi3\d\d[xa]|tpu[-_]?v?\d\w?)\b",
    re.IGNORECASE,
)

# path -> names (lower case) that this file may use in code.
ALLOWED = {
    "src/opentrn/settings.py": {"trn2"},  # the default instance
    "src/opentrn/cli/run_command.py": {"trn2"},  # an example in the help text
    "src/opentrn/cli/predict_command.py": {"trn2"},  # an example in the help text
    "src/opentrn/predict/plan.py": {"trn2"},  # the default instance
    # Targets that users of kernels and kernel suites type.
    "src/opentrn/cli/kernel_command.py": {"trn1", "trn2", "trn3"},
    "src/opentrn/quality/nki_suite.py": {"trn2"},
    "src/opentrn/nki/suites/shims.py": {"trn2"},
    # Compiler targets are names that kernel authors type, in variables and in calls.
    "src/opentrn/nki/target.py": {"trn1", "trn1n", "trn2", "trn2n", "trn2u", "trn3", "trn3u", "inf2"},
    "src/opentrn/nki/engine_hook.py": {"trn1", "trn1n", "trn2", "trn2n", "trn3", "inf2"},
    # Tables and texts that repeat chip files, to be read from them.
    "src/opentrn/nki/tile_sizes.py": {"trn1", "trn2", "trn3", "inf2"},
    "csrc/core/table.cpp": {"trn1", "trn2", "trn3", "inf2"},
}


def python_names(path: Path) -> Iterator[tuple[int, str]]:
    """(line, name) of chip names in identifiers and in strings that are not docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.add(id(node.value))
    for node in ast.walk(tree):
        texts: list[str] = []
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            texts.append(node.value)
        elif isinstance(node, ast.Name):
            texts.append(node.id)
        elif isinstance(node, ast.Attribute):
            texts.append(node.attr)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            texts.append(node.name)
        for text in texts:
            for found in CHIP_NAME.findall(text.replace("_", " ")):
                yield node.lineno, found.lower()


def cpp_names(path: Path) -> Iterator[tuple[int, str]]:
    """(line, name) of chip names outside comments."""
    text = path.read_text(encoding="utf-8")
    blank = re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.DOTALL)
    for number, line in enumerate(blank.splitlines(), 1):
        for found in CHIP_NAME.findall(line.replace("_", " ")):
            yield number, found.lower()


def offences(root: Path) -> list[str]:
    found = []
    for path in sorted([*root.glob("src/opentrn/**/*.py"), *root.glob("csrc/**/*")]):
        relative = path.relative_to(root).as_posix()
        if relative.startswith("src/opentrn/chips/"):
            continue
        if path.suffix == ".py":
            names = python_names(path)
        elif path.suffix in (".h", ".cpp", ".cc", ".hpp"):
            names = cpp_names(path)
        else:
            continue
        allowed = ALLOWED.get(relative, set())
        found += [f"{relative}:{line}: {name}" for line, name in names if name not in allowed]
    return found


def test_no_chip_is_named_outside_chips() -> None:
    assert offences(ROOT) == []


@pytest.mark.parametrize(
    ("name", "code", "expected"),
    [
        ("src/opentrn/a.py", 'if chip == "trn2":\n    pass\n', ["src/opentrn/a.py:1: trn2"]),
        ("src/opentrn/a.py", 'x = "p5"\ny = is_h100()\n', ["src/opentrn/a.py:2: h100"]),
        ("src/opentrn/a.py", '"""Runs on trn2."""\n# trn3 too\n', []),
        ("src/opentrn/chips/a.py", 'x = "trn2"\n', []),
        ("csrc/a.cpp", "int x; // trn2\n/* trn3\n*/ bool y = is_trn1n;\n", ["csrc/a.cpp:3: trn1n"]),
    ],
)
def test_the_policy_sees_what_it_should(tmp_path: Path, name: str, code: str, expected: list[str]) -> None:
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(code)
    assert offences(tmp_path) == expected
