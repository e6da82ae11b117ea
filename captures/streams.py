"""Packets of known connections -> ordered payload, with what is missing said.

In: a `Packets` batch and its `Assigned` connections. Out: `Segments`, one row for each run of payload bytes that is
next in its stream, and one for each gap, FIN, RST and end, in the order in which they became certain.

Rules
- The first captured copy of a byte counts; later copies are duplicates. While bytes wait for their turn, a copy of them
  that differs and whose TCP checksum is right replaces one whose checksum is not. So bytes with a wrong checksum wait
  until their receiver acknowledges them: a receiver drops what was damaged, and the right copy follows. Bytes handed on
  are not kept; of a copy of them only the sum tells whether it differs.
- A packet that the capture holds twice (two interfaces, both directions of a mirror) is counted as such, and is no
  retransmission.
- Order is causal: a packet's payload is handed on only after all the bytes of the other direction that it
  acknowledges, so a request always comes before its response, however the capture mixed the packets. A packet that
  repeats bytes acknowledges more than they did when they were first sent: of all copies the least counts.
- What is out of order waits. Bytes that the receiver acknowledged and that still did not come within
  `REORDER_PACKETS` packets of the connection or `REORDER_NS` of capture time were lost by the capture: a gap, as data.
  Bytes that nobody acknowledged may still be sent again, and are waited for until the limits or the end.
- All of it depends on the connection's packets alone: not on windows, threads or other connections (but for the
  memory limit, which no ordinary capture meets).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from captures.flows import ACK, FIN, RST, SYN, Assigned, _doubled
from captures.kernels import copy_bytes, inline, kernel, shared
from captures.packets import Packets

REORDER_PACKETS = 256
"""Packets of one connection after which acknowledged bytes count as lost. Real reordering (offload queues, several
capture interfaces, multipath) stays within tens of packets."""

REORDER_NS = 3_000_000_000
"""The same in capture time, for slow connections: longer than TCP's first two retransmission timeouts."""

HOLD_PACKETS = 8
"""Packets of a connection without SYN that are looked at before its stream is said to start at the lowest of them."""

WAITING_SEGMENTS = 4096
"""Out-of-order segments of one direction; beyond them the oldest hole is a gap. A full 4 MiB receive window of
1,448-byte segments is 2,900."""

WAITING_BYTES = 256 << 20
"""Out-of-order bytes of all connections of one shard together; beyond it the connection at hand is flushed."""

RECENT = 16
"""Packets of a direction that are remembered to know a copy by: copies come within a few packets, but for a card's
batch (both sides of a bridge)."""

COPY_NS = 100_000_000
"""Capture time within which a packet with the same IPv4 identification is a copy. Copies are taken microseconds apart,
on both sides of a router or in a mirror milliseconds; TCP sends again after 200 ms, with another identification."""

UNNAMED_COPY_NS = 1_000_000
"""The same where there is no identification (IPv6, or 0). The TCP checksum then tells, which covers the timestamps
that most hosts send, or that it is another interface: so no longer than a retransmission can be quick."""

LIES = 4
"""Segments with a wrong checksum that the receiver acknowledged as they were: then the checksums of this direction say
nothing (a network card joined segments and left the first one's checksum), and are not looked at any more."""

JUMP = 1 << 24
"""A RST whose sequence number is further off than this is taken to mean "now"."""

# Kinds of segment rows.
DATA, GAP, SNAPLEN, FINISH, RESET, END = 0, 1, 2, 3, 4, 5

# Columns of a segment row (int64).
(
    SEG_KEY,  # 2 * slot + side
    SEG_KIND,
    SEG_SOURCE,  # 0: `at` is in the window's buffer, 1: in the waiting bytes
    SEG_AT,
    SEG_LENGTH,
    SEG_TIME_NS,
    SEG_NUMBER,
    SEG_FILE,
    SEG_RECORD_AT,
    SEG_ORDINAL,  # of the packet that brought the bytes, over the whole capture point
    SEG_TRIGGER,  # of the packet that made the row certain: never falls from row to row
    SEG_COLUMNS,
) = range(12)

# Columns of the connection table.
(
    C_STARTED,
    C_HOLD,
    C_BLOCKED,
    C_BLOCKED_NS,
    C_FIRST_NS,
    C_LAST_NS,
    C_SYN_NS,
    C_SYN_SIDE,
    C_ANSWERED,
    C_RTT_NS,
    C_COLUMNS,
) = range(11)

LATE_RANGES = 4
"""Gaps a direction remembers, to tell a byte that came too late from one that came twice."""

# Columns of the direction table.
(
    D_REF,  # D_NEXT holds a number that others can be measured against
    D_SYNCED,  # D_NEXT is the next byte to hand on
    D_NEXT,
    D_HEAD,  # first waiting segment, or -1
    D_COUNT,
    D_BYTES,
    D_FIN,
    D_RST,
    D_RST_ACK,  # what the RST acknowledges, or -1
    D_DONE,
    D_MAX_ACK,
    D_OLD_ACK,
    D_HIGH,
    D_HIGH_NS,
    D_LATE_AT,
    D_LATE_0,  # LATE_RANGES pairs (start, stop)
    D_PACKETS,
    D_CAPTURED,
    D_DUPLICATE,
    D_LATE,
    D_RETRANSMISSIONS,
    D_OUT_OF_ORDER,
    D_ZERO_WINDOWS,
    D_GAPS,
    D_GAP_BYTES,
    D_SNAPLEN,
    D_DUPLICATE_PACKETS,  # sightings of a packet after its first
    D_CONFLICTS,  # bytes that differ from the copy that waited; of bytes handed on, one for each copy that differs
    D_LIES,  # segments with a wrong checksum that were acknowledged all the same
    D_COLUMNS,
) = (*range(16), *range(16 + 2 * LATE_RANGES - 1, 30 + 2 * LATE_RANGES - 1))

# Columns of the recent packets: of each direction a ring of RECENT.
R_NUMBERS, R_SHAPE, R_TIME_NS, R_IDENTITY, R_SUM, R_COLUMNS = 0, 1, 2, 3, 4, 5

# Columns of a waiting segment.
(
    W_SEQ,
    W_LENGTH,
    W_CAPTURED,
    W_AT,
    W_ACK,
    W_NEXT,
    W_TIME_NS,
    W_NUMBER,
    W_FILE,
    W_RECORD_AT,
    W_ORDINAL,
    W_SUM,  # of its packet's headers for the TCP checksum (see `header_sum`), -1, or RIGHT
    W_DOUBT,  # 1: its checksum is wrong, and its receiver has not acknowledged it
    W_COLUMNS,
) = range(14)

RIGHT = -2
"""W_SUM of a part of a packet whose checksum was right."""

# Columns of the state vector.
V_OUT, V_FREE, V_ROWS, V_BYTES, V_LIVE, V_COLUMNS = 0, 1, 2, 3, 4, 5

OK, NEED_SEGMENTS, NEED_WAITING, NEED_BYTES = 0, 1, 2, 3

_FAR = 1 << 61


@inline
def _unwrap(reference: Any, raw: Any) -> Any:
    """The 64-bit number nearest to `reference` whose low 32 bits are `raw`."""
    delta = (raw - reference) & 0xFFFFFFFF
    if delta >= 0x80000000:
        delta -= 0x100000000
    return reference + delta


@inline
def _emit(
    out: Any, v: Any, key: Any, kind: Any, source: Any, at: Any, length: Any, time_ns: Any, number: Any, file: Any,
    record_at: Any, ordinal: Any, trigger: Any,
) -> None:  # fmt: skip
    row = v[V_OUT]
    out[row, SEG_KEY] = key
    out[row, SEG_KIND] = kind
    out[row, SEG_SOURCE] = source
    out[row, SEG_AT] = at
    out[row, SEG_LENGTH] = length
    out[row, SEG_TIME_NS] = time_ns
    out[row, SEG_NUMBER] = number
    out[row, SEG_FILE] = file
    out[row, SEG_RECORD_AT] = record_at
    out[row, SEG_ORDINAL] = ordinal
    out[row, SEG_TRIGGER] = trigger
    v[V_OUT] = row + 1


@inline
def _start(c: Any, d: Any, slot: Any, time_ns: Any) -> None:
    """A new connection in this slot."""
    for column in range(C_COLUMNS):
        c[slot, column] = 0
    c[slot, C_STARTED] = 1
    c[slot, C_FIRST_NS] = time_ns
    c[slot, C_LAST_NS] = time_ns
    c[slot, C_SYN_SIDE] = -1
    c[slot, C_RTT_NS] = -1
    for side in range(2):
        key = 2 * slot + side
        for column in range(D_COLUMNS):
            d[key, column] = 0
        d[key, D_HEAD] = -1
        d[key, D_FIN] = -1
        d[key, D_RST] = -1
        d[key, D_RST_ACK] = -1
        d[key, D_MAX_ACK] = -1
        d[key, D_OLD_ACK] = -1
        d[key, D_HIGH] = -1


@inline
def _duplicate(d: Any, key: Any, start: Any, stop: Any, captured_stop: Any) -> None:
    """Captured bytes [start, min(stop, captured_stop)) came before, or belong to a gap already declared."""
    stop = min(stop, captured_stop)
    if stop <= start:
        return
    late = np.int64(0)
    for i in range(LATE_RANGES):
        low = max(start, d[key, D_LATE_0 + 2 * i])
        high = min(stop, d[key, D_LATE_0 + 2 * i + 1])
        if high > low:
            late += high - low
    late = min(late, stop - start)
    d[key, D_LATE] += late
    d[key, D_DUPLICATE] += stop - start - late


@inline
def _gap(d: Any, out: Any, v: Any, key: Any, target: Any, time_ns: Any, trigger: Any) -> None:
    """Declare [next, target) lost."""
    _emit(out, v, key, GAP, 0, 0, target - d[key, D_NEXT], time_ns, 0, 0, 0, trigger, trigger)
    at = D_LATE_0 + 2 * (d[key, D_LATE_AT] % LATE_RANGES)
    d[key, at] = d[key, D_NEXT]
    d[key, at + 1] = target
    d[key, D_LATE_AT] += 1
    d[key, D_GAPS] += 1
    d[key, D_GAP_BYTES] += target - d[key, D_NEXT]
    d[key, D_NEXT] = target


@inline
def byte_sum(b: Any, at: Any, count: Any) -> Any:
    """The sum of the 16-bit numbers in network order in b[at:at + count], the last byte filled up with a zero."""
    start = np.uint64(at)
    high = np.int64(0)
    low = np.int64(0)
    for i in range(np.uint64(count >> 1)):
        high += np.int64(b[start + np.uint64(2) * i])
        low += np.int64(b[start + np.uint64(2) * i + np.uint64(1)])
    if count & 1:
        high += np.int64(b[at + count - 1])
    return (high << 8) + low


@inline
def payload_sum(b: Any, words: Any, at: Any, count: Any) -> Any:
    """`byte_sum` modulo 65,535, many times as fast: `words` are the bytes of b as uint16 of a little-endian host. Sums
    of this kind do not mind the byte order until the end (RFC 1071, 2.B)."""
    odd = at & 1
    stop = at + count
    begin = np.uint64((at + odd) >> 1)
    total = np.uint32(0)
    for i in range(np.uint64(max(np.int64(0), (stop >> 1) - ((at + odd) >> 1)))):
        total = np.uint32(total + np.uint32(words[begin + i]))  # at most 32,768 of them: fits
    folded = np.int64(total) % 0xFFFF
    if odd == 0:
        folded = (folded & 0xFF) << 8 | folded >> 8
    if odd == 1 and count > 0:
        folded += np.int64(b[at]) << 8
    if stop & 1 and stop - 1 > at - 1 + odd:
        folded += np.int64(b[stop - 1]) << (8 if odd == 0 else 0)
    return folded % 0xFFFF


@inline
def _halves(number: Any) -> Any:
    """The sum of the four 16-bit parts of a uint64."""
    low = np.int64(number & np.uint64(0xFFFFFFFF))
    high = np.int64(number >> np.uint64(32))
    return (low & 0xFFFF) + (low >> 16) + (high & 0xFFFF) + (high >> 16)


@shared
def header_sum(
    b: Any, tcp_at: Any, payload_at: Any, length: Any, src_hi: Any, src_lo: Any, dst_hi: Any, dst_lo: Any
) -> Any:
    """The part of a segment's TCP checksum (RFC 9293, 3.1) that its headers make, or -1 if none can be told: the
    headers are cut, the packet is longer than the checksum's 16 bits of length, or the checksum was left to the network
    card, which shows as 0 or as the sum of the pseudo-header alone. The checksum is right if this plus the payload's
    `byte_sum` is a multiple of 65,535. (The ::ffff that maps an IPv4 address adds nothing.)"""
    size = payload_at - tcp_at
    if size < 20 or size != (np.int64(b[tcp_at + 12]) >> 4) * 4 or size + length > 0xFFFF:
        return np.int64(-1)
    field = np.int64(b[tcp_at + 16]) << 8 | np.int64(b[tcp_at + 17])
    pseudo = _halves(src_hi) + _halves(src_lo) + _halves(dst_hi) + _halves(dst_lo) + 6
    if field == 0 or (pseudo - field) % 0xFFFF == 0 or (pseudo + size + length - field) % 0xFFFF == 0:
        return np.int64(-1)
    return pseudo + size + length + byte_sum(b, tcp_at, size)


@inline
def _same_packet(recent: Any, d: Any, key: Any, numbers: Any, shape: Any, time_ns: Any, identity: Any) -> Any:
    """Whether this packet is one of the last of its direction, seen again. The TTL may differ."""
    named = identity >> 16 & 0xFFFF
    for row in range(min(d[key, D_PACKETS], RECENT)):
        if recent[key, row, R_NUMBERS] != numbers or recent[key, row, R_SHAPE] != shape:
            continue
        # Halves, because the difference of two hostile times may not fit in 64 bits.
        apart = abs((time_ns >> 1) - (recent[key, row, R_TIME_NS] >> 1)) << 1
        other = recent[key, row, R_IDENTITY]
        if named != 0 or other >> 16 & 0xFFFF != 0:
            if named == other >> 16 & 0xFFFF and apart <= COPY_NS:
                return True
        elif apart <= UNNAMED_COPY_NS and ((identity ^ other) & 0xFFFF == 0 or identity >> 32 != other >> 32):
            return True
    return False


@inline
def _remember(recent: Any, d: Any, key: Any, numbers: Any, shape: Any, time_ns: Any, identity: Any, total: Any) -> None:
    """Write a packet into the ring; before it is counted in D_PACKETS. `total`: its `payload_sum`, or -1."""
    row = d[key, D_PACKETS] & (RECENT - 1)
    recent[key, row, R_NUMBERS] = numbers
    recent[key, row, R_SHAPE] = shape
    recent[key, row, R_TIME_NS] = time_ns
    recent[key, row, R_IDENTITY] = identity
    recent[key, row, R_SUM] = total


@inline
def _differs(recent: Any, d: Any, key: Any, numbers: Any, shape: Any, total: Any) -> Any:
    """Whether the last of the recent packets with the same bytes of the stream had another `payload_sum`."""
    count = d[key, D_PACKETS]
    for back in range(1, min(count, RECENT) + 1):
        row = (count - back) & (RECENT - 1)
        same = (recent[key, row, R_NUMBERS] ^ numbers) & 0xFFFFFFFF == 0
        if same and recent[key, row, R_SHAPE] >> 9 == shape >> 9:
            return total >= 0 and recent[key, row, R_SUM] >= 0 and recent[key, row, R_SUM] != total
    return False


@inline
def _is_right(w: Any, waiting: Any, row: Any) -> Any:
    """Whether the bytes of a waiting segment came with a right checksum."""
    total = w[row, W_SUM]
    if total == RIGHT:
        return True
    return total >= 0 and (total + byte_sum(waiting, w[row, W_AT], w[row, W_CAPTURED])) % 0xFFFF == 0


@inline
def _shorten(w: Any, waiting: Any, row: Any, position: Any) -> None:
    """Take the bytes before `position` from the front of a waiting segment."""
    w[row, W_SUM] = RIGHT if _is_right(w, waiting, row) else -1
    count = position - w[row, W_SEQ]
    captured = min(count, w[row, W_CAPTURED])
    w[row, W_SEQ] = position
    w[row, W_LENGTH] -= count
    w[row, W_AT] += captured
    w[row, W_CAPTURED] -= captured


@inline
def _split(d: Any, w: Any, waiting: Any, v: Any, key: Any, row: Any, position: Any) -> None:
    """Make two of a waiting segment: [its start, position) and the rest, in the row after it."""
    rest = _new_row(w, v)
    for column in range(W_COLUMNS):
        w[rest, column] = w[row, column]
    _shorten(w, waiting, rest, position)
    w[row, W_SUM] = w[rest, W_SUM]
    w[row, W_LENGTH] -= w[rest, W_LENGTH]
    w[row, W_CAPTURED] -= w[rest, W_CAPTURED]
    w[row, W_NEXT] = rest
    d[key, D_COUNT] += 1


@inline
def _new_row(w: Any, v: Any) -> Any:
    """A free row for a waiting segment. Room was made sure of before."""
    row = v[V_FREE]
    if row >= 0:
        v[V_FREE] = w[row, W_NEXT]
    else:
        row = v[V_ROWS]
        v[V_ROWS] = row + 1
    return row


@shared
def _compare(
    d: Any, w: Any, waiting: Any, key: Any, row: Any, begin: Any, stop: Any, source: Any, at: Any, right: Any
) -> None:
    """Bytes [begin, stop) of the stream wait in `row`; here they come again, from source[at] on. Count what differs,
    and take the later copy if its checksum is right (`right`) and that of the first is not."""
    target = w[row, W_AT] + begin - w[row, W_SEQ]
    differ = np.int64(0)
    for i in range(stop - begin):
        if waiting[target + i] != source[at + i]:
            differ += 1
    d[key, D_CONFLICTS] += differ
    if differ > 0 and right and not _is_right(w, waiting, row):
        copy_bytes(waiting, target, source, at, stop - begin)


@shared
def _wait(
    d: Any, w: Any, waiting: Any, v: Any, key: Any, start: Any, stop: Any, captured_stop: Any, source: Any, at: Any,
    ack: Any, time_ns: Any, number: Any, file: Any, record_at: Any, ordinal: Any, skipped: Any, headers: Any,
    doubt: Any,
) -> Any:  # fmt: skip
    """Keep bytes [start, stop) of a packet whose payload starts at source[at] until their turn: the parts not yet
    waiting, in order of sequence number. `skipped` bytes of its payload are before that; `headers` is its `header_sum`;
    `doubt`: its checksum is wrong. Returns how many bytes were new. Invariants: waiting segments of a direction are
    disjoint and sorted; what they acknowledge never falls, because what was sent before them cannot have acknowledged
    more."""
    right = np.int64(-1)  # whether its checksum is right: not asked yet
    new = np.int64(0)
    before = np.int64(-1)
    after = d[key, D_HEAD]
    position = start
    while position < stop:
        while after >= 0 and w[after, W_SEQ] + w[after, W_LENGTH] <= position:
            if 0 <= ack < w[after, W_ACK]:
                w[after, W_ACK] = ack
            before = after
            after = w[after, W_NEXT]
        piece_stop = stop
        if after >= 0 and w[after, W_SEQ] < piece_stop:
            piece_stop = max(position, w[after, W_SEQ])
        if piece_stop > position:
            row = _new_row(w, v)
            captured = max(np.int64(0), min(piece_stop, captured_stop) - position)
            w[row, W_SEQ] = position
            w[row, W_LENGTH] = piece_stop - position
            w[row, W_CAPTURED] = captured
            w[row, W_AT] = v[V_BYTES]
            w[row, W_ACK] = ack if after < 0 or w[after, W_ACK] < 0 else min(ack, w[after, W_ACK])
            w[row, W_TIME_NS] = time_ns
            w[row, W_NUMBER] = number
            w[row, W_FILE] = file
            w[row, W_RECORD_AT] = record_at
            w[row, W_ORDINAL] = ordinal
            w[row, W_DOUBT] = 1 if doubt else 0
            # Only for a packet that is kept whole can the checksum be told later.
            w[row, W_SUM] = headers if skipped == 0 and position == start and captured == stop - start else -1
            origin = at + position - start
            copy_bytes(waiting, v[V_BYTES], source, origin, captured)
            v[V_BYTES] += captured
            v[V_LIVE] += captured
            d[key, D_BYTES] += captured
            d[key, D_COUNT] += 1
            w[row, W_NEXT] = after
            if before >= 0:
                w[before, W_NEXT] = row
            else:
                d[key, D_HEAD] = row
            before = row
            new += piece_stop - position
            position = piece_stop
        if position < stop:  # `after` overlaps: its bytes came first
            overlap = min(stop, w[after, W_SEQ] + w[after, W_LENGTH])
            both = min(overlap, captured_stop, w[after, W_SEQ] + w[after, W_CAPTURED])
            if both > position:
                if right < 0:
                    right = np.int64(0)
                    if headers >= 0 and captured_stop == stop:
                        total = headers + byte_sum(source, at - skipped, stop - start + skipped)
                        right = np.int64(total % 0xFFFF == 0)
                _compare(d, w, waiting, key, after, position, both, source, at + position - start, right == 1)
                if right == 1 and position == w[after, W_SEQ] and both == position + w[after, W_LENGTH]:
                    w[after, W_DOUBT] = 0
            _duplicate(d, key, position, overlap, captured_stop)
            if 0 <= ack < w[after, W_ACK]:
                if overlap < w[after, W_SEQ] + w[after, W_LENGTH]:
                    _split(d, w, waiting, v, key, after, overlap)
                w[after, W_ACK] = ack
            position = overlap
    return new


@shared
def _drain(
    d: Any, w: Any, waiting: Any, out: Any, v: Any, slot: Any, time_ns: Any, trigger: Any, forced: Any
) -> None:  # fmt: skip
    """Hand on all that is in order, alternating between the directions until neither moves. The first waiting segment
    of direction `forced` (-1: none) is handed on whatever it acknowledges, as far as the other direction, if that waits
    for it, acknowledges it."""
    progress = True
    while progress:
        progress = False
        for side in range(2):
            key = 2 * slot + side
            other = 2 * slot + 1 - side
            if d[key, D_SYNCED] == 0:
                continue
            while True:
                row = d[key, D_HEAD]
                if row < 0 or w[row, W_SEQ] > d[key, D_NEXT]:
                    break
                if (
                    key != forced
                    and d[other, D_SYNCED] != 0
                    and d[other, D_PACKETS] > 0
                    and w[row, W_ACK] > d[other, D_NEXT]
                ):
                    break
                start = max(w[row, W_SEQ], d[key, D_NEXT])
                stop = w[row, W_SEQ] + w[row, W_LENGTH]
                if w[row, W_DOUBT] != 0 and key != forced:
                    if d[key, D_MAX_ACK] < stop:
                        break
                    w[row, W_DOUBT] = 0
                    d[key, D_LIES] += 1
                if key == forced:
                    forced = np.int64(-1)
                    answer = d[other, D_HEAD]
                    if answer >= 0 and w[answer, W_SEQ] <= d[other, D_NEXT] and w[answer, W_ACK] > start:
                        stop = min(stop, w[answer, W_ACK])
                captured_stop = min(stop, w[row, W_SEQ] + w[row, W_CAPTURED])
                _duplicate(d, key, w[row, W_SEQ], min(start, stop), captured_stop)
                captured = max(np.int64(0), captured_stop - start)
                if captured > 0:
                    _emit(
                        out, v, key, DATA, 1, w[row, W_AT] + start - w[row, W_SEQ], captured, w[row, W_TIME_NS],
                        w[row, W_NUMBER], w[row, W_FILE], w[row, W_RECORD_AT], w[row, W_ORDINAL], trigger,
                    )  # fmt: skip
                if stop - start > captured:
                    missing = stop - start - captured
                    d[key, D_SNAPLEN] += missing
                    _emit(
                        out, v, key, SNAPLEN, 0, 0, missing, w[row, W_TIME_NS], w[row, W_NUMBER], w[row, W_FILE],
                        w[row, W_RECORD_AT], w[row, W_ORDINAL], trigger,
                    )  # fmt: skip
                d[key, D_NEXT] = max(d[key, D_NEXT], stop)
                progress = True
                if stop < w[row, W_SEQ] + w[row, W_LENGTH]:
                    held = w[row, W_CAPTURED]
                    _shorten(w, waiting, row, stop)
                    d[key, D_BYTES] -= held - w[row, W_CAPTURED]
                    v[V_LIVE] -= held - w[row, W_CAPTURED]
                    continue
                d[key, D_HEAD] = w[row, W_NEXT]
                d[key, D_COUNT] -= 1
                d[key, D_BYTES] -= w[row, W_CAPTURED]
                v[V_LIVE] -= w[row, W_CAPTURED]
                w[row, W_NEXT] = v[V_FREE]
                w[row, W_LENGTH] = 0
                v[V_FREE] = row
            if d[key, D_HEAD] < 0:
                if d[key, D_FIN] >= 0 and d[key, D_NEXT] >= d[key, D_FIN] and d[key, D_DONE] == 0:
                    _emit(out, v, key, FINISH, 0, 0, 0, time_ns, 0, 0, 0, trigger, trigger)
                    d[key, D_NEXT] = max(d[key, D_NEXT], d[key, D_FIN] + 1)
                    d[key, D_DONE] = 1
                    progress = True
                # What was captured before a RST goes first, and what it acknowledges too.
                if (
                    d[key, D_RST] >= 0
                    and d[key, D_NEXT] >= d[key, D_RST]
                    and d[other, D_HEAD] < 0
                    and d[other, D_NEXT] >= d[key, D_RST_ACK]
                ):
                    _emit(out, v, key, RESET, 0, 0, 0, time_ns, 0, 0, 0, trigger, trigger)
                    d[key, D_RST] = -1
                    d[key, D_DONE] = 1
                    progress = True


@inline
def _blocked(d: Any, slot: Any) -> Any:
    """Whether anything of this connection waits."""
    for key in range(2 * slot, 2 * slot + 2):
        if d[key, D_HEAD] >= 0 or d[key, D_RST] >= 0 or (d[key, D_FIN] >= 0 and d[key, D_DONE] == 0):
            return True
    return False


@shared
def _declare(d: Any, w: Any, out: Any, v: Any, slot: Any, time_ns: Any, trigger: Any, everything: Any) -> Any:
    """Turn the first hole of each direction into a gap, as far as its bytes were acknowledged long ago (or, with
    `everything`, up to the next bytes at hand). Returns whether anything moved."""
    moved = False
    for side in range(2):
        key = 2 * slot + side
        other = 2 * slot + 1 - side
        if d[key, D_SYNCED] == 0:
            continue
        target = np.int64(_FAR)
        if d[key, D_HEAD] >= 0:
            target = w[d[key, D_HEAD], W_SEQ]
        else:
            if d[key, D_FIN] >= 0 and d[key, D_DONE] == 0:
                target = min(target, d[key, D_FIN])
            if d[key, D_RST] >= 0:
                target = min(target, d[key, D_RST])
                if d[key, D_NEXT] >= d[key, D_RST] and d[key, D_RST_ACK] >= 0 and d[other, D_HEAD] < 0:
                    d[key, D_RST_ACK] = -1  # it has waited long enough
                    moved = True
        # Where the other side was never seen nobody can acknowledge: do not wait for it.
        unlimited = everything or d[other, D_PACKETS] == 0 or d[key, D_COUNT] >= WAITING_SEGMENTS
        if not unlimited or target == _FAR:
            target = min(target, d[key, D_MAX_ACK] if everything else d[key, D_OLD_ACK])
        if target > d[key, D_NEXT]:
            _gap(d, out, v, key, target, time_ns, trigger)
            moved = True
    return moved


@shared
def _release(c: Any, d: Any, w: Any, slot: Any) -> None:
    """The hold on a connection without SYN is over: each direction starts at the lowest byte seen of it."""
    c[slot, C_HOLD] = 0
    for key in range(2 * slot, 2 * slot + 2):
        if d[key, D_SYNCED] == 0:
            if d[key, D_HEAD] >= 0:
                d[key, D_NEXT] = w[d[key, D_HEAD], W_SEQ]
                d[key, D_SYNCED] = 1
            elif d[key, D_MAX_ACK] >= 0:
                d[key, D_NEXT] = d[key, D_MAX_ACK]
                d[key, D_SYNCED] = 1


@shared
def _stuck(d: Any, w: Any, slot: Any) -> Any:
    """The direction whose next bytes are at hand and wait for bytes of the other that they acknowledge; of two, the one
    whose bytes were captured first; -1: none. Two wait for each other where copies of both were captured late."""
    best = np.int64(-1)
    for key in range(2 * slot, 2 * slot + 2):
        row = d[key, D_HEAD]
        if d[key, D_SYNCED] != 0 and row >= 0 and w[row, W_SEQ] <= d[key, D_NEXT]:
            if best < 0 or w[row, W_ORDINAL] < w[d[best, D_HEAD], W_ORDINAL]:
                best = np.int64(key)
    return best


@shared
def _mutual(d: Any, w: Any, slot: Any) -> Any:
    """Whether both directions' next bytes are at hand and wait for each other."""
    for key in range(2 * slot, 2 * slot + 2):
        row = d[key, D_HEAD]
        if d[key, D_SYNCED] == 0 or row < 0 or w[row, W_SEQ] > d[key, D_NEXT]:
            return False
    return True


@shared
def _flush(d: Any, w: Any, waiting: Any, out: Any, v: Any, slot: Any, time_ns: Any, trigger: Any) -> None:
    """Hand on all that waits, still in causal order, with gaps for what did not come."""
    forced = np.int64(-1)
    while True:
        _drain(d, w, waiting, out, v, slot, time_ns, trigger, forced)
        forced = np.int64(-1)
        if not _declare(d, w, out, v, slot, time_ns, trigger, True):
            forced = _stuck(d, w, slot)
            if forced < 0:
                break


@inline
def _finish(c: Any, d: Any, w: Any, waiting: Any, out: Any, v: Any, slot: Any, time_ns: Any, trigger: Any) -> None:
    """The connection is over: hand on what waits, with gaps for what never came, then say END."""
    if c[slot, C_STARTED] == 0:
        return
    if c[slot, C_HOLD] > 0:
        _release(c, d, w, slot)
    _flush(d, w, waiting, out, v, slot, time_ns, trigger)
    _emit(out, v, 2 * slot, END, 0, 0, 0, time_ns, 0, 0, 0, trigger, trigger)
    c[slot, C_STARTED] = 0


@inline
def _settle(c: Any, d: Any, w: Any, waiting: Any, out: Any, v: Any, slot: Any, time_ns: Any, trigger: Any) -> None:
    """After a packet that was not simply next: hand on what can be, and mind how long the rest has waited."""
    _drain(d, w, waiting, out, v, slot, time_ns, trigger, np.int64(-1))
    if not _blocked(d, slot):
        c[slot, C_BLOCKED] = 0
        return
    key = 2 * slot
    if c[slot, C_BLOCKED] == 0:
        c[slot, C_BLOCKED] = 1
        c[slot, C_BLOCKED_NS] = time_ns
        d[key, D_OLD_ACK] = d[key, D_MAX_ACK]
        d[key + 1, D_OLD_ACK] = d[key + 1, D_MAX_ACK]
        return
    c[slot, C_BLOCKED] += 1
    full = d[key, D_COUNT] >= WAITING_SEGMENTS or d[key + 1, D_COUNT] >= WAITING_SEGMENTS
    if c[slot, C_BLOCKED] > REORDER_PACKETS or time_ns - c[slot, C_BLOCKED_NS] > REORDER_NS or full:
        moved = False
        while _declare(d, w, out, v, slot, time_ns, trigger, False):
            _drain(d, w, waiting, out, v, slot, time_ns, trigger, np.int64(-1))
            moved = True
        for side in range(2):
            row = d[key + side, D_HEAD]
            if row >= 0 and w[row, W_DOUBT] != 0 and w[row, W_SEQ] <= d[key + side, D_NEXT]:
                w[row, W_DOUBT] = 0  # no better copy came
                _drain(d, w, waiting, out, v, slot, time_ns, trigger, np.int64(-1))
                moved = True
        if not moved and _mutual(d, w, slot):
            _drain(d, w, waiting, out, v, slot, time_ns, trigger, _stuck(d, w, slot))
        c[slot, C_BLOCKED] = 0
        if _blocked(d, slot):
            c[slot, C_BLOCKED] = 1
            c[slot, C_BLOCKED_NS] = time_ns
            d[key, D_OLD_ACK] = d[key, D_MAX_ACK]
            d[key + 1, D_OLD_ACK] = d[key + 1, D_MAX_ACK]


@kernel
def advance(
    begin: Any, ends_at: Any, shard: Any, shards: Any, base: Any, buffer: Any, time_ns: Any, number: Any, file: Any,
    record_at: Any, seq: Any, ack: Any, window: Any, flags: Any, payload_at: Any, captured: Any, length: Any,
    slots: Any, sides: Any, ends: Any, c: Any, d: Any, w: Any, waiting: Any, v: Any, out: Any, limit: Any,
    interface: Any, identity: Any, tcp_at: Any, src_hi: Any, src_lo: Any, dst_hi: Any, dst_lo: Any, recent: Any,
    words: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Packets [begin, n) of the connections whose slot is `shard` modulo `shards`. `base` is the ordinal of packet 0.
    Returns (status, next packet, next end); on a NEED_ status the caller grows that table and calls again."""
    n = len(time_ns)
    i = begin
    e = ends_at
    while i <= n:
        while e < len(ends) and (ends[e, 0] <= i):
            slot = ends[e, 1]
            if slot % shards == shard:
                if v[V_OUT] + 4 * (d[2 * slot, D_COUNT] + d[2 * slot + 1, D_COUNT]) + 32 > len(out):
                    return NEED_SEGMENTS, i, e
                moment = time_ns[i] if i < n else c[slot, C_LAST_NS]
                _finish(c, d, w, waiting, out, v, slot, moment, base + i)
            e += 1
        if i >= n:
            break
        slot = np.int64(slots[i])
        if slot < 0 or slot % shards != shard:
            i += 1
            continue
        side = np.int64(sides[i])
        key = 2 * slot + side
        other = 2 * slot + 1 - side
        flag = np.int64(flags[i])
        trigger = base + i
        if c[slot, C_STARTED] == 0:
            _start(c, d, slot, time_ns[i])
            if flag & SYN == 0:
                c[slot, C_HOLD] = HOLD_PACKETS
        if v[V_OUT] + 8 > len(out):
            return NEED_SEGMENTS, i, e
        plain = flag & (SYN | FIN | RST) == 0
        numbers = seq[i] | ack[i] << 32
        shape = length[i] << 9 | flag
        mark = identity[i] | np.int64(interface[i]) << 32
        total = np.int64(-1)
        headers = np.int64(-1)
        if length[i] > 0 and captured[i] == length[i] and length[i] <= 0xFFFF and d[key, D_LIES] < LIES:
            total = payload_sum(buffer, words, payload_at[i], length[i])
            headers = header_sum(
                buffer, tcp_at[i], payload_at[i], length[i], src_hi[i], src_lo[i], dst_hi[i], dst_lo[i]
            )
        # Nobody can acknowledge where the other side was not captured.
        doubt = headers >= 0 and (headers + total) % 0xFFFF != 0 and d[other, D_PACKETS] > 0
        if plain and not doubt and d[key, D_SYNCED] != 0 and c[slot, C_BLOCKED] == 0 and c[slot, C_HOLD] == 0:
            here = _unwrap(d[key, D_NEXT], seq[i])
            acked = _unwrap(d[other, D_NEXT], ack[i])
            simple = here == d[key, D_NEXT] and d[other, D_SYNCED] != 0 and flag & ACK != 0
            # What brings neither a byte nor a new acknowledgement may be a copy.
            if simple and acked <= d[other, D_NEXT] and (length[i] > 0 or acked > d[other, D_MAX_ACK]):
                # The ordinary case: next in its stream, and nothing of the other side missing.
                _remember(recent, d, key, numbers, shape, time_ns[i], mark, total)
                d[key, D_PACKETS] += 1
                c[slot, C_LAST_NS] = time_ns[i]
                if acked > d[other, D_MAX_ACK]:
                    d[other, D_MAX_ACK] = acked
                if c[slot, C_RTT_NS] < 0 and c[slot, C_ANSWERED] != 0 and side == c[slot, C_SYN_SIDE]:
                    c[slot, C_RTT_NS] = max(np.int64(0), time_ns[i] - c[slot, C_SYN_NS])
                if window[i] == 0:
                    d[key, D_ZERO_WINDOWS] += 1
                if length[i] > 0:
                    d[key, D_CAPTURED] += captured[i]
                    stop = here + length[i]
                    d[key, D_NEXT] = stop
                    d[key, D_HIGH] = stop
                    d[key, D_HIGH_NS] = time_ns[i]
                    if captured[i] > 0:
                        _emit(
                            out, v, key, DATA, 0, payload_at[i], captured[i], time_ns[i], number[i], file[i],
                            record_at[i], trigger, trigger,
                        )  # fmt: skip
                    if captured[i] < length[i]:
                        d[key, D_SNAPLEN] += length[i] - captured[i]
                        _emit(
                            out, v, key, SNAPLEN, 0, 0, length[i] - captured[i], time_ns[i], number[i], file[i],
                            record_at[i], trigger, trigger,
                        )  # fmt: skip
                i += 1
                continue

        # Everything else. First make sure of room, so that the packet can be started over.
        counts = d[key, D_COUNT] + d[other, D_COUNT]
        if v[V_OUT] + 8 * counts + 64 > len(out):
            return NEED_SEGMENTS, i, e
        if v[V_ROWS] + d[key, D_COUNT] + 3 > len(w):
            return NEED_WAITING, i, e
        if v[V_BYTES] + captured[i] > len(waiting):
            return NEED_BYTES, i, e
        copy = _same_packet(recent, d, key, numbers, shape, time_ns[i], mark)
        if copy:
            d[key, D_DUPLICATE_PACKETS] += 1
        differs = length[i] > 0 and _differs(recent, d, key, numbers, shape, total)
        _remember(recent, d, key, numbers, shape, time_ns[i], mark, total)
        d[key, D_PACKETS] += 1
        d[key, D_CAPTURED] += captured[i]
        c[slot, C_LAST_NS] = time_ns[i]
        if window[i] == 0 and flag & RST == 0 and not copy:
            d[key, D_ZERO_WINDOWS] += 1
        if d[key, D_REF] == 0:
            d[key, D_REF] = 1
            d[key, D_NEXT] = seq[i] + (np.int64(1) << 40)
        here = _unwrap(d[key, D_NEXT], seq[i])
        acked = np.int64(-1)
        if flag & ACK != 0:
            if d[other, D_REF] == 0:
                d[other, D_REF] = 1
                d[other, D_NEXT] = ack[i] + (np.int64(1) << 40)
            acked = _unwrap(d[other, D_NEXT], ack[i])
            if flag & RST == 0:
                d[other, D_MAX_ACK] = max(d[other, D_MAX_ACK], acked)
        if flag & SYN != 0:
            # Only before anything is handed on: framing looks here when the whole window has been worked off.
            if c[slot, C_SYN_SIDE] < 0 and (c[slot, C_HOLD] > 0 or d[key, D_PACKETS] + d[other, D_PACKETS] == 1):
                c[slot, C_SYN_SIDE] = side if flag & ACK == 0 else 1 - side
            if flag & ACK == 0:
                if not copy:
                    c[slot, C_SYN_NS] = time_ns[i]
            elif c[slot, C_SYN_NS] != 0:
                c[slot, C_ANSWERED] = 1
            here += 1
            if d[key, D_SYNCED] == 0:
                d[key, D_SYNCED] = 1
                d[key, D_NEXT] = here
            if flag & ACK != 0 and d[other, D_SYNCED] == 0:
                d[other, D_SYNCED] = 1
                d[other, D_NEXT] = acked
        elif c[slot, C_RTT_NS] < 0 and c[slot, C_ANSWERED] != 0 and side == c[slot, C_SYN_SIDE] and flag & ACK != 0:
            c[slot, C_RTT_NS] = max(np.int64(0), time_ns[i] - c[slot, C_SYN_NS])
        if c[slot, C_HOLD] > 0 and d[key, D_SYNCED] != 0 and d[other, D_SYNCED] != 0:
            c[slot, C_HOLD] = 0
        if c[slot, C_HOLD] == 0:
            if d[key, D_SYNCED] == 0:
                d[key, D_SYNCED] = 1
                d[key, D_NEXT] = here
            several = d[key, D_PACKETS] - d[key, D_DUPLICATE_PACKETS] > 1
            if d[other, D_SYNCED] == 0 and flag & ACK != 0 and several:
                d[other, D_SYNCED] = 1
                d[other, D_NEXT] = acked
        stop = here + length[i]
        new = np.int64(0)
        if length[i] > 0:
            start = here
            captured_stop = here + captured[i]
            keep_alive = length[i] == 1 and d[key, D_SYNCED] != 0 and here == d[key, D_NEXT] - 1
            if d[key, D_SYNCED] != 0 and start < d[key, D_NEXT]:
                start = min(stop, d[key, D_NEXT])
                _duplicate(d, key, here, start, captured_stop)
                if differs and start == stop:
                    d[key, D_CONFLICTS] += 1
            if start < stop:
                new = _wait(
                    d, w, waiting, v, key, start, stop, captured_stop, buffer, payload_at[i] + start - here, acked,
                    time_ns[i], number[i], file[i], record_at[i], trigger, start - here, headers, doubt,
                )  # fmt: skip
            if copy:
                pass
            elif new == 0:
                if not keep_alive:
                    d[key, D_RETRANSMISSIONS] += 1
            elif d[key, D_HIGH] >= 0 and start < d[key, D_HIGH]:
                # It fills a hole: late by reordering if close behind, else sent again (Wireshark's rule).
                if time_ns[i] - d[key, D_HIGH_NS] <= max(np.int64(3_000_000), c[slot, C_RTT_NS]):
                    d[key, D_OUT_OF_ORDER] += 1
                else:
                    d[key, D_RETRANSMISSIONS] += 1
            if stop > d[key, D_HIGH]:
                d[key, D_HIGH] = stop
                d[key, D_HIGH_NS] = time_ns[i]
        if flag & FIN != 0 and d[key, D_FIN] < 0:
            d[key, D_FIN] = stop
        if flag & RST != 0 and d[key, D_DONE] == 0 and d[key, D_RST] < 0:
            d[key, D_RST] = here
            d[key, D_RST_ACK] = acked if d[other, D_SYNCED] != 0 and acked - d[other, D_NEXT] <= JUMP else -1
            stale = d[key, D_HEAD] < 0 and here < d[key, D_NEXT]
            if d[key, D_SYNCED] == 0 or here - d[key, D_NEXT] > JUMP or stale:
                d[key, D_RST] = d[key, D_NEXT]
        if copy and new == 0:
            i += 1  # it says nothing, not even how long others have waited
            continue
        if c[slot, C_HOLD] > 0:
            c[slot, C_HOLD] -= 1
            if c[slot, C_HOLD] == 0 or flag & (FIN | RST) != 0:
                _release(c, d, w, slot)
        if c[slot, C_HOLD] == 0:
            _settle(c, d, w, waiting, out, v, slot, time_ns[i], trigger)
            if v[V_LIVE] > limit:
                _flush(d, w, waiting, out, v, slot, time_ns[i], trigger)
                c[slot, C_BLOCKED] = 0
        i += 1
    return OK, n, e


@kernel
def compact(w: Any, rows: Any, waiting: Any, into: Any) -> Any:
    """Copy the bytes that still wait to the front of `into`; returns how many there are."""
    used = np.int64(0)
    for row in range(rows):
        if w[row, W_LENGTH] > 0:
            at = w[row, W_AT]
            copy_bytes(into, used, waiting, at, w[row, W_CAPTURED])
            w[row, W_AT] = used
            used += w[row, W_CAPTURED]
    return used


@dataclass(frozen=True, slots=True)
class Segments:
    """What became certain in one window for one shard: `rows` int64[n, SEG_COLUMNS], in order of `SEG_TRIGGER`.
    `SEG_AT` points into `sources[SEG_SOURCE]` (the window's buffer, the waiting bytes), valid until the next call."""

    rows: np.ndarray
    sources: tuple[np.ndarray, np.ndarray]


@dataclass(slots=True)
class Streams:
    """TCP state of the connections of one shard. `c` and `d` are the tables of connections and directions: a later
    stage reads counters from them when a connection ends."""

    shard: int = 0
    shards: int = 1
    waiting_bytes: int = WAITING_BYTES
    c: np.ndarray = field(default_factory=lambda: np.zeros((1 << 8, C_COLUMNS), np.int64))
    d: np.ndarray = field(default_factory=lambda: np.zeros((1 << 9, D_COLUMNS), np.int64))
    _recent: np.ndarray = field(default_factory=lambda: np.zeros((1 << 9, RECENT, R_COLUMNS), np.int64))
    _w: np.ndarray = field(default_factory=lambda: np.zeros((1 << 10, W_COLUMNS), np.int64))
    _waiting: np.ndarray = field(default_factory=lambda: np.zeros(1 << 20, np.uint8))
    _v: np.ndarray = field(default_factory=lambda: np.array([0, -1, 0, 0, 0], np.int64))
    _out: np.ndarray = field(default_factory=lambda: np.zeros((1 << 14, SEG_COLUMNS), np.int64))

    def advance(self, packets: Packets, assigned: Assigned, base: int, slots: int) -> Segments:
        """Take one batch; `base` is the ordinal of its first packet, `slots` how many slots there are."""
        while len(self.c) < slots:
            self.c, self.d, self._recent = _doubled(self.c), _doubled(self.d), _doubled(self._recent)
        self._compact()
        self._v[V_OUT] = 0
        words = packets.buffer[: len(packets.buffer) & ~1].view(np.uint16)
        at = ends = 0
        while True:
            status, at, ends = advance(
                at, ends, self.shard, self.shards, base, packets.buffer, packets.time_ns, packets.number,
                packets.file, packets.record_at, packets.seq, packets.ack, packets.window, packets.flags,
                packets.payload_at, packets.payload_captured, packets.payload_length, assigned.slot, assigned.side,
                assigned.ends, self.c, self.d, self._w, self._waiting, self._v, self._out, self.waiting_bytes,
                packets.interface, packets.identity, packets.tcp_at, packets.src_hi, packets.src_lo, packets.dst_hi,
                packets.dst_lo, self._recent, words,
            )  # fmt: skip
            if status == OK:
                break
            if status == NEED_SEGMENTS:
                self._out = _doubled(self._out)
            elif status == NEED_WAITING:
                self._w = _doubled(self._w)
            else:
                self._waiting = _doubled(self._waiting)
        return Segments(self._out[: self._v[V_OUT]], (packets.buffer, self._waiting))

    @property
    def waiting(self) -> int:
        """Bytes that wait for their turn."""
        return int(self._v[V_LIVE])

    def waiting_ordinals(self) -> np.ndarray:
        """Ordinals of the packets of which something waits."""
        rows = self._w[: int(self._v[V_ROWS])]
        ordinals: np.ndarray = rows[rows[:, W_LENGTH] > 0, W_ORDINAL]
        return ordinals

    def _compact(self) -> None:
        """Bytes handed on in the last window are not needed any more."""
        live = int(self._v[V_LIVE])
        if live == 0:
            self._v[V_BYTES] = 0
            if len(self._waiting) > 1 << 24:
                self._waiting = np.zeros(1 << 20, np.uint8)
        elif int(self._v[V_BYTES]) > 2 * live + (1 << 20):
            into = np.zeros(max(1 << 20, 2 * live), np.uint8)
            self._v[V_BYTES] = compact(self._w, self._v[V_ROWS], self._waiting, into)
            self._waiting = into
