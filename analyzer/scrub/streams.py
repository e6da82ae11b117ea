"""First pass: what each direction of each connection said, on disk, and which messages lie where in it.

In: a capture point. Out: `Said`: every delivered byte by direction and sequence number, every packet's place, every
message's. Rules: bytes are those that the analyzer's own streams and framing worked on, so a message found here is one
that it finds. Nothing is kept in memory but places: 24 bytes a packet and a segment, 64 a message; payload lies in two
files without a name in the folder of the output, as it was and as it will be (zeros until somebody writes there), and
what the bytes of messages are, in a third.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.shard import FRAME_LIMIT, Conversations, layouts
from kwire.analyzer.common.mapped_files import mapped, write_all
from kwire.analyzer.scrub import windows
from kwire.analyzer.scrub.spans import COLUMNS, CapturedMessages, SpanReader, SpanRows
from kwire.captures.files import CapturePoint
from kwire.captures.flows import Assigned, Flows
from kwire.captures.packets import Packets, Reader, no_packets
from kwire.captures.stream_tables import (
    D_NEXT,
    D_REF,
    DATA,
    FINISH,
    GAP,
    SEG_AT,
    SEG_KEY,
    SEG_KIND,
    SEG_LENGTH,
    SEG_PACKET_INDEX,
    SEG_SOURCE,
    SNAPLEN,
)
from kwire.captures.streams import Segments, Streams

_LARGEST_SHARE: Final = 4  # as the engine: part of the frame limit that one frame may take
_SOUGHT_BYTES: Final = 1 << 16
_STRETCH: Final = 1 << 20
_OVERLAP: Final = 1 << 15
UNPLACED: Final = -1


@dataclass(slots=True)
class Direction:
    """One side of one connection: its delivered bytes as segments, `pos` in the stream (numbers grow beyond 32 bits),
    `length`, `at` in the files; and how far messages were found in it."""

    pos: array[int] = field(default_factory=lambda: array("q"))
    length: array[int] = field(default_factory=lambda: array("q"))
    at: array[int] = field(default_factory=lambda: array("q"))
    segment: int = 0
    offset: int = 0
    next: int = UNPLACED
    """Position behind the last segment, gaps included."""

    def add(self, pos: int, length: int, at: int) -> None:
        if self.pos and self.pos[-1] + self.length[-1] == pos and self.at[-1] + self.length[-1] == at:
            self.length[-1] += length
        else:
            self.pos.append(pos)
            self.length.append(length)
            self.at.append(at)


@dataclass(frozen=True, slots=True)
class Place:
    """A message: `direction` (2 * number of its connection + side), first segment, offset in it, bytes; what it is."""

    direction: int
    segment: int
    offset: int
    size: int
    request: bool
    api_key: int
    version: int

    @property
    def connection(self) -> int:
        return self.direction >> 1


class CapturedBytes:
    """Bytes of all directions and the messages in them. `bytes_of` and `write` after `close`, which ends the first
    pass."""

    def __init__(self, folder: str) -> None:
        self._files = [tempfile.TemporaryFile(dir=folder) for _ in range(3)]  # noqa: SIM115  (until `end`)
        self._size = 0
        self._maps: list[mmap.mmap] = []
        self.directions: dict[int, Direction] = {}
        self.messages: list[Place] = []
        self._parts: np.ndarray = np.zeros((0, COLUMNS), np.int32)
        self._parts_begin = array("q", [0])
        self.topics: list[str] = []
        self.unfound = 0
        self.packet_file, self.packet_number = array("i"), array("q")
        self.packet_direction, self.packet_pos = array("q"), array("q")

    # -- first pass ----------------------------------------------------------------------------------------------------

    def keep(self, data: bytes) -> int:
        at = self._size
        write_all(self._files[0].fileno(), data, at)
        self._size += len(data)
        return at

    def original(self, at: int, size: int) -> bytes:
        return os.pread(self._files[0].fileno(), size, at)

    def keep_parts(self, parts: SpanRows) -> None:
        """Store the spans of the next messages."""
        self._files[2].write(parts.rows.tobytes())
        self._parts_begin.frombytes((parts.begins[1:] + self._parts_begin[-1]).astype(np.int64).tobytes())

    def close(self, topics: list[str]) -> None:
        """All is there; `topics`: what those of records are called, by their numbers in `parts_of`."""
        self.topics = topics
        self._files[2].flush()
        if self._parts_begin[-1]:
            parts = np.memmap(self._files[2], np.int32, "r")
            self._parts = parts.view(np.ndarray).reshape(-1, COLUMNS)  # slices of a memmap itself are slow
        self._maps = [mapped(file.fileno(), self._size) for file in self._files[:2]]

    def end(self) -> None:
        """Give the files back."""
        self._parts = np.zeros((0, COLUMNS), np.int32)
        for memory in self._maps:
            memory.close()
        for file in self._files:
            file.close()

    def find(self, direction: int, data: bytes) -> tuple[int, int] | None:
        """Where a message begins in a direction, behind those that were found before; the search ends behind it."""
        stream = self.directions.get(direction)
        if stream is None:
            return None
        wanted = len(data)
        while True:
            got, starts = self._ahead(stream, wanted)
            offset_found = got.find(data)
            if offset_found >= 0:
                break
            if len(got) < wanted:
                return None
            wanted = max(2 * wanted, _SOUGHT_BYTES)
        at = bisect_right(starts, offset_found) - 1
        segment, offset = stream.segment + at, offset_found - starts[at] + (stream.offset if at == 0 else 0)
        last = bisect_right(starts, offset_found + len(data) - 1) - 1
        end = offset_found + len(data) - starts[last] + (stream.offset if last == 0 else 0)
        stream.segment, stream.offset = stream.segment + last, end
        return segment, offset

    def _ahead(self, stream: Direction, wanted: int) -> tuple[bytes, list[int]]:
        """At least so many bytes, as far as there are, from where the search stands; where each segment begins."""
        out, starts = bytearray(), []
        skip = stream.offset
        for i in range(stream.segment, len(stream.pos)):
            starts.append(len(out))
            take = min(stream.length[i] - skip, max(wanted - len(out), 0))
            out += self.original(stream.at[i] + skip, take)
            skip = 0
            if len(out) >= wanted:
                break
        return bytes(out), starts or [0]

    # -- second pass ---------------------------------------------------------------------------------------------------

    def parts_of(self, message: int) -> list[list[int]]:
        """Return the spans of a message, by its number in `messages`: rows of `spans.SpanRows`."""
        rows: list[list[int]] = self._parts[self._parts_begin[message] : self._parts_begin[message + 1]].tolist()
        return rows

    def spans(self, place: Place) -> Iterator[tuple[int, int]]:
        """Where a message lies in the files: (at, size), piece by piece."""
        stream = self.directions[place.direction]
        segment, offset, left = place.segment, place.offset, place.size
        while left:
            take = min(left, stream.length[segment] - offset)
            if take:
                yield stream.at[segment] + offset, take
            left -= take
            segment, offset = segment + 1, 0

    def bytes_of(self, place: Place, clean: bool = False) -> bytes:
        source = self._maps[clean]
        return b"".join(source[at : at + size] for at, size in self.spans(place))

    def write(self, place: Place, data: bytes) -> None:
        self.write_run(list(self.spans(place)), data)

    def write_run(self, spans: list[tuple[int, int]], data: bytes) -> None:
        done = 0
        for at, size in spans:
            piece = data[done : done + size]
            self._maps[1][at : at + len(piece)] = piece
            done += size

    def begins(self, place: Place) -> int:
        """A message's position in its direction."""
        return self.directions[place.direction].pos[place.segment] + place.offset

    def run(self, direction: int, start: int, stop: int) -> list[tuple[int, int]]:
        """Where the bytes from position `start` on lie, up to `stop` or the first hole: (at, size), piece by piece."""
        stream = self.directions[direction]
        spans = []
        i = max(bisect_right(stream.pos, start) - 1, 0)
        while i < len(stream.pos) and start < stop and stream.pos[i] <= start < stream.pos[i] + stream.length[i]:
            size = min(stop, stream.pos[i] + stream.length[i]) - start
            spans.append((stream.at[i] + start - stream.pos[i], size))
            start += size
            i += 1
        return spans

    def stream(self, direction: int) -> Iterator[tuple[int, bytes, int]]:
        """A direction's runs of bytes without a hole: position, bytes as they were, where they lie in the files. (A
        run's segments need not lie together; each is one.)"""
        stream = self.directions[direction]
        for pos, length, at in zip(stream.pos, stream.length, stream.at, strict=True):
            yield pos, self._maps[0][at : at + length], at

    def everything(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All that was delivered, stretch by stretch, in the order in which it came: as it was, and what was written
        there. Stretches overlap by as much as a text may have."""
        for at in range(0, self._size, _STRETCH):
            end = min(at + _STRETCH + _OVERLAP, self._size)
            was, now = (np.frombuffer(source, np.uint8, end - at, at).copy() for source in self._maps)
            yield was, now

    def originals(self) -> Iterator[np.ndarray]:
        """All bytes of all directions as they were, in pieces that overlap by a window."""
        for at in range(0, self._size, windows.CHUNK):
            size = min(windows.CHUNK + windows.SIZE - 1, self._size - at)
            yield np.frombuffer(self._maps[0], np.uint8, size, at).copy()

    def write_at(self, at: int, data: bytes) -> None:
        self._maps[1][at : at + len(data)] = data

    def payload(self, direction: int, pos: int, data: bytes) -> bytes:
        """Return the clean payload of a packet, by its position: zeros where nothing was delivered. A byte that differs
        from the one delivered differs afterwards."""
        out = bytearray(len(data))
        stream = self.directions.get(direction)
        if stream is None or pos == UNPLACED:
            return bytes(out)
        end = pos + len(data)
        i = max(bisect_right(stream.pos, pos) - 1, 0)
        while i < len(stream.pos) and stream.pos[i] < end:
            start, stop = max(pos, stream.pos[i]), min(end, stream.pos[i] + stream.length[i])
            if start < stop:
                at = stream.at[i] + start - stream.pos[i]
                size = stop - start
                clean = self._maps[1][at : at + size]
                was, here = self._maps[0][at : at + size], data[start - pos : stop - pos]
                if was != here:
                    changed = np.frombuffer(was, np.uint8) != np.frombuffer(here, np.uint8)
                    clean = (np.frombuffer(clean, np.uint8) ^ changed).tobytes()
                out[start - pos : stop - pos] = clean
            i += 1
        return bytes(out)


class FirstPass:
    """Reads a capture point. `reader` knows files, notes and counts; `learn` is given all messages, window after
    window."""

    def __init__(
        self,
        point: CapturePoint,
        folder: str,
        ports: tuple[int, ...] = (),
        learn: Callable[[CapturedMessages, SpanRows], None] = lambda batch, parts: None,
    ) -> None:
        self._spans = SpanReader()
        self._learn = learn
        self.reader = Reader(point)
        self.captured = CapturedBytes(folder)
        self._flows = Flows(most_legs=0)  # each copy is rewritten by itself
        self._streams = Streams()
        largest = FRAME_LIMIT // _LARGEST_SHARE
        self._conversations = Conversations(layouts(), ports, True, FRAME_LIMIT // 2, largest)
        self._base = 0
        self.addresses: set[tuple[int, int]] = set()

    def run(self) -> CapturedBytes:
        """Read it all."""
        for packets in self.reader:
            self._window(packets, self._flows.assign(packets))
            packets.release()
        self._window(no_packets(), self._flows.all_end(), final=True)
        self.captured.close(self._spans.topic_names())
        return self.captured

    def _window(self, packets: Packets, assigned: Assigned, final: bool = False) -> None:
        slots = self._flows.slots
        segments = self._streams.advance(packets, assigned, self._base, slots)
        self._place_packets(packets, assigned)
        self._take(segments, packets)
        ended = self._conversations.take(segments, self._streams, assigned, final)
        self._messages(ended.messages, ended.message_bytes)
        columns = packets.columns
        for high, low in ((columns.src_hi, columns.src_lo), (columns.dst_hi, columns.dst_lo)):
            both = np.unique(np.stack([high, low], axis=1), axis=0)
            self.addresses.update((int(address[0]), int(address[1])) for address in both)
        if len(ended.slots):
            self._flows.recycle(ended.slots)
        self._base += len(packets)

    def _place_packets(self, packets: Packets, assigned: Assigned) -> None:
        """Each packet's direction and position, as the numbers that its connection has reached tell."""
        captured, columns = self.captured, packets.columns
        if not len(packets):
            return
        slot = assigned.slot.astype(np.int64)
        known = slot >= 0
        key = np.where(known, 2 * slot + assigned.side, 0)
        reference = self._streams.directions[key, D_NEXT]
        known &= self._streams.directions[key, D_REF] != 0
        delta = (columns.seq - reference) & 0xFFFFFFFF
        delta -= (delta >= 1 << 31) * (1 << 32)
        direction = 2 * self._flows.serials(np.where(slot >= 0, slot, 0)) + assigned.side
        captured.packet_file.frombytes(np.ascontiguousarray(columns.file, np.int32).tobytes())
        captured.packet_number.frombytes(columns.number.tobytes())
        captured.packet_direction.frombytes(np.where(slot >= 0, direction, UNPLACED).astype(np.int64).tobytes())
        captured.packet_pos.frombytes(np.where(known, reference + delta, UNPLACED).astype(np.int64).tobytes())

    def _take(self, segments: Segments, packets: Packets) -> None:
        """Keep what was delivered."""
        rows = segments.rows
        if not len(rows):
            return
        keys = rows[:, SEG_KEY]
        born = self._flows.serials(keys >> 1)
        for i in np.flatnonzero(np.isin(rows[:, SEG_KIND], (DATA, GAP, SNAPLEN))).tolist():
            row = rows[i]
            number = 2 * int(born[i]) + int(keys[i] & 1)
            stream = self.captured.directions.get(number)
            if stream is None:
                stream = self.captured.directions[number] = Direction()
            length = int(row[SEG_LENGTH])
            if stream.next == UNPLACED:
                stream.next = self._begins(segments, i, packets)
            if row[SEG_KIND] == DATA:
                at = int(row[SEG_AT])
                data = segments.sources[int(row[SEG_SOURCE])][at : at + length].tobytes()
                stream.add(stream.next, length, self.captured.keep(data))
            stream.next += length

    def _begins(self, segments: Segments, i: int, packets: Packets) -> int:
        """Position of a direction's first row: as the next row whose packet is at hand tells, else by where the
        direction stands behind all of this window's rows."""
        rows = segments.rows[i:]
        of_direction = rows[rows[:, SEG_KEY] == segments.rows[i, SEG_KEY]]
        before = 0
        finished = 0
        for row in of_direction.tolist():
            if row[SEG_KIND] == DATA and row[SEG_SOURCE] == 0:
                index = row[SEG_PACKET_INDEX] - self._base
                pos = self.captured.packet_pos[row[SEG_PACKET_INDEX]]
                return int(pos + row[SEG_AT] - packets.columns.payload_at[index] - before)
            if row[SEG_KIND] in (DATA, GAP, SNAPLEN):
                before += row[SEG_LENGTH]
            finished |= row[SEG_KIND] == FINISH
        return int(self._streams.directions[int(rows[0, SEG_KEY]), D_NEXT]) - before - finished

    def _messages(self, rows: np.ndarray, heap: np.ndarray) -> None:
        if not len(rows):
            return
        born = self._flows.serials(rows[:, s.MSG_SLOT])
        request = rows[:, s.MSG_DIRECTION] == 0
        direction = 2 * born + np.where(request, rows[:, s.MSG_CLIENT], 1 - rows[:, s.MSG_CLIENT])
        at, size = rows[:, s.MSG_AT], rows[:, s.MSG_LENGTH]
        every = CapturedMessages(heap, at, size, born, request, rows[:, s.MSG_API_KEY], rows[:, s.MSG_API_VERSION])
        located = np.zeros(len(rows), np.bool_)
        for i, (number, begin, length) in enumerate(zip(direction.tolist(), at.tolist(), size.tolist(), strict=True)):
            place = self.captured.find(number, heap[begin : begin + length].tobytes())
            if place is None:
                self.captured.unfound += 1
                continue
            located[i] = True
            self.captured.messages.append(
                Place(number, *place, length, bool(request[i]), int(every.api_key[i]), int(every.version[i]))
            )
        batch = CapturedMessages(heap, *(column[located] for column in every[1:]))
        parts = self._spans.read(batch)
        self.captured.keep_parts(parts)
        self._learn(batch, parts)
