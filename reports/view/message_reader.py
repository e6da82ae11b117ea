"""A message put together from its place on: of the capture no more is read than lies between its packets.

In: a capture's file, and an exchange's row, which says where the first packet of each message is. Out: a message's
bytes. Rules: nothing is guessed: what comes out begins in the packet of that place, with that packet's time, has the
length and the correlation id of the row, and is whole, every byte captured; of anything else (bytes sent again that are
others, packets that came before that place, what was cut) it is None, and whoever asked reads more of the capture.
"""

from __future__ import annotations

import heapq
import mmap
import struct
from typing import Any, Final

import numpy as np

from analyzer.records.batches import view
from captures.files import CaptureError, CapturePoint
from captures.packets import Packets, Reader
from reports.view.capture_slice import part
from reports.view.packets import End, halves
from reports.view.value_counts import wanted

_LEAST: Final = 12
"""Bytes of a message whose beginning can be told."""

_FROM: Final = 256 << 10
_TO: Final = 8 << 20
"""Bytes of a capture that are read at a time, for little messages and for large ones."""

_EVERYTHING: Final = 1 << 62

_KNOWN: Final = ("api_key", "api_version", "correlation_id", "client_ip", "client_port", "broker_ip", "broker_port")


def _memory(size: int) -> memoryview:
    """Bytes that can be written. None are taken before they are, nor filled with anything. Raises OSError."""
    return memoryview(mmap.mmap(-1, size, access=mmap.ACCESS_COPY))


def message(path: str, row: dict[str, Any], side: str) -> memoryview | None:
    """One side of an exchange, its length before it, in memory that is whoever asks for it's alone. Raises OSError."""
    place, size, time, end = (row[f"{side}_{name}"] for name in ("offset", "bytes", "time", "end"))
    if None in (place, size, time, end, *(row[name] for name in _KNOWN)) or size < _LEAST:
        return None
    sender, receiver = (row["client_ip"], row["client_port"]), (row["broker_ip"], row["broker_port"])
    if side == "request":
        begins = struct.pack(">ihhi", size - 4, row["api_key"], row["api_version"], row["correlation_id"])
    else:
        begins = struct.pack(">ii", size - 4, row["correlation_id"])
        sender, receiver = receiver, sender
    stream = part(path, place, _EVERYTHING)
    if stream is None:
        return None
    built = _Message(begins, size, time)
    try:
        with stream, Reader(CapturePoint("-", ("-",)), min(max(2 * size, _FROM), _TO), stream) as reader:
            for packets in reader:
                wanted()
                if len(packets):
                    if not built.take(packets, _sent(packets, sender, receiver)):
                        return None
                    if built.whole is not None:
                        return built.whole
                    if int(packets.columns.time_ns.min()) // 1000 > end:  # it was whole by then
                        return None
                packets.release()
    except CaptureError:  # no packets are there
        return None
    return None


def _sent(packets: Packets, sender: End, receiver: End) -> np.ndarray:
    """Rows of one direction of a connection."""
    columns = packets.columns
    found = np.flatnonzero((columns.src_port == sender[1]) & (columns.dst_port == receiver[1]))
    for name, half in zip(
        ("src_hi", "src_lo", "dst_hi", "dst_lo"), (*halves(sender[0]), *halves(receiver[0])), strict=True
    ):
        found = found[getattr(columns, name)[found] == np.uint64(half)]
    return found


class _Message:
    """A message that comes packet by packet. `begins`: its first bytes; `time`: of its first packet, in us."""

    def __init__(self, begins: bytes, size: int, time: int) -> None:
        self._begins = begins
        self._time = time
        self._size = size
        self._bytes = _memory(size)
        self._first: int | None = None  # its first byte's sequence number
        self._come = 0  # so many bytes are there, one behind the other
        self._later: list[tuple[int, bytes]] = []  # what came before its turn, as a heap
        self._waiting = 0
        self.whole: memoryview | None = None

    def take(self, packets: Packets, rows: np.ndarray) -> bool:
        """Packets of its direction; the first of all is the one that it begins in. False: it is not this message, or
        not as it was."""
        columns, data = packets.columns, view(packets.buffer)
        if self._first is None:
            self._first = self._begun(packets, rows)
            if self._first is None:
                return False
        places = (columns.seq[rows] - self._first + (1 << 31)) % (1 << 32) - (1 << 31)
        lengths = columns.payload_length[rows]
        mine = (lengths > 0) & (places < self._size) & (places + lengths > 0)
        rows, places, lengths = rows[mine], places[mine], lengths[mine]
        if (columns.payload_captured[rows] < lengths).any():
            return False
        skipped = np.maximum(-places, 0)  # what lies before it in its first packet, and behind it in its last
        starts, lengths = columns.payload_at[rows] + skipped, np.minimum(lengths, self._size - places) - skipped
        places += skipped
        pieces = zip(places.tolist(), starts.tolist(), lengths.tolist(), strict=True)
        if not self._later and np.array_equal(places, self._come + np.cumsum(lengths) - lengths):  # each in its turn
            for _, start, length in pieces:
                self._write(data[start : start + length])
        elif not all(self._put(place, data[start : start + length]) for place, start, length in pieces):
            return False
        known = min(self._come, len(self._begins))
        if self._said(0, known) != self._begins[:known]:
            return False
        if self._come == self._size:
            self.whole = self._bytes
        return True

    def _begun(self, packets: Packets, rows: np.ndarray) -> int | None:
        """The sequence number of its first byte; None: it does not begin here."""
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
        """A piece of it. False: it says something else than what is there."""
        if place > self._come:
            self._waiting += len(piece)
            heapq.heappush(self._later, (place, bytes(piece)))
            return self._waiting <= self._size
        if not self._joined(place, piece):
            return False
        while self._later and self._later[0][0] <= self._come:
            place, kept = heapq.heappop(self._later)
            self._waiting -= len(kept)
            if not self._joined(place, memoryview(kept)):
                return False
        return True

    def _joined(self, place: int, piece: memoryview) -> bool:
        known = self._come - place
        if known and self._said(place, min(known, len(piece))) != piece[:known]:
            return False
        if known < len(piece):
            self._write(piece[known:])
        return True

    def _write(self, piece: memoryview) -> None:
        end = self._come + len(piece)
        self._bytes[self._come : end] = piece
        self._come = end

    def _said(self, place: int, count: int) -> memoryview:
        return self._bytes[place : place + count]
