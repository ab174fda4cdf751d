"""torch.accelerator and torch.neuron: the current device, its properties, and the names a CUDA user looks
for."""

from __future__ import annotations

import pytest
import torch
from device_helpers import NEURON

# What torch.cuda has and torch.neuron has not, with the reason.
ABSENT = {
    "CUDA's own runtime, error codes and libraries": """
        CudaError DeferredCudaCallError check_error cudaStatus cudart current_blas_handle
        current_solver_handle has_magma
        get_gencode_flags jiterator nccl nvtx tunable profiler GreenContext""",
    "typed storages and tensors, deprecated in PyTorch": """
        BFloat16Storage BFloat16Tensor BoolStorage BoolTensor ByteStorage ByteTensor CharStorage CharTensor
        ComplexDoubleStorage ComplexFloatStorage DoubleStorage DoubleTensor FloatStorage FloatTensor
        HalfStorage
        HalfTensor IntStorage IntTensor LongStorage LongTensor ShortStorage ShortTensor""",
    "old names, deprecated in PyTorch": "max_memory_cached memory_cached reset_max_memory_cached",
    "captured graphs: torch.compile is the way to one program": """
        CUDAGraph graph graph_pool_handle graphs make_graphed_callables""",
    "the allocator is the model of the device's own and cannot be replaced": """
        CUDAPluggableAllocator MemPool caching_allocator_alloc caching_allocator_delete
        caching_allocator_disabled
        caching_allocator_enable change_current_allocator use_mem_pool""",
    "no pointer of another runtime stands for a virtual stream": "ExternalStream get_stream_from_external",
    "telemetry of hardware there is not": "power_draw temperature memory_usage list_gpu_processes",
    "synchronisations are not intercepted": "get_sync_debug_mode set_sync_debug_mode",
    "sparse tensors are refused": "sparse",
}


def test_names_of_cuda() -> None:
    absent = {name for names in ABSENT.values() for name in names.split()}
    missing = {name for name in torch.cuda.__all__ if not hasattr(torch.neuron, name)}
    assert missing == absent & missing and not missing - absent, (
        f"neither there nor explained: {missing - absent}"
    )
    assert not absent - missing, f"there, so no longer to be listed: {absent - missing}"
    assert sorted(torch.neuron.__all__) == sorted(set(torch.neuron.__all__))
    assert all(hasattr(torch.neuron, name) for name in torch.neuron.__all__)


def test_names_of_the_memory_module() -> None:
    for name in ("memory_stats", "memory_summary", "memory_snapshot", "empty_cache", "mem_get_info"):
        assert getattr(torch.neuron.memory, name) is getattr(torch.neuron, name)
    for name in ("_record_memory_history", "_snapshot", "_dump_snapshot"):
        assert callable(getattr(torch.neuron.memory, name))


def test_names_seen_in_use_of_the_real_stack() -> None:
    names = [
        "is_available",
        "device_count",
        "current_device",
        "set_device",
        "get_device_name",
        "get_device_properties",
        "synchronize",
        "empty_cache",
        "memory_allocated",
        "max_memory_allocated",
        "reset_peak_memory_stats",
        "memory_stats",
        "memory_summary",
        "memory_reserved",
        "manual_seed_all",
        "get_rng_state",
        "set_rng_state",
        "get_rng_state_all",
        "set_rng_state_all",
        "is_bf16_supported",
        "Stream",
        "stream",
        "Event",
    ]
    assert [name for name in names if not hasattr(torch.neuron, name)] == []
    assert torch.neuron.get_device_name(1) == "neuron:1"
    assert torch.device(NEURON, torch.neuron.current_device()) == torch.device("neuron:0")
    assert torch.ones(1).to(torch.neuron.current_device()).is_neuron  # an integer is a device


def test_accelerator() -> None:
    assert torch.accelerator.is_available() and torch.accelerator.current_accelerator().type == NEURON
    assert torch.accelerator.device_count() == torch.neuron.device_count()
    torch.accelerator.set_device_index(1)
    assert torch.neuron.current_device() == torch.accelerator.current_device_index() == 1
    with torch.accelerator.device_index(2):
        assert torch.ones(1, device=NEURON).device.index == 2
    with torch.accelerator.device_index(None):
        assert torch.accelerator.current_device_index() == 1
    assert torch.get_device_module() is torch.neuron and torch.get_device_module(NEURON) is torch.neuron
    assert torch.float32 in torch.accelerator.get_device_capability("neuron:0")["supported_dtypes"]
    torch.accelerator.empty_host_cache()


def test_current_device() -> None:
    with torch.neuron.device(3):
        assert torch.neuron.current_device() == 3
        with torch.neuron.device(-1):
            assert torch.neuron.current_device() == 3
        with torch.neuron.device("neuron"):
            assert torch.neuron.current_device() == 3
        with torch.neuron.device_of(torch.ones(1, device="neuron:2")):
            assert torch.neuron.current_device() == 2
        with torch.neuron.device_of(torch.ones(1)):
            assert torch.neuron.current_device() == 3
    with pytest.raises(RuntimeError), torch.neuron.device(1):
        raise RuntimeError
    assert torch.neuron.current_device() == 0
    torch.neuron.set_device(torch.device("neuron:2"))
    assert torch.neuron.current_device() == 2


def test_properties() -> None:
    properties = torch.neuron.get_device_properties(0)
    assert properties.name == "trn2" and properties.total_memory == torch.neuron.mem_get_info()[1]
    assert torch.neuron.get_device_capability() == (properties.major, properties.minor)
    assert "trn2" in repr(properties) and torch.neuron.get_arch_list() == ["trn2"]
    assert torch.neuron.clock_rate() > 100 and torch.neuron.is_tf32_supported()
    assert torch.neuron.can_device_access_peer(0, 1) and 0 <= torch.neuron.utilization() <= 100


@pytest.mark.parametrize(
    "device", ["neuron:99", 99, 128, 1000, "neuron:127", torch.device("neuron", 64)], ids=str
)
@pytest.mark.parametrize(
    "call",
    [
        "set_device",
        "memory_allocated",
        "synchronize",
        "get_device_properties",
        "mem_get_info",
        "current_stream",
        "memory_stats",
        "reset_peak_memory_stats",
        "get_device_name",
        "utilization",
        "get_rng_state",
    ],
)
def test_an_index_that_is_not_there_is_named(call: str, device: object) -> None:
    wanted = device if isinstance(device, int) else torch.device(device).index  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=rf"there is no device neuron:{wanted}\b.*\n.*what to do"):
        getattr(torch.neuron, call)(device)


@pytest.mark.parametrize("device", ["cpu", "cuda:0", torch.device("meta"), 1.5, True], ids=str)
def test_another_kind_of_device_is_refused(device: object) -> None:
    with pytest.raises((ValueError, RuntimeError), match="neuron"):
        torch.neuron.memory_allocated(device)
