"""The names of `torch.cuda`: which go to `torch.neuron`, which have no effect, which are refused.

Every public name of torch.cuda (2.13) is in one of the tables; a test holds them complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from opentrn.device import memory, neuron, ranges
from opentrn.device.index import resolve
from opentrn.errors import UnsupportedError
from opentrn.port import cuda_devices, cuda_graphs, cuda_streams
from opentrn.port.cuda_devices import to_neuron
from opentrn.port.redirections import LEDGER

# Same name, same meaning: the function of torch.neuron with its devices translated.
FORWARDED = (
    "can_device_access_peer", "current_device", "empty_cache", "get_per_process_memory_fraction",
    "get_rng_state", "get_rng_state_all", "init", "initial_seed", "ipc_collect", "manual_seed",
    "manual_seed_all", "max_memory_allocated", "max_memory_reserved", "mem_get_info", "memory_allocated",
    "memory_reserved", "memory_snapshot", "memory_stats", "memory_stats_as_nested_dict", "memory_summary",
    "reset_accumulated_memory_stats", "reset_max_memory_allocated", "reset_peak_memory_stats", "seed",
    "seed_all", "set_device", "set_per_process_memory_fraction", "set_rng_state", "set_rng_state_all",
    "synchronize", "utilization", "host_memory_stats",
)  # fmt: skip

# Name of torch.cuda → name of torch.neuron.
RENAMED = {
    "memory_cached": "memory_reserved",
    "max_memory_cached": "max_memory_reserved",
    "reset_max_memory_cached": "reset_peak_memory_stats",
    "device_memory_used": "memory_reserved",
    "host_memory_stats_as_nested_dict": "host_memory_stats",
    # What torch's own Python asks of the module of a device type.
    "_exchange_device": "_exchange_device",
    "_maybe_exchange_device": "_maybe_exchange_device",
    "_is_in_bad_fork": "_is_in_bad_fork",
    "_sleep": "_sleep",
}

# Accepted: name → what it answers. They have no effect on this device, and the report says so.
ACCEPTED: dict[str, Any] = {
    "reset_accumulated_host_memory_stats": None,
    "reset_peak_host_memory_stats": None,
    "set_sync_debug_mode": None,
    "get_sync_debug_mode": 0,
    "caching_allocator_enable": None,
    "get_allocator_backend": "native",
    "get_arch_list": ["sm_80"],
    "get_gencode_flags": "-gencode compute=compute_80,code=sm_80",
    "is_tf32_supported": True,
    "is_bf16_supported": True,
    "current_blas_handle": 0,
    "current_solver_handle": 0,
    "memory_usage": 0,
}

# Refused: name → what to use instead.
REFUSED: dict[str, str] = {
    "CUDAPluggableAllocator": "the device has its own allocator: remove the call",
    "change_current_allocator": "the device has its own allocator: remove the call",
    "caching_allocator_alloc": "allocate tensors: torch.empty(n, dtype=torch.uint8, device='cuda')",
    "caching_allocator_delete": "drop the tensor that holds the memory",
    "caching_allocator_disabled": "the device has its own allocator: remove the call",
    "MemPool": "remove it: there is one pool",
    "use_mem_pool": "remove it: there is one pool",
    "get_stream_from_external": "torch.cuda.Stream()",
    "GreenContext": "there is no partition of a core: use several devices",
    "list_gpu_processes": "the virtual device belongs to this process alone",
    "temperature": "the virtual device has no temperature",
    "power_draw": "the virtual device draws no power",
    "clock_rate": "opentrn chips shows the clocks of the chip",
    "check_error": "there are no CUDA error codes: errors are Python exceptions",
}

# What stays as torch has it: classes and modules that need nothing of the driver, or are patched elsewhere.
KEPT = (
    "CudaError", "DeferredCudaCallError", "amp", "cudaStatus", "device", "device_of", "graphs", "has_half",
    "has_magma", "jiterator", "memory", "nccl", "nvtx", "profiler", "random", "sparse", "streams", "tunable",
)  # fmt: skip

# A capability of 8.0 says what holds here: bfloat16 and TF32-like matmuls, none of Hopper's own features.
CAPABILITY = (8, 0)
CUDA_VERSION = "12.8"


class _DeviceProperties:
    """The device's own properties, with the fields that only CUDA has."""

    warp_size = 32
    max_threads_per_multi_processor = 2048
    gcnArchName = ""

    def __init__(self, device: Any = None) -> None:
        self._neuron = neuron.get_device_properties(to_neuron(device))
        self.major, self.minor = CAPABILITY

    def __getattr__(self, name: str) -> Any:
        return getattr(self._neuron, name)

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, "
            f"multi_processor_count={self.multi_processor_count})"
        )


def _is_available() -> bool:
    """True for the script. PyTorch's own Python, which would go on into CUDA libraries, gets the truth."""
    return not cuda_devices.called_by_library() and cuda_devices.device_count() > 0


def _get_device_properties(device: Any = None) -> _DeviceProperties:
    LEDGER.note("torch.cuda.get_device_properties", "the attached logical NeuronCore")
    return _DeviceProperties(device)


def _get_device_name(device: Any = None) -> str:
    return _DeviceProperties(device).name


def _get_device_capability(device: Any = None) -> tuple[int, int]:
    LEDGER.note("torch.cuda.get_device_capability", "8.0 by convention: bfloat16 yes, Hopper's features no")
    return CAPABILITY


class _CudaRuntime:
    """What scripts call on torch.cuda.cudart(): marks for a profiler that is not there, and memory."""

    @staticmethod
    def cudaProfilerStart() -> int:
        return 0

    @staticmethod
    def cudaProfilerStop() -> int:
        return 0

    @staticmethod
    def cudaMemGetInfo(device: Any) -> tuple[int, int]:
        return neuron.mem_get_info(to_neuron(device))

    @staticmethod
    def cudaDeviceSynchronize() -> int:
        neuron.synchronize()
        return 0

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedError(f"the CUDA runtime function {name} has no counterpart", cure="remove the call")


def _cudart() -> _CudaRuntime:
    LEDGER.note("torch.cuda.cudart", "accepted: profiler marks have no effect")
    return _CudaRuntime()


def _tensor_device(value: Any) -> int:
    return value.get_device() if value.device.type == "neuron" else -1


# Names with an implementation of their own.
OWN: dict[str, Any] = {
    "is_available": _is_available,
    "is_initialized": neuron.is_initialized,
    "device_count": cuda_devices.device_count,
    "get_device_properties": _get_device_properties,
    "get_device_name": _get_device_name,
    "get_device_capability": _get_device_capability,
    "cudart": _cudart,
    "Stream": cuda_streams.Stream,
    "Event": cuda_streams.Event,
    "ExternalStream": cuda_streams.ExternalStream,
    "StreamContext": cuda_streams.StreamContext,
    "stream": cuda_streams.stream,
    "set_stream": cuda_streams.set_stream,
    "current_stream": cuda_streams.current_stream,
    "default_stream": cuda_streams.default_stream,
    "default_generators": neuron.default_generators,
    **cuda_graphs.GRAPH_NAMES,
}


def _forwarded(name: str, target: Callable[..., Any], label: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not name.startswith("_"):
            LEDGER.note(f"torch.cuda.{name}", label)
        return target(*map(to_neuron, args), **{key: to_neuron(value) for key, value in kwargs.items()})

    call.__name__ = call.__qualname__ = name
    call.__doc__ = target.__doc__
    return call


def _accepted(name: str, answer: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        LEDGER.note(f"torch.cuda.{name}", "accepted, without effect")
        return answer

    call.__name__ = call.__qualname__ = name
    return call


def _refused(name: str, cure: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        refusal = LEDGER.refuse(f"torch.cuda.{name}", cure)
        raise UnsupportedError(
            f"torch.cuda.{name} has no counterpart on neuron", where=refusal.where, cure=cure
        )

    call.__name__ = call.__qualname__ = name
    return call


def replacements() -> dict[str, Any]:
    """Name of torch.cuda → what stands there under --from-cuda."""
    table: dict[str, Any] = dict(OWN)
    for name, target in {**{name: name for name in FORWARDED}, **RENAMED}.items():
        table[name] = _forwarded(name, getattr(neuron, target), f"torch.neuron.{target}")
    for name, answer in ACCEPTED.items():
        table[name] = _accepted(name, answer)
    for name, cure in REFUSED.items():
        table[name] = _refused(name, cure)
    return table


def _memory_history(enabled: Any = "all", *args: Any, **kwargs: Any) -> None:
    LEDGER.note("torch.cuda.memory._record_memory_history", "torch.neuron.memory._record_memory_history")
    memory._record_memory_history(enabled)


def _index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    return -1 if allow_cpu and str(device) == "cpu" else resolve(to_neuron(device), optional=optional)


def _range(name: str) -> Callable[..., Any]:
    target = getattr(ranges, name)

    def call(*args: Any) -> Any:
        LEDGER.note("torch.cuda.nvtx", "torch.profiler.record_function ranges")
        return target(*args)

    call.__name__ = call.__qualname__ = name
    return call


def _nothing(*_: Any, **__: Any) -> None:
    """Accepted, without effect."""


# Module of torch.cuda → its functions that would reach for a CUDA library.
SUBMODULES: dict[str, dict[str, Any]] = {
    "nvtx": {name: _range(name) for name in ("range_push", "range_pop", "range_start", "range_end", "mark")},
    "profiler": {"start": _nothing, "stop": _nothing, "init": _nothing},
    "jiterator": {
        name: _refused(f"jiterator.{name}", "write it as PyTorch operators, or as an NKI kernel")
        for name in ("_create_jit_fn", "_create_multi_output_jit_fn")
    },
    "tunable": {
        name: (lambda: False)
        if name.endswith("is_enabled")
        else _refused(f"tunable.{name}", "remove the call: there are no GEMM implementations to choose from")
        for name in torch.cuda.tunable.__all__
    },
    "nccl": {"version": lambda: (2, 27, 0), "is_available": lambda tensors: False},
    "memory": {
        "_record_memory_history": _memory_history,
        "_dump_snapshot": memory._dump_snapshot,
        "_snapshot": memory._snapshot,
        "_set_allocator_settings": _nothing,
    },
}


def install() -> None:
    """Puts the replacements into torch.cuda and into its modules that hold the same names."""
    table = replacements()
    cuda: Any = torch.cuda
    holders = [cuda, cuda.memory, cuda.random, cuda.streams, cuda.graphs]
    for name, value in table.items():
        for module in holders:
            if module is cuda or hasattr(module, name):
                setattr(module, name, value)
    for module_name, functions in SUBMODULES.items():
        for name, value in functions.items():
            setattr(getattr(cuda, module_name), name, value)
    # C++ and Python factories ask for these two before the first CUDA device is used.
    cuda._lazy_init = _nothing
    cuda._lazy_call = lambda function, **_: function()
    cuda._get_device_index = _index
    cuda.device_of.__init__ = lambda self, obj: cuda.device.__init__(self, _tensor_device(obj))
    torch.backends.cuda.is_built = lambda: True
    torch.version.cuda = CUDA_VERSION
