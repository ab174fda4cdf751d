"""A CUDA training script as people write them: nothing in it knows of neuron.

    opentrn run --from-cuda examples/unmodified_cuda_script.py --steps 8

It uses what such scripts use: cudnn flags, pinned batches copied on a side stream, CUDA events, autocast with
a GradScaler, NCCL under torchrun, checkpoints with map_location. Without a GPU it trains on the CPU.
"""

import argparse
import json
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.cuda.amp import GradScaler
from torch.utils.data import DataLoader, TensorDataset

torch.backends.cudnn.benchmark = True
torch.backends.cuda.matmul.allow_tf32 = True


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, vocabulary=64, width=64, layers=2, heads=4, length=32):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Prefetcher:
    """Copies the next batch on a side stream while the current one is computed."""

    def __init__(self, loader, device):
        self.loader, self.device = iter(loader), device
        self.stream = torch.cuda.Stream() if device.type == "cuda" else None
        self._load()

    def _load(self):
        batch = next(self.loader, None)
        if batch is None or self.stream is None:
            self.batch = batch
            return
        with torch.cuda.stream(self.stream):
            self.batch = [t.to(self.device, non_blocking=True) for t in batch]

    def __iter__(self):
        while self.batch is not None:
            if self.stream is not None:
                torch.cuda.current_stream().wait_stream(self.stream)
                for t in self.batch:
                    t.record_stream(torch.cuda.current_stream())
            current = self.batch
            self._load()
            yield current


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--amp", choices=("none", "bf16", "fp16"), default="bf16")
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if "WORLD_SIZE" in os.environ and int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(0)
        print(f"training on {torch.cuda.get_device_name(0)}, {torch.cuda.device_count()} device(s)")

    tokens = torch.randint(0, 8, (8 * args.steps, 33)).cumsum(1) % 64
    loader = DataLoader(TensorDataset(tokens), batch_size=8, pin_memory=device.type == "cuda")
    model = Model().to(device)
    assert next(model.parameters()).device.type == device.type
    if dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    scaler = GradScaler(enabled=args.amp == "fp16")
    dtype = torch.float16 if args.amp == "fp16" else torch.bfloat16

    losses, milliseconds = [], []
    for (batch,) in Prefetcher(loader, device):
        if device.type == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device_type=device.type, dtype=dtype, enabled=args.amp != "none"):
            logits = model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if device.type == "cuda":
            end.record()
            torch.cuda.synchronize()
            milliseconds.append(start.elapsed_time(end))
        losses.append(loss.item())

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "checkpoint.pt")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        restored = torch.load(
            path, map_location=lambda storage, location: storage.cuda(0) if device.type == "cuda" else storage
        )
        model.load_state_dict(restored["model"])
    print(json.dumps({"device": device.type, "losses": losses, "milliseconds": milliseconds}))
    if device.type == "cuda":
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
