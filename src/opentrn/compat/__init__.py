"""Named patches of PyTorch and of libraries that know only the devices they list. Each says why and what
it changes.

A patch is one function in one file; `PATCHES` is the whole list. A patch that waits for a module is applied
when that module is imported, so that `import torch` does not pay for it.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType

from opentrn.compat import (
    autograd,
    data_parallel,
    dlpack,
    flex_attention,
    flop_counter,
    hugging_face,
    inductor,
    kernels,
    process_sharing,
    profiler,
    safetensors,
)

# Module that the patch waits for → the patch, which gets that module.
PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "torch.autograd.graph": autograd.stay_on_the_calling_thread,
    "torch.nn.attention.flex_attention": flex_attention.accept_device,
    "torch._inductor.compile_fx": inductor.refuse_device,
    "torch.autograd.profiler": profiler.mark_operators,
    "torch.nn.parallel.comm": data_parallel.copy_between_devices,
    "torch.multiprocessing.reductions": process_sharing.refuse_device_tensors,
    "torch._tensor": dlpack.name_device,
    "torch._dynamo.trace_rules": kernels.do_not_trace,
    "torch.utils.flop_counter": flop_counter.count_attention,
    "safetensors": safetensors.read_through_host,
    "transformers.utils.import_utils": hugging_face.believe_in_device,
    "accelerate.utils.imports": hugging_face.believe_in_device,
}


class _PatchingFinder(importlib.abc.MetaPathFinder):
    """Applies a patch right after its module has been executed."""

    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        if fullname not in PATCHES:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            PATCHES[fullname](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install_on_import() -> None:
    """Applies the patches of modules that are loaded, and arranges for the others."""
    for name, patch in PATCHES.items():
        if name in sys.modules:
            patch(sys.modules[name])
    sys.meta_path.insert(0, _PatchingFinder())
