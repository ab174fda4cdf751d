"""What one case did: kernels traced and executed, the processor seconds of each, how many ranks."""

from __future__ import annotations

import time
from typing import Any

from opentrn.nki import engine_hook
from opentrn.nki.traced import Call


class Probe:
    """Counts by wrapping the functions that trace and execute. `install` once, `reset` before a case."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.traces = self.runs = 0
        self.trace_seconds = self.run_seconds = 0.0
        self.ranks = 1
        self.negative = False
        self.start = time.process_time()

    def install(self) -> None:
        """Wrap tracing and execution."""
        trace, execute, execute_ranks = Call._trace, engine_hook.execute, engine_hook.execute_ranks

        def traced(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            self.traces += 1
            try:
                return trace(*args, **kwargs)
            finally:
                self.trace_seconds += time.process_time() - start

        def timed(function: Any, *args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                result = function(*args, **kwargs)
                self.runs += 1
                return result
            finally:
                self.run_seconds += time.process_time() - start

        def executed(*args: Any, **kwargs: Any) -> Any:
            return timed(execute, *args, **kwargs)

        def executed_ranks(programs: Any, *args: Any, **kwargs: Any) -> Any:
            self.ranks = max(self.ranks, len(programs))
            return timed(execute_ranks, programs, *args, **kwargs)

        Call._trace = traced  # type: ignore[method-assign]
        engine_hook.execute, engine_hook.execute_ranks = executed, executed_ranks

    def seconds(self) -> float:
        """Processor seconds of the process since `reset`."""
        return time.process_time() - self.start

    def row(self) -> dict[str, Any]:
        """The case's part of its result."""
        kind = "negative" if self.negative else "positive" if self.runs else "none"
        return {
            "kind": kind,
            "ranks": self.ranks,
            "processor_seconds": round(self.seconds(), 3),
            "trace_seconds": round(self.trace_seconds, 3),
            "run_seconds": round(self.run_seconds, 3),
        }
