"""PyTorch's own libraries that take the device type cuda, or NCCL, or a GPU compiler: what each does here."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from multiprocessing import spawn
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from opentrn.compat import PATCHES
from opentrn.errors import UnsupportedError
from opentrn.port import cuda_devices
from opentrn.port.cuda_devices import called_by_library, to_neuron
from opentrn.port.redirections import LEDGER

# ---- torch.distributed -----------------------------------------------------------------------------------


def _collective_backend() -> str:
    """The device's own backend where it is registered, else Gloo (host tensors only)."""
    return "neuron" if "neuron" in dist.Backend.backend_list else "gloo"


def _without_nccl(backend: Any) -> Any:
    """ "nccl" and "cpu:gloo,cuda:nccl" with NCCL replaced; anything else as it is."""
    if not isinstance(backend, str) or "nccl" not in backend.lower():
        return backend
    target = _collective_backend()
    LEDGER.note("the process group backend nccl", f"backend {target}")
    return backend.lower().replace("cuda:", "neuron:").replace("nccl", target)


def _init_process_group(original: Callable[..., Any]) -> Callable[..., Any]:
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        backend = _without_nccl(backend)
        if backend == "gloo":  # it has no device of its own to be bound to
            kwargs.pop("device_id", None)
        elif isinstance(kwargs.get("device_id"), torch.device):
            kwargs["device_id"] = to_neuron(kwargs["device_id"])
        original(backend, *args, **kwargs)

    return init_process_group


def _new_group(original: Callable[..., Any]) -> Callable[..., Any]:
    parameters = list(inspect.signature(original).parameters)

    def new_group(*args: Any, **kwargs: Any) -> Any:
        named = {**dict(zip(parameters, args, strict=False)), **kwargs}
        if "backend" in named:
            named["backend"] = _without_nccl(named["backend"])
        return original(**named)

    return new_group


def _get_backend(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_backend(group: Any = None) -> str:
        """The script that asked for NCCL is told so; PyTorch's own Python gets the truth."""
        name = original(group)
        asked = "the process group backend nccl" in LEDGER.entries
        return "nccl" if asked and name == _collective_backend() and not called_by_library() else name

    return get_backend


def _device_mesh() -> None:
    from torch.distributed import device_mesh

    original = device_mesh.DeviceMesh.__init__

    def initialise(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            LEDGER.note("DeviceMesh('cuda')", "DeviceMesh('neuron')")
        original(self, to_neuron(device_type), *args, **kwargs)

    device_mesh.DeviceMesh.__init__ = initialise  # type: ignore[method-assign]
    original_function = device_mesh.init_device_mesh

    def init_device_mesh(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return original_function(to_neuron(device_type), *args, **kwargs)

    device_mesh.init_device_mesh = init_device_mesh
    dist.init_device_mesh = init_device_mesh  # type: ignore[attr-defined]


def _distributed() -> None:
    if not dist.is_available():
        return
    from torch.distributed import distributed_c10d as c10d

    for name, wrap in (("init_process_group", _init_process_group), ("new_group", _new_group)):
        wrapped = wrap(getattr(c10d, name))
        setattr(c10d, name, wrapped)
        setattr(dist, name, wrapped)
    dist.get_backend = _get_backend(c10d.get_backend)
    dist.is_nccl_available = lambda: True
    _device_mesh()


# ---- nn.DataParallel -------------------------------------------------------------------------------------


def _data_parallel() -> None:
    importlib.import_module("torch.cuda.comm")  # scripts use it without importing it
    # torch.nn.parallel shows the function of the same name.
    module: Any = importlib.import_module("torch.nn.parallel.data_parallel")
    module._get_available_device_type = lambda: "neuron"
    module._get_all_device_indices = lambda: list(range(cuda_devices.device_count()))


# ---- torch.compile ---------------------------------------------------------------------------------------


def _compile(original: Callable[..., Any]) -> Callable[..., Any]:
    def compile(model: Any = None, **kwargs: Any) -> Any:
        """Inductor and CUDA graphs give way to the device's backend, or where it is missing to eager."""
        if kwargs.get("backend", "inductor") in ("inductor", "cudagraphs"):
            from torch._dynamo import list_backends

            found = "neuron" in list_backends(exclude_tags=())
            kwargs["backend"] = "neuron" if found else "eager"
            kwargs.pop("mode", None)
            kwargs.pop("options", None)
            target = "backend neuron" if found else "backend eager: traced, not compiled"
            LEDGER.note("torch.compile(backend='inductor')", target)
        return original(model, **kwargs)

    return compile


def _fake_tensors() -> None:
    """Under tracing a factory's device is decided in Python, before the dispatcher's kernels see it."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    original = FakeTensorMode.dispatch

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs and isinstance(device := kwargs.get("device"), torch.device) and device.type == "cuda":
            kwargs = {**kwargs, "device": to_neuron(device)}
        return original(self, func, types, args, kwargs or {})

    FakeTensorMode.dispatch = dispatch  # type: ignore[method-assign]


def show_cuda_under_tracing(module: ModuleType) -> None:
    """torch._dynamo.variables.tensor: a compiled function that asks for `x.device` sees CUDA too."""
    variable = module.TensorVariable
    device, is_cuda = variable.method_attr_device, variable.method_attr_is_cuda
    if "method_attr_device" not in variable.__dict__:
        return

    def method_attr_device(self: Any, tx: Any) -> Any:
        if self.device is None or self.device.type != "neuron" or _traces_library(tx):
            return device(self, tx)
        return module.VariableTracker.build(tx, cuda_devices.to_cuda(self.device))

    def method_attr_is_cuda(self: Any, tx: Any) -> Any:
        if self.device is None or self.device.type != "neuron" or _traces_library(tx):
            return is_cuda(self, tx)
        return module.VariableTracker.build(tx, True)

    variable.method_attr_device, variable.method_attr_is_cuda = method_attr_device, method_attr_is_cuda


def _traces_library(tx: Any) -> bool:
    return cuda_devices.is_internal(tx.f_globals.get("__name__"))


def _torchscript() -> None:
    from torch.jit import _serialization

    original = _serialization.validate_map_location
    _serialization.validate_map_location = lambda map_location=None: original(to_neuron(map_location))


# ---- the profiler, accelerators, data loading, extensions ------------------------------------------------


def _activities(given: Any) -> Any:
    """ProfilerActivity.CUDA → PrivateUse1, in a list of activities or of {activity: filters}."""
    activity = torch.profiler.ProfilerActivity

    def one(value: Any) -> Any:
        return activity.PrivateUse1 if value == activity.CUDA else value

    if given is None:
        return None
    return [{one(key): rest for key, rest in v.items()} if isinstance(v, dict) else one(v) for v in given]


def _profiler() -> None:
    from torch.autograd import profiler as autograd_profiler
    from torch.autograd import profiler_util
    from torch.profiler import profiler

    original = profiler.profile.__init__

    def initialise(self: Any, *, activities: Any = None, use_cuda: Any = None, **kwargs: Any) -> None:
        activity = torch.profiler.ProfilerActivity
        if use_cuda:
            activities = [activity.CPU, activity.CUDA]
        if activities is not None:
            LEDGER.note("torch.profiler", "ProfilerActivity.PrivateUse1: times are the virtual device's")
        original(self, activities=_activities(activities), **kwargs)

    profiler.profile.__init__ = initialise  # type: ignore[method-assign]
    legacy = autograd_profiler.profile.__init__

    def initialise_legacy(self: Any, enabled: bool = True, *, use_cuda: bool = False, use_device: Any = None,
                          **kwargs: Any) -> None:  # fmt: skip
        legacy(self, enabled, use_device="neuron" if use_cuda else to_neuron(use_device), **kwargs)

    autograd_profiler.profile.__init__ = initialise_legacy  # type: ignore[method-assign]
    table = profiler_util.EventList.table

    def sorted_table(self: Any, sort_by: str | None = None, *args: Any, **kwargs: Any) -> str:
        return table(self, sort_by.replace("cuda", "device") if sort_by else sort_by, *args, **kwargs)

    profiler_util.EventList.table = sorted_table  # type: ignore[method-assign]


def _accelerator() -> None:
    original = torch.accelerator.current_accelerator
    default = torch.get_default_device
    torch.get_default_device = lambda: default() if called_by_library() else cuda_devices.to_cuda(default())

    def current_accelerator(check_available: bool = False) -> torch.device | None:
        found = original(check_available)
        if found is None or called_by_library():
            return found
        return cuda_devices.to_cuda(found)

    torch.accelerator.current_accelerator = current_accelerator


def _data_loader() -> None:
    from torch.utils.data import DataLoader

    original = DataLoader.__init__

    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("pin_memory_device"):
            kwargs["pin_memory_device"] = to_neuron(kwargs["pin_memory_device"])
        original(self, *args, **kwargs)

    DataLoader.__init__ = initialise  # type: ignore[method-assign]


def _spawned_processes() -> None:
    """Processes that the script spawns begin as CUDA scripts too (mp.spawn, spawning DataLoader workers)."""
    original = spawn.get_command_line

    def get_command_line(**kwargs: Any) -> list[str]:
        command = list(original(**kwargs))
        if "-c" in command:
            code = command.index("-c") + 1
            command[code] = f"from opentrn.port.from_cuda import install; install(); {command[code]}"
        return command

    spawn.get_command_line = get_command_line


_KERNEL_CURE = "write it as PyTorch operators, or as an NKI kernel (opentrn kernel)"


def _refuse_extension(what: str) -> UnsupportedError:
    refusal = LEDGER.refuse(what, _KERNEL_CURE)
    return UnsupportedError(
        f"{what} needs the CUDA compiler and a GPU", where=refusal.where, cure=_KERNEL_CURE
    )


def refuse_cuda_extensions(module: ModuleType) -> None:
    """torch.utils.cpp_extension: C++ stays, CUDA is named."""
    load, load_inline = module.load, module.load_inline

    def cuda_extension(*args: Any, **kwargs: Any) -> Any:
        raise _refuse_extension("torch.utils.cpp_extension.CUDAExtension")

    def checked_load(name: str, sources: Any, *args: Any, **kwargs: Any) -> Any:
        listed = [sources] if isinstance(sources, str) else list(sources)
        if kwargs.get("with_cuda") or any(str(source).endswith((".cu", ".cuh")) for source in listed):
            raise _refuse_extension("torch.utils.cpp_extension.load with CUDA sources")
        return load(name, sources, *args, **{"with_cuda": False, **kwargs})

    def checked_load_inline(
        name: str, cpp_sources: Any, cuda_sources: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if cuda_sources or kwargs.get("with_cuda"):
            raise _refuse_extension("torch.utils.cpp_extension.load_inline with CUDA sources")
        return load_inline(name, cpp_sources, cuda_sources, *args, **{"with_cuda": False, **kwargs})

    module.CUDAExtension = cuda_extension  # type: ignore[attr-defined]
    module.load, module.load_inline = checked_load, checked_load_inline  # type: ignore[attr-defined]


# Modules that `import torch` does not load: patched when the script does.
_LATER = {
    "torch.utils.cpp_extension": refuse_cuda_extensions,
    "torch._dynamo.variables.tensor": show_cuda_under_tracing,
}


def _later() -> None:
    for name, patch in _LATER.items():
        PATCHES[name] = patch
        if name in sys.modules:
            patch(sys.modules[name])


def install() -> None:
    """Patches each of the libraries above."""
    _distributed()
    _data_parallel()
    torch.compile = _compile(torch.compile)
    _fake_tensors()
    _torchscript()
    _profiler()
    _accelerator()
    _data_loader()
    _spawned_processes()
    _later()
