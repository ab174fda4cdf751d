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
    found = torch.neuron.memory_allocated()
    yield
    torch.neuron.set_device(0)
    torch.neuron.set_stream(torch.neuron.default_stream())
    torch.set_default_device(None)
    torch.use_deterministic_algorithms(False)
    # Cyclic garbage (models hold themselves) would go in the middle of a later test that counts bytes, and
    # that of full-size dry models would fill the device.
    if torch.neuron.memory_allocated() > found:
        sys.last_exc = sys.last_value = sys.last_traceback = None  # a failed test's frames hold its model
        gc.collect()
        left = torch.neuron.memory_allocated() - found
        assert left <= GARBAGE_BYTES, f"this test leaves {left / GARBAGE_BYTES:,.1f} GiB that nothing frees"


@pytest.fixture
def clean_memory() -> Iterator[None]:
    """No garbage of earlier tests in the allocator's counts."""
    gc.collect()
    torch.neuron.empty_cache()
    torch.neuron.reset_peak_memory_stats()
    yield
