"""Units of the chip files: each belongs to one dimension and has a factor to that dimension's base unit."""

from __future__ import annotations

# dimension -> (base unit, {unit: factor to the base unit}). "count", "counts", "ratio" and "text" carry no
# unit in the files.
DIMENSIONS: dict[str, tuple[str, dict[str, float]]] = {
    "frequency": ("GHz", {"GHz": 1.0, "MHz": 1e-3}),
    "bytes": ("B", {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}),
    "bandwidth": (
        "B/s",
        {"B/s": 1.0, "GB/s": 1e9, "GiB/s": float(2**30), "TB/s": 1e12, "B/ns": 1e9, "Gbit/s": 1e9 / 8},
    ),
    "compute": ("TFLOP/s", {"TFLOP/s": 1.0, "PFLOP/s": 1e3, "TOP/s": 1.0}),
    "time": ("ns", {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}),
    "cycles": ("cycles", {"cycles": 1.0}),
    "price": ("USD/h", {"USD/h": 1.0}),
    "power": ("W", {"W": 1.0}),
    "count": ("", {}),
    "counts": ("", {}),
    "ratio": ("", {}),
    "text": ("", {}),
}

# Dimensions whose numbers are whole in the base unit.
WHOLE = frozenset({"bytes", "count"})
