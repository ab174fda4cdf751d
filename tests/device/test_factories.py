"""Every way of making a tensor on the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from device_helpers import NEURON, same

FACTORIES = {
    "zeros": lambda d: torch.zeros(2, 3, device=d),
    "ones": lambda d: torch.ones(2, 3, dtype=torch.int64, device=d),
    "full": lambda d: torch.full((2, 3), 7, device=d),
    "full bool": lambda d: torch.full((2,), True, device=d),
    "eye": lambda d: torch.eye(3, 4, device=d),
    "arange": lambda d: torch.arange(1, 10, 2, device=d),
    "arange float": lambda d: torch.arange(0.0, 1.0, 0.25, device=d),
    "linspace": lambda d: torch.linspace(-1, 1, 5, device=d),
    "logspace": lambda d: torch.logspace(0, 2, 3, device=d),
    "tril_indices": lambda d: torch.tril_indices(4, 4, device=d),
    "triu_indices": lambda d: torch.triu_indices(4, 5, 1, device=d),
    "tensor": lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
    "tensor scalar": lambda d: torch.tensor(3.5, device=d),
    "tensor complex": lambda d: torch.tensor([1 + 2j], device=d),
    "tensor empty": lambda d: torch.tensor([], device=d),
    "as_tensor": lambda d: torch.as_tensor([1.0, 2.0], device=d),
    "asarray": lambda d: torch.asarray(np.arange(3), device=d),
    "as_tensor numpy": lambda d: torch.as_tensor(np.ones((2, 2), np.float32), device=d),
    "hann_window": lambda d: torch.hann_window(8, device=d),
    "scalar_tensor": lambda d: torch.scalar_tensor(2, device=d),
    "zeros_like": lambda d: torch.zeros_like(torch.ones(3).t(), device=d),
    "full_like": lambda d: torch.full_like(torch.ones(3), 4, device=d),
    "vander": lambda d: torch.vander(torch.arange(3, device=d)),
    "complex": lambda d: torch.complex(torch.ones(2, device=d), torch.zeros(2, device=d)),
    "polar": lambda d: torch.polar(torch.ones(2, device=d), torch.zeros(2, device=d)),
    "meshgrid": lambda d: torch.meshgrid(torch.arange(2, device=d), torch.arange(3, device=d), indexing="ij")[
        1
    ],
    "one_hot": lambda d: torch.nn.functional.one_hot(torch.arange(3, device=d), 4),
    "new_tensor": lambda d: torch.ones(1, device=d).new_tensor([1, 2]),
    "new_zeros": lambda d: torch.ones(1, device=d).new_zeros(2),
    "new_full": lambda d: torch.ones(1, device=d).new_full((2,), 3),
    "fft frequencies": lambda d: torch.fft.fftfreq(5, device=d),
    "block_diag": lambda d: torch.block_diag(torch.ones(1, 2, device=d), torch.ones(2, 1, device=d)),
    "cartesian_prod": lambda d: torch.cartesian_prod(torch.arange(2, device=d), torch.arange(2, device=d)),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factory(name: str) -> None:
    found, wanted = FACTORIES[name](NEURON), FACTORIES[name]("cpu")
    assert found.device == torch.device("neuron:0")
    same(found, wanted)
    assert found.stride() == wanted.stride()


@pytest.mark.parametrize("maker", [torch.empty, torch.rand, torch.randn])
def test_index_of_the_device(maker) -> None:  # type: ignore[no-untyped-def]
    assert maker(2, device="neuron:3").device.index == 3
    assert maker(2, device=torch.device("neuron", 2)).device.index == 2
    with torch.neuron.device(1):
        assert maker(2, device=NEURON).device.index == 1
    assert maker(2, device=NEURON).device.index == 0


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.complex64]
)
def test_dtypes_and_memory_formats(dtype: torch.dtype) -> None:
    tensor = torch.empty(2, 3, 4, 5, dtype=dtype, device=NEURON, memory_format=torch.channels_last)
    assert tensor.dtype == dtype and tensor.is_contiguous(memory_format=torch.channels_last)
    assert torch.empty_like(tensor).stride() == tensor.stride()
    assert torch.empty_strided((2, 3), (1, 5), dtype=dtype, device=NEURON).stride() == (1, 5)
    assert torch.empty_permuted((2, 3, 4), (0, 2, 1), device=NEURON).stride() == (12, 1, 3)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_eight_bit_floats(dtype: torch.dtype) -> None:
    edge = torch.tensor(
        [447.0, 448.0, 449.0, 464.0, 465.0, 1e3, -1e4, float("inf"), 0.0, -0.0, 2**-9, 2**-10]
    )
    values = torch.cat([edge, torch.randn(1000) * 100])
    same(values.to(NEURON).to(dtype).view(torch.uint8), values.to(dtype).view(torch.uint8))
    same(values.to(NEURON).bfloat16().to(dtype).float(), values.bfloat16().to(dtype).float())


def test_default_device_and_device_context() -> None:
    with torch.device(NEURON):
        assert torch.ones(2).device.type == NEURON and torch.nn.Linear(2, 2).weight.device.type == NEURON
    torch.set_default_device("neuron:1")
    for tensor in (torch.zeros(1), torch.tensor([1, 2]), torch.arange(3), torch.randperm(4), torch.eye(2)):
        assert tensor.device == torch.device("neuron:1")
    assert torch.get_default_device() == torch.device("neuron:1")


def test_methods_and_flags_of_a_tensor() -> None:
    tensor = torch.ones(2).neuron()
    assert tensor.is_neuron and not torch.ones(2).is_neuron and not tensor.is_cuda and not tensor.is_cpu
    assert tensor.get_device() == 0 and tensor.type() == "torch.neuron.FloatTensor"
    assert torch.nn.Linear(2, 2).neuron().weight.is_neuron
    assert torch.ones(2).neuron(1).device.index == 1
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2, 3), torch.ones(1, 3)]).to(NEURON)
    assert packed.data.is_neuron and not packed.is_cuda


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.0),
        torch.empty(0),
        torch.randn(3, 3).bfloat16(),
        torch.arange(2000),
        torch.tensor([float("nan"), float("inf")]),
        torch.tensor([1 + 2j]),
        torch.tensor([True]),
        torch.randn(4).to(torch.float8_e4m3fn),
    ],
    ids=["scalar", "empty", "bfloat16", "long", "not-finite", "complex", "boolean", "float8"],
)
def test_printing(tensor: torch.Tensor) -> None:
    text = repr(tensor.to(NEURON))
    assert text.startswith("tensor(") and "device='neuron:0'" in text
    # The device may wrap the line differently.
    assert "".join(
        text.replace(", device='neuron:0'", "").replace("device='neuron:0', ", "").split()
    ) == "".join(repr(tensor).split())


def test_conversion_to_python() -> None:
    assert torch.ones(2, 2, device=NEURON).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert int(torch.tensor(3, device=NEURON)) == 3 and bool(torch.tensor(True, device=NEURON))
    assert f"{torch.tensor(1.5, device=NEURON):.2f}" == "1.50"
    assert [10, 20, 30][torch.tensor(1, device=NEURON)] == 20
    assert 3 in torch.arange(4, device=NEURON) and len(torch.ones(4, device=NEURON)) == 4
    with pytest.raises(TypeError, match="cpu"):
        torch.ones(2, device=NEURON).numpy()
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(torch.ones(2, device=NEURON))
