"""Capture files -> every captured packet with where its headers lie: for who writes a capture anew.

In: a capture point. Out: `Dissected` batches, a row for each captured packet, whatever it is, in file order. Rules: the
walk is that of `kwire.captures.packets`, with the same numbers for the same packets; but fragments are not put
together, so what lies in one is nothing but bytes. A packet block that contradicts itself gives no row; it is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

import numpy as np

from kwire.captures.files import CapturePoint, layouts
from kwire.captures.files.layouts import (
    BAD,
    BLOCK,
    LINK,
    MORE,
    NUMBER,
    RECORD,
    SKIPPED,
    TIME,
    LayoutTables,
    next_record,
)
from kwire.captures.files.sources import Source
from kwire.captures.kernels import Bytes, Int, Table, kernel
from kwire.captures.links import FRAGMENT, TCP, enter_tunnel, find_ip, walk_ip
from kwire.captures.windows import WINDOW_BYTES, Pool, Windows

LAYERS: Final = 5
"""IP packets looked into, one inside the other (as `kwire.captures.packets` does)."""

(
    AT,  # where the packet begins in the window's buffer
    CAPTURED,
    ORIGINAL,  # its length on the wire
    INTERFACE,  # in its file
    TIME_NS,
    ORDINAL,  # its number in its file, from 1
    KIND,  # TCP, another IP protocol, or why nothing is known (negative, `kwire.captures.links`)
    DEPTH,  # layers that were found
    FIRST_LAYER,
) = range(9)

(
    FRAME,  # where the layer's frame begins, its link header that is; all places are in the buffer
    LINK_TYPE,
    IP,
    TRANSPORT,  # behind the IP header and its extensions
    IP_END,  # by the IP packet's own length; may be behind what was captured
    PROTOCOL,
    VERSION,
    LAYER_COLUMNS,
) = range(8)

COLUMNS: Final = FIRST_LAYER + LAYERS * LAYER_COLUMNS

FULL: Final = 6
"""Why `dissect` stopped, beside what `next_record` says: no row is free."""


@kernel
def dissect(b: Bytes, at: Int, end: Int, layout: LayoutTables, out: Table) -> tuple[Int, Int, Int, Int, Int]:
    """Write a row of `out` int64[n, COLUMNS] for each packet among the records in b[at:end].

    Returns (why it stopped: MORE, BLOCK, BAD or FULL; where in b; bytes that the record there needs; rows; packet
    blocks that contradict themselves)."""
    state, interfaces, comments = layout
    row = np.int64(0)
    bad = np.int64(0)
    while True:
        if row >= len(out):
            return np.int64(FULL), at, np.int64(0), row, bad
        what, data_at, captured, original, port, time, next_at = next_record(b, at, end, state, interfaces, comments)
        if what in (MORE, BLOCK, BAD):
            return what, at, next_at, row, bad
        at = next_at
        if what == SKIPPED:
            continue
        state[NUMBER] += 1
        if what != RECORD:
            bad += 1
            continue
        state[TIME] = time
        out[row, AT] = data_at
        out[row, CAPTURED] = captured
        out[row, ORIGINAL] = original
        out[row, INTERFACE] = port
        out[row, TIME_NS] = time
        out[row, ORDINAL] = state[NUMBER]
        frame_end = data_at + captured
        wire_end = data_at + original
        link = interfaces[port, LINK]
        inside = data_at
        kind = np.int64(0)
        depth = np.int64(0)
        for layer in range(LAYERS):
            place = FIRST_LAYER + layer * LAYER_COLUMNS
            out[row, place + FRAME] = inside
            out[row, place + LINK_TYPE] = link
            ip = find_ip(b, inside, frame_end, wire_end, link)
            if ip < 0:
                kind = ip
                break
            kind, transport, ip_end, version = walk_ip(b, ip, frame_end, wire_end)
            if kind < 0 and kind != FRAGMENT:
                break
            out[row, place + IP] = ip
            out[row, place + TRANSPORT] = transport
            out[row, place + IP_END] = ip_end
            out[row, place + PROTOCOL] = kind
            out[row, place + VERSION] = version
            depth += 1
            if kind == TCP or kind == FRAGMENT:
                break
            frame_end, wire_end = min(frame_end, ip_end), min(wire_end, ip_end)
            link, inside = enter_tunnel(b, kind, transport, frame_end, wire_end)
            if link < 0:
                break
        out[row, KIND] = kind
        out[row, DEPTH] = depth
        row += 1


@dataclass(frozen=True, slots=True)
class Dissected:
    """Packets of one window: `rows` int64[n, COLUMNS], whose places are in `buffer`; valid until the next batch.
    `interfaces` int64[i, ...] as `layouts.Layout` has them, `file` which file of the point it is."""

    rows: np.ndarray
    buffer: np.ndarray
    file: int
    interfaces: np.ndarray


class Dissector:
    """Reads a capture point window by window. `skipped`: packet blocks that contradict themselves, so far; `cut`: files
    that end in a record or are damaged. Raises CaptureError as `kwire.captures.packets.Reader` does, which reads
    first."""

    def __init__(self, point: CapturePoint, stdin: BinaryIO | None = None, window_bytes: int = WINDOW_BYTES) -> None:
        self._point = point
        self._stdin = stdin
        self._pool = Pool(max(window_bytes, layouts.PCAP_HEADER_BYTES), 0)
        self._out = np.zeros((1 << 14, COLUMNS), np.int64)
        self.skipped = 0
        self.dropped: int | None = None

    def __iter__(self) -> Iterator[Dissected]:
        for number, path in enumerate(self._point.paths):
            with Source(path, self._stdin, self._point.folder) as source:
                yield from self._read(source, number)

    def _read(self, source: Source, number: int) -> Iterator[Dissected]:
        layout = layouts.Layout()
        windows = Windows(source, self._pool)
        begun = stopped = False
        while not (stopped or windows.ended):
            window = windows.read(0 if begun else layouts.PCAP_HEADER_BYTES)
            at = window.at
            if not begun:
                at += layout.begin(bytes(window.buffer[at : min(window.end, at + layouts.PCAP_HEADER_BYTES)]))
                begun = True
            why, needed = FULL, 0
            while why in (FULL, BLOCK):
                why, at, needed, rows, bad = dissect(window.buffer, at, window.end, layout.tables, self._out)
                self.skipped += int(bad)
                layout.comments[:, 0] = 0
                if rows:
                    yield Dissected(self._out[:rows], window.buffer, number, layout.interfaces)
                if why == BLOCK:
                    try:
                        size = layout.block_bytes(bytes(window.buffer[at : at + 12]))
                        if window.end - at < size:
                            why, needed = MORE, size
                        else:
                            layout.read_block(bytes(window.buffer[at : at + size]))
                            buffer = memoryview(window.buffer)  # type: ignore[arg-type]  # has the protocol
                            at = layout.read_run(buffer, at + size, window.end)
                            layout.secrets.clear()
                    except layouts.BadBlock:
                        why = BAD
            stopped = why == BAD
            windows.leave(window, at, needed)
            window.give_back()
        if layout.dropped is not None:
            self.dropped = (self.dropped or 0) + layout.dropped
