from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest
import torch

GARBAGE_BYTES = 1 << 30


@pytest.fixture(autouse=True)
def _as_found() -> Iterator[None]:
    """Each test starts from one seed, and leaves the current device, the current stream and defaults as it
    found them."""
    torch.manual_seed(0)
    yield
    torch.neuron.set_device(0)
    torch.neuron.set_stream(torch.neuron.default_stream())
    torch.set_default_device(None)
    torch.use_deterministic_algorithms(False)
    # Full-size models of dry tests are cyclic garbage that would fill the device for the tests after them.
    if torch.neuron.memory_allocated() > GARBAGE_BYTES:
        sys.last_exc = sys.last_value = sys.last_traceback = None  # a failed test's frames hold its model
        gc.collect()
        left = torch.neuron.memory_allocated()
        assert left <= GARBAGE_BYTES, f"this test leaves {left / GARBAGE_BYTES:,.1f} GiB that nothing frees"


@pytest.fixture
def clean_memory() -> Iterator[None]:
    """No garbage of earlier tests in the allocator's counts."""
    gc.collect()
    torch.neuron.empty_cache()
    torch.neuron.reset_peak_memory_stats()
    yield
