"""Capture files -> Packets: one row for each TCP packet, as columns, window by window.

In: a capture point. Out: `Packets` batches in file order, and, when all is read, what the files were and how every
captured packet was counted. One kernel does records, links, IP and TCP in a single pass over a window's bytes.

Rules: no window size changes a row. Every captured packet is counted in exactly one class of `COUNTED`. Addresses are
those of the innermost IP packet: tunnels are looked through, and fragments put together first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from kwire.captures.files import CaptureError, CapturePoint, FileInfo, layouts, likely_bytes
from kwire.captures.files.growing_files import FilePosition, FileTail
from kwire.captures.files.layouts import LayoutTables, next_record
from kwire.captures.files.sources import Source, not_a_capture
from kwire.captures.fragments import (
    IN_PROGRESS,
    LARGEST_BYTES,
    LINGER_NS,
    SPARE_AT,
    SPARE_END,
    Fragments,
    FragmentTables,
    gather,
)
from kwire.captures.frame_kinds import COUNTED as COUNTED
from kwire.captures.frame_kinds import COUNTERS, count_kind, not_understood
from kwire.captures.kernels import (
    MACHINE_CODE,
    PLAIN_BYTES,
    Bytes,
    Int,
    Table,
    expect,
    inline,
    kernel,
    needs_no_compiler,
    prefetch,
)
from kwire.captures.links import (
    FIRST_KIND,
    FRAGMENT,
    LINK_NAMES,
    MALFORMED,
    NOT_TCP,
    RAW,
    TCP,
    enter_tunnel,
    find_ip,
    link_name,
    net16,
    net32,
    short_of,
    unread_link,
    walk_ip,
)
from kwire.captures.windows import MOST_ROWS, WINDOW_BYTES, Content, PacketColumns, Pool, Window, Windows

LAYERS = 5
"""IP packets looked into, one inside the other: a tunnel, another one in it, and fragments of each. What lies deeper
counts as what its outermost known layer is: not TCP."""

FULL = 6
"""Why `scan` stopped, besides what `next_record` says: a reassembled packet may find no room."""

SPARE_BYTES = LAYERS * LARGEST_BYTES
"""The least spare room at the front of a window's buffer, where reassembled packets are written: what one captured
packet can need if it completes a fragmented packet at every layer. There is more, as much as the window has; it lies
untouched, and so takes no memory, where nothing is fragmented. It is at the front so that a read past the window's end
is a read past the buffer's end, which the tests' bounds checks see."""


@dataclass(frozen=True, slots=True, eq=False)
class Packets:
    """TCP packets of one window (pure ACKs, SYN, FIN, RST included), one row each, in file order; valid until
    `release`.

    buffer   uint8: the window's bytes and reassembled packets, which `payload_at` and `tcp_at` point into
    columns  what is known of each
    sums     int32: what `segment_sums.checked` says of each, where that was asked before; else empty
    """

    buffer: np.ndarray
    columns: PacketColumns
    _window: Window = field(repr=False)
    sums: np.ndarray = field(default_factory=partial(np.zeros, 0, np.int32), repr=False)

    def __len__(self) -> int:
        return len(self.columns.number)

    @property
    def spare(self) -> int:
        """Where in the buffer the file's bytes begin; before it are reassembled packets."""
        return self._window.spare

    @property
    def content(self) -> Content:
        """The bytes, for kernels."""
        return Content(self.buffer, self.buffer[: len(self.buffer) & ~7].view(np.uint64), self.sums)

    def release(self) -> None:
        """Give buffer and columns back for the reader's next windows; they must not be used any more.

        Any thread may call it, more than once too. Without it new memory is taken for each window.
        """
        self._window.give_back()


def batch(window: Window, rows: int) -> Packets:
    """The first so many rows of a window."""
    return Packets(window.buffer, PacketColumns(*(column[:rows] for column in window.columns)), window)


def no_packets() -> Packets:
    """An empty batch: what stages take when a capture has ended and only its end is to be said."""
    return batch(Window(0, SPARE_BYTES, deque(maxlen=0)), 0)


@inline
def count_packet(state: Table, interfaces: Table, interface: Int, time: Int) -> None:
    """Take a captured packet into the file's running numbers."""
    state[layouts.NUMBER] += 1
    state[layouts.TIME] = time
    if time < state[layouts.EARLIEST]:
        state[layouts.EARLIEST] = time
    if time > state[layouts.LATEST]:
        state[layouts.LATEST] = time
    interfaces[interface, layouts.SEEN] += 1


@kernel
def scan(
    b: Bytes,
    at: Int,
    end: Int,
    base: Int,
    file_index: Int,
    layout: LayoutTables,
    counts: Table,
    fragments: FragmentTables,
    row: Int,
    packets: PacketColumns,
) -> Int:
    """Write a row for each TCP packet among the records in `b[at:end]`, from row `row` on.

    `base` is the file offset of b[0]. Stops at what `next_record` calls MORE, BLOCK or BAD, and, FULL, when there is no
    room for another row, or may be none for another reassembled packet in
    b[fragments.state[SPARE_AT]:fragments.state[SPARE_END]].
    Returns (why it stopped, where in b, bytes that the record there needs, rows written in all).
    Invariant: the first len(COUNTED) of counts grow by exactly one for each packet that state[NUMBER] counts; what is
    behind them is of `count_kind`.
    """
    state, interfaces, comments = layout
    room = fragments.state[SPARE_END] - SPARE_BYTES
    before_1, before_2, before_3, before_4, before_5, before_6 = at, at, at, at, at, at
    while True:
        if fragments.state[SPARE_AT] > room or row >= packets.number.shape[0]:
            return np.int64(FULL), at, np.int64(0), row
        what, data_at, captured, original, port, time, next_at = next_record(b, at, end, state, interfaces, comments)
        if what in (layouts.MORE, layouts.BLOCK, layouts.BAD):
            return what, at, next_at, row
        here = at
        at = next_at
        if MACHINE_CODE:
            # Where the next record is stands in this one, so the processor cannot see further: it is likely that the
            # next six are as long together as the last six were.
            ahead = at + at - before_6
            prefetch(b, ahead)
            prefetch(b, ahead + 64)
            before_6, before_5, before_4, before_3, before_2, before_1 = (
                before_5,
                before_4,
                before_3,
                before_2,
                before_1,
                at,
            )
        if what == layouts.SKIPPED:
            continue
        if what != layouts.RECORD:
            state[layouts.NUMBER] += 1
            counts[-MALFORMED] += 1
            continue
        count_packet(state, interfaces, port, time)
        frame_end = data_at + captured
        wire_end = data_at + original
        link = interfaces[port, layouts.LINK]
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
                inside, size = gather(b, ip, tcp, frame_end, ip_end, version, time, fragments, counts)
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
            if protocol <= FIRST_KIND:
                protocol = count_kind(counts, protocol)
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
        counts[0] += 1
        if version == 4:
            mapped = np.int64(0xFFFF) << 32
            named = net16(b, ip + 4) << 16
            packets.src_hi[row] = np.uint64(0)
            packets.src_lo[row] = np.uint64(mapped | net32(b, ip + 12))
            packets.dst_hi[row] = np.uint64(0)
            packets.dst_lo[row] = np.uint64(mapped | net32(b, ip + 16))
        else:
            named = np.int64(0)
            packets.src_hi[row] = np.uint64(net32(b, ip + 8)) << np.uint64(32) | np.uint64(net32(b, ip + 12))
            packets.src_lo[row] = np.uint64(net32(b, ip + 16)) << np.uint64(32) | np.uint64(net32(b, ip + 20))
            packets.dst_hi[row] = np.uint64(net32(b, ip + 24)) << np.uint64(32) | np.uint64(net32(b, ip + 28))
            packets.dst_lo[row] = np.uint64(net32(b, ip + 32)) << np.uint64(32) | np.uint64(net32(b, ip + 36))
        packets.number[row] = state[layouts.NUMBER]
        packets.file[row] = file_index
        packets.record_at[row] = base + here
        packets.time_ns[row] = time
        packets.interface[row] = port
        packets.src_port[row] = net16(b, tcp)
        packets.dst_port[row] = net16(b, tcp + 2)
        packets.seq[row] = net32(b, tcp + 4)
        packets.ack[row] = net32(b, tcp + 8)
        packets.flags[row] = net16(b, tcp + 12) & 0x1FF
        packets.window[row] = net16(b, tcp + 14)
        # Bytes after the IP packet's end are link-layer padding or a checksum.
        packets.payload_at[row] = min(payload, frame_end)
        packets.payload_captured[row] = max(min(frame_end, ip_end) - payload, np.int64(0))
        packets.payload_length[row] = ip_end - payload
        packets.tcp_at[row] = tcp
        packets.identity[row] = named | net16(b, tcp + 16)
        row += 1


def _link_names(layout: layouts.Layout) -> tuple[str, ...]:
    """The names of a file's link types, in order of their interfaces."""
    return tuple(link_name(link) for link in layout.links)


class Reader:
    """Reads a capture point window by window: an iterator of `Packets`, some of them empty.

    Not safe to iterate from two threads at once; `release` of a batch may come from any. Besides the batches, and
    complete when the iteration has ended:

    - files: list[FileInfo], in reading order; the last one grows while it is read
    - notes: what the user should know (cut-off files, comments, damage), each one line
    - counts: `packets`, the classes of `COUNTED` that add up to it, and `dropped_by_capture`, which the capturing
      machine says it never wrote (None: its files do not say); `not_understood`, where there are such frames: how many
      by what they are
    - secrets: TLS key logs that pcapng files brought along; secrets_at: how many TCP packets came before each
    - bytes_read: bytes taken from the files as stored (for progress against `FileInfo.size`)

    Raises CaptureError for what cannot be read: a missing or empty file, no capture, only unknown link types.
    """

    def __init__(
        self,
        point: CapturePoint,
        window_bytes: int = WINDOW_BYTES,
        stdin: BinaryIO | None = None,
        largest_record_bytes: int = layouts.LARGEST_RECORD_BYTES,
        fragmented_packets: int = IN_PROGRESS,
        fragment_linger_ns: int = LINGER_NS,
    ) -> None:
        self.point = point
        self.files: list[FileInfo] = []
        self.notes: list[str] = list(point.notes)
        self.secrets: list[bytes] = []
        self.secrets_at: list[int] = []
        self._rows = 0
        self._largest_record_bytes = largest_record_bytes
        self._stdin = stdin
        self._counts = np.zeros(COUNTERS, np.int64)
        self._fragments = Fragments(fragmented_packets, fragment_linger_ns)
        self._dropped: int | None = None
        self._read_before = 0
        self._left: FilePosition | None = None
        self._until: int | None = None
        self._source: Source | None = None
        self._pool = Pool(max(window_bytes, layouts.PCAP_HEADER_BYTES), SPARE_BYTES)
        self._batches = self._read()
        self._likely_bytes = likely_bytes(point, PLAIN_BYTES, ask_stores=not needs_no_compiler())
        self._unpacked_bytes = 0
        expect(self._likely_bytes)

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

    def resize(self, window_bytes: int, rows: int = MOST_ROWS) -> None:
        """Read so many bytes at a time from now on, or fewer, of so many packets. Any thread may call it."""
        self._pool.resize(max(window_bytes, layouts.PCAP_HEADER_BYTES), rows)

    def go_on(self, point: CapturePoint, until: int | None = None) -> None:
        """Further files of the capture point, behind those that were read. `until`: the last one still grows; it is
        read up to there, but for a record that is not whole, and is the first of the files that come next."""
        self.point, self._until = point, until
        self._batches = self._read()

    @property
    def counts(self) -> dict[str, Any]:
        """How many packets were captured, and what became of them: numbers; None where nothing is said."""
        counts = dict(zip(COUNTED, self._counts[: len(COUNTED)].tolist(), strict=True))
        unread = not_understood(self._counts)
        kinds = {"not_understood": unread} if unread else {}
        return {"packets": sum(counts.values()), **counts, "dropped_by_capture": self._dropped, **kinds}

    @property
    def bytes_read(self) -> int:
        """Bytes taken from the files as stored, so far."""
        return self._read_before + (self._source.bytes_read if self._source is not None else 0)

    def _read(self) -> Generator[Packets, None, None]:
        for number, path in enumerate(self.point.paths, 1):
            # Paths that come one by one while a folder is watched have no number.
            until = self._until if self._until is not None and number == len(self.point.paths) else None
            if self._left is None and until is None:
                with Source(path, self._stdin, self.point.folder) as source:
                    self._source = source
                    yield from self._read_file(source)
                self._read_before += source.bytes_read
            else:
                portion = FileTail(path, self.point.folder, self._left, until)
                with portion:
                    self._source = portion
                    yield from self._read_portion(portion)
                self._read_before += portion.bytes_read if self._left is None else 0
            self._source = None

    def _read_file(self, source: Source) -> Generator[Packets, None, None]:
        index = len(self.files)
        layout = layouts.Layout(self._largest_record_bytes)
        self.files.append(
            FileInfo(source.name, source.path, source.size, source.mtime_ns, compressed=source.compressed)
        )
        begun = stopped = False
        windows = Windows(source, self._pool)
        while not (stopped or windows.ended):
            window, rows, _, stopped = self._next(windows, index, layout, source, begun)
            begun = True
            if windows.ended or stopped:
                if not stopped and (windows.left or source.problem):
                    self._note_cut(source, layout, windows.base, windows.left)
                self._finish(source, layout)
            self._describe(index, source, layout)
            self._rows += rows
            yield batch(window, rows)

    def _read_portion(self, source: FileTail) -> Generator[Packets, None, None]:
        """A file that was left before its end, or is left there now."""
        from kwire.captures.crc32c_sums import crc32c  # see `Stored`

        left, self._left = self._left, None
        index = len(self.files) - (left is not None)
        info = FileInfo(source.name, source.path, source.size, source.mtime_ns, compressed=source.compressed)
        self.files[index:] = [info]
        left = left or FilePosition(0, 0, layouts.Layout(self._largest_record_bytes), False)
        layout, crc, begun, stopped = left.layout, left.crc32c, left.at > 0, left.stopped
        windows = Windows(source, self._pool, left.at)
        while not (stopped or windows.ended):
            before = windows.base
            window, rows, _, stopped = self._next(windows, index, layout, source, begun)
            begun = True
            crc = crc32c(window.buffer.data[window.at : window.at + windows.base - before], crc)
            self._rows += rows
            yield batch(window, rows)
        if source.until is not None:
            self._left = FilePosition(windows.base, crc, layout, stopped)
            self._describe(index, source, layout)
            self.files[index] = self.files[index]._replace(size=windows.base, crc32c=crc)
            return
        if not stopped and (windows.left or source.problem):
            self._note_cut(source, layout, windows.base, windows.left)
        self._finish(source, layout)
        self._describe(index, source, layout)

    def _next(
        self, windows: Windows, index: int, layout: layouts.Layout, source: Source, begun: bool
    ) -> tuple[Window, int, int, bool]:
        """Scan the next window, the file's header first where it was not read yet (`begun`): the window, its rows, how
        many bytes the record needs that it ends in, and whether nothing behind can be read."""
        window = windows.read(0 if begun else layouts.PCAP_HEADER_BYTES)
        at = window.at
        self._count_unpacked(window.end - at)
        if not begun:
            head = bytes(window.buffer[at : min(window.end, at + layouts.PCAP_HEADER_BYTES)])
            at += self._begin(source, layout, head)
        why, at, needed, rows = self._scan(window, at, windows.base - window.spare, index, layout, source)
        if why == FULL:
            windows.ended = False  # what is left is read again with fresh room
        windows.leave(window, at, needed)
        return window, rows, needed, why == layouts.BAD

    def _count_unpacked(self, size: int) -> None:
        """Say so if a compressed file holds more than its size let expect."""
        self._unpacked_bytes += size
        if self._likely_bytes is not None and self._unpacked_bytes > self._likely_bytes:
            expect(self._unpacked_bytes - self._likely_bytes)
            self._likely_bytes = self._unpacked_bytes

    def _scan(
        self, window: Window, at: int, base: int, index: int, layout: layouts.Layout, source: Source
    ) -> tuple[int, int, int, int]:
        """Fill the columns from the window's bytes. `base` is the file offset of the buffer's first byte.

        Returns (MORE, FULL or, if the file cannot be read on, BAD; where it stopped; bytes that the record there needs;
        rows).
        """
        buffer, end, rows = window.buffer, window.end, 0
        fragments = self._fragments.tables
        fragments.state[SPARE_AT], fragments.state[SPARE_END] = 0, window.spare
        while True:
            why, at, needed, rows = scan(
                buffer, at, end, base, index, layout.tables, self._counts, fragments, rows, window.columns
            )
            layout.take_comments(buffer)
            damage = "no packet can begin here"
            if why in (layouts.MORE, FULL):
                return why, at, needed, rows
            if why == layouts.BLOCK:
                try:
                    size = layout.block_bytes(bytes(buffer[at : at + 12]))
                    if end - at < size:
                        return layouts.MORE, at, size, rows
                    layout.read_block(bytes(buffer[at : at + size]))
                    at = layout.read_run(memoryview(buffer), at + size, end)  # type: ignore[arg-type]  # has the protocol
                    self._keep_secrets(layout, rows)
                    continue
                except layouts.BadBlock as bad:
                    damage = str(bad)
            self.notes.append(
                f"{source.path}: damaged after packet {layout.state[layouts.NUMBER]:,}, at byte {base + at:,}: "
                f"{damage}; the rest of the file was not read"
            )
            return layouts.BAD, at, 0, rows

    def _keep_secrets(self, layout: layouts.Layout, rows: int) -> None:
        """Take what a block brought; `rows` packets of this batch came before it."""
        self.secrets_at += [self._rows + rows] * len(layout.secrets)  # first: who sees a secret sees its place
        self.secrets += layout.secrets
        layout.secrets.clear()

    def _begin(self, source: Source, layout: layouts.Layout, head: bytes) -> int:
        """Take in a file's first 24 bytes, or all it has; returns where its first record is. Raises CaptureError."""
        if not head and source.problem:
            raise CaptureError(f"{source.path}: cannot be unpacked: {source.problem}", "is the file whole?")
        if not head:
            raise CaptureError(f"{source.path}: is empty", "was the capture written to the end?")
        if not layouts.is_capture(head):
            raise not_a_capture(source.path, head)
        if len(head) < layouts.PCAP_HEADER_BYTES:
            raise CaptureError(f"{source.path}: ends inside its file header", "was the capture written to the end?")
        at = layout.begin(head)
        self._check_links(source, layout.links)
        return at

    def _check_links(self, source: Source, links: list[int]) -> None:
        """Raise CaptureError if there are link types and none is known; note it if some are not."""
        unknown = [unread_link(link) for link in links if link not in LINK_NAMES]
        if not unknown:
            return
        numbers = ", ".join(unknown)
        if len(unknown) == len(links):
            known = ", ".join(f"{name} ({link})" for link, name in LINK_NAMES.items())
            raise CaptureError(
                f"{source.path}: link type {numbers} is not known",
                f"kwire knows {known}; tcpdump.org/linktypes.html tells what each number is",
            )
        self.notes.append(f"{source.path}: packets of link type {numbers} were left out: not known")

    def _note_cut(self, source: Source, layout: layouts.Layout, offset: int, left: int) -> None:
        number = int(layout.state[layouts.NUMBER]) + 1
        why = f" ({source.problem})" if source.problem else ""
        if left:
            self.notes.append(
                f"{source.path}: ends in the middle of packet {number:,}, at byte {offset:,}: "
                f"{left:,} bytes of it are there{why}"
            )
        else:
            self.notes.append(f"{source.path}: ends before packet {number:,}, at byte {offset:,}{why}")

    def _finish(self, source: Source, layout: layouts.Layout) -> None:
        """The file was read as far as it goes. Raises CaptureError if no packet of it was of a known link type."""
        source.drain()
        layout.end()
        self._check_links(source, layout.seen_links)
        self.notes.extend(f"{source.path}: {note}" for note in layout.notes)
        if not layout.state[layouts.NUMBER] and not any(note.startswith(f"{source.path}: ") for note in self.notes):
            self.notes.append(f"{source.path}: holds no packet")
        statistics = source.statistics()
        if statistics.one_of != 1:
            self.notes.append(f"{source.path}: one of {statistics.one_of:,} connections was captured (--sample)")
        if statistics.no_payload:
            self.notes.append(f"{source.path}: the content of record batches was left out (--no-payload)")
        dropped = statistics.dropped if layout.dropped is None else layout.dropped
        if dropped is not None:
            self._dropped = (self._dropped or 0) + dropped

    def _describe(self, index: int, source: Source, layout: layouts.Layout) -> None:
        """Bring the file's entry in `files` up to date."""
        timed = layout.state[layouts.EARLIEST] <= layout.state[layouts.LATEST]
        self.files[index] = self.files[index]._replace(
            size=max(source.size, source.bytes_read),
            crc32c=source.crc32c,
            first_ns=int(layout.state[layouts.EARLIEST]) if timed else None,
            last_ns=int(layout.state[layouts.LATEST]) if timed else None,
            link_types=_link_names(layout),
            packets=int(layout.state[layouts.NUMBER]),
        )
