"""Large models that are built on the host, and weight files: neither is filled nor read in a dry run."""

from __future__ import annotations

import copy
import os
import resource
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import opentrn
from opentrn.device import _C, dry


def test_sixty_gigabytes_built_on_the_host_by_an_unchanged_script():
    script = textwrap.dedent("""
        import re, torch, opentrn
        from torch import nn
        from opentrn.device import _C
        with opentrn.dry_run():
            model = nn.Sequential(*[nn.Linear(32768, 32768, bias=False) for _ in range(15)])
            torch.nn.init.normal_(model[0].weight)
            torch.nn.init.trunc_normal_(model[1].weight)
            torch.nn.init.xavier_uniform_(model[2].weight)
            with torch.no_grad():
                model[3].weight.mul_(0.1)
                model[4].weight.copy_(torch.randn(32768, 32768) * 0.02)
            model = model.to(torch.bfloat16)
            torch.neuron.init()
            _C.set_memory_fraction(0, 10.0)
            model.to("neuron")
            # Not getrusage's ru_maxrss: a process inherits that of the one that started it.
            peak_kib = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
            print(torch.neuron.memory_allocated(), peak_kib)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    allocated, resident_kib = map(int, done.stdout.split())
    assert allocated == 15 * 32768 * 32768 * 2
    assert resident_kib < 2 << 20


def test_small_and_integer_host_tensors_are_real():
    with opentrn.dry_run():
        assert torch.randn(1000).std() > 0.5
        assert torch.arange(1 << 20).sum().item() == sum(range(1 << 20))
        data = torch.from_numpy(__import__("numpy").ones(1 << 20, dtype="float32"))
        assert data[5:10].sum().item() == 5.0
        assert (data > 0.5).all()


def test_what_was_skipped_is_in_the_ledger():
    with opentrn.dry_run():
        nn.Linear(1024, 1024)
        entries = dry.ledger()
    assert any("host tensor" in entry.rule and "test_dry_host.py" in entry.frame for entry in entries), (
        entries
    )


def test_deepcopy_keeps_parameters():
    with opentrn.dry_run():
        layer = nn.Linear(1024, 1024)
        other = copy.deepcopy(layer)
    assert isinstance(other.weight, nn.Parameter) and other.weight.data_ptr() != layer.weight.data_ptr()


def test_training_on_the_host_goes_on():
    with opentrn.dry_run():
        weight = torch.randn(512, 1024, requires_grad=True)
        (weight * 2).sum().backward()
    assert (weight.grad == 2).all()


@pytest.fixture
def weights(tmp_path):
    """512 MiB of weights in a sparse file each way, so that reading them would show."""
    return {"weight": torch.zeros(128 << 20, dtype=torch.float32)}, tmp_path


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_safetensors_and_torch_load_read_no_weights(weights):
    from safetensors import torch as files

    state, folder = weights
    files.save_file(state, str(folder / "a.safetensors"))
    torch.save(state, folder / "a.pt")
    del state["weight"]
    before = resident_bytes()
    with opentrn.dry_run():
        mapped = files.load_file(str(folder / "a.safetensors"))["weight"].to(torch.bfloat16).to("neuron")
        loaded = torch.load(folder / "a.pt")["weight"].to("neuron")
        assert not _C.is_backed(mapped) and not _C.is_backed(loaded)
        assert resident_bytes() - before < 128 << 20


def test_distributed_checkpoint_reads_no_weights(weights):
    import torch.distributed.checkpoint as checkpoint

    state, folder = weights
    checkpoint.save(state, checkpoint_id=folder / "dcp", no_dist=True)
    with opentrn.dry_run():
        target = {"weight": torch.empty(128 << 20, device="neuron")}
        transferred = _C.totals(0)["device_busy_ns"]
        checkpoint.load(target, checkpoint_id=folder / "dcp", no_dist=True)
        assert _C.totals(0)["device_busy_ns"] > transferred, "a load is a transfer"
        assert any(entry.rule.startswith("large tensor of the checkpoint") for entry in dry.ledger())


def test_from_pretrained_reads_no_weights(tmp_path):
    import transformers

    config = transformers.AutoConfig.for_model(
        "qwen3",
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=4,
        vocab_size=32000,
        num_attention_heads=8,
        num_key_value_heads=8,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    size = sum(parameter.nbytes for parameter in model.parameters())
    model.save_pretrained(tmp_path)
    del model
    before = resource.getrusage(resource.RUSAGE_SELF).ru_inblock
    with opentrn.dry_run():
        loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).to("neuron")
        assert sum(parameter.nbytes for parameter in loaded.parameters()) == size
        assert not _C.is_backed(loaded.lm_head.weight)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_inblock - before) * 512 < size
