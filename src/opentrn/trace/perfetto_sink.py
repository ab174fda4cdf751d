"""Writes Perfetto's protobuf packet by packet, with the `perfetto` package's own message classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

_SEQUENCE = 1
_PROCESS_TRACK = 1
# Track of a thread is _THREAD_TRACKS + thread, memory counter of a device _COUNTER_TRACKS + device.
_THREAD_TRACKS = 1 << 32
_COUNTER_TRACKS = 1 << 40

_CLEARED = messages.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
_NEEDED = messages.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
_BEGIN, _END = messages.TrackEvent.TYPE_SLICE_BEGIN, messages.TrackEvent.TYPE_SLICE_END
_COUNTER = messages.TrackEvent.TYPE_COUNTER
_PACKETS_PER_WRITE = 2000


class PerfettoSink:
    """A Trace message is a sequence of its packets, so each packet is appended as a Trace of one. Times are
    ns.

    Strings are interned: sent once, then referred to by number.
    """

    def __init__(self, file: IO[bytes], command: str, thread_name: Callable[[int], str]) -> None:
        self._file, self._thread_name = file, thread_name
        self._part = messages.Trace()
        self._tracks: set[int] = set()
        self._interned: dict[str, dict[str, int]] = {"event_names": {}, "keys": {}, "texts": {}}
        packet = self._packet()
        packet.sequence_flags = _CLEARED | _NEEDED
        packet.track_descriptor.uuid = _PROCESS_TRACK
        packet.track_descriptor.process.pid = 1
        packet.track_descriptor.process.process_name = f"opentrn {command}"

    def slice(
        self, thread: int, name: str, start: int, end: int, details: dict[str, Any], flow: int | None
    ) -> None:
        """One slice on a thread's track."""
        self._declare_thread(thread)
        packet = self._packet()
        packet.timestamp = start
        event = packet.track_event
        event.type, event.track_uuid = _BEGIN, _THREAD_TRACKS + thread
        event.name_iid = self._intern(packet, "event_names", name)
        if flow is not None:
            event.flow_ids.append(flow)
        for key, value in details.items():
            annotation = event.debug_annotations.add()
            annotation.name_iid = self._intern(packet, "keys", key)
            if isinstance(value, str):
                annotation.string_value_iid = self._intern(packet, "texts", value)
            else:
                annotation.int_value = value
        packet = self._packet()
        packet.timestamp = end
        packet.track_event.type, packet.track_event.track_uuid = _END, _THREAD_TRACKS + thread

    def memory(self, device: int, time: int, allocated: int) -> None:
        """One value of a device's memory counter."""
        track = _COUNTER_TRACKS + device
        if track not in self._tracks:
            self._tracks.add(track)
            descriptor = self._packet().track_descriptor
            descriptor.uuid, descriptor.parent_uuid = track, _PROCESS_TRACK
            descriptor.name = f"neuron:{device} memory allocated"
            descriptor.counter.unit = messages.CounterDescriptor.UNIT_SIZE_BYTES
        packet = self._packet()
        packet.timestamp = time
        event = packet.track_event
        event.type, event.track_uuid, event.counter_value = _COUNTER, track, allocated

    def close(self) -> None:
        """Writes what is left."""
        self._write()

    def _packet(self) -> Any:
        if len(self._part.packet) >= _PACKETS_PER_WRITE:
            self._write()
        packet = self._part.packet.add()
        packet.trusted_packet_sequence_id, packet.sequence_flags = _SEQUENCE, _NEEDED
        return packet

    def _write(self) -> None:
        self._file.write(self._part.SerializeToString())
        # A new one: a cleared message keeps its memory.
        self._part = messages.Trace()

    def _declare_thread(self, thread: int) -> None:
        track = _THREAD_TRACKS + thread
        if track in self._tracks:
            return
        self._tracks.add(track)
        descriptor = self._packet().track_descriptor
        descriptor.uuid, descriptor.parent_uuid = track, _PROCESS_TRACK
        descriptor.name = self._thread_name(thread)
        descriptor.sibling_order_rank = thread

    def _intern(self, packet: Any, table: str, text: str) -> int:
        known = self._interned[table]
        number = known.get(text)
        if number is not None:
            return number
        number = known[text] = len(known) + 1
        data = packet.interned_data
        if table == "texts":
            data.debug_annotation_string_values.add(iid=number, str=text.encode())
        elif table == "keys":
            data.debug_annotation_names.add(iid=number, name=text)
        else:
            data.event_names.add(iid=number, name=text)
        return number
