"""Modules trained on the device and on the CPU from the same weights follow the same losses."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from device_helpers import NEURON, on_device, same


class _First(nn.Module):
    """The first output of a recurrent module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.module(*inputs)[0]


class _Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = nn.LSTM(6, 5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 2]), batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(self.module(packed)[0], batch_first=True)[0]


class _Bag(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.module = nn.EmbeddingBag(10, 4, mode=mode)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.module(index, torch.tensor([0, 2, 5], device=index.device))


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x, x, x)[0]


def _weight_norm() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Linear(6, 5))


Case = tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]
MODULES: dict[str, Case] = {
    "lstm": (lambda: _First(nn.LSTM(6, 5, 2, batch_first=True)), lambda: torch.randn(2, 4, 6)),
    "lstm bidirectional": (lambda: _First(nn.LSTM(6, 5, bidirectional=True)), lambda: torch.randn(4, 2, 6)),
    "lstm projected": (lambda: _First(nn.LSTM(6, 5, proj_size=3)), lambda: torch.randn(4, 2, 6)),
    "lstm packed": (_Packed, lambda: torch.randn(2, 4, 6)),
    "gru": (lambda: _First(nn.GRU(6, 5, 2)), lambda: torch.randn(4, 2, 6)),
    "rnn tanh": (lambda: _First(nn.RNN(6, 5)), lambda: torch.randn(4, 2, 6)),
    "rnn relu": (lambda: _First(nn.RNN(6, 5, nonlinearity="relu")), lambda: torch.randn(4, 2, 6)),
    "gru cell": (lambda: nn.GRUCell(6, 5), lambda: torch.randn(2, 6)),
    "lstm cell": (lambda: _First(nn.LSTMCell(6, 5)), lambda: torch.randn(2, 6)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, padding="same"), lambda: torch.randn(2, 3, 7)),
    "conv2d strided": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), lambda: torch.randn(2, 3, 7, 7)),
    "conv2d dilated": (lambda: nn.Conv2d(3, 4, 3, dilation=2), lambda: torch.randn(2, 3, 7, 7)),
    "conv2d grouped": (lambda: nn.Conv2d(4, 8, 3, groups=4), lambda: torch.randn(2, 4, 7, 7)),
    "conv2d channels last": (
        lambda: nn.Conv2d(3, 4, 3, bias=False).to(memory_format=torch.channels_last),
        lambda: torch.randn(2, 3, 7, 7).to(memory_format=torch.channels_last),
    ),
    "conv2d circular": (
        lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"),
        lambda: torch.randn(1, 3, 5, 5),
    ),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), lambda: torch.randn(1, 2, 4, 4, 4)),
    "conv transpose": (
        lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1),
        lambda: torch.randn(2, 3, 4, 4),
    ),
    "conv of a transposed tensor": (
        lambda: nn.Sequential(
            nn.Unflatten(0, (2, 10)), _Transposed(nn.Conv1d(4, 6, 3, padding=1)), nn.LayerNorm(6)
        ),
        lambda: torch.randn(20, 4),
    ),
    "batch_norm": (lambda: nn.BatchNorm2d(3), lambda: torch.randn(4, 3, 5, 5)),
    "batch_norm channels last": (
        lambda: nn.BatchNorm2d(3),
        lambda: torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last),
    ),
    "group_norm": (lambda: nn.GroupNorm(2, 4), lambda: torch.randn(2, 4, 5, 5)),
    "rms_norm": (lambda: nn.RMSNorm(6), lambda: torch.randn(2, 4, 6)),
    "embedding": (
        lambda: nn.Embedding(10, 4, padding_idx=0, max_norm=1.0),
        lambda: torch.randint(0, 10, (2, 5)),
    ),
    "embedding scaled": (
        lambda: nn.Embedding(10, 4, scale_grad_by_freq=True),
        lambda: torch.tensor([1, 1, 2]),
    ),
    "bag sum": (lambda: _Bag("sum"), lambda: torch.randint(0, 10, (8,))),
    "bag mean": (lambda: _Bag("mean"), lambda: torch.randint(0, 10, (8,))),
    "bag max": (lambda: _Bag("max"), lambda: torch.randint(0, 10, (8,))),
    "bilinear": (lambda: _Twice(nn.Bilinear(6, 6, 5)), lambda: torch.randn(2, 6)),
    "attention": (_Attention, lambda: torch.randn(2, 5, 8)),
    "encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2),
        lambda: torch.randn(2, 5, 8),
    ),
    "weight_norm": (_weight_norm, lambda: torch.randn(3, 6)),
    "spectral_norm": (
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 5)),
        lambda: torch.randn(3, 6),
    ),
    "upsample": (
        lambda: nn.Sequential(nn.Conv2d(3, 3, 1), nn.Upsample(scale_factor=2)),
        lambda: torch.randn(1, 3, 4, 4),
    ),
    "adaptive_softmax": (
        lambda: _Loss(nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10]), torch.randint(0, 20, (6,))),
        lambda: torch.randn(6, 8),
    ),
    "ctc": (lambda: _Ctc(), lambda: torch.randn(6, 2, 5)),
}


class _Transposed(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x.transpose(1, 2)).transpose(1, 2)


class _Twice(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x, x)


class _Loss(nn.Module):
    def __init__(self, module: nn.Module, target: torch.Tensor) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("target", target)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x, self.target).output


class _Ctc(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        target = torch.tensor([[1, 2], [3, 4]], device=x.device)
        return F.ctc_loss(
            (x * self.scale).log_softmax(-1), target, torch.tensor([6, 6]), torch.tensor([2, 2])
        )


def _losses(model: nn.Module, data: torch.Tensor) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(data).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("name", MODULES)
def test_training_follows_cpu(name: str) -> None:
    make, data = MODULES[name][0], MODULES[name][1]()
    host = make()
    device = copy.deepcopy(host).to(NEURON)
    found, wanted = _losses(device, on_device(data)), _losses(host, data)
    same(found, wanted, rtol=1e-4, atol=1e-6)
    same(dict(device.state_dict()), dict(host.state_dict()), rtol=1e-3, atol=1e-5)
    host.eval(), device.eval()
    with torch.no_grad():
        same(device(on_device(data)), host(data), rtol=1e-3, atol=1e-5)


def test_every_device_index_gives_the_same() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    data = torch.randn(1, 3, 8, 8)
    wanted = model(data)
    for index in (0, 1, 5, torch.neuron.device_count() - 1):
        same(model.to(f"neuron:{index}")(data.to(f"neuron:{index}")), wanted)


def test_masked_encoder_has_no_nan() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0), 2)
    data, mask = torch.randn(2, 6, 16), nn.Transformer.generate_square_subsequent_mask(6)
    padding = torch.zeros(2, 6)
    padding[1, 4:] = float("-inf")
    for training in (True, False):
        encoder.train(training).to("cpu")
        wanted = encoder(data, mask=mask, src_key_padding_mask=padding)
        encoder.to(NEURON)
        found = encoder(data.to(NEURON), mask=mask.to(NEURON), src_key_padding_mask=padding.to(NEURON))
        same(found[0], wanted[0], rtol=1e-4, atol=1e-5)
        assert found[0].isfinite().all().item()
