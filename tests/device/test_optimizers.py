"""Optimisers, gradient scaling and clipping follow the CPU's, in every implementation they have."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from device_helpers import NEURON, same

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
    "adagrad": (torch.optim.Adagrad, {}),
    "adadelta": (torch.optim.Adadelta, {}),
    "adamax": (torch.optim.Adamax, {}),
    "nadam": (torch.optim.NAdam, {}),
    "radam": (torch.optim.RAdam, {}),
    "rmsprop": (torch.optim.RMSprop, {"centered": True}),
    "rprop": (torch.optim.Rprop, {}),
    "adafactor": (torch.optim.Adafactor, {}),
}


def _model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


def _train(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, data: torch.Tensor, steps: int = 3
) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(data).pow(2).sum().backward()
        optimizer.step()


FORMS: dict[str, dict[str, bool]] = {
    "default": {},
    "foreach": {"foreach": True},
    "loop": {"foreach": False},
    "fused": {"fused": True},
}
HAVE_FUSED = ("sgd", "adam", "adamw", "adagrad")


@pytest.mark.parametrize(
    ("name", "form"), [(n, f) for n in OPTIMIZERS for f in FORMS if f != "fused" or n in HAVE_FUSED]
)
def test_optimizer_follows_cpu(name: str, form: str) -> None:
    kind, arguments = OPTIMIZERS[name]
    options = FORMS[form]
    host = _model()
    device = copy.deepcopy(host).to(NEURON)
    data = torch.randn(4, 6)
    _train(device, kind(device.parameters(), **arguments, **options), data.to(NEURON))
    _train(host, kind(host.parameters(), **arguments, foreach=False), data)
    same(device.state_dict(), host.state_dict(), rtol=1e-4, atol=1e-5)


def test_state_is_on_the_device_and_survives_copying_and_loading() -> None:
    model, data = _model().to(NEURON), torch.randn(4, 6, device=NEURON)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    _train(model, optimizer, data)
    state = optimizer.state[model[0].weight]
    assert state["exp_avg"].is_neuron
    copied = copy.deepcopy(optimizer)
    assert next(iter(copied.state.values()))["exp_avg"].is_neuron
    other = copy.deepcopy(model)
    loaded = torch.optim.AdamW(other.parameters(), 0.01)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert loaded.state[other[0].weight]["exp_avg"].is_neuron
    _train(model, optimizer, data, 1)
    _train(other, loaded, data, 1)
    same(other.state_dict(), model.state_dict())


def test_state_loaded_from_the_host_moves_to_the_parameters_device() -> None:
    host = _model()
    optimizer = torch.optim.Adam(host.parameters())
    _train(host, optimizer, torch.randn(4, 6), 1)
    device = copy.deepcopy(host).to(NEURON)
    moved = torch.optim.Adam(device.parameters())
    moved.load_state_dict(optimizer.state_dict())
    assert moved.state[device[0].weight]["exp_avg"].is_neuron


@pytest.mark.parametrize("foreach", [True, False])
def test_clipping(foreach: bool) -> None:
    host = _model()
    host(torch.randn(4, 6)).pow(2).sum().backward()
    device = copy.deepcopy(host).to(NEURON)
    for parameter, of in zip(device.parameters(), host.parameters(), strict=True):
        parameter.grad = of.grad.to(NEURON)
    found = torch.nn.utils.clip_grad_norm_(device.parameters(), 0.5, foreach=foreach)
    wanted = torch.nn.utils.clip_grad_norm_(host.parameters(), 0.5, foreach=foreach)
    assert found.is_neuron
    same(found, wanted, rtol=1e-5, atol=1e-6)
    torch.nn.utils.clip_grad_value_(device.parameters(), 0.01)
    torch.nn.utils.clip_grad_value_(host.parameters(), 0.01)
    same([p.grad for p in device.parameters()], [p.grad for p in host.parameters()], rtol=1e-5, atol=1e-6)


def test_grad_scaler_scales_skips_and_grows() -> None:
    model, data = _model().to(NEURON), torch.randn(4, 6, device=NEURON)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler(NEURON, init_scale=1024.0, growth_interval=1)
    with torch.autocast(NEURON, dtype=torch.float16):
        loss = model(data).float().pow(2).sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    before = model[0].weight.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(model[0].weight, before) and scaler.get_scale() == 2048.0
    before = model[0].weight.detach().clone()
    optimizer.zero_grad()
    scaler.scale(model(data).sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model[0].weight, before) and scaler.get_scale() == 1024.0


def test_learning_rate_tensor_and_schedulers() -> None:
    model, data = _model().to(NEURON), torch.randn(4, 6, device=NEURON)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01, device=NEURON), fused=True)
    _train(model, optimizer, data)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        torch.optim.SGD(model.parameters(), 0.1), 0.5, total_steps=5
    )
    for _ in range(4):
        schedule.optimizer.step()
        schedule.step()
    averaged = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    averaged.update_parameters(model)
    assert next(averaged.parameters()).is_neuron
    closure_optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        closure_optimizer.zero_grad()
        loss = model(data).pow(2).sum()
        loss.backward()
        return loss

    first = closure().item()
    closure_optimizer.step(closure)
    assert closure().item() < first
