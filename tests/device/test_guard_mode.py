"""OPENTRN_GUARD=1: device memory cannot be touched by the host outside an operator."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from device_helpers import run_script

GUARDED = {"OPENTRN_GUARD": "1"}
HERE = Path(__file__).parent
# PyTorch's legacy writer, pickle's too, reads the device's pointer through a tensor of its own: what guard
# mode catches.
LEGACY = "not legacy_format and not pickle"
CAPABILITIES = [
    "test_device_views.py",
    "test_storage.py",
    "test_copy.py",
    "test_factories.py",
    "test_sdpa.py",
    "test_serialization.py",
]


@pytest.mark.parametrize("touch", ["read", "write"])
def test_a_stray_access_crashes(touch: str) -> None:
    action = "pointer[0]" if touch == "read" else "pointer.__setitem__(0, 1.0)"
    code = f"""
    import ctypes, torch
    tensor = torch.ones(4, device="neuron")
    pointer = ctypes.cast(tensor.data_ptr(), ctypes.POINTER(ctypes.c_float))
    print(tensor.sum().item(), flush=True)
    {action}
    print("not reached")
    """
    guarded = run_script(code, environment=GUARDED)
    assert guarded.stdout == "4.0\n" and guarded.returncode in (-signal.SIGSEGV, -signal.SIGBUS)


def test_without_guard_mode_the_same_access_is_silent() -> None:
    code = """
    import ctypes, torch
    tensor = torch.ones(4, device="neuron")
    print(ctypes.cast(tensor.data_ptr(), ctypes.POINTER(ctypes.c_float))[0])
    """
    assert run_script(code, environment={"OPENTRN_GUARD": "0"}).stdout == "1.0\n"


def test_capabilities_under_guard_mode() -> None:
    """No kernel, copy or serialiser touches device memory behind the device's back."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-k",
            LEGACY,
            *(str(HERE / name) for name in CAPABILITIES),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **GUARDED},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
