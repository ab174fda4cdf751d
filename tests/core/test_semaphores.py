"""Explicit semaphores: programs that order their engines themselves, and what happens where they do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opentrn.core import Builder, Program, execute, time
from opentrn.errors import UndefinedBehaviourError, UnsupportedError

LOADED, COMPUTED, STORED = 0, 1, 2
TILES = 4


def streamed(
    wait_load: bool = True, wait_compute: bool = True, wait_store: bool = True, wait_reuse: bool = True
) -> Program:
    """y = exp(x) through one input and one output tile: Sync loads, Scalar computes, GpSimd stores."""
    b = Builder(name="streamed")
    x = b.hbm("x", (TILES * 128, 64), "float32")
    y = b.hbm("y", (TILES * 128, 64), "float32", kind="output")
    raw, done = b.sbuf("raw", (128, 64), "float32"), b.sbuf("done", (128, 64), "float32")
    with b.loop(0, TILES) as i:

        def rows(tensor: Any, i: Any = i) -> Any:
            return b.access(tensor, ((64, 128), (1, 64)), i * 128 * 64)

        b.source("kernel.py", 10)
        if wait_reuse:
            b.emit("semaphore_wait", semaphore=COMPUTED, value=i, engine="sync")
        b.emit("dma_copy", dst=raw, src=rows(x), engine="sync")
        b.emit("semaphore_signal", semaphore=LOADED, after="dma", engine="sync")
        b.source("kernel.py", 20)
        if wait_load:
            b.emit("semaphore_wait", semaphore=LOADED, value=i + 1, engine="scalar")
        if wait_store:
            b.emit("semaphore_wait", semaphore=STORED, value=i, engine="scalar")
        b.emit("activation", dst=done, op="exp", data=raw)
        b.emit("semaphore_signal", semaphore=COMPUTED, engine="scalar")
        b.source("kernel.py", 30)
        if wait_compute:
            b.emit("semaphore_wait", semaphore=COMPUTED, value=i + 1, engine="gpsimd")
        b.emit("dma_copy", dst=rows(y), src=done, engine="gpsimd")
        b.emit("semaphore_signal", semaphore=STORED, after="dma", engine="gpsimd")
    return b.finish()


def run(program: Program) -> np.ndarray:
    x = np.linspace(-1, 1, TILES * 128 * 64, dtype=np.float32).reshape(TILES * 128, 64)
    result = execute(program, {"x": x})["y"]
    np.testing.assert_allclose(result, np.exp(x), rtol=1e-6)
    return result


def test_a_program_with_every_edge_runs() -> None:
    run(streamed())


@pytest.mark.parametrize(
    ("missing", "line", "other"),
    [
        ("wait_load", "kernel.py:20", "dma_copy at kernel.py:10 writes"),
        ("wait_compute", "kernel.py:30", "activation at kernel.py:20 writes"),
        ("wait_store", "kernel.py:20", "dma_copy at kernel.py:30 reads"),
        ("wait_reuse", "kernel.py:10", "activation at kernel.py:20 reads"),
    ],
)
def test_a_missing_edge_is_a_race(missing: str, line: str, other: str) -> None:
    with pytest.raises(UndefinedBehaviourError, match="race") as caught:
        run(streamed(**{missing: False}))
    assert line in str(caught.value) and other in str(caught.value)


def test_without_explicit_semaphores_order_is_derived() -> None:
    b = Builder()
    x, y = b.hbm("x", (128, 64), "float32"), b.hbm("y", (128, 64), "float32", kind="output")
    tile = b.sbuf("t", (128, 64), "float32")
    b.emit("dma_copy", dst=tile, src=x)
    b.emit("activation", dst=tile, op="exp", data=tile)
    b.emit("dma_copy", dst=y, src=tile)
    execute(b.finish(), {"x": np.ones((128, 64), np.float32)})


def test_waiting_for_what_nobody_signals_is_a_deadlock() -> None:
    b = Builder()
    b.source("kernel.py", 7)
    b.emit("semaphore_wait", semaphore=3, value=2, engine="vector")
    program = b.finish()
    for attempt in (lambda: execute(program, {}), lambda: time(program)):
        with pytest.raises(UndefinedBehaviourError, match="deadlock") as caught:
            attempt()
        assert "kernel.py:7" in str(caught.value)


def test_one_semaphore_counts_one_queue() -> None:
    b = Builder()
    tile = b.sbuf("t", (128, 64), "float32")
    b.emit("memset", dst=tile, value=1.0)
    b.emit("semaphore_signal", semaphore=0, engine="vector")
    b.emit("semaphore_signal", semaphore=0, engine="scalar")
    with pytest.raises(UnsupportedError, match="two queues"):
        execute(b.finish(), {})


def test_time_follows_the_semaphores() -> None:
    """Scalar starts when Vector has signalled; the same program without the wait overlaps both."""

    def build(wait: bool) -> Program:
        b = Builder()
        one, two = b.sbuf("one", (128, 2048), "float32"), b.sbuf("two", (128, 2048), "float32")
        b.emit("memset", dst=one, value=1.0, engine="vector")
        b.emit("semaphore_signal", semaphore=0, engine="vector")
        if wait:
            b.emit("semaphore_wait", semaphore=0, engine="scalar")
        b.emit("memset", dst=two, value=1.0, engine="scalar")
        return b.finish()

    apart, together = time(build(True)), time(build(False))
    assert apart.nanoseconds > apart.busy["vector"] + apart.busy["scalar"]
    assert together.nanoseconds < 0.8 * apart.nanoseconds
    assert any("waits for a semaphore" in stall.cause for stall in apart.stalls)


def test_text_and_bytes_hold_the_semaphores() -> None:
    program = streamed()
    text = program.text()
    assert "semaphore_wait" in text and "semaphore_signal" in text
    assert Program.parse(text).to_bytes() == program.to_bytes() == streamed().to_bytes()
