"""The code of docs/guide/kernels.md runs, and each step of its matrix product is right and faster."""

import re
from pathlib import Path

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guide" / "kernels.md"


def test_the_guide_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)
    assert len(blocks) >= 8
    # A file of its own: errors and loops over registers look up source lines.
    script = tmp_path / "guide.py"
    script.write_text("\n\n".join(blocks))
    namespace = {"__name__": "guide", "__file__": str(script)}
    exec(compile(script.read_text(), str(script), "exec"), namespace)
    assert len(namespace["times"]) == 4
    print(namespace["times"])
