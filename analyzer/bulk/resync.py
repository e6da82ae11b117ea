"""Find the next frame without a known start: at a connection's beginning, and behind lost bytes.

In: the region of a direction. Out: F_FROM at the start of a frame, or F_SCANNED behind what cannot be one; a connection
recognised, or given up.

Rules
- A connection is Kafka when one of its sides sends a request that decodes to its last byte (or `--port` says so). The
  side that opened the connection is tried at its first byte only; where the beginning was not captured, both sides are
  searched.
- A request is sought by a plausible header that decodes (or the client id that the connection uses), a response by the
  correlation id of a pending request. Verdicts: NOT; UNSURE, more bytes are needed; LIKELY, right as far as it goes;
  PROVED, decoded to its last byte. A few bytes behind the body are tolerated, as brokers tolerate them.
- In the middle of a connection a request without a name needs a witness: the request behind it, or a whole answer
  with its correlation id from the other side. So does one that an answer could be too: `[correlation id][how many
  topics][topic]` reads as the header of a Produce request whose version is a small correlation id.
- What is found is tentative until it was taken whole. Bytes passed over count.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.headers import (
    MAX_API,
    MAX_VERSION,
    decode_response,
    known_layout,
    may_go_on,
    near_known,
    parse_request_header,
)
from kwire.analyzer.bulk.pending import find_pending
from kwire.analyzer.bulk.regions import drop_front, release
from kwire.analyzer.bulk.symbols import ENTRY_AT, ENTRY_LENGTH
from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.decoding import FULL, OK, SHORT, decode, read_int16, read_int32
from kwire.captures.kernels import Bytes, Flag, Int, inline, shared

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

MAX_REST: Final = 16
"""Bytes behind the body of a request that does not yet belong to a connection known to be Kafka. Brokers tolerate any
number; librdkafka up to 1.3 sends four (an empty array of a draft of KIP-35), others one (an empty set of tags)."""

NO_TOPICS: Final = 12
"""Bytes of a Produce request's body that has no topic. No client sends one, and an answer to OffsetCommit reads so."""

FEW: Final = 1000
"""No more topics, and partitions of a topic, are expected of an answer that may be a cut Produce request as well."""

MIN_CUT: Final = 128
"""Bytes of a cut request that have to be right where it is the first of its connection and begins inside a segment."""

NOT, UNSURE, LIKELY, PROVED, NAMELESS = 0, 1, 2, 3, 4
"""Verdicts; see above. NAMELESS: decoded, but for some bytes behind it or a version of the future, and nothing says
surely who asks: somebody has to vouch for it."""

MORE, HOLE, CLOSING = 0, 1, 2  # what follows the bytes that are searched

WEAK, SURE = 1, 2  # a tentative frame inside a segment, or at its start


@inline
def plan(fr: s.Framing, first: Int, second: Int) -> None:
    """The directions to work on, in this order; -1: none."""
    fr.v[s.V_KEY_0] = first
    fr.v[s.V_KEY_1] = second


@shared
def not_kafka(fr: s.Framing, slot: Int) -> None:
    """Both directions are from now on only counted."""
    fr.k[slot, s.K_CLASS] = s.OTHER
    fr.k[slot, s.K_OTHER] += fr.k[slot, s.K_PREFIX]
    fr.k[slot, s.K_PREFIX] = 0
    fr.k[slot, s.K_PREFIX_TEXT] = s.NULL
    for key in range(2 * slot, 2 * slot + 2):
        fr.k[slot, s.K_OTHER] += fr.f[key, s.F_HAVE] - fr.f[key, s.F_FROM] + fr.f[key, s.F_LOST]
        fr.f[key, s.F_LOST] = 0
        release(fr, key)
        fr.f[key, s.F_MODE] = s.SWALLOW


@inline
def _client_id_fits(fr: s.Framing, mt: s.Matching, slot: Int, buffer: Bytes, at: Int, length: Int) -> Int:
    """1: the client id that this connection uses; 0: readable text; -1: neither."""
    if length < 1:
        return -1
    known = fr.k[slot, s.K_CLIENT_ID]
    if known != s.NULL and mt.strings.entries[known, ENTRY_LENGTH] == length:
        start = mt.strings.entries[known, ENTRY_AT]
        same = True
        for i in range(length):
            if mt.strings.heap[start + i] != buffer[at + i]:
                same = False
                break
        if same:
            return 1
    for i in range(length):
        if buffer[at + i] < 32 or buffer[at + i] == 127:
            return -1
    return 0


@inline
def _judge_request(
    fr: s.Framing,
    mt: s.Matching,
    lay: s.Layouts,
    slot: Int,
    at: Int,
    end: Int,
    boundary: Flag,
    settled: Flag,
    first: Flag,
    final: Int,
) -> Int:
    """Whether slab[at:end] starts with a request: NOT; UNSURE (more bytes needed); LIKELY (a plausible header with a
    readable client id, the body right as far as it goes); PROVED (a known layout, decoded to its last byte); NAMELESS.
    `settled`: this place is certain; `first`: so far nothing says that this is Kafka, nor which side asks."""
    if end - at < 4:
        return UNSURE
    size = read_int32(fr.slab, at)
    if size < 8 or size > min(fr.v[s.V_FRAME_LIMIT], MAX_SOUGHT):
        return NOT
    if end - at < min(np.int64(14), 4 + size):
        if end - at >= 6:
            api = read_int16(fr.slab, at + 4)
            if api < 0 or api >= (MAX_API if settled else lay.max_version.shape[0]):
                return NOT
        return UNSURE
    stop = min(end, at + 4 + size)
    whole = stop == at + 4 + size
    status, api, version, _, place, length, body = parse_request_header(fr.slab, at + 4, stop, lay)
    known = near_known(lay, api, version)
    if not known and not (settled and whole and status == OK and 0 <= api < MAX_API and 0 <= version < MAX_VERSION):
        return NOT  # an API of the future, or a made-up one, is believed only where a frame is certain to start
    if status != OK:
        if status != SHORT or whole:
            return NOT
        # Cut inside the client id by the snap length: what is there of it must do (`settled`: this place is certain).
        here = end - at - 14 if length == -2 else length
        if final and settled and here > 0 and 1 <= read_int16(fr.slab, at + 12) <= 255:
            if _client_id_fits(fr, mt, slot, fr.slab, at + 14, here) >= 0:
                return LIKELY
        return UNSURE if here < 1 or _client_id_fits(fr, mt, slot, fr.slab, at + 14, here) >= 0 else NOT
    fits = _client_id_fits(fr, mt, slot, fr.slab, place, length)
    pc = known_layout(lay, 0, api, version)
    if pc < 0:
        if first and whole and fits >= 0:
            return NAMELESS
        return LIKELY if fits >= 0 and (whole or fits == 1) else NOT
    stopped, _, status, _ = decode(
        fr.slab,
        body,
        stop,
        pc,
        lay.code,
        lay.tags,
        lay.tag_entries,
        lay.role,
        mt.tape,
        np.int64(0),
        np.int64(0),
        mt.stack,
    )
    if status == FULL:
        return LIKELY  # longer than the tape has room for now, and right so far
    if whole:
        if status == OK and stopped == stop:
            return NAMELESS if first and api == api_keys.PRODUCE and stop - body <= NO_TOPICS else PROVED
        if status == OK and boundary and stop - stopped <= MAX_REST:
            if fits >= 0 and stop == end and api == api_keys.API_VERSIONS and _is_empty_list(fr, stopped, stop):
                return PROVED
            return LIKELY if fits >= 0 and not first else NAMELESS
        return LIKELY if fits == 1 else NOT
    if not may_go_on(status):
        return NOT
    if fits < 0 and (length > 0 or fr.k[slot, s.K_CLIENT_ID] != s.NULL):
        return NOT  # do not wait for the rest of what says no name, or no readable one
    return LIKELY if fits >= 0 else UNSURE


@inline
def _is_empty_list(fr: s.Framing, at: Int, end: Int) -> Flag:
    """Whether an array of no elements, and nothing else, stands behind the fields of a request. librdkafka up to 1.3
    ends ApiVersions so."""
    return end - at == 4 and (read_int32(fr.slab, at) == 0 or read_int32(fr.slab, at) == -1)


@inline
def _named(fr: s.Framing, at: Int, end: Int) -> Int:
    """Whether the request's client id begins with a letter or digit, as far as it is there."""
    if end - at < 15 or read_int16(fr.slab, at + 12) < 1:
        return False
    first = np.int64(fr.slab[at + 14])
    return 48 <= first <= 57 or 65 <= first <= 90 or 97 <= first <= 122 or first >= 128


@inline
def _lists(fr: s.Framing, at: Int, end: Int) -> Flag:
    """Whether what reads as a cut Produce request may as well be an answer, which lists topics: how many, a name, how
    many partitions, the first of them."""
    if read_int16(fr.slab, at + 4) != api_keys.PRODUCE or not 0 < read_int32(fr.slab, at + 8) <= FEW:
        return False
    behind = at + 14 + read_int16(fr.slab, at + 12)
    if end - behind >= 4 and not 0 < read_int32(fr.slab, behind) <= FEW:
        return False
    return end - behind < 8 or 0 <= read_int32(fr.slab, behind + 4) <= FEW


@inline
def _followed(fr: s.Framing, lay: s.Layouts, at: Int, end: Int, boundary: Flag) -> Int:
    """A whole request without a name, somewhere: PROVED where it starts a segment and the next request follows it."""
    if not boundary or read_int32(fr.slab, at) < 16:
        return NOT
    after = at + 4 + read_int32(fr.slab, at)
    if end - after < 14:
        return UNSURE
    size = read_int32(fr.slab, after)
    pc = known_layout(lay, 0, read_int16(fr.slab, after + 4), read_int16(fr.slab, after + 6))
    next_id = read_int32(fr.slab, at + 8) + 1
    if size < 16 or size > min(fr.v[s.V_FRAME_LIMIT], MAX_SOUGHT):
        return NOT
    if pc < 0 and read_int32(fr.slab, after + 4) != read_int32(fr.slab, at + 4):
        return NOT  # what is not known is believed of two that ask the same
    if read_int32(fr.slab, after + 8) != next_id:
        return NOT
    return PROVED if read_int16(fr.slab, after + 12) == read_int16(fr.slab, at + 12) else NOT


@inline
def _vouched(fr: s.Framing, mt: s.Matching, lay: s.Layouts, key: Int, at: Int, end: Int, boundary: Flag) -> Int:
    """A whole request without a name: PROVED by the request behind it, or by its answer."""
    f = fr.f
    verdict = _followed(fr, lay, at, end, boundary)
    if verdict == PROVED or not boundary:
        return verdict
    other = key ^ 1
    answer = f[other, s.F_ANSWER]
    correlation = read_int32(fr.slab, at + 8)
    if answer >= 0 and f[other, s.F_HAVE] >= f[other, s.F_ANSWER_END]:
        start = f[other, s.F_AT] + answer
        stop = f[other, s.F_AT] + f[other, s.F_ANSWER_END]
        api, version = read_int16(fr.slab, at + 4), read_int16(fr.slab, at + 6)
        if read_int32(fr.slab, start + 4) == correlation:
            status, stopped, _ = decode_response(mt, lay, fr.slab, start + 8, stop, api, version)
            if status == OK and stop - stopped <= MAX_REST:
                return PROVED
        f[other, s.F_ANSWER] = -1
    if verdict == UNSURE or end == at + 4 + read_int32(fr.slab, at):
        f[key, s.F_ASKS] = correlation + 1
        return UNSURE
    return verdict


@inline
def answered(fr: s.Framing, key: Int, length: Int) -> Flag:
    """The last `length` bytes of a region have come just now. Whether a whole answer is there to the request without a
    name that the other direction waits with. Only what a segment starts with is taken for an answer."""
    f = fr.f
    asks = f[key ^ 1, s.F_ASKS]
    if asks == 0:
        return False
    start = f[key, s.F_HAVE] - length
    at = f[key, s.F_AT] + start
    if f[key, s.F_ANSWER] < 0 and length >= 8 and read_int32(fr.slab, at + 4) == asks - 1:
        size = read_int32(fr.slab, at)
        if 4 <= size <= MAX_SOUGHT:
            f[key, s.F_ANSWER] = start
            f[key, s.F_ANSWER_END] = start + 4 + size
    return f[key, s.F_ANSWER] >= 0 and f[key, s.F_HAVE] >= f[key, s.F_ANSWER_END]


@inline
def _judge_response(
    fr: s.Framing, mt: s.Matching, lay: s.Layouts, slot: Int, key: Int, at: Int, end: Int, boundary: Flag
) -> Int:
    """Judge whether a frame is a response: its correlation id must be that of a pending request.

    At the start of a segment it may also be that of a request from before the capture, if the frame ends where the
    bytes do or another follows it."""
    if end - at < 8:
        return UNSURE
    size = read_int32(fr.slab, at)
    if size < 4 or size > min(fr.v[s.V_FRAME_LIMIT], MAX_SOUGHT):
        return NOT
    correlation = read_int32(fr.slab, at + 4)
    stop = min(end, at + 4 + size)
    whole = stop == at + 4 + size
    request, _ = find_pending(fr, mt, slot, correlation)
    if request >= 0 and mt.pending[request, s.X_API_KEY] != s.NULL:
        api, version = mt.pending[request, s.X_API_KEY], mt.pending[request, s.X_API_VERSION]
        if not boundary and end - at > 8 and known_layout(lay, 1, api, version) >= 0:
            # No broker sends tags in the header so far: beside a number that fits by chance they mean nothing.
            if lay.header_version[1, api, version] == 1 and fr.slab[at + 8] != 0:
                return NOT
        status, stopped, body = decode_response(mt, lay, fr.slab, at + 8, stop, api, version)
        if status == FULL:
            return LIKELY
        if whole:
            if status == OK and stopped == stop:
                return PROVED
            return LIKELY if boundary and status < 0 else NOT
        if may_go_on(status):
            return LIKELY if boundary or stop - body >= 12 else UNSURE
        return NOT
    lowest = fr.k[slot, s.K_LOWEST_ID]
    # Only before the first answer: later ones are to requests that were seen, or that were lost in between.
    early = boundary and fr.f[key, s.F_FRAMES] == 0 and lowest != s.NULL
    if early and lowest - ORPHAN_SPAN <= correlation < lowest and correlation >= 0:
        if not whole:
            return LIKELY
        if stop == end:
            return LIKELY
        if end - stop >= 8:
            following = read_int32(fr.slab, stop + 4)
            if read_int32(fr.slab, stop) >= 4 and correlation < following <= correlation + ORPHAN_SPAN:
                return LIKELY
        elif end - stop >= 4:
            return LIKELY if read_int32(fr.slab, stop) >= 4 else NOT
        else:
            return UNSURE
    return NOT


@inline
def seek(fr: s.Framing, mt: s.Matching, lay: s.Layouts, slot: Int, key: Int, client: Int, final: Int) -> Flag:
    """SEEK: look for a frame in the region. True: found, F_FROM is at its start. Else F_SCANNED has moved on as far as
    no frame can start. `final` (MORE, HOLE, CLOSING): where no more bytes will come, what is unsure is passed over."""
    f = fr.f
    at = f[key, s.F_AT]
    have = f[key, s.F_HAVE]
    offset = max(f[key, s.F_FROM], f[key, s.F_SCANNED])
    undecided = fr.k[slot, s.K_CLASS] == s.UNDECIDED
    doubted = f[key, s.F_MODE] == s.SYNC
    if doubted:
        # A frame that is only likely is not whole yet. A segment that starts with one is a better place to go on.
        offset = fr.marks[f[key, s.F_LAST_MARK], s.MARK_AT]
        if offset <= f[key, s.F_FROM]:
            offset = have
    mark = f[key, s.F_MARKS]
    f[key, s.F_ASKS] = 0
    while offset < have:
        if fr.slab[at + offset] > 64:
            if doubted or f[key, s.F_STRICT] != 0:
                offset = have
            else:
                offset += 1  # no length starts so
            continue
        while fr.marks[mark, s.MARK_NEXT] >= 0 and fr.marks[fr.marks[mark, s.MARK_NEXT], s.MARK_AT] <= offset:
            mark = fr.marks[mark, s.MARK_NEXT]
        boundary = fr.marks[mark, s.MARK_AT] == offset or f[key, s.F_STRICT] != 0
        if client:
            settled = f[key, s.F_STRICT] != 0 or (boundary and not undecided)
            first = undecided and f[key, s.F_STRICT] == 0
            verdict = _judge_request(fr, mt, lay, slot, at + offset, at + have, boundary, settled, first, final != MORE)
        else:
            verdict = _judge_response(fr, mt, lay, slot, key, at + offset, at + have, boundary)
        if verdict == UNSURE and have - offset >= (14 if client else 24) and not boundary:
            verdict = NOT
        if verdict == LIKELY and client and undecided:
            # A first request proves the connection; only where it can not be had whole a likely one must do.
            size = read_int32(fr.slab, at + offset) + 4
            if have - offset < size and final == MORE:
                verdict = UNSURE if boundary else NOT
            elif f[key, s.F_STRICT] == 0 and (final == CLOSING or not _named(fr, at + offset, at + have)):
                verdict = NOT  # nothing but a few fitting bytes somewhere speaks for Kafka
            elif f[key, s.F_STRICT] == 0 and have - offset < size:
                if (not boundary and have - offset < MIN_CUT) or _lists(fr, at + offset, at + have):
                    verdict = NOT  # nor a cut one of which little is there, or which could be an answer
        if verdict == LIKELY and client and not boundary and not undecided:
            length = read_int16(fr.slab, at + offset + 12)
            if offset + 14 + length > have or _client_id_fits(fr, mt, slot, fr.slab, at + offset + 14, length) != 1:
                verdict = NOT
        if verdict == PROVED and client and undecided and not boundary and read_int32(fr.slab, at + offset) < 16:
            verdict = NOT  # so few bytes are right by chance now and then
        if verdict == PROVED and client and undecided and f[key, s.F_STRICT] == 0:
            if not _named(fr, at + offset, at + have):
                verdict = NAMELESS  # zeros among small numbers decode too
        if verdict == NAMELESS:
            verdict = _vouched(fr, mt, lay, key, at + offset, at + have, boundary) if undecided else LIKELY
        if verdict == UNSURE and final != MORE:
            verdict = NOT
            if f[key, s.F_STRICT] != 0:
                f[key, s.F_STRICT] = 0  # cut short, which does not speak against Kafka
                offset = have
                break
        if verdict >= LIKELY:
            fr.k[slot, s.K_SKIPPED] += offset - f[key, s.F_FROM]
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


@inline
def end_search(fr: s.Framing, key: Int, recognised: Flag) -> None:
    """After a search: a connection recognised, or bytes passed over."""
    f = fr.f
    k = fr.k
    slot = key >> 1
    other = key ^ 1
    undecided = k[slot, s.K_CLASS] == s.UNDECIDED
    passed = f[key, s.F_SCANNED] - f[key, s.F_FROM]
    if recognised:
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
            plan(fr, key, other)
        f[key, s.F_STRICT] = 0
    elif f[key, s.F_MODE] == s.SYNC:
        pass  # nothing better than the likely frame
    elif not undecided:
        if passed > 0:
            k[slot, s.K_SKIPPED] += passed
            f[key, s.F_FROM] = f[key, s.F_SCANNED]
            drop_front(fr, key)
            f[key, s.F_STALLED] = f[key, s.F_HAVE]
    elif f[key, s.F_STRICT] != 0:
        if passed > 0 or f[key, s.F_HAVE] > MAX_SEARCH or k[slot, s.K_TLS] != 0:
            not_kafka(fr, slot)
    elif passed > SEARCHED_KEPT:
        f[key, s.F_LOST] += passed
        f[key, s.F_FROM] = f[key, s.F_SCANNED]
        drop_front(fr, key)
        f[key, s.F_STALLED] = f[key, s.F_HAVE]
        f[key, s.F_BROKEN] = 1
        if f[key, s.F_LOST] > MAX_SEARCH:
            not_kafka(fr, slot)
