"""The clock a script reads in a dry run: the virtual host clock instead of this machine's.

Only the names in the module `time` are replaced; what imported them before (threading, queue) keeps real
time.
"""

from __future__ import annotations

import time
from typing import Any

from opentrn.device import _C
from opentrn.device.replaced import Replacements

# Every reading costs the host this much, so that loops which wait for a time to pass come to an end.
READING_NS = 100
# A thread that polls another one really sleeps at most this long per call.
LONGEST_SLEEP_S = 0.01


class VirtualClock:
    """Context manager: `time.time`, `perf_counter`, `monotonic` (and their _ns forms) run on virtual time.

    They continue from the real values at entry. `time.sleep` advances the virtual clock by its argument.
    """

    def __enter__(self) -> VirtualClock:
        self._changes = Replacements()
        start = _C.host_time()
        for name in ("time", "perf_counter", "monotonic"):
            reading = _reading(getattr(time, name + "_ns")() - start)
            self._changes.replace(time, name + "_ns", reading)
            self._changes.replace(time, name, _seconds(reading))
        self._changes.replace(time, "sleep", _sleeping(time.sleep))
        return self

    def __exit__(self, *error: Any) -> None:
        self._changes.close()


def _reading(offset: int) -> Any:
    host_time, advance = _C.host_time, _C.advance_host

    def nanoseconds() -> int:
        advance(READING_NS)
        return host_time() + offset

    return nanoseconds


def _seconds(reading: Any) -> Any:
    def seconds() -> float:
        return reading() * 1e-9

    return seconds


def _sleeping(real: Any) -> Any:
    def sleep(seconds: float, /) -> None:
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        _C.advance_host(int(seconds * 1e9))
        real(min(seconds, LONGEST_SLEEP_S))

    return sleep
