"""Lend memory for windows of a capture file, together with columns for their packets.

In: a `Source`. Out: `Window`s: the file's next bytes, behind what the one before left over. Rules: a record that does
not end in a window moves whole to the front of the next; one that is larger than a window gets a larger one. Memory
comes from a pool and goes back to it by `Window.give_back`: fresh memory costs more (page faults) than the scan.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from kwire.captures.files.sources import Source
from kwire.captures.kernels import Array, Bytes, Table

WINDOW_BYTES = 8 << 20
"""Bytes read at a time: 4 to 16 MiB scan equally fast; less pays the fixed price of a window too often, more falls out
of the cache and costs page faults."""

USUAL_BYTES = 16 << 20
"""The same of an ordinary capture, unless windows hold much (`WindowSize`): a tenth less time where messages are
large."""

LARGE_BYTES = 32 << 20
"""The same of a large capture: another tenth."""

MOST_HELD = 9_400
"""Packets, and rows made of them, that a window larger than `WINDOW_BYTES` is to hold in a MiB at most: each takes some
250 bytes until all have become tables, and where messages are small large windows save no time."""

MOST_ROWS = 1 << 18
"""Packets of such a window: what has no room comes with the next one, before it is known that windows hold much now."""

LESS_FOR = 1 << 30
"""Bytes that are read in smaller windows before there are large ones again: fresh memory is dear."""

SMALLEST_ROW_BYTES = 56
"""A record that gives a row has at least a 16-byte record header, an IPv4 and a TCP header."""

POOLED = 4
"""Windows kept for reuse: one being read, one waiting, one in use, and one to spare."""


class PacketColumns(NamedTuple):
    """TCP packets as columns, one row each. All have the same length and are writable and C-contiguous."""

    number: Table
    """int64: 1-based number of the packet in its file, as Wireshark shows it."""
    file: Array
    """int32: index into the reader's `files`; one window never spans two files."""
    record_at: Table
    """int64: byte offset in the (decompressed) file of the packet's record header or block."""
    time_ns: Table
    """int64: nanoseconds since 1970. May step back."""
    interface: Array
    """int32: interface in its file, counted over all sections from 0."""
    src_hi: Array
    """uint64: upper half of the sender's IPv6 address; 0 for IPv4, which is mapped (::ffff:a.b.c.d)."""
    src_lo: Array
    """uint64: lower half."""
    dst_hi: Array
    """uint64: upper half of the receiver's address."""
    dst_lo: Array
    """uint64: lower half."""
    src_port: Array
    """int32."""
    dst_port: Array
    """int32."""
    seq: Table
    """int64: raw sequence number, 0 <= seq < 2**32."""
    ack: Table
    """int64: raw acknowledgement number."""
    window: Array
    """int32: raw receive window, before scaling."""
    flags: Array
    """int32: FIN 0x01, SYN 0x02, RST 0x04, PSH 0x08, ACK 0x10, URG 0x20, ECE 0x40, CWR 0x80, AE 0x100."""
    payload_at: Table
    """int64: where in the window's buffer the payload begins."""
    payload_captured: Table
    """int64: payload bytes in the capture."""
    payload_length: Table
    """int64: payload bytes on the wire; more than captured where the snap length cut the packet."""
    tcp_at: Table
    """int64: where in the window's buffer the TCP header begins."""
    identity: Table
    """int64: what tells a packet from another one with the same sequence numbers: the identification field of its IPv4
    header (0 for IPv6) times 65,536, plus the checksum field of its TCP header."""


class Content(NamedTuple):
    """The bytes of packets."""

    buffer: Bytes
    words: Array
    """uint64: the same, but for the last ones that fill none."""
    sums: Array
    """int32: what `segment_sums.checked` says of each packet, where that was asked before; else empty."""


_OTHERS: dict[str, type[np.generic]] = {
    **dict.fromkeys(("file", "interface", "src_port", "dst_port", "window", "flags"), np.int32),
    **dict.fromkeys(("src_hi", "src_lo", "dst_hi", "dst_lo"), np.uint64),
}
"""The columns that are not int64."""


def room_for(rows: int) -> PacketColumns:
    """Columns of so many rows, not filled."""
    return PacketColumns(*(np.empty(rows, _OTHERS.get(name, np.int64)) for name in PacketColumns._fields))


class Window:
    """A window's memory: the byte buffer and full-length columns. Given back at most once.

    Bytes [at, end) of the buffer are the file's. Before `spare`, where they begin, is room for reassembled packets:
    there so that a read past the window's end is a read past the buffer's end, which the tests' bounds checks see.
    """

    __slots__ = ("_pool", "at", "buffer", "columns", "end", "spare")

    def __init__(self, size: int, spare: int, pool: deque[Window], rows: int | None = None) -> None:
        self.spare = max(size, spare)
        self.at = self.end = self.spare
        self.buffer = np.empty(self.spare + size, np.uint8)
        most = size // SMALLEST_ROW_BYTES + 1
        self.columns = room_for(most if rows is None else min(rows, most))
        self._pool: deque[Window] | None = pool

    def give_back(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.append(self)  # a deque's append is atomic: any thread may give back

    def lend(self, pool: deque[Window]) -> Window:
        self._pool = pool
        return self


class Pool:
    """Windows for reuse, of `window_bytes` each, with at least `spare` bytes before them; so many are `kept`. Several
    threads may take."""

    def __init__(self, window_bytes: int, spare: int, most_kept: int = POOLED) -> None:
        self._spare, self._most_kept = spare, most_kept
        self._usual = _Usual(window_bytes, None, deque(maxlen=most_kept))

    def take(self, size: int) -> Window:
        """Memory for a window of at least `size` bytes."""
        usual = self._usual
        if size > usual.window_bytes:
            # A pool of its own that nobody draws from: windows for outsized records are not kept.
            return Window(size, self._spare, deque(maxlen=0), usual.rows)
        try:
            return usual.windows.pop().lend(usual.windows)
        except IndexError:
            return Window(usual.window_bytes, self._spare, usual.windows, usual.rows)

    def resize(self, window_bytes: int, rows: int) -> None:
        """Set bytes and most packets of later windows; those on loan are dropped when they come back."""
        self._usual = _Usual(window_bytes, rows, deque(maxlen=self._most_kept))

    def clear(self) -> None:
        self._usual.windows.clear()


class _Usual(NamedTuple):
    """Sizes that a pool hands out, in one object so that threads replace it at once.

    rows: None if there is no limit."""

    window_bytes: int
    rows: int | None
    windows: deque[Window]


class WindowSize:
    """How large a capture's windows are to be, in bytes: `large`, but `least` at first, and for a while after one that
    held too much. Each has a price of its own, milliseconds of Python, in which large messages would be decoded by the
    dozen."""

    def __init__(self, least: int, large: int) -> None:
        self._least, self._large = least, large
        self.size = least
        self._until = self._bytes = 0  # bytes after which they may be large, and those so far
        self._held = 0.0  # the most in a byte since

    def after(self, held: int) -> bool:
        """A window held so many packets and rows; whether `size`, of windows to come, is another now."""
        self._bytes += self.size
        self._held = max(self._held, held / self.size)
        too_much = self._held > MOST_HELD / (1 << 20)
        size = self.size
        if size > self._least and too_much:
            size, self._until = self._least, LESS_FOR
        elif self._bytes >= self._until:
            size = self._least if too_much else self._large
            self._until = LESS_FOR
        else:
            return False
        changed, self.size = size != self.size, size
        self._bytes, self._held = 0, 0.0
        return changed


class Windows:
    """The windows of one file, from its byte `base` on, where the source begins.

    base    file offset of the byte at which the next window begins
    ended   the last window was the file's last
    """

    def __init__(self, source: Source, pool: Pool, base: int = 0) -> None:
        self._source, self._pool = source, pool
        self.base = base
        self.ended = False
        self._needed = 0
        # Bytes of an incomplete record, still in the window before. That window may have been released since, but
        # only `take` hands it out again, and then it is the one that they are moved to the front of.
        self._rest = np.empty(0, np.uint8)

    @property
    def left(self) -> int:
        """Bytes that the last window left over."""
        return len(self._rest)

    def read(self, least: int = 0) -> Window:
        """The next one: what was left over, and as many of the file's next bytes as there is room for; of at least
        `least` bytes, unless the file ends before."""
        while True:
            window = self._next()
            if self.ended or window.end - window.at >= least:
                return window
            self.leave(window, window.at, least)
            window.give_back()

    def _next(self) -> Window:
        window = self._pool.take(max(self._needed, len(self._rest) + 1))
        buffer, window.at = window.buffer, window.spare
        fresh_at = window.at + len(self._rest)
        buffer[window.at : fresh_at] = self._rest
        fresh = self._source.readinto(memoryview(buffer.data)[fresh_at:])
        self.ended = fresh == 0
        window.end = fresh_at + fresh
        return window

    def leave(self, window: Window, at: int, needed: int) -> None:
        """The window was worked off up to `at`; the next needs room for `needed` bytes from there on."""
        self._rest = window.buffer[at : window.end]
        self.base += at - window.spare
        self._needed = needed
