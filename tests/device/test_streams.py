"""Streams and events order virtual time."""

from __future__ import annotations

import pytest
import torch
from device_helpers import NEURON, run_script


@pytest.fixture
def matrix() -> torch.Tensor:
    made = torch.ones(1024, 1024, device=NEURON)
    torch.neuron.synchronize()
    return made


def _event() -> torch.Event:
    return torch.neuron.Event(enable_timing=True)


def test_elapsed_time_is_the_work_between(matrix: torch.Tensor) -> None:
    start, one, three = _event(), _event(), _event()
    start.record()
    matrix @ matrix
    one.record()
    for _ in range(20):
        matrix @ matrix
    three.record()
    torch.neuron.synchronize()
    assert 0 < start.elapsed_time(one) < start.elapsed_time(three)
    assert start.elapsed_time(three) > 10 * start.elapsed_time(one)
    again = [_event(), _event()]
    again[0].record(), again[1].record()
    assert again[0].elapsed_time(again[1]) > 0  # a rate may be divided by it


def test_elapsed_time_mixes_generic_and_own_events(matrix: torch.Tensor) -> None:
    generic, own = torch.Event(NEURON, enable_timing=True), _event()
    generic.record(torch.accelerator.current_stream())
    matrix @ matrix
    own.record(torch.neuron.current_stream())
    own.synchronize()
    assert (
        generic.elapsed_time(own) > 0 and isinstance(own, torch.neuron.Event) and isinstance(own, torch.Event)
    )
    assert own.elapsed_time(generic) < 0


def test_elapsed_time_refuses_what_it_cannot_know() -> None:
    for pair in ((_event(), _event()), (torch.neuron.Event(), torch.neuron.Event())):
        with pytest.raises((RuntimeError, ValueError), match=r"record|enable_timing"):
            pair[0].elapsed_time(pair[1])
    untimed = torch.neuron.Event(), torch.neuron.Event()
    untimed[0].record(), untimed[1].record()
    with pytest.raises((RuntimeError, ValueError), match="enable_timing"):
        untimed[0].elapsed_time(untimed[1])


def test_streams_overlap_and_wait(matrix: torch.Tensor) -> None:
    side = torch.neuron.Stream()
    main = torch.neuron.current_stream()
    begin = _event()
    begin.record()
    with torch.neuron.stream(side):
        assert torch.neuron.current_stream() == side
        for _ in range(10):
            matrix @ matrix
    side_end, main_end, joined = _event(), _event(), _event()
    side_end.record(side)
    matrix @ matrix
    main_end.record(main)
    main.wait_event(side_end)
    matrix @ matrix
    joined.record(main)
    with pytest.raises(RuntimeError, match="completed"):
        begin.elapsed_time(joined)
    torch.neuron.synchronize()
    assert begin.elapsed_time(main_end) < begin.elapsed_time(side_end)  # they overlapped
    assert begin.elapsed_time(joined) > begin.elapsed_time(side_end)  # the wait holds
    assert torch.neuron.current_stream() == torch.neuron.default_stream()


def test_wait_stream_and_same_stream_wait(matrix: torch.Tensor) -> None:
    side = torch.neuron.Stream()
    matrix @ matrix
    side.wait_stream(torch.neuron.current_stream())
    event = side.record_event()
    side.wait_event(event)  # its own event: nothing to wait for
    side.synchronize()
    assert side.query() and event.query()
    torch.neuron.Event().wait()  # never recorded: no wait, as on CUDA
    side.wait_event(torch.neuron.Event())


def test_polling_ends() -> None:
    code = """
    import torch
    matrix = torch.ones(1024, 1024, device="neuron")
    matrix @ matrix
    event = torch.neuron.Event(); event.record()
    polls = 0
    while not event.query(): polls += 1
    matrix @ matrix
    while not torch.neuron.current_stream().query(): polls += 1
    print("ended", polls > 0)
    """
    assert run_script(code, timeout=60).stdout == "ended True\n"


def test_current_stream_is_per_device_and_per_block() -> None:
    one = torch.neuron.Stream(device="neuron:1")
    with torch.neuron.stream(one):
        assert torch.neuron.current_device() == 1 and torch.neuron.current_stream("neuron:1") == one
        assert torch.neuron.current_stream(0) == torch.neuron.default_stream(0)
    assert torch.neuron.current_device() == 0
    with torch.neuron.stream(None):
        assert torch.neuron.current_stream() == torch.neuron.default_stream()
    generic = torch.Stream(NEURON)
    with generic:
        assert torch.accelerator.current_stream() == generic
    assert torch.accelerator.current_stream() == torch.neuron.current_stream()
    event = torch.neuron.Event()
    event.record(torch.neuron.default_stream(0))
    with pytest.raises(
        RuntimeError, match=r"neuron:0.*neuron:1"
    ):  # an event belongs to the device it was first recorded on
        event.record(one)


def test_identity() -> None:
    first, second = torch.neuron.Stream(), torch.neuron.Stream(priority=-1)
    assert first != second and first == first and len({first, second, first}) == 2
    assert first.device == torch.device("neuron:0") and "neuron:0" in repr(first)
    rebuilt = torch.neuron.Stream(
        stream_id=first.stream_id, device_index=first.device_index, device_type=first.device_type
    )
    assert rebuilt == first


def test_record_stream_and_tensor_lifetime() -> None:
    side = torch.neuron.Stream()
    tensor = torch.ones(4, device=NEURON)
    tensor.record_stream(side)
    with torch.neuron.stream(side):
        result = tensor * 2
    assert result.sum().item() == 8


def test_sleep_keeps_the_stream_busy() -> None:
    start, end = _event(), _event()
    start.record()
    torch.neuron._sleep(1_000_000)
    end.record()
    end.synchronize()
    milliseconds = 1_000_000 / (torch.neuron.clock_rate() * 1e3)
    assert start.elapsed_time(end) == pytest.approx(milliseconds, rel=0.2)


def test_synchronize_of_one_device_leaves_others(matrix: torch.Tensor) -> None:
    other = torch.ones(1024, 1024, device="neuron:1")
    other @ other
    stream = torch.neuron.current_stream("neuron:1")
    torch.neuron.synchronize("neuron:0")
    assert not stream.query()
    torch.accelerator.synchronize("neuron:1")
    assert stream.query()
