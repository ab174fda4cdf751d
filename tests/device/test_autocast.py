"""torch.autocast("neuron"): PyTorch's own lists, as CUDA has them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from device_helpers import NEURON, same

LOWER = {
    "linear": lambda x: F.linear(x, x),
    "matmul": lambda x: x @ x,
    "mm": lambda x: torch.mm(x, x),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "addmm": lambda x: torch.addmm(x, x, x),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "conv1d": lambda x: F.conv1d(x[None], x[:, :, None]),
    "conv2d": lambda x: F.conv2d(x[None, :, :, None], x[:, :, None, None]),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "prelu": lambda x: F.prelu(x, x[0, :1]),
}
FULL = {
    "softmax": lambda x: x.bfloat16().softmax(-1),
    "log_softmax": lambda x: x.bfloat16().log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x.bfloat16(), (8,)),
    "exp": lambda x: x.bfloat16().exp(),
    "sum": lambda x: x.bfloat16().sum(),
    "pow": lambda x: x.bfloat16().pow(2),
    "cumsum": lambda x: x.bfloat16().cumsum(0),
    "mse_loss": lambda x: F.mse_loss(x.bfloat16(), x.bfloat16()),
    "cross_entropy": lambda x: F.cross_entropy(
        x.bfloat16(), torch.zeros(8, dtype=torch.long, device=x.device)
    ),
    "norm": lambda x: x.bfloat16().norm(),
    "cosine_similarity": lambda x: F.cosine_similarity(x.bfloat16(), x.bfloat16()),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", LOWER)
def test_multiplications_run_in_low_precision(name: str, dtype: torch.dtype) -> None:
    with torch.autocast(NEURON, dtype=dtype):
        assert LOWER[name](torch.randn(8, 8, device=NEURON)).dtype == dtype


@pytest.mark.parametrize("name", FULL)
def test_sensitive_operators_run_in_float32(name: str) -> None:
    with torch.autocast(NEURON, dtype=torch.bfloat16):
        assert FULL[name](torch.randn(8, 8, device=NEURON)).dtype == torch.float32


def test_mixed_inputs_are_promoted() -> None:
    wide, narrow = torch.ones(4, device=NEURON), torch.ones(4, device=NEURON, dtype=torch.bfloat16)
    with torch.autocast(NEURON, dtype=torch.bfloat16):
        assert torch.cat([wide, narrow]).dtype == torch.float32
        assert torch.stack([wide, narrow]).dtype == torch.float32
        assert torch.addcmul(wide, narrow, narrow).dtype == torch.float32
        assert torch.dot(wide, narrow).dtype == torch.float32


def test_nesting_and_state() -> None:
    layer = torch.nn.Linear(8, 8).to(NEURON)
    x = torch.randn(4, 8, device=NEURON)
    assert torch.amp.is_autocast_available(NEURON)
    with torch.autocast(NEURON, dtype=torch.bfloat16):
        assert torch.is_autocast_enabled(NEURON) and torch.get_autocast_dtype(NEURON) == torch.bfloat16
        assert not torch.is_autocast_enabled("cpu")
        with torch.autocast(NEURON, enabled=False):
            assert layer(x).dtype == torch.float32
        assert layer(x).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled(NEURON) and layer(x).dtype == torch.float32
    with pytest.warns(UserWarning, match="not supported"), torch.autocast(NEURON, dtype=torch.int8):
        assert layer(x).dtype == torch.float32


def test_backward_gives_parameters_float32_gradients() -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1),
        torch.nn.BatchNorm2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(256, 5),
    ).to(NEURON)
    with torch.autocast(NEURON, dtype=torch.bfloat16):
        output = model(torch.randn(2, 3, 8, 8, device=NEURON))
        assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert model[1].running_mean.dtype == torch.float32
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())


def test_weight_cache_is_dropped_on_exit() -> None:
    layer = torch.nn.Linear(8, 8).to(NEURON)
    x = torch.randn(4, 8, device=NEURON)
    with torch.autocast(NEURON, dtype=torch.bfloat16):
        before = layer(x)
    with torch.no_grad():
        layer.weight.zero_(), layer.bias.zero_()
    with torch.autocast(NEURON, dtype=torch.bfloat16):
        assert layer(x).abs().sum().item() == 0 and before.abs().sum().item() > 0


def test_values_are_those_of_the_explicit_casts() -> None:
    layer = torch.nn.Linear(8, 8).to(NEURON)
    x = torch.randn(4, 8, device=NEURON)
    with torch.autocast(NEURON, dtype=torch.bfloat16):
        found = layer(x)
    same(found, F.linear(x.bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16()))


def test_unsafe_loss_is_refused() -> None:
    probability = torch.rand(4, device=NEURON)
    with torch.autocast(NEURON), pytest.raises(RuntimeError, match="unsafe"):
        F.binary_cross_entropy(probability, probability)


def test_custom_functions() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=NEURON, cast_inputs=torch.float32)
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            assert x.dtype == torch.float32 and not torch.is_autocast_enabled(NEURON)
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type=NEURON)
        def backward(ctx, gradient):  # type: ignore[no-untyped-def]
            return gradient * 2

    leaf = torch.ones(3, device=NEURON, requires_grad=True)
    with torch.neuron.amp.autocast(dtype=torch.bfloat16):
        Double.apply(leaf.bfloat16()).sum().backward()
    same(leaf.grad, torch.full((3,), 2.0))
