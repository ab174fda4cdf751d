"""`opentrn run --from-cuda --dry` on an unmodified CUDA script: the whole answer, whether it fits or not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, time
import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

layers, width, vocabulary, length, batch = map(int, sys.argv[1:6])

class Config:
    n_layer, n_head, n_embd = layers, width // 64, width

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, -1, 64).transpose(1, 2) for p in self.qkv(self.norm(x)).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm(x))

class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()
        self.table = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

device = "cuda:0" if torch.cuda.is_available() else "cpu"
model = GPT().to(device)
if int(os.environ.get("RANK", -1)) >= 0:
    torch.distributed.init_process_group("nccl")
    model = DDP(model, device_ids=[0])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
scaler = torch.amp.GradScaler("cuda")
data = [torch.randint(0, vocabulary, (length + 1,)) for _ in range(batch * 4)]
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for tokens in DataLoader(data, batch_size=batch, pin_memory=True, num_workers=1):
    tokens = tokens.to(device, non_blocking=True)
    start.record()
    with torch.autocast("cuda", dtype=torch.float16):
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    end.record()
    torch.cuda.synchronize()
    print("loss", loss.item(), "ms", start.elapsed_time(end))
if "save" in sys.argv:
    torch.save(model.state_dict(), "model.pt")
"""


DRY_RUN = [sys.executable, "-m", "opentrn.cli.main", "run", "--from-cuda", "--dry", "--no-trace", "--json"]


def run(folder: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict]:
    (folder / "train.py").write_text(SCRIPT)
    command = [*DRY_RUN, "--report", "page.html", "train.py", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    return done, json.loads(done.stdout.splitlines()[-1])


def test_a_script_that_does_not_fit_gets_the_whole_answer(tmp_path: Path) -> None:
    done, report = run(tmp_path, "24", "2048", "50304", "1024", "16")
    assert done.returncode == 0, done.stderr
    assert report["ended"] == "completed" and len(report["steps"]) == 4
    short, peak = report["shortage"], report["peak"]["allocated"]
    assert report["fits"] is False and short["needed"] == peak > short["capacity"]
    assert short["module"].startswith("blocks.") and short["layer"] is not None
    assert dict(short["held"])["activation"] > 1 << 30
    headline = report["headline"]
    assert headline["tokens"] == 16 * 1024 and headline["tokens_per_s"] > 0
    assert headline["mfu_formula"] == pytest.approx(headline["mfu_counted"], rel=0.05)
    notes = "\n".join(report["notes"])
    assert "refuses: aten::_to_copy" in notes and "float64" in notes and "train.py:" in notes
    assert "redirected: torch.cuda.Event" in notes and "stood in" in notes
    page = (tmp_path / "page.html").read_text()
    for words in ("no, by", "first at layer", "redirected: ", "stood in ", "refuses: "):
        assert words in page
    assert "<script" not in page and "src=" not in page
    # The script's own clock and the report agree: both are the chip's.
    milliseconds = float(done.stdout.splitlines()[2].rsplit(" ", 1)[1])
    assert milliseconds * 1e6 == pytest.approx(headline["duration_ns"], rel=0.05)


def test_a_script_that_fits_and_saves_ends_at_the_save_with_its_report(tmp_path: Path) -> None:
    done, report = run(tmp_path, "2", "512", "5000", "256", "4", "save")
    assert report["fits"] is True and report["shortage"] is None
    assert done.returncode == 1 and "saving it would write zeros" in report["ended"]
    assert len(report["steps"]) == 4 and not (tmp_path / "model.pt").exists()


def test_the_example_of_the_readme_does_not_fit_and_is_timed(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "examples" / "cuda_gpt.py"
    done = subprocess.run([*DRY_RUN, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    parameters = 50304 * 2048 * 2 + 2048 * 2048 + 24 * (12 * 2048**2 + 13 * 2048) + 2 * 2048
    assert report["fits"] is False and len(report["steps"]) == 4
    assert report["peak"]["categories"]["parameter"] == pytest.approx(4 * parameters, rel=1e-4)
    assert report["peak"]["categories"]["optimizer state"] == pytest.approx(8 * parameters, rel=1e-4)
    assert report["headline"]["tokens"] == 4 * 2048 and 0.2 < report["headline"]["mfu_counted"] < 1
