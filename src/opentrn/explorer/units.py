"""Numbers as a person reads them."""

from __future__ import annotations

_TIMES = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))
_DECIMAL = ((10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
_BINARY = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def three_digits(value: float) -> str:
    """About three significant digits, without exponents from 0.001 to 999,999."""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3f}"


def time(nanoseconds: float) -> str:
    """1_500_000 → "1.50 ms"."""
    for size, unit in _TIMES:
        if abs(nanoseconds) >= size:
            return f"{three_digits(nanoseconds / size)} {unit}"
    return f"{nanoseconds:.0f} ns"


def size(count: float) -> str:
    """Bytes in binary units: 3221225472 → "3.00 GiB"."""
    for unit_size, unit in _BINARY:
        if abs(count) >= unit_size:
            return f"{three_digits(count / unit_size)} {unit}"
    return f"{count:.0f} B"


def amount(count: float) -> str:
    """A count with a decimal prefix: 14156 → "14.2 k"; exact below one thousand."""
    for unit_size, prefix in _DECIMAL:
        if abs(count) >= unit_size:
            return f"{three_digits(count / unit_size)} {prefix}"
    return three_digits(count)


def percent(share: float) -> str:
    """0.3047 → "30.5 %"; small shares keep two digits that say something."""
    value = share * 100
    if value == 0 or abs(value) >= 10:
        return f"{value:.1f} %"
    if abs(value) < 0.001:
        return "< 0.001 %"
    return f"{value:.2f} %" if abs(value) >= 0.1 else f"{value:.2g} %"
