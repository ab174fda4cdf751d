"""Import directions of the design: an arrow never points up. Read from the sources, so that nothing has to
be imported."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import opentrn

SOURCE = Path(opentrn.__file__).parent
REPOSITORY = SOURCE.parents[1]

# What a package may import of the others, itself aside. `errors` and `settings` are leaves that everyone
# may import.
ALLOWED: dict[str, set[str]] = {
    "chips": set(),
    "core": {"chips"},
    "compiler": {"chips", "core"},
    "nki": {"chips", "core"},
    "device": {"chips", "core", "compiler", "nki", "compat"},
    "compat": {"chips"},
    "timeline": {"chips", "core", "compiler", "nki", "device"},
    "distributed": {"chips", "core", "compiler", "nki", "device", "timeline", "compat"},
    "trace": {"chips", "core", "compiler", "nki", "device", "timeline", "distributed"},
}
ABOVE = {"explorer", "quality", "predict", "cluster", "cost", "port", "cli"}
LEAVES = {"errors", "settings", "version"}
TORCH_FREE = ("chips", "core")


def _imports(path: Path) -> list[tuple[int, str]]:
    """(line, module) of every import in a file, those inside functions too; type-checking blocks aside."""
    package = ".".join(("opentrn", *path.relative_to(SOURCE).parent.parts))
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = (
                ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            )
            module = ".".join(part for part in (base, node.module) if part)
            found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return found


def _layer(module: str) -> str | None:
    """The package of ours that a module name belongs to."""
    parts = module.split(".")
    return parts[1] if parts[0] == "opentrn" and len(parts) > 1 else None


def _files(layer: str) -> list[Path]:
    return sorted((SOURCE / layer).rglob("*.py"))


def _violations(layer: str, allowed: set[str]) -> list[str]:
    packages = {path.name for path in SOURCE.iterdir() if path.is_dir() and not path.name.startswith("__")}
    return [
        f"{path.relative_to(SOURCE)}:{line} imports {module}"
        for path in _files(layer)
        for line, module in _imports(path)
        if (other := _layer(module)) in packages and other not in allowed | {layer}
    ]


@pytest.mark.parametrize("layer", [name for name in ALLOWED if (SOURCE / name).is_dir()])
def test_no_arrow_points_up(layer: str) -> None:
    assert _violations(layer, ALLOWED[layer]) == []


def test_every_package_has_a_place() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages <= set(ALLOWED) | ABOVE


def test_leaves_import_nothing_of_ours_but_each_other() -> None:
    for name in LEAVES:
        path = SOURCE / f"{name}.py"
        if path.exists():
            assert {_layer(module) for _, module in _imports(path)} <= {None, *LEAVES}, name


@pytest.mark.parametrize("layer", TORCH_FREE)
def test_chips_and_core_do_not_know_torch(layer: str) -> None:
    uses = [
        f"{path.name}:{line}"
        for path in _files(layer)
        for line, name in _imports(path)
        if name.split(".")[0] == "torch"
    ]
    assert uses == []


def test_the_virtual_core_library_does_not_include_torch() -> None:
    sources = [
        path for path in (REPOSITORY / "csrc" / "core").rglob("*") if path.suffix in (".h", ".cpp", ".inc")
    ]
    forbidden = ("<torch/", "<ATen/", "<c10/", '"device/', '"timeline/')
    assert [
        path.name for path in sources if any(word in path.read_text(encoding="utf-8") for word in forbidden)
    ] == []


def test_the_timeline_library_does_not_include_the_device() -> None:
    sources = [
        path
        for path in (REPOSITORY / "csrc" / "timeline").rglob("*")
        if path.suffix in (".h", ".cpp", ".inc")
    ]
    forbidden = ("<torch/", "<ATen/", "<c10/", '"device/')
    assert [
        path.name for path in sources if any(word in path.read_text(encoding="utf-8") for word in forbidden)
    ] == []


def test_the_check_finds_an_arrow_that_points_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("core", "cli"):
        (tmp_path / name).mkdir()
    (tmp_path / "core" / "bad.py").write_text("def f():\n    from ..cli import main\n")
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    assert _violations("core", ALLOWED["core"]) == ["core/bad.py:2 imports opentrn.cli.main"]
