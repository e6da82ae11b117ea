"""Order the packets of known connections into payload, with gaps marked.

In: a `Packets` batch and its `Assigned` connections. Out: `Segments`, one row for each run of payload bytes that is
next in its stream, and one for each gap, FIN, RST and end, in the order in which they became certain.

Rules
- The first captured copy of a byte counts; later copies are duplicates. While bytes wait for their turn, a copy of them
  that differs and whose TCP checksum is right replaces one whose checksum is not. So bytes with a wrong checksum wait
  until their receiver acknowledges them: a receiver drops what was damaged, and the right copy follows. Bytes handed on
  are not kept; of a copy of them only the sum tells whether it differs.
- A packet that the capture holds twice (two interfaces, both directions of a mirror) is counted as such, and is no
  retransmission.
- A packet of another leg of the connection (`captures.legs`) is a copy, whichever comes first: its bytes wait for those
  of the connection's own leg, and are handed on where these never come.
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

from typing import Final, NamedTuple, TypeVar

import numpy as np

from kwire.captures import flows
from kwire.captures import stream_tables as t
from kwire.captures.acknowledgements import (
    BEFORE_NS,
    DELAYED_NS,
    LEAST_OPTIONS,
    held_beyond,
    repeat,
    take_blocks,
    unwrap,
    was_released,
)
from kwire.captures.copies import differs, duplicate, remember, same_packet
from kwire.captures.delivery import blocked, declare, drain, emit, flush, mutual, nowhere, release, stuck
from kwire.captures.flow_tables import (
    SYN_COPIES,
    SYN_COPY,
    WOKEN_COPY,
    WOKEN_LATER,
    WOKEN_NEARER,
    WOKEN_NO_WINDOW,
    WOKEN_SIDE,
)
from kwire.captures.flows import Assigned
from kwire.captures.kernels import MACHINE_CODE, Flag, Int, Table, grown, inline, kernel, prefetch_all, shared
from kwire.captures.out_of_order import WAITING_BYTES, WAITING_SEGMENTS, compact, displace, wait
from kwire.captures.packets import Packets
from kwire.captures.segment_sums import SUM_UNKNOWN, header_sum, payload_sum, sums_of
from kwire.captures.stream_tables import Origin, StreamTables
from kwire.captures.windows import Content, PacketColumns

REORDER_PACKETS = 256
"""Packets of one connection after which acknowledged bytes count as lost. Real reordering (offload queues, several
capture interfaces, multipath) stays within tens of packets."""

REORDER_NS = 3_000_000_000
"""The same in capture time, for slow connections: longer than TCP's first two retransmission timeouts."""

HOLD_PACKETS = 8
"""Packets of a connection without SYN that are looked at before its stream is said to start at the lowest of them."""

LIES = 4
"""Segments with a wrong checksum that the receiver acknowledged as they were: then the checksums of this direction say
nothing (a network card joined segments and left the first one's checksum), and are not looked at any more."""

AHEAD = 8
"""Packets between the one at hand and the one whose payload is fetched from memory meanwhile: a window is larger than
a core's own cache, and every second payload is another shard's, so that the processor does not see which come next."""

JUMP = 1 << 24
"""A RST whose sequence number is further off than this is taken to mean "now"."""

OK, NEED_SEGMENTS, NEED_WAITING, NEED_BYTES, NEED_SLOTS = 0, 1, 2, 3, 4

FULL = {
    NEED_SEGMENTS: ("out",),
    NEED_WAITING: ("waiting",),
    NEED_SLOTS: ("connections", "directions", "recent"),
}
"""The tables that a status says are full; what `NEED_BYTES` says, `Streams` makes room for."""

_LEAST_HELD: Final = 1 << 20
_USUAL_HELD: Final = 1 << 24
"""Bytes of memory for what waits: at first, and what is kept however little waits."""


@inline
def _start(tables: StreamTables, slot: Int, time_ns: Int) -> None:
    """A new connection in this slot."""
    c, d = tables.connections, tables.directions
    for column in range(t.C_COLUMNS):
        c[slot, column] = 0
    c[slot, t.C_STARTED] = 1
    c[slot, t.C_FIRST_NS] = time_ns
    c[slot, t.C_LAST_NS] = time_ns
    c[slot, t.C_SYN_SIDE] = -1
    c[slot, t.C_RTT_NS] = -1
    c[slot, t.C_PATH_DELAY_NS] = -1
    for side in range(2):
        key = 2 * slot + side
        for column in range(t.D_COLUMNS):
            d[key, column] = 0
        d[key, t.D_HEAD] = -1
        d[key, t.D_FIN] = -1
        d[key, t.D_RST] = -1
        d[key, t.D_RST_ACK] = -1
        d[key, t.D_MAX_ACK] = -1
        d[key, t.D_OLD_ACK] = -1
        d[key, t.D_HIGH] = -1
        d[key, t.D_AGAIN_AT] = -1


@inline
def _pass(c: Table, slot: Int, time_ns: Int) -> None:
    """Note the time of a packet, and the silence before it if that was the longest."""
    silence = time_ns - c[slot, t.C_LAST_NS]
    if silence > c[slot, t.C_SILENCE_NS]:
        c[slot, t.C_SILENCE_NS] = silence
        c[slot, t.C_SILENCE_END_NS] = time_ns
    c[slot, t.C_LAST_NS] = time_ns


@inline
def _close(c: Table, d: Table, slot: Int, side: Int, time_ns: Int) -> None:
    """Note who closed first, and whose payload came last before that."""
    if c[slot, t.C_CLOSER] != 0:
        return
    c[slot, t.C_CLOSER] = 1 + side
    for key in range(2 * slot, 2 * slot + 2):
        later = c[slot, t.C_CLOSED_AFTER] == 0 or d[key, t.D_HIGH_NS] >= d[2 * slot, t.D_HIGH_NS]
        if d[key, t.D_HIGH] >= 0 and later:
            c[slot, t.C_CLOSED_AFTER] = 1 + (key & 1)
            c[slot, t.C_CLOSED_AFTER_NS] = time_ns - d[key, t.D_HIGH_NS]


@inline
def _open(tables: StreamTables, slot: Int, syn: Table) -> None:
    """A new connection whose SYN came before; `syn` is a row of `Assigned.woken`. As `advance` does for that packet."""
    c, d = tables.connections, tables.directions
    side = np.int64(syn[flows.WOKEN_SHAPE] & WOKEN_SIDE != 0)
    key = 2 * slot + side
    _start(tables, slot, syn[flows.WOKEN_NS])
    remember(
        tables.recent,
        d,
        key,
        syn[flows.WOKEN_NUMBERS],
        syn[flows.WOKEN_SHAPE] & (WOKEN_SIDE - 1),
        syn[flows.WOKEN_NS],
        syn[flows.WOKEN_MARK],
        np.int64(-1),
    )
    c[slot, t.C_SYN_SIDE] = side
    c[slot, t.C_SYN_NS] = syn[flows.WOKEN_NS]
    d[key, t.D_DUPLICATE_PACKETS] = (syn[flows.WOKEN_SHAPE] & SYN_COPIES) // SYN_COPY
    d[key, t.D_PACKETS] = 1 + d[key, t.D_DUPLICATE_PACKETS]
    d[key, t.D_ZERO_WINDOWS] = np.int64(syn[flows.WOKEN_SHAPE] & WOKEN_NO_WINDOW != 0)
    d[key, t.D_REF] = 1
    d[key, t.D_SYNCED] = 1
    d[key, t.D_NEXT] = (syn[flows.WOKEN_NUMBERS] & 0xFFFFFFFF) + (np.int64(1) << 40) + 1


@inline
def _take_syn(tables: StreamTables, slot: Int, syn: Table) -> None:
    """The SYN of another leg of a connection that has begun; `syn` is a row of `Assigned.woken`."""
    c, d = tables.connections, tables.directions
    side = np.int64(syn[flows.WOKEN_SHAPE] & WOKEN_SIDE != 0)
    key = 2 * slot + side
    copies = (syn[flows.WOKEN_SHAPE] & SYN_COPIES) // SYN_COPY
    d[key, t.D_PACKETS] += copies
    d[key, t.D_DUPLICATE_PACKETS] += copies
    if syn[flows.WOKEN_SHAPE] & WOKEN_COPY != 0:
        d[key, t.D_PACKETS] += 1
        d[key, t.D_DUPLICATE_PACKETS] += 1
        return
    if syn[flows.WOKEN_SHAPE] & WOKEN_NEARER != 0:
        for part in range(2 * slot, 2 * slot + 2):
            d[part, t.D_DUPLICATE_PACKETS] = d[part, t.D_PACKETS]
        c[slot, t.C_ANSWERED] = 0
        c[slot, t.C_RTT_NS] = -1
        c[slot, t.C_PATH_DELAY_NS] = -1
    d[key, t.D_PACKETS] += 1
    c[slot, t.C_SYN_SIDE] = side
    c[slot, t.C_SYN_NS] = syn[flows.WOKEN_NS]
    c[slot, t.C_FIRST_NS] = min(c[slot, t.C_FIRST_NS], syn[flows.WOKEN_NS])
    if d[key, t.D_SYNCED] == 0 and d[key, t.D_CAPTURED] == 0:
        d[key, t.D_REF] = 1
        d[key, t.D_SYNCED] = 1
        d[key, t.D_NEXT] = (syn[flows.WOKEN_NUMBERS] & 0xFFFFFFFF) + (np.int64(1) << 40) + 1


@inline
def _finish(tables: StreamTables, slot: Int, time_ns: Int, completed_by: Int) -> None:
    """The connection is over: hand on what waits, with gaps for what never came, then say END."""
    c = tables.connections
    if c[slot, t.C_STARTED] == 0:
        return
    if c[slot, t.C_HOLD] > 0:
        release(tables, slot)
    flush(tables, slot, time_ns, completed_by)
    emit(tables, 2 * slot, t.END, 0, 0, 0, nowhere(time_ns, completed_by), completed_by)
    c[slot, t.C_STARTED] = 0


@inline
def _settle(tables: StreamTables, slot: Int, time_ns: Int, completed_by: Int) -> None:
    """After a packet that was not simply next: hand on what can be, and mind how long the rest has waited."""
    c, d, w = tables.connections, tables.directions, tables.waiting
    drain(tables, slot, time_ns, completed_by, np.int64(-1))
    if not blocked(d, slot):
        c[slot, t.C_BLOCKED] = 0
        return
    key = 2 * slot
    if c[slot, t.C_BLOCKED] == 0:
        c[slot, t.C_BLOCKED] = 1
        c[slot, t.C_BLOCKED_NS] = time_ns
        d[key, t.D_OLD_ACK] = d[key, t.D_MAX_ACK]
        d[key + 1, t.D_OLD_ACK] = d[key + 1, t.D_MAX_ACK]
        return
    c[slot, t.C_BLOCKED] += 1
    full = d[key, t.D_COUNT] >= WAITING_SEGMENTS or d[key + 1, t.D_COUNT] >= WAITING_SEGMENTS
    if c[slot, t.C_BLOCKED] > REORDER_PACKETS or time_ns - c[slot, t.C_BLOCKED_NS] > REORDER_NS or full:
        moved = False
        while declare(tables, slot, time_ns, completed_by, False):
            drain(tables, slot, time_ns, completed_by, np.int64(-1))
            moved = True
        for side in range(2):
            row = d[key + side, t.D_HEAD]
            if row >= 0 and w[row, t.W_DOUBT] != 0 and w[row, t.W_SEQ] <= d[key + side, t.D_NEXT]:
                w[row, t.W_DOUBT] = 0  # no better copy came
                drain(tables, slot, time_ns, completed_by, np.int64(-1))
                moved = True
        if not moved and mutual(d, w, slot):
            drain(tables, slot, time_ns, completed_by, stuck(d, w, slot))
        c[slot, t.C_BLOCKED] = 0
        if blocked(d, slot):
            c[slot, t.C_BLOCKED] = 1
            c[slot, t.C_BLOCKED_NS] = time_ns
            d[key, t.D_OLD_ACK] = d[key, t.D_MAX_ACK]
            d[key + 1, t.D_OLD_ACK] = d[key + 1, t.D_MAX_ACK]


@shared
def _settle_within(tables: StreamTables, slot: Int, time_ns: Int, completed_by: Int, limit: Int) -> None:
    """`_settle`, and hand on all where more waits than the limit."""
    _settle(tables, slot, time_ns, completed_by)
    if tables.counters[t.V_LIVE] > limit:
        flush(tables, slot, time_ns, completed_by)
        tables.connections[slot, t.C_BLOCKED] = 0


@inline
def _origin(packets: PacketColumns, i: Int, ordinal: Int) -> Origin:
    """Of the bytes of packet i."""
    return Origin(
        packets.time_ns[i], packets.number[i], np.int64(packets.file[i]), packets.record_at[i], np.int64(ordinal)
    )


@inline
def _is_of_shard(slot: Int, shard: Int, shards: Int) -> Flag:
    """Whether a connection is this shard's. To divide takes as long as all else that is done for a packet of others."""
    if slot < 0:
        return False
    if shards & (shards - 1) == 0:
        return slot & (shards - 1) == shard
    return slot % shards == shard


@inline
def _own(slot: Int, shards: Int, bits: Int) -> Int:
    """The row of a connection in this shard's tables. `bits`: how many `shards` takes away, -1: it is no power of 2."""
    return slot >> bits if bits >= 0 else slot // shards


@kernel
def advance(
    begin: Int,
    ends_at: Int,
    shard: Int,
    shards: Int,
    bits: Int,
    base: Int,
    content: Content,
    packets: PacketColumns,
    assigned: Assigned,
    tables: StreamTables,
    limit: Int,
) -> tuple[Int, Int, Int]:
    """Packets [begin, n) of the connections whose slot is `shard` modulo `shards`. `base` is the ordinal of packet 0;
    where sums were made of bytes before, nobody looks at these here.
    Returns (status, next packet, next end); on a NEED_ status the caller grows that table and calls again."""
    c, d, w, v = tables.connections, tables.directions, tables.waiting, tables.counters
    time_ns, seq, ack, window, flags = packets.time_ns, packets.seq, packets.ack, packets.window, packets.flags
    payload_at, captured, length = packets.payload_at, packets.payload_captured, packets.payload_length
    slots, sides, ends, woken = assigned.slot, assigned.side, assigned.ends, assigned.woken
    buffer, words, sums = content.buffer, content.words, content.sums
    room = len(tables.out)
    n = len(time_ns)
    summed = len(sums)
    i = begin
    e = ends_at
    woke = np.int64(0)
    while i <= n:
        while e < len(ends) and (ends[e, 0] <= i):
            slot = ends[e, 1]
            if _is_of_shard(slot, shard, shards):
                slot = _own(slot, shards, bits)
                if v[t.V_OUT] + 4 * (d[2 * slot, t.D_COUNT] + d[2 * slot + 1, t.D_COUNT]) + 32 > room:
                    return NEED_SEGMENTS, i, e
                moment = time_ns[i] if i < n else c[slot, t.C_LAST_NS]
                _finish(tables, slot, moment, base + i)
            e += 1
        if i >= n:
            break
        if MACHINE_CODE and summed == 0 and i + AHEAD < n and _is_of_shard(np.int64(slots[i + AHEAD]), shard, shards):
            prefetch_all(buffer, payload_at[i + AHEAD], captured[i + AHEAD])
        slot = np.int64(slots[i])
        if not _is_of_shard(slot, shard, shards):
            i += 1
            continue
        slot = _own(slot, shards, bits)
        side = np.int64(sides[i]) & 1
        leg = sides[i] > 1
        key = 2 * slot + side
        other = 2 * slot + 1 - side
        flag = np.int64(flags[i])
        completed_by = base + i
        if c[slot, t.C_STARTED] == 0:
            while woke < len(woken) and woken[woke, flows.WOKEN_INDEX] < i:
                woke += 1
            if woke < len(woken) and woken[woke, flows.WOKEN_INDEX] == i:
                _open(tables, slot, woken[woke])
            else:
                _start(tables, slot, time_ns[i])
                if flag & flows.SYN == 0:
                    c[slot, t.C_HOLD] = HOLD_PACKETS
        if v[t.V_OUT] + 8 > room:
            return NEED_SEGMENTS, i, e
        plain = flag & (flows.SYN | flows.FIN | flows.RST) == 0 and not leg
        numbers = seq[i] | ack[i] << 32
        shape = length[i] << 9 | flag
        mark = packets.identity[i] | np.int64(packets.interface[i]) << 32
        total = np.int64(-1)
        headers = np.int64(-1)
        if length[i] > 0 and captured[i] == length[i] and length[i] <= 0xFFFF and d[key, t.D_LIES] < LIES:
            summed_up = np.int64(sums[i]) if i < summed else np.int64(SUM_UNKNOWN)
            if summed_up != SUM_UNKNOWN:
                total, headers = sums_of(summed_up)
            else:
                total = payload_sum(buffer, words, payload_at[i], length[i])
                headers = header_sum(
                    buffer,
                    packets.tcp_at[i],
                    payload_at[i],
                    length[i],
                    packets.src_hi[i],
                    packets.src_lo[i],
                    packets.dst_hi[i],
                    packets.dst_lo[i],
                )
        # Nobody can acknowledge where the other side was not captured.
        doubt = headers >= 0 and (headers + total) % 0xFFFF != 0 and d[other, t.D_PACKETS] > 0
        if plain and not doubt and d[key, t.D_SYNCED] != 0 and c[slot, t.C_BLOCKED] == 0 and c[slot, t.C_HOLD] == 0:
            here = unwrap(d[key, t.D_NEXT], seq[i])
            acked = unwrap(d[other, t.D_NEXT], ack[i])
            simple = here == d[key, t.D_NEXT] and d[other, t.D_SYNCED] != 0 and flag & flows.ACK != 0
            # What brings neither a byte nor a new acknowledgement may be a copy.
            if simple and acked <= d[other, t.D_NEXT] and (length[i] > 0 or acked > d[other, t.D_MAX_ACK]):
                # The ordinary case: next in its stream, and nothing of the other side missing.
                remember(tables.recent, d, key, numbers, shape, time_ns[i], mark, total)
                d[key, t.D_PACKETS] += 1
                _pass(c, slot, time_ns[i])
                if acked > d[other, t.D_MAX_ACK]:
                    d[other, t.D_MAX_ACK] = acked
                    d[other, t.D_ACK_NS] = time_ns[i]
                if c[slot, t.C_RTT_NS] < 0 and c[slot, t.C_ANSWERED] != 0 and side == c[slot, t.C_SYN_SIDE]:
                    c[slot, t.C_RTT_NS] = max(np.int64(0), time_ns[i] - c[slot, t.C_SYN_NS])
                if window[i] == 0:
                    d[key, t.D_ZERO_WINDOWS] += 1
                if length[i] > 0:
                    d[key, t.D_CAPTURED] += captured[i]
                    stop = here + length[i]
                    if time_ns[i] - d[key, t.D_HIGH_NS] >= DELAYED_NS:
                        d[key, t.D_DELAYED] += was_released(d, key, here, time_ns[i], c[slot, t.C_RTT_NS])
                    d[key, t.D_NEXT] = stop
                    d[key, t.D_HIGH] = stop
                    d[key, t.D_HIGH_NS] = time_ns[i]
                    origin = _origin(packets, i, completed_by)
                    if captured[i] > 0:
                        emit(tables, key, t.DATA, 0, payload_at[i], captured[i], origin, completed_by)
                    if captured[i] < length[i]:
                        d[key, t.D_SNAPLEN] += length[i] - captured[i]
                        emit(tables, key, t.SNAPLEN, 0, 0, length[i] - captured[i], origin, completed_by)
                i += 1
                continue

        # Everything else. First make sure of room, so that the packet can be started over.
        counts = d[key, t.D_COUNT] + d[other, t.D_COUNT]
        if v[t.V_OUT] + 8 * counts + 64 > room:
            return NEED_SEGMENTS, i, e
        if v[t.V_ROWS] + d[key, t.D_COUNT] + 5 > len(w):
            return NEED_WAITING, i, e
        if v[t.V_BYTES] + captured[i] > len(tables.held):
            return NEED_BYTES, i, e
        if len(woken) > 0:
            while woke < len(woken) and woken[woke, flows.WOKEN_INDEX] < i:
                woke += 1
            if woke < len(woken) and woken[woke, flows.WOKEN_INDEX] == i:
                if woken[woke, flows.WOKEN_SHAPE] & WOKEN_LATER != 0:
                    _take_syn(tables, slot, woken[woke])
        if leg:
            c[slot, t.C_LEGS] = 1
            remember(tables.recent, d, key, np.int64(-1), np.int64(0), time_ns[i], np.int64(0), np.int64(-1))
            d[key, t.D_PACKETS] += 1
            d[key, t.D_DUPLICATE_PACKETS] += 1
            d[key, t.D_CAPTURED] += captured[i]
            if length[i] > 0:
                if d[key, t.D_REF] == 0:
                    d[key, t.D_REF] = 1
                    d[key, t.D_NEXT] = seq[i] + (np.int64(1) << 40)
                here = unwrap(d[key, t.D_NEXT], seq[i])
                stop = here + length[i]
                start = here
                if d[key, t.D_SYNCED] != 0 and start < d[key, t.D_NEXT]:
                    start = min(stop, d[key, t.D_NEXT])
                    duplicate(d, key, here, start, here + captured[i])
                new = np.int64(0)
                if start < stop:
                    acked = unwrap(d[other, t.D_NEXT], ack[i]) if d[other, t.D_REF] != 0 else np.int64(-1)
                    new = wait(
                        tables,
                        key,
                        start,
                        stop,
                        here + captured[i],
                        buffer,
                        payload_at[i] + start - here,
                        acked,
                        _origin(packets, i, completed_by),
                        start - here,
                        headers,
                        np.int64(t.LEG),
                    )
                if new > 0 and c[slot, t.C_HOLD] == 0:
                    _settle_within(tables, slot, time_ns[i], completed_by, limit)
            i += 1
            continue
        copy = same_packet(tables.recent, d, key, numbers, shape, time_ns[i], mark)
        if copy:
            d[key, t.D_DUPLICATE_PACKETS] += 1
        conflicts = length[i] > 0 and differs(tables.recent, d, key, numbers, shape, total)
        remember(tables.recent, d, key, numbers, shape, time_ns[i], mark, total)
        d[key, t.D_PACKETS] += 1
        d[key, t.D_CAPTURED] += captured[i]
        _pass(c, slot, time_ns[i])
        if window[i] == 0 and flag & flows.RST == 0 and not copy:
            d[key, t.D_ZERO_WINDOWS] += 1
        if d[key, t.D_REF] == 0:
            d[key, t.D_REF] = 1
            d[key, t.D_NEXT] = seq[i] + (np.int64(1) << 40)
        here = unwrap(d[key, t.D_NEXT], seq[i])
        acked = np.int64(-1)
        if flag & flows.ACK != 0:
            if d[other, t.D_REF] == 0:
                d[other, t.D_REF] = 1
                d[other, t.D_NEXT] = ack[i] + (np.int64(1) << 40)
            acked = unwrap(d[other, t.D_NEXT], ack[i])
            if flag & flows.RST == 0:
                if acked > d[other, t.D_MAX_ACK]:
                    d[other, t.D_MAX_ACK] = acked
                    d[other, t.D_ACK_NS] = time_ns[i]
                options = packets.tcp_at[i] + 20
                if flag & flows.SYN == 0 and payload_at[i] - options >= LEAST_OPTIONS:
                    take_blocks(d, other, buffer, options, payload_at[i])
                if c[slot, t.C_SYN_SIDE] < 0 and time_ns[i] - c[slot, t.C_FIRST_NS] <= BEFORE_NS:
                    held = held_beyond(d, other)
                    if held > d[other, t.D_HIGH]:
                        d[other, t.D_BEFORE] = max(d[other, t.D_BEFORE], held)
        if flag & flows.SYN != 0:
            # Only before anything is handed on: framing looks here when the whole window has been worked off.
            if c[slot, t.C_SYN_SIDE] < 0 and (
                c[slot, t.C_HOLD] > 0 or d[key, t.D_PACKETS] + d[other, t.D_PACKETS] == 1
            ):
                c[slot, t.C_SYN_SIDE] = side if flag & flows.ACK == 0 else 1 - side
            if flag & flows.ACK == 0:
                if not copy:
                    c[slot, t.C_SYN_NS] = time_ns[i]
            elif c[slot, t.C_SYN_NS] != 0:
                if c[slot, t.C_ANSWERED] == 0 and d[key, t.D_CAPTURED] + d[other, t.D_CAPTURED] == 0:
                    c[slot, t.C_PATH_DELAY_NS] = max(np.int64(0), time_ns[i] - c[slot, t.C_SYN_NS])
                c[slot, t.C_ANSWERED] = 1
            here += 1
            if d[key, t.D_SYNCED] == 0:
                d[key, t.D_SYNCED] = 1
                d[key, t.D_NEXT] = here
            if flag & flows.ACK != 0 and d[other, t.D_SYNCED] == 0:
                d[other, t.D_SYNCED] = 1
                d[other, t.D_NEXT] = acked
        elif (
            c[slot, t.C_RTT_NS] < 0
            and c[slot, t.C_ANSWERED] != 0
            and side == c[slot, t.C_SYN_SIDE]
            and flag & flows.ACK != 0
        ):
            c[slot, t.C_RTT_NS] = max(np.int64(0), time_ns[i] - c[slot, t.C_SYN_NS])
        if c[slot, t.C_HOLD] > 0 and d[key, t.D_SYNCED] != 0 and d[other, t.D_SYNCED] != 0:
            c[slot, t.C_HOLD] = 0
        if c[slot, t.C_HOLD] == 0:
            if d[key, t.D_SYNCED] == 0:
                d[key, t.D_SYNCED] = 1
                d[key, t.D_NEXT] = here
            several = d[key, t.D_PACKETS] - d[key, t.D_DUPLICATE_PACKETS] > 1
            if d[other, t.D_SYNCED] == 0 and flag & flows.ACK != 0 and several:
                d[other, t.D_SYNCED] = 1
                d[other, t.D_NEXT] = acked
        stop = here + length[i]
        new = np.int64(0)
        if length[i] > 0:
            start = here
            captured_stop = here + captured[i]
            keep_alive = length[i] == 1 and d[key, t.D_SYNCED] != 0 and here == d[key, t.D_NEXT] - 1
            if d[key, t.D_SYNCED] != 0 and start < d[key, t.D_NEXT]:
                start = min(stop, d[key, t.D_NEXT])
                duplicate(d, key, here, start, captured_stop)
                if conflicts and start == stop:
                    d[key, t.D_CONFLICTS] += 1
            if start < stop and c[slot, t.C_LEGS] != 0:
                displace(tables, key, start, stop)
            if not copy and not keep_alive and here < d[key, t.D_HIGH]:
                repeat(d, key, here, stop, time_ns[i])
            in_order = d[key, t.D_HEAD] < 0
            if start < stop:
                new = wait(
                    tables,
                    key,
                    start,
                    stop,
                    captured_stop,
                    buffer,
                    payload_at[i] + start - here,
                    acked,
                    _origin(packets, i, completed_by),
                    start - here,
                    headers,
                    np.int64(t.WRONG) if doubt else np.int64(0),
                )
            if in_order and d[key, t.D_HEAD] >= 0:
                d[key, t.D_HOLE_NS] = time_ns[i]
            if copy:
                pass
            elif new == 0:
                if not keep_alive:
                    d[key, t.D_RETRANSMISSIONS] += 1
            elif d[key, t.D_HIGH] >= 0 and start < d[key, t.D_HIGH]:
                # It fills a hole: late by reordering if close behind, else sent again (Wireshark's rule).
                if time_ns[i] - d[key, t.D_HIGH_NS] <= max(np.int64(3_000_000), c[slot, t.C_RTT_NS]):
                    d[key, t.D_OUT_OF_ORDER] += 1
                else:
                    d[key, t.D_RETRANSMISSIONS] += 1
            if stop > d[key, t.D_HIGH]:
                d[key, t.D_HIGH] = stop
                d[key, t.D_HIGH_NS] = time_ns[i]
        if flag & (flows.FIN | flows.RST) != 0 and not copy:
            _close(c, d, slot, side, time_ns[i])
        if flag & flows.FIN != 0 and d[key, t.D_FIN] < 0:
            d[key, t.D_FIN] = stop
        if flag & flows.RST != 0 and d[key, t.D_DONE] == 0 and d[key, t.D_RST] < 0:
            d[key, t.D_RST] = here
            d[key, t.D_RST_ACK] = acked if d[other, t.D_SYNCED] != 0 and acked - d[other, t.D_NEXT] <= JUMP else -1
            stale = d[key, t.D_HEAD] < 0 and here < d[key, t.D_NEXT]
            if d[key, t.D_SYNCED] == 0 or here - d[key, t.D_NEXT] > JUMP or stale:
                d[key, t.D_RST] = d[key, t.D_NEXT]
        if copy and new == 0:
            i += 1  # it says nothing, not even how long others have waited
            continue
        if c[slot, t.C_HOLD] > 0:
            c[slot, t.C_HOLD] -= 1
            if c[slot, t.C_HOLD] == 0 or flag & (flows.FIN | flows.RST) != 0:
                release(tables, slot)
        if c[slot, t.C_HOLD] == 0:
            _settle_within(tables, slot, time_ns[i], completed_by, limit)
        i += 1
    return OK, n, e


Slots = TypeVar("Slots", int, np.ndarray)
"""One, or several."""


class Segments(NamedTuple):
    """Segments that became certain in one window for one shard.

    rows int64[n, SEG_COLUMNS], in order of `SEG_COMPLETED_BY`. `SEG_AT` points into `sources[SEG_SOURCE]` (the
    window's buffer, the waiting bytes), valid until the next call."""

    rows: np.ndarray
    sources: tuple[np.ndarray, np.ndarray]


class Streams:
    """TCP state of the connections of one shard: those whose slot is `shard` modulo `shards`. Its tables, and all that
    comes out, number these alone: `slots` says which they are. A later stage reads counters from the tables
    `connections` and `directions` when a connection ends."""

    def __init__(self, shard: int = 0, shards: int = 1, waiting_bytes: int = WAITING_BYTES) -> None:
        self.shard, self.shards, self.waiting_bytes = shard, shards, waiting_bytes
        self._usual = 0
        counters = np.zeros(t.V_COLUMNS, np.int64)
        counters[t.V_FREE] = -1
        self._tables = StreamTables(
            connections=np.zeros((1 << 8, t.C_COLUMNS), np.int64),
            directions=np.zeros((1 << 9, t.D_COLUMNS), np.int64),
            recent=np.zeros((1 << 9, t.RECENT, t.R_COLUMNS), np.int64),
            waiting=np.zeros((1 << 10, t.W_COLUMNS), np.int64),
            held=np.zeros(_LEAST_HELD, np.uint8),
            counters=counters,
            out=np.zeros((1 << 14, t.SEG_COLUMNS), np.int64),
        )

    def advance(self, packets: Packets, assigned: Assigned, base: int, slots: int) -> Segments:
        """Take one batch; `base` is the ordinal of its first packet, `slots` how many slots there are."""
        while self.shard + self.shards * len(self._tables.connections) < slots:
            self._tables = grown(self._tables, NEED_SLOTS, FULL)
        self._compact()
        self._tables.counters[t.V_OUT] = 0
        at = ends = 0
        bits = self.shards.bit_length() - 1 if self.shards & (self.shards - 1) == 0 else -1
        while True:
            status, at, ends = advance(
                at,
                ends,
                self.shard,
                self.shards,
                bits,
                base,
                packets.content,
                packets.columns,
                assigned,
                self._tables,
                self.waiting_bytes,
            )
            if status == OK:
                break
            if status == NEED_BYTES:
                # At once for all that may wait of the window.
                coming = len(packets.buffer) - packets.spare
                held, used = self._tables.held, int(self._tables.counters[t.V_BYTES])
                self._resize_held(max(2 * len(held), used + coming))
            else:
                self._tables = grown(self._tables, status, FULL)
        tables = self._tables
        return Segments(tables.out[: tables.counters[t.V_OUT]], (packets.buffer, tables.held))

    def slots(self, own: Slots) -> Slots:
        """The slots, as `Flows` numbers them, of connections as this shard does."""
        return own * self.shards + self.shard

    @property
    def connections(self) -> np.ndarray:
        """int64[n, C_COLUMNS]."""
        return self._tables.connections

    @property
    def directions(self) -> np.ndarray:
        """int64[2 * n, D_COLUMNS]."""
        return self._tables.directions

    @property
    def waiting(self) -> int:
        """Bytes that wait for their turn."""
        return int(self._tables.counters[t.V_LIVE])

    def waiting_indices(self) -> np.ndarray:
        """Return indices of the packets with bytes that wait."""
        rows = self._tables.waiting[: int(self._tables.counters[t.V_ROWS])]
        ordinals: np.ndarray = rows[rows[:, t.W_LENGTH] > 0, t.W_PACKET_INDEX]
        return ordinals

    def _compact(self) -> None:
        """Bytes handed on in the last window are not needed any more. Memory for as many as there were lately is kept:
        where a capture loses packets, window after window has some that wait, and fresh memory costs more than to fill
        it."""
        tables, counters = self._tables, self._tables.counters
        live, used = int(counters[t.V_LIVE]), int(counters[t.V_BYTES])
        self._usual = max(used, self._usual * 7 // 8)
        if live == 0:
            used = 0
        elif used > 2 * live + _LEAST_HELD:
            rows = tables.waiting[: int(counters[t.V_ROWS])]
            alive = np.flatnonzero(rows[:, t.W_LENGTH] > 0)
            used = int(compact(tables.waiting, alive[np.argsort(rows[alive, t.W_AT])], tables.held))
        counters[t.V_BYTES] = used
        if len(tables.held) > max(_USUAL_HELD, 4 * self._usual):
            self._resize_held(max(_LEAST_HELD, 2 * used))

    def _resize_held(self, size: int) -> None:
        """Give what waits other memory."""
        held, used = self._tables.held, int(self._tables.counters[t.V_BYTES])
        other = np.zeros(size, np.uint8)
        other[:used] = held[:used]
        self._tables = self._tables._replace(held=other)
