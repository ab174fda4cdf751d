"""Modules that the public suites import and that nobody but the vendor ships: names only, over our own `nki`.

Used by the pytest plugin of `opentrn quality nki`; never installed otherwise.
"""

from __future__ import annotations

import builtins
import enum
import io
import sys
import types
from typing import Any

_PRODUCT_FILE = "/sys/devices/virtual/dmi/id/product_name"


def _module(name: str, **contents: Any) -> types.ModuleType:
    module = sys.modules.get(name)
    if module is None:
        module = types.ModuleType(name)
        sys.modules[name] = module
        parent, _, leaf = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], leaf, module)
    module.__dict__.update(contents)
    return module


def install_simulator() -> None:
    """`nki_cpu_simulator`: the closed package's names for our modules; and `neuron_dtypes`."""
    import nki.builtin
    import nki.compiler
    import nki.dtype
    import nki.isa
    import nki.isa.constants
    import nki.language
    import nki.tensor
    import nki.typing

    import nki
    from opentrn.nki.classic import starfish

    root = _module("nki_cpu_simulator", nki=nki)
    root.__path__ = []  # type: ignore[attr-defined]
    for name, target in {
        "nki": nki,
        "nki.builtin": nki.builtin,
        "nki.compiler": nki.compiler,
        "nki.isa": nki.isa,
        "nki.isa.constants": nki.isa.constants,
        "nki.language": nki.language,
        "nki.language.dtypes": nki.dtype,
        "nki.tensor": nki.tensor,
        "nki.typing": nki.typing,
    }.items():
        sys.modules[f"nki_cpu_simulator.{name}"] = target
    _module("neuron_dtypes", **{k: v for k, v in vars(starfish).items() if not k.startswith("__")})


def install_missing_test_modules() -> None:
    """Files that the public kernel library's tests import and its repository lacks."""

    class LockStatus(enum.Enum):
        ALLOCATED = "allocated"
        DRAINED = "drained"
        FLOCK_TIMEOUT = "timeout"
        DRAINING = "draining"
        NO_CORES = "no cores"
        ERROR = "error"
        RELEASED = "released"

    class LockResult:
        """Result of locking a remote device; simulation locks none."""

    _module("test.utils.perf_analysis_private", analyze_trace=lambda *args, **kwargs: None)
    scripts = _module("test.utils.scripts")
    scripts.__path__ = []  # type: ignore[attr-defined]
    _module("test.utils.scripts.remote_lock_scripts", LockStatus=LockStatus, LockResult=LockResult)


def install_product_name() -> None:
    """Tests read the instance type from a system file; answer with the attached instance."""
    from opentrn.chips.machine import machine

    original = builtins.open

    def opened(file: Any, *args: Any, **kwargs: Any) -> Any:
        if file == _PRODUCT_FILE:
            return io.StringIO(machine().name + "\n")
        return original(file, *args, **kwargs)

    builtins.open = opened  # type: ignore[assignment]
