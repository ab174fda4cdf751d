"""What torch.cuda offers and torch.neuron does not: each name with the reason and what to use instead.

Such a name raises an AttributeError, so that `hasattr` and `getattr(…, None)` answer as for any name that is
not there.
"""

from __future__ import annotations

from typing import NoReturn

_GRAPHS = ("graphs are not captured", 'torch.compile(..., backend="aot_eager"), or call the function itself')
_ALLOCATOR = ("the allocator models the device's own and cannot be replaced", "remove the call")
_POOLS = ("there is one pool of device memory", "remove it; torch.neuron.memory_stats() counts what is held")
_BLOCKS = (
    "memory comes as tensors",
    "torch.empty(n, dtype=torch.uint8, device='neuron'), and drop the tensor to free it",
)
_POINTERS = ("no pointer of another runtime stands for a virtual stream", "torch.neuron.Stream()")
_TELEMETRY = ("virtual hardware has no sensors", "opentrn run SCRIPT reports time, utilization and memory")
_RUNTIME = ("it belongs to CUDA's own runtime and libraries", "remove the call; errors are Python exceptions")
_TYPES = ("it is a deprecated tensor or storage type", "torch.tensor(..., dtype=..., device='neuron')")
_SYNCHRONISATION = (
    "synchronisations are not intercepted",
    "opentrn run --frames SCRIPT records the line of each copy to the host",
)
_PROFILER = ("CUDA's profiler marks have no effect here", "torch.profiler.profile, or opentrn run SCRIPT")


def _typed() -> dict[str, tuple[str, str]]:
    kinds = (
        "BFloat16", "Bool", "Byte", "Char", "ComplexDouble", "ComplexFloat", "Double", "Float", "Half",
        "Int", "Long", "Short",
    )  # fmt: skip
    return {f"{kind}{what}": _TYPES for kind in kinds for what in ("Storage", "Tensor")}


# Name → why it is absent, what to do.
NAMES: dict[str, tuple[str, str]] = {
    **_typed(),
    **dict.fromkeys(("CUDAGraph", "graph", "graph_pool_handle", "graphs", "make_graphed_callables"), _GRAPHS),
    **dict.fromkeys(
        (
            "CUDAPluggableAllocator",
            "caching_allocator_disabled",
            "caching_allocator_enable",
            "change_current_allocator",
            "_set_allocator_settings",
        ),
        _ALLOCATOR,
    ),
    **dict.fromkeys(("MemPool", "use_mem_pool", "MemPoolContext"), _POOLS),
    **dict.fromkeys(("caching_allocator_alloc", "caching_allocator_delete"), _BLOCKS),
    **dict.fromkeys(("ExternalStream", "get_stream_from_external"), _POINTERS),
    **dict.fromkeys(("power_draw", "temperature", "memory_usage"), _TELEMETRY),
    **dict.fromkeys(("get_sync_debug_mode", "set_sync_debug_mode"), _SYNCHRONISATION),
    **dict.fromkeys(
        (
            "CudaError",
            "DeferredCudaCallError",
            "check_error",
            "cudaStatus",
            "cudart",
            "current_blas_handle",
            "current_solver_handle",
            "has_magma",
            "get_gencode_flags",
        ),
        _RUNTIME,
    ),
    "profiler": _PROFILER,
    "list_gpu_processes": (
        "the virtual device belongs to this process alone",
        "torch.neuron.memory_summary() shows what it holds",
    ),
    "nccl": ("collectives are torch.distributed's", 'torch.distributed.init_process_group("neuron")'),
    "jiterator": ("it compiles CUDA C++", "PyTorch operators, or an NKI kernel (opentrn kernel)"),
    "tunable": ("there are no GEMM implementations to choose from", "remove the call"),
    "GreenContext": ("a core is not partitioned", "use several devices"),
    "green_contexts": ("a core is not partitioned", "use several devices"),
    "sparse": ("sparse tensors are refused", "keep them on the host, or make them dense"),
    "memory_cached": ("it is the old name of memory_reserved", "torch.neuron.memory_reserved()"),
    "max_memory_cached": ("it is the old name of max_memory_reserved", "torch.neuron.max_memory_reserved()"),
    "reset_max_memory_cached": (
        "it is the old name of reset_peak_memory_stats",
        "torch.neuron.reset_peak_memory_stats()",
    ),
}


def refuse(module: str, name: str) -> NoReturn:
    """AttributeError for a name that `module` ("torch.neuron") lacks; with reason and cure where known."""
    if name in NAMES:
        reason, cure = NAMES[name]
        raise AttributeError(f"opentrn: {module}.{name} is not there: {reason}\n  what to do: {cure}")
    raise AttributeError(f"module '{module}' has no attribute '{name}'")
