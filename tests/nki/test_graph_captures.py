"""Kernels in functions that torch.compile captures whole: each call is one operator of the graph."""

from __future__ import annotations

import neuronxcc.nki as classic
import neuronxcc.nki.language as cl
import nki.isa as nisa
import nki.language as nl
import pytest
import torch

import nki
from opentrn.errors import ConfigurationError
from opentrn.nki import nki_op, wrap_nki


@nki.jit
def scaled(x, factor=2.0, settings=None):
    out, tile = nl.ndarray(x.shape, x.dtype, nl.shared_hbm), nl.load(x)
    nisa.tensor_scalar(
        dst=tile, data=tile, op0=nl.multiply, operand0=factor * (settings or {}).get("more", 1)
    )
    nl.store(out, tile)
    return out


@nki.jit
def both(x, y):
    results = [nl.ndarray(t.shape, t.dtype, nl.shared_hbm) for t in (y, x)]
    nisa.dma_copy(dst=results[0], src=y)
    nisa.dma_copy(dst=results[1], src=x)
    return tuple(results)


@nki.jit
def halves(x):
    out, rows = nl.ndarray(x.shape, x.dtype, nl.shared_hbm), x.shape[0] // nl.num_programs(0)
    first = nl.program_id(0) * rows
    nisa.dma_copy(dst=out[first : first + rows], src=x[first : first + rows])
    return out


@nki.jit
def add_one(x):
    tile = nl.load(x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    nl.store(x, tile)


@classic.jit
def classic_square(x):
    out = cl.ndarray(x.shape, dtype=x.dtype, buffer=cl.shared_hbm)
    cl.store(out, cl.square(cl.load(x)))
    return out


WRAPPED, ON_BOTH = wrap_nki(scaled), wrap_nki(halves)[2]
CALLS = [
    lambda x: scaled(x) + 1,
    lambda x: WRAPPED(x=x + 1, factor=3.0),
    lambda x: WRAPPED[1](x=x),
    lambda x: scaled(scaled(x, settings={"more": 4}).sin(), 0.5),
    lambda x: torch.cat(both(x, x[:64])),
    lambda x: ON_BOTH(x=x),
    lambda x: halves[2](x),
    lambda x: classic_square(x) * 2,
]


@pytest.fixture(autouse=True)
def _nothing_is_compiled():
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("device", ["cpu", "neuron"])
@pytest.mark.parametrize("place", range(len(CALLS)))
def test_a_whole_function_is_captured(backend, device, place):
    call = CALLS[place]
    x = torch.randn(128, 32).to(device)
    compiled = torch.compile(call, fullgraph=True, backend=backend)
    for given in (x, x * 2, x[:, :16].contiguous()):
        assert torch.equal(compiled(given).cpu(), call(given).cpu())
    with torch.inference_mode():
        assert torch.equal(compiled(x).cpu(), call(x).cpu())


def test_constants_of_a_call_are_its_own():
    compiled = torch.compile(lambda x, f: scaled(x, f), fullgraph=True, backend="eager")
    x = torch.ones(8, 8)
    assert [float(compiled(x, f)[0, 0]) for f in (2.0, 3.0, 2.0)] == [2.0, 3.0, 2.0]


def test_a_module_with_a_kernel_trains_around_it():
    """The kernel has no backward, and says so; without gradients the module is one graph."""
    module = torch.nn.Linear(32, 32)

    def forward(x):
        return WRAPPED(x=module(x))

    compiled = torch.compile(forward, fullgraph=True, backend="eager")
    x = torch.randn(16, 32)
    with torch.no_grad():
        assert torch.equal(compiled(x), forward(x))
    result = compiled(x)
    with pytest.raises(ConfigurationError, match="nki_op"):
        result.sum().backward()


@nki_op("opentrn_tests::square", mutates_args=())
def square(x: torch.Tensor) -> torch.Tensor:
    return classic_square(x)


def keep_argument(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


square.register_autograd(
    lambda ctx, gradient: 2 * ctx.saved_tensors[0] * gradient, setup_context=keep_argument
)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_an_operator_with_a_backward(backend):
    x = torch.randn(16, 32, requires_grad=True)
    torch.compile(lambda x: square(x).sum(), fullgraph=True, backend=backend)(x).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_a_kernel_that_writes_its_argument_is_refused():
    compiled = torch.compile(lambda x: add_one(x), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="mutates_args"):
        compiled(torch.ones(8, 8))
