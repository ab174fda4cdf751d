"""`--from-cuda`: what a CUDA script asks for. There is no way back, so each group has its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PRELUDE = """
import torch
from torch import nn
from opentrn.port.from_cuda import install
R = install()
"""


def run(code: str, folder: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code under the shim; asserts in it are the test."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PRELUDE + code],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def holds(code: str, folder: Path | None = None, **environment: str) -> str:
    done = run(code, folder, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_way_to_name_a_device() -> None:
    holds("""
import numpy as np
cuda0, cuda1 = torch.device("cuda", 0), torch.device("cuda:1")
made = [
    torch.zeros(3, device="cuda"), torch.empty(3, device=cuda0), torch.tensor([1, 2], device="cuda:0"),
    torch.as_tensor([1.0], device=0), torch.arange(4, device=cuda0), torch.full((2,), 1.0, device="cuda"),
    torch.randn(2, device="cuda"), torch.randint(3, (2,), device="cuda"),
    torch.randperm(4, device="cuda"),
    torch.linspace(0, 1, 3, device="cuda"), torch.eye(2, device="cuda"),
    torch.tril_indices(2, 2, device="cuda"),
    torch.ones(2).to("cuda"), torch.ones(2).to(cuda0, torch.float16), torch.ones(2).to(0),
    torch.ones(2).cuda(),
    torch.ones(2).cuda(0), torch.from_numpy(np.ones(2)).cuda(non_blocking=True),
    torch.ones(2).new_zeros(2, device="cuda"),
    torch.zeros_like(torch.ones(2), device="cuda"), torch.ones(2, device="cuda").new_tensor([1.0]),
    torch.empty_strided((2, 2), (2, 1), device="cuda"), torch.asarray([1.0], device="cuda"),
    torch.randn(2, device="cuda", generator=torch.Generator("cuda").manual_seed(1)),
    nn.Linear(2, 2).cuda().weight, nn.Linear(2, 2).to("cuda").weight, nn.Linear(2, 2, device="cuda").weight,
    nn.Linear(2, 2, device="meta").to_empty(device="cuda").weight, torch.cuda.FloatTensor(2, 2),
    torch.ones(2).type("torch.cuda.HalfTensor"), torch.ones(2).to(torch.ones(1, device="cuda")),
]
for i, x in enumerate(made):
    assert x.device == cuda0 and x.device.type == "cuda" and str(x.device) == "cuda:0" and x.is_cuda, i
    assert torch._C.TensorBase.device.__get__(x).type == "neuron", i
assert torch.zeros(2, device=cuda1).device == cuda1
x = torch.zeros(3, device="cuda")
assert x.to("cuda") is x and x.to("cuda:0") is x and x.cuda() is x and torch.as_tensor(x, device="cuda") is x
assert x.to("cuda:1").device.index == 1 and not x.cpu().is_cuda
torch.cuda.set_device(1)
assert torch.zeros(1, device="cuda").device == cuda1 and torch.ones(1).cuda().device == cuda1
with torch.cuda.device(0):
    assert torch.ones(1).cuda().device == cuda0
with torch.device("cuda:0"):
    assert nn.Linear(2, 2).weight.device == cuda0
torch.set_default_device("cuda:0")
assert torch.ones(1).is_cuda and torch.get_default_device() == cuda0
torch.set_default_device(None)
torch.set_default_tensor_type(torch.cuda.HalfTensor)
assert torch.ones(1).type() == "torch.cuda.HalfTensor"
torch.set_default_tensor_type(torch.FloatTensor)
assert isinstance(x, torch.cuda.FloatTensor) and not isinstance(x.cpu(), torch.cuda.FloatTensor)
""")


def test_libraries_see_the_device_as_it_is() -> None:
    """PyTorch's own Python compares devices with its list, where cuda means CUDA libraries."""
    holds("""
x = torch.ones(2, device="cuda")
probe = {"__name__": "torch.somewhere", "x": x, "torch": torch}
exec("seen = x.device.type, x.is_cuda, torch.cuda.is_available()", probe)
assert probe["seen"] == ("neuron", False, False), probe["seen"]
assert (x.device.type, x.is_cuda, torch.cuda.is_available()) == ("cuda", True, True)
""")


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 1),
        ({"CUDA_VISIBLE_DEVICES": "0,3"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"LOCAL_WORLD_SIZE": "4"}, 4),
    ],
    ids=["unset", "two", "none", "torchrun"],
)
def test_device_count(environment: dict[str, str], count: int) -> None:
    holds(
        f"""
assert torch.cuda.device_count() == {count}
assert torch.cuda.is_available() == {count > 0}
""",
        **environment,
    )


def test_device_count_follows_a_script_that_sets_the_variable_itself() -> None:
    holds("""
import os
os.environ["CUDA_VISIBLE_DEVICES"] = "0,1,2"
assert torch.cuda.device_count() == 3
""")


def test_streams_events_and_memory() -> None:
    holds("""
side = torch.cuda.Stream()
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
a = torch.ones(256, 256, device="cuda")
start.record()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    assert torch.cuda.current_stream() == side and isinstance(torch.cuda.current_stream(), torch.cuda.Stream)
    b = a @ a
torch.cuda.current_stream().wait_stream(side)
b.record_stream(torch.cuda.current_stream())
end.record()
torch.cuda.synchronize()
assert start.elapsed_time(end) > 0 and side.device == torch.device("cuda:0")
assert isinstance(start, torch.cuda.Event)
held = torch.cuda.memory_allocated()
assert held >= 2 * a.nbytes and torch.cuda.max_memory_allocated() >= held
free, total = torch.cuda.mem_get_info()
assert 0 < free < total == torch.cuda.get_device_properties("cuda:0").total_memory
assert torch.cuda.get_device_capability() >= (8, 0) and torch.cuda.is_bf16_supported()
assert "allocated_bytes.all.peak" in torch.cuda.memory_stats() and torch.cuda.memory_summary()
torch.cuda.nvtx.range_push("x"); torch.cuda.nvtx.range_pop(); torch.cuda.cudart().cudaProfilerStart()
torch.cuda.reset_peak_memory_stats(); torch.cuda.empty_cache(); torch.cuda.ipc_collect()
""")


def test_random_state() -> None:
    holds("""
def draw():
    return torch.rand(4, device="cuda")
torch.cuda.manual_seed_all(3); first = draw()
torch.cuda.manual_seed(3); assert torch.equal(first, draw())
state = torch.cuda.get_rng_state(); first = draw()
torch.cuda.set_rng_state(state); assert torch.equal(first, draw())
torch.manual_seed(5); first = draw(); torch.manual_seed(5); assert torch.equal(first, draw())
state = torch.cuda.get_rng_state()
with torch.random.fork_rng(devices=[0]):
    draw()
assert torch.equal(state, torch.cuda.get_rng_state())
g = torch.Generator(device="cuda")
assert isinstance(g, torch.Generator) and isinstance(torch.default_generator, torch.Generator)
""")


def test_mixed_precision() -> None:
    holds("""
a = torch.randn(4, 4, device="cuda", requires_grad=True)
half = torch.amp.autocast(device_type="cuda", dtype=torch.float16)
for context in (torch.autocast("cuda"), torch.cuda.amp.autocast(), half):
    with context:
        assert (a @ a).dtype == torch.float16
        assert torch.is_autocast_enabled() and torch.is_autocast_enabled("cuda")
        assert torch.get_autocast_gpu_dtype() == torch.float16
with torch.autocast("cuda", dtype=torch.bfloat16):
    assert (a @ a).dtype == torch.bfloat16
    with torch.autocast("cuda", enabled=False):
        assert (a @ a).dtype == torch.float32
assert not torch.is_autocast_enabled()

class Product(torch.autograd.Function):
    @staticmethod
    @torch.cuda.amp.custom_fwd(cast_inputs=torch.float32)
    def forward(ctx, x, y):
        assert not torch.is_autocast_enabled() and x.dtype == torch.float32
        ctx.save_for_backward(x, y)
        return x @ y
    @staticmethod
    @torch.cuda.amp.custom_bwd
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g @ y.t(), x.t() @ g

with torch.autocast("cuda"):
    Product.apply(a @ a, a).sum().backward()
for scaler in (torch.amp.GradScaler("cuda"), torch.cuda.amp.GradScaler()):
    assert scaler.is_enabled()
    weight = nn.Parameter(torch.ones(2, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler.scale((weight * 2).sum()).backward(); scaler.unscale_(optimizer)
    scaler.step(optimizer); scaler.update()
    assert weight.tolist() == [-1.0, -1.0]
    weight.grad = torch.full_like(weight, float("inf"))
    before = scaler.get_scale(); scaler.step(optimizer); scaler.update()
    assert scaler.get_scale() == before / 2
""")


def test_graph_capture_changes_nothing_and_replay_is_the_step() -> None:
    holds("""
import copy
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)).cuda(); eager = copy.deepcopy(model)
optimizer, eager_optimizer = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, eager))
x, y = torch.randn(4, 8, device="cuda"), torch.randn(4, 2, device="cuda")

def step(m, o):
    o.zero_grad(set_to_none=True)
    loss = nn.functional.mse_loss(m(x), y); loss.backward(); o.step()
    return loss

step(model, optimizer); step(eager, eager_optimizer)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
before, random = copy.deepcopy(model.state_dict()), torch.cuda.get_rng_state()
with torch.cuda.graph(graph):
    assert torch.cuda.is_current_stream_capturing()
    loss = nn.functional.mse_loss(model(x), y); loss.backward(); optimizer.step()
    noise = torch.rand(4, device="cuda")
assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
assert torch.equal(random, torch.cuda.get_rng_state()) and not torch.cuda.is_current_stream_capturing()
drawn = []
for _ in range(3):
    x.copy_(torch.randn(4, 8)); graph.replay()
    torch.testing.assert_close(loss, step(eager, eager_optimizer)); drawn.append(noise.tolist())
assert drawn[0] != drawn[1], "each replay draws anew"
for mine, theirs in zip(model.parameters(), eager.parameters()):
    torch.testing.assert_close(mine, theirs)
for act in (lambda: torch.ones(1, device="cuda").item(), lambda: torch.ones(2, device="cuda").nonzero()):
    other = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(other):
            act()
        raise AssertionError("a read of the host went through")
    except RuntimeError as error:
        assert "capture" in str(error)
    assert not torch.cuda.is_current_stream_capturing()
try:
    torch.cuda.CUDAGraph().replay()
    raise AssertionError
except RuntimeError as error:
    assert "capture it first" in str(error)
assert torch.cuda.make_graphed_callables(model, (x,)) is model
""")


def test_checkpoints_are_those_of_a_gpu(tmp_path: Path) -> None:
    holds(
        """
torch.save({"a": torch.arange(3.0, device="cuda:1")}, "x.pt")
assert torch.load("x.pt")["a"].device == torch.device("cuda:1")
places = ("cuda:0", torch.device("cuda"), {"cuda:1": "cuda:0"}, lambda storage, place: storage.cuda(0), "cpu")
for where, device in zip(places, ["cuda:0"] * 4 + ["cpu"]):
    loaded = torch.load("x.pt", map_location=where)["a"]
    assert str(loaded.device) == device and loaded.tolist() == [0.0, 1.0, 2.0], where
torch.jit.trace(nn.Linear(2, 2).cuda(), torch.ones(1, 2).cuda()).save("y.pt")
assert torch.jit.load("y.pt", map_location="cuda")(torch.ones(1, 2).cuda()).is_cuda
""",
        tmp_path,
    )
    # The file names cuda: a plain process reads it as any CUDA checkpoint, to the CPU.
    plain = "import torch; print(torch.load('x.pt', map_location='cpu')['a'].tolist())"
    done = subprocess.run(
        [sys.executable, "-c", plain], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "[0.0, 1.0, 2.0]", done.stderr


def test_data_parallel_equals_one_device() -> None:
    holds(
        """
import copy
single = nn.Linear(4, 3).cuda(); wrapped = nn.DataParallel(copy.deepcopy(single))
assert wrapped.device_ids == [0, 1]
x = torch.randn(6, 4).cuda()
torch.testing.assert_close(wrapped(x), single(x))
wrapped(x).square().sum().backward(); single(x).square().sum().backward()
torch.testing.assert_close(wrapped.module.weight.grad, single.weight.grad)
total = torch.cuda.comm.reduce_add([torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1")])
assert total.tolist() == [2.0, 2.0]
""",
        CUDA_VISIBLE_DEVICES="0,1",
    )


def test_compiled_functions_and_profiler_and_loader() -> None:
    out = holds("""
def f(x):
    y = x * 2 if x.is_cuda and x.device.type == "cuda" else x * 3
    return y + torch.arange(x.shape[0], device=x.device) + torch.zeros(x.shape[0], device="cuda")
assert torch.compile(f, mode="max-autotune")(torch.ones(3, device="cuda")).tolist() == [2.0, 3.0, 4.0]
from torch.profiler import ProfilerActivity, profile
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p:
    torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
assert "aten::mm" in p.key_averages().table(sort_by="cuda_time_total")
options = dict(batch_size=2, pin_memory=True, pin_memory_device="cuda")
loader = torch.utils.data.DataLoader(torch.arange(4.0), **options)
assert [batch.cuda(non_blocking=True).sum().item() for batch in loader] == [1.0, 5.0]
assert torch.ones(2).pin_memory("cuda").is_pinned()
torch.backends.cudnn.benchmark = True; torch.backends.cuda.matmul.allow_tf32 = True
with torch.backends.cuda.sdp_kernel(enable_flash=True, enable_math=True, enable_mem_efficient=False):
    q = torch.randn(1, 2, 8, 16, device="cuda"); nn.functional.scaled_dot_product_attention(q, q, q)
print(*R.redirections, sep="\\n")
""")
    assert "torch.compile(backend='inductor')" in out and "torch.profiler" in out


def test_spawned_processes_are_cuda_scripts_too(tmp_path: Path) -> None:
    (tmp_path / "workers.py").write_text(
        "import torch\n"
        "import torch.multiprocessing as mp\n"
        "def work(rank):\n"
        "    torch.cuda.set_device(rank)\n"
        "    print('worker', torch.ones(1).cuda().device, flush=True)\n"
        "if __name__ == '__main__':\n"
        "    mp.spawn(work, nprocs=2)\n"
    )
    out = holds(
        """
import runpy, sys
sys.argv = ["workers.py"]
runpy.run_path("workers.py", run_name="__main__")
""",
        tmp_path,
        PYTHONPATH=str(tmp_path),
    )
    assert sorted(out.splitlines()) == ["worker cuda:0", "worker cuda:1"]


def test_gpu_packages_are_named_and_probing_goes_on() -> None:
    holds("""
import importlib.util
absent = []
for name in ("flash_attn", "apex", "bitsandbytes", "xformers", "cupy"):
    assert importlib.util.find_spec(name) is None
    try:
        __import__(name)
    except ImportError as error:
        absent.append(name)
        assert error.name == name and "use " in str(error) and "\\n" not in str(error)
assert [refusal.name for refusal in R.refusals] == absent
from torch.utils.cpp_extension import CUDAExtension, load_inline
kernel = "__global__ void k() {}"
for act in (lambda: CUDAExtension("k", ["k.cu"]), lambda: load_inline("k", "", cuda_sources=kernel)):
    try:
        act()
        raise AssertionError("built CUDA")
    except RuntimeError as error:
        assert "NKI kernel" in str(error)
try:
    torch.cuda.temperature()
    raise AssertionError
except RuntimeError as error:
    assert "torch.cuda.temperature" in str(error)
""")


def test_redirections_name_the_first_place_and_the_count(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import torch\n"
        "for _ in range(3):\n"
        "    x = torch.zeros(2, device='cuda')\n"
        "    torch.cuda.synchronize()\n"
        "y = torch.zeros(2, device='cuda')\n"
    )
    out = holds(
        """
import runpy
runpy.run_path("script.py")
print(*R.redirections, sep="\\n")
""",
        tmp_path,
    )
    lines = out.splitlines()
    assert "aten::zeros ×4 → neuron" in lines[0] and "script.py:3" in lines[0]
    assert "torch.cuda.synchronize ×3 → torch.neuron.synchronize" in lines[1] and "script.py:4" in lines[1]


def test_every_public_name_of_torch_cuda_is_decided() -> None:
    import torch

    from opentrn.port import cuda_module, cuda_tensors

    decided = {
        *cuda_module.FORWARDED, *cuda_module.RENAMED, *cuda_module.ACCEPTED, *cuda_module.REFUSED,
        *cuda_module.KEPT, *cuda_module.OWN, *cuda_tensors.TENSOR_TYPES,
    }  # fmt: skip
    storages = {name for name in torch.cuda.__all__ if name.endswith("Storage")}
    assert set(torch.cuda.__all__) - decided - storages == set()
