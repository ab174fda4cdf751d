"""Counters, peaks, summaries, snapshots, and what happens when memory runs out."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path

import pytest
import torch
from device_helpers import NEURON, run_script, succeeds

from opentrn.device import memory_log

MEBIBYTE = 1 << 20


def _counters() -> tuple[int, int, int]:
    stats = torch.neuron.memory_stats()
    return tuple(stats[f"{name}_bytes.all.current"] for name in ("reserved", "allocated", "active"))  # type: ignore[return-value]


def test_allocated_follows_tensors(clean_memory: None) -> None:
    before = torch.neuron.memory_allocated()
    tensor = torch.empty(MEBIBYTE, device=NEURON)
    assert torch.neuron.memory_allocated() - before == 4 * MEBIBYTE
    assert torch.accelerator.memory_allocated() == torch.neuron.memory_allocated()
    del tensor
    assert torch.neuron.memory_allocated() == before
    assert torch.neuron.max_memory_allocated() >= before + 4 * MEBIBYTE
    torch.neuron.reset_peak_memory_stats()
    assert torch.neuron.max_memory_allocated() == before


def test_reserved_covers_allocated_covers_active(clean_memory: None) -> None:
    held = []
    for step in range(60):
        held.append(torch.empty((step * 37 % 11 + 1) * 50_000, dtype=torch.uint8, device=NEURON))
        if step % 3 == 2:
            held.pop(step % len(held))
        reserved, allocated, active = _counters()
        assert reserved >= allocated >= active > 0


def test_everything_returns_to_zero_on_another_device() -> None:
    with torch.neuron.device(7):
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).to(
            "neuron:7"
        )
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.randn(16, 64, device="neuron:7")).pow(2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert torch.neuron.memory_allocated() > 0
        del model, optimizer
        gc.collect()
        stats = torch.neuron.memory_stats()
        for key in ("allocated_bytes", "active_bytes", "allocation", "active"):
            assert stats[f"{key}.all.current"] == 0, key
        torch.neuron.empty_cache()
        assert torch.neuron.memory_reserved() == 0 and torch.neuron.memory_stats()["segment.all.current"] == 0


def test_size_classes_and_pools(clean_memory: None) -> None:
    def taken(size: int) -> int:
        before = torch.neuron.memory_allocated()
        tensor = torch.empty(size, dtype=torch.uint8, device=NEURON)
        result = torch.neuron.memory_allocated() - before
        del tensor
        return result

    assert taken(0) == 0 and taken(1) == 256 and taken(256) == 256
    for size in (257, 5000, 70_001, MEBIBYTE + 1, 5 * MEBIBYTE + 3):
        assert size <= taken(size) <= size * 1.25 + 256
    assert taken(16 * MEBIBYTE + 1) <= 16 * MEBIBYTE + 512  # at or above 16 MiB nothing is rounded to a class
    stats = torch.neuron.memory_stats()
    assert stats["allocation.small_pool.allocated"] >= 4 and stats["allocation.large_pool.allocated"] >= 2


def test_freed_blocks_are_used_again(clean_memory: None) -> None:
    torch.empty(8 * MEBIBYTE, dtype=torch.uint8, device=NEURON)
    reserved = torch.neuron.memory_reserved()
    for _ in range(20):
        torch.empty(8 * MEBIBYTE, dtype=torch.uint8, device=NEURON)
    assert torch.neuron.memory_reserved() == reserved
    torch.neuron.empty_cache()
    assert torch.neuron.memory_reserved() < reserved


def test_checkpointing_lowers_the_peak(clean_memory: None) -> None:
    from torch.utils.checkpoint import checkpoint

    layers = [
        torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)).to(
            NEURON
        )
        for _ in range(4)
    ]

    def peak(checkpointed: bool) -> int:
        torch.neuron.reset_peak_memory_stats()
        hidden = torch.ones(512, 256, device=NEURON, requires_grad=True)
        for layer in layers:
            hidden = checkpoint(layer, hidden, use_reentrant=False) if checkpointed else layer(hidden)
        hidden.sum().backward()
        return torch.neuron.max_memory_allocated()

    peak(False)  # gradients exist from here on
    assert peak(True) < 0.7 * peak(False)


def test_info_fraction_and_limits(clean_memory: None) -> None:
    free, total = torch.neuron.mem_get_info()
    assert 0 < free <= total == torch.neuron.get_device_properties().total_memory
    assert torch.accelerator.get_memory_info() == (free, total)
    with pytest.raises(ValueError, match="between 0 and 1"):
        torch.neuron.set_per_process_memory_fraction(1.5)
    with pytest.raises(TypeError):
        torch.neuron.set_per_process_memory_fraction(1)
    torch.neuron.set_per_process_memory_fraction(0.5, "neuron:3")
    assert torch.neuron.get_per_process_memory_fraction(3) == pytest.approx(0.5)
    torch.neuron.set_per_process_memory_fraction(1.0, "neuron:3")


def test_nested_stats_and_summary() -> None:
    held = torch.ones(1000, device=NEURON)
    flat, nested = torch.neuron.memory_stats(), torch.neuron.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] == flat["allocated_bytes.all.current"] > 0
    summary = torch.neuron.memory_summary()
    for word in ("Allocated memory", "Reserved memory", "from small pool", "neuron:0"):
        assert word in summary
    assert "from small pool" not in torch.neuron.memory_summary(abbreviated=True)
    assert held.is_neuron


def test_statistics_before_first_use() -> None:
    code = """
    import torch
    assert torch.neuron.memory_allocated() == 0 and torch.neuron.memory_stats() == {}
    torch.neuron.reset_peak_memory_stats(); torch.neuron.empty_cache()
    torch.accelerator.reset_peak_memory_stats(); torch.accelerator.empty_cache()
    print(torch.accelerator.memory_allocated(), torch.neuron.is_initialized())
    """
    assert succeeds(code).startswith("0 ")


def _small_limit() -> float:
    return 64 * MEBIBYTE / torch.neuron.mem_get_info("neuron:5")[1]


def test_out_of_memory_says_who_holds_what() -> None:
    torch.neuron.set_per_process_memory_fraction(_small_limit(), 5)
    torch.neuron.memory._record_memory_history(device=5)
    try:
        held = torch.empty(48 * MEBIBYTE, dtype=torch.uint8, device="neuron:5")
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(32 * MEBIBYTE, dtype=torch.uint8, device="neuron:5")
        message = str(caught.value)
        assert "32.00 MiB" in message or "32 MiB" in message
        assert "48.00 MiB" in message or "48 MiB" in message
        assert "neuron:5" in message and "what to try" in message
        assert Path(__file__).name in message  # the frame that holds the memory
        assert torch.neuron.memory_stats(5)["num_ooms"] >= 1
        del held
        assert torch.empty(
            32 * MEBIBYTE, dtype=torch.uint8, device="neuron:5"
        ).numel()  # the device is usable again
    finally:
        torch.neuron.memory._record_memory_history(None, device=5)
        torch.neuron.set_per_process_memory_fraction(1.0, 5)


def test_out_of_memory_frees_the_cache_first() -> None:
    torch.neuron.set_per_process_memory_fraction(_small_limit(), 5)
    try:
        torch.empty(40 * MEBIBYTE, dtype=torch.uint8, device="neuron:5")  # cached, then in the way
        assert torch.empty(50 * MEBIBYTE, dtype=torch.uint8, device="neuron:5").numel() == 50 * MEBIBYTE
    finally:
        torch.neuron.set_per_process_memory_fraction(1.0, 5)


def test_out_of_memory_at_the_share_of_the_core() -> None:
    total = torch.neuron.mem_get_info("neuron:6")[1]
    with pytest.raises(torch.OutOfMemoryError, match="neuron:6"):
        torch.empty(total + 1, dtype=torch.uint8, device="neuron:6")
    assert issubclass(torch.neuron.OutOfMemoryError, RuntimeError)


def test_history_beside_a_trace() -> None:
    """A script that records its own history runs under `opentrn run`, which reads the same log."""
    earlier = torch.ones(MEBIBYTE, device="neuron:4")
    memory_log.start("trace", 4)
    with torch.neuron.device(4):
        torch.neuron.memory._record_memory_history(max_entries=3)
        kept = [torch.ones(2 * MEBIBYTE, device="neuron:4") for _ in range(2)]
        ours = torch.neuron.memory._snapshot()["device_traces"][4]
        trace = memory_log.drain("trace", 4, stop=True)
        kept.append(torch.ones(4 * MEBIBYTE, device="neuron:4"))
        last = torch.neuron.memory._snapshot()["device_traces"][4]
        torch.neuron.memory._record_memory_history(None)
    assert trace is not None
    for sizes in ([event["size"] for event in ours], trace["requested"].tolist()):
        assert sizes == [earlier.nbytes, kept[0].nbytes, kept[1].nbytes]
    assert [event["size"] for event in last] == [tensor.nbytes for tensor in kept]
    assert memory_log.drain("trace", 4) is None


def test_snapshot_in_the_visualisers_format(tmp_path: Path) -> None:
    with torch.neuron.device(4):
        torch.neuron.memory._record_memory_history()
        held = torch.ones(3 * MEBIBYTE, device="neuron:4")
        del held
        kept = torch.ones(MEBIBYTE, device="neuron:4")
        torch.neuron.memory._dump_snapshot(str(tmp_path / "s.pickle"))
        torch.neuron.memory._record_memory_history(None)
    with open(tmp_path / "s.pickle", "rb") as file:
        snapshot = pickle.load(file)
    segments = [segment for segment in snapshot["segments"] if segment["device"] == 4]
    for segment in segments:
        assert segment["total_size"] == sum(block["size"] for block in segment["blocks"])
        assert {"address", "stream", "segment_type", "allocated_size", "active_size"} <= segment.keys()
    held_bytes = sum(s["allocated_size"] for s in segments)
    assert held_bytes == torch.neuron.memory_allocated("neuron:4") >= kept.nbytes
    trace = snapshot["device_traces"][4]
    actions = [entry["action"] for entry in trace]
    assert actions.count("alloc") >= 2 and "free_completed" in actions
    frames = [frame for entry in trace for frame in entry["frames"]]
    assert any(frame["filename"].endswith("test_memory.py") and frame["line"] > 0 for frame in frames)
    # PyTorch's own tool reads it.
    from torch.cuda._memory_viz import segsum, trace_plot

    assert "neuron" not in segsum(snapshot) and trace_plot(snapshot)


def test_no_leak_over_many_steps(clean_memory: None) -> None:
    model = torch.nn.LSTM(8, 8).to(NEURON)

    def step() -> None:
        model(torch.randn(5, 2, 8, device=NEURON))[0].sum().backward()
        model.zero_grad()

    step()
    gc.collect()
    before = torch.neuron.memory_allocated()
    for _ in range(20):
        step()
    gc.collect()
    assert torch.neuron.memory_allocated() == before


def test_exception_inside_an_operator_leaks_nothing(clean_memory: None) -> None:
    a, b = torch.ones(3, 4, device=NEURON), torch.ones(3, 4, device=NEURON)
    before = torch.neuron.memory_allocated()
    for _ in range(5):
        with pytest.raises(RuntimeError):
            a @ b
        with pytest.raises(IndexError):
            a[7]
    assert torch.neuron.memory_allocated() == before


def test_tensors_may_outlive_everything() -> None:
    done = run_script("import torch, builtins\nbuiltins.kept = torch.ones(3, device='neuron')\nprint('end')")
    assert (done.returncode, done.stdout) == (0, "end\n")
