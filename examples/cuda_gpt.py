"""A 1.3-billion-parameter GPT trained as on one CUDA device: float16 autocast, gradient scaler, clipping.

Nothing here knows of OpenTRN. Without a GPU, and without the 37 GiB it needs:

    opentrn run --from-cuda --dry examples/cuda_gpt.py
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCABULARY, WIDTH, LAYERS, HEADS, SEQUENCE, BATCH, STEPS = 50304, 2048, 24, 16, 2048, 4, 4


class Block(nn.Module):
    """Attention and a feed-forward network, each behind a normalisation and beside a residual path."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Token ids [batch, length] and targets of the same shape to the mean loss."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())


class RandomTokens(Dataset):
    """Sequences that nobody wrote."""

    def __len__(self) -> int:
        return BATCH * STEPS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, VOCABULARY, (SEQUENCE + 1,), generator=generator)
        return tokens[:-1], tokens[1:]


def main() -> None:
    torch.cuda.manual_seed_all(0)
    device = torch.device("cuda")
    model = GPT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)
    scaler = torch.amp.GradScaler("cuda")
    for step, batch in enumerate(DataLoader(RandomTokens(), batch_size=BATCH, pin_memory=True)):
        tokens, targets = (part.cuda(non_blocking=True) for part in batch)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(tokens, targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() / 2**30
        print(f"step {step}: loss {loss.item():.3f}, norm {norm.double().item():.2f}, {peak:.1f} GiB")


if __name__ == "__main__":
    main()
