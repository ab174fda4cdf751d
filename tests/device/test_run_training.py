"""`opentrn run` around real training on the device: what it prints, counts and leaves behind."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import textwrap

import pytest

from opentrn.trace.reader import Trace

# A language model small enough to know every number of it: V tokens, width W, one attention-free layer.
SCRIPT = """
import sys, torch
from torch import nn
V, W, B, T = 50, 64, 4, 16

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(V, W)
        self.up, self.head = nn.Linear(W, 4 * W), nn.Linear(4 * W, V, bias=False)

    def forward(self, index):
        return self.head(torch.relu(self.up(self.embed(index))))

torch.manual_seed(0)
model = Model().to("neuron")
optimizer = torch.optim.AdamW(model.parameters())
data = torch.randint(V, (B, T + 1))
for step in range(5):
    batch = data.to("neuron")
    logits = model(batch[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{loss.item():.6f}")
print(torch.neuron.max_memory_allocated())
EXTRA
"""
PARAMETERS = 50 * 64 + 64 * 256 + 256 + 256 * 50


def opentrn(directory, *arguments, **options):
    command = [sys.executable, "-m", "opentrn.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=directory, timeout=300, **options)


def write(directory, code, name="train.py"):
    (directory / name).write_text(textwrap.dedent(code))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The script under `opentrn run --json`, and by plain Python."""
    directory = tmp_path_factory.mktemp("run")
    write(directory, SCRIPT.replace("EXTRA", ""))
    run = opentrn(directory, "run", "--json", "--report", "report.html", "--frames", "train.py")
    assert run.returncode == 0, run.stderr
    plain = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, cwd=directory)
    *printed, last = run.stdout.splitlines()
    return directory, printed, json.loads(last), plain.stdout.splitlines()


def test_the_output_is_the_scripts_own(done):
    _, printed, _, plain = done
    assert printed == plain
    assert float(printed[0]) > float(printed[4]), "the loss falls"


def test_steps_and_tokens(done):
    _, _, report, _ = done
    assert [step["tokens"] for step in report["steps"]] == [64] * 5
    assert {step["kind"] for step in report["steps"]} == {"optimizer"}
    assert len({step["duration_ns"] for step in report["steps"][2:]}) == 1, "virtual time is deterministic"
    assert report["headline"]["tokens_per_s"] == pytest.approx(64e9 / report["headline"]["duration_ns"])
    assert report["how"]["duration_ns"].startswith("simulated, ") and 0 < report["modelled_share"] < 0.5
    (note,) = [note for note in report["notes"] if note.startswith("modelled, for no program")]
    assert "copy_" in note and "embedding" not in note and "addmm" not in note


def test_peak_memory_is_the_allocators_to_the_byte(done):
    _, printed, report, _ = done
    assert report["peak"]["allocated"] == int(printed[-1])
    assert max(step["peak_allocated"] for step in report["steps"]) == int(printed[-1])
    assert sum(report["peak"]["categories"].values()) == int(printed[-1])


def test_memory_by_category(done):
    """Blocks are rounded up: each is at least its tensors and at most one rounding unit more."""
    _, _, report, _ = done
    held = report["peak"]["categories"]
    assert 4 * PARAMETERS <= held["parameter"] < 4 * PARAMETERS + 4 * 2**18
    assert held["optimizer state"] >= 8 * PARAMETERS
    assert held["activation"] > 0


def test_counted_flops(done):
    """Matrix products of one step: forward, and twice as much backward."""
    directory, _, _, _ = done
    steps = Trace(directory / "opentrn-trace" / "train-1").table("steps").to_pylist()
    rows = Trace(directory / "opentrn-trace" / "train-1").table("operators").to_pylist()
    products = sum(row["flops"] for row in rows if "mm" in row["name"]) // 5
    assert products == 3 * 2 * 64 * (64 * 256 + 256 * 50)
    assert products <= steps[2]["flops"] < 2 * products


def test_the_trace_agrees_with_the_totals(done):
    directory, _, report, _ = done
    trace = Trace(directory / "opentrn-trace" / "train-1")
    assert trace.complete
    rows, totals = trace.table("operators").to_pylist(), trace.table("totals").to_pylist()
    assert len(rows) == sum(total["count"] for total in totals)
    assert sum(r["device_end"] - r["device_start"] for r in rows) == sum(
        total["device_ns"] for total in totals
    )
    last = max(rows, key=lambda row: row["device_end"])
    assert report["steps"][-1]["duration_ns"] <= last["device_end"]
    for stream in {row["stream"] for row in rows}:
        spans = sorted((r["device_start"], r["device_end"]) for r in rows if r["stream"] == stream)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans)), "a stream runs in order"


def test_rows_know_where_they_come_from(done):
    directory, _, _, _ = done
    rows = Trace(directory / "opentrn-trace" / "train-1").table("operators").to_pylist()
    assert {row["phase"] for row in rows} >= {"forward", "backward", "optimizer"}
    assert {row["module"] for row in rows if row["phase"] == "forward"} >= {"embed", "up", "head"}
    assert {row["module"] for row in rows if row["phase"] == "backward"} >= {"embed", "up", "head"}
    assert {row["module"] for row in rows if row["phase"] == "optimizer"} == {None}
    lines = {row["frame"].split()[0] for row in rows if row["frame"] and row["phase"] == "optimizer"}
    assert any(re.search(r"train\.py:\d+$", line) for line in lines), lines
    first = next(row for row in rows if row["module"] == "up")
    assert "float32" in first["dtypes"] and "64" in first["shapes"]


def test_the_page_is_written(done):
    directory, _, _, _ = done
    html = (directory / "report.html").read_text()
    assert "<svg" in html and "train.py" in html


def test_the_report_is_on_standard_error(tmp_path):
    write(tmp_path, SCRIPT.replace("EXTRA", ""))
    run = opentrn(tmp_path, "run", "--no-trace", "train.py")
    assert len(run.stdout.splitlines()) == 6
    for words in ("step time", "tokens/s", "MFU", "HFU", "peak memory", "modelled", "measured", "aten::"):
        assert words in run.stderr
    assert not (tmp_path / "opentrn-trace").exists()


def test_a_script_that_raises(tmp_path):
    write(tmp_path, SCRIPT.replace("EXTRA", "\ndef fail():\n    raise ValueError('bad batch')\nfail()"))
    run = opentrn(tmp_path, "run", "train.py")
    assert run.returncode == 1
    traceback, _, report = run.stderr.partition("╭")
    assert traceback.startswith("Traceback") and "train.py" in traceback and "in fail" in traceback
    assert "opentrn/" not in traceback and "runpy" not in traceback
    assert "raised ValueError: bad batch" in report and "5" in report
    trace = Trace(tmp_path / "opentrn-trace" / "train-1")
    ended = trace.metadata["ended"]
    assert not trace.complete and re.fullmatch(r"raised ValueError: bad batch \(at .*train\.py:\d+\)", ended)
    assert trace.table("steps").num_rows == 5


def test_an_exit_code_is_kept(tmp_path):
    write(tmp_path, "import sys, torch\ntorch.ones(3, device='neuron')\nsys.exit(5)")
    run = opentrn(tmp_path, "run", "--json", "train.py")
    assert run.returncode == 5
    assert json.loads(run.stdout.splitlines()[-1])["exit_code"] == 5


LOOP = SCRIPT.replace("range(5)", "range(10**9)").replace(
    'print(f"{loss.item():.6f}")', "print(step, flush=True)"
)


def start(directory):
    """The endless script under `opentrn run`, after its first steps."""
    write(directory, LOOP.replace("EXTRA", ""))
    process = subprocess.Popen(
        [sys.executable, "-m", "opentrn.cli.main", "run", "train.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=directory,
    )
    for line in process.stdout:
        if int(line) >= 10:
            break
    return process


def test_interrupted(tmp_path):
    process = start(tmp_path)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors and "tokens/s" in errors and "Traceback" not in errors
    trace = Trace(tmp_path / "opentrn-trace" / "train-1")
    assert not trace.complete and trace.metadata["ended"] == "interrupted"
    assert trace.table("steps").num_rows >= 10
    assert trace.table("operators").num_rows == sum(row["count"] for row in trace.table("totals").to_pylist())


def test_killed(tmp_path):
    """What had reached the disk is whole and has a report."""
    process = start(tmp_path)
    directory = tmp_path / "opentrn-trace" / "train-1"
    while not list(directory.glob("operators-*.parquet")):
        assert process.stdout.readline()
    process.kill()
    process.communicate(timeout=60)
    assert Trace(directory).table("operators").num_rows > 0
    shown = opentrn(tmp_path, "trace", "show", str(directory))
    assert shown.returncode == 0, shown.stderr
    assert "killed before its end" in shown.stdout and "aten::" in shown.stdout


def test_a_full_disk_does_not_end_the_run(tmp_path):
    """The script limits the size of files, as a full disk would."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
    write(tmp_path, limit + SCRIPT.replace("EXTRA", ""))
    run = opentrn(tmp_path, "run", "train.py")
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) == 6
    assert run.stderr.count("stopped: File too large;") == 1
    assert "the trace is partial" in run.stderr and "tokens/s" in run.stderr


def test_an_existing_trace_is_kept(tmp_path):
    write(tmp_path, "import torch; torch.ones(3, device='neuron'); print('ran')")
    for _ in range(2):
        assert opentrn(tmp_path, "run", "train.py").returncode == 0
    assert sorted(os.listdir(tmp_path / "opentrn-trace")) == ["train-1", "train-2"]
    run = opentrn(tmp_path, "run", "--trace", "opentrn-trace/train-1", "train.py")
    assert run.returncode == 2 and "already holds a trace" in run.stderr and run.stdout == ""


def test_an_unknown_instance(tmp_path):
    write(tmp_path, "print('ran')")
    run = opentrn(tmp_path, "run", "--instance", "trn9.huge", "train.py")
    assert run.returncode == 2 and run.stdout == ""
    assert "trn9.huge" in run.stderr and "what to do" in run.stderr and "Traceback" not in run.stderr


def test_another_instance_and_a_module(tmp_path):
    write(tmp_path, SCRIPT.replace("EXTRA", "print(sys.argv)"), "tool.py")
    run = opentrn(
        tmp_path, "run", "--json", "--no-trace", "--instance", "trn1.2xlarge", "-m", "tool", "--json", "-x"
    )
    *printed, last = run.stdout.splitlines()
    assert printed[-1].endswith("tool.py', '--json', '-x']")
    assert "trn1.2xlarge" in json.loads(last)["machine"]


def test_dry(done, tmp_path):
    """The same steps, times, peak and operators as the real run."""
    directory, printed, real, _ = done
    run = opentrn(directory, "run", "--dry", "--json", "--trace", str(tmp_path / "dry"), "train.py")
    assert run.returncode == 0, run.stderr
    *lines, last = run.stdout.splitlines()
    dry = json.loads(last)
    assert dry["dry"] and len(lines) == len(printed)
    assert lines[-1] == printed[-1], "the script's own peak memory"
    assert dry["peak"]["categories"] == real["peak"]["categories"]
    for name in ("duration_ns", "tokens", "peak_allocated", "hfu"):
        assert [step[name] for step in dry["steps"]] == [step[name] for step in real["steps"]], name
    names = ("name", "shapes", "dtypes", "module", "phase", "device_start", "device_end")
    rows = [
        Trace(where).table("operators", list(names)).to_pylist()
        for where in (tmp_path / "dry", directory / "opentrn-trace" / "train-1")
    ]
    assert rows[0] == rows[1]


def test_what_stood_in_is_in_the_report(tmp_path):
    write(tmp_path, "import torch\nx = torch.ones(4096, 4096, device='neuron')\nprint((x @ x).sum().item())")
    run = opentrn(tmp_path, "run", "--dry", "--json", "--no-trace", "train.py")
    report = json.loads(run.stdout.splitlines()[-1])
    assert any(note.startswith("stood in") for note in report["notes"]), report["notes"]


def test_ranks_of_one_job(tmp_path):
    """Each rank has a trace of its own; the first alone reports."""
    write(tmp_path, "import torch; torch.ones(3, device='neuron')")
    for rank in ("0", "1"):
        run = opentrn(tmp_path, "run", "train.py", env={**os.environ, "RANK": rank})
        assert run.returncode == 0
        assert ("peak memory" in run.stderr) == (rank == "0")
    assert sorted(os.listdir(tmp_path / "opentrn-trace")) == ["train-rank-0-1", "train-rank-1-1"]


CUDA_SCRIPT = """
import torch
from torch import nn
assert torch.cuda.is_available()
model = nn.Sequential(nn.Embedding(10, 16), nn.Linear(16, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
for step in range(3):
    index = torch.randint(10, (4, 8)).to("cuda:0")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(index).float().sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
torch.cuda.synchronize()
"""


def test_a_cuda_script(tmp_path):
    """Every redirection is in the report, and memory has its labels as on neuron."""
    write(tmp_path, CUDA_SCRIPT)
    run = opentrn(tmp_path, "run", "--from-cuda", "--json", "--no-trace", "train.py")
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout.splitlines()[-1])
    assert [step["tokens"] for step in report["steps"]] == [32] * 3
    redirected = [note for note in report["notes"] if note.startswith("redirected: ")]
    assert any("Tensor.cuda" in note for note in redirected)
    assert any("torch.cuda.synchronize" in note and "train.py:16" in note for note in redirected)
    assert {"parameter", "optimizer state"} <= set(report["peak"]["categories"])


WORKERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.arange(40).reshape(10, 4) % 7)
model = torch.nn.Embedding(7, 3).to("neuron")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
if __name__ == "__main__":
    for context in ("fork", "spawn"):
        for (batch,) in DataLoader(data, batch_size=5, num_workers=2, multiprocessing_context=context):
            model(batch.to("neuron")).sum().backward()
            optimizer.step()
    print("done")
"""


def test_workers_of_a_data_loader(tmp_path):
    """Forked workers inherit the hooks and spawned ones import the script; neither writes to the trace."""
    write(tmp_path, WORKERS)
    run = opentrn(tmp_path, "run", "--json", "train.py")
    assert run.returncode == 0, run.stderr
    *printed, last = run.stdout.splitlines()
    assert printed == ["done"]
    assert [step["tokens"] for step in json.loads(last)["steps"]] == [20] * 4
    trace = Trace(tmp_path / "opentrn-trace" / "train-1")
    assert trace.rows("operators") == sum(row["count"] for row in trace.table("totals").to_pylist())
