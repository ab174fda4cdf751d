"""Exports, read back by the formats' own rules."""

import itertools
import json

import pytest
from fake_device import FakeDevice

from opentrn.errors import ConfigurationError, UnsupportedError
from opentrn.trace import engines
from opentrn.trace import export as export_module
from opentrn.trace.export import export
from opentrn.trace.reader import Trace
from opentrn.trace.record import steps_table
from opentrn.trace.recorder import Recorder
from opentrn.trace.steps import Counters, make_step
from opentrn.trace.writer import TraceWriter

OPERATORS = 50


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trace") / "t"
    fake = FakeDevice(devices=2)
    writer = TraceWriter(directory, {"command": "train.py --epochs 1"})
    recorder = Recorder(fake, writer, poll_seconds=1000)
    recorder.start()
    fake.enter_module("layers.0")
    for i in range(OPERATORS):
        fake.allocate(100 + i, device=i % 2)
        fake.run(f"aten::op{i % 3}", ns=50 + i, device=i % 2, stream=i % 2 * 3)
    recorder.stop()
    step = make_step(0, "optimizer", Counters(), Counters(completion=4000), 8, "embedding", 4, 100)
    writer.write("steps", steps_table([step]))
    writer.close(True)
    return Trace(directory)


def test_chrome(trace, tmp_path):
    assert export(trace, tmp_path / "t.json", "chrome") == OPERATORS
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    slices = [e for e in events if e["ph"] == "X"]
    assert sorted(names.values()) == [
        "host thread (virtual time)", "neuron:0 stream 0", "neuron:1 stream 3", "steps",
    ]  # fmt: skip
    assert len(slices) == 2 * OPERATORS + 1
    assert next(e for e in slices if e["name"] == "step 1")["dur"] == 4.0
    flows = [e for e in events if e["ph"] in "sf"]
    assert sorted(e["id"] for e in flows) == sorted(list(range(1, OPERATORS + 1)) * 2)
    assert [e["args"]["bytes"] for e in events if e["ph"] == "C"][:2] == [100, 101]
    for thread in names:
        _check_no_overlap([(e["ts"], e["ts"] + e["dur"]) for e in slices if e["tid"] == thread])


def _check_no_overlap(spans):
    spans.sort()
    assert all(before[1] <= after[0] + 1e-9 for before, after in itertools.pairwise(spans))


def test_perfetto(trace, tmp_path):
    messages = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    assert export(trace, tmp_path / "t.pftrace", "perfetto") == OPERATORS
    parsed = messages.Trace()
    parsed.ParseFromString((tmp_path / "t.pftrace").read_bytes())
    names, keys, texts, tracks, slices, counters = {}, {}, {}, {}, [], []
    open_on = {}
    for packet in parsed.packet:
        assert packet.trusted_packet_sequence_id == 1
        names.update({entry.iid: entry.name for entry in packet.interned_data.event_names})
        keys.update({entry.iid: entry.name for entry in packet.interned_data.debug_annotation_names})
        texts.update({e.iid: e.str.decode() for e in packet.interned_data.debug_annotation_string_values})
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
            continue
        event = packet.track_event
        assert event.track_uuid in tracks
        if event.type == messages.TrackEvent.TYPE_SLICE_BEGIN:
            assert event.track_uuid not in open_on, "slices of one track overlap"
            details = {
                keys[a.name_iid]: texts[a.string_value_iid] if a.string_value_iid else a.int_value
                for a in event.debug_annotations
            }
            open_on[event.track_uuid] = (
                names[event.name_iid],
                packet.timestamp,
                list(event.flow_ids),
                details,
            )
        elif event.type == messages.TrackEvent.TYPE_SLICE_END:
            slices.append((tracks[event.track_uuid].name, *open_on.pop(event.track_uuid), packet.timestamp))
        else:
            counters.append((tracks[event.track_uuid].name, event.counter_value))
    assert not open_on
    assert len(slices) == 2 * OPERATORS + 1
    host = [s for s in slices if s[0].startswith("host")]
    device = [s for s in slices if s[0].startswith("neuron")]
    flows = [[number] for number in range(1, OPERATORS + 1)]
    assert [s[3] for s in host] == [s[3] for s in device] == flows, "flows join issue and execution"
    assert device[4][1] == "aten::op1" and device[4][5] - device[4][2] == 54
    assert device[0][4] == {
        "shapes": "[2]->[2]", "dtypes": "float32->float32",
        "module": "layers.0", "phase": "outside", "flops": 0, "bytes": 0,
        "time is": "modelled",
    }  # fmt: skip
    assert counters[:2] == [("neuron:0 memory allocated", 100), ("neuron:1 memory allocated", 101)]
    assert parsed.packet[0].sequence_flags & messages.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED


def test_unknown_format(trace, tmp_path):
    with pytest.raises(ConfigurationError, match="unknown export format"):
        export(trace, tmp_path / "x", "svg")


def test_a_missing_library_is_named(trace, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "opentrn.trace.perfetto_sink", None)
    with pytest.raises(UnsupportedError, match="needs the Python package 'perfetto'"):
        export(trace, tmp_path / "x", "perfetto")
    assert not (tmp_path / "x").exists()


def test_an_export_is_whole_or_absent(trace, tmp_path, monkeypatch):
    with pytest.raises(ConfigurationError, match="cannot write"):
        export(trace, tmp_path / "no" / "x.json", "chrome")

    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(export_module._ChromeSink, "memory", stop)
    with pytest.raises(KeyboardInterrupt):
        export(trace, tmp_path / "x.json", "chrome")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def with_programs(tmp_path):
    """Two launches of one program whose two DMAs overlap, one of another; written as recorded."""
    fake = FakeDevice()
    fake.programs = {
        4: {
            "core": [0, 0, 1], "engine": ["dma", "dma", "vector"],
            "instruction": ["dma_copy", "dma_copy", "tensor_copy"], "source": ["k.py:3", None, "k.py:5"],
            "start": [0.0, 10.4, 60.0], "end": [50.0, 70.0, 80.6],
        },
        9: {
            "core": [0], "engine": ["tensor"], "instruction": ["nc_matmul"], "source": [None],
            "start": [1.0], "end": [2.0],
        },
    }  # fmt: skip
    writer = TraceWriter(tmp_path / "t", {"command": "train.py"})
    recorder = Recorder(fake, writer, poll_seconds=1000)
    recorder.start()
    fake.run("nki::k", ns=81)
    fake.launched = [(4, "k", 0, 0, 1000, 1081), (4, "k", 0, 2, 2000, 2081), (9, "m", 0, 0, 3000, 3002)]
    recorder.stop()
    writer.close(True)
    return Trace(tmp_path / "t")


def test_engines_of_programs_are_tracks(with_programs, tmp_path):
    assert with_programs.rows("engine_intervals") == 4, "a program is written once"
    assert with_programs.table("launches").to_pylist()[1] == {
        "program": 4, "name": "k", "device": 0, "stream": 2, "device_start": 2000, "device_end": 2081,
    }  # fmt: skip
    export(with_programs, tmp_path / "t.json", "chrome")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    slices = [e for e in events if e["ph"] == "X" and "core" in names[e["tid"]]]
    assert [(names[e["tid"]], e["name"], e["ts"]) for e in slices] == [
        ("neuron:0 core 0 dma", "dma_copy", 1.0),
        ("neuron:0 core 0 dma 2", "dma_copy", 1.01),
        ("neuron:0 core 1 vector", "tensor_copy", 1.06),
        ("neuron:0 stream 2 core 0 dma", "dma_copy", 2.0),
        ("neuron:0 stream 2 core 0 dma 2", "dma_copy", 2.01),
        ("neuron:0 stream 2 core 1 vector", "tensor_copy", 2.06),
        ("neuron:0 core 0 tensor", "nc_matmul", 3.001),
    ]
    assert slices[0]["args"] == {"source": "k.py:3"} and slices[1]["args"] == {}
    for thread in names:
        _check_no_overlap([(e["ts"], e["ts"] + e["dur"]) for e in slices if e["tid"] == thread])


def test_an_export_says_what_it_leaves_out(with_programs):
    kept = list(engines.slices(with_programs, most=4))
    assert [one.name for one in kept[:-1]] == ["dma_copy", "dma_copy", "tensor_copy"]
    assert "2 launches left out" in kept[-1].name and (kept[-1].start, kept[-1].end) == (2000, 3002)
