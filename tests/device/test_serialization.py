"""torch.save and load, safetensors, pickles and distributed checkpoints carry the device with them."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from device_helpers import NEURON, same, succeeds


def _saved(value: Any, **options: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    buffer.seek(0)
    return buffer


LOCATIONS: dict[str, tuple[Any, str]] = {
    "as saved": (None, "neuron:0"),
    "cpu": ("cpu", "cpu"),
    "neuron": (NEURON, "neuron:0"),
    "another index": ("neuron:1", "neuron:1"),
    "torch.device": (torch.device("neuron", 2), "neuron:2"),
    "dictionary": ({"neuron:0": "cpu"}, "cpu"),
    "dictionary of devices": ({"neuron:0": "neuron:3"}, "neuron:3"),
    "function": (lambda storage, location: storage, "cpu"),
}


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("name", LOCATIONS)
def test_map_location(name: str, weights_only: bool) -> None:
    location, wanted = LOCATIONS[name]
    base = torch.arange(10.0, device=NEURON)
    buffer = _saved({"base": base, "view": base[2:5], "parameter": torch.nn.Parameter(base.clone())})
    loaded = torch.load(buffer, map_location=location, weights_only=weights_only)
    same(loaded["base"], torch.arange(10.0))
    assert all(str(value.device) == wanted for value in loaded.values())
    loaded["base"][2] = 99
    assert loaded["view"][0].item() == 99 and loaded["parameter"].requires_grad


def test_host_file_onto_the_device() -> None:
    loaded = torch.load(
        _saved({"w": torch.ones(2), "half": torch.ones(2).bfloat16()}), map_location="neuron:1"
    )
    assert loaded["w"].device == loaded["half"].device == torch.device("neuron:1")


@pytest.mark.parametrize("location", [None, NEURON, "cpu"])
def test_memory_mapped(tmp_path: Path, location: str | None) -> None:
    torch.save({"w": torch.arange(1000.0, device=NEURON)}, tmp_path / "w.pt")
    loaded = torch.load(tmp_path / "w.pt", mmap=True, map_location=location)
    same(loaded["w"], torch.arange(1000.0))
    assert loaded["w"].device.type == (location or NEURON)


def test_legacy_format_and_storages() -> None:
    tensor = torch.arange(4.0, device=NEURON)
    loaded = torch.load(_saved(tensor, _use_new_zipfile_serialization=False))
    same(loaded, tensor)
    assert loaded.is_neuron
    assert torch.load(_saved(tensor.untyped_storage()), weights_only=False).device.type == NEURON


def test_a_device_that_is_not_attached_is_named() -> None:
    buffer = _saved(torch.ones(2, device="neuron:3"))
    code = f"""
    import io, torch
    data = io.BytesIO({buffer.getvalue()!r})
    try:
        torch.load(data)
    except RuntimeError as error:
        print(error)
    data.seek(0)
    print(torch.load(data, map_location="neuron").device)
    """
    output = succeeds(code, environment={"NEURON_RT_VISIBLE_CORES": "0-1"})
    assert "map_location" in output and output.strip().endswith("neuron:0")


def test_pickle_and_modules() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).to(NEURON)
    copied = pickle.loads(pickle.dumps(model))
    same(copied.state_dict(), model.state_dict())
    assert copied[0].weight.is_neuron and copied[1].running_mean.is_neuron
    whole = torch.load(_saved(model), weights_only=False, map_location="cpu")
    assert whole[0].weight.device.type == "cpu"
    state = torch.load(_saved(model.state_dict()), weights_only=True)
    assert isinstance(state, OrderedDict)
    torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).load_state_dict(state)
    assigned = torch.nn.Sequential(
        torch.nn.Linear(2, 3, device="meta"), torch.nn.BatchNorm1d(3, device="meta")
    )
    assigned.load_state_dict(state, assign=True)
    assert assigned[0].weight.is_neuron
    assert torch.nn.Linear(2, 2, device="meta").to_empty(device=NEURON).weight.is_neuron


def test_conjugate_and_strided_tensors() -> None:
    tensor = torch.randn(3, 4, dtype=torch.complex64, device=NEURON)
    same(torch.load(_saved(tensor.conj())), tensor.conj())
    transposed = torch.load(_saved(tensor.t()))
    same(transposed, tensor.t())
    assert transposed.stride() == tensor.t().stride()


def test_generator_state_travels() -> None:
    state = torch.load(_saved({"rng": torch.neuron.get_rng_state_all()[:2]}))
    torch.neuron.set_rng_state_all(state["rng"])


def test_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    import safetensors.torch as files

    weights = {"a": torch.randn(3, 4, device=NEURON), "b": torch.arange(3, device=NEURON).bfloat16()}
    path = tmp_path / "w.safetensors"
    files.save_file(weights, path)
    for device, wanted in ((NEURON, "neuron:0"), ("neuron:1", "neuron:1"), ("cpu", "cpu")):
        loaded = files.load_file(path, device=device)
        same(loaded, weights)
        assert {str(value.device) for value in loaded.values()} == {wanted}
    with safetensors.safe_open(path, "pt", device="neuron:2") as file:
        assert sorted(file.keys()) == ["a", "b"]
        assert file.get_tensor("a").device.index == 2
        same(file.get_slice("a")[:2], weights["a"][:2])
        assert file.get_slice("a").get_shape() == [3, 4]
    layer = torch.nn.Linear(2, 2).to(NEURON)
    files.save_model(layer, str(path))
    other = torch.nn.Linear(2, 2).to(NEURON)
    files.load_model(other, str(path), device=NEURON)
    same(other.weight, layer.weight)


def test_distributed_checkpoint_of_one_process(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as checkpoint

    model = torch.nn.Linear(3, 3).to(NEURON)
    checkpoint.save({"model": model.state_dict(), "step": 3}, checkpoint_id=tmp_path / "c", no_dist=True)
    other = torch.nn.Linear(3, 3).to(NEURON)
    state = {"model": other.state_dict(), "step": 0}
    checkpoint.load(state, checkpoint_id=tmp_path / "c", no_dist=True)
    same(other.weight, model.weight)
    assert state["step"] == 3 and other.weight.is_neuron
