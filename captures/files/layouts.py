"""Record layouts: where the packets lie in the bytes of a pcap or pcapng file, and when they were captured.

In: a window of capture bytes. Out: one record at a time, as plain numbers. The walk over records is a kernel helper
that the packet scan calls; what is rare and says how to read the rest (a section, an interface, statistics, secrets)
is handed to Python, to `Layout.read_block`. Every length comes from a hostile file: it is checked before it is used.

Sources: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from kwire.captures.kernels import Bytes, Flag, Int, Table, inline

PCAP, PCAPNG = 0, 1

PCAP_MAGICS: dict[bytes, tuple[bool, int, int]] = {
    # magic: big-endian, nanoseconds in one tick, bytes of a record header
    b"\xd4\xc3\xb2\xa1": (False, 1000, 16),
    b"\xa1\xb2\xc3\xd4": (True, 1000, 16),
    b"\x4d\x3c\xb2\xa1": (False, 1, 16),
    b"\xa1\xb2\x3c\x4d": (True, 1, 16),
    b"\x34\xcd\xb2\xa1": (False, 1000, 24),  # "modified" pcap of patched Linux libpcaps: 8 bytes more a record
    b"\xa1\xb2\xcd\x34": (True, 1000, 24),
}
PCAPNG_MAGIC = b"\x0a\x0d\x0d\x0a"
PCAP_HEADER_BYTES = 24

SECTION_HEADER = 0x0A0D0D0A
INTERFACE_DESCRIPTION = 1
OBSOLETE_PACKET = 2
SIMPLE_PACKET = 3
INTERFACE_STATISTICS = 5
ENHANCED_PACKET = 6
DECRYPTION_SECRETS = 10
TLS_KEY_LOG = 0x544C534B

LARGEST_RECORD_BYTES = 16 << 20
"""A record longer than this is taken for damage. The longest packet that Linux makes (BIG TCP) has 512 KiB."""

MOST_INTERFACES = 65_536
"""Interfaces in one pcapng file. A capture host has a few dozen; each one more costs memory."""

MOST_SECRETS_BYTES = 64 << 20
"""TLS secrets kept from one file; a session needs a few hundred bytes."""

MOST_FOREIGN = 20
"""Blocks of other secrets than TLS's that become a note each; the others are counted."""

MOST_COMMENTS = 20
"""Different packet comments that become a note; the others are counted."""

READ_COMMENTS = 1024
"""Packet comments of a file that are read; equal ones share a note."""

# Slots of Layout.state, the numbers that the kernel reads and keeps up to date.
FORMAT, BIG, RECORD_HEADER, LARGEST, SECTION, INTERFACES = 0, 1, 2, 3, 4, 5
NUMBER, TIME, EARLIEST, LATEST, COMMENTS, DROPS, UNTIMED = 6, 7, 8, 9, 10, 11, 12
STATE_SLOTS = 13

# Columns of Layout.interfaces.
LINK, CLOCK, FACTOR, OFFSET, SNAPLEN, SEEN = 0, 1, 2, 3, 4, 5
INTERFACE_COLUMNS = 6

# Values of the CLOCK column: how ticks become nanoseconds. FACTOR is the multiplier, the divisor or the shift.
MULTIPLY, DIVIDE, BINARY = 0, 1, 2

# What `next_record` says.
RECORD, SKIPPED, MALFORMED, MORE, BLOCK, BAD = 0, 1, 2, 3, 4, 5

NANOSECONDS = 1_000_000_000
LATEST_NS = 1 << 62
"""Later times (after the year 2116) are taken as this one, so that no sum of time and offset can overflow."""


@inline
def file16(b: Bytes, at: Int, big: Flag) -> Int:
    """The unsigned 16-bit number at `at` in the file's byte order, as int64."""
    if big:
        return np.int64(b[at]) << 8 | np.int64(b[at + 1])
    return np.int64(b[at + 1]) << 8 | np.int64(b[at])


@inline
def file32(b: Bytes, at: Int, big: Flag) -> Int:
    """The unsigned 32-bit number at `at` in the file's byte order, as int64."""
    if big:
        return np.int64(b[at]) << 24 | np.int64(b[at + 1]) << 16 | np.int64(b[at + 2]) << 8 | np.int64(b[at + 3])
    return np.int64(b[at + 3]) << 24 | np.int64(b[at + 2]) << 16 | np.int64(b[at + 1]) << 8 | np.int64(b[at])


@inline
def ticks_to_ns(high: Int, low: Int, clock: Int, factor: Int, offset: Int) -> Int:
    """Nanoseconds since 1970 of a pcapng timestamp (two 32-bit halves) on an interface's clock; exact, rounded down.

    `offset` is in nanoseconds, at most LATEST_NS either way. A time after LATEST_NS becomes LATEST_NS.
    """
    # Unsigned: ticks of 100 picoseconds or 2**-33 seconds reach 2**63 in this century.
    ticks = np.uint64(high) << np.uint64(32) | np.uint64(low)
    if clock == MULTIPLY:
        large = high >= 1 << 31
        time = np.int64(LATEST_NS) if large or np.int64(ticks) > LATEST_NS // factor else np.int64(ticks) * factor
    elif clock == DIVIDE:
        time = np.int64(ticks // np.uint64(factor))
    else:
        seconds, part = np.uint64(0), ticks
        if factor < 64:  # shifting by more is undefined
            seconds = ticks >> np.uint64(factor)
            part = ticks - (seconds << np.uint64(factor))
        if factor < 32:
            fraction = np.int64(part) * NANOSECONDS >> factor
        else:
            # part times 10**9 does not fit in 64 bits: multiply its two halves one by one.
            low_part = np.int64(part & np.uint64(0xFFFFFFFF)) * NANOSECONDS >> 32
            fraction = (np.int64(part >> np.uint64(32)) * NANOSECONDS + low_part) >> (factor - 32)
        latest = np.uint64(LATEST_NS // NANOSECONDS)
        time = np.int64(LATEST_NS) if seconds >= latest else np.int64(seconds) * NANOSECONDS + fraction
    return min(time, np.int64(LATEST_NS)) + offset


@inline
def note_options(b: Bytes, at: Int, end: Int, record_at: Int, state: Table, comments: Table) -> Int:
    """Walk a packet block's options: remember where comments are, add up the drop counts."""
    big = state[BIG]
    while end - at >= 4:
        code = file16(b, at, big)
        length = file16(b, at + 2, big)
        at += 4
        if code == 0 or length > end - at:
            break
        if code == 1:
            # Remembered while there is room; Python reads the text.
            slot = state[COMMENTS]
            if slot < comments.shape[0]:
                comments[slot, 0] = state[NUMBER] + 1
                comments[slot, 1] = at
                comments[slot, 2] = length
            state[COMMENTS] = slot + 1
        elif code == 4 and length == 8:
            low = file32(b, at + 4 if big else at, big)
            high = file32(b, at if big else at + 4, big)
            if high == 0:  # more than 4 billion lost between two packets is damage, not a count
                state[DROPS] += low
        at += (length + 3) & ~3


@inline
def next_record(b: Bytes, at: Int, end: Int, state: Table, interfaces: Table, comments: Table) -> Int:
    """The record at `at`, of a window that holds bytes up to `end`.

    Returns (what, data_at, captured, original, interface, time_ns, next_at), all int64. `what` is RECORD (a packet:
    its bytes, their number on the wire, at least `captured`), MALFORMED (a packet block that contradicts itself),
    SKIPPED (no packet), MORE (the record is incomplete: `next_at` is the number of bytes it needs), BLOCK (a block for
    `Layout.read_block`; it lies in the window whole, save for a section header) or BAD (no record can be here).
    """
    zero = np.int64(0)
    big = state[BIG]
    if state[FORMAT] == PCAP:
        header = state[RECORD_HEADER]
        if end - at < header:
            return MORE, zero, zero, zero, zero, zero, header
        captured = file32(b, at + 8, big)
        original = file32(b, at + 12, big)
        if captured > state[LARGEST]:
            return BAD, zero, captured, original, zero, zero, at
        if end - at < header + captured:
            return MORE, zero, zero, zero, zero, zero, header + captured
        time = file32(b, at, big) * NANOSECONDS + file32(b, at + 4, big) * interfaces[0, FACTOR]
        return RECORD, at + header, captured, max(original, captured), zero, time, at + header + captured

    if end - at < 12:
        return MORE, zero, zero, zero, zero, zero, np.int64(12)
    kind = file32(b, at, big)
    if kind == SECTION_HEADER:
        # Its length is in the byte order that the section itself declares.
        return BLOCK, zero, zero, zero, zero, zero, at
    length = file32(b, at + 4, big)
    if length < 12 or length & 3 != 0 or length > state[LARGEST]:
        return BAD, zero, length, zero, zero, zero, at
    if end - at < length:
        return MORE, zero, zero, zero, zero, zero, length
    if file32(b, at + length - 4, big) != length:
        return BAD, zero, length, zero, zero, zero, at
    next_at = at + length
    declared = state[INTERFACES] - state[SECTION]
    if kind in (ENHANCED_PACKET, OBSOLETE_PACKET):
        if length < 32:
            return MALFORMED, zero, zero, zero, zero, zero, next_at
        if kind == ENHANCED_PACKET:
            interface = file32(b, at + 8, big)
        else:
            interface = file16(b, at + 8, big)
            drops = file16(b, at + 10, big)
            if drops != 0xFFFF:  # 0xffff: not known
                state[DROPS] += drops
        captured = file32(b, at + 20, big)
        original = file32(b, at + 24, big)
        if captured > length - 32 or interface >= declared:
            return MALFORMED, zero, zero, zero, zero, zero, next_at
        interface += state[SECTION]
        data_at = at + 28
        options_at = data_at + ((captured + 3) & ~3)
        if next_at - 4 - options_at >= 4:
            note_options(b, options_at, next_at - 4, at, state, comments)
        time = ticks_to_ns(
            file32(b, at + 12, big),
            file32(b, at + 16, big),
            interfaces[interface, CLOCK],
            interfaces[interface, FACTOR],
            interfaces[interface, OFFSET],
        )
        return RECORD, data_at, captured, max(original, captured), interface, time, next_at
    if kind == SIMPLE_PACKET:
        if length < 16 or declared < 1:
            return MALFORMED, zero, zero, zero, zero, zero, next_at
        original = file32(b, at + 8, big)
        interface = state[SECTION]
        captured = min(original, length - 16)
        if interfaces[interface, SNAPLEN] != 0:
            captured = min(captured, interfaces[interface, SNAPLEN])
        # It carries no time: that of the packet before it is the best there is.
        state[UNTIMED] += 1
        return RECORD, at + 12, captured, original, interface, state[TIME], next_at
    if kind in (INTERFACE_DESCRIPTION, INTERFACE_STATISTICS, DECRYPTION_SECRETS):
        return BLOCK, zero, zero, zero, zero, zero, at
    return SKIPPED, zero, zero, zero, zero, zero, next_at


class LayoutTables(NamedTuple):
    """Tables that the kernel reads and updates.

    state [STATE_SLOTS]; interfaces [n, INTERFACE_COLUMNS]; comments [READ_COMMENTS, 3]: packet number, position of
    the text, its length."""

    state: Table
    interfaces: Table
    comments: Table


class BadBlock(Exception):
    """Error: a block that defines how to read the file contradicts itself; reading cannot go on."""


class Layout:
    """How to read the records of one file: its format, byte order, interfaces and their clocks.

    `state` (int64[STATE_SLOTS]) and `interfaces` (int64[n, INTERFACE_COLUMNS]) are what the kernel reads; a pcap file
    has exactly one interface. Blocks that Python reads change them.
    """

    def __init__(self, largest_record_bytes: int = LARGEST_RECORD_BYTES) -> None:
        self.state = np.zeros(STATE_SLOTS, np.int64)
        self.state[LARGEST] = largest_record_bytes
        self.state[EARLIEST] = np.iinfo(np.int64).max
        self.state[LATEST] = np.iinfo(np.int64).min
        self.interfaces = np.zeros((4, INTERFACE_COLUMNS), np.int64)
        self.comments = np.zeros((READ_COMMENTS, 3), np.int64)
        self.notes: list[str] = []
        self.secrets: list[bytes] = []
        self._secrets_bytes = 0
        self._foreign = 0
        self._drops: dict[int, int] = {}
        self._commented: dict[str, list[int]] = {}
        """By the text of a packet comment: which note it is, the first packet with it, and how many have it."""

    def begin(self, head: bytes) -> int:
        """Read the beginning of a file, at least PCAP_HEADER_BYTES of a pcap file (`is_capture` says if it is one).

        Returns the offset of the first record. A pcapng file begins with a section header, which is a record.
        """
        if head[:4] == PCAPNG_MAGIC:
            self.state[FORMAT] = PCAPNG
            return 0
        big, tick_ns, record_header = PCAP_MAGICS[head[:4]]
        self.state[FORMAT] = PCAP
        self.state[BIG] = big
        self.state[RECORD_HEADER] = record_header
        snaplen, network = struct.unpack_from(">II" if big else "<II", head, 16)
        # The upper bits of the field tell the length of the frame check sequence.
        self._add_interface(network & 0xFFFF, MULTIPLY, tick_ns, 0, snaplen)
        return PCAP_HEADER_BYTES

    def _add_interface(self, link: int, clock: int, factor: int, offset_ns: int, snaplen: int) -> None:
        count = int(self.state[INTERFACES])
        if count >= MOST_INTERFACES:
            raise BadBlock(f"more than {MOST_INTERFACES:,} interfaces")
        if count == len(self.interfaces):
            self.interfaces = np.concatenate([self.interfaces, np.zeros_like(self.interfaces)])
        self.interfaces[count] = (link, clock, factor, offset_ns, snaplen, 0)
        self.state[INTERFACES] = count + 1

    @property
    def tables(self) -> LayoutTables:
        """As the kernel takes them."""
        return LayoutTables(self.state, self.interfaces, self.comments)

    @property
    def links(self) -> list[int]:
        """The link type numbers of the interfaces, each once, in order."""
        count = int(self.state[INTERFACES])
        return list(dict.fromkeys(int(link) for link in self.interfaces[:count, LINK]))

    @property
    def seen_links(self) -> list[int]:
        """The link type numbers of the interfaces that packets came from, each once, in order."""
        rows = self.interfaces[: int(self.state[INTERFACES])]
        return list(dict.fromkeys(int(link) for link in rows[rows[:, SEEN] > 0, LINK]))

    @property
    def dropped(self) -> int | None:
        """Packets that the capturing machine counted as lost: in its final statistics, else in packets.

        None if there is no count, as in every pcap file."""
        return sum(self._drops.values()) if self._drops else int(self.state[DROPS]) or None

    def block_bytes(self, head: bytes) -> int:
        """Bytes of the block that begins with `head` (at least 12 bytes). Raises BadBlock."""
        order = self._order
        if head[:4] == PCAPNG_MAGIC:
            order = _byte_order(head)
        length = int(struct.unpack_from(order + "I", head, 4)[0])
        if length < 12 or length % 4 or length > self.state[LARGEST]:
            raise BadBlock(f"a block of {length:,} bytes")
        return length

    @property
    def _order(self) -> str:
        return ">" if self.state[BIG] else "<"

    def read_block(self, block: bytes) -> None:
        """Take in a block (whole) that the kernel left to Python. Raises BadBlock."""
        if block[:4] == PCAPNG_MAGIC:
            self._read_section(block)
            return
        kind = struct.unpack_from(self._order + "I", block)[0]
        if kind == INTERFACE_DESCRIPTION:
            self._read_interface(block)
        elif kind == INTERFACE_STATISTICS:
            self._read_statistics(block)
        elif kind == DECRYPTION_SECRETS:
            self._read_secrets(block)

    def read_run(self, window: memoryview, at: int, end: int) -> int:
        """Take in what follows of such blocks as `read_block` takes, up to the first that is another, is not whole or
        may be refused; returns where that is. A file may hold a million: each through the kernel costs ten times more.
        """
        head, tail = struct.Struct(self._order + "II"), struct.Struct(self._order + "I")
        largest = int(self.state[LARGEST])
        before = b""
        while end - at >= 12:
            kind, length = head.unpack_from(window, at)
            if kind not in (INTERFACE_STATISTICS, DECRYPTION_SECRETS, INTERFACE_DESCRIPTION):
                break
            if length < 20 or length % 4 or length > min(largest, end - at):
                break
            if tail.unpack_from(window, at + length - 4)[0] != length:
                break
            block = bytes(window[at : at + length])
            if kind == INTERFACE_STATISTICS and block == before:
                pass  # says the same again
            elif kind == INTERFACE_STATISTICS:
                self._read_statistics(block)
            elif kind == DECRYPTION_SECRETS:
                self._read_secrets(block)
            elif self.state[INTERFACES] < MOST_INTERFACES:
                self._read_interface(block)
            else:
                break
            at += length
            before = block
        return at

    def _read_section(self, block: bytes) -> None:
        if len(block) < 28:
            raise BadBlock(f"a section header of {len(block)} bytes")
        order = _byte_order(block)
        if struct.unpack_from(order + "I", block, len(block) - 4)[0] != len(block):
            raise BadBlock("a section header whose two lengths differ")
        major = struct.unpack_from(order + "H", block, 12)[0]
        if major != 1:
            raise BadBlock(f"a section of pcapng version {major}, which is not known")
        self.state[BIG] = order == ">"
        self.state[SECTION] = self.state[INTERFACES]
        for code, value in _options(block, 24, order):
            if code == 1:
                self.notes.append(f"capture comment: {_text(value)}")

    def _read_interface(self, block: bytes) -> None:
        if len(block) < 20:
            raise BadBlock(f"an interface description of {len(block)} bytes")
        order = self._order
        link, _, snaplen = struct.unpack_from(order + "HHI", block, 8)
        resolution, offset = 6, 0
        for code, value in _options(block, 16, order):
            if code == 9 and len(value) >= 1:
                resolution = value[0]
            elif code == 14 and len(value) == 8:
                offset = struct.unpack(order + "q", value)[0]
            elif code == 1:
                self.notes.append(f"comment on interface {self.state[INTERFACES]}: {_text(value)}")
        limit = LATEST_NS // NANOSECONDS
        offset_ns = max(-limit, min(limit, offset)) * NANOSECONDS
        if resolution & 0x80:
            # With 2**-93 seconds a tick, and finer, all times that fit are below a nanosecond.
            clock, factor = BINARY, min(resolution & 0x7F, 95)
        elif resolution <= 9:
            clock, factor = MULTIPLY, 10 ** (9 - resolution)
        else:
            clock, factor = DIVIDE, min(10 ** (resolution - 9), (1 << 63) - 1)
        self._add_interface(link, clock, factor, offset_ns, snaplen)

    def _read_statistics(self, block: bytes) -> None:
        if len(block) < 24:
            return
        order = self._order
        interface = int(struct.unpack_from(order + "I", block, 8)[0]) + int(self.state[SECTION])
        if interface >= self.state[INTERFACES]:
            return
        # Counted from the start of the capture: a later block replaces an earlier one of its interface.
        drops = 0
        for code, value in _options(block, 20, order):
            if code in (5, 7) and len(value) == 8:  # isb_ifdrop, isb_osdrop
                drops += struct.unpack(order + "Q", value)[0]
        self._drops[interface] = max(drops, self._drops.get(interface, 0))

    def _read_secrets(self, block: bytes) -> None:
        if len(block) < 20:
            return
        kind, length = struct.unpack_from(self._order + "II", block, 8)
        data = block[16 : min(16 + length, len(block) - 4)]
        if kind != TLS_KEY_LOG:
            self._foreign += 1
            if self._foreign <= MOST_FOREIGN:
                self.notes.append(f"a block of decryption secrets of type {kind:#010x} was left out: not a TLS key log")
        elif self._secrets_bytes + len(data) > MOST_SECRETS_BYTES:
            self.notes.append(f"a block of {len(data):,} bytes of TLS secrets was left out: too many")
        else:
            self._secrets_bytes += len(data)
            self.secrets.append(data)

    def take_drops(self, other: Layout) -> None:
        """Losses that statistics of the same file, read elsewhere, tell of."""
        for interface, drops in other._drops.items():
            self._drops[interface] = max(drops, self._drops.get(interface, 0))

    def take_comments(self, window: np.ndarray) -> None:
        """Turn the packet comments that the kernel met in `window` into notes; call after each scan of it."""
        if not self.state[COMMENTS]:
            return
        for number, at, length in self.comments[self.comments[:, 0] > 0].tolist():
            self._take_comment(number, _text(bytes(window[at : at + length])))
        self.comments[:, 0] = 0

    def _take_comment(self, number: int, text: str) -> None:
        if text not in self._commented:
            if len(self._commented) < MOST_COMMENTS:
                self._commented[text] = [len(self.notes), number, 1]
                self.notes.append(f"comment on packet {number}: {text}")
            return
        known = self._commented[text]
        known[2] += 1
        self.notes[known[0]] = f"comment on {known[2]:,} packets, first on packet {known[1]}: {text}"

    def end(self) -> None:
        """The file was read: write the closing notes."""
        more = int(self.state[COMMENTS]) - sum(count for _, _, count in self._commented.values())
        if more:
            self.notes.append(f"{more:,} more packet comments")
        if self._foreign > MOST_FOREIGN:
            self.notes.append(f"{self._foreign - MOST_FOREIGN:,} more blocks of decryption secrets were left out")
        if self.state[UNTIMED]:
            self.notes.append(
                f"{self.state[UNTIMED]:,} packets carry no time (simple packet blocks); "
                "each got that of the packet before it"
            )


def _byte_order(section: bytes) -> str:
    if section[8:12] == b"\x4d\x3c\x2b\x1a":
        return "<"
    if section[8:12] == b"\x1a\x2b\x3c\x4d":
        return ">"
    raise BadBlock("a section header without a byte order")


def _options(block: bytes, at: int, order: str) -> Iterator[tuple[int, bytes]]:
    """The (code, value) options of a block from offset `at` on; stops at what cannot be an option."""
    end = len(block) - 4
    while end - at >= 4:
        code, length = struct.unpack_from(order + "HH", block, at)
        at += 4
        if code == 0 or length > end - at:
            return
        yield code, block[at : at + length]
        at += (length + 3) & ~3


def _text(value: bytes) -> str:
    """A comment on one line: what is not printable is shown as an escape, so that it cannot steer a terminal."""
    text = value.decode("utf-8", "replace").rstrip("\0")
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return shown if len(shown) <= 200 else shown[:200] + "…"


def is_capture(head: bytes) -> bool:
    """Whether a file that begins with `head` is pcap or pcapng."""
    return head[:4] in PCAP_MAGICS or (head[:4] == PCAPNG_MAGIC and (len(head) < 12 or _has_byte_order(head)))


def _has_byte_order(head: bytes) -> bool:
    return head[8:12] in (b"\x4d\x3c\x2b\x1a", b"\x1a\x2b\x3c\x4d")


def first_time_ns(head: bytes) -> int | None:
    """The time of the first packet that carries one, looked for in the first bytes of a file; None if there is none.

    Plain Python on purpose: putting files in order must not wait for a compiler.
    """
    if head[:4] in PCAP_MAGICS:
        if len(head) < PCAP_HEADER_BYTES + 16:
            return None
        big, tick_ns, _ = PCAP_MAGICS[head[:4]]
        seconds, ticks = struct.unpack_from(">II" if big else "<II", head, PCAP_HEADER_BYTES)
        return int(seconds * NANOSECONDS + ticks * tick_ns)
    layout = Layout()
    at = layout.begin(head)
    try:
        while len(head) - at >= 12:
            length = layout.block_bytes(head[at : at + 12])
            block = head[at : at + length]
            if len(block) < length:
                return None
            order = layout._order
            kind = struct.unpack_from(order + "I", block)[0]
            if kind in (ENHANCED_PACKET, OBSOLETE_PACKET) and length >= 32:
                form = order + ("I" if kind == ENHANCED_PACKET else "H")
                interface = struct.unpack_from(form, block, 8)[0] + int(layout.state[SECTION])
                if interface < layout.state[INTERFACES]:
                    high, low = struct.unpack_from(order + "II", block, 12)
                    return _ticks_to_ns(high, low, layout.interfaces[interface])
            elif kind in (INTERFACE_DESCRIPTION, SECTION_HEADER):
                layout.read_block(block)
            at += length
    except BadBlock:
        pass
    return None


def _ticks_to_ns(high: int, low: int, interface: np.ndarray) -> int:
    """`ticks_to_ns` without Numba, for one packet."""
    clock, factor, offset = (int(interface[column]) for column in (CLOCK, FACTOR, OFFSET))
    ticks = high << 32 | low
    if clock == MULTIPLY:
        time = ticks * factor
    elif clock == DIVIDE:
        time = ticks // factor
    else:
        time = ticks * NANOSECONDS >> factor
    return min(time, LATEST_NS) + offset
