"""The memory ledger against a plain walk over the same events."""

import numpy as np
import pytest
from fake_device import FakeDevice
from hypothesis import given, settings
from hypothesis import strategies as st

from opentrn.trace import memory
from opentrn.trace.memory import MemoryLedger
from opentrn.trace.schema import CATEGORIES, PHASES

FORWARD, BACKWARD, OPTIMIZER = (PHASES.index(name) for name in ("forward", "backward", "optimizer"))
PARAMETER, GRADIENT = CATEGORIES.index("parameter"), CATEGORIES.index("gradient")


def device():
    fake = FakeDevice()
    fake.memory_start()
    return fake


def feed(ledger, fake):
    events = fake.memory_drain()
    if events is not None:
        ledger.feed(events, fake.modules)


# Each action: allocate this many bytes, or free / relabel one of the living, or end a batch or a segment.
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), st.integers(1, 1000)),
        st.tuples(st.just("free"), st.integers(0, 50)),
        st.tuples(st.just("relabel"), st.integers(0, 50), st.integers(1, len(CATEGORIES) - 1)),
        st.tuples(st.just("batch")),
        st.tuples(st.just("mark")),
    ),
    max_size=80,
)


@settings(max_examples=200, deadline=None)
@given(ACTIONS)
def test_peaks_equal_a_plain_walk(actions):
    fake, ledger, living = device(), MemoryLedger(), []
    allocated = highest = segment = 0
    for name, *values in actions:
        if name == "allocate":
            living.append(fake.allocate(values[0]))
            allocated += values[0]
        elif name == "free" and living:
            storage = living.pop(values[0] % len(living))
            allocated -= fake.sizes[storage][0]
            fake.free(storage)
        elif name == "relabel" and living:
            fake.relabel(living[values[0] % len(living)], values[1])
        elif name == "batch":
            feed(ledger, fake)
        elif name == "mark":
            feed(ledger, fake)
            assert ledger.mark(fake.modules) == segment
            segment = allocated
        highest, segment = max(highest, allocated), max(segment, allocated)
    feed(ledger, fake)
    ledger.mark(fake.modules)
    peak = ledger.peak()
    assert (peak.allocated if peak is not None else 0) == highest
    if peak is not None:
        assert sum(peak.categories.values()) == highest
        assert max(ledger.fullest()[0].allocated, default=0) == highest


def test_categories_of_a_training_step():
    fake, ledger = device(), MemoryLedger()
    weight = fake.allocate(1000, category=CATEGORIES.index("input"))
    fake.relabel(weight, PARAMETER)
    fake.phase = FORWARD
    fake.enter_module("model.layers.0")
    saved = fake.allocate(300)
    scratch = fake.allocate(70)
    fake.free(scratch)
    fake.exit_module()
    fake.phase = BACKWARD
    gradient = fake.allocate(1000)
    temporary = fake.allocate(40)
    fake.free(temporary)
    fake.free(saved)
    fake.phase = OPTIMIZER
    fake.relabel(gradient, GRADIENT)
    feed(ledger, fake)
    assert ledger.mark(fake.modules) == 2340
    assert ledger.peak().categories == {
        "parameter": 1000,
        "gradient": 1000,
        "activation": 300,
        "temporary": 40,
    }
    assert ("model.layers.0", "activation", 300, 1) in ledger.peak().holders
    stack = ledger.fullest()[1]
    assert [sum(column) for column in zip(*stack.categories.values(), strict=True)][-1] == 2000


def test_activations_that_outlive_the_mark():
    """Logits held by the script until the next step are activations there too."""
    fake, ledger = device(), MemoryLedger()
    fake.phase = FORWARD
    logits = fake.allocate(500)
    fake.phase = BACKWARD
    fake.free(fake.allocate(1))
    feed(ledger, fake)
    ledger.mark(fake.modules)
    fake.phase = FORWARD
    fake.allocate(600)
    fake.free(logits)
    fake.phase = BACKWARD
    fake.free(fake.allocate(1))
    feed(ledger, fake)
    ledger.mark(fake.modules)
    assert ledger.peak().allocated == 1100
    assert ledger.peak().categories == {"activation": 1100}


def test_a_segment_too_long_to_hold_is_folded_early(monkeypatch):
    monkeypatch.setattr(memory, "FOLD_EVENTS", 10)
    fake, ledger = device(), MemoryLedger()
    for _ in range(20):
        fake.free(fake.allocate(100))
        feed(ledger, fake)
    assert ledger.mark(fake.modules) == 100


def test_the_timeline_stays_small_and_keeps_its_peak():
    fake, ledger = device(), MemoryLedger()
    for step in range(300):
        for i in range(20):
            fake.host += 1
            fake.free(fake.allocate(100 + (5000 if step == 137 and i == 3 else i)))
        feed(ledger, fake)
        ledger.mark(fake.modules)
    timeline = ledger.fullest()[0]
    assert len(timeline.times) <= memory.TIMELINE_POINTS
    assert max(timeline.allocated) == 5100
    assert timeline.times == sorted(timeline.times)


def test_the_timeline_is_as_fine_at_its_start_as_at_its_end():
    fake, ledger = device(), MemoryLedger()
    for step in range(200):
        for i in range(40 if step % 2 else 4):
            fake.host += 1 if step % 2 else 10
            fake.free(fake.allocate(100 + i))
        feed(ledger, fake)
        ledger.mark(fake.modules)
    times = ledger.fullest()[0].times
    counts = [
        sum(quarter <= 4 * time / (times[-1] + 1) < quarter + 1 for time in times) for quarter in range(4)
    ]
    assert max(counts) <= 1.1 * min(counts), counts


def test_the_timeline_shows_what_stays_after_a_peak():
    fake, ledger = device(), MemoryLedger()
    for _ in range(3):
        for i in range(2000):
            fake.host += 1
            fake.free(fake.allocate(1000 + i))
        feed(ledger, fake)
        ledger.mark(fake.modules)
        fake.host += 10_000
    timeline = ledger.fullest()[0]
    quiet = [j for j in range(len(timeline.times) - 1) if timeline.times[j + 1] - timeline.times[j] > 9000]
    assert len(quiet) == 2
    assert all(timeline.allocated[j] == 0 for j in quiet), "not the peak before it"


def test_two_devices_are_kept_apart():
    fake, ledger = FakeDevice(devices=2), MemoryLedger()
    fake.memory_start()
    fake.allocate(100, device=0)
    fake.allocate(300, device=1)
    feed(ledger, fake)
    assert ledger.mark(fake.modules) == 300
    assert ledger.peak().device == 1


def test_speed_of_a_large_step():
    """36,000 events are one Qwen3-32B step; folding it must not be felt beside the step itself (0.2 s)."""
    import time

    count = 18_000
    storages = np.arange(count)
    columns = {
        "time": np.arange(2 * count),
        "storage": np.concatenate([storages, storages]),
        "address": np.zeros(2 * count, np.int64),
        "size": np.full(2 * count, 512),
        "event": np.repeat([0, 1], count),
        "category": np.zeros(2 * count, np.int8),
        "module": np.full(2 * count, -1),
        "phase": np.repeat([1, 2], count),
        "device": np.zeros(2 * count, np.int16),
    }
    ledger = MemoryLedger()
    start = time.process_time()
    ledger.feed(columns, [""])
    assert ledger.mark([""]) == count * 512
    assert time.process_time() - start < 0.5
    assert ledger.peak().categories == {"activation": pytest.approx(count * 512)}
