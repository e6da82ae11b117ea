"""Segments -> frames: find Kafka's length-prefixed messages in the ordered bytes of each direction.

In: `Segments` of one shard. Out: calls of `take_request` and `take_response`, one for each frame.

Rules
- A connection is Kafka when one of its sides sends a request that decodes to its last byte (or `--port` says so). The
  side that opened the connection is tried at its first byte only; where the beginning was not captured, both sides are
  searched.
- A frame that lies in one segment is read where it is; others are collected in the slab.
- A frame with bytes missing inside is followed to its end by its length, and handed on with what is before the hole.
- Where the length field itself is lost, the next frame is *sought*: a request by a plausible header that decodes (or
  the client id that the connection uses), a response by the correlation id of a pending request. A frame found so is
  tentative until it decodes whole; if it does not, seeking goes on behind its first byte. Bytes passed over count.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from analyzer import state as s
from analyzer.decoding import FULL, OK, SHORT, decode, read_int16, read_int32
from analyzer.matching import (
    decode_response,
    find_pending,
    flush_pending,
    known_layout,
    may_go_on,
    parse_request_header,
    take_request,
    take_response,
)
from analyzer.symbols import ENTRY_AT, ENTRY_LENGTH
from captures.flows import CONN_FLOW
from captures.kernels import copy_bytes, inline, kernel, shared
from captures.streams import (
    C_SYN_SIDE,
    DATA,
    END,
    FINISH,
    GAP,
    RESET,
    SEG_AT,
    SEG_FILE,
    SEG_KEY,
    SEG_KIND,
    SEG_LENGTH,
    SEG_NUMBER,
    SEG_ORDINAL,
    SEG_RECORD_AT,
    SEG_SOURCE,
    SEG_TIME_NS,
    SEG_TRIGGER,
    SNAPLEN,
)

PREFIX: Final = 4096
"""Bytes kept of a frame over the limit: its header, whatever the client id."""

ORPHAN_SPAN: Final = 100_000
"""How far below the first request's correlation id an answer's may be and still be taken for the answer to a request
from before the capture."""

MAX_SEARCH: Final = 16 << 20
"""Bytes searched for a first request in one direction before a connection is said not to be Kafka."""

SEARCHED_KEPT: Final = 256 << 10
"""Bytes searched in vain that are kept, in case they turn out to be answers."""

MAX_SOUGHT: Final = 64 << 20
"""The largest length believed where a frame is sought. Not more than the share of the limit of one of four threads, so
that what is found does not depend on how many there are; brokers answer a fetch with 50 MiB at most by default."""

MAX_ASIDE: Final = 4 << 20
"""Bytes kept of the other direction meanwhile."""


@shared
def _release(st: Any, key: Any) -> None:
    """Give up a direction's region of the slab, and its marks."""
    f = st.f
    v = st.v
    v[s.V_SLAB_LIVE] -= f[key, s.F_ROOM]
    if v[s.V_SLAB_LIVE] == 0:
        v[s.V_SLAB] = 0
    f[key, s.F_AT] = 0
    f[key, s.F_ROOM] = 0
    f[key, s.F_FROM] = 0
    f[key, s.F_HAVE] = 0
    f[key, s.F_NEED] = 0
    f[key, s.F_SCANNED] = 0
    mark = f[key, s.F_MARKS]
    while mark >= 0:
        following = st.marks[mark, s.MARK_NEXT]
        st.marks[mark, s.MARK_NEXT] = v[s.V_MARK_FREE]
        v[s.V_MARK_FREE] = mark
        mark = following
    f[key, s.F_MARKS] = -1
    f[key, s.F_LAST_MARK] = -1


@shared
def _append(st: Any, key: Any, source: Any, at: Any, length: Any, segment: Any, wanted: Any) -> Any:
    """Collect source[at:at + length]; `wanted` is how large the region will have to be as far as known."""
    f = st.f
    v = st.v
    have = f[key, s.F_HAVE]
    if have + length > f[key, s.F_ROOM]:
        room = max(have + length, min(wanted, max(np.int64(1 << 20), 2 * have)))
        if v[s.V_SLAB] + room > len(st.slab):
            return s.NEED_SLAB
    if v[s.V_MARK_FREE] < 0 and v[s.V_MARKS] >= len(st.marks):
        return s.NEED_MARKS
    if have + length > f[key, s.F_ROOM]:
        into = v[s.V_SLAB]
        old = f[key, s.F_AT]
        copy_bytes(st.slab, into, st.slab, old, have)
        v[s.V_SLAB] = into + room
        v[s.V_SLAB_LIVE] += room - f[key, s.F_ROOM]
        f[key, s.F_AT] = into
        f[key, s.F_ROOM] = room
    target = f[key, s.F_AT] + have
    copy_bytes(st.slab, target, source, at, length)
    f[key, s.F_HAVE] = have + length
    f[key, s.F_LAST_NS] = segment[SEG_TIME_NS]
    last = f[key, s.F_LAST_MARK]
    if last >= 0 and st.marks[last, s.MARK_ORDINAL] == segment[SEG_ORDINAL]:
        return s.OK
    mark = v[s.V_MARK_FREE]
    if mark >= 0:
        v[s.V_MARK_FREE] = st.marks[mark, s.MARK_NEXT]
    else:
        mark = v[s.V_MARKS]
        v[s.V_MARKS] = mark + 1
    m = st.marks
    m[mark, s.MARK_NEXT] = -1
    m[mark, s.MARK_AT] = have
    m[mark, s.MARK_NS] = segment[SEG_TIME_NS]
    m[mark, s.MARK_NUMBER] = segment[SEG_NUMBER]
    m[mark, s.MARK_FILE] = segment[SEG_FILE]
    m[mark, s.MARK_RECORD_AT] = segment[SEG_RECORD_AT]
    m[mark, s.MARK_ORDINAL] = segment[SEG_ORDINAL]
    if last >= 0:
        m[last, s.MARK_NEXT] = mark
    else:
        f[key, s.F_MARKS] = mark
    f[key, s.F_LAST_MARK] = mark
    return s.OK


@shared
def _drop_front(st: Any, key: Any) -> None:
    """Move what is not used up to the front of the region. Marks of used-up bytes go."""
    f = st.f
    start = f[key, s.F_FROM]
    have = f[key, s.F_HAVE]
    if start == 0:
        return
    if start >= have:
        _release(st, key)
        return
    at = f[key, s.F_AT]
    for i in range(have - start):
        st.slab[at + i] = st.slab[at + start + i]
    m = st.marks
    mark = f[key, s.F_MARKS]
    while m[mark, s.MARK_NEXT] >= 0 and m[m[mark, s.MARK_NEXT], s.MARK_AT] <= start:
        following = m[mark, s.MARK_NEXT]
        m[mark, s.MARK_NEXT] = st.v[s.V_MARK_FREE]
        st.v[s.V_MARK_FREE] = mark
        mark = following
    f[key, s.F_MARKS] = mark
    while mark >= 0:
        m[mark, s.MARK_AT] -= start  # below 0: the packet's first bytes are gone, and 0 is no segment's start
        mark = m[mark, s.MARK_NEXT]
    f[key, s.F_FROM] = 0
    f[key, s.F_HAVE] = have - start
    f[key, s.F_SCANNED] = max(np.int64(0), f[key, s.F_SCANNED] - start)


@inline
def _mark_at(st: Any, key: Any, offset: Any) -> Any:
    """The mark of the packet that brought the byte at `offset` of the region."""
    m = st.marks
    mark = st.f[key, s.F_MARKS]
    while m[mark, s.MARK_NEXT] >= 0 and m[m[mark, s.MARK_NEXT], s.MARK_AT] <= offset:
        mark = m[mark, s.MARK_NEXT]
    return mark


@shared
def _frame_from_region(st: Any, key: Any, have: Any, total: Any, held: Any, cause: Any, trigger: Any) -> None:
    """Describe the frame at F_FROM of the region in `State.frame`."""
    frame = st.frame
    m = st.marks
    start = st.f[key, s.F_FROM]
    first = _mark_at(st, key, start)
    frame[s.FR_AT] = st.f[key, s.F_AT] + start
    frame[s.FR_HAVE] = have
    frame[s.FR_TOTAL] = total
    frame[s.FR_HELD] = held
    frame[s.FR_FIRST_NS] = m[first, s.MARK_NS]
    frame[s.FR_NUMBER] = m[first, s.MARK_NUMBER]
    frame[s.FR_FILE] = m[first, s.MARK_FILE]
    frame[s.FR_RECORD_AT] = m[first, s.MARK_RECORD_AT]
    frame[s.FR_ORDINAL] = m[first, s.MARK_ORDINAL]
    if cause == 0:
        frame[s.FR_LAST_NS] = m[_mark_at(st, key, start + have - 1), s.MARK_NS]
    else:
        frame[s.FR_LAST_NS] = st.f[key, s.F_LAST_NS]
    frame[s.FR_TRIGGER] = trigger
    frame[s.FR_CAUSE] = cause
    frame[s.FR_TENTATIVE] = st.f[key, s.F_TENTATIVE]
    frame[s.FR_SOURCE] = IN_SLAB


@inline
def _least(st: Any, slot: Any, client: Any) -> Any:
    """The smallest number a length field may hold: raw SASL tokens may be empty, a request has a header of 8 bytes."""
    if st.k[slot, s.K_RAW] != 0 or st.k[slot, s.K_RAW_WAITING] > 0:
        return np.int64(0)
    return np.int64(8) if client else np.int64(4)


@shared
def _begin_drop(st: Any, key: Any, seen: Any, missing: Any, cause: Any) -> None:
    """From here to its end the frame at hand is only counted: bytes of it are missing, or it is too large to keep.
    `seen` bytes of it are in the region."""
    f = st.f
    _drop_front(st, key)
    f[key, s.F_MODE] = s.DROP
    f[key, s.F_CAUSE] = cause
    f[key, s.F_SEEN] = seen + missing
    f[key, s.F_HELD] = seen
    f[key, s.F_MISSING] = missing


@inline
def _client_id_fits(st: Any, slot: Any, buffer: Any, at: Any, length: Any) -> Any:
    """1: the client id that this connection uses; 0: readable text; -1: neither."""
    if length < 1:
        return -1
    known = st.k[slot, s.K_CLIENT_ID]
    if known != s.NULL and st.strings.entries[known, ENTRY_LENGTH] == length:
        start = st.strings.entries[known, ENTRY_AT]
        same = True
        for i in range(length):
            if st.strings.heap[start + i] != buffer[at + i]:
                same = False
                break
        if same:
            return 1
    for i in range(length):
        if buffer[at + i] < 32 or buffer[at + i] == 127:
            return -1
    return 0


NOT, UNSURE, LIKELY, PROVED = 0, 1, 2, 3
MORE, HOLE, CLOSING = 0, 1, 2  # what follows the bytes that are searched
WEAK, SURE = 1, 2  # a tentative frame inside a segment, or at its start


@inline
def _judge_request(st: Any, lay: Any, slot: Any, at: Any, end: Any, settled: Any, final: Any) -> Any:
    """Whether slab[at:end] starts with a request: NOT; UNSURE (more bytes needed); LIKELY (a plausible header with a
    readable client id, the body right as far as it goes); PROVED (a known layout, decoded to its last byte)."""
    if end - at < 4:
        return UNSURE
    size = read_int32(st.slab, at)
    if size < 8 or size > min(st.v[s.V_FRAME_LIMIT], MAX_SOUGHT):
        return NOT
    if end - at < min(np.int64(14), 4 + size):
        if end - at >= 6:
            api = read_int16(st.slab, at + 4)
            if api < 0 or api >= (2048 if settled else lay.max_version.shape[0]):
                return NOT
        return UNSURE
    stop = min(end, at + 4 + size)
    whole = stop == at + 4 + size
    status, api, version, _, place, length, body = parse_request_header(st.slab, at + 4, stop, lay)
    known = 0 <= api < lay.max_version.shape[0] and 0 <= version <= lay.max_version[api] + 8
    if not known and not (settled and whole and status == OK and 0 <= api < 2048 and 0 <= version < 1024):
        return NOT  # an API of the future, or a made-up one, is believed only where a frame is certain to start
    if status != OK:
        if status != SHORT or whole:
            return NOT
        # Cut inside the client id by the snap length: what is there of it must do (`settled`: this place is certain).
        here = end - at - 14 if length == -2 else length
        if final and settled and here > 0 and 1 <= read_int16(st.slab, at + 12) <= 255:
            if _client_id_fits(st, slot, st.slab, at + 14, here) >= 0:
                return LIKELY
        return UNSURE if here < 1 or _client_id_fits(st, slot, st.slab, at + 14, here) >= 0 else NOT
    fits = _client_id_fits(st, slot, st.slab, place, length)
    pc = known_layout(lay, 0, api, version)
    if pc < 0:
        return LIKELY if fits >= 0 and (whole or fits == 1) else NOT
    stopped, _, status, _ = decode(
        st.slab, body, stop, pc, lay.code, lay.tags, lay.tag_entries, lay.role, st.tape, np.int64(0), np.int64(0),
        st.stack,
    )  # fmt: skip
    if status == FULL:
        return LIKELY  # longer than the tape has room for now, and right so far
    if whole:
        if status == OK and stopped == stop:
            return PROVED
        return LIKELY if fits == 1 else NOT
    if not may_go_on(status):
        return NOT
    if fits < 0 and (length > 0 or st.k[slot, s.K_CLIENT_ID] != s.NULL):
        return NOT  # do not wait for the rest of what says no name, or no readable one
    return LIKELY if fits >= 0 else UNSURE


@inline
def _named(st: Any, at: Any, end: Any) -> Any:
    """Whether the request at `at` says a client id that begins with a letter or digit, as far as it is there."""
    if end - at < 15 or read_int16(st.slab, at + 12) < 1:
        return False
    first = np.int64(st.slab[at + 14])
    return 48 <= first <= 57 or 65 <= first <= 90 or 97 <= first <= 122 or first >= 128


@inline
def _followed(st: Any, lay: Any, at: Any, end: Any, boundary: Any) -> Any:
    """A whole request without a name, somewhere: PROVED where it starts a segment and the next request follows it."""
    if not boundary or read_int32(st.slab, at) < 16:
        return NOT
    after = at + 4 + read_int32(st.slab, at)
    if end - after < 14:
        return UNSURE
    size = read_int32(st.slab, after)
    pc = known_layout(lay, 0, read_int16(st.slab, after + 4), read_int16(st.slab, after + 6))
    next_id = read_int32(st.slab, at + 8) + 1
    if size < 16 or size > min(st.v[s.V_FRAME_LIMIT], MAX_SOUGHT) or pc < 0:
        return NOT
    if read_int32(st.slab, after + 8) != next_id:
        return NOT
    return PROVED if read_int16(st.slab, after + 12) == read_int16(st.slab, at + 12) else NOT


@inline
def _judge_response(st: Any, lay: Any, slot: Any, key: Any, at: Any, end: Any, boundary: Any) -> Any:
    """The same for a response: its correlation id must be that of a pending request; at the start of a segment it may
    also be that of a request from before the capture, if the frame ends where the bytes do or another follows it."""
    if end - at < 8:
        return UNSURE
    size = read_int32(st.slab, at)
    if size < 4 or size > min(st.v[s.V_FRAME_LIMIT], MAX_SOUGHT):
        return NOT
    correlation = read_int32(st.slab, at + 4)
    stop = min(end, at + 4 + size)
    whole = stop == at + 4 + size
    request, _ = find_pending(st, slot, correlation)
    if request >= 0 and st.pending[request, s.X_API_KEY] != s.NULL:
        api, version = st.pending[request, s.X_API_KEY], st.pending[request, s.X_API_VERSION]
        if not boundary and end - at > 8 and known_layout(lay, 1, api, version) >= 0:
            # No broker sends tags in the header so far: beside a number that fits by chance they mean nothing.
            if lay.header_version[1, api, version] == 1 and st.slab[at + 8] != 0:
                return NOT
        status, stopped, _, _, body = decode_response(
            st, lay, st.slab, at + 8, stop, api, version
        )
        if status == FULL:
            return LIKELY
        if whole:
            if status == OK and stopped == stop:
                return PROVED
            return LIKELY if boundary and status < 0 else NOT
        if may_go_on(status):
            return LIKELY if boundary or stop - body >= 12 else UNSURE
        return NOT
    lowest = st.k[slot, s.K_LOWEST_ID]
    # Only before the first answer: later ones are to requests that were seen, or that were lost in between.
    early = boundary and st.f[key, s.F_FRAMES] == 0 and lowest != s.NULL
    if early and lowest - ORPHAN_SPAN <= correlation < lowest and correlation >= 0:
        if not whole:
            return LIKELY
        if stop == end:
            return LIKELY
        if end - stop >= 8:
            following = read_int32(st.slab, stop + 4)
            if read_int32(st.slab, stop) >= 4 and correlation < following <= correlation + ORPHAN_SPAN:
                return LIKELY
        elif end - stop >= 4:
            return LIKELY if read_int32(st.slab, stop) >= 4 else NOT
        else:
            return UNSURE
    return NOT


@inline
def _seek(st: Any, lay: Any, slot: Any, key: Any, client: Any, final: Any) -> Any:
    """SEEK: look for a frame in the region. True: found, F_FROM is at its start. Else F_SCANNED has moved on as far as
    no frame can start. `final` (MORE, HOLE, CLOSING): where no more bytes will come, what is unsure is passed over."""
    f = st.f
    at = f[key, s.F_AT]
    have = f[key, s.F_HAVE]
    offset = max(f[key, s.F_FROM], f[key, s.F_SCANNED])
    undecided = st.k[slot, s.K_CLASS] == s.UNDECIDED
    doubted = f[key, s.F_MODE] == s.SYNC
    if doubted:
        # A frame that is only likely is not whole yet. A segment that starts with one is a better place to go on.
        offset = st.marks[f[key, s.F_LAST_MARK], s.MARK_AT]
        if offset <= f[key, s.F_FROM]:
            offset = have
    mark = f[key, s.F_MARKS]
    while offset < have:
        if st.slab[at + offset] > 64:
            offset = have if doubted else offset + 1  # no length starts so
            continue
        while st.marks[mark, s.MARK_NEXT] >= 0 and st.marks[st.marks[mark, s.MARK_NEXT], s.MARK_AT] <= offset:
            mark = st.marks[mark, s.MARK_NEXT]
        boundary = st.marks[mark, s.MARK_AT] == offset
        if client:
            settled = boundary and (f[key, s.F_STRICT] != 0 or not undecided)
            verdict = _judge_request(st, lay, slot, at + offset, at + have, settled, final != MORE)
        else:
            verdict = _judge_response(st, lay, slot, key, at + offset, at + have, boundary)
        if verdict == UNSURE and have - offset >= (14 if client else 24) and not boundary:
            verdict = NOT
        if verdict == LIKELY and client and undecided:
            # A first request proves the connection; only where it can not be had whole a likely one must do.
            size = read_int32(st.slab, at + offset) + 4
            if have - offset < size and final == MORE:
                verdict = UNSURE if boundary else NOT
            elif f[key, s.F_STRICT] == 0 and (final == CLOSING or not _named(st, at + offset, at + have)):
                verdict = NOT  # nothing but a few fitting bytes somewhere speaks for Kafka
        if verdict == LIKELY and client and not boundary and not undecided:
            length = read_int16(st.slab, at + offset + 12)
            if offset + 14 + length > have or _client_id_fits(st, slot, st.slab, at + offset + 14, length) != 1:
                verdict = NOT
        if verdict == PROVED and client and undecided and not boundary and read_int32(st.slab, at + offset) < 16:
            verdict = NOT  # so few bytes are right by chance now and then
        if verdict == PROVED and client and undecided and f[key, s.F_STRICT] == 0:
            if not _named(st, at + offset, at + have):
                verdict = _followed(st, lay, at + offset, at + have, boundary)  # zeros among small numbers decode too
        if verdict == UNSURE and final != MORE:
            verdict = NOT
            if f[key, s.F_STRICT] != 0:
                f[key, s.F_STRICT] = 0  # cut short, which does not speak against Kafka
                offset = have
                break
        if verdict >= LIKELY:
            st.k[slot, s.K_SKIPPED] += offset - f[key, s.F_FROM]
            f[key, s.F_FROM] = offset
            f[key, s.F_MODE] = s.SYNC
            f[key, s.F_TENTATIVE] = SURE if boundary or verdict == PROVED else WEAK
            return True
        if verdict == UNSURE:
            break
        if doubted:
            break
        if f[key, s.F_STRICT] != 0:
            offset = have
            break
        offset += 1
    if not doubted:
        f[key, s.F_SCANNED] = offset
    f[key, s.F_STALLED] = have
    return False


@shared
def _not_kafka(st: Any, slot: Any) -> None:
    """Both directions are from now on only counted."""
    st.k[slot, s.K_CLASS] = s.OTHER
    for key in range(2 * slot, 2 * slot + 2):
        st.k[slot, s.K_OTHER] += st.f[key, s.F_HAVE] + st.f[key, s.F_LOST]
        st.f[key, s.F_LOST] = 0
        _release(st, key)
        st.f[key, s.F_MODE] = s.SWALLOW


@inline
def _begin(st: Any, c: Any, slot: Any, conn: Any, flow_key: Any, ports: Any) -> None:
    """A connection's first segment."""
    f = st.f
    k = st.k
    for column in range(s.K_COLUMNS):
        k[slot, column] = 0
    k[slot, s.K_STARTED] = 1
    k[slot, s.K_CLIENT] = -1
    k[slot, s.K_HEAD] = -1
    k[slot, s.K_TAIL] = -1
    for column in (s.K_MECHANISM, s.K_SOFTWARE_NAME, s.K_SOFTWARE_VERSION, s.K_CLIENT_ID, s.K_LOWEST_ID):
        k[slot, column] = s.NULL
    opener = c[slot, C_SYN_SIDE]
    if opener >= 0:
        k[slot, s.K_CLIENT] = opener
    pair = np.int64(flow_key[conn[slot, CONN_FLOW], 4])
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
        if opener >= 0:
            f[key, s.F_STRICT] = 1
        else:
            f[key, s.F_BROKEN] = 1
    if k[slot, s.K_INSISTED] != 0:
        k[slot, s.K_CLASS] = s.KAFKA
        for key in range(2 * slot, 2 * slot + 2):
            f[key, s.F_STRICT] = 0
            if opener >= 0:
                f[key, s.F_MODE] = s.SYNC


@inline
def _first_bytes(st: Any, slot: Any, side: Any, source: Any, at: Any, length: Any) -> None:
    """Keep the first 8 bytes a side says (in one number, its length in the low bits of none: zero is nothing)."""
    column = s.K_FIRST_0 + side
    if st.k[slot, column] != 0:
        return
    value = np.int64(0)
    for i in range(8):
        byte = np.int64(source[at + i]) if i < length else np.int64(0)
        value = value << 8 | byte
    st.k[slot, column] = value
    # TLS records: handshake or alert, version 3.x (RFC 8446, 5.1).
    if length >= 3 and 20 <= source[at] <= 23 and source[at + 1] == 3 and source[at + 2] <= 4:
        st.k[slot, s.K_TLS] = 1


@inline
def _room_for_end(st: Any, slot: Any) -> Any:
    if st.v[s.V_OUT] + st.k[slot, s.K_COUNT] + 4 > len(st.out):
        return s.NEED_OUT
    if st.v[s.V_ENDED] + 1 > len(st.ended):
        return s.NEED_ENDED
    return s.OK


# What `_act` asks the driver for, beside the NEED_ statuses.
NOTHING, TAKE, SEEK_ONE = 100, 101, 102
IN_WINDOW, IN_WAITING, IN_SLAB = 0, 1, 2
ARRIVING, WORKING = 0, 1


@inline
def _opaque(st: Any, slot: Any) -> Any:
    """A connection that `--port` says is Kafka, and that is TLS."""
    return st.k[slot, s.K_TLS] != 0 and st.k[slot, s.K_REQUESTS] == 0


@inline
def _plan(st: Any, first: Any, second: Any) -> None:
    """The directions to work on, in this order; -1: none."""
    st.v[s.V_KEY_0] = first
    st.v[s.V_KEY_1] = second


@inline
def _arrive(st: Any, segment: Any, buffer: Any, waiting: Any, c: Any, conn: Any, flow_key: Any, ports: Any) -> Any:
    """Begin a segment: note what can be noted at once, and plan which directions to work on."""
    key = segment[SEG_KEY]
    slot = key >> 1
    side = key & 1
    kind = segment[SEG_KIND]
    length = segment[SEG_LENGTH]
    f = st.f
    k = st.k
    if k[slot, s.K_STARTED] == 0:
        _begin(st, c, slot, conn, flow_key, ports)
    _plan(st, np.int64(-1), np.int64(-1))
    kafka = k[slot, s.K_CLASS] == s.KAFKA
    asking = 2 * slot + k[slot, s.K_CLIENT]
    if kind == DATA:
        source = buffer if segment[SEG_SOURCE] == IN_WINDOW else waiting
        if k[slot, s.K_FIRST_0 + side] == 0:
            _first_bytes(st, slot, side, source, segment[SEG_AT], length)
        if k[slot, s.K_CLASS] == s.OTHER:
            k[slot, s.K_OTHER] += length
        elif not kafka:
            status = _append(st, key, source, segment[SEG_AT], length, segment, f[key, s.F_HAVE] + length)
            if status != s.OK:
                return status
            if k[slot, s.K_CLIENT] < 0 or k[slot, s.K_CLIENT] == side:
                _plan(st, key, np.int64(-1))
            elif f[key, s.F_HAVE] > MAX_ASIDE:
                # Kept until the opener's side is understood; not for ever.
                f[key, s.F_LOST] += f[key, s.F_HAVE]
                _release(st, key)
                f[key, s.F_BROKEN] = 1
                f[key, s.F_STRICT] = 0
            st.v[s.V_POSITION] = length
        elif _opaque(st, slot):
            k[slot, s.K_ENCRYPTED] += length + f[2 * slot, s.F_HAVE] + f[2 * slot + 1, s.F_HAVE]
            _release(st, 2 * slot)
            _release(st, 2 * slot + 1)
        else:
            if k[slot, s.K_CLIENT] < 0 and f[key, s.F_HAVE] == 0:
                _guess_client(st, slot, side, source, segment[SEG_AT], length)
            _plan(st, key, np.int64(-1))
    elif kind == GAP or kind == SNAPLEN:
        if kind == SNAPLEN:
            f[key, s.F_LAST_NS] = segment[SEG_TIME_NS]
        asks = kafka or k[slot, s.K_CLIENT] < 0 or k[slot, s.K_CLIENT] == side  # requests are sought where they can be
        if k[slot, s.K_CLASS] != s.OTHER and asks and not (kafka and _opaque(st, slot)):
            _plan(st, key, np.int64(-1))
    else:
        if kind == FINISH:
            k[slot, s.K_FINS] |= 1 << side
        closed = kind == END or (kind == FINISH and k[slot, s.K_FINS] == 3 and k[slot, s.K_CLOSED] == 0)
        # After a RST bytes that were under way may still come: only what is pending ends with it.
        if closed and kafka and not _opaque(st, slot):
            if k[slot, s.K_CLIENT] < 0:
                k[slot, s.K_CLIENT] = 0  # insisted on, and nothing ever said who asks
                asking = 2 * slot
            _plan(st, asking, asking ^ 1)
        elif kind == END and k[slot, s.K_CLASS] == s.UNDECIDED:
            if k[slot, s.K_CLIENT] >= 0:
                _plan(st, asking, np.int64(-1))
            else:
                _plan(st, 2 * slot, 2 * slot + 1)
    return s.OK


@inline
def _guess_client(st: Any, slot: Any, side: Any, source: Any, at: Any, length: Any) -> None:
    """--port names neither end as the only broker: take the side for the client that says something like a request."""
    if length >= 8:
        api = read_int16(source, at + 4)
        st.k[slot, s.K_CLIENT] = side if 0 <= api < 128 and read_int16(source, at + 6) < 64 else 1 - side
    else:
        st.k[slot, s.K_CLIENT] = side


@inline
def _act(st: Any, segment: Any, key: Any, buffer: Any, waiting: Any) -> Any:
    """Do what can be done in a direction without decoding, and say what is needed next: TAKE (the frame is described
    in `State.frame`), SEEK_ONE, NOTHING (done with this direction), or a NEED_ status."""
    f = st.f
    k = st.k
    v = st.v
    slot = key >> 1
    kind = segment[SEG_KIND]
    own = key == segment[SEG_KEY]
    client = k[slot, s.K_CLASS] == s.UNDECIDED or (key & 1) == k[slot, s.K_CLIENT]
    trigger = segment[SEG_TRIGGER]
    closing = kind == END or kind == FINISH
    final = closing or (own and (kind == GAP or kind == SNAPLEN))
    while True:
        mode = f[key, s.F_MODE]
        start = f[key, s.F_FROM]
        have = f[key, s.F_HAVE] - start
        if mode == s.DROP and f[key, s.F_SEEN] >= f[key, s.F_NEED]:
            _describe_drop(st, key, f[key, s.F_CAUSE], trigger)
            return TAKE
        if mode == s.SYNC and have >= 4:
            size = read_int32(st.slab, f[key, s.F_AT] + start)
            if size < _least(st, slot, client):
                f[key, s.F_MODE] = s.SEEK
                f[key, s.F_TENTATIVE] = 0
                f[key, s.F_SCANNED] = start
                f[key, s.F_STALLED] = -1
                continue
            total = size + 4
            f[key, s.F_NEED] = total
            if have >= total:
                _frame_from_region(st, key, total, total, total, 0, trigger)
                return TAKE
            if total > v[s.V_FRAME_LIMIT] and have >= PREFIX:
                _begin_drop(st, key, have, np.int64(0), s.LIMIT)
                continue
            if f[key, s.F_TENTATIVE] == WEAK and f[key, s.F_STALLED] != f[key, s.F_HAVE]:
                return SEEK_ONE
        if mode == s.SEEK and have > 0 and (final or f[key, s.F_STALLED] != f[key, s.F_HAVE]):
            if max(start, f[key, s.F_SCANNED]) < f[key, s.F_HAVE]:
                return SEEK_ONE
        if mode == s.SYNC and start > 0:
            _drop_front(st, key)

        # What is at hand is used up: on to what the segment brings.
        if closing:
            if k[slot, s.K_CLASS] == s.UNDECIDED or not _close(st, slot, key, client, trigger):
                return NOTHING
            if f[key, s.F_MODE] == s.DROP:
                return TAKE
            continue
        if not own or v[s.V_POSITION] >= segment[SEG_LENGTH] or k[slot, s.K_CLASS] != s.KAFKA:
            return NOTHING
        if kind == DATA:
            source = buffer if segment[SEG_SOURCE] == IN_WINDOW else waiting
            status = _feed(st, slot, key, client, source, segment)
            if status != s.OK:
                return status
        else:
            _hole(st, slot, key, segment[SEG_LENGTH])


@inline
def _describe_drop(st: Any, key: Any, cause: Any, trigger: Any) -> None:
    """Describe a frame that was only counted, by its beginning."""
    f = st.f
    have = min(f[key, s.F_HAVE] - f[key, s.F_FROM], f[key, s.F_NEED])
    _frame_from_region(st, key, have, f[key, s.F_NEED], f[key, s.F_HELD], cause, trigger)


@inline
def _feed(st: Any, slot: Any, key: Any, client: Any, source: Any, segment: Any) -> Any:
    """Take some of a segment's bytes: TAKE where a whole frame lies in it, OK where they were collected."""
    f = st.f
    v = st.v
    position = v[s.V_POSITION]
    at = segment[SEG_AT] + position
    rest = segment[SEG_LENGTH] - position
    mode = f[key, s.F_MODE]
    have = f[key, s.F_HAVE]
    if mode == s.DROP:
        take = min(rest, f[key, s.F_NEED] - f[key, s.F_SEEN])
        f[key, s.F_SEEN] += take
        f[key, s.F_HELD] += take
        f[key, s.F_LAST_NS] = segment[SEG_TIME_NS]
        v[s.V_POSITION] = position + take
        return s.OK
    take = rest
    wanted = have + rest
    if mode == s.SYNC:
        wanted = np.int64(PREFIX)
        if have == 0 and rest >= 4:
            size = read_int32(source, at)
            if size < _least(st, slot, client):
                f[key, s.F_MODE] = s.SEEK
                f[key, s.F_SCANNED] = 0
                f[key, s.F_STALLED] = -1
                return s.OK
            total = size + 4
            if total <= rest:
                frame = st.frame
                frame[s.FR_AT] = at
                frame[s.FR_HAVE] = total
                frame[s.FR_TOTAL] = total
                frame[s.FR_HELD] = total
                frame[s.FR_FIRST_NS] = segment[SEG_TIME_NS]
                frame[s.FR_LAST_NS] = segment[SEG_TIME_NS]
                frame[s.FR_NUMBER] = segment[SEG_NUMBER]
                frame[s.FR_FILE] = segment[SEG_FILE]
                frame[s.FR_RECORD_AT] = segment[SEG_RECORD_AT]
                frame[s.FR_ORDINAL] = segment[SEG_ORDINAL]
                frame[s.FR_TRIGGER] = segment[SEG_TRIGGER]
                frame[s.FR_CAUSE] = 0
                frame[s.FR_TENTATIVE] = 0
                frame[s.FR_SOURCE] = segment[SEG_SOURCE]
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
    status = _append(st, key, source, at, take, segment, wanted)
    if status == s.OK:
        v[s.V_POSITION] = position + take
    return status


@inline
def _doubt(st: Any, key: Any) -> None:
    """The tentative frame is likely none: is there something better inside?"""
    f = st.f
    f[key, s.F_TENTATIVE] = 0
    f[key, s.F_MODE] = s.SEEK
    f[key, s.F_SCANNED] = f[key, s.F_FROM] + 1
    f[key, s.F_STALLED] = -1


@inline
def _hole(st: Any, slot: Any, key: Any, length: Any) -> None:
    """Bytes are missing: follow the frame at hand through them, or give up the place."""
    f = st.f
    v = st.v
    have = f[key, s.F_HAVE] - f[key, s.F_FROM]
    if f[key, s.F_MODE] == s.SYNC and f[key, s.F_TENTATIVE] == WEAK:
        _doubt(st, key)
        return
    if f[key, s.F_MODE] == s.SYNC and have >= 4:
        _begin_drop(st, key, have, np.int64(0), s.TRUNCATED)
    if f[key, s.F_MODE] == s.DROP:
        take = min(length - v[s.V_POSITION], f[key, s.F_NEED] - f[key, s.F_SEEN])
        f[key, s.F_SEEN] += take
        f[key, s.F_MISSING] += take
        v[s.V_POSITION] += take
        return
    if f[key, s.F_MODE] == s.SYNC:
        st.k[slot, s.K_INCOMPLETE] += have
    else:
        st.k[slot, s.K_SKIPPED] += have
    _release(st, key)
    f[key, s.F_MODE] = s.SEEK
    f[key, s.F_STALLED] = -1
    f[key, s.F_BROKEN] = 1
    v[s.V_POSITION] = length


@inline
def _close(st: Any, slot: Any, key: Any, client: Any, trigger: Any) -> Any:
    """No more bytes will come. False: nothing is left; True: go on (DROP: a cut request is described)."""
    f = st.f
    k = st.k
    have = f[key, s.F_HAVE] - f[key, s.F_FROM]
    if f[key, s.F_MODE] == s.SYNC and have > 0:
        if f[key, s.F_TENTATIVE] != 0 and have > 4:
            # It was only likely, and never came whole.
            _doubt(st, key)
            return True
        if have >= 12 and client:
            _begin_drop(st, key, have, np.int64(0), s.CUT)
    if f[key, s.F_MODE] == s.DROP:
        if client and f[key, s.F_HAVE] >= 12:
            f[key, s.F_LAST_NS] = s.NULL
            _describe_drop(st, key, s.LIMIT if f[key, s.F_CAUSE] == s.LIMIT else s.CUT, trigger)
            return True
        if f[key, s.F_CAUSE] == s.LIMIT:
            k[slot, s.K_LIMIT] += f[key, s.F_HELD]
        else:
            k[slot, s.K_INCOMPLETE] += f[key, s.F_HELD]
        f[key, s.F_MODE] = s.SYNC
    elif f[key, s.F_MODE] == s.SYNC:
        k[slot, s.K_INCOMPLETE] += have
    else:
        k[slot, s.K_SKIPPED] += have
    _release(st, key)
    return False


@inline
def _taken(st: Any, key: Any, status: Any) -> None:
    """The frame described was taken, or (REVERT) is none."""
    f = st.f
    frame = st.frame
    if frame[s.FR_SOURCE] != IN_SLAB:
        st.v[s.V_POSITION] += frame[s.FR_TOTAL]
        return
    f[key, s.F_TENTATIVE] = 0
    if f[key, s.F_MODE] == s.DROP:
        if status == s.REVERT:
            # Sought and not proved, and with a hole: there is nothing to go back to.
            st.k[key >> 1, s.K_SKIPPED] += f[key, s.F_HELD]
        _release(st, key)
        f[key, s.F_MODE] = s.SYNC
    elif status == s.REVERT:
        f[key, s.F_MODE] = s.SEEK
        f[key, s.F_SCANNED] = f[key, s.F_FROM] + 1
        f[key, s.F_STALLED] = -1
    else:
        f[key, s.F_FROM] += frame[s.FR_TOTAL]
        f[key, s.F_NEED] = 0
        if f[key, s.F_FROM] == f[key, s.F_HAVE]:
            _release(st, key)


@inline
def _sought(st: Any, key: Any, found: Any) -> None:
    """After a search: a connection recognised, or bytes passed over."""
    f = st.f
    k = st.k
    slot = key >> 1
    other = key ^ 1
    undecided = k[slot, s.K_CLASS] == s.UNDECIDED
    passed = f[key, s.F_SCANNED] - f[key, s.F_FROM]
    if found:
        if undecided:
            k[slot, s.K_CLASS] = s.KAFKA
            k[slot, s.K_CLIENT] = key & 1
            k[slot, s.K_SKIPPED] += f[key, s.F_LOST] + f[other, s.F_LOST]
            f[key, s.F_LOST] = 0
            f[other, s.F_LOST] = 0
            f[other, s.F_SCANNED] = 0
            f[other, s.F_STALLED] = -1
            if f[other, s.F_STRICT] != 0:
                f[other, s.F_MODE] = s.SYNC  # its first byte is a response's
            f[other, s.F_STRICT] = 0
            _plan(st, key, other)
        f[key, s.F_STRICT] = 0
    elif f[key, s.F_MODE] == s.SYNC:
        pass  # nothing better than the likely frame
    elif not undecided:
        if passed > 0:
            k[slot, s.K_SKIPPED] += passed
            f[key, s.F_FROM] = f[key, s.F_SCANNED]
            _drop_front(st, key)
            f[key, s.F_STALLED] = f[key, s.F_HAVE]
    elif f[key, s.F_STRICT] != 0:
        if passed > 0 or f[key, s.F_HAVE] > MAX_SEARCH or k[slot, s.K_TLS] != 0:
            _not_kafka(st, slot)
    elif passed > SEARCHED_KEPT:
        f[key, s.F_LOST] += passed
        f[key, s.F_FROM] = f[key, s.F_SCANNED]
        _drop_front(st, key)
        f[key, s.F_STALLED] = f[key, s.F_HAVE]
        f[key, s.F_BROKEN] = 1
        if f[key, s.F_LOST] > MAX_SEARCH:
            _not_kafka(st, slot)


@inline
def _conclude(st: Any, segment: Any) -> Any:
    """The directions of a segment are worked off: what follows for the connection."""
    key = segment[SEG_KEY]
    slot = key >> 1
    kind = segment[SEG_KIND]
    trigger = segment[SEG_TRIGGER]
    f = st.f
    k = st.k
    v = st.v
    if kind == DATA:
        return s.OK
    if kind == GAP or kind == SNAPLEN:
        if k[slot, s.K_CLASS] == s.UNDECIDED:
            f[key, s.F_LOST] += f[key, s.F_HAVE]
            _release(st, key)
            f[key, s.F_BROKEN] = 1
            f[key, s.F_STRICT] = 0
        return s.OK
    closing = k[slot, s.K_CLOSED] == 0 and (kind == RESET or k[slot, s.K_FINS] == 3)
    if v[s.V_OUT] + k[slot, s.K_COUNT] + 4 > len(st.out):
        return s.NEED_OUT
    if v[s.V_ENDED] + 1 > len(st.ended):
        return s.NEED_ENDED
    if closing:
        k[slot, s.K_CLOSED] = 2 if kind == RESET else 1
        flush_pending(st, slot, s.UNANSWERED, trigger)
    if kind == END:
        if k[slot, s.K_CLASS] == s.UNDECIDED:
            _not_kafka(st, slot)
        if k[slot, s.K_CLOSED] == 0 and k[slot, s.K_FINS] != 0:
            k[slot, s.K_CLOSED] = 1  # one side has closed; the capture ended before the other did
        ended = k[slot, s.K_CLOSED] != 0 or v[s.V_FINAL] == 0
        flush_pending(st, slot, s.UNANSWERED if ended else s.IN_FLIGHT, trigger)
        st.ended[v[s.V_ENDED], 0] = slot
        st.ended[v[s.V_ENDED], 1] = trigger
        v[s.V_ENDED] += 1
        k[slot, s.K_STARTED] = 0
    return s.OK


@kernel
def converse(
    begin: Any, rows: Any, buffer: Any, waiting: Any, c: Any, conn: Any, flow_key: Any, ports: Any, st: Any, lay: Any
) -> tuple[Any, Any]:
    """Segments [begin, n) -> (status, next segment). On a NEED_ status the caller grows that table and calls again.

    The functions that decode are called from here only, once each: what calls them at several places, or deep down,
    takes minutes to compile.
    """
    v = st.v
    for i in range(begin, len(rows)):
        segment = rows[i]
        if v[s.V_STAGE] == ARRIVING:
            status = _arrive(st, segment, buffer, waiting, c, conn, flow_key, ports)
            if status != s.OK:
                return status, i
            v[s.V_STAGE] = WORKING
        while v[s.V_KEY_0] >= 0:
            key = v[s.V_KEY_0]
            slot = key >> 1
            action = _act(st, segment, key, buffer, waiting)
            if action == NOTHING:
                v[s.V_KEY_0] = v[s.V_KEY_1]
                v[s.V_KEY_1] = -1
            elif action == TAKE:
                origin = st.frame[s.FR_SOURCE]
                source = buffer if origin == IN_WINDOW else (waiting if origin == IN_WAITING else st.slab)
                if (key & 1) == st.k[slot, s.K_CLIENT]:
                    status = take_request(st, lay, source, slot, key)
                else:
                    status = take_response(st, lay, source, slot, key)
                if status != s.OK and status != s.REVERT:
                    return status, i
                _taken(st, key, status)
            elif action == SEEK_ONE:
                kind = segment[SEG_KIND]
                ending = kind == END or kind == FINISH
                hole = key == segment[SEG_KEY] and (kind == GAP or kind == SNAPLEN)
                final = CLOSING if ending else (HOLE if hole else MORE)
                client = st.k[slot, s.K_CLASS] == s.UNDECIDED or (key & 1) == st.k[slot, s.K_CLIENT]
                _sought(st, key, _seek(st, lay, slot, key, client, final))
            else:
                return action, i
        status = _conclude(st, segment)
        if status != s.OK:
            return status, i
        v[s.V_STAGE] = ARRIVING
        v[s.V_POSITION] = 0
    return s.OK, len(rows)



