"""Writes the generated parts of docs/. Tests hold each of them in step with the code (`make docs` mends)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def environment_page() -> str:
    """docs/environment.md as text."""
    from opentrn.settings import VARIABLES

    rows = [
        f"| `{variable.name}` | {f'`{variable.default}`' if variable.default else 'unset'} | "
        f"{', '.join(f'`{choice}`' for choice in variable.choices if choice) or 'any'} | {variable.meaning} |"
        for variable in VARIABLES
    ]
    return "\n".join(
        [
            "# Environment variables",
            "",
            "Generated from `src/opentrn/settings.py` by `make docs`. "
            "Variables that do not begin with OPENTRN_ are the",
            "real stack's, with their documented meaning.",
            "",
            "| variable | default | values | meaning |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    from opentrn.core import reference
    from opentrn.quality.kernels.page import page
    from opentrn.trace import schema

    reference.TARGET.write_text(reference.document(), encoding="utf-8")
    (ROOT / "docs/nki-library.md").write_text(page(ROOT / "docs/results"), encoding="utf-8")
    (ROOT / "docs/environment.md").write_text(environment_page(), encoding="utf-8")
    (ROOT / "docs/trace-schema.md").write_text(schema.documentation(), encoding="utf-8")
    opentrn = Path(sys.executable).parent / "opentrn"
    subprocess.run(
        [opentrn, "quality", "ops", "--update-docs", str(ROOT / "docs/unsupported.md")], check=True, cwd=ROOT
    )


if __name__ == "__main__":
    main()
