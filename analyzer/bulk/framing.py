"""Segments -> frames: find Kafka's length-prefixed messages in the ordered bytes of each direction.

In: `Segments` of one shard. Out: calls of `take`, one for each frame.

Rules
- A frame that lies in one segment is read where it is; others are collected in a region of the slab.
- A frame with bytes missing inside is followed to its end by its length, and handed on with what is before the hole.
- Bytes that were cut off of packets, with at least a batch's header before them, are bridged by zeros. If all of them
  turn out to be content of record batches, which says nothing else, the frame counts as whole; else it is TORN, and
  handed on like any other with a hole.
- If the length field itself is lost, the next frame is searched for (`resync`). Such a frame is tentative until it
  decodes whole; if it does not, the search goes on behind its first byte. Bytes passed over are counted.
- A length that no message can have, where one certainly is, is handed on as a frame of its own (IMPOSSIBLE), with what
  its header says, and the next frame is searched for.
- What stands before a connection's first message (`proxy_prefixes`) is skipped.

Each direction is in one mode; the table has every change of it, with the function that makes it (a test compares it
with the code). SYNC: the next byte is a frame's first, or inside the one at hand. SEEK: the next frame's start is not
known. DROP: the frame at hand is followed to its end, and only counted. SWALLOW: not Kafka, all is counted.

    mode     event                                                      next     function
    -        the first segment of a connection                          SEEK     _begin
    -        the same, its beginning is there, `--port` insists         SYNC     _begin
    SEEK     a request or response is found                             SYNC     seek
    SEEK     the other side's first request is found, and nothing of
             this side's beginning is lost                              SYNC     end_search
    SYNC     a length, or a first frame, that cannot be one             SEEK     _act
    SYNC     a length that no message can have                          SEEK     _end_frame
    SYNC     the same, in the segment itself                            SEEK     _feed
    SYNC     more than the frame limit, and its beginning is there      DROP     begin_drop
    SYNC     a hole behind the length field, or it is torn              DROP     begin_drop
    SYNC     the connection or the capture ends inside a request        DROP     begin_drop
    SYNC     all frames in progress together are beyond the limit       DROP     begin_drop
    SYNC     a hole where the next length is, or inside it              SEEK     _hole
    SEEK     a hole                                                     SEEK     _hole
    SYNC     a hole or the end, and the frame was only likely           SEEK     _doubt
    SYNC     it does not decode, and was tentative                      SEEK     _end_frame
    DROP     the frame's end                                            SYNC     _end_frame
    DROP     the connection or the capture ends                         SYNC     _close
    any      the connection is not Kafka                                SWALLOW  not_kafka
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.matching import take
from kwire.analyzer.bulk.pending import find_pending, flush_pending
from kwire.analyzer.bulk.proxy_prefixes import before_first, first_bytes, is_sealed
from kwire.analyzer.bulk.regions import (
    IN_SLAB,
    IN_WAITING,
    IN_WINDOW,
    append,
    begin_drop,
    bridged,
    drop_front,
    frame_from_region,
    release,
)
from kwire.analyzer.bulk.resync import (
    CLOSING,
    HOLE,
    MAX_SOUGHT,
    MORE,
    WEAK,
    answered,
    end_search,
    not_kafka,
    plan,
    seek,
)
from kwire.analyzer.protocol.decoding import read_int16, read_int32
from kwire.analyzer.protocol.record_batches import HEADER_V2
from kwire.captures import stream_tables as t
from kwire.captures.kernels import MACHINE_CODE, Array, Bytes, Flag, Int, Table, inline, kernel, prefetch_all, shared

PREFIX: Final = 4096
"""Bytes kept of a frame over the limit: its header, whatever the client id."""

MAX_ASIDE: Final = 4 << 20
"""Bytes kept of the other direction meanwhile."""

AHEAD: Final = 3
"""Segments between the one at hand and the one whose bytes are fetched from memory meanwhile."""

LARGEST: Final = 0x1FFFFFFF
"""Greater lengths are compared with what can be: text is none, which begins with a space (0x20) at least."""

IMPOSSIBLE_FROM: Final = 1 << 30
"""Lengths above are impossible: librdkafka sends 10**9 bytes at most, and no broker takes half of it."""

# What `_act` asks the driver for, beside the NEED_ statuses.
NOTHING, TAKE, SEEK_ONE = 100, 101, 102
ARRIVING, WORKING = 0, 1

BRIDGED_FROM: Final = 4 + 8 + HEADER_V2
"""Bytes that a frame has before the content of its first record batch, at least: length, header, the batch's header."""


@inline
def _least(fr: s.Framing, slot: Int, client: Int) -> Int:
    """The smallest number a length field may hold: raw SASL tokens may be empty, a request has a header of 8 bytes."""
    if fr.k[slot, s.K_RAW] != 0 or fr.k[slot, s.K_RAW_WAITING] > 0:
        return np.int64(0)
    return np.int64(8) if client else np.int64(4)


@inline
def _is_impossible(size: Int, least: Int) -> Flag:
    """Whether no message has this length: less than a header, more than clients send, or text where a length is due."""
    return size < least or (size > LARGEST and (size > IMPOSSIBLE_FROM or is_text(size)))


@shared
def is_text(size: Int) -> Flag:
    """Whether the four bytes of a number are printable ASCII, or end a line."""
    for shift in range(0, 32, 8):
        byte = size >> shift & 255
        if not (32 <= byte < 127 or byte in (9, 10, 13)):
            return False
    return True


@inline
def _is_certain(fr: s.Framing, mt: s.Matching, slot: Int, key: Int, client: Int, start: Int, have: Int) -> Flag:
    """Whether what stands at `start` of a direction's region is a length: it follows a message, and no byte is missing;
    or it is before the correlation id of a request that waits."""
    if fr.f[key, s.F_HOLE] != 0 or fr.f[key, s.F_TENTATIVE] != 0:
        return False
    if fr.f[key, s.F_FRAMES] > 0:
        return True
    return (
        not client
        and have >= 8
        and find_pending(fr, mt, slot, read_int32(fr.slab, fr.f[key, s.F_AT] + start + 4))[0] >= 0
    )


@inline
def _begin(fr: s.Framing, c: Table, slot: Int, pairs: Array, ports: Table) -> None:
    """A connection's first segment."""
    f = fr.f
    k = fr.k
    for column in range(s.K_COLUMNS):
        k[slot, column] = 0
    k[slot, s.K_STARTED] = 1
    k[slot, s.K_CLIENT] = -1
    k[slot, s.K_HEAD] = -1
    k[slot, s.K_TAIL] = -1
    k[slot, s.K_ANSWERED_TO] = -1
    for column in (
        s.K_MECHANISM,
        s.K_SOFTWARE_NAME,
        s.K_SOFTWARE_VERSION,
        s.K_CLIENT_ID,
        s.K_LOWEST_ID,
        s.K_ANSWERED_NS,
        s.K_LAST_ID,
        s.K_PREFIX_TEXT,
    ):
        k[slot, column] = s.NULL
    opener = c[slot, t.C_SYN_SIDE]
    if opener >= 0:
        k[slot, s.K_CLIENT] = opener
    pair = np.int64(pairs[slot * fr.v[s.V_SHARDS] + fr.v[s.V_SHARD], 4])
    for i in range(len(ports)):
        for side in range(2):
            port = pair >> 16 if side == 0 else pair & 0xFFFF
            if port == ports[i]:
                k[slot, s.K_INSISTED] = 1
                if opener < 0:
                    k[slot, s.K_CLIENT] = 1 - side
    for key in range(2 * slot, 2 * slot + 2):
        for column in range(s.F_COLUMNS):
            f[key, column] = 0
        f[key, s.F_MARKS] = -1
        f[key, s.F_LAST_MARK] = -1
        f[key, s.F_MODE] = s.SEEK
        f[key, s.F_ANSWER] = -1
        if opener >= 0:
            f[key, s.F_STRICT] = 1
            f[key, s.F_PREFIX] = 1
        else:
            f[key, s.F_BROKEN] = 1
    if k[slot, s.K_INSISTED] != 0:
        k[slot, s.K_CLASS] = s.KAFKA
        for key in range(2 * slot, 2 * slot + 2):
            f[key, s.F_STRICT] = 0
            if opener >= 0:
                f[key, s.F_MODE] = s.SYNC


@inline
def _arrive(fr: s.Framing, segment: Table, buffer: Bytes, waiting: Bytes, c: Table, pairs: Array, ports: Table) -> Int:
    """Begin a segment: note what can be noted at once, and plan which directions to work on."""
    key = segment[t.SEG_KEY]
    slot = key >> 1
    side = key & 1
    kind = segment[t.SEG_KIND]
    length = segment[t.SEG_LENGTH]
    f = fr.f
    k = fr.k
    if k[slot, s.K_STARTED] == 0:
        _begin(fr, c, slot, pairs, ports)
    plan(fr, np.int64(-1), np.int64(-1))
    kafka = k[slot, s.K_CLASS] == s.KAFKA
    asking = 2 * slot + k[slot, s.K_CLIENT]
    if kind == t.DATA:
        source = buffer if segment[t.SEG_SOURCE] == IN_WINDOW else waiting
        if k[slot, s.K_FIRST_0 + side] == 0:
            first_bytes(fr, slot, side, source, segment[t.SEG_AT], length)
        if k[slot, s.K_CLASS] == s.OTHER:
            k[slot, s.K_OTHER] += length
        elif not kafka:
            status = append(fr, key, source, segment[t.SEG_AT], length, segment, f[key, s.F_HAVE] + length)
            if status != s.OK:
                return status
            if k[slot, s.K_CLIENT] < 0 or k[slot, s.K_CLIENT] == side:
                plan(fr, key, np.int64(-1))
            elif f[key, s.F_HAVE] > MAX_ASIDE:
                # Kept until the opener's side is understood; not for ever.
                f[key, s.F_LOST] += f[key, s.F_HAVE] - f[key, s.F_FROM]
                release(fr, key)
                f[key, s.F_BROKEN] = 1
                f[key, s.F_STRICT] = 0
            if answered(fr, key, length):
                f[key ^ 1, s.F_STALLED] = -1  # it is judged again, with its answer
                plan(fr, key ^ 1, fr.v[s.V_KEY_0])
            fr.v[s.V_POSITION] = length
        elif is_sealed(fr, slot):
            k[slot, s.K_ENCRYPTED] += length + f[2 * slot, s.F_HAVE] - f[2 * slot, s.F_FROM]
            k[slot, s.K_ENCRYPTED] += f[2 * slot + 1, s.F_HAVE] - f[2 * slot + 1, s.F_FROM]
            release(fr, 2 * slot)
            release(fr, 2 * slot + 1)
        else:
            if k[slot, s.K_CLIENT] < 0 and f[key, s.F_HAVE] == 0:
                _guess_client(fr, slot, side, source, segment[t.SEG_AT], length)
            plan(fr, key, np.int64(-1))
    elif kind == t.GAP or kind == t.SNAPLEN:
        if kind == t.SNAPLEN:
            counting = f[key, s.F_MODE] == s.DROP
            f[key, s.F_LAST_NS] = (
                max(f[key, s.F_LAST_NS], segment[t.SEG_TIME_NS]) if counting else segment[t.SEG_TIME_NS]
            )
        asks = kafka or k[slot, s.K_CLIENT] < 0 or k[slot, s.K_CLIENT] == side  # requests are sought where they can be
        if k[slot, s.K_CLASS] != s.OTHER and asks and not (kafka and is_sealed(fr, slot)):
            plan(fr, key, np.int64(-1))
    else:
        if kind == t.FINISH:
            k[slot, s.K_FINS] |= 1 << side
        closed = kind == t.END or (kind == t.FINISH and k[slot, s.K_FINS] == 3 and k[slot, s.K_CLOSED] == 0)
        # After a RST bytes that were under way may still come: only what is pending ends with it.
        if closed and kafka and not is_sealed(fr, slot):
            if k[slot, s.K_CLIENT] < 0:
                k[slot, s.K_CLIENT] = 0  # insisted on, and nothing ever said who asks
                asking = 2 * slot
            plan(fr, asking, asking ^ 1)
        elif kind == t.END and k[slot, s.K_CLASS] == s.UNDECIDED:
            if k[slot, s.K_CLIENT] >= 0:
                plan(fr, asking, np.int64(-1))
            else:
                plan(fr, 2 * slot, 2 * slot + 1)
    return s.OK


@inline
def _guess_client(fr: s.Framing, slot: Int, side: Int, source: Bytes, at: Int, length: Int) -> None:
    """--port names neither end as the only broker: take the side for the client that says something like a request."""
    if length >= 8:
        api = read_int16(source, at + 4)
        fr.k[slot, s.K_CLIENT] = side if 0 <= api < 128 and read_int16(source, at + 6) < 64 else 1 - side
    else:
        fr.k[slot, s.K_CLIENT] = side


@inline
def _act(fr: s.Framing, mt: s.Matching, segment: Table, key: Int, buffer: Bytes, waiting: Bytes) -> Int:
    """Do what can be done in a direction without decoding, and say what is needed next: TAKE (the frame is described
    in `State.frame`), SEEK_ONE, NOTHING (done with this direction), or a NEED_ status."""
    f = fr.f
    k = fr.k
    v = fr.v
    slot = key >> 1
    kind = segment[t.SEG_KIND]
    own = key == segment[t.SEG_KEY]
    client = k[slot, s.K_CLASS] == s.UNDECIDED or (key & 1) == k[slot, s.K_CLIENT]
    completed_by = segment[t.SEG_COMPLETED_BY]
    closing = kind == t.END or kind == t.FINISH
    final = closing or (own and (kind == t.GAP or kind == t.SNAPLEN))
    while True:
        mode = f[key, s.F_MODE]
        start = f[key, s.F_FROM]
        have = f[key, s.F_HAVE] - start
        if f[key, s.F_PREFIX] != 0 and have > 0:
            status = before_first(fr, mt, slot, key, client, final)
            if status != s.OK:
                return status
            if f[key, s.F_PREFIX] == 0:
                continue
            mode = np.int64(s.SWALLOW)  # of this direction nothing is understood before more of it is there
        if mode == s.DROP and f[key, s.F_SEEN] >= f[key, s.F_NEED]:
            _describe_drop(fr, key, f[key, s.F_CAUSE], completed_by)
            return TAKE
        if mode == s.SYNC and have >= 4:
            size = read_int32(fr.slab, f[key, s.F_AT] + start)
            impossible = _is_impossible(size, _least(fr, slot, client))
            if impossible and _is_certain(fr, mt, slot, key, client, start, have):
                frame_from_region(fr, key, min(have, PREFIX), 0, 0, s.IMPOSSIBLE, completed_by)
                return TAKE
            if impossible or not _may_be_first(fr, key, client, start, have):
                f[key, s.F_MODE] = s.SEEK
                f[key, s.F_TENTATIVE] = 0
                f[key, s.F_SCANNED] = start
                f[key, s.F_STALLED] = -1
                continue
            total = size + 4
            f[key, s.F_NEED] = total
            if have >= total:
                frame_from_region(fr, key, total, total, total, 0, completed_by)
                return TAKE
            if total > v[s.V_FRAME_LIMIT] and have >= PREFIX:
                begin_drop(fr, key, have, s.LIMIT)
                continue
            if f[key, s.F_TENTATIVE] == WEAK and f[key, s.F_STALLED] != f[key, s.F_HAVE]:
                return SEEK_ONE
        if mode == s.SEEK and have > 0 and (final or f[key, s.F_STALLED] != f[key, s.F_HAVE]):
            if max(start, f[key, s.F_SCANNED]) < f[key, s.F_HAVE]:
                return SEEK_ONE
        if mode == s.SYNC and start > 0:
            drop_front(fr, key)

        # What is at hand is used up: on to what the segment brings.
        if closing:
            if k[slot, s.K_CLASS] == s.UNDECIDED or not _close(fr, slot, key, client, completed_by):
                return NOTHING
            if f[key, s.F_MODE] == s.DROP:
                return TAKE
            continue
        if not own or v[s.V_POSITION] >= segment[t.SEG_LENGTH] or k[slot, s.K_CLASS] != s.KAFKA:
            return NOTHING
        if kind == t.DATA:
            source = buffer if segment[t.SEG_SOURCE] == IN_WINDOW else waiting
            status = _feed(fr, slot, key, client, source, segment)
            if status != s.OK:
                return status
        else:
            status = _hole(fr, slot, key, segment)
            if status != s.OK:
                return status


@inline
def _may_be_first(fr: s.Framing, key: Int, client: Int, start: Int, have: Int) -> Flag:
    """Whether a direction's first frame, where its beginning was captured, can be one: of a size that brokers accept,
    and a request with numbers that an API and a version may have."""
    if fr.f[key, s.F_FRAMES] > 0 or fr.f[key, s.F_BROKEN] != 0:
        return True
    at = fr.f[key, s.F_AT] + start
    if read_int32(fr.slab, at) > MAX_SOUGHT:
        return False
    if not client or have < 8:
        return True
    return read_int16(fr.slab, at + 4) >= 0 and read_int16(fr.slab, at + 6) >= 0


@inline
def _describe_drop(fr: s.Framing, key: Int, cause: Int, completed_by: Int) -> None:
    """Describe a frame that was only counted, by its beginning."""
    f = fr.f
    have = min(f[key, s.F_HAVE] - f[key, s.F_FROM], f[key, s.F_NEED])
    frame_from_region(fr, key, have, f[key, s.F_NEED], f[key, s.F_HELD], cause, completed_by)


@inline
def _feed(fr: s.Framing, slot: Int, key: Int, client: Int, source: Bytes, segment: Table) -> Int:
    """Take some of a segment's bytes: TAKE where a whole frame lies in it, OK where they were collected."""
    f = fr.f
    v = fr.v
    position = v[s.V_POSITION]
    at = segment[t.SEG_AT] + position
    rest = segment[t.SEG_LENGTH] - position
    mode = f[key, s.F_MODE]
    have = f[key, s.F_HAVE]
    if mode == s.DROP:
        take = min(rest, f[key, s.F_NEED] - f[key, s.F_SEEN])
        f[key, s.F_SEEN] += take
        f[key, s.F_HELD] += take
        f[key, s.F_LAST_NS] = max(f[key, s.F_LAST_NS], segment[t.SEG_TIME_NS])
        v[s.V_POSITION] = position + take
        return s.OK
    take = rest
    wanted = have + rest
    if mode == s.SYNC and f[key, s.F_PREFIX] == 0:
        wanted = np.int64(PREFIX)
        if have == 0 and rest >= 4 and f[key, s.F_FRAMES] > 0:
            size = read_int32(source, at)
            impossible = _is_impossible(size, _least(fr, slot, client))
            if impossible and f[key, s.F_HOLE] != 0:
                f[key, s.F_MODE] = s.SEEK
                f[key, s.F_SCANNED] = 0
                f[key, s.F_STALLED] = -1
                return s.OK
            total = np.int64(0) if impossible else size + 4
            if total <= rest:
                frame = fr.frame
                frame[s.FR_AT] = at
                frame[s.FR_HAVE] = min(rest, np.int64(PREFIX)) if impossible else total
                frame[s.FR_TOTAL] = total
                frame[s.FR_HELD] = total
                frame[s.FR_FIRST_NS] = segment[t.SEG_TIME_NS]
                frame[s.FR_LAST_NS] = segment[t.SEG_TIME_NS]
                frame[s.FR_NUMBER] = segment[t.SEG_NUMBER]
                frame[s.FR_FILE] = segment[t.SEG_FILE]
                frame[s.FR_RECORD_AT] = segment[t.SEG_RECORD_AT]
                frame[s.FR_PACKET_INDEX] = segment[t.SEG_PACKET_INDEX]
                frame[s.FR_COMPLETED_BY] = segment[t.SEG_COMPLETED_BY]
                frame[s.FR_CAUSE] = s.IMPOSSIBLE if impossible else 0
                frame[s.FR_TENTATIVE] = 0
                frame[s.FR_SOURCE] = segment[t.SEG_SOURCE]
                frame[s.FR_BRIDGED] = -1
                return TAKE
            wanted = total
        elif have >= 4:
            wanted = f[key, s.F_NEED]
            take = min(rest, wanted - have)
        else:
            take = min(rest, 4 - have)
        if wanted > v[s.V_FRAME_LIMIT]:
            take = min(take, max(np.int64(1), PREFIX - have))
            wanted = np.int64(PREFIX)
    status = append(fr, key, source, at, take, segment, wanted)
    if status == s.OK:
        v[s.V_POSITION] = position + take
    return status


@inline
def _doubt(fr: s.Framing, key: Int) -> None:
    """The tentative frame is likely none: is there something better inside?"""
    f = fr.f
    f[key, s.F_TENTATIVE] = 0
    f[key, s.F_MODE] = s.SEEK
    f[key, s.F_SCANNED] = f[key, s.F_FROM] + 1
    f[key, s.F_STALLED] = -1


@inline
def _hole(fr: s.Framing, slot: Int, key: Int, segment: Table) -> Int:
    """Bytes are missing: bridge them, follow the frame at hand through them, or give up the place.

    Returns OK or a NEED_ status."""
    f = fr.f
    v = fr.v
    length = segment[t.SEG_LENGTH]
    have = f[key, s.F_HAVE] - f[key, s.F_FROM]
    need = f[key, s.F_NEED]
    proved = f[key, s.F_MODE] == s.SYNC and f[key, s.F_PREFIX] == 0 and f[key, s.F_TENTATIVE] == 0
    if proved and segment[t.SEG_KIND] == t.SNAPLEN and have >= BRIDGED_FROM and need <= v[s.V_FRAME_LIMIT]:
        take = min(length - v[s.V_POSITION], need - have)
        status = append(fr, key, fr.slab, np.int64(-1), take, segment, need)
        if status == s.OK:
            f[key, s.F_BRIDGED] = 1
            v[s.V_BRIDGED] += take
            v[s.V_POSITION] += take
        return status
    f[key, s.F_PREFIX] = 0
    if f[key, s.F_MODE] == s.SYNC and f[key, s.F_TENTATIVE] == WEAK:
        _doubt(fr, key)
        return s.OK
    if f[key, s.F_MODE] == s.SYNC and have >= 4:
        begin_drop(fr, key, have, s.TRUNCATED)
    if f[key, s.F_MODE] == s.DROP:
        take = min(length - v[s.V_POSITION], f[key, s.F_NEED] - f[key, s.F_SEEN])
        f[key, s.F_SEEN] += take
        v[s.V_POSITION] += take
        return s.OK
    if f[key, s.F_MODE] == s.SYNC:
        fr.k[slot, s.K_INCOMPLETE] += have
    else:
        fr.k[slot, s.K_SKIPPED] += have
    release(fr, key)
    f[key, s.F_MODE] = s.SEEK
    f[key, s.F_STALLED] = -1
    f[key, s.F_BROKEN] = 1
    v[s.V_POSITION] = length
    return s.OK


@inline
def _close(fr: s.Framing, slot: Int, key: Int, client: Int, completed_by: Int) -> Flag:
    """No more bytes will come. False: nothing is left; True: go on (DROP: a cut request is described)."""
    f = fr.f
    k = fr.k
    have = f[key, s.F_HAVE] - f[key, s.F_FROM]
    missing = bridged(fr, key)[1]
    k[slot, s.K_BRIDGED] += missing
    if f[key, s.F_MODE] == s.SYNC and have > 0:
        if f[key, s.F_TENTATIVE] != 0 and have > 4:
            # It was only likely, and never came whole.
            _doubt(fr, key)
            return True
        if have >= 12 and client:
            begin_drop(fr, key, have, s.CUT)
    if f[key, s.F_MODE] == s.DROP:
        if client and f[key, s.F_HAVE] >= 12:
            f[key, s.F_LAST_NS] = s.NULL
            _describe_drop(fr, key, s.LIMIT if f[key, s.F_CAUSE] == s.LIMIT else s.CUT, completed_by)
            return True
        if f[key, s.F_CAUSE] == s.LIMIT:
            k[slot, s.K_LIMIT] += f[key, s.F_HELD]
        else:
            k[slot, s.K_INCOMPLETE] += f[key, s.F_HELD]
        f[key, s.F_MODE] = s.SYNC
    elif f[key, s.F_MODE] == s.SYNC:
        k[slot, s.K_INCOMPLETE] += have - missing
    else:
        k[slot, s.K_SKIPPED] += have
    release(fr, key)
    return False


@inline
def _end_frame(fr: s.Framing, key: Int, status: Int) -> None:
    """The frame described was taken, or (REVERT) is none."""
    f = fr.f
    frame = fr.frame
    if frame[s.FR_CAUSE] == s.IMPOSSIBLE:
        # What it should have been may hide others.
        f[key, s.F_MODE] = s.SEEK
        f[key, s.F_TENTATIVE] = 0
        f[key, s.F_SCANNED] = f[key, s.F_FROM]
        f[key, s.F_STALLED] = -1
        f[key, s.F_HOLE] = 1
        return
    if frame[s.FR_SOURCE] != IN_SLAB:
        fr.v[s.V_POSITION] += frame[s.FR_TOTAL]
        return
    f[key, s.F_TENTATIVE] = 0
    if f[key, s.F_MODE] == s.DROP:
        if status == s.REVERT:
            # Sought and not proved, and with a hole: there is nothing to go back to.
            fr.k[key >> 1, s.K_SKIPPED] += f[key, s.F_HELD]
        release(fr, key)
        f[key, s.F_MODE] = s.SYNC
    elif status == s.REVERT:
        f[key, s.F_MODE] = s.SEEK
        f[key, s.F_SCANNED] = f[key, s.F_FROM] + 1
        f[key, s.F_STALLED] = -1
    else:
        f[key, s.F_FROM] += frame[s.FR_TOTAL]
        f[key, s.F_NEED] = 0
        if f[key, s.F_FROM] == f[key, s.F_HAVE]:
            release(fr, key)


@inline
def _conclude(st: s.State, segment: Table) -> Int:
    """The directions of a segment are worked off: what follows for the connection."""
    fr = st.framing
    out = st.output
    key = segment[t.SEG_KEY]
    slot = key >> 1
    kind = segment[t.SEG_KIND]
    completed_by = segment[t.SEG_COMPLETED_BY]
    f = fr.f
    k = fr.k
    v = out.v
    if kind == t.DATA:
        return s.OK
    if kind == t.GAP or kind == t.SNAPLEN:
        if v[s.V_BRIDGED] < segment[t.SEG_LENGTH]:
            f[key, s.F_HOLE] = 1
        v[s.V_BRIDGED] = 0
        if k[slot, s.K_CLASS] == s.UNDECIDED:
            f[key, s.F_LOST] += f[key, s.F_HAVE] - f[key, s.F_FROM]
            release(fr, key)
            f[key, s.F_BROKEN] = 1
            f[key, s.F_STRICT] = 0
            f[key, s.F_PREFIX] = 0
        return s.OK
    closing = k[slot, s.K_CLOSED] == 0 and (kind == t.RESET or k[slot, s.K_FINS] == 3)
    if v[s.V_OUT] + k[slot, s.K_COUNT] + 4 > len(out.exchanges):
        return s.NEED_OUT
    if v[s.V_ENDED] + 1 > len(out.ended):
        return s.NEED_ENDED
    if closing:
        k[slot, s.K_CLOSED] = 2 if kind == t.RESET else 1
        flush_pending(st, slot, s.UNANSWERED, completed_by)
    if kind == t.END:
        if k[slot, s.K_CLASS] == s.UNDECIDED:
            not_kafka(fr, slot)
        if k[slot, s.K_CLOSED] == 0 and k[slot, s.K_FINS] != 0:
            k[slot, s.K_CLOSED] = 1  # one side has closed; the capture ended before the other did
        ended = k[slot, s.K_CLOSED] != 0 or v[s.V_FINAL] == 0
        flush_pending(st, slot, s.UNANSWERED if ended else s.IN_FLIGHT, completed_by)
        out.ended[v[s.V_ENDED], 0] = slot
        out.ended[v[s.V_ENDED], 1] = completed_by
        v[s.V_ENDED] += 1
        k[slot, s.K_STARTED] = 0
    return s.OK


@kernel
def converse(
    begin: Int,
    rows: Table,
    buffer: Bytes,
    waiting: Bytes,
    c: Table,
    pairs: Array,
    ports: Table,
    st: s.State,
    lay: s.Layouts,
) -> tuple[Int, Int]:
    """Segments [begin, n) -> (status, next segment). On a NEED_ status the caller grows that table and calls again.

    The functions that decode are called from here only, once each: what calls them at several places, or deep down,
    takes minutes to compile.
    """
    fr = st.framing
    mt = st.matching
    v = fr.v
    for i in range(begin, len(rows)):
        segment = rows[i]
        if MACHINE_CODE and i + AHEAD < len(rows):
            prefetch_all(buffer, rows[i + AHEAD, t.SEG_AT], rows[i + AHEAD, t.SEG_LENGTH])
        if v[s.V_STAGE] == ARRIVING:
            status = _arrive(fr, segment, buffer, waiting, c, pairs, ports)
            if status != s.OK:
                return status, i
            v[s.V_STAGE] = WORKING
        while v[s.V_KEY_0] >= 0:
            key = v[s.V_KEY_0]
            slot = key >> 1
            action = _act(fr, mt, segment, key, buffer, waiting)
            if action == NOTHING:
                v[s.V_KEY_0] = v[s.V_KEY_1]
                v[s.V_KEY_1] = -1
            elif action == TAKE:
                origin = fr.frame[s.FR_SOURCE]
                source = buffer if origin == IN_WINDOW else (waiting if origin == IN_WAITING else fr.slab)
                side = np.int64(0 if (key & 1) == fr.k[slot, s.K_CLIENT] else 1)
                status = take(st, lay, source, slot, key, side)
                if status == s.TORN:
                    continue  # it is described again, as one with a hole
                if status != s.OK and status != s.REVERT:
                    return status, i
                _end_frame(fr, key, status)
            elif action == SEEK_ONE:
                kind = segment[t.SEG_KIND]
                ending = kind == t.END or kind == t.FINISH
                hole = key == segment[t.SEG_KEY] and (kind == t.GAP or kind == t.SNAPLEN)
                final = CLOSING if ending else (HOLE if hole else MORE)
                client = fr.k[slot, s.K_CLASS] == s.UNDECIDED or (key & 1) == fr.k[slot, s.K_CLIENT]
                end_search(fr, key, seek(fr, mt, lay, slot, key, client, final))
            else:
                return action, i
        status = _conclude(st, segment)
        if status != s.OK:
            return status, i
        v[s.V_STAGE] = ARRIVING
        v[s.V_POSITION] = 0
    return s.OK, len(rows)
