"""Segments of each direction that came out of order and wait for their turn, sorted, with bytes.

In: bytes of a packet that are not next in their stream. Out: `StreamTables.waiting`, a sorted list a direction, and
`held`. Rules: the first captured copy of a byte counts. While bytes wait, a copy of them that differs and whose TCP
checksum is right replaces one whose checksum is not.
"""

from __future__ import annotations

import numpy as np

from kwire.captures import stream_tables as t
from kwire.captures.copies import duplicate
from kwire.captures.kernels import Array, Bytes, Flag, Int, Table, copy_bytes, inline, kernel, shared
from kwire.captures.segment_sums import byte_sum
from kwire.captures.stream_tables import Origin, StreamTables

WAITING_SEGMENTS = 4096
"""Out-of-order segments of one direction; beyond them the oldest hole is a gap. A full 4 MiB receive window of
1,448-byte segments is 2,900."""

WAITING_BYTES = 256 << 20
"""Out-of-order bytes of all connections of one shard together; beyond it the connection at hand is flushed."""


@inline
def is_right(w: Table, waiting: Bytes, row: Int) -> Flag:
    """Whether the bytes of a waiting segment came with a right checksum."""
    total = w[row, t.W_SUM]
    if total == t.RIGHT:
        return True
    return total >= 0 and (total + byte_sum(waiting, w[row, t.W_AT], w[row, t.W_CAPTURED])) % 0xFFFF == 0


@inline
def shorten(w: Table, waiting: Bytes, row: Int, position: Int) -> None:
    """Take the bytes before `position` from the front of a waiting segment."""
    w[row, t.W_SUM] = t.RIGHT if is_right(w, waiting, row) else -1
    count = position - w[row, t.W_SEQ]
    captured = min(count, w[row, t.W_CAPTURED])
    w[row, t.W_SEQ] = position
    w[row, t.W_LENGTH] -= count
    w[row, t.W_AT] += captured
    w[row, t.W_CAPTURED] -= captured


@inline
def split(tables: StreamTables, key: Int, row: Int, position: Int) -> None:
    """Make two of a waiting segment: [its start, position) and the rest, in the row after it."""
    d, w, waiting, v = tables.directions, tables.waiting, tables.held, tables.counters
    rest = new_row(w, v)
    for column in range(t.W_COLUMNS):
        w[rest, column] = w[row, column]
    shorten(w, waiting, rest, position)
    w[row, t.W_SUM] = w[rest, t.W_SUM]
    w[row, t.W_LENGTH] -= w[rest, t.W_LENGTH]
    w[row, t.W_CAPTURED] -= w[rest, t.W_CAPTURED]
    w[row, t.W_NEXT] = rest
    d[key, t.D_COUNT] += 1


@inline
def new_row(w: Table, v: Table) -> Int:
    """A free row for a waiting segment. Room was made sure of before."""
    row = v[t.V_FREE]
    if row >= 0:
        v[t.V_FREE] = w[row, t.W_NEXT]
    else:
        row = v[t.V_ROWS]
        v[t.V_ROWS] = row + 1
    return row


@shared
def compare(
    tables: StreamTables, key: Int, row: Int, begin: Int, stop: Int, source: Bytes, at: Int, right: Flag
) -> None:
    """Bytes [begin, stop) of the stream wait in `row`; here they come again, from source[at] on. Count what differs,
    and take the later copy if its checksum is right (`right`) and that of the first is not."""
    w, waiting = tables.waiting, tables.held
    target = w[row, t.W_AT] + begin - w[row, t.W_SEQ]
    differ = np.int64(0)
    for i in range(stop - begin):
        if waiting[target + i] != source[at + i]:
            differ += 1
    tables.directions[key, t.D_CONFLICTS] += differ
    if differ > 0 and right and not is_right(w, waiting, row):
        copy_bytes(waiting, target, source, at, stop - begin)


@shared
def wait(
    tables: StreamTables,
    key: Int,
    start: Int,
    stop: Int,
    captured_stop: Int,
    source: Bytes,
    at: Int,
    ack: Int,
    origin: Origin,
    skipped: Int,
    headers: Int,
    doubt: Int,
) -> Int:
    """Keep bytes [start, stop) of a packet whose payload starts at source[at] until their turn: the parts not yet
    waiting, in order of sequence number. `skipped` bytes of its payload are before that; `headers` is its `header_sum`;
    `doubt`: as in W_DOUBT. Returns how many bytes were new. Invariants: waiting segments of a direction are
    disjoint and sorted; what they acknowledge never falls, because what was sent before them cannot have acknowledged
    more."""
    d, w, v = tables.directions, tables.waiting, tables.counters
    right = np.int64(-1)  # whether its checksum is right: not asked yet
    new = np.int64(0)
    before = np.int64(-1)
    after = d[key, t.D_HEAD]
    position = start
    while position < stop:
        while after >= 0 and w[after, t.W_SEQ] + w[after, t.W_LENGTH] <= position:
            if 0 <= ack < w[after, t.W_ACK]:
                w[after, t.W_ACK] = ack
            before = after
            after = w[after, t.W_NEXT]
        piece_stop = stop
        if after >= 0 and w[after, t.W_SEQ] < piece_stop:
            piece_stop = max(position, w[after, t.W_SEQ])
        if piece_stop > position:
            row = new_row(w, v)
            captured = max(np.int64(0), min(piece_stop, captured_stop) - position)
            w[row, t.W_SEQ] = position
            w[row, t.W_LENGTH] = piece_stop - position
            w[row, t.W_CAPTURED] = captured
            w[row, t.W_AT] = v[t.V_BYTES]
            w[row, t.W_ACK] = ack if after < 0 or w[after, t.W_ACK] < 0 else min(ack, w[after, t.W_ACK])
            w[row, t.W_TIME_NS] = origin.time_ns
            w[row, t.W_NUMBER] = origin.number
            w[row, t.W_FILE] = origin.file
            w[row, t.W_RECORD_AT] = origin.record_at
            w[row, t.W_PACKET_INDEX] = origin.packet_index
            w[row, t.W_DOUBT] = doubt
            # Only for a packet that is kept whole can the checksum be told later.
            w[row, t.W_SUM] = headers if skipped == 0 and position == start and captured == stop - start else -1
            copy_bytes(tables.held, v[t.V_BYTES], source, at + position - start, captured)
            v[t.V_BYTES] += captured
            v[t.V_LIVE] += captured
            d[key, t.D_BYTES] += captured
            d[key, t.D_COUNT] += 1
            w[row, t.W_NEXT] = after
            if before >= 0:
                w[before, t.W_NEXT] = row
            else:
                d[key, t.D_HEAD] = row
            before = row
            new += piece_stop - position
            position = piece_stop
        if position < stop:  # `after` overlaps: its bytes came first
            overlap = min(stop, w[after, t.W_SEQ] + w[after, t.W_LENGTH])
            both = min(overlap, captured_stop, w[after, t.W_SEQ] + w[after, t.W_CAPTURED])
            if both > position:
                if right < 0:
                    right = np.int64(0)
                    if headers >= 0 and captured_stop == stop:
                        total = headers + byte_sum(source, at - skipped, stop - start + skipped)
                        right = np.int64(total % 0xFFFF == 0)
                compare(tables, key, after, position, both, source, at + position - start, right == 1)
                whole = position == w[after, t.W_SEQ] and both == position + w[after, t.W_LENGTH]
                if right == 1 and whole and w[after, t.W_DOUBT] == t.WRONG:
                    w[after, t.W_DOUBT] = 0
            duplicate(d, key, position, overlap, captured_stop)
            if 0 <= ack < w[after, t.W_ACK]:
                if overlap < w[after, t.W_SEQ] + w[after, t.W_LENGTH]:
                    split(tables, key, after, overlap)
                w[after, t.W_ACK] = ack
            position = overlap
    return new


@shared
def displace(tables: StreamTables, key: Int, start: Int, stop: Int) -> None:
    """Bytes [start, stop) of the stream come from its own leg: those of other legs that wait for them were copies. Room
    for two more segments was made sure of before."""
    d, w, v = tables.directions, tables.waiting, tables.counters
    before = np.int64(-1)
    row = d[key, t.D_HEAD]
    while row >= 0 and w[row, t.W_SEQ] < stop:
        end = w[row, t.W_SEQ] + w[row, t.W_LENGTH]
        if w[row, t.W_DOUBT] != t.LEG or end <= start:
            before = row
            row = w[row, t.W_NEXT]
            continue
        if w[row, t.W_SEQ] < start:
            split(tables, key, row, start)
            before = row
            row = w[row, t.W_NEXT]
        if stop < end:
            split(tables, key, row, stop)
        captured = w[row, t.W_CAPTURED]
        duplicate(d, key, w[row, t.W_SEQ], w[row, t.W_SEQ] + w[row, t.W_LENGTH], w[row, t.W_SEQ] + captured)
        after = w[row, t.W_NEXT]
        if before >= 0:
            w[before, t.W_NEXT] = after
        else:
            d[key, t.D_HEAD] = after
        d[key, t.D_COUNT] -= 1
        d[key, t.D_BYTES] -= captured
        v[t.V_LIVE] -= captured
        w[row, t.W_NEXT] = v[t.V_FREE]
        w[row, t.W_LENGTH] = 0
        v[t.V_FREE] = row
        row = after


@kernel
def compact(w: Table, order: Array, waiting: Bytes) -> Int:
    """Move the bytes that still wait to the front; returns how many there are. `order`: their rows, by where their
    bytes are: each moves to a place that no other one has any more."""
    used = np.int64(0)
    for row in order:
        at = w[row, t.W_AT]
        if at != used:
            copy_bytes(waiting, used, waiting, at, w[row, t.W_CAPTURED])
            w[row, t.W_AT] = used
        used += w[row, t.W_CAPTURED]
    return used
