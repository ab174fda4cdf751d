"""`import torch` brings the device, and stays silent and harmless where it must not."""

from __future__ import annotations

import os
from pathlib import Path

from device_helpers import run_script, succeeds


def test_the_real_package_wins(tmp_path: Path) -> None:
    (tmp_path / "torch_neuronx").mkdir()
    (tmp_path / "torch_neuronx" / "__init__.py").write_text("")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    done = run_script("import torch\nprint(hasattr(torch, 'neuron'))", environment={"PYTHONPATH": path})
    assert (done.returncode, done.stdout) == (0, "False\n")
    assert "torch_neuronx is installed" in done.stderr and "what to do" in done.stderr


def test_another_torch_is_named_and_left_working() -> None:
    code = """
    import torch
    torch.__version__ = "2.14.0"
    import opentrn.device.autoload as autoload
    autoload.autoload()
    print(hasattr(torch, "neuron"), torch.ones(2).sum().item())
    """
    done = run_script(code, environment={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert (done.returncode, done.stdout) == (0, "False 2.0\n")
    assert (
        "built for torch 2.13, and torch 2.14.0 is installed" in done.stderr and "what to do" in done.stderr
    )


def test_loading_by_hand_and_twice() -> None:
    code = """
    import torch
    assert not hasattr(torch, "neuron")
    import torch.nn.attention.flex_attention  # imported before the patches
    import opentrn.device.autoload as autoload
    autoload.autoload(); autoload.autoload()
    from torch.nn.attention.flex_attention import flex_attention
    q = torch.ones(1, 1, 4, 16, device="neuron")
    print(flex_attention(q, q, q).sum().item(), torch.neuron.device_count())
    """
    assert succeeds(code, environment={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}) == "64.0 64\n"


def test_import_is_light_and_silent() -> None:
    code = """
    import sys, torch
    heavy = {"pandas", "pyarrow", "pydantic", "typer", "rich", "transformers", "opentrn.trace", "opentrn.cli"}
    print(sorted(heavy & set(sys.modules)), torch.neuron.is_initialized())
    """
    done = run_script(code)
    assert (done.stdout, done.stderr) == ("[] False\n", "")


def test_host_programs_are_left_alone() -> None:
    code = """
    import os, threading, torch
    torch.ones(1, requires_grad=True).backward()
    threads = threading.active_count(), len(os.listdir("/proc/self/task"))
    child = os.fork()
    if child == 0:
        leaf = torch.ones(2, requires_grad=True)
        (leaf * 3).sum().backward()
        os._exit(0 if leaf.grad.sum().item() == 6 else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), torch.neuron.is_initialized(), threads[1] < 32)
    """
    assert succeeds(code) == "0 False True\n"
