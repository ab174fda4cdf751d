"""Modules that the public suites import and that nobody but the vendor ships: names only, over our own `nki`.

Used by the pytest plugin of `opentrn quality nki`; never installed otherwise.
"""

from __future__ import annotations

import builtins
import enum
import io
import os
import sys
import types
from typing import Any

import numpy as np

from opentrn.nki.arguments import rebuild

_PRODUCT_FILE = "/sys/devices/virtual/dmi/id/product_name"


def _module(name: str, **contents: Any) -> types.ModuleType:
    module = sys.modules.get(name)
    if module is None:
        module = types.ModuleType(name)
        sys.modules[name] = module
        parent, _, leaf = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], leaf, module)
    module.__dict__.update(contents)
    return module


def install_simulator() -> None:
    """`nki_cpu_simulator`: the closed package's names for our modules; and `neuron_dtypes`."""
    import nki.builtin
    import nki.compiler
    import nki.dtype
    import nki.isa
    import nki.isa.constants
    import nki.language
    import nki.tensor
    import nki.typing

    import nki
    from opentrn.nki.classic import starfish

    root = _module("nki_cpu_simulator", nki=nki)
    root.__path__ = []  # type: ignore[attr-defined]
    for name, target in {
        "nki": nki,
        "nki.builtin": nki.builtin,
        "nki.compiler": nki.compiler,
        "nki.isa": nki.isa,
        "nki.isa.constants": nki.isa.constants,
        "nki.language": nki.language,
        "nki.language.dtypes": nki.dtype,
        "nki.tensor": nki.tensor,
        "nki.typing": nki.typing,
    }.items():
        sys.modules[f"nki_cpu_simulator.{name}"] = target
    _module("neuron_dtypes", **{k: v for k, v in vars(starfish).items() if not k.startswith("__")})


def install_packed_names() -> None:
    """``str(dtype)`` of a packed type is its name, as that of the vendor's own NumPy types; the library looks
    its parameters up by it."""
    import numpy._core._dtype as numpy_dtype

    from opentrn.nki.dtypes import ELEMENT_OF

    original = numpy_dtype._struct_str

    def struct_str(dtype: Any, include_align: Any) -> Any:
        packed = dtype.names is not None and len(dtype.names) == 1 and dtype.names[0] in ELEMENT_OF
        return dtype.names[0] if packed else original(dtype, include_align)

    numpy_dtype._struct_str = struct_str


def install_missing_test_modules() -> None:
    """Files that the public kernel library's tests import and its repository lacks."""

    class LockStatus(enum.Enum):
        ALLOCATED = "allocated"
        DRAINED = "drained"
        FLOCK_TIMEOUT = "timeout"
        DRAINING = "draining"
        NO_CORES = "no cores"
        ERROR = "error"
        RELEASED = "released"

    class LockResult:
        """Result of locking a remote device; simulation locks none."""

    _module("test.utils.perf_analysis_private", analyze_trace=lambda *args, **kwargs: None)
    scripts = _module("test.utils.scripts")
    scripts.__path__ = []  # type: ignore[attr-defined]
    _module("test.utils.scripts.remote_lock_scripts", LockStatus=LockStatus, LockResult=LockResult)


def install_product_name() -> None:
    """Tests read the instance type from a system file; answer with the attached instance."""
    from opentrn.chips.machine import machine

    original = builtins.open

    def opened(file: Any, *args: Any, **kwargs: Any) -> Any:
        if file == _PRODUCT_FILE:
            return io.StringIO(machine().name + "\n")
        return original(file, *args, **kwargs)

    builtins.open = opened  # type: ignore[assignment]


def install_orchestrator(module: types.ModuleType, probe: Any) -> None:
    """Complete the library's simulation mode: an attribute that only its compiling modes set, and kernels of
    several ranks, whose outputs go to a folder per rank as its validator expects them.

    probe: told whether a case is one that the suite expects to be refused.
    """
    from test.utils import simulation_setup
    from test.utils.common_dataclasses import PerRankLazyInputGenerator
    from test.utils.exceptions import InferenceException
    from test.utils.ranged_test_harness import is_in_negative_test_context

    orchestrator = module.Orchestrator
    if hasattr(orchestrator, "_compiled_kernel"):
        return
    orchestrator._compiled_kernel = None
    simulate, execute = orchestrator._run_simulator_inference, orchestrator.execute

    def noted(self: Any, kernel_under_test: Any) -> Any:
        probe.negative = is_in_negative_test_context()
        return execute(self, kernel_under_test)

    def simulated(self: Any, kernel_under_test: Any) -> Any:
        ranks = kernel_under_test.inference_args.collective_ranks
        if ranks == 1 and not isinstance(kernel_under_test.kernel_input, PerRankLazyInputGenerator):
            return simulate(self, kernel_under_test)
        try:
            outputs = _simulate_ranks(kernel_under_test, ranks)
        except Exception as error:
            raise InferenceException(str(error)) from error
        return _write_ranks(self, outputs)

    orchestrator.execute, orchestrator._run_simulator_inference = noted, simulated
    _simulate_as_a_device(simulation_setup)
    _compare_packed_by_element(module.OutputValidator)


class PackedOutput:
    """A packed result that becomes the bytes of another type, not its numbers, where a suite asks for one: it
    reads what a device wrote as the type of its expected values."""

    def __init__(self, words: Any) -> None:
        self.words = words

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.words if dtype is None else self.words.view(dtype)


def _simulate_as_a_device(simulation: types.ModuleType) -> None:
    """The library's simulation mode takes and gives arrays as its device mode does, which passes files."""
    simulate = simulation.simulate_kernel

    def simulated(kernel: Any, inputs: dict[str, Any], cores: int) -> list[Any]:
        return [as_output(value) for value in simulate(kernel, as_inputs(inputs), cores)]

    simulation.simulate_kernel = simulated  # type: ignore[attr-defined]


def as_inputs(inputs: dict[str, Any]) -> dict[str, Any]:
    """Arguments that a kernel cannot change: expected values are computed from them afterwards."""

    def read_only(path: str, array: Any) -> Any:
        view = np.asarray(array).view()
        view.flags.writeable = False
        return view

    return {name: rebuild(value, name, read_only) for name, value in inputs.items()}


def as_output(value: Any) -> Any:
    """A kernel's result as a suite's expected type may be asked of it."""
    return PackedOutput(value) if value.dtype.names else value


def _compare_packed_by_element(validator: Any) -> None:
    """The library unpacks packed outputs where they cannot be cast to float32; NumPy would cast our words."""

    class Words(np.ndarray):
        def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
            if self.dtype.names:
                raise TypeError(f"{self.dtype} does not convert to {dtype}")
            return super().astype(dtype, *args, **kwargs)

    compare = validator._compare_outputs

    def compared(self: Any, actual_outputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        words = {name: v.view(Words) if v.dtype.names else v for name, v in actual_outputs.items()}
        return compare(self, words, *args, **kwargs)

    validator._compare_outputs = compared


def _simulate_ranks(kernel_under_test: Any, ranks: int) -> list[dict[str, Any]]:
    """Each rank's outputs by the names of its golden values."""
    from test.utils.common_dataclasses import PerRankLazyInputGenerator, normalize_golden_output

    import nki

    given: Any = kernel_under_test.kernel_input or {}
    per_rank = isinstance(given, PerRankLazyInputGenerator)
    calls = [
        {
            name.removesuffix(".must_alias_input"): value
            for name, value in as_inputs(given.for_rank(rank) if per_rank else given).items()
        }
        for rank in range(ranks)
    ]
    compiler = kernel_under_test.compiler_input
    os.environ["NKI_NC_VERSION"] = compiler.platform_target.get_nc_gen()
    results = nki.cpu_simulate(kernel_under_test.kernel_func)[compiler.logical_nc_config].ranks(calls)
    named = []
    for rank, result in enumerate(results):
        values = [] if result is None else list(result) if isinstance(result, (list, tuple)) else [result]
        golden = normalize_golden_output(kernel_under_test.validation_args.golden_output, rank)
        if len(values) != len(golden):
            raise RuntimeError(f"rank {rank} returned {len(values)} outputs; expected {list(golden)}")
        named.append(
            {
                name: np.asarray(as_output(value), dtype=expected.dtype)
                for (name, expected), value in zip(golden.items(), values, strict=True)
            }
        )
    return named


def _write_ranks(orchestrator: Any, outputs: list[dict[str, Any]]) -> str:
    root = orchestrator._dump_output_tensors(outputs[0] if len(outputs) == 1 else {})
    if len(outputs) > 1:
        for rank, tensors in enumerate(outputs):
            folder = os.path.join(root, f"output_worker_{rank}")
            os.makedirs(folder, exist_ok=True)
            for name, value in tensors.items():
                value.tofile(os.path.join(folder, f"{name}.bin"))
    return str(root)
