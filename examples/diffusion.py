"""A small diffusion model (DDPM) learns to draw discs: a U-Net with attention and a skip connection.

opentrn run examples/diffusion.py

Noise is drawn on the CPU, so that every device learns from the same numbers.
"""

from __future__ import annotations

import argparse
import json
import math

import torch
from torch import nn
from torch.nn import functional

SIZE, WIDTH, NOISE_LEVELS = 16, 16, 50
BETAS = torch.linspace(1e-4, 0.1, NOISE_LEVELS)
KEPT = torch.cumprod(1 - BETAS, dim=0)  # share of the image's variance left at each noise level


def discs(count: int, generator: torch.Generator) -> torch.Tensor:
    """Images [count, 1, 16, 16] in −1..1 of one disc each."""
    centre = torch.rand(count, 2, 1, 1, generator=generator) * 6 + SIZE / 2 - 3
    radius = torch.rand(count, 1, 1, generator=generator) * 3 + 2
    axis = torch.arange(SIZE, dtype=torch.float32)
    distance = (axis[None, None, :] - centre[:, 0]).square() + (axis[None, :, None] - centre[:, 1]).square()
    return (radius - distance.sqrt()).clamp(-1, 1)[:, None]


class Block(nn.Module):
    """Residual convolution block, shifted by the embedding of the noise level."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(4, inputs), nn.GroupNorm(4, outputs)])
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shift, self.short_cut = nn.Linear(WIDTH, outputs), nn.Conv2d(inputs, outputs, 1)

    def forward(self, image: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        hidden = self.first(functional.silu(self.norms[0](image))) + self.shift(level)[:, :, None, None]
        return self.second(functional.silu(self.norms[1](hidden))) + self.short_cut(image)


class UNet(nn.Module):
    """The noise in images [n, 1, 16, 16] at noise levels [n]."""

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.enter, self.leave = nn.Conv2d(1, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, 1, 3, padding=1)
        self.down, self.up = Block(WIDTH, WIDTH), Block(3 * WIDTH, WIDTH)
        self.middle = Block(WIDTH, 2 * WIDTH)
        self.attention = nn.MultiheadAttention(2 * WIDTH, 4, batch_first=True)
        self.grow = nn.ConvTranspose2d(2 * WIDTH, 2 * WIDTH, 2, stride=2)

    def forward(self, image: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        frequency = torch.exp(-math.log(1e4) * torch.arange(WIDTH // 2, device=image.device) / (WIDTH // 2))
        angle = level[:, None] * frequency
        embedded = self.level(torch.cat([angle.sin(), angle.cos()], dim=1))
        high = self.down(self.enter(image), embedded)
        low = self.middle(functional.avg_pool2d(high, 2), embedded)
        rows = low.flatten(2).transpose(1, 2)
        low = low + self.attention(rows, rows, rows, need_weights=False)[0].transpose(1, 2).view_as(low)
        return self.leave(self.up(torch.cat([self.grow(low), high], dim=1), embedded))


@torch.no_grad()
def sample(model: nn.Module, count: int, device: str, generator: torch.Generator) -> torch.Tensor:
    """Images drawn by the model from noise, [count, 1, 16, 16]."""
    image = torch.randn(count, 1, SIZE, SIZE, generator=generator).to(device)
    for level in reversed(range(NOISE_LEVELS)):
        noise = model(image, torch.full((count,), level, device=device))
        image = image - BETAS[level].item() / math.sqrt(1 - KEPT[level].item()) * noise
        image = image / math.sqrt(1 - BETAS[level].item())
        if level:
            fresh = torch.randn(image.shape, generator=generator).to(device)
            image = image + math.sqrt(BETAS[level].item()) * fresh
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description="A small diffusion model.")
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()

    torch.manual_seed(0)
    model = UNet().to(options.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(options.steps):
        image, noise = discs(16, generator), torch.randn(16, 1, SIZE, SIZE, generator=generator)
        level = torch.randint(0, NOISE_LEVELS, (16,), generator=generator)
        kept = KEPT[level][:, None, None, None]
        noisy = (kept.sqrt() * image + (1 - kept).sqrt() * noise).to(options.device)
        loss = functional.mse_loss(model(noisy, level.to(options.device)), noise.to(options.device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    drawn = sample(model, 2, options.device, generator).cpu()
    result = {"example": "diffusion", "device": options.device, "losses": losses}
    print(json.dumps({**result, "sample_std": drawn.std().item()}))


if __name__ == "__main__":
    main()
