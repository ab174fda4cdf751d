"""The generated reference is current and covers every instruction."""

from __future__ import annotations

from opentrn.core.reference import BOOKKEEPING, TARGET, document
from opentrn.core.table import instructions


def test_the_reference_is_generated_from_the_table() -> None:
    assert TARGET.read_text() == document(), "run: python -m opentrn.core.reference --write"


def test_every_instruction_is_described() -> None:
    text = document()
    for row in instructions().values():
        assert row.name in BOOKKEEPING or f"## {row.name}\n" in text
        assert row.cost in ("documented", "fitted", "assumed")
        assert row.source
