"""The elementwise formulas of data/eager_operators.toml, executed on the virtual core, against PyTorch's
operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.common_utils import set_default_dtype

from opentrn.core import execute
from opentrn.core.library.elementwise import Operand, flat_program
from opentrn.core.library.formula import reads
from opentrn.core.library.operators import table

aten = torch.ops.aten
FORMULAS: dict[str, str] = table()["elementwise"]
SIZE = 700

# Operators whose ATen call is not `aten.NAME(*inputs)`: the call, and the formula's numbers.
CALLS: dict[str, tuple[Callable[..., Any], dict[str, float]]] = {
    "rsub": (lambda x, y: y - x, {}),
    "pow": (lambda x: x**3, {"exponent": 3.0}),
    "fmax": (torch.fmax, {}),
    "fmin": (torch.fmin, {}),
    "clamp": (lambda x: x.clamp(-0.5, 0.7), {"low": -0.5, "high": 0.7}),
    "clamp_min": (torch.clamp_min, {}),
    "clamp_max": (torch.clamp_max, {}),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), {"weight": 0.3}),
    "addcmul": (lambda x, y, z: torch.addcmul(x, y, z, value=0.3), {"value": 0.3}),
    "addcdiv": (lambda x, y, z: torch.addcdiv(x, y, z, value=0.3), {"value": 0.3}),
    "where": (lambda c, x, y: torch.where(c > 0, x, y), {}),
    "masked_fill": (lambda x, m: x.masked_fill(m > 0, 2.5), {"value": 2.5}),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.1), {"slope": 0.1}),
    "elu": (F.elu, {"alpha": 1.0}),
    "hardtanh": (lambda x: F.hardtanh(x, -0.5, 0.7), {"low": -0.5, "high": 0.7}),
    "hardsigmoid": (F.hardsigmoid, {"sixth": 1 / 6}),
    "hardswish": (F.hardswish, {"sixth": 1 / 6}),
    "softplus": (F.softplus, {}),
    "threshold": (lambda x: F.threshold(x, 0.2, -3.0), {"bound": 0.2, "value": -3.0}),
    "threshold_backward": (lambda g, x: aten.threshold_backward(g, x, 0.2), {"bound": 0.2}),
    "leaky_relu_backward": (lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False), {"slope": 0.1}),
    "native_dropout_backward": (lambda g, m: g * m * 1.25, {"scale": 1.25}),
    "_copy_from": (lambda x: x, {}),
    "_to_copy": (lambda x: x, {}),
    "copy": (lambda x: x, {}),
    "cat": (lambda x: x, {}),
    "_cat": (lambda x: x, {}),
    "stack": (lambda x: x, {}),
    "_stack": (lambda x: x, {}),
    "isnan": (lambda x: x.isnan(), {}),
    "bitwise_not": (lambda x: (x > 0).bitwise_not(), {}),
    "softplus_backward": (lambda g, x: aten.softplus_backward(g, x, 1.0, 20.0), {}),
    "mse_loss_backward": (lambda g, x, y: aten.mse_loss_backward(g, x, y, 0), {"scale": 2.0}),
    "tan": (torch.tan, {}),
}
RANDOM = {"native_dropout", "bernoulli", "uniform", "normal", "exponential"}
POSITIVE = {"sqrt", "rsqrt", "log", "log2", "log1p", "reciprocal", "div", "addcdiv", "floor_divide"}
MASKS = {"where": 0, "bitwise_not": 0, "masked_fill": 1, "native_dropout_backward": 1}
SEVERAL_RESULTS = {"_fused_adamw", "_fused_adam", "_fused_sgd", "fill", "zero"}


def _inputs(name: str, count: int) -> list[torch.Tensor]:
    made = [torch.randn(SIZE) for _ in range(count)]
    if name in POSITIVE:
        made = [tensor.abs() + 0.1 for tensor in made]
    if name in ("tanh_backward", "sigmoid_backward"):
        made[1] = made[1].sigmoid()
    if name.startswith("logical") or name in ("eq", "ne"):
        made = [tensor.round().clamp(0, 1) for tensor in made]
    if name in MASKS:
        made[MASKS[name]] = (made[MASKS[name]] > 0).float()
    return made


def _program_result(
    formula: str, inputs: list[torch.Tensor], constants: dict[str, float], outputs: int = 1
) -> Any:
    full = Operand("float32")
    program = flat_program(
        formula, (full,) * len(inputs), (full,) * outputs, constants=tuple(sorted(constants.items()))
    )
    given = {f"x{k}": tensor.numpy() for k, tensor in enumerate(inputs)}
    return execute(program, given, {"T": 1, "E": SIZE, "W": 64})


@pytest.mark.parametrize("name", sorted(set(FORMULAS) - SEVERAL_RESULTS - RANDOM))
def test_the_formula_computes_the_operator(name: str) -> None:
    count = max(reads(FORMULAS[name]), default=-1) + 1
    inputs = _inputs(name, count)
    call, constants = CALLS[name] if name in CALLS else (getattr(aten, name), {})
    expected = call(*inputs)
    found = _program_result(FORMULAS[name], inputs, constants)["y0"]
    # The engines work in fp32 with activation functions of a few ulp; tan is steep.
    tolerance = 2e-2 if name == "tan" else 2e-5
    np.testing.assert_allclose(found, expected.float().numpy(), rtol=tolerance, atol=tolerance)


def test_random_formulas_have_their_distributions() -> None:
    bits = {"threshold": 0.25 * 2**32, "scale": 1 / 0.75}
    ones = torch.ones(SIZE)
    found = _program_result(FORMULAS["native_dropout"], [ones], bits, 2)
    np.testing.assert_allclose(found["y0"], found["y1"] / 0.75, rtol=1e-6)
    assert found["y1"].mean() == pytest.approx(0.75, abs=0.07)
    assert _program_result(FORMULAS["bernoulli"], [], bits)["y0"].mean() == pytest.approx(0.25, abs=0.07)
    found = _program_result(FORMULAS["uniform"], [], {"low": 2.0, "width": 3.0})["y0"]
    assert found.min() >= 2 and found.max() <= 5 and found.mean() == pytest.approx(3.5, abs=0.15)
    constants = {"mean": 1.0, "deviation": 2.0, "turn": 2 * np.pi, "half": np.pi}
    found = _program_result(FORMULAS["normal"], [], constants)["y0"]
    assert found.mean() == pytest.approx(1, abs=0.3) and found.std() == pytest.approx(2, abs=0.3)
    found = _program_result(FORMULAS["exponential"], [], {"rate": -0.5})["y0"]
    assert found.min() >= 0 and found.mean() == pytest.approx(0.5, abs=0.1)


def test_fused_adamw_is_the_optimizer() -> None:
    rate, first, second, decay, epsilon = 1e-2, 0.9, 0.99, 0.1, 1e-8
    with set_default_dtype(torch.float32):
        weight, gradient = torch.randn(SIZE), torch.randn(SIZE)
    parameter = torch.nn.Parameter(weight.clone())
    optimizer = torch.optim.AdamW(
        [parameter], lr=rate, betas=(first, second), eps=epsilon, weight_decay=decay
    )
    mean, square = torch.zeros(SIZE), torch.zeros(SIZE)
    constants = {
        "first": first,
        "rest": 1 - first,
        "second": second,
        "root": (1 - second) ** 0.5,
        "decayed": 1 - rate * decay,
        # The rate and the bias corrections of the first step.
        "scale": ((1 - first) / rate) ** 2 / (1 - second),
        "epsilon": epsilon * (1 - first) / rate,
    }
    parameter.grad = gradient.clone()
    optimizer.step()
    found = _program_result(FORMULAS["_fused_adamw"], [weight, gradient, mean, square], constants, 4)
    np.testing.assert_allclose(found["y0"], parameter.detach().numpy(), rtol=1e-5, atol=1e-6)
    state = optimizer.state[parameter]
    np.testing.assert_allclose(found["y2"], state["exp_avg"].numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["y3"], state["exp_avg_sq"].numpy(), rtol=1e-5, atol=1e-6)
    assert "y1" not in found, "the gradient is declared written and is not"
