"""Trace directories: written whole, read back, damaged, foreign, on a full disk."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fake_device import FakeDevice

from opentrn.errors import ConfigurationError, CorruptFileError
from opentrn.trace import schema
from opentrn.trace.reader import Trace
from opentrn.trace.rebuild import rebuild
from opentrn.trace.recorder import Recorder
from opentrn.trace.writer import UNFINISHED, TraceWriter


def record(directory, operators=100, complete=True):
    """A trace with `operators` rows in several files."""
    fake = FakeDevice()
    writer = TraceWriter(directory, {"command": "train.py"})
    recorder = Recorder(fake, writer, poll_seconds=1000)
    recorder.start()
    fake.enter_module("model.layers.0")
    for i in range(operators):
        fake.run(f"aten::op{i % 7}", ns=i, flops=2 * i, bytes=3 * i, phase=i % 5, simulated=i % 3 == 0)
        fake.free(fake.allocate(i + 1))
        if i % 20 == 0:
            recorder._take()
            recorder._flush()
    recorder.stop()
    writer.close(complete)
    return recorder


def test_documentation_is_generated():
    page = Path(__file__).parents[2] / "docs" / "trace-schema.md"
    assert page.read_text(encoding="utf-8") == schema.documentation(), (
        "python -m opentrn.trace.schema > docs/…"
    )


def test_round_trip(tmp_path):
    record(tmp_path / "t")
    trace = Trace(tmp_path / "t")
    assert trace.complete
    assert len(trace.files("operators")) > 3
    rows = trace.table("operators").to_pylist()
    assert [row["flops"] for row in rows] == [2 * i for i in range(100)]
    assert rows[9] == {
        "name": "aten::op2", "shapes": "[2]->[2]", "dtypes": "float32->float32", "module": "model.layers.0",
        "frame": None, "phase": "recompute", "kind": "simulated", "device": 0, "stream": 0,
        "host_start": 90, "host_end": 100,
        "device_start": 100, "device_end": 109, "flops": 18, "bytes": 27, "memory_allocated": 0,
    }  # fmt: skip
    assert trace.rows("operators") == 100
    memory = trace.table("memory").to_pylist()
    assert [row["event"] for row in memory] == ["alloc", "free"] * 100
    assert trace.table("steps").num_rows == 0


def test_module_times_are_summed_while_draining(tmp_path):
    recorder = record(tmp_path / "t")
    names = recorder.module_names()
    assert recorder.module_ns[names.index("model.layers.0") + 1] == sum(range(100))


def test_every_column_is_described():
    for table in schema.TABLES.values():
        assert all(column.meaning and column.type in schema._TYPES for column in table.columns)
        times = [column for column in table.columns if re.search(r"_(ns|start|end)$|^time$", column.name)]
        assert all(column.unit == "ns" for column in times)


def test_rows_are_drained_by_the_thread_alone(tmp_path):
    """A long run needs no step to reach the disk."""
    import time

    fake = FakeDevice()
    recorder = Recorder(fake, TraceWriter(tmp_path / "t", {}), chunk_rows=10, poll_seconds=0.001)
    recorder.start()
    for _ in range(50):
        fake.run()
    deadline = time.monotonic() + 10
    while not (tmp_path / "t" / "operators-000000.parquet").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert Trace(tmp_path / "t").rows("operators") > 0
    assert not Trace(tmp_path / "t").complete
    recorder.stop()


def test_a_trace_is_never_overwritten(tmp_path):
    record(tmp_path / "t")
    with pytest.raises(ConfigurationError, match="already holds a trace"):
        TraceWriter(tmp_path / "t", {})
    assert Trace(tmp_path / "t").rows("operators") == 100


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot write a trace"):
        TraceWriter(tmp_path / "file" / "t", {})


FULL_DISK = """
import resource, sys
sys.path[:0] = [{tests!r}]
from fake_device import FakeDevice
from opentrn.trace.recorder import Recorder
from opentrn.trace.writer import TraceWriter
fake = FakeDevice()
writer = TraceWriter({directory!r}, {{}})
recorder = Recorder(fake, writer, poll_seconds=1000)
recorder.start()
def flush():
    recorder._take(); recorder._flush()
fake.run(); flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
for i in range(20000):
    fake.run(ns=i * 7919 % 10007)
flush()
assert writer.stopped, "the limit was not met"
assert not fake.tracing, "the device goes on filling buffers"
fake.run(); flush()
recorder.stop(); writer.close(True)
print("the run went on")
"""


def test_a_full_disk_stops_the_trace_and_not_the_run(tmp_path):
    """A file size limit makes write() fail as a full disk does."""
    code = FULL_DISK.format(tests=str(Path(__file__).parent), directory=str(tmp_path / "t"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert done.stdout == "the run went on\n", done.stderr
    assert done.stderr.count("\n") == 1 and "stopped" in done.stderr and "readable" in done.stderr
    assert Trace(tmp_path / "t").rows("operators") == 1
    assert not Trace(tmp_path / "t").complete
    assert not list((tmp_path / "t").glob(f"*{UNFINISHED}"))


def test_no_space_error(tmp_path, monkeypatch, capsys):
    writer = TraceWriter(tmp_path / "t", {})

    def full(table, path, **options):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    rows = schema.TOTALS.arrow().empty_table()
    rows = schema.pa.Table.from_pylist([{"name": "a", "kind": "b", "count": 1}], schema=rows.schema)
    assert writer.write("totals", rows) is False
    assert writer.write("totals", rows) is False
    assert capsys.readouterr().err.count("No space left on device") == 1
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["trace.json"]


def _small_files_only(monkeypatch, limit):
    """As on a disk with `limit` free bytes."""
    write_text, write_table = Path.write_text, pq.write_table

    def text(path, data, **options):
        if len(data) > limit:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_text(path, data, **options)

    def table(rows, path, **options):
        write_table(rows, path, **options)
        if path.stat().st_size > limit:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", text)
    monkeypatch.setattr(pq, "write_table", table)


def test_how_a_run_ended_is_kept_on_a_full_disk(tmp_path, monkeypatch):
    _small_files_only(monkeypatch, 2000)
    writer = TraceWriter(tmp_path / "t", {"command": "train.py"})
    totals = schema.pa.Table.from_pylist(
        [{"name": "a", "kind": "b", "count": 1}], schema=schema.TOTALS.arrow().empty_table().schema
    )
    writer.stopped = "No space left on device"
    assert writer.write("totals", totals) is False
    writer.close(True, ended="completed", run={"large": "x" * 5000})
    metadata = Trace(tmp_path / "t").metadata
    assert (metadata["ended"], metadata["complete"], "run" in metadata) == ("completed", False, False)
    assert not list((tmp_path / "t").glob(f"*{UNFINISHED}"))
    record = rebuild(Trace(tmp_path / "t"))
    assert record.ended == "completed" and "No space left on device" in record.notes[0]


def test_the_last_tables_are_written_although_the_trace_stopped(tmp_path):
    writer = TraceWriter(tmp_path / "t", {}, limit_bytes=1)
    totals = schema.pa.Table.from_pylist(
        [{"name": "a", "kind": "b", "count": 1}], schema=schema.TOTALS.arrow().empty_table().schema
    )
    assert writer.write("totals", totals) and writer.stopped and not writer.write("totals", totals)
    assert writer.write("totals", totals, last=True) and Trace(tmp_path / "t").rows("totals") == 2


def test_a_size_limit_stops_the_trace(tmp_path, capsys):
    fake = FakeDevice()
    writer = TraceWriter(tmp_path / "t", {}, limit_bytes=1)
    recorder = Recorder(fake, writer, poll_seconds=1000)
    recorder.start()
    fake.run()
    recorder.stop()
    assert "limit" in writer.stopped
    assert Trace(tmp_path / "t").rows("operators") == 1


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda d: (d / "trace.json").unlink(), "is not a trace"),
        (lambda d: (d / "trace.json").write_text("{"), "is damaged"),
        (lambda d: (d / "trace.json").write_text('{"format": "other"}'), "does not describe"),
        (lambda d: (d / "trace.json").write_text('{"format": "opentrn-trace", "version": 99}'), "version 99"),
        (lambda d: (d / "operators-000001.parquet").write_bytes(b"PAR1 nonsense PAR1"), "operators-000001"),
        (lambda d: _truncate(d / "operators-000000.parquet"), "is damaged"),
        (lambda d: _flip(d / "operators-000000.parquet"), "operators-000000"),
        (lambda d: os.replace(d / "memory-000000.parquet", d / "operators-000000.parquet"), "is no table"),
    ],
)
def test_damaged_and_foreign(tmp_path, damage, message):
    record(tmp_path / "t")
    damage(tmp_path / "t")
    with pytest.raises(CorruptFileError, match=message):
        Trace(tmp_path / "t").table("operators")


def _truncate(path):
    path.write_bytes(path.read_bytes()[:-20])


def _flip(path):
    """Damages the first data page, behind an intact footer."""
    data = bytearray(path.read_bytes())
    data[4:60] = bytes(56)
    path.write_bytes(data)


def test_a_directory_that_does_not_exist():
    with pytest.raises(ConfigurationError, match="there is no trace directory"):
        Trace(Path("/nowhere/at/all"))


def test_unfinished_files_are_ignored(tmp_path):
    record(tmp_path / "t")
    (tmp_path / "t" / f"operators-000099.parquet{UNFINISHED}").write_bytes(b"half a file")
    assert Trace(tmp_path / "t").table("operators").num_rows == 100


def test_metadata_says_how_it_ended(tmp_path):
    record(tmp_path / "t", complete=False)
    assert json.loads((tmp_path / "t" / "trace.json").read_text())["complete"] is False
