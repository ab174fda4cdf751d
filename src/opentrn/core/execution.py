"""Values: run programs on NumPy arrays."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from opentrn import settings
from opentrn.core import _C
from opentrn.core.program import Program
from opentrn.errors import ConfigurationError, UndefinedBehaviourError

# A core that executes more is taken for endless: five times what the largest public kernels record.
# Instructions on tiles of 128 x 8 to 128 x 512 reach it in half a minute to two minutes on a slow processor.
MOST_STEPS = 10_000_000
_ENDLESS = "instructions and does not end"  # of csrc/core/machine.cpp
# Packed types have no NumPy twin: their arrays hold the packed words.
NUMPY_DTYPES: dict[str, Any] = {
    "float32": np.float32,
    "tfloat32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "float8_e4m3": ml_dtypes.float8_e4m3,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e3m4": ml_dtypes.float8_e3m4,
    "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "bool": np.bool_,
    "float64": np.float64,
    "float8_e4m3fn_x4": np.uint32,
    "float8_e5m2_x4": np.uint32,
    "float4_e2m1fn_x4": np.uint16,
}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype in which arrays of a NeuronCore dtype come and go."""
    return np.dtype(NUMPY_DTYPES[name])


@functools.cache
def use_library_gemm() -> str:
    """Gives the core a library's sgemm: torch's (MKL) where torch is loaded, else NumPy's OpenBLAS. Returns
    its name.

    On processors of other makers MKL takes a slow path, so they get OpenBLAS. Without a library the core uses
    its own kernel ("own").
    """
    if "torch" in sys.modules and _is_intel():
        library = ctypes.CDLL(
            str(Path(sys.modules["torch"].__file__ or "").parent / "lib" / "libtorch_cpu.so")
        )
        if hasattr(library, "sgemm_"):
            single = getattr(library, "MKL_Set_Num_Threads_Local", None)
            _C.set_gemm_hook(_address(library.sgemm_), False, _address(single) if single else 0)
            return "torch"
    for path in sorted((Path(np.__file__).parent.parent / "numpy.libs").glob("libscipy_openblas64*")):
        library = ctypes.CDLL(str(path))
        if hasattr(library, "scipy_sgemm_64_"):
            single = getattr(library, "openblas_set_num_threads_local", None)
            _C.set_gemm_hook(_address(library.scipy_sgemm_64_), True, _address(single) if single else 0)
            return "openblas"
    return "own"


def _is_intel() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def execute(
    program: Program,
    inputs: Mapping[str, np.ndarray],
    symbols: Mapping[str, int] | None = None,
    **options: Any,
) -> dict[str, np.ndarray]:
    """Runs a program; returns its outputs (and inouts) by name.

    inputs: arrays of the tensors' dtypes and shapes. symbols: their values.
    options: those of `execute_ranks`.
    """
    return execute_ranks([program], [inputs], symbols, **options)[0]


def execute_ranks(
    programs: Sequence[Program],
    inputs: Sequence[Mapping[str, np.ndarray]],
    symbols: Mapping[str, int] | None = None,
    *,
    on_print: Callable[[str, np.ndarray], None] | None = None,
    on_unwritten: Callable[[int, dict[str, np.ndarray]], None] | None = None,
    activation_ranges: bool = False,
    check: bool = True,
    uninitialised: str | None = None,
    zero_outputs: bool = False,
    parallel: bool = True,
    step_limit: int | None = None,
) -> list[dict[str, np.ndarray]]:
    """Runs one program per rank, with collectives between them; one dict of outputs per rank.

    on_print: receives (prefix, array) of device_print instead of standard output.
    on_unwritten: receives (rank, outputs by name) where elements of outputs were never written: whether each
    was, flat. They hold NaN (integers: 4), whether checked or not.
    check=False (or uninitialised="nan"): unwritten memory reads as NaN (integers: 4) instead of raising, and
    races go unnoticed.
    zero_outputs: with check=False, what the program returns starts as zeros, as buffers do that a host clears
    before it hands them out.
    activation_ranges: the documented input ranges of activation functions hold.
    parallel: iterations of loops may run on several host threads; values do not depend on it.
    step_limit: instructions of a core after which a program counts as endless; OPENTRN_STEP_LIMIT, else
    MOST_STEPS, unless given.
    """
    if len(programs) != len(inputs):
        raise ConfigurationError(f"{len(programs)} programs and {len(inputs)} sets of inputs")
    if uninitialised not in (None, "error", "nan"):
        raise ConfigurationError(f"uninitialised='{uninitialised}'", cure="use error or nan")
    check = check and uninitialised != "nan"
    use_library_gemm()
    values = dict(symbols or {})
    prepared = [_prepare(program, given, values) for program, given in zip(programs, inputs, strict=True)]

    def deliver(prefix: str, data: np.ndarray, dtype: str, shape: tuple[int, int]) -> None:
        (on_print or _print)(prefix, data.view(numpy_dtype(dtype)).reshape(shape))

    try:
        raw = _C.run(
            [program.base for program in programs],
            prepared,
            values,
            check,
            zero_outputs,
            activation_ranges,
            parallel,
            settings.step_limit(MOST_STEPS) if step_limit is None else step_limit,
            deliver,
        )
    except UndefinedBehaviourError as error:
        if _ENDLESS not in error.cause:
            raise
        raise _endless(error, programs) from None
    for rank, (_, missing) in enumerate(raw):
        unwritten = {name: mask.view(np.bool_) for name, mask in missing.items()}
        if unwritten and on_unwritten is not None:
            on_unwritten(rank, unwritten)
    return [_collect(program, result, values) for program, (result, _) in zip(programs, raw, strict=True)]


def _endless(error: UndefinedBehaviourError, programs: Sequence[Program]) -> UndefinedBehaviourError:
    """The error of an endless program, with the lines of the loops that can be the reason."""
    from opentrn.core.text import LOOPS

    places: dict[str, None] = {}
    for program in programs:
        tables = program.tables()
        texts, sources = tables["texts"], tables["sources"]
        for *_, kind, source in tables["loops"]:
            if LOOPS[kind] in ("while", "dynamic") and source >= 0:
                file, line = sources[source]
                places[f"{LOOPS[kind]} loop of {texts[file]}:{line}"] = None
    return UndefinedBehaviourError(
        error.cause,
        where=", ".join(list(places)[:4]) or None,
        cure="change the register that the loop tests, or its bound; step_limit of "
        "nki.simulate, or OPENTRN_STEP_LIMIT, lets a longer kernel run",
    )


def _print(prefix: str, array: np.ndarray) -> None:
    print(prefix, array)


def _prepare(
    program: Program, inputs: Mapping[str, np.ndarray], symbols: dict[str, int]
) -> dict[str, np.ndarray]:
    prepared = {}
    for tensor in program.inputs:
        if tensor.name not in inputs:
            raise ConfigurationError(
                f"input '{tensor.name}' of '{program.name}' is missing", cure="pass it in inputs"
            )
        array = np.asarray(inputs[tensor.name])
        expected, shape = numpy_dtype(tensor.dtype), program.shape_of(tensor, symbols)
        if array.dtype != expected and array.dtype.itemsize != expected.itemsize:
            raise ConfigurationError(
                f"input '{tensor.name}' is {array.dtype}, the program expects {tensor.dtype}"
            )
        if tuple(array.shape) != shape:
            raise ConfigurationError(
                f"input '{tensor.name}' has shape {tuple(array.shape)}, the program expects {shape}"
            )
        array = np.ascontiguousarray(array)
        prepared[tensor.name] = array.reshape(-1).view(np.uint8)
    return prepared


def _collect(program: Program, raw: dict[str, np.ndarray], symbols: dict[str, int]) -> dict[str, np.ndarray]:
    return {
        tensor.name: raw[tensor.name]
        .view(numpy_dtype(tensor.dtype))
        .reshape(program.shape_of(tensor, symbols))
        for tensor in program.outputs
    }
