"""A small residual network learns to tell drawn shapes apart: convolutions, batch norms, channels-last.

opentrn run examples/image_model.py
"""

from __future__ import annotations

import argparse
import json

import torch
from torch import nn
from torch.nn import functional

SIZE, SHAPES = 16, ("disc", "square", "cross", "ring")


def draw(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """`count` noisy images [count, 3, 16, 16] of one coloured shape each, and which it is [count]."""
    labels = torch.randint(0, len(SHAPES), (count,), generator=generator)
    centre = torch.rand(count, 2, 1, 1, generator=generator) * 4 + SIZE / 2 - 2
    axis = torch.arange(SIZE, dtype=torch.float32)
    x, y = axis[None, None, :] - centre[:, 0], axis[None, :, None] - centre[:, 1]
    radius = (x.square() + y.square()).sqrt()
    masks = torch.stack(
        [
            radius < 5,
            (x.abs() < 4.5) & (y.abs() < 4.5),
            ((x.abs() < 1.5) | (y.abs() < 1.5)) & (radius < 6),
            (radius > 3) & (radius < 5.5),
        ]
    )
    mask = masks[labels, torch.arange(count)].float()
    colour = torch.rand(count, 3, 1, 1, generator=generator)
    noise = torch.randn(count, 3, SIZE, SIZE, generator=generator)
    return mask[:, None] * colour + 0.1 * noise, labels


class Block(nn.Module):
    """Two convolutions with a short cut; halves the image when stride is 2."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        self.short_cut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.norms[0](self.first(image)))
        return functional.relu(self.norms[1](self.second(hidden)) + self.short_cut(image))


def main() -> None:
    parser = argparse.ArgumentParser(description="A small residual network on drawn shapes.")
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()

    torch.manual_seed(0)
    pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, len(SHAPES)))
    model = nn.Sequential(Block(3, 16, 1), Block(16, 32, 2), nn.MaxPool2d(2), Block(32, 32, 1), *pool)
    model = model.to(options.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(options.steps):
        images, labels = (tensor.to(options.device) for tensor in draw(32, generator))
        loss = functional.cross_entropy(model(images.to(memory_format=torch.channels_last)), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    model.eval()
    images, labels = draw(128, generator)
    with torch.no_grad():
        predicted = model(images.to(options.device)).argmax(1).cpu()
    accuracy = (predicted == labels).float().mean().item()
    result = {"example": "image_model", "device": options.device, "losses": losses, "accuracy": accuracy}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
