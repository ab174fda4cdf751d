"""An NKI kernel inside a model: RMSNorm, forward and backward, as an operator of PyTorch.

opentrn run --trace my-trace examples/nki_kernel.py
opentrn trace export my-trace -o my-trace.pftrace     # the kernel's engines, instruction by instruction
"""

# ruff: noqa: I001 - torch comes first: it makes `nki` importable
from __future__ import annotations

import argparse
import json

import torch
from torch import nn

import nki
import nki.isa as nisa
import nki.language as nl
from corpus import VOCABULARY, windows
from opentrn.nki import nki_op

EPSILON = 1e-6
ROWS = nl.tile_size.pmax


def load_rows(weight):
    """The weight in every partition: one DMA that reads the same row 128 times."""
    tile = nl.ndarray((ROWS, weight.shape[0]), dtype=weight.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=weight.ap(pattern=[[0, ROWS], [1, weight.shape[0]]]))
    return tile


def inverse_norm(x):
    """1 / sqrt(mean(x²) + ε) of each row."""
    squares = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf)
    epsilon = nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(epsilon, EPSILON)
    nisa.activation_reduce(squares, nl.square, x, reduce_op=nl.add, reduce_res=total)
    nisa.activation(total, nl.rsqrt, total, bias=epsilon, scale=1.0 / x.shape[1])
    return total


@nki.jit
def rms_norm_kernel(x, weight):
    """x: [n · 128, d], weight: [d] → x / rms(x) · weight."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    scale = load_rows(weight)
    for i in nl.affine_range(x.shape[0] // ROWS):
        tile = nl.load(x[i * ROWS : (i + 1) * ROWS])
        nisa.scalar_tensor_tensor(tile, tile, nl.multiply, inverse_norm(tile), nl.multiply, scale)
        nl.store(out[i * ROWS : (i + 1) * ROWS], tile)
    return out


@nki.jit
def rms_norm_backward_kernel(gradient, x, weight):
    """Gradients of x and of the weight; the sum over the rows is a product with a column of ones."""
    d = x.shape[1]
    x_out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    weight_out = nl.ndarray((1, d), dtype=weight.dtype, buffer=nl.shared_hbm)
    scale = load_rows(weight)
    ones = nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(ones, 1.0)
    rows_sum = nl.ndarray((1, d), dtype=nl.float32, buffer=nl.psum)
    for i in nl.affine_range(x.shape[0] // ROWS):
        rows = slice(i * ROWS, (i + 1) * ROWS)
        g, tile = nl.load(gradient[rows]), nl.load(x[rows])
        inverse = inverse_norm(tile)
        nisa.tensor_scalar(tile, tile, nl.multiply, inverse)  # normalised rows
        product = nl.ndarray(tile.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(product, g, tile, nl.multiply)
        nisa.nc_matmul(rows_sum, ones, product)
        nisa.tensor_tensor(product, product, scale, nl.multiply)
        mean = nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(mean, nl.add, product, axis=1)
        nisa.tensor_scalar(mean, mean, nl.multiply, -1.0 / d)
        nisa.tensor_tensor(g, g, scale, nl.multiply)
        nisa.scalar_tensor_tensor(g, tile, nl.multiply, mean, nl.add, g)
        nisa.tensor_scalar(g, g, nl.multiply, inverse)
        nl.store(x_out[rows], g)
    total = nl.ndarray((1, d), dtype=weight.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(total, rows_sum)
    nl.store(weight_out, total)
    return x_out, weight_out


@nki_op("examples::rms_norm")
def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return rms_norm_kernel(x, weight)


@nki_op("examples::rms_norm_backward")
def rms_norm_backward(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    x_gradient, weight_gradient = rms_norm_backward_kernel(gradient, x, weight)
    return x_gradient, weight_gradient[0].clone()


def keep(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


rms_norm.register_autograd(
    lambda ctx, gradient: rms_norm_backward(gradient.contiguous(), *ctx.saved_tensors), setup_context=keep
)


class RMSNorm(nn.Module):
    """`torch.nn.RMSNorm` on the kernels above."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x.reshape(-1, x.shape[-1]), self.weight).reshape(x.shape)


def main() -> None:
    parser = argparse.ArgumentParser(description="A model with an NKI kernel.")
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, 64), RMSNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, VOCABULARY)
    ).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for tokens in windows(options.steps, batch=4, length=65):
        tokens = tokens.to(options.device)
        scores = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    x = torch.randn(128, 64).to(options.device)
    with torch.no_grad():
        error = (model[1](x) - nn.functional.rms_norm(x, (64,), model[1].weight, EPSILON)).abs().max().item()
    print(json.dumps({"example": "nki_kernel", "device": options.device, "losses": losses, "error": error}))


if __name__ == "__main__":
    main()
