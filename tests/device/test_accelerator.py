"""torch.accelerator and torch.neuron: the current device, its properties, and the names a CUDA user looks
for."""

from __future__ import annotations

import pytest
import torch
from device_helpers import NEURON

from opentrn.device import absent


def test_names_of_cuda() -> None:
    """Each is there, or says why not and what to do."""
    missing = {name for name in torch.cuda.__all__ if not hasattr(torch.neuron, name)}
    assert not missing - set(absent.NAMES), f"neither there nor explained: {missing - set(absent.NAMES)}"
    assert not {name for name in absent.NAMES if hasattr(torch.neuron, name)}
    for name in absent.NAMES:
        with pytest.raises(
            AttributeError, match=rf"opentrn: torch.neuron.{name} is not there: .+\n  what to do: .+"
        ):
            getattr(torch.neuron, name)
    with pytest.raises(AttributeError, match=r"opentrn: torch.neuron.memory.MemPool .*\n  what to do"):
        _ = torch.neuron.memory.MemPool
    with pytest.raises(AttributeError, match=r"module 'torch.neuron' has no attribute 'no_such_name'"):
        _ = torch.neuron.no_such_name
    assert sorted(torch.neuron.__all__) == sorted(set(torch.neuron.__all__))
    assert all(hasattr(torch.neuron, name) for name in torch.neuron.__all__)


def test_statistics_have_the_keys_of_cuda() -> None:
    """Keys as torch.cuda.memory_stats documents them."""
    torch.ones(2, device=NEURON)
    kinds = ("current", "peak", "allocated", "freed")
    pools = ("all", "large_pool", "small_pool")
    counts = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes",
              "allocation", "segment", "active", "inactive_split")  # fmt: skip
    keys = {f"{count}.{pool}.{kind}" for count in counts for pool in pools for kind in kinds}
    keys |= {f"{count}.{kind}" for count in ("oversize_allocations", "oversize_segments") for kind in kinds}
    keys |= {"num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free",
             "max_split_size"}  # fmt: skip
    stats = torch.neuron.memory_stats()
    assert keys <= set(stats), keys - set(stats)
    assert stats["num_device_alloc"] - stats["num_device_free"] == stats["segment.all.current"] > 0


def test_properties_that_only_cuda_has() -> None:
    properties = torch.neuron.get_device_properties()
    with pytest.raises(AttributeError, match=r"no property 'warp_size'\n  what to do: .parameters"):
        _ = properties.warp_size
    assert getattr(properties, "warp_size", 32) == 32


def test_ranges_appear_in_the_profile() -> None:
    ranges = torch.neuron.nvtx
    with torch.profiler.profile() as profile:
        assert (ranges.range_push("outer"), ranges.range_push("inner")) == (0, 1)
        ranges.mark("point")
        handle = ranges.range_start("apart")
        assert (ranges.range_pop(), ranges.range_pop(), ranges.range_pop()) == (1, 0, -1)
        ranges.range_end(handle)
        ranges.range_end(handle)  # closed already
        with ranges.range("step {}", 3):
            torch.ones(2, device=NEURON) + 1
        ranges.range("named")(lambda: None)()
    found = {event.key for event in profile.key_averages()}
    assert {"outer", "inner", "point", "apart", "step 3", "named"} <= found


def test_priorities_of_streams() -> None:
    assert torch.neuron.Stream.priority_range() == (0, 0) and torch.neuron.Stream(priority=-1).priority == 0


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
