"""The operator sweep: every sample of PyTorch's operator database, on the device and on CPU.

Read in this order, which is the order data passes the files:

    catalogue.py   the operators and their samples, from `torch.testing._internal`
    placement.py   one sample put on one side (CPU, device, dry device, or a control), layout and aliases kept
    comparison.py  two outcomes, bit for bit
    checks.py      what is done with a sample: forward, backward, out=, in-place, non-contiguous
    exceptions.py  which differences are expected, and why (exceptions.toml)
    worker.py      a process that checks one operator after another
    sweep.py       two such processes, fed from a queue, outliving their crashes
    report.py      tables, JSON, Parquet, the failure list and the section of docs/unsupported.md

It checks the device (placement, aliasing, registration, autograd), not the chip's numerics: both sides run
the host's kernels.
"""

CHECKS = ("forward", "backward", "out", "inplace", "noncontiguous")

DTYPES = (
    *("bfloat16", "float16", "float32", "float64", "complex32", "complex64", "complex128", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
)
