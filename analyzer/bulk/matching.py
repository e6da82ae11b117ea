"""Frames -> exchanges: read headers and bodies, and pair each response with its request.

In: one frame at a time (`State.frame`), requests and responses of a connection in causal order. Out: rows of
`State.out` as each exchange ends.

Rules
- A broker answers a connection's requests in order. So requests wait in a queue, and a response belongs to the first
  one in it with the same correlation id. Ids may repeat. Those before it wait on: there are brokers that answer out of
  order. Where bytes of answers are missing, they will not be answered any more.
- A Produce request with acks=0 is not answered by Kafka's brokers, but by some of other makes: it waits until it is
  clear which this is. The field is decoded, whatever the version.
- ApiVersions answered with UNSUPPORTED_VERSION (35) is in the layout of v0, whatever was asked (KIP-511).
- A frame that cannot be decoded is a row all the same, with its reason.

Each function either does all of its work or returns a NEED_ status before it changed anything: the caller grows the
table named and calls again.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.analyzer.bulk import projection as role
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.fields import (
    FIRST_ERROR,
    TOPICS_COUNT,
    error_symbol,
    fill,
    fill_error,
    forget,
    recall_topics,
    record_facts,
    room_for_facts,
    topic_symbol,
)
from kwire.analyzer.bulk.headers import (
    BAD_HEADER,
    answered_version,
    is_believed,
    known_layout,
    may_go_on,
    parse_request_header,
    skip_response_tags,
    tagged_header,
)
from kwire.analyzer.bulk.partitions import MAX_NAMED, count_named, lacks_records_alone, record_parts, room_for_parts
from kwire.analyzer.bulk.pending import find_pending, is_silent, pass_over, put_out, take_first, take_pending, wait
from kwire.analyzer.bulk.regions import begin_drop
from kwire.analyzer.bulk.symbols import ENTRY_LENGTH, intern
from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.decoding import FULL, OK, SHORT, decode, read_int32
from kwire.captures.kernels import Bytes, Flag, Int, Table, copy_bytes, inline

MAX_TAPE: Final = 1 << 22
"""Rows of the tape (168 MB). A message with more fields that matter than that is not decoded, reason `limit`: hostile
arrays could ask for a row each byte or four, and no real message comes near."""


@inline
def _count_token(fr: s.Framing, slot: Int, key: Int) -> None:
    """The frame at hand is a SASL token without a header."""
    fr.k[slot, s.K_SASL] += fr.frame[s.FR_HELD]
    fr.f[key, s.F_FRAMES] += 1


@inline
def _room(st: s.State, before: Int) -> Int:
    """Check the room that any message needs; `before`: requests that its coming ends."""
    fr = st.framing
    mt = st.matching
    out = st.output
    v = out.v
    if v[s.V_OUT] + before + 2 > len(out.exchanges):
        return s.NEED_OUT
    if v[s.V_PENDING_FREE] < 0 and v[s.V_PENDINGS] >= len(mt.pending):
        return s.NEED_PENDING
    keep = v[s.V_KEEP]
    if keep != s.KEEP_NONE and (keep != s.KEEP_SOME or fr.frame[s.FR_HAVE] <= s.KEEP_SOME_BYTES):
        if v[s.V_MESSAGES] + 1 > len(out.messages):
            return s.NEED_MESSAGES
        if v[s.V_MESSAGE_BYTES] + fr.frame[s.FR_HAVE] > len(out.message_bytes):
            return s.NEED_MESSAGES
    return s.OK


@inline
def _describe(frame: Table, row: Table, base: Int) -> None:
    """When and where a frame was captured: columns `base` and on."""
    row[base + s.M_FIRST_NS] = frame[s.FR_FIRST_NS]
    row[base + s.M_LAST_NS] = frame[s.FR_LAST_NS] if frame[s.FR_CAUSE] != s.CUT else s.NULL
    row[base + s.M_BYTES] = frame[s.FR_TOTAL] if frame[s.FR_CAUSE] != s.IMPOSSIBLE else s.NULL
    row[base + s.M_FILE] = frame[s.FR_FILE]
    row[base + s.M_NUMBER] = frame[s.FR_NUMBER]
    row[base + s.M_RECORD_AT] = frame[s.FR_RECORD_AT]


@inline
def _outcome(
    frame: Table, row: Table, base: Int, orphan: Flag, pc: Int, decoded: Int, failed: Int, stopped: Int, length: Int
) -> Int:
    """Note a message's outcome in columns `base` and on; return the bytes behind its last field. `length`: what its
    length field holds."""
    start = frame[s.FR_AT]
    state = np.int64(s.UNDECODED_STATE)
    reason = np.int64(s.R_NONE)
    trailing = np.int64(0)
    a = np.int64(s.NULL)
    b = np.int64(s.NULL)
    if frame[s.FR_CAUSE] == s.LIMIT:
        reason = np.int64(s.R_LIMIT)
        a = frame[s.FR_TOTAL]
    elif frame[s.FR_CAUSE] == s.IMPOSSIBLE:
        reason = np.int64(s.R_LENGTH)
        a = length
    elif frame[s.FR_CAUSE] != 0:
        state = np.int64(s.TRUNCATED_STATE)
        reason = np.int64(s.R_CUT if frame[s.FR_CAUSE] == s.CUT else s.R_TRUNCATED)
        a = frame[s.FR_TOTAL] - frame[s.FR_HELD]
    elif decoded == BAD_HEADER:
        reason = np.int64(s.R_HEADER)
        b = stopped - start
    elif orphan:
        reason = np.int64(s.R_NO_REQUEST)
    elif pc < 0:
        reason = np.int64(s.R_UNKNOWN_API if pc == -1 else s.R_UNSUPPORTED_VERSION)
    elif decoded == FULL:
        reason = np.int64(s.R_LIMIT)
        a = frame[s.FR_TOTAL]
    elif decoded != OK:
        reason = np.int64(s.R_MALFORMED)
        a = failed * 16 + decoded
        b = stopped - start
    else:
        state = np.int64(s.DECODED_STATE)
        trailing = start + frame[s.FR_HAVE] - stopped
        if trailing > 0:
            reason = np.int64(s.R_TRAILING)
            a = trailing
    row[base + s.M_STATE] = state
    row[base + s.M_REASON] = reason
    row[base + s.M_REASON_A] = a
    row[base + s.M_REASON_B] = b
    return trailing


@inline
def _say(mt: s.Matching, row: Table, side: Int, topics_before: Int) -> Int:
    """Copy a message's values from `Matching.by_role` to the columns of its exchange.

    topics_before: topics named before. Returns OK or a NEED_ status."""
    by_role = mt.by_role
    if side == 0:
        for i in range(role.GROUP - role.ACKS):  # these roles and columns stand in one order
            row[s.X_ACKS + i] = by_role[role.ACKS + i]
        row[s.X_GROUP] = by_role[role.GROUP]
        row[s.X_MEMBER] = by_role[role.MEMBER]
        row[s.X_GENERATION] = (
            by_role[role.GENERATION] if by_role[role.GENERATION] != s.NULL else by_role[role.MEMBER_EPOCH]
        )
        row[s.X_TRANSACTIONAL_ID] = by_role[role.TRANSACTIONAL_ID]
        row[s.X_RACK_ID] = by_role[role.RACK]
    else:
        row[s.X_THROTTLE] = by_role[role.THROTTLE]
        row[s.X_SESSION_GIVEN] = by_role[role.SESSION]
        row[s.X_ERROR] = by_role[FIRST_ERROR]
        codes = error_symbol(mt)
        if codes == -1:
            return s.NEED_LISTS
        row[s.X_ERRORS] = codes
        if by_role[role.MEMBER] != s.NULL:
            # A member that joins says an empty id, and learns its own from the answer.
            member = row[s.X_MEMBER]
            if member == s.NULL or mt.strings.entries[member, ENTRY_LENGTH] == 0:
                row[s.X_MEMBER] = by_role[role.MEMBER]
        if row[s.X_GENERATION] == s.NULL:
            row[s.X_GENERATION] = by_role[role.GENERATION]
    if by_role[TOPICS_COUNT] > topics_before:
        topics = topic_symbol(mt)
        if topics == -1:
            return s.NEED_LISTS
        if topics == -2:
            return s.NEED_TOPICS
        row[s.X_TOPICS] = topics
    return s.OK


@inline
def _count_hole(fr: s.Framing, slot: Int, key: Int, row: Table, whole: Flag, decoded: Flag) -> None:
    """A request after a hole: were others lost in it? Not if its correlation id is the next one; clients count up."""
    f = fr.f
    k = fr.k
    correlation = row[s.X_CORRELATION_ID]
    last = k[slot, s.K_LAST_ID]
    if f[key, s.F_HOLE] != 0 and last != s.NULL and correlation != last + 1:
        k[slot, s.K_HOLES] += 1
    row[s.X_HOLES] = k[slot, s.K_HOLES]
    if whole:
        f[key, s.F_HOLE] = 0  # of one that is not, others may be missing behind what is there
    if correlation != s.NULL:
        k[slot, s.K_LAST_ID] = correlation
    if row[s.X_API_KEY] == api_keys.END_TXN and not decoded:
        k[slot, s.K_HOLES] += 1  # there, but what it said is lost


@inline
def _learn(fr: s.Framing, mt: s.Matching, slot: Int, row: Table, header: Flag, decoded: Flag) -> None:
    """Note properties of a connection that a request shows. header: its header was whole."""
    k = fr.k
    by_role = mt.by_role
    k[slot, s.K_REQUESTS] += 1
    k[slot, s.K_RAW] = 0
    if decoded and by_role[role.SOFTWARE_NAME] != s.NULL:
        k[slot, s.K_SOFTWARE_NAME] = by_role[role.SOFTWARE_NAME]
        k[slot, s.K_SOFTWARE_VERSION] = by_role[role.SOFTWARE_VERSION]
    if row[s.X_API_KEY] == api_keys.SASL_HANDSHAKE:
        if decoded:
            k[slot, s.K_MECHANISM] = by_role[role.MECHANISM]
        if row[s.X_API_VERSION] == 0 and header:
            k[slot, s.K_RAW] = 1
    if row[s.X_CLIENT_ID] != s.NULL and k[slot, s.K_CLIENT_ID] == s.NULL:
        k[slot, s.K_CLIENT_ID] = row[s.X_CLIENT_ID]
    correlation = row[s.X_CORRELATION_ID]
    if correlation != s.NULL and (k[slot, s.K_LOWEST_ID] == s.NULL or correlation < k[slot, s.K_LOWEST_ID]):
        k[slot, s.K_LOWEST_ID] = correlation


@inline
def _keep_message(st: s.State, buffer: Bytes, slot: Int, direction: Int, ordinal: Int) -> None:
    fr = st.framing
    mt = st.matching
    out = st.output
    frame = fr.frame
    if out.v[s.V_KEEP] == s.KEEP_NONE:
        return
    if out.v[s.V_KEEP] != s.KEEP_ALL:
        api_key = mt.row[s.X_API_KEY]
        if not 0 <= api_key < len(out.keep) or out.keep[api_key] == 0:
            return
        if out.v[s.V_KEEP] == s.KEEP_SOME and frame[s.FR_HAVE] > s.KEEP_SOME_BYTES:
            return
    row = out.v[s.V_MESSAGES]
    out.v[s.V_MESSAGES] = row + 1
    at = out.v[s.V_MESSAGE_BYTES]
    start = frame[s.FR_AT]
    whole = frame[s.FR_CAUSE] == 0 and frame[s.FR_BRIDGED] < 0
    length = frame[s.FR_BRIDGED] if frame[s.FR_BRIDGED] >= 0 else frame[s.FR_HAVE]
    copy_bytes(out.message_bytes, at, buffer, start, length)
    out.v[s.V_MESSAGE_BYTES] = at + length
    m = out.messages
    m[row, s.MSG_SLOT] = slot
    m[row, s.MSG_CLIENT] = fr.k[slot, s.K_CLIENT]
    m[row, s.MSG_DIRECTION] = direction
    m[row, s.MSG_API_KEY] = mt.row[s.X_API_KEY]
    m[row, s.MSG_API_VERSION] = mt.row[s.X_API_VERSION]
    m[row, s.MSG_ORDINAL] = ordinal
    m[row, s.MSG_AT] = at
    m[row, s.MSG_LENGTH] = length
    m[row, s.MSG_COMPLETE] = 1 if whole else 0
    m[row, s.MSG_FIRST_NS] = frame[s.FR_FIRST_NS]
    m[row, s.MSG_LAST_NS] = frame[s.FR_LAST_NS]
    m[row, s.MSG_COMPLETED_BY] = frame[s.FR_COMPLETED_BY]


@inline
def _count_bytes(fr: s.Framing, slot: Int, state: Int, reason: Int, amount: Int) -> None:
    """Put a frame's captured bytes into one class of the coverage."""
    frame = fr.frame
    held = frame[s.FR_HELD]
    k = fr.k
    if frame[s.FR_CAUSE] == s.LIMIT or (frame[s.FR_CAUSE] == 0 and reason == s.R_LIMIT):
        k[slot, s.K_LIMIT] += held
    elif frame[s.FR_CAUSE] != 0:
        k[slot, s.K_INCOMPLETE] += held
    elif state == s.DECODED_STATE:
        if reason == s.R_TRAILING:
            k[slot, s.K_TRAILING] += amount
            held -= amount
        k[slot, s.K_DECODED] += held
    elif reason == s.R_UNKNOWN_API or reason == s.R_NO_REQUEST:
        k[slot, s.K_UNKNOWN_API] += held
    elif reason == s.R_UNSUPPORTED_VERSION:
        k[slot, s.K_UNSUPPORTED_VERSION] += held
    else:
        k[slot, s.K_MALFORMED] += held


@inline
def take(st: s.State, lay: s.Layouts, buffer: Bytes, slot: Int, key: Int, side: Int) -> Int:
    """The frame at hand is a message: a request (side 0) or a response (1). Returns OK, a NEED_ status, REVERT (it was
    tentative and is none) or TORN (more of it is cut off than content of records; it is only counted from now on). Both
    sides are handled alike but for what only one of them has."""
    fr = st.framing
    mt = st.matching
    frame = fr.frame
    k = fr.k
    start = frame[s.FR_AT]
    end = start + frame[s.FR_HAVE]
    whole = frame[s.FR_CAUSE] == 0
    completed_by = frame[s.FR_COMPLETED_BY]
    base = np.int64(s.REQUEST_COLUMNS if side == 0 else s.RESPONSE_COLUMNS)
    request = np.int64(-1)
    before = np.int64(0)
    api = np.int64(-1)
    version = np.int64(-1)
    correlation = np.int64(0)
    place = start
    length = np.int64(-2)
    if side == 0:
        header, api, version, correlation, place, length, body = parse_request_header(buffer, start + 4, end, lay)
        readable = end - start >= 12 and is_believed(lay, header, api, version)
        known = header == OK
        if header == SHORT and whole:
            header = np.int64(BAD_HEADER)
    else:
        header = np.int64(OK)
        body = start + 8
        readable = end - start >= 8
        if readable:
            correlation = read_int32(buffer, start + 4)
            request, before = find_pending(fr, mt, slot, correlation)
        if k[slot, s.K_RAW_WAITING] > 0 and request < 0:
            k[slot, s.K_RAW_WAITING] -= 1
            _count_token(fr, slot, key)
            return s.OK
        known = request >= 0 and mt.pending[request, s.X_API_KEY] != s.NULL
        if known:
            api = mt.pending[request, s.X_API_KEY]
            version = answered_version(buffer, body, end, api, mt.pending[request, s.X_API_VERSION])
    need = _room(st, before + k[slot, s.K_ZERO_HELD])
    if need != s.OK:
        return need
    pc = known_layout(lay, side, api, version) if known else np.int64(-1)
    if side == 1 and pc >= 0 and tagged_header(lay, api, version):
        header, body = skip_response_tags(buffer, body, end)
    decoded = header
    stopped = body
    used = np.int64(0)
    failed = pc
    named = np.int64(0)
    others = np.int64(0)
    if header == OK and pc >= 0:
        stopped, used, decoded, failed = decode(
            buffer,
            body,
            end,
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
        if decoded == FULL and len(mt.tape) < MAX_TAPE:
            return s.NEED_TAPE
        if decoded != FULL:
            named, others = count_named(lay, mt.tape, used)
            if max(named, others) > MAX_NAMED:
                decoded = np.int64(FULL)
    if frame[s.FR_BRIDGED] >= 0:
        if header != OK or pc < 0 or decoded != OK or not lacks_records_alone(fr, lay, buffer, mt.tape, used, key):
            begin_drop(fr, key, frame[s.FR_TOTAL], s.TRUNCATED)
            fr.f[key, s.F_HOLE] = 1
            return s.TORN
    # SASL by SaslHandshake v0: tokens have no header (KIP-43); the first true request ends them.
    raw = side == 0 and k[slot, s.K_RAW] != 0
    if raw and not (pc >= 0 and decoded == OK and stopped == end and whole):
        k[slot, s.K_RAW_WAITING] += 1
        _count_token(fr, slot, key)
        return s.OK
    wrong = decoded != OK and decoded != FULL and (whole or not may_go_on(decoded))
    if wrong and frame[s.FR_TENTATIVE] != 0:
        return s.REVERT

    row = mt.row
    if request >= 0:
        for column in range(s.X_PENDING_COLUMNS):
            row[column] = mt.pending[request, column]
    else:
        for column in range(s.X_PENDING_COLUMNS):
            row[column] = s.NULL
        row[s.X_PARTS] = -1
        row[s.X_PARTS_COUNT] = 0
        row[s.X_SLOT] = slot
        if readable:
            row[s.X_CORRELATION_ID] = correlation
    if side == 0:
        row[s.X_EXCHANGE] = fr.f[key, s.F_FRAMES]
        row[s.X_PACKET_INDEX] = frame[s.FR_PACKET_INDEX]
        if readable:
            row[s.X_API_KEY] = api
            row[s.X_API_VERSION] = version
        if length >= 0 and readable:
            symbol = intern(mt.strings, buffer, place, length)
            if symbol < 0:
                return s.NEED_STRINGS
            row[s.X_CLIENT_ID] = symbol
    else:
        row[s.X_REPLY] = fr.f[key, s.F_FRAMES]
    _describe(frame, row, base)
    stated = read_int32(buffer, start) if frame[s.FR_CAUSE] == s.IMPOSSIBLE else np.int64(0)
    trailing = _outcome(frame, row, base, side == 1 and not known, pc, decoded, failed, stopped, stated)
    state = row[base + s.M_STATE]
    reason = row[base + s.M_REASON]

    forget(mt)
    readable = state == s.DECODED_STATE or (side == 0 and not whole)  # what is there of a request says what it is about
    if readable:
        if not recall_topics(mt, row[s.X_TOPICS]):
            return s.NEED_TOPICS
        topics_before = mt.by_role[TOPICS_COUNT]
        need = fill(mt, lay, buffer, used)
        if need == s.OK:
            need = _say(mt, row, side, topics_before)
        if need == s.OK:
            need = room_for_facts(st, others)
        if need == s.OK:
            need = room_for_parts(st, used, named, others, row[s.X_PARTS_COUNT])
        if need != s.OK:
            return need

    elif side == 1 and row[base + s.M_REASON] == s.R_MALFORMED:
        fill_error(mt, lay, used)
        if mt.by_role[FIRST_ERROR] != 0:
            codes = error_symbol(mt)
            if codes == -1:
                return s.NEED_LISTS
            row[s.X_ERROR] = mt.by_role[FIRST_ERROR]
            row[s.X_ERRORS] = codes

    # From here on everything is carried out.
    if readable:
        record_parts(st, lay, buffer, used, row, side, slot, key)
    if state == s.DECODED_STATE:
        record_facts(st, lay, buffer, used, slot, api if side == 1 else np.int64(-1), completed_by)
    _count_bytes(fr, slot, state, reason, trailing)
    if frame[s.FR_BRIDGED] >= 0:
        k[slot, s.K_BRIDGED] += frame[s.FR_TOTAL] - frame[s.FR_HELD]
    _keep_message(st, buffer, slot, side, fr.f[key, s.F_FRAMES])
    fr.f[key, s.F_FRAMES] += 1
    if side == 1:
        row[s.X_EARLIER_NS] = k[slot, s.K_ANSWERED_NS]
        if row[s.X_RESPONSE_LAST_NS] != s.NULL:
            k[slot, s.K_ANSWERED_NS] = row[s.X_RESPONSE_LAST_NS]
        if request >= 0:
            held = k[slot, s.K_ZERO_HELD]
            if before > 0:
                pass_over(st, slot, request, fr.f[key, s.F_HOLE] != 0, completed_by)
                take_pending(fr, mt, slot, request)
            else:  # as nearly always: without a call
                take_first(fr, mt, slot)
            if row[s.X_EXCHANGE] > k[slot, s.K_ANSWERED_TO]:
                k[slot, s.K_ANSWERED_TO] = row[s.X_EXCHANGE]
            else:
                row[s.X_EARLIER_NS] = s.NULL  # it was overtaken, so the answer before it tells nothing of its wait
            if is_silent(row):
                k[slot, s.K_ZERO_HELD] -= 1
            elif k[slot, s.K_ZERO_HELD] < held:
                k[slot, s.K_ZERO_SILENT] = 1  # this answer passes over what the broker would have answered before
        put_out(st, row, s.ANSWERED if request >= 0 else s.ORPHAN_RESPONSE, completed_by)
    else:
        _count_hole(fr, slot, key, row, whole, state == s.DECODED_STATE)
        _learn(fr, mt, slot, row, header == OK, state == s.DECODED_STATE)
        wait(st, slot, row, completed_by)
    return s.OK
