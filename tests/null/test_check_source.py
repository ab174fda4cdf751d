"""`opentrn check` without a device: the data files of the real stack, and what source text alone says."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from opentrn.errors import ConfigurationError
from opentrn.port.behaviours import STATUSES, Release, release, releases
from opentrn.port.packages import replacements
from opentrn.port.static_check import check_source


@pytest.fixture(params=releases())
def stack(request: pytest.FixtureRequest) -> Release:
    return release(request.param)


def test_every_behaviour_names_its_source_and_what_to_do_instead(stack: Release) -> None:
    for behaviour in stack.behaviours:
        assert behaviour.source.startswith("https://"), behaviour.name
        assert behaviour.instead and behaviour.text and behaviour.status in STATUSES, behaviour.name
        if behaviour.status == "documented":
            assert "readthedocs" in behaviour.source, f"{behaviour.name}: documented where?"


def test_behaviours_name_operators_and_dtypes_that_torch_has(stack: Release) -> None:
    import torch

    bases = {schema.name.partition("::")[2].rstrip("_") for schema in torch._C._jit_get_all_schemas()}
    collectives = {"all_reduce"}
    for behaviour in stack.behaviours:
        assert {o.rstrip("_") for o in behaviour.operators} <= bases | collectives, behaviour.name
        for dtype in behaviour.dtypes:
            assert isinstance(getattr(torch, dtype), torch.dtype), behaviour.name


def test_unknown_release_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"torchneuron-2\.33"):
        release("torchneuron-1.0")


def findings(source: str, tmp_path: Path, **options: bool) -> dict[str, list[str]]:
    """Behaviour → the lines where it was found."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(source))
    result: dict[str, list[str]] = {}
    for finding in check_source(path, release("torchneuron-2.33"), **options):
        result.setdefault(finding.behaviour.name, []).append(finding.where.rpartition(":")[2])
    return result


CASES = [
    ("torch.compile(m, dynamic=True)", "compile-dynamic"),
    ("m.compile(backend='neuron', dynamic=True)", "compile-dynamic"),
    ("torch.compile(m, mode='max-autotune')", "compile-mode"),
    ("torch.compile(m, options={'triton.cudagraphs': True})", "compile-options"),
    ("torch.compile(m, backend='inductor')", "compile-inductor"),
    ("x = x.double()", "float64"),
    ("torch.zeros(3, dtype=torch.float64)", "float64"),
    ("torch.zeros(3, device='cuda')", "cuda-device"),
    ("device = f'cuda:{rank}'", "cuda-device"),
    ("torch.cuda.synchronize()", "cuda-device"),
    ("model.cuda()", "cuda-device"),
    ("g = torch.cuda.CUDAGraph()", "cuda-graphs"),
    ("dist.init_process_group('nccl')", "nccl"),
    ("dist.init_process_group(backend='neuron', device_id=device)", "process-group-device"),
    ("from flash_attn import flash_attn_func", "gpu-package"),
    ("import triton.language as tl", "gpu-package"),
    ("CUDAExtension('k', ['k.cu'])", "cuda-extension"),
    ("load_inline(name='k', cuda_sources=source)", "cuda-extension"),
    ("Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=3))", "deepspeed"),
    ("TrainingArguments(output_dir='o', fsdp='full_shard')", "accelerate-fsdp"),
    ("Seq2SeqTrainingArguments(deepspeed='ds.json')", "deepspeed"),
    ("torch.ops.symm_mem.all_to_all_vdev_2d(a, b)", "all-to-all-vdev"),
]


@pytest.mark.parametrize(("line", "behaviour"), CASES, ids=[line for line, _ in CASES])
def test_source_is_judged_at_its_line(line: str, behaviour: str, tmp_path: Path) -> None:
    assert findings(f"import torch\n\n{line}\n", tmp_path).get(behaviour) == ["3"]


def test_what_the_real_stack_takes_is_not_reported(tmp_path: Path) -> None:
    clean = """
        import torch
        model = torch.compile(model, backend="neuron", fullgraph=True, dynamic=False, options=None)
        model = torch.compile(model, mode="default")
        x = torch.zeros(3, device="neuron", dtype=torch.bfloat16)
        dist.init_process_group("neuron")
        TrainingArguments(output_dir="o", fsdp="", deepspeed=None)
        print("training on cuda was slow")
        import re; re.compile("x")
    """
    assert findings(clean, tmp_path) == {}


def test_from_cuda_leaves_names_out_but_not_what_stays_refused(tmp_path: Path) -> None:
    source = "torch.zeros(3).cuda().double()\ndist.init_process_group('nccl')\n"
    assert set(findings(source, tmp_path, cuda_is_redirected=True)) == {"float64"}


def test_a_file_that_does_not_parse_is_left_to_python(tmp_path: Path) -> None:
    assert findings("def broken(:\n", tmp_path) == {}


def test_every_gpu_package_says_what_to_use() -> None:
    table = replacements()
    assert {"triton", "flash_attn", "apex", "bitsandbytes", "xformers", "pynvml", "cupy"} <= set(table)
    assert all(len(use) > 3 for use in table.values())
