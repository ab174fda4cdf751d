"""`torch.neuron`: the device module, with the names that a CUDA user and the real stack's users reach for.

Every function takes a device as torch.cuda's do: None (the current one), an index, a string or a
torch.device.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from opentrn.device import _C, absent, amp, memory, random, streams
from opentrn.device import ranges as nvtx
from opentrn.device.index import resolve
from opentrn.device.memory import (
    device_memory_used,
    empty_cache,
    get_allocator_backend,
    get_per_process_memory_fraction,
    host_memory_stats,
    host_memory_stats_as_nested_dict,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_host_memory_stats,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_peak_host_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from opentrn.device.random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from opentrn.device.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

__all__ = [
    "AcceleratorError", "Event", "OutOfMemoryError", "Stream", "StreamContext", "amp",
    "can_device_access_peer", "clock_rate", "current_device", "current_stream", "default_generators",
    "default_stream", "device", "device_count", "device_memory_used", "device_of", "empty_cache",
    "get_allocator_backend", "get_amp_supported_dtype", "get_arch_list", "get_device_capability",
    "get_device_name", "get_device_properties", "get_per_process_memory_fraction", "get_rng_state",
    "get_rng_state_all", "host_memory_stats", "host_memory_stats_as_nested_dict", "init", "initial_seed",
    "ipc_collect", "is_available", "is_bf16_supported", "is_current_stream_capturing", "is_initialized",
    "is_tf32_supported", "manual_seed", "manual_seed_all", "max_memory_allocated", "max_memory_reserved",
    "mem_get_info", "memory", "memory_allocated", "memory_reserved", "memory_snapshot", "memory_stats",
    "memory_stats_as_nested_dict", "memory_summary", "nvtx", "random", "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats", "reset_max_memory_allocated", "reset_peak_host_memory_stats",
    "reset_peak_memory_stats", "seed", "seed_all", "set_device", "set_per_process_memory_fraction",
    "set_rng_state", "set_rng_state_all", "set_stream", "stream", "streams", "synchronize", "utilization",
]  # fmt: skip

OutOfMemoryError = torch.OutOfMemoryError
AcceleratorError = torch.AcceleratorError

# torch.storage and older libraries ask for it before they make a half-precision tensor.
has_half = True


def __getattr__(name: str) -> Any:
    # Activation checkpointing and fork_rng save the device's random state only where this is true.
    if name == "_initialized":
        return _C.is_attached()
    if name == "comm":
        return importlib.import_module("torch.nn.parallel.comm")
    absent.refuse("torch.neuron", name)


def init() -> None:
    """Attaches the configured machine now instead of at first use."""
    _C.device_count()


def _lazy_init() -> None:
    init()


def _lazy_call(call: Callable[[], Any], **_: Any) -> None:
    """CUDA puts calls off until its first use. Nothing here has to wait."""
    call()


def is_initialized() -> bool:
    return _C.is_attached()


def is_available() -> bool:
    """True: the virtual device needs no hardware."""
    return True


def _is_in_bad_fork() -> bool:
    return _C.is_in_bad_fork()


def device_count() -> int:
    """Logical NeuronCores this process sees."""
    return _C.device_count()


def current_device() -> int:
    return _C.current_device()


def set_device(device: Any) -> None:
    """Makes `device` the current one of the calling thread. A negative index changes nothing, as on CUDA."""
    index = resolve(device)
    if index >= 0:
        _C.set_device(index)


def _exchange_device(index: int) -> int:
    before = _C.current_device()
    if index >= 0:
        _C.set_device(index)
    return before


def _maybe_exchange_device(index: int) -> int:
    return _exchange_device(index)


class device:
    """Context manager: the current device inside the block."""

    def __init__(self, device: Any) -> None:
        self.idx = resolve(device, optional=True)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(self, *_: Any) -> None:
        _exchange_device(self.prev_idx)


class device_of(device):
    """Context manager: the device of `tensor`, or no change for a tensor of another device."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.get_device() if tensor.device.type == "neuron" else -1)


def synchronize(device: Any = None) -> None:
    """Waits, in virtual time, for all work of the device."""
    _C.synchronize(resolve(device, optional=True))


def get_device_name(device: Any = None) -> str:
    """ "neuron:<index>", as the real stack answers; the chip's name is in get_device_properties().name."""
    return f"neuron:{resolve(device, optional=True)}"


class _Properties:
    """What torch.cuda.get_device_properties has, for one logical NeuronCore, plus the machine's own
    numbers."""

    def __init__(self, index: int) -> None:
        from opentrn.device.attach import attached

        machine = attached()
        self.parameters: dict[str, Any] = machine.device_parameters()
        self.index = index
        self.name: str = self.parameters["device_name"]
        self.instance: str = self.parameters["instance"]
        self.total_memory: int = _C.memory_capacity(index)
        self.multi_processor_count: int = self.parameters["cores_per_logical"]
        self.major, self.minor = get_device_capability(index)
        self.is_integrated = False
        self.is_multi_gpu_board = False

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"opentrn: a logical NeuronCore has no property '{name}'\n"
            "  what to do: .parameters has the chip's own numbers"
        )

    def __repr__(self) -> str:
        return (
            f"_NeuronDeviceProperties(name='{self.name}', instance='{self.instance}', "
            f"total_memory={self.total_memory // 2**20}MB, cores={self.multi_processor_count})"
        )


def get_device_properties(device: Any = None) -> _Properties:
    index = resolve(device, optional=True)
    _C.memory_capacity(index)  # refuses an index that is not there
    return _Properties(index)


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """(generation of the NeuronCore, 0): (3, 0) for NeuronCore-v3."""
    from opentrn.device.attach import attached

    generation = str(attached().device_parameters()["core_generation"]).lstrip("v")
    return (int(generation) if generation.isdigit() else 0, 0)


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


def _sleep(cycles: int) -> None:
    """Keeps the current stream busy for `cycles` of the Tensor engine's clock, in virtual time."""
    index = _C.current_device()
    _C.occupy(index, _C.current_stream(index), round(cycles * 1000 / clock_rate(index)))


def is_tf32_supported() -> bool:
    """Whether the attached chip multiplies in TF32 (its chip file has a rate for it)."""
    return get_device_properties().parameters["tensor_tflops_tf32"] > 0


def get_arch_list() -> list[str]:
    """The compiler target of the attached chip."""
    return [get_device_properties().parameters["platform_target"]]


def clock_rate(device: Any = None) -> int:
    """Clock of the Tensor engine in MHz."""
    return round(get_device_properties(device).parameters["tensor_clock_ghz"] * 1000)


def is_current_stream_capturing() -> bool:
    """False: there are no graph captures; torch.compile makes one program of many operators."""
    return False


def _get_generator(device: Any) -> torch.Generator:
    """The default generator of a device, for PyTorch's recorded random operators."""
    return default_generators[resolve(device, optional=True)]


def can_device_access_peer(device: Any, peer: Any) -> bool:
    return resolve(device) != resolve(peer)


def ipc_collect() -> None:
    """There is no inter-process device memory to collect."""


def utilization(device: Any = None) -> int:
    """Busy share of the device so far in virtual time, percent."""
    index = resolve(device, optional=True)
    elapsed = max(_C.device_time(index), _C.host_time(), 1)
    return min(100, round(100 * _C.totals(index)["device_busy_ns"] / elapsed))
