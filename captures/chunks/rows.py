"""TCP packets as rows of few words, which are put in order by group and become columns again.

In: columns of packets, and their four-tuples. Out: rows, int64[n, WORDS], those of a group one behind the other in
their order, and the *ways* that they go, from which end point to which, which are few; of these, the columns again.
Rule: a row and its way hold all that is known of a packet but its time and its file; whatever a capture holds fits
(`put_rows`).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.captures.acknowledgements import LEAST_OPTIONS
from kwire.captures.chunks.groups import group_of
from kwire.captures.kernels import NULL, Array, Bytes, Flag, Int, Table, copy_bytes, inline, kernel
from kwire.captures.segment_sums import CHECKED_BITS, checked
from kwire.captures.windows import Content, PacketColumns

(
    PLACE,  # which row of the batch it is, its way, and, above, what its checksum says
    NUMBERS,  # sequence number, and, above, acknowledgement number
    RECORD_AT,
    LENGTHS,  # payload bytes captured, and, above, on the wire
    FLAGS,  # flags, window, and, above, identity
    ORDER,  # bytes of its TCP header, of its record before that, and, above, packets from the batch's first one on
    WORDS,
) = range(7)

_SRC_HI, _SRC_LO, _DST_HI, _DST_LO, _PORTS, _INTERFACE, WAY_WORDS = range(7)

GAP_BYTES: Final = 1 << 12
"""What stands between two packets of a share and comes with them: a page."""

_LOW: Final = 0xFFFFFFFF

_INDEX_BITS: Final = 23
"""Of the row of a packet in its batch, and of its way: a batch is a window's, which has at most a few million."""

_INDEX: Final = (1 << _INDEX_BITS) - 1
_SUM_AT: Final = 2 * _INDEX_BITS

_MOST_BEFORE: Final = 0xFFFF
"""Bytes of a record, its own header and those of links and networks, before its TCP header, where that is said."""


_APART: Final = 0x9E3779B1
"""Ways of one four-tuple on many interfaces are not looked for in one place."""


@inline
def _size(columns: PacketColumns, i: Int) -> tuple[Int, Int]:
    """(bytes of its TCP header, of that and its payload); of a packet without captured payload none is needed unless
    its options may have SACK blocks."""
    captured = columns.payload_captured[i]
    whole = columns.payload_at[i] - columns.tcp_at[i]
    header = whole if captured > 0 or whole >= 20 + LEAST_OPTIONS else np.int64(0)
    return header, header + captured


@kernel
def count_groups(pairs: Array, columns: PacketColumns, whose: Array, counts: Table, sizes: Table) -> None:
    """Whose each packet is (uint16[n]), how many each group has and how many bytes these are. pairs uint64[n]: their
    four-tuples, as `groups.pairs_of` numbers them."""
    for i in range(len(pairs)):
        group = group_of(pairs[i], len(counts))
        whose[i] = group
        counts[group] += 1
        sizes[group] += _size(columns, i)[1]


@kernel
def number_ways(pairs: Array, columns: PacketColumns, places: Array, ways: Table, of: Array) -> Int:
    """The way of each packet, int32[n]; returns how many there are. `places` int32[a power of two, above twice n]:
    zeros; `ways` has room for one a packet."""
    mask = np.int64(len(places) - 1)
    count = np.int64(0)
    for i in range(len(pairs)):
        src_hi, src_lo = columns.src_hi[i], columns.src_lo[i]
        dst_hi, dst_lo = columns.dst_hi[i], columns.dst_lo[i]
        ports = np.int64(columns.src_port[i]) << 32 | np.int64(columns.dst_port[i])
        interface = np.int64(columns.interface[i])
        at = (np.int64(pairs[i] >> np.uint64(20)) + interface * _APART) & mask
        while True:
            way = np.int64(places[at]) - 1
            if way < 0:
                way = count
                places[at] = way + 1
                ways[way, _SRC_HI], ways[way, _SRC_LO], ways[way, _DST_HI] = src_hi, src_lo, dst_hi
                ways[way, _DST_LO], ways[way, _PORTS], ways[way, _INTERFACE] = dst_lo, ports, interface
                count += 1
                break
            if (
                ways[way, _PORTS] == ports
                and ways[way, _SRC_LO] == src_lo
                and ways[way, _DST_LO] == dst_lo
                and ways[way, _SRC_HI] == src_hi
                and ways[way, _DST_HI] == dst_hi
                and ways[way, _INTERFACE] == interface
            ):
                break
            at = (at + 1) & mask
        of[i] = way
    return count


@kernel
def sum_up(content: Content, columns: PacketColumns, sums: Array) -> None:
    """Compute `segment_sums.checked` of each packet whose bytes are at hand; 0 for others."""
    buffer, words = content.buffer, content.words
    for i in range(len(sums)):
        length = columns.payload_length[i]
        sums[i] = 0
        if 0 < length <= 0xFFFF and columns.payload_captured[i] == length:
            sums[i] = checked(
                buffer,
                words,
                columns.tcp_at[i],
                columns.payload_at[i],
                length,
                columns.src_hi[i],
                columns.src_lo[i],
                columns.dst_hi[i],
                columns.dst_lo[i],
            )


@kernel
def put_rows(columns: PacketColumns, sums: Array, ways: Array, base: Int, first: Int, before: Int, rows: Table) -> Int:
    """Put packets, as they come, into the last of these rows. `base`: how far behind its place in the buffer a byte is
    in the file, NULL: bytes do not stay there; `first`: number of the batch's first packet, of which so many stand
    `before`. Returns what exceeds the bits that a number has, which is 0: the longest packet that a capture may hold
    has 2**32 bytes, a batch does not have 2**23 packets, and all else that stands in a part of a word is read from as
    many bits."""
    beyond = np.int64(0)
    for i in range(len(rows) - before):
        row = before + i
        header, size = _size(columns, i)
        seq, ack = columns.seq[i], columns.ack[i]
        captured, length = columns.payload_captured[i], columns.payload_length[i]
        flags, window, identity = np.int64(columns.flags[i]), np.int64(columns.window[i]), columns.identity[i]
        order = columns.number[i] - first
        skipped = columns.tcp_at[i] + base - columns.record_at[i] if base != NULL and size > 0 else np.int64(0)
        beyond |= (seq | ack | captured | length | identity) >> 32 | (flags | window | skipped) >> 16
        way, checked_as = np.int64(ways[i]), np.int64(sums[i])
        beyond |= header >> 8 | order >> 39 | (row | way) >> _INDEX_BITS | checked_as >> CHECKED_BITS
        rows[row, PLACE] = checked_as << _SUM_AT | way << _INDEX_BITS | row
        rows[row, NUMBERS] = ack << 32 | seq
        rows[row, RECORD_AT] = columns.record_at[i]
        rows[row, LENGTHS] = length << 32 | captured
        rows[row, FLAGS] = identity << 32 | window << 16 | flags
        rows[row, ORDER] = order << 24 | skipped << 8 | header
    return beyond


@kernel
def group_rows(rows: Table, whose: Array, nexts: Table, into: Table) -> None:
    """Put each row where its group's next one is."""
    for i in range(len(rows)):
        row = nexts[whose[i]]
        nexts[whose[i]] += 1
        for word in range(WORDS):
            into[row, word] = rows[i, word]


def as_words(columns: PacketColumns) -> PacketColumns:
    """Return views of the same memory with addresses as signed numbers, as rows have them."""
    halves = {name: getattr(columns, name).view(np.int64) for name in ("src_hi", "src_lo", "dst_hi", "dst_lo")}
    return columns._replace(**halves)


def grouped(columns: PacketColumns, pairs: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(whose each packet is, uint16[n]; int64[groups]: packets of each group; bytes of these). Of `as_words`."""
    whose = np.empty(len(pairs), np.uint16)
    counts, sizes = np.zeros((2, groups), np.int64)
    count_groups(pairs, columns, whose, counts, sizes)
    return whose, counts, sizes


def ways_of(columns: PacketColumns, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the ways of packets, int64[m, WAY_WORDS]; which of them each goes, int32[n]). Of `as_words`."""
    count = len(pairs)
    of = np.empty(count, np.int32)
    ways = np.empty((count, WAY_WORDS), np.int64)
    places = np.zeros(1 << (2 * count).bit_length(), np.int32)
    return ways[: number_ways(pairs, columns, places, ways, of)], of


@kernel
def gather(buffer: Bytes, columns: PacketColumns, rows: Table, into: Bytes) -> None:
    """Copy the bytes of packets, in the order of their rows, one behind the other."""
    to = np.int64(0)
    for i in range(len(rows)):
        packet = rows[i, PLACE] & _INDEX
        _, size = _size(columns, packet)
        copy_bytes(into, to, buffer, columns.tcp_at[packet], size)
        to += size


@kernel
def extent(
    columns: PacketColumns, whose: Array, shares: Int, share: Int, spare: Int, base: Int
) -> tuple[Int, Int, Int, Int]:
    """How bytes of packets lie in the buffer: (where the first begins, where the last ends; of one share of some: how
    many bytes it reads where it reads its own there, and how many these are). -1 bytes read where those of all packets
    do not lie in order from `spare` on, each behind its record's beginning; `base` as in `put_rows`."""
    begin, end_of_all, total, own = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    end = np.int64(NULL)
    for i in range(len(whose)):
        _, size = _size(columns, i)
        if size <= 0:
            continue
        at = columns.tcp_at[i]
        before = at + base - columns.record_at[i]
        if at < max(spare, end_of_all) or before < 0 or before > _MOST_BEFORE:
            return begin, end_of_all, np.int64(-1), own
        if end_of_all == 0:
            begin = at
        end_of_all = at + size
        if np.int64(whose[i]) % shares != share:
            continue
        own += size
        total += size if end == NULL or at - end > GAP_BYTES else at + size - end
        end = at + size
    return begin, end_of_all, total, own


# --- columns again ----------------------------------------------------------------------------------------------------


@kernel
def tell_rows(rows: Table, ways: Table, columns: PacketColumns) -> None:
    """Fill in the columns that tell connections apart (see `kwire.captures.flows`), of packets with these rows."""
    for i in range(len(rows)):
        to, way = rows[i, PLACE] & _INDEX, (rows[i, PLACE] >> _INDEX_BITS) & _INDEX
        if to >= len(columns.number) or way >= len(ways):
            continue
        columns.src_hi[to], columns.src_lo[to] = ways[way, _SRC_HI], ways[way, _SRC_LO]
        columns.dst_hi[to], columns.dst_lo[to] = ways[way, _DST_HI], ways[way, _DST_LO]
        columns.src_port[to], columns.dst_port[to] = ways[way, _PORTS] >> 32, ways[way, _PORTS] & _LOW
        columns.interface[to] = ways[way, _INTERFACE]
        columns.seq[to], columns.ack[to] = rows[i, NUMBERS] & _LOW, (rows[i, NUMBERS] >> 32) & _LOW
        columns.payload_length[to] = (rows[i, LENGTHS] >> 32) & _LOW
        word = rows[i, FLAGS]
        columns.flags[to], columns.window[to] = word & 0xFFFF, (word >> 16) & 0xFFFF
        columns.identity[to] = (word >> 32) & _LOW


@kernel
def place_rows(rows: Table, first: Int, at: Int, stay: Flag, columns: PacketColumns, sums: Array) -> None:
    """The rest, and what `sum_up` found. `first`: number of the batch's first packet; `at`: where bytes of these
    packets begin, one behind the other; or, where they `stay` in the file, where in that the buffer begins."""
    put = at
    for i in range(len(rows)):
        to = rows[i, PLACE] & _INDEX
        if to >= len(columns.number):
            continue
        order, captured = rows[i, ORDER], rows[i, LENGTHS] & _LOW
        columns.number[to] = first + (order >> 24)
        sums[to] = (rows[i, PLACE] >> _SUM_AT) & ((1 << CHECKED_BITS) - 1)
        columns.record_at[to] = rows[i, RECORD_AT]
        columns.payload_captured[to] = captured
        size = (order & 0xFF) + captured
        if stay:
            put = rows[i, RECORD_AT] + ((order >> 8) & _MOST_BEFORE) - at if size > 0 else np.int64(0)
        columns.tcp_at[to], columns.payload_at[to] = put, put + (order & 0xFF)
        put += size
