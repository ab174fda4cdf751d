"""What the C++ extension offers; src/opentrn/device and docs/layout.md say what for."""

from typing import Any

def __getattr__(name: str) -> Any: ...
