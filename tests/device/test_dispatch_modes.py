"""Python modes above the device: counting, fake tensors, tracing, function transforms, tensor subclasses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from device_helpers import NEURON, agrees, same
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count


class _Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def _attention() -> torch.Tensor:
    query = torch.randn(2, 4, 8, 16, device=NEURON, requires_grad=True)
    return F.scaled_dot_product_attention(query, query, query)


def test_flops_are_those_of_the_formulae() -> None:
    layer, data = torch.nn.Linear(8, 8).to(NEURON), torch.randn(4, 8, device=NEURON)
    with FlopCounterMode(display=False) as counter:
        layer(data)
    assert counter.get_total_flops() == 2 * 4 * 8 * 8
    shape = (2, 4, 8, 16)
    with FlopCounterMode(display=False) as counter:
        _attention().sum().backward()
    assert counter.get_total_flops() == sdpa_flop_count(shape, shape, shape) + sdpa_backward_flop_count(
        *[shape] * 4
    )
    with FlopCounterMode(display=False) as counter:
        F.conv2d(torch.ones(1, 3, 8, 8, device=NEURON), torch.ones(4, 3, 3, 3, device=NEURON))
    assert counter.get_total_flops() == 2 * 36 * 4 * 27


def test_modes_nest() -> None:
    inner, outer = _Names(), _Names()
    with outer, FlopCounterMode(display=False) as counter, inner:
        _attention().sum().backward()
    assert counter.get_total_flops() > 0
    wanted = "aten._scaled_dot_product_fused_attention_overrideable.default"
    assert wanted in inner.seen and wanted in outer.seen


def test_fake_tensors_take_no_memory_and_know_the_device(clean_memory: None) -> None:
    before = torch.neuron.memory_allocated()
    with FakeTensorMode() as mode, torch.device(NEURON):
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3),
            torch.nn.BatchNorm2d(4),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(144, 5),
        )
        output = model(torch.randn(2, 3, 8, 8))
        output.sum().backward()
        assert isinstance(output, FakeTensor) and output.device == torch.device("neuron:0")
        assert model[0].weight.grad.device.type == NEURON
        attended = F.scaled_dot_product_attention(*[torch.randn(1, 2, 8, 16, requires_grad=True)] * 3)
        attended.sum().backward()
        assert torch.nn.LSTM(4, 4)(torch.randn(3, 2, 4))[0].shape == (3, 2, 4)
        huge = torch.empty(1 << 40)
        assert (huge + 1).device.type == NEURON
    # PyTorch keeps the value of a constant (BatchNorm's step counter) beside its fake tensor; nothing else
    # is real.
    assert torch.neuron.memory_allocated() - before <= 256
    converted = mode.from_tensor(torch.ones(2, 3, device="neuron:1"))
    assert (converted @ converted.T).device == torch.device("neuron:1")


def test_tracing() -> None:
    data = torch.randn(5, 3, device=NEURON)
    traced = make_fx(lambda t: (t @ t.t()).relu().sum())(data)
    same(traced(data), (data @ data.t()).relu().sum())
    symbolic = make_fx(grad(lambda t: (t.sin() * t).sum()), tracing_mode="symbolic")(data)
    other = torch.randn(7, 2, device=NEURON)
    same(symbolic(other), grad(lambda t: (t.sin() * t).sum())(other), rtol=1e-6, atol=1e-6)
    layer = torch.nn.Linear(3, 2).to(NEURON)
    same(torch.export.export(layer, (data,)).module()(data), layer(data))
    same(torch.jit.trace(layer, data)(data), layer(data))
    same(torch.jit.script(layer)(data), layer(data))
    same(torch.func.functionalize(lambda t: t.clone().add_(1).view(-1))(data), (data + 1).view(-1))


TRANSFORMS = {
    "vmap of grad": vmap(grad(lambda t: (t.sin() * t).sum())),
    "jacrev": lambda x: jacrev(torch.tanh)(x[0]),
    "jacfwd": lambda x: jacfwd(torch.tanh)(x[0]),
    "hessian": lambda x: hessian(lambda t: (t.sin() * t).sum())(x[0]),
    "jvp": lambda x: jvp(lambda t: (t.exp() * t).sum(), (x,), (torch.ones_like(x),)),
    "vjp": lambda x: vjp(torch.cos, x)[1](torch.ones_like(x)),
    "vmap of linear algebra": vmap(lambda t: torch.outer(t, t) @ t),
    "linearize": lambda x: torch.func.linearize(lambda t: (t.sin() * t).sum(), x)[1](torch.ones_like(x)),
    "nested vmap": vmap(vmap(lambda t: t * 2 + 1)),
    "vmap of softmax": vmap(lambda t: t.softmax(-1)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_function_transforms(name: str) -> None:
    agrees(TRANSFORMS[name], torch.randn(5, 3), rtol=1e-5, atol=1e-6)


def test_functional_modules() -> None:
    host = torch.nn.Linear(3, 2)
    device = copy.deepcopy(host).to(NEURON)
    data = torch.randn(5, 3)
    doubled = {name: value * 2 for name, value in device.named_parameters()}
    same(functional_call(device, doubled, (data.to(NEURON),)), F.linear(data, host.weight * 2, host.bias * 2))

    def loss(parameters: dict[str, torch.Tensor], one: torch.Tensor) -> torch.Tensor:
        return functional_call(host, parameters, (one,)).pow(2).sum()

    agrees(vmap(grad(loss), in_dims=(None, 0)), dict(host.named_parameters()), data, rtol=1e-5, atol=1e-6)
    models = [torch.nn.Linear(3, 2).to(NEURON) for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    together = vmap(lambda p, b, x: functional_call(models[0], (p, b), (x,)), in_dims=(0, 0, None))
    same(
        together(parameters, buffers, data.to(NEURON)),
        torch.stack([m(data.to(NEURON)) for m in models]),
        rtol=1e-5,
        atol=1e-6,
    )


def test_random_numbers_under_vmap() -> None:
    data = torch.zeros(4, 8, device=NEURON)
    different = vmap(lambda t: torch.randn(8, device=NEURON) + t, randomness="different")(data)
    alike = vmap(lambda t: torch.randn(8, device=NEURON) + t, randomness="same")(data)
    assert not torch.equal(different[0], different[1]) and torch.equal(alike[0], alike[1])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(lambda t: torch.randn(8, device=NEURON) + t)(data)


class _Wrapped(torch.Tensor):
    """A tensor subclass that holds another tensor, as quantisation and sharding libraries make them."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> _Wrapped:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), dtype=inner.dtype, device=inner.device, requires_grad=inner.requires_grad
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tree_map_only = torch.utils._pytree.tree_map_only
        unwrapped = tree_map_only(_Wrapped, lambda t: t.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, _Wrapped, func(*unwrapped[0], **unwrapped[1]))


def test_wrapper_subclass() -> None:
    host = torch.randn(3, 3)
    wrapped = _Wrapped(host).to(NEURON)
    assert isinstance(wrapped, _Wrapped) and wrapped.device.type == wrapped.inner.device.type == NEURON
    same(((wrapped @ wrapped).relu() + 1).inner, (host @ host).relu() + 1)
    leaf = _Wrapped(torch.randn(3, 3, device=NEURON)).requires_grad_()
    (leaf * leaf).sum().backward()
    same(leaf.grad.inner, 2 * leaf.inner)


def test_plain_subclass_and_parameter_swapping() -> None:
    class Named(torch.Tensor):
        pass

    named = torch.ones(3, device=NEURON).as_subclass(Named)
    assert isinstance(named + 1, Named) and (named + 1).is_neuron and named.tolist() == [1, 1, 1]
    first, second = torch.nn.Parameter(torch.ones(2, device=NEURON)), torch.nn.Parameter(torch.zeros(2))
    torch.utils.swap_tensors(first, second)
    assert first.device.type == "cpu" and second.sum().item() == 2
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        layer = torch.nn.Linear(2, 2)
        weight = layer.weight
        layer.to(NEURON)
        assert layer.weight is weight and weight.is_neuron
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
