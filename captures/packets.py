"""Capture files -> Packets: one row for each TCP packet, as columns, window by window.

In: a capture point. Out: `Packets` batches in file order, and, when all is read, what the files were and how every
captured packet was counted. One kernel does records, links, IP and TCP in a single pass over a window's bytes.

Rules: no window size changes a row. Every captured packet is counted in exactly one class of `COUNTED`. Addresses are
those of the innermost IP packet: tunnels are looked through, and fragments put together first. Buffers and columns
come from a pool and go back to it by `Packets.release`: fresh memory costs more (page faults) than the scan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from captures import records
from captures.files import CaptureError, CapturePoint, FileInfo, Source, not_a_capture
from captures.fragments import (
    IN_PROGRESS,
    LARGEST_BYTES,
    LINGER_NS,
    SPARE_AT,
    SPARE_END,
    Fragments,
    gather,
)
from captures.kernels import inline, kernel
from captures.links import (
    FRAGMENT,
    LINK_NAMES,
    MALFORMED,
    NOT_TCP,
    RAW,
    TCP,
    enter_tunnel,
    find_ip,
    net16,
    net32,
    short_of,
    walk_ip,
)
from captures.records import BAD, BLOCK, EARLIEST, LATEST, LINK, MORE, NUMBER, RECORD, SEEN, SKIPPED, TIME, next_record

LAYERS = 5
"""IP packets looked into, one inside the other: a tunnel, another one in it, and fragments of each. What lies deeper
counts as what its outermost known layer is: not TCP."""

WINDOW_BYTES = 8 << 20
"""Bytes read at a time: 4 to 16 MiB scan equally fast; less pays the fixed price of a window too often, more falls out
of the cache and costs page faults."""

SMALLEST_ROW_BYTES = 56
"""A record that gives a row has at least a 16-byte record header, an IPv4 and a TCP header."""

POOLED = 4
"""Windows kept for reuse: one being read, one waiting, one in use, and one to spare."""

FULL = 6
"""Why `scan` stopped, besides what `captures.records.next_record` says: a reassembled packet may find no room."""

SPARE_BYTES = LAYERS * LARGEST_BYTES
"""The least spare room at the front of a window's buffer, where reassembled packets are written: what one captured
packet can need if it completes a fragmented packet at every layer. There is more, as much as the window has; it lies
untouched, and so takes no memory, where nothing is fragmented. It is at the front so that a read past the window's end
is a read past the buffer's end, which the tests' bounds checks see."""

COUNTED = ("tcp", "not_ip", "not_tcp", "fragment", "malformed", "headers_cut", "unknown_link", "reassembled")
"""The classes of captured packets: slot 0 is a row, slot n is the reason -n of `captures.links`. A fragment is a
`fragment` until its packet is whole: then the one that completed it counts as what the packet is, all others as
`reassembled`."""

_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("number", np.int64),
    ("file", np.int32),
    ("record_at", np.int64),
    ("time_ns", np.int64),
    ("interface", np.int32),
    ("src_hi", np.uint64),
    ("src_lo", np.uint64),
    ("dst_hi", np.uint64),
    ("dst_lo", np.uint64),
    ("src_port", np.int32),
    ("dst_port", np.int32),
    ("seq", np.int64),
    ("ack", np.int64),
    ("window", np.int32),
    ("flags", np.int32),
    ("payload_at", np.int64),
    ("payload_captured", np.int64),
    ("payload_length", np.int64),
    ("tcp_at", np.int64),
    ("identity", np.int64),
)


class _Lease:
    """A window's memory on loan from the pool: the byte buffer and full-length columns. Given back at most once."""

    __slots__ = ("_pool", "buffer", "columns", "spare")

    def __init__(self, size: int, pool: deque[_Lease]) -> None:
        self.spare = max(size, SPARE_BYTES)
        """The window's bytes begin here; before it is room for reassembled packets."""
        self.buffer = np.empty(self.spare + size, np.uint8)
        rows = size // SMALLEST_ROW_BYTES + 1
        self.columns = tuple(np.empty(rows, dtype) for _, dtype in _COLUMNS)
        self._pool: deque[_Lease] | None = pool

    def give_back(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.append(self)  # a deque's append is atomic: any thread may give back

    def lend(self, pool: deque[_Lease]) -> _Lease:
        self._pool = pool
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Packets:
    """TCP packets of one window (pure ACKs, SYN, FIN, RST included), one row each, in file order.

    All columns have the same length and are writable and C-contiguous; they are valid until `release`.
    """

    buffer: np.ndarray
    """uint8: the window's bytes and reassembled packets, which `payload_at` and `tcp_at` point into."""
    number: np.ndarray
    """int64: 1-based number of the packet in its file, as Wireshark shows it."""
    file: np.ndarray
    """int32: index into the reader's `files`; one window never spans two files."""
    record_at: np.ndarray
    """int64: byte offset in the (decompressed) file of the packet's record header or block."""
    time_ns: np.ndarray
    """int64: nanoseconds since 1970. May step back."""
    interface: np.ndarray
    """int32: interface in its file, counted over all sections from 0."""
    src_hi: np.ndarray
    """uint64: upper half of the sender's IPv6 address; 0 for IPv4, which is mapped (::ffff:a.b.c.d)."""
    src_lo: np.ndarray
    """uint64: lower half."""
    dst_hi: np.ndarray
    """uint64: upper half of the receiver's address."""
    dst_lo: np.ndarray
    """uint64: lower half."""
    src_port: np.ndarray
    """int32."""
    dst_port: np.ndarray
    """int32."""
    seq: np.ndarray
    """int64: raw sequence number, 0 <= seq < 2**32."""
    ack: np.ndarray
    """int64: raw acknowledgement number."""
    window: np.ndarray
    """int32: raw receive window, before scaling."""
    flags: np.ndarray
    """int32: FIN 0x01, SYN 0x02, RST 0x04, PSH 0x08, ACK 0x10, URG 0x20, ECE 0x40, CWR 0x80, AE 0x100."""
    payload_at: np.ndarray
    """int64: where in `buffer` the payload begins."""
    payload_captured: np.ndarray
    """int64: payload bytes in the capture."""
    payload_length: np.ndarray
    """int64: payload bytes on the wire; more than captured where the snap length cut the packet."""
    tcp_at: np.ndarray
    """int64: where in `buffer` the TCP header begins."""
    identity: np.ndarray
    """int64: what tells a packet from another one with the same sequence numbers: the identification field of its IPv4
    header (0 for IPv6) times 65,536, plus the checksum field of its TCP header."""
    _lease: _Lease = field(repr=False)

    def __len__(self) -> int:
        return len(self.number)

    def release(self) -> None:
        """Give buffer and columns back for the reader's next windows; they must not be used any more.

        Any thread may call it, more than once too. Without it new memory is taken for each window.
        """
        self._lease.give_back()


def _packets(lease: _Lease, rows: int) -> Packets:
    columns = {name: column[:rows] for (name, _), column in zip(_COLUMNS, lease.columns, strict=True)}
    return Packets(buffer=lease.buffer, _lease=lease, **columns)


def no_packets() -> Packets:
    """An empty batch: what stages take when a capture has ended and only its end is to be said."""
    return _packets(_Lease(0, deque(maxlen=0)), 0)


@inline
def count_packet(state: Any, interfaces: Any, interface: Any, time: Any) -> None:
    """Take a captured packet into the file's running numbers."""
    state[NUMBER] += 1
    state[TIME] = time
    if time < state[EARLIEST]:
        state[EARLIEST] = time
    if time > state[LATEST]:
        state[LATEST] = time
    interfaces[interface, SEEN] += 1


@kernel
def scan(
    b: Any,
    at: Any,
    end: Any,
    base: Any,
    file_index: Any,
    state: Any,
    interfaces: Any,
    comments: Any,
    counts: Any,
    fragments: Any,
    entries: Any,
    seen: Any,
    kept: Any,
    row: Any,
    number: Any,
    file: Any,
    record_at: Any,
    time_ns: Any,
    interface: Any,
    src_hi: Any,
    src_lo: Any,
    dst_hi: Any,
    dst_lo: Any,
    src_port: Any,
    dst_port: Any,
    seq: Any,
    ack: Any,
    window: Any,
    flags: Any,
    payload_at: Any,
    payload_captured: Any,
    payload_length: Any,
    tcp_at: Any,
    identity: Any,
) -> Any:
    """Write a row for each TCP packet among the records in `b[at:end]`, from row `row` on.

    `base` is the file offset of b[0]. Stops at what `captures.records.next_record` calls MORE, BLOCK or BAD, and, FULL,
    when there may be no room for another reassembled packet in b[fragments[SPARE_AT]:fragments[SPARE_END]].
    Returns (why it stopped, where in b, bytes that the record there needs, rows written in all).
    Invariant: counts (int64[len(COUNTED)]) grows by exactly one for each packet that state[NUMBER] counts.
    """
    room = fragments[SPARE_END] - SPARE_BYTES
    while True:
        if fragments[SPARE_AT] > room:
            return np.int64(FULL), at, np.int64(0), row
        what, data_at, captured, original, port, time, next_at = next_record(b, at, end, state, interfaces, comments)
        if what in (MORE, BLOCK, BAD):
            return what, at, next_at, row
        here = at
        at = next_at
        if what == SKIPPED:
            continue
        if what != RECORD:
            state[NUMBER] += 1
            counts[-MALFORMED] += 1
            continue
        count_packet(state, interfaces, port, time)
        frame_end = data_at + captured
        wire_end = data_at + original
        link = interfaces[port, LINK]
        inside = data_at
        protocol, ip, tcp, ip_end, version = np.int64(NOT_TCP), inside, inside, inside, inside
        for _ in range(LAYERS):
            ip = find_ip(b, inside, frame_end, wire_end, link)
            if ip < 0:
                protocol = ip
                break
            protocol, tcp, ip_end, version = walk_ip(b, ip, frame_end, wire_end)
            if protocol == TCP:
                break
            if protocol == FRAGMENT:
                inside, size = gather(
                    b, ip, tcp, frame_end, ip_end, version, time, fragments, entries, seen, kept, counts
                )
                if inside < 0:
                    protocol = inside
                    break
                link, frame_end, wire_end = np.int64(RAW), inside + size, inside + size
                continue
            if protocol < 0:
                break
            frame_end, wire_end = min(frame_end, ip_end), min(wire_end, ip_end)
            link, inside = enter_tunnel(b, protocol, tcp, frame_end, wire_end)
            if link < 0:
                protocol = link
                break
        if protocol < 0:
            counts[-protocol] += 1
            continue
        if protocol != TCP:
            counts[-NOT_TCP] += 1
            continue
        if tcp + 20 > ip_end:
            counts[-MALFORMED] += 1
            continue
        if tcp + 20 > frame_end:
            counts[-short_of(tcp + 20, wire_end)] += 1
            continue
        payload = tcp + (np.int64(b[tcp + 12]) >> 4) * 4
        if payload < tcp + 20 or payload > ip_end:
            counts[-MALFORMED] += 1
            continue
        if row >= number.shape[0]:  # cannot be: there are rows for the smallest records
            return np.int64(BAD), here, np.int64(0), row
        counts[0] += 1
        if version == 4:
            mapped = np.int64(0xFFFF) << 32
            named = net16(b, ip + 4) << 16
            src_hi[row] = np.uint64(0)
            src_lo[row] = np.uint64(mapped | net32(b, ip + 12))
            dst_hi[row] = np.uint64(0)
            dst_lo[row] = np.uint64(mapped | net32(b, ip + 16))
        else:
            named = np.int64(0)
            src_hi[row] = np.uint64(net32(b, ip + 8)) << np.uint64(32) | np.uint64(net32(b, ip + 12))
            src_lo[row] = np.uint64(net32(b, ip + 16)) << np.uint64(32) | np.uint64(net32(b, ip + 20))
            dst_hi[row] = np.uint64(net32(b, ip + 24)) << np.uint64(32) | np.uint64(net32(b, ip + 28))
            dst_lo[row] = np.uint64(net32(b, ip + 32)) << np.uint64(32) | np.uint64(net32(b, ip + 36))
        number[row] = state[NUMBER]
        file[row] = file_index
        record_at[row] = base + here
        time_ns[row] = time
        interface[row] = port
        src_port[row] = net16(b, tcp)
        dst_port[row] = net16(b, tcp + 2)
        seq[row] = net32(b, tcp + 4)
        ack[row] = net32(b, tcp + 8)
        flags[row] = net16(b, tcp + 12) & 0x1FF
        window[row] = net16(b, tcp + 14)
        # Bytes after the IP packet's end are link-layer padding or a checksum.
        payload_at[row] = min(payload, frame_end)
        payload_captured[row] = max(min(frame_end, ip_end) - payload, np.int64(0))
        payload_length[row] = ip_end - payload
        tcp_at[row] = tcp
        identity[row] = named | net16(b, tcp + 16)
        row += 1


class Reader:
    """Reads a capture point window by window: an iterator of `Packets`, some of them empty.

    Not safe to iterate from two threads at once; `release` of a batch may come from any. Besides the batches, and
    complete when the iteration has ended:

    - files: list[FileInfo], in reading order; the last one grows while it is read
    - notes: what the user should know (cut-off files, comments, damage), each one line
    - counts: `packets`, the classes of `COUNTED` that add up to it, and `dropped_by_capture`, which the capturing
      machine says it never wrote
    - secrets: TLS key logs that pcapng files brought along
    - bytes_read: bytes taken from the files as stored (for progress against `FileInfo.size`)

    Raises CaptureError for what cannot be read: a missing or empty file, no capture, only unknown link types.
    """

    def __init__(
        self,
        point: CapturePoint,
        window_bytes: int = WINDOW_BYTES,
        stdin: BinaryIO | None = None,
        largest_record_bytes: int = records.LARGEST_RECORD_BYTES,
        fragmented_packets: int = IN_PROGRESS,
        fragment_linger_ns: int = LINGER_NS,
    ) -> None:
        self.point = point
        self.files: list[FileInfo] = []
        self.notes: list[str] = list(point.notes)
        self.secrets: list[bytes] = []
        self._window_bytes = max(window_bytes, records.PCAP_HEADER_BYTES)
        self._largest_record_bytes = largest_record_bytes
        self._stdin = stdin
        self._counts = np.zeros(len(COUNTED), np.int64)
        self._fragments = Fragments(fragmented_packets, fragment_linger_ns)
        self._dropped = 0
        self._read_before = 0
        self._source: Source | None = None
        self._pool: deque[_Lease] = deque(maxlen=POOLED)
        self._batches = self._read()

    def __iter__(self) -> Iterator[Packets]:
        return self

    def __next__(self) -> Packets:
        return next(self._batches)

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file being read and forget pooled memory; the iteration is over."""
        self._batches.close()
        self._pool.clear()

    @property
    def counts(self) -> dict[str, int]:
        """How many packets were captured, and what became of them."""
        packets = int(self._counts.sum())
        found = {name: int(count) for name, count in zip(COUNTED, self._counts, strict=True)}
        return {"packets": packets, **found, "dropped_by_capture": self._dropped}

    @property
    def bytes_read(self) -> int:
        """Bytes taken from the files as stored, so far."""
        return self._read_before + (self._source.bytes_read if self._source is not None else 0)

    def _take(self, size: int) -> _Lease:
        """Memory for a window of at least `size` bytes."""
        if size <= self._window_bytes:
            try:
                return self._pool.pop().lend(self._pool)
            except IndexError:
                size = self._window_bytes
        # A pool of its own that nobody draws from: windows for outsized records are not kept.
        pool = self._pool if size == self._window_bytes else deque[_Lease](maxlen=0)
        return _Lease(size, pool)

    def _read(self) -> Generator[Packets, None, None]:
        for path in self.point.paths:
            with Source(path, self._stdin, self.point.folder) as source:
                self._source = source
                yield from self._read_file(source)
            self._read_before += source.bytes_read
            self._source = None

    def _read_file(self, source: Source) -> Generator[Packets, None, None]:
        index = len(self.files)
        layout = records.Layout(self._largest_record_bytes)
        self.files.append(
            FileInfo(source.name, source.path, source.size, source.mtime_ns, compressed=source.compressed)
        )
        begun = stopped = ended = False
        base = 0  # file offset of the window's first byte
        needed = 0  # bytes that the first record of the next window needs
        # Bytes of an incomplete record, still in the window before. That window may have been released since, but
        # only `_take` hands it out again, and then it is the one that they are moved to the front of.
        rest = np.empty(0, np.uint8)
        while not (stopped or ended):
            lease = self._take(max(needed, len(rest) + 1))
            buffer, start = lease.buffer, lease.spare
            at = start + len(rest)
            buffer[start:at] = rest
            fresh = source.readinto(memoryview(buffer.data)[at:])
            ended = fresh == 0
            end = at + fresh
            at = start
            if not begun:
                if end - at < records.PCAP_HEADER_BYTES and not ended:
                    rest, needed = buffer[at:end].copy(), records.PCAP_HEADER_BYTES
                    lease.give_back()
                    continue
                at += self._begin(source, layout, bytes(buffer[at : min(end, at + records.PCAP_HEADER_BYTES)]))
                begun = True
            why, at, needed, rows = self._scan(lease, at, end, base - start, index, layout, source)
            stopped = why == BAD
            if why == FULL:
                ended = False  # what is left is read again with fresh room
            rest = buffer[at:end]
            base += at - start
            if ended or stopped:
                if not stopped and (len(rest) or source.problem):
                    self._note_cut(source, layout, base, len(rest))
                self._finish(source, layout)
            self._describe(index, source, layout)
            yield _packets(lease, rows)

    def _scan(
        self, lease: _Lease, at: int, end: int, base: int, index: int, layout: records.Layout, source: Source
    ) -> tuple[int, int, int, int]:
        """Fill the columns from the window's bytes. `base` is the file offset of the buffer's first byte.

        Returns (MORE, FULL or, if the file cannot be read on, BAD; where it stopped; bytes that the record there needs;
        rows).
        """
        buffer, rows = lease.buffer, 0
        fragments = self._fragments
        fragments.state[SPARE_AT], fragments.state[SPARE_END] = 0, lease.spare
        while True:
            why, at, needed, rows = scan(
                buffer,
                at,
                end,
                base,
                index,
                layout.state,
                layout.interfaces,
                layout.comments,
                self._counts,
                fragments.state,
                fragments.entries,
                fragments.seen,
                fragments.kept,
                rows,
                *lease.columns,
            )
            layout.take_comments(buffer)
            damage = "no packet can begin here"
            if why in (MORE, FULL):
                return why, at, needed, rows
            if why == BLOCK:
                try:
                    size = layout.block_bytes(bytes(buffer[at : at + 12]))
                    if end - at < size:
                        return MORE, at, size, rows
                    layout.read_block(bytes(buffer[at : at + size]))
                    at += size
                    continue
                except records.BadBlock as bad:
                    damage = str(bad)
            self.notes.append(
                f"{source.path}: damaged after packet {layout.state[NUMBER]:,}, at byte {base + at:,}: {damage}; "
                "the rest of the file was not read"
            )
            return BAD, at, 0, rows

    def _begin(self, source: Source, layout: records.Layout, head: bytes) -> int:
        """Take in a file's first 24 bytes, or all it has; returns where its first record is. Raises CaptureError."""
        if not head and source.problem:
            raise CaptureError(f"{source.path}: cannot be unpacked: {source.problem}", "is the file whole?")
        if not head:
            raise CaptureError(f"{source.path}: is empty", "was the capture written to the end?")
        if not records.is_capture(head):
            raise not_a_capture(source.path, head)
        if len(head) < records.PCAP_HEADER_BYTES:
            raise CaptureError(f"{source.path}: ends inside its file header", "was the capture written to the end?")
        at = layout.begin(head)
        self._check_links(source, layout.links)
        return at

    def _check_links(self, source: Source, found: list[int]) -> None:
        """Raise CaptureError if there are link types and none is known; note it if some are not."""
        unknown = [str(link) for link in found if link not in LINK_NAMES]
        if not unknown:
            return
        numbers = ", ".join(unknown)
        if len(unknown) == len(found):
            known = ", ".join(f"{name} ({link})" for link, name in LINK_NAMES.items())
            raise CaptureError(
                f"{source.path}: link type {numbers} is not known",
                f"kwire knows {known}; tcpdump.org/linktypes.html tells what {numbers} is",
            )
        self.notes.append(f"{source.path}: packets of link type {numbers} were left out: not known")

    def _note_cut(self, source: Source, layout: records.Layout, offset: int, left: int) -> None:
        number = int(layout.state[NUMBER]) + 1
        why = f" ({source.problem})" if source.problem else ""
        if left:
            self.notes.append(
                f"{source.path}: ends in the middle of packet {number:,}, at byte {offset:,}: "
                f"{left:,} bytes of it are there{why}"
            )
        else:
            self.notes.append(f"{source.path}: ends before packet {number:,}, at byte {offset:,}{why}")

    def _finish(self, source: Source, layout: records.Layout) -> None:
        """The file was read as far as it goes. Raises CaptureError if no packet of it was of a known link type."""
        source.drain()
        layout.end()
        self._check_links(source, layout.seen_links)
        self.notes.extend(f"{source.path}: {note}" for note in layout.notes)
        self.secrets.extend(layout.secrets)
        self._dropped += layout.dropped

    def _describe(self, index: int, source: Source, layout: records.Layout) -> None:
        """Bring the file's entry in `files` up to date."""
        timed = layout.state[EARLIEST] <= layout.state[LATEST]
        self.files[index] = replace(
            self.files[index],
            size=max(source.size, source.bytes_read),
            crc32c=source.crc32c,
            first_ns=int(layout.state[EARLIEST]) if timed else None,
            last_ns=int(layout.state[LATEST]) if timed else None,
            link_types=records.link_names(layout),
            packets=int(layout.state[NUMBER]),
        )
