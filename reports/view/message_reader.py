"""Read a message at its offset in a capture, without reading the rest of the capture.

In: a capture's file, and an exchange's row with the offset of each message's first packet. Out: a message's bytes.
Rules: nothing is guessed: the message begins in the packet at that offset, with that packet's time, has the row's
length and correlation id, and is complete. In all other cases (retransmissions with different bytes, packets before
that offset, missing bytes) the result is None, and the caller reads more of the capture.
"""

from __future__ import annotations

import heapq
import mmap
import struct
from typing import Any, Final

import numpy as np

from kwire.analyzer.export.selection import End, halves
from kwire.analyzer.frame.spill import check_cancelled
from kwire.analyzer.records.batches import view
from kwire.captures.files import CaptureError, CapturePoint
from kwire.captures.packets import Packets, Reader
from kwire.reports.view.capture_slice import file_slice

_LEAST: Final = 12
"""Bytes of the shortest message whose beginning can be recognised."""

_FROM: Final = 256 << 10
_TO: Final = 8 << 20
"""Bytes of a capture that are read at a time, for small and for large messages."""

_EVERYTHING: Final = 1 << 62

_REQUIRED: Final = ("api_key", "api_version", "correlation_id", "client_ip", "client_port", "broker_ip", "broker_port")


def _memory(size: int) -> memoryview:
    """Allocate writable memory whose pages are only taken when written. Raises OSError."""
    return memoryview(mmap.mmap(-1, size, access=mmap.ACCESS_COPY))


def read_message(path: str, row: dict[str, Any], side: str) -> memoryview | None:
    """Read one message of an exchange, with its length field, into memory of its own; None as above. Raises OSError."""
    place, size, time, end = (row[f"{side}_{name}"] for name in ("offset", "bytes", "time", "end"))
    if None in (place, size, time, end, *(row[name] for name in _REQUIRED)) or size < _LEAST:
        return None
    sender, receiver = (row["client_ip"], row["client_port"]), (row["broker_ip"], row["broker_port"])
    if side == "request":
        begins = struct.pack(">ihhi", size - 4, row["api_key"], row["api_version"], row["correlation_id"])
    else:
        begins = struct.pack(">ii", size - 4, row["correlation_id"])
        sender, receiver = receiver, sender
    stream = file_slice(path, place, _EVERYTHING)
    if stream is None:
        return None
    built = _MessageAssembly(begins, size, time)
    try:
        with stream, Reader(CapturePoint("-", ("-",)), min(max(2 * size, _FROM), _TO), stream) as reader:
            for packets in reader:
                check_cancelled()
                if len(packets):
                    if not built.take(packets, _sent(packets, sender, receiver)):
                        return None
                    if built.complete is not None:
                        return built.complete
                    if int(packets.columns.time_ns.min()) // 1000 > end:  # the message was complete by then
                        return None
                packets.release()
    except CaptureError:  # no packets are there
        return None
    return None


def _sent(packets: Packets, sender: End, receiver: End) -> np.ndarray:
    """Select the packets of one direction of a connection."""
    columns = packets.columns
    rows = np.flatnonzero((columns.src_port == sender[1]) & (columns.dst_port == receiver[1]))
    for name, half in zip(
        ("src_hi", "src_lo", "dst_hi", "dst_lo"), (*halves(sender[0]), *halves(receiver[0])), strict=True
    ):
        rows = rows[getattr(columns, name)[rows] == np.uint64(half)]
    return rows


class _MessageAssembly:
    """A message assembled packet by packet. `begins`: its first bytes; `time`: of its first packet, in us."""

    def __init__(self, begins: bytes, size: int, time: int) -> None:
        self._begins = begins
        self._time = time
        self._size = size
        self._bytes = _memory(size)
        self._first: int | None = None  # its first byte's sequence number
        self._come = 0  # bytes received without a gap
        self._later: list[tuple[int, bytes]] = []  # segments received early, as a heap
        self._waiting = 0
        self.complete: memoryview | None = None

    def take(self, packets: Packets, rows: np.ndarray) -> bool:
        """Take packets of its direction, from the one that it begins in. Returns False if they are not this message, or
        not all of it."""
        columns, data = packets.columns, view(packets.buffer)
        if self._first is None:
            self._first = self._begun(packets, rows)
            if self._first is None:
                return False
        places = (columns.seq[rows] - self._first + (1 << 31)) % (1 << 32) - (1 << 31)
        lengths = columns.payload_length[rows]
        in_message = (lengths > 0) & (places < self._size) & (places + lengths > 0)
        rows, places, lengths = rows[in_message], places[in_message], lengths[in_message]
        if (columns.payload_captured[rows] < lengths).any():
            return False
        skipped = np.maximum(-places, 0)  # bytes before the message in its first packet
        starts, lengths = columns.payload_at[rows] + skipped, np.minimum(lengths, self._size - places) - skipped
        places += skipped
        pieces = zip(places.tolist(), starts.tolist(), lengths.tolist(), strict=True)
        if not self._later and np.array_equal(places, self._come + np.cumsum(lengths) - lengths):  # all in order
            for _, start, length in pieces:
                self._write(data[start : start + length])
        elif not all(self._put(place, data[start : start + length]) for place, start, length in pieces):
            return False
        known = min(self._come, len(self._begins))
        if self._bytes_at(0, known) != self._begins[:known]:
            return False
        if self._come == self._size:
            self.complete = self._bytes
        return True

    def _begun(self, packets: Packets, rows: np.ndarray) -> int | None:
        """Find the sequence number of its first byte; None if it does not begin here."""
        columns = packets.columns
        if not len(rows) or rows[0] != 0 or int(columns.time_ns[0]) // 1000 != self._time:
            return None
        at = int(columns.payload_at[0])
        payload = packets.buffer[at : at + int(columns.payload_captured[0])].tobytes()
        place = payload.find(self._begins)
        if place < 0:  # its first bytes are this packet's last ones
            longest = min(len(payload), len(self._begins) - 1)
            ends = (count for count in range(longest, 0, -1) if payload.endswith(self._begins[:count]))
            count = next(ends, 0)
            if not count:
                return None
            place = len(payload) - count
        elif payload.find(self._begins, place + 1) >= 0:
            return None
        return (int(columns.seq[0]) + place) % (1 << 32)

    def _put(self, place: int, piece: memoryview) -> bool:
        """Add a segment. Returns False if its bytes contradict earlier ones."""
        if place > self._come:
            self._waiting += len(piece)
            heapq.heappush(self._later, (place, bytes(piece)))
            return self._waiting <= self._size
        if not self._joined(place, piece):
            return False
        while self._later and self._later[0][0] <= self._come:
            place, waiting = heapq.heappop(self._later)
            self._waiting -= len(waiting)
            if not self._joined(place, memoryview(waiting)):
                return False
        return True

    def _joined(self, place: int, piece: memoryview) -> bool:
        known = self._come - place
        if known and self._bytes_at(place, min(known, len(piece))) != piece[:known]:
            return False
        if known < len(piece):
            self._write(piece[known:])
        return True

    def _write(self, piece: memoryview) -> None:
        end = self._come + len(piece)
        self._bytes[self._come : end] = piece
        self._come = end

    def _bytes_at(self, place: int, count: int) -> memoryview:
        return self._bytes[place : place + count]
