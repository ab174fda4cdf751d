"""What `import torch` runs through the `torch.backends` entry point: registers the device `neuron`.

With the real torch-neuronx installed OpenTRN stays out of its way: both would register the same device.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

REAL_PACKAGE = "torch_neuronx"
DEVICE_NAME = "neuron"
REQUIRED_TORCH = "2.13"


def autoload() -> None:
    """Registers the device once. Never raises for a bad configuration: that is reported at first use."""
    if importlib.util.find_spec(REAL_PACKAGE) is not None:
        print(
            f"opentrn: {REAL_PACKAGE} is installed, so the device 'neuron' is its; OpenTRN is not loaded\n"
            f"  what to do: uninstall {REAL_PACKAGE} in this environment to use the virtual device",
            file=sys.stderr,
        )
        return
    register()


def register() -> None:
    import torch

    if getattr(torch, DEVICE_NAME, None) is not None:
        return
    found = torch.__version__.split("+")[0]
    if not found.startswith(REQUIRED_TORCH + "."):
        print(
            f"opentrn: built for torch {REQUIRED_TORCH}, and torch {found} is installed; the device is off\n"
            f"  what to do: pip install torch=={REQUIRED_TORCH}.0, or rebuild OpenTRN",
            file=sys.stderr,
        )
        return
    import opentrn
    from opentrn.compat import autograd, install_on_import, kernels

    autograd.start_without_device_threads()
    # Read by autograd's engine at exit: its device threads have nothing to wait for.
    os.environ.setdefault("TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT", "0")
    from opentrn.device import _C, neuron

    torch.utils.rename_privateuse1_backend(DEVICE_NAME)
    torch._register_device_module(DEVICE_NAME, neuron)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    from opentrn import nki
    from opentrn.device import attach

    nki.device_connector = _connect_kernels
    kernels.connector = _connect_graphs
    _C.set_attach_hook(attach.attach_configured)
    if os.environ.get("OPENTRN_GUARD") == "1":
        _C.enable_guard_mode()
    _C.set_library_prefixes([os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__))])
    install_on_import()
    _register_collectives()
    opentrn._device_registered()


def _connect_graphs() -> None:
    """Called when Dynamo is loaded."""
    from opentrn.nki import graph

    graph.connect()


def _connect_kernels() -> Any:
    """Called at the first kernel that meets a tensor of the device: until then nothing of it is loaded."""
    from opentrn.device import programs

    return programs.KernelConnection()


def _register_collectives() -> None:
    """Backend "neuron" of c10d. Its module is imported by name when a group is made: to import it here would
    make every `import torch` pay for it, and point an arrow up.
    """
    import torch.distributed as dist

    if not dist.is_available():
        return

    def create_group(*arguments: Any) -> Any:
        return importlib.import_module("opentrn.distributed.group").create_group(*arguments)

    dist.Backend.register_backend(DEVICE_NAME, create_group, devices=["cpu", DEVICE_NAME])
