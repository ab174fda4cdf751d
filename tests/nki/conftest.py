"""Fixtures of the NKI tests: the oracle package on the path, and a comparison of both engines."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import opentrn.nki  # noqa: F401 - makes `import nki` work
