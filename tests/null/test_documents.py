"""Generated pages are in step with the code, and the pages a newcomer reads name files that exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))


def test_environment_page_is_generated():
    import write_docs

    page = (ROOT / "docs/environment.md").read_text(encoding="utf-8")
    assert page == write_docs.environment_page(), "make docs"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/layout.md"])
def test_links_lead_somewhere(page):
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{page} links to {target}"


def test_layout_names_files_that_exist():
    text = (ROOT / "docs/layout.md").read_text(encoding="utf-8")
    for name in re.findall(r"`((?:csrc|src|tests)/[\w/.]+)`", text):
        assert (ROOT / name).exists(), name


def test_every_variable_read_is_in_the_table():
    from opentrn.settings import VARIABLES

    known = {variable.name for variable in VARIABLES}
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"environ(?:\.get\(|\[)\"((?:OPENTRN|NEURON|NKI)_[A-Z_]+)\"", text):
            assert name in known, f"{path.name} reads {name}"
