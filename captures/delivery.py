"""Delivery: what is next in its stream is handed on, and what never came is a gap.

In: the waiting segments of a connection. Out: rows of `StreamTables.out`.

Rules
- Order is causal: a segment is handed on only after all the bytes of the other direction that it acknowledges. Where
  both directions wait for each other, what is known of the other side divides what waits.
- Bytes with a wrong checksum, and those of another leg, wait until their receiver acknowledges them.
- A hole is a gap as far as its bytes were acknowledged long ago, or nobody is there who could acknowledge them.
"""

from __future__ import annotations

import numpy as np

from kwire.captures import stream_tables as t
from kwire.captures.copies import duplicate
from kwire.captures.kernels import Flag, Int, Table, inline, shared
from kwire.captures.out_of_order import WAITING_SEGMENTS, shorten
from kwire.captures.stream_tables import Origin, StreamTables

_FAR = 1 << 61


@inline
def emit(
    tables: StreamTables, key: Int, kind: Int, source: Int, at: Int, length: Int, origin: Origin, completed_by: Int
) -> None:
    """Write a row."""
    out, v = tables.out, tables.counters
    row = v[t.V_OUT]
    out[row, t.SEG_KEY] = key
    out[row, t.SEG_KIND] = kind
    out[row, t.SEG_SOURCE] = source
    out[row, t.SEG_AT] = at
    out[row, t.SEG_LENGTH] = length
    out[row, t.SEG_TIME_NS] = origin.time_ns
    out[row, t.SEG_NUMBER] = origin.number
    out[row, t.SEG_FILE] = origin.file
    out[row, t.SEG_RECORD_AT] = origin.record_at
    out[row, t.SEG_PACKET_INDEX] = origin.packet_index
    out[row, t.SEG_COMPLETED_BY] = completed_by
    v[t.V_OUT] = row + 1


@inline
def nowhere(time_ns: Int, ordinal: Int) -> Origin:
    """Return the origin of rows without bytes: no packet brought them, one made them certain."""
    zero = np.int64(0)
    return Origin(np.int64(time_ns), zero, zero, zero, np.int64(ordinal))


@inline
def gap(tables: StreamTables, key: Int, target: Int, time_ns: Int, completed_by: Int) -> None:
    """Declare [next, target) lost."""
    d = tables.directions
    emit(tables, key, t.GAP, 0, 0, target - d[key, t.D_NEXT], nowhere(time_ns, completed_by), completed_by)
    at = t.D_LATE_0 + 2 * (d[key, t.D_LATE_AT] % t.LATE_RANGES)
    d[key, at] = d[key, t.D_NEXT]
    d[key, at + 1] = target
    d[key, t.D_LATE_AT] += 1
    # A receiver that acknowledges, and did not acknowledge these, never had them; what was sent before the capture
    # began is not lost either.
    never = np.int64(0)
    if d[key ^ 1, t.D_PACKETS] > 0 and d[key, t.D_MAX_ACK] >= 0:
        never = max(np.int64(0), target - max(d[key, t.D_NEXT], d[key, t.D_MAX_ACK]))
    unsent = never
    if tables.connections[key >> 1, t.C_SYN_SIDE] < 0 and d[key, t.D_GAPS] == 0 and target <= d[key, t.D_BEFORE]:
        unsent = target - d[key, t.D_NEXT]
    d[key, t.D_NEVER_BYTES] += never
    d[key, t.D_UNSENT_BYTES] += unsent
    d[key, t.D_UNSENT_GAPS] += np.int64(unsent == target - d[key, t.D_NEXT])
    d[key, t.D_GAPS] += 1
    d[key, t.D_GAP_BYTES] += target - d[key, t.D_NEXT]
    d[key, t.D_NEXT] = target


@shared
def drain(tables: StreamTables, slot: Int, time_ns: Int, completed_by: Int, forced: Int) -> None:
    """Hand on all that is in order, alternating between the directions until neither moves. The first waiting segment
    of direction `forced` (-1: none) is handed on whatever it acknowledges, as far as the other direction, if that waits
    for it, acknowledges it."""
    d, w, v = tables.directions, tables.waiting, tables.counters
    progress = True
    while progress:
        progress = False
        for side in range(2):
            key = 2 * slot + side
            other = 2 * slot + 1 - side
            if d[key, t.D_SYNCED] == 0:
                continue
            while True:
                row = d[key, t.D_HEAD]
                if row < 0 or w[row, t.W_SEQ] > d[key, t.D_NEXT]:
                    break
                if (
                    key != forced
                    and d[other, t.D_SYNCED] != 0
                    and d[other, t.D_PACKETS] > 0
                    and w[row, t.W_ACK] > d[other, t.D_NEXT]
                ):
                    break
                start = max(w[row, t.W_SEQ], d[key, t.D_NEXT])
                stop = w[row, t.W_SEQ] + w[row, t.W_LENGTH]
                if w[row, t.W_DOUBT] != 0 and key != forced:
                    if d[key, t.D_MAX_ACK] < stop:
                        break
                    if w[row, t.W_DOUBT] == t.WRONG:
                        d[key, t.D_LIES] += 1
                    w[row, t.W_DOUBT] = 0
                if key == forced:
                    forced = np.int64(-1)
                    answer = d[other, t.D_HEAD]
                    if answer >= 0 and w[answer, t.W_SEQ] <= d[other, t.D_NEXT] and w[answer, t.W_ACK] > start:
                        stop = min(stop, w[answer, t.W_ACK])
                captured_stop = min(stop, w[row, t.W_SEQ] + w[row, t.W_CAPTURED])
                duplicate(d, key, w[row, t.W_SEQ], min(start, stop), captured_stop)
                captured = max(np.int64(0), captured_stop - start)
                origin = Origin(
                    w[row, t.W_TIME_NS],
                    w[row, t.W_NUMBER],
                    w[row, t.W_FILE],
                    w[row, t.W_RECORD_AT],
                    w[row, t.W_PACKET_INDEX],
                )
                if captured > 0:
                    emit(
                        tables, key, t.DATA, 1, w[row, t.W_AT] + start - w[row, t.W_SEQ], captured, origin, completed_by
                    )
                if stop - start > captured:
                    missing = stop - start - captured
                    d[key, t.D_SNAPLEN] += missing
                    emit(tables, key, t.SNAPLEN, 0, 0, missing, origin, completed_by)
                d[key, t.D_NEXT] = max(d[key, t.D_NEXT], stop)
                progress = True
                if stop < w[row, t.W_SEQ] + w[row, t.W_LENGTH]:
                    held = w[row, t.W_CAPTURED]
                    shorten(w, tables.held, row, stop)
                    d[key, t.D_BYTES] -= held - w[row, t.W_CAPTURED]
                    v[t.V_LIVE] -= held - w[row, t.W_CAPTURED]
                    continue
                d[key, t.D_HEAD] = w[row, t.W_NEXT]
                d[key, t.D_COUNT] -= 1
                d[key, t.D_BYTES] -= w[row, t.W_CAPTURED]
                v[t.V_LIVE] -= w[row, t.W_CAPTURED]
                w[row, t.W_NEXT] = v[t.V_FREE]
                w[row, t.W_LENGTH] = 0
                v[t.V_FREE] = row
            if d[key, t.D_HEAD] < 0:
                if d[key, t.D_FIN] >= 0 and d[key, t.D_NEXT] >= d[key, t.D_FIN] and d[key, t.D_DONE] == 0:
                    emit(tables, key, t.FINISH, 0, 0, 0, nowhere(time_ns, completed_by), completed_by)
                    d[key, t.D_NEXT] = max(d[key, t.D_NEXT], d[key, t.D_FIN] + 1)
                    d[key, t.D_DONE] = 1
                    progress = True
                # What was captured before a RST goes first, and what it acknowledges too.
                if (
                    d[key, t.D_RST] >= 0
                    and d[key, t.D_NEXT] >= d[key, t.D_RST]
                    and d[other, t.D_HEAD] < 0
                    and d[other, t.D_NEXT] >= d[key, t.D_RST_ACK]
                ):
                    emit(tables, key, t.RESET, 0, 0, 0, nowhere(time_ns, completed_by), completed_by)
                    d[key, t.D_RST] = -1
                    d[key, t.D_DONE] = 1
                    progress = True


@inline
def blocked(d: Table, slot: Int) -> Flag:
    """Whether anything of this connection waits."""
    for key in range(2 * slot, 2 * slot + 2):
        if d[key, t.D_HEAD] >= 0 or d[key, t.D_RST] >= 0 or (d[key, t.D_FIN] >= 0 and d[key, t.D_DONE] == 0):
            return True
    return False


@shared
def declare(tables: StreamTables, slot: Int, time_ns: Int, completed_by: Int, everything: Flag) -> Flag:
    """Turn the first hole of each direction into a gap, as far as its bytes were acknowledged long ago (or, with
    `everything`, up to the next bytes at hand). Returns whether anything moved."""
    d, w = tables.directions, tables.waiting
    moved = False
    for side in range(2):
        key = 2 * slot + side
        other = 2 * slot + 1 - side
        if d[key, t.D_SYNCED] == 0:
            continue
        target = np.int64(_FAR)
        if d[key, t.D_HEAD] >= 0:
            target = w[d[key, t.D_HEAD], t.W_SEQ]
        else:
            if d[key, t.D_FIN] >= 0 and d[key, t.D_DONE] == 0:
                target = min(target, d[key, t.D_FIN])
            if d[key, t.D_RST] >= 0:
                target = min(target, d[key, t.D_RST])
                if d[key, t.D_NEXT] >= d[key, t.D_RST] and d[key, t.D_RST_ACK] >= 0 and d[other, t.D_HEAD] < 0:
                    d[key, t.D_RST_ACK] = -1  # it has waited long enough
                    moved = True
        # Where the other side was never seen nobody can acknowledge: do not wait for it.
        unlimited = everything or d[other, t.D_PACKETS] == 0 or d[key, t.D_COUNT] >= WAITING_SEGMENTS
        if not unlimited or target == _FAR:
            target = min(target, d[key, t.D_MAX_ACK] if everything else d[key, t.D_OLD_ACK])
        if target > d[key, t.D_NEXT]:
            gap(tables, key, target, time_ns, completed_by)
            moved = True
    return moved


@shared
def release(tables: StreamTables, slot: Int) -> None:
    """The hold on a connection without SYN is over: each direction starts at the lowest byte seen of it."""
    c, d, w = tables.connections, tables.directions, tables.waiting
    c[slot, t.C_HOLD] = 0
    for key in range(2 * slot, 2 * slot + 2):
        if d[key, t.D_SYNCED] == 0:
            if d[key, t.D_HEAD] >= 0:
                d[key, t.D_NEXT] = w[d[key, t.D_HEAD], t.W_SEQ]
                d[key, t.D_SYNCED] = 1
            elif d[key, t.D_MAX_ACK] >= 0:
                d[key, t.D_NEXT] = d[key, t.D_MAX_ACK]
                d[key, t.D_SYNCED] = 1


@shared
def stuck(d: Table, w: Table, slot: Int) -> Int:
    """The direction whose next bytes are at hand and wait for bytes of the other that they acknowledge; of two, the one
    whose bytes were captured first; -1: none. Two wait for each other where copies of both were captured late."""
    best = np.int64(-1)
    for key in range(2 * slot, 2 * slot + 2):
        row = d[key, t.D_HEAD]
        if d[key, t.D_SYNCED] != 0 and row >= 0 and w[row, t.W_SEQ] <= d[key, t.D_NEXT]:
            if best < 0 or w[row, t.W_PACKET_INDEX] < w[d[best, t.D_HEAD], t.W_PACKET_INDEX]:
                best = np.int64(key)
    return best


@shared
def mutual(d: Table, w: Table, slot: Int) -> Flag:
    """Whether both directions' next bytes are at hand and wait for each other."""
    for key in range(2 * slot, 2 * slot + 2):
        row = d[key, t.D_HEAD]
        if d[key, t.D_SYNCED] == 0 or row < 0 or w[row, t.W_SEQ] > d[key, t.D_NEXT]:
            return False
    return True


@shared
def flush(tables: StreamTables, slot: Int, time_ns: Int, completed_by: Int) -> None:
    """Hand on all that waits, still in causal order, with gaps for what did not come."""
    forced = np.int64(-1)
    while True:
        drain(tables, slot, time_ns, completed_by, forced)
        forced = np.int64(-1)
        if not declare(tables, slot, time_ns, completed_by, True):
            forced = stuck(tables.directions, tables.waiting, slot)
            if forced < 0:
                break
