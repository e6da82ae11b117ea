"""Frames -> exchanges: read headers and bodies, and pair each response with its request.

In: one frame at a time (`State.frame`), requests and responses of a connection in causal order. Out: rows of
`State.out` as each exchange ends.

Rules
- A broker answers a connection's requests in order. So requests wait in a queue, and a response belongs to the first
  one in it with the same correlation id; those before it will not be answered any more. Ids may repeat.
- A Produce request with acks=0 is not answered, and does not wait. The field is decoded, whatever the version.
- ApiVersions answered with UNSUPPORTED_VERSION (35) is in the layout of v0, whatever was asked (KIP-511).
- A frame that cannot be decoded is a row all the same, with its reason.

Each function either does all of its work or returns a NEED_ status before it changed anything: the caller grows the
table named and calls again.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from analyzer import roles as role
from analyzer import state as s
from analyzer.decoding import BAD_LENGTH, FULL, OK, SHORT, decode, read_int16, read_int32, read_int64, read_varint
from analyzer.partitions import (
    MAX_PARTITIONS,
    MAX_WAITING,
    count_parts,
    put_parts,
    record_parts,
    room_for_parts,
    uuid_text,
)
from analyzer.symbols import COUNT, ENTRY_AT, ENTRY_LENGTH, ENTRY_STAMP, STAMP, USED, intern
from captures.kernels import copy_bytes, inline

MAX_PENDING: Final = 4096
"""Requests of one connection without an answer. Brokers handle one at a time and clients keep a handful in flight; a
capture of one direction only would else pile them up without end."""

MAX_TAPE: Final = 1 << 22
"""Rows of the tape (168 MB). A message with more fields that matter than that is not decoded, reason `limit`: hostile
arrays could ask for a row each byte or four, and no real message comes near."""

MAX_OPEN: Final = 1 << 16
"""Requests without an answer of all connections of a shard. Beyond it a connection keeps KEPT_OPEN of its own: all that
still wait when a capture ends become rows at once."""

KEPT_OPEN: Final = 64
"""More than clients have in flight: Java's and idempotent producers have five at most."""

BAD_HEADER: Final = 64
"""A header that breaks a rule; beside the decoder's statuses."""

UNSUPPORTED_VERSION_CODE: Final = 35
MAX_CODES: Final = 64
"""Different error codes listed for one response; there are some 130 in all, and real answers hold one or two."""

# `found[role]` holds what a message said in that role; these come after the roles.
_FOUND_TOPICS: Final = 48
_FOUND_CODES: Final = 49
_FOUND_FIRST_ERROR: Final = 50
_FOUND_TABLE: Final = 52  # pairs (code, count)
FOUND_COLUMNS: Final = _FOUND_TABLE + 2 * MAX_CODES


@inline
def parse_request_header(buffer: Any, at: Any, end: Any, lay: Any) -> Any:
    """A request header at `at` -> (status, api_key, api_version, correlation_id, client id's place, its length, where
    the body starts). SHORT: [at, end) ends inside; what was read up to there is given. Length -1: null; -2: not read.
    Header versions: KIP-482; ControlledShutdown v0 has no client id."""
    if end - at < 8:
        return SHORT, np.int64(-1), np.int64(-1), np.int64(0), at, np.int64(-2), at
    api = read_int16(buffer, at)
    version = read_int16(buffer, at + 2)
    correlation = read_int32(buffer, at + 4)
    header = np.int64(1)
    if 0 <= api < lay.header_version.shape[1] and 0 <= version < lay.header_version.shape[2]:
        if lay.header_version[0, api, version] >= 0:
            header = np.int64(lay.header_version[0, api, version])
    at += 8
    if header == 0:
        return OK, api, version, correlation, at, np.int64(-2), at
    if end - at < 2:
        return SHORT, api, version, correlation, at, np.int64(-2), at
    length = read_int16(buffer, at)
    at += 2
    place = at
    if length < -1:
        return BAD_HEADER, api, version, correlation, place, np.int64(-2), at
    if length > end - at:
        return SHORT, api, version, correlation, place, np.int64(-2), at
    at += max(length, 0)
    if header >= 2:
        count, at = read_varint(buffer, at, end)
        if count < 0:
            return SHORT if count == -1 else BAD_HEADER, api, version, correlation, place, length, at
        for _ in range(count):
            tag, at = read_varint(buffer, at, end)
            size = np.int64(-1)
            if tag >= 0:
                size, at = read_varint(buffer, at, end)
            if tag < 0 or size < 0:
                return SHORT if tag == -1 or size == -1 else BAD_HEADER, api, version, correlation, place, length, at
            if size > end - at:
                return SHORT, api, version, correlation, place, length, at
            at += size
    return OK, api, version, correlation, place, length, at


@inline
def skip_response_tags(buffer: Any, at: Any, end: Any) -> Any:
    """The tag section of a response header v1 -> (status, where the body starts)."""
    count, at = read_varint(buffer, at, end)
    if count < 0:
        return SHORT if count == -1 else BAD_HEADER, at
    for _ in range(count):
        tag, at = read_varint(buffer, at, end)
        size = np.int64(-1)
        if tag >= 0:
            size, at = read_varint(buffer, at, end)
        if tag < 0 or size < 0 or size > end - at:
            return SHORT if tag != -2 and size != -2 else BAD_HEADER, at
        at += size
    return OK, at


@inline
def may_go_on(status: Any) -> Any:
    """Whether a message of which only the beginning is there is right so far: it ends inside a value, or inside an
    array whose elements would not fit into what is there."""
    return status == SHORT or status == BAD_LENGTH


@inline
def known_layout(lay: Any, direction: Any, api: Any, version: Any) -> Any:
    """Where the body's code starts; -1: unknown API, -2: unknown version of a known one."""
    if api < 0 or api >= lay.start.shape[1]:
        return np.int64(-1)
    if version < 0 or version >= lay.start.shape[2] or lay.start[direction, api, version] < 0:
        return np.int64(-2)
    return np.int64(lay.start[direction, api, version])


@inline
def decode_response(st: Any, lay: Any, buffer: Any, at: Any, end: Any, api: Any, version: Any) -> Any:
    """The part of a response after its correlation id -> (status, where it ended, rows on the tape, pc, body start)."""
    if api == role.API_VERSIONS and version != 0 and end - at >= 2:
        if read_int16(buffer, at) == UNSUPPORTED_VERSION_CODE:
            version = np.int64(0)
    pc = known_layout(lay, 1, api, version)
    if pc < 0:
        return pc, at, np.int64(0), np.int64(0), at
    if lay.header_version[1, api, version] == 1:
        status, at = skip_response_tags(buffer, at, end)
        if status != OK:
            return status, at, np.int64(0), pc, at
    body = at
    at, used, status, failed = decode(
        buffer, at, end, pc, lay.code, lay.tags, lay.tag_entries, lay.role, st.tape, np.int64(0), np.int64(0), st.stack
    )
    return status, at, used, failed, body


@inline
def _add_topic(st: Any, symbol: Any) -> Any:
    """Note a topic of the exchange at hand once. False: no room."""
    entries = st.strings.entries
    if entries[symbol, ENTRY_STAMP] == st.strings.state[STAMP]:
        return True
    count = st.found[_FOUND_TOPICS]
    if count >= len(st.topics):
        return False
    entries[symbol, ENTRY_STAMP] = st.strings.state[STAMP]
    st.topics[count] = symbol
    st.found[_FOUND_TOPICS] = count + 1
    return True


@inline
def _forget(st: Any) -> None:
    """Start noting what a message says."""
    for i in range(_FOUND_TOPICS):
        st.found[i] = s.NULL
    st.found[_FOUND_TOPICS] = 0
    st.found[_FOUND_CODES] = 0
    st.found[_FOUND_FIRST_ERROR] = 0
    st.strings.state[STAMP] += 1


@inline
def _recall_topics(st: Any, symbol: Any) -> Any:
    """The topics that the request said, before those of its response. False: no room."""
    if symbol == s.NULL:
        return True
    at = st.lists.entries[symbol, ENTRY_AT]
    for i in range(st.lists.entries[symbol, ENTRY_LENGTH] // 4):
        b = at + 4 * i
        heap = st.lists.heap
        low = np.int64(heap[b]) | np.int64(heap[b + 1]) << 8
        topic = low | np.int64(heap[b + 2]) << 16 | np.int64(heap[b + 3]) << 24
        if not _add_topic(st, topic):
            return False
    return True


@inline
def _fill(st: Any, lay: Any, buffer: Any, used: Any) -> Any:
    """Note what the tape says in `st.found`. Returns OK or a NEED_ status."""
    found = st.found
    tape = st.tape
    for i in range(used):
        field = tape[i, 1]
        kind = np.int64(lay.role[field])
        value = tape[i, 2]
        if kind == role.ERROR or kind == role.PART_ERROR or kind == role.PART_ERROR_EARLY:
            if value != 0:
                if found[_FOUND_FIRST_ERROR] == 0:
                    found[_FOUND_FIRST_ERROR] = value
                codes = found[_FOUND_CODES]
                k = np.int64(0)
                while k < codes and found[_FOUND_TABLE + 2 * k] != value:
                    k += 1
                if k < codes:
                    found[_FOUND_TABLE + 2 * k + 1] += 1
                elif k < MAX_CODES:
                    found[_FOUND_TABLE + 2 * k] = value
                    found[_FOUND_TABLE + 2 * k + 1] = 1
                    found[_FOUND_CODES] = codes + 1
        elif kind == role.TOPIC:
            if value > 0:
                symbol = intern(st.strings, buffer, tape[i, 3], value)
                if symbol < 0:
                    return s.NEED_STRINGS
                tape[i, 0] = symbol
                if not _add_topic(st, symbol):
                    return s.NEED_TOPICS
        elif kind == role.GROUP_SECTION or kind == role.TRANSACTION_SECTION or kind == role.SECTION:
            if value > 0:
                symbol = intern(st.strings, buffer, tape[i, 3], value)
                if symbol < 0:
                    return s.NEED_STRINGS
                tape[i, 0] = symbol
                if kind == role.GROUP_SECTION and found[role.GROUP] == s.NULL:
                    found[role.GROUP] = symbol
                elif kind == role.TRANSACTION_SECTION and found[role.TRANSACTIONAL_ID] == s.NULL:
                    found[role.TRANSACTIONAL_ID] = symbol
        elif kind >= role.FIRST_OF_PARTITIONS:
            pass  # see `record_parts`
        elif kind == role.TOPIC_ID:
            at = tape[i, 3]
            named = False  # the struct said the name too, just before or after
            for j in (i - 1, i + 1):
                if 0 <= j < used and lay.role[tape[j, 1]] == role.TOPIC and lay.parent[tape[j, 1]] == lay.parent[field]:
                    named = named or tape[j, 2] > 0
            if not named and (value != 0 or read_int64(buffer, at + 8) != 0):
                uuid_text(buffer, at, st.scratch)
                symbol = intern(st.strings, st.scratch, 0, 22)
                if symbol < 0:
                    return s.NEED_STRINGS
                if not _add_topic(st, symbol):
                    return s.NEED_TOPICS
        elif found[kind] == s.NULL:
            if (
                kind == role.GROUP
                or kind == role.MEMBER
                or kind == role.TRANSACTIONAL_ID
                or kind == role.SOFTWARE_NAME
                or kind == role.SOFTWARE_VERSION
                or kind == role.MECHANISM
            ):
                if value >= 0:
                    symbol = intern(st.strings, buffer, tape[i, 3], value)
                    if symbol < 0:
                        return s.NEED_STRINGS
                    found[kind] = symbol
            elif kind != role.GENERATION or value >= 0:
                found[kind] = value
    return s.OK


@inline
def _list_symbol(st: Any, first: Any, count: Any, from_topics: Any) -> Any:
    """A list of numbers (the topics, or pairs of code and count) as one symbol; NULL where empty, -1 where no room."""
    if count == 0:
        return np.int64(s.NULL)
    if 4 * count > len(st.scratch):
        return np.int64(-2)
    for i in range(count):
        number = st.topics[i] if from_topics else st.found[first + i]
        for k in range(4):
            st.scratch[4 * i + k] = np.uint8((number >> (8 * k)) & 255)
    return intern(st.lists, st.scratch, 0, 4 * count)


@inline
def _record_facts(st: Any, lay: Any, buffer: Any, used: Any, slot: Any, api: Any, trigger: Any) -> None:
    """Topic ids with their names, and the versions a broker offers. Room was made sure of before."""
    tape = st.tape
    facts = st.facts
    for i in range(used):
        kind = np.int64(lay.role[tape[i, 1]])
        if kind == role.TOPIC_ID:
            at = tape[i, 3]
            if tape[i, 2] == 0 and read_int64(buffer, at + 8) == 0:
                continue
            for j in (i - 1, i + 1):
                if 0 <= j < used and lay.role[tape[j, 1]] == role.TOPIC and tape[j, 2] > 0:
                    if lay.parent[tape[j, 1]] != lay.parent[tape[i, 1]]:
                        continue
                    uuid_text(buffer, at, st.scratch)
                    row = st.v[s.V_FACTS]
                    st.v[s.V_FACTS] = row + 1
                    facts[row, s.FACT_KIND] = s.FACT_TOPIC_ID
                    facts[row, s.FACT_SLOT] = slot
                    facts[row, s.FACT_A] = intern(st.strings, st.scratch, 0, 22)
                    facts[row, s.FACT_B] = intern(st.strings, buffer, tape[j, 3], tape[j, 2])
                    facts[row, s.FACT_C] = facts[row, s.FACT_D] = s.NULL
                    facts[row, s.FACT_TRIGGER] = trigger
        elif kind == role.API_KEY and st.k[slot, s.K_OFFERED] == 0 and i + 2 < used:
            row = st.v[s.V_FACTS]
            st.v[s.V_FACTS] = row + 1
            facts[row, s.FACT_KIND] = s.FACT_API_VERSION
            facts[row, s.FACT_SLOT] = slot
            facts[row, s.FACT_A] = tape[i, 2]
            facts[row, s.FACT_B] = tape[i + 1, 2]
            facts[row, s.FACT_C] = tape[i + 2, 2]
            facts[row, s.FACT_D] = s.NULL
            facts[row, s.FACT_TRIGGER] = trigger
        elif kind == role.NODE_ID and i + 2 < used and tape[i, 2] >= 0:
            row = st.v[s.V_FACTS]
            st.v[s.V_FACTS] = row + 1
            facts[row, s.FACT_KIND] = s.FACT_BROKER
            facts[row, s.FACT_SLOT] = slot
            facts[row, s.FACT_A] = tape[i, 2]
            facts[row, s.FACT_B] = intern(st.strings, buffer, tape[i + 1, 3], max(tape[i + 1, 2], 0))
            facts[row, s.FACT_C] = tape[i + 2, 2]
            facts[row, s.FACT_D] = s.NULL
            if i + 3 < used and lay.role[tape[i + 3, 1]] == role.NODE_RACK and tape[i + 3, 2] >= 0:
                facts[row, s.FACT_D] = intern(st.strings, buffer, tape[i + 3, 3], tape[i + 3, 2])
            facts[row, s.FACT_TRIGGER] = trigger
    if api == role.API_VERSIONS and st.found[_FOUND_FIRST_ERROR] == 0:
        st.k[slot, s.K_OFFERED] = 1


@inline
def _room_for_facts(st: Any, used: Any) -> Any:
    """What must be free before anything is changed: facts, and the symbols that recording them will look up."""
    if st.v[s.V_FACTS] + used > len(st.facts):
        return s.NEED_FACTS
    if st.strings.state[COUNT] + 2 * used + 8 > len(st.strings.entries):
        return s.NEED_STRINGS
    # Uuids are 22 bytes as text; names and hosts are bytes of the message itself.
    if st.strings.state[USED] + 22 * (used + 1) + st.frame[s.FR_HAVE] > len(st.strings.heap):
        return s.NEED_STRINGS
    return s.OK


@inline
def _room_for_message(st: Any) -> Any:
    if st.v[s.V_KEEP] != 0:
        if st.v[s.V_MESSAGES] + 1 > len(st.messages):
            return s.NEED_MESSAGES
        if st.v[s.V_MESSAGE_BYTES] + st.frame[s.FR_HAVE] > len(st.message_bytes):
            return s.NEED_MESSAGES
    return s.OK


@inline
def _keep_message(st: Any, buffer: Any, slot: Any, direction: Any, ordinal: Any) -> None:
    if st.v[s.V_KEEP] == 0:
        return
    frame = st.frame
    row = st.v[s.V_MESSAGES]
    st.v[s.V_MESSAGES] = row + 1
    at = st.v[s.V_MESSAGE_BYTES]
    start = frame[s.FR_AT]
    copy_bytes(st.message_bytes, at, buffer, start, frame[s.FR_HAVE])
    st.v[s.V_MESSAGE_BYTES] = at + frame[s.FR_HAVE]
    m = st.messages
    m[row, s.MSG_SLOT] = slot
    m[row, s.MSG_CLIENT] = st.k[slot, s.K_CLIENT]
    m[row, s.MSG_DIRECTION] = direction
    m[row, s.MSG_API_KEY] = st.row[s.X_API_KEY]
    m[row, s.MSG_API_VERSION] = st.row[s.X_API_VERSION]
    m[row, s.MSG_ORDINAL] = ordinal
    m[row, s.MSG_AT] = at
    m[row, s.MSG_LENGTH] = frame[s.FR_HAVE]
    m[row, s.MSG_COMPLETE] = 1 if frame[s.FR_CAUSE] == 0 else 0
    m[row, s.MSG_FIRST_NS] = frame[s.FR_FIRST_NS]
    m[row, s.MSG_LAST_NS] = frame[s.FR_LAST_NS]
    m[row, s.MSG_TRIGGER] = frame[s.FR_TRIGGER]


@inline
def put_out(st: Any, row: Any, status: Any, trigger: Any) -> None:
    """An exchange has ended: copy `row` (int64[X_COLUMNS]) to the output. Room was made sure of before."""
    to = st.v[s.V_OUT]
    for column in range(s.X_COLUMNS):
        st.out[to, column] = row[column]
    st.out[to, s.X_STATUS] = status
    st.out[to, s.X_NEXT] = st.k[row[s.X_SLOT], s.K_CLIENT]
    st.out[to, s.X_TRIGGER] = trigger
    st.v[s.V_OUT] = to + 1
    if row[s.X_PARTS] >= 0:
        put_parts(st, row[s.X_PARTS], to)
    if row[s.X_ERROR] != s.NULL and row[s.X_ERROR] != 0:
        st.k[row[s.X_SLOT], s.K_ERRORS] += 1


@inline
def take_first(st: Any, slot: Any) -> Any:
    """Remove the oldest pending request of a connection; its row stays readable until the next push."""
    k = st.k
    first = k[slot, s.K_HEAD]
    k[slot, s.K_HEAD] = st.pending[first, s.X_NEXT]
    if k[slot, s.K_HEAD] < 0:
        k[slot, s.K_TAIL] = -1
    k[slot, s.K_COUNT] -= 1
    st.pending[first, s.X_NEXT] = st.v[s.V_PENDING_FREE]
    st.v[s.V_PENDING_FREE] = first
    st.v[s.V_PENDING_LIVE] -= 1
    return first


@inline
def flush_pending(st: Any, slot: Any, status: Any, trigger: Any) -> None:
    """No answer will come any more. Room was made sure of before."""
    while st.k[slot, s.K_HEAD] >= 0:
        first = take_first(st, slot)
        put_out(st, st.pending[first], status, trigger)


@inline
def _count_bytes(st: Any, slot: Any, state: Any, reason: Any, amount: Any) -> None:
    """Put a frame's captured bytes into one class of the coverage."""
    frame = st.frame
    held = frame[s.FR_HELD]
    k = st.k
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
def _cut_reason(st: Any, row: Any, at: Any) -> None:
    """A frame of which bytes are missing: say which way, at columns at (reason), at + 1 (A)."""
    frame = st.frame
    if frame[s.FR_CAUSE] == s.LIMIT:
        row[at] = s.R_LIMIT
        row[at + 1] = frame[s.FR_TOTAL]
    else:
        row[at] = s.R_CUT if frame[s.FR_CAUSE] == s.CUT else s.R_TRUNCATED
        row[at + 1] = frame[s.FR_TOTAL] - frame[s.FR_HELD]


@inline
def take_request(st: Any, lay: Any, buffer: Any, slot: Any, key: Any) -> Any:
    """The frame at hand is a request. Returns OK, a NEED_ status, or REVERT (it was tentative and is none)."""
    frame = st.frame
    k = st.k
    start = frame[s.FR_AT]
    end = start + frame[s.FR_HAVE]
    whole = frame[s.FR_CAUSE] == 0
    status, api, version, correlation, place, length, body = parse_request_header(buffer, start + 4, end, lay)
    header_bad = status != OK and (whole or status != SHORT)
    if frame[s.FR_TENTATIVE] != 0 and header_bad:
        return s.REVERT
    if st.v[s.V_OUT] + 2 > len(st.out):
        return s.NEED_OUT
    if st.v[s.V_PENDING_FREE] < 0 and st.v[s.V_PENDINGS] >= len(st.pending):
        return s.NEED_PENDING
    need = _room_for_message(st)
    if need != s.OK:
        return need

    # SASL by SaslHandshake v0: tokens have no header (KIP-43); the first true request ends them.
    pc = known_layout(lay, 0, api, version) if status == OK else np.int64(-1)
    raw = k[slot, s.K_RAW] != 0
    used = np.int64(0)
    decoded = np.int64(SHORT)
    failed = np.int64(0)
    stopped = body
    if status == OK and pc >= 0:
        stopped, used, decoded, failed = decode(
            buffer, body, end, pc, lay.code, lay.tags, lay.tag_entries, lay.role, st.tape, np.int64(0), np.int64(0),
            st.stack,
        )  # fmt: skip
        if decoded == FULL and len(st.tape) < MAX_TAPE:
            return s.NEED_TAPE
        if used > MAX_PARTITIONS and count_parts(lay, st.tape, used) > MAX_PARTITIONS:
            decoded = np.int64(FULL)
    if raw:
        if not (decoded == OK and stopped == end and whole):
            k[slot, s.K_SASL] += frame[s.FR_HELD]
            k[slot, s.K_RAW_WAITING] += 1
            st.f[key, s.F_FRAMES] += 1
            return s.OK
    if frame[s.FR_TENTATIVE] != 0 and pc >= 0 and decoded != OK and (whole or not may_go_on(decoded)):
        return s.REVERT

    row = st.row
    for column in range(s.X_COLUMNS):
        row[column] = s.NULL
    row[s.X_PARTS] = -1
    row[s.X_PARTS_COUNT] = 0
    row[s.X_SLOT] = slot
    row[s.X_EXCHANGE] = st.f[key, s.F_FRAMES]
    row[s.X_REQUEST_FIRST_NS] = frame[s.FR_FIRST_NS]
    row[s.X_REQUEST_LAST_NS] = frame[s.FR_LAST_NS] if whole or frame[s.FR_CAUSE] != s.CUT else s.NULL
    row[s.X_REQUEST_BYTES] = frame[s.FR_TOTAL]
    row[s.X_REQUEST_FILE] = frame[s.FR_FILE]
    row[s.X_REQUEST_NUMBER] = frame[s.FR_NUMBER]
    row[s.X_REQUEST_RECORD_AT] = frame[s.FR_RECORD_AT]
    row[s.X_ORDINAL] = frame[s.FR_ORDINAL]
    if end - start - 4 >= 8:
        row[s.X_API_KEY] = api
        row[s.X_API_VERSION] = version
        row[s.X_CORRELATION_ID] = correlation
    if length >= 0:
        symbol = intern(st.strings, buffer, place, length)
        if symbol < 0:
            return s.NEED_STRINGS
        row[s.X_CLIENT_ID] = symbol
    state = s.DECODED_STATE
    reason = s.R_NONE
    trailing = np.int64(0)
    if not whole:
        state = s.TRUNCATED_STATE if frame[s.FR_CAUSE] != s.LIMIT else s.UNDECODED_STATE
        _cut_reason(st, row, s.X_REQUEST_REASON)
        reason = row[s.X_REQUEST_REASON]
    elif header_bad:
        state = s.UNDECODED_STATE
        reason = s.R_HEADER
        row[s.X_REQUEST_REASON_B] = body - start
    elif pc < 0:
        state = s.UNDECODED_STATE
        reason = s.R_UNKNOWN_API if pc == -1 else s.R_UNSUPPORTED_VERSION
    elif decoded == FULL:
        state = s.UNDECODED_STATE
        reason = s.R_LIMIT
        row[s.X_REQUEST_REASON_A] = frame[s.FR_TOTAL]
    elif decoded != OK:
        state = s.UNDECODED_STATE
        reason = s.R_MALFORMED
        row[s.X_REQUEST_REASON_A] = failed * 16 + decoded
        row[s.X_REQUEST_REASON_B] = stopped - start
    elif stopped < end:
        trailing = end - stopped
        reason = s.R_TRAILING
        row[s.X_REQUEST_REASON_A] = trailing
    row[s.X_REQUEST_STATE] = state
    row[s.X_REQUEST_REASON] = reason

    _forget(st)
    if state == s.DECODED_STATE or not whole:
        need = _fill(st, lay, buffer, used)
        if need != s.OK:
            return need
        found = st.found
        row[s.X_ACKS] = found[role.ACKS]
        row[s.X_MAX_WAIT] = found[role.MAX_WAIT]
        row[s.X_MIN_BYTES] = found[role.MIN_BYTES]
        row[s.X_GROUP] = found[role.GROUP]
        row[s.X_MEMBER] = found[role.MEMBER]
        row[s.X_GENERATION] = found[role.GENERATION] if found[role.GENERATION] != s.NULL else found[role.MEMBER_EPOCH]
        row[s.X_TRANSACTIONAL_ID] = found[role.TRANSACTIONAL_ID]
        topics = _list_symbol(st, 0, found[_FOUND_TOPICS], True)
        if topics == -1:
            return s.NEED_LISTS
        if topics == -2:
            return s.NEED_TOPICS
        row[s.X_TOPICS] = topics
        need = _room_for_facts(st, used)
        if need != s.OK:
            return need
        need = room_for_parts(st, lay, used, np.int64(0))
        if need != s.OK:
            return need

    # From here on everything is carried out.
    if state == s.DECODED_STATE or not whole:
        record_parts(st, lay, buffer, used, row, np.int64(0), slot)
    if state == s.DECODED_STATE:
        _record_facts(st, lay, buffer, used, slot, np.int64(-1), frame[s.FR_TRIGGER])
        if st.found[role.SOFTWARE_NAME] != s.NULL:
            k[slot, s.K_SOFTWARE_NAME] = st.found[role.SOFTWARE_NAME]
            k[slot, s.K_SOFTWARE_VERSION] = st.found[role.SOFTWARE_VERSION]
        if api == role.SASL_HANDSHAKE:
            k[slot, s.K_MECHANISM] = st.found[role.MECHANISM]
    if api == role.SASL_HANDSHAKE and version == 0 and status == OK:
        k[slot, s.K_RAW] = 1
    elif raw:
        k[slot, s.K_RAW] = 0
    if row[s.X_CLIENT_ID] != s.NULL and k[slot, s.K_CLIENT_ID] == s.NULL:
        k[slot, s.K_CLIENT_ID] = row[s.X_CLIENT_ID]
    if row[s.X_CORRELATION_ID] != s.NULL:
        if k[slot, s.K_LOWEST_ID] == s.NULL or correlation < k[slot, s.K_LOWEST_ID]:
            k[slot, s.K_LOWEST_ID] = correlation
    _count_bytes(st, slot, state, reason, trailing)
    _keep_message(st, buffer, slot, 0, row[s.X_EXCHANGE])
    st.f[key, s.F_FRAMES] += 1
    k[slot, s.K_REQUESTS] += 1
    trigger = frame[s.FR_TRIGGER]
    if api == role.PRODUCE and row[s.X_ACKS] == 0:
        put_out(st, row, s.NO_RESPONSE_EXPECTED, trigger)
    elif k[slot, s.K_CLOSED] != 0:
        put_out(st, row, s.UNANSWERED, trigger)
    else:
        open_here = k[slot, s.K_COUNT]
        full = open_here >= KEPT_OPEN and st.v[s.V_PENDING_LIVE] >= MAX_OPEN
        if open_here >= MAX_PENDING or full or (open_here > 0 and st.v[s.V_PARTS_LIVE] > MAX_WAITING):
            first = take_first(st, slot)
            st.pending[first, s.X_RESPONSE_REASON] = s.R_TOO_MANY
            put_out(st, st.pending[first], s.UNANSWERED, trigger)
        at = st.v[s.V_PENDING_FREE]
        if at >= 0:
            st.v[s.V_PENDING_FREE] = st.pending[at, s.X_NEXT]
        else:
            at = st.v[s.V_PENDINGS]
            st.v[s.V_PENDINGS] = at + 1
        st.v[s.V_PENDING_LIVE] += 1
        for column in range(s.X_COLUMNS):
            st.pending[at, column] = row[column]
        st.pending[at, s.X_NEXT] = -1
        if k[slot, s.K_TAIL] >= 0:
            st.pending[k[slot, s.K_TAIL], s.X_NEXT] = at
        else:
            k[slot, s.K_HEAD] = at
        k[slot, s.K_TAIL] = at
        k[slot, s.K_COUNT] += 1
    return s.OK


@inline
def find_pending(st: Any, slot: Any, correlation: Any) -> Any:
    """The first pending request with this correlation id -> (row, how many are before it); row -1: none."""
    at = st.k[slot, s.K_HEAD]
    before = np.int64(0)
    while at >= 0 and st.pending[at, s.X_CORRELATION_ID] != correlation:
        at = st.pending[at, s.X_NEXT]
        before += 1
    return at, before


@inline
def take_response(st: Any, lay: Any, buffer: Any, slot: Any, key: Any) -> Any:
    """The frame at hand is a response. Returns OK, a NEED_ status, or REVERT (it was tentative and is none)."""
    frame = st.frame
    k = st.k
    start = frame[s.FR_AT]
    end = start + frame[s.FR_HAVE]
    whole = frame[s.FR_CAUSE] == 0
    trigger = frame[s.FR_TRIGGER]
    readable = end - start >= 8
    correlation = np.int64(0)
    request = np.int64(-1)
    before = np.int64(0)
    if readable:
        correlation = read_int32(buffer, start + 4)
        request, before = find_pending(st, slot, correlation)
    if k[slot, s.K_RAW_WAITING] > 0 and request < 0:
        k[slot, s.K_RAW_WAITING] -= 1
        k[slot, s.K_SASL] += frame[s.FR_HELD]
        st.f[key, s.F_FRAMES] += 1
        return s.OK
    if st.v[s.V_OUT] + before + 2 > len(st.out):
        return s.NEED_OUT
    need = _room_for_message(st)
    if need != s.OK:
        return need
    row = st.row
    if request >= 0:
        for column in range(s.X_COLUMNS):
            row[column] = st.pending[request, column]
    else:
        for column in range(s.X_COLUMNS):
            row[column] = s.NULL
        row[s.X_PARTS] = -1
        row[s.X_PARTS_COUNT] = 0
        row[s.X_SLOT] = slot
        if readable:
            row[s.X_CORRELATION_ID] = correlation
    row[s.X_REPLY] = st.f[key, s.F_FRAMES]
    row[s.X_RESPONSE_FIRST_NS] = frame[s.FR_FIRST_NS]
    row[s.X_RESPONSE_LAST_NS] = frame[s.FR_LAST_NS] if whole or frame[s.FR_CAUSE] != s.CUT else s.NULL
    row[s.X_RESPONSE_BYTES] = frame[s.FR_TOTAL]
    row[s.X_RESPONSE_FILE] = frame[s.FR_FILE]
    row[s.X_RESPONSE_NUMBER] = frame[s.FR_NUMBER]
    row[s.X_RESPONSE_RECORD_AT] = frame[s.FR_RECORD_AT]
    state = s.DECODED_STATE
    reason = s.R_NONE
    trailing = np.int64(0)
    used = np.int64(0)
    api = np.int64(-1)
    row[s.X_RESPONSE_REASON_A] = s.NULL
    row[s.X_RESPONSE_REASON_B] = s.NULL
    if request >= 0 and row[s.X_API_KEY] != s.NULL:
        api = row[s.X_API_KEY]
        decoded, stopped, used, failed, _ = decode_response(
            st, lay, buffer, start + 8, end, api, row[s.X_API_VERSION]
        )
        if decoded == FULL and len(st.tape) < MAX_TAPE:
            return s.NEED_TAPE
        if used > MAX_PARTITIONS and count_parts(lay, st.tape, used) > MAX_PARTITIONS:
            decoded = np.int64(FULL)
        if decoded == -1 or decoded == -2:
            state = s.UNDECODED_STATE
            reason = s.R_UNKNOWN_API if decoded == -1 else s.R_UNSUPPORTED_VERSION
        elif decoded == FULL:
            state = s.UNDECODED_STATE
            reason = s.R_LIMIT
            row[s.X_RESPONSE_REASON_A] = frame[s.FR_TOTAL]
        elif decoded != OK:
            if frame[s.FR_TENTATIVE] != 0 and (whole or not may_go_on(decoded)):
                return s.REVERT
            state = s.UNDECODED_STATE
            reason = s.R_HEADER if decoded == BAD_HEADER else s.R_MALFORMED
            row[s.X_RESPONSE_REASON_A] = failed * 16 + decoded
            row[s.X_RESPONSE_REASON_B] = stopped - start
        elif stopped < end:
            trailing = end - stopped
            reason = s.R_TRAILING
            row[s.X_RESPONSE_REASON_A] = trailing
    else:
        state = s.UNDECODED_STATE
        reason = s.R_NO_REQUEST
    if not whole:
        state = s.TRUNCATED_STATE if frame[s.FR_CAUSE] != s.LIMIT else s.UNDECODED_STATE
        _cut_reason(st, row, s.X_RESPONSE_REASON)
        reason = row[s.X_RESPONSE_REASON]
    row[s.X_RESPONSE_STATE] = state
    row[s.X_RESPONSE_REASON] = reason
    _forget(st)
    found = st.found
    if state == s.DECODED_STATE:
        if not _recall_topics(st, row[s.X_TOPICS]):
            return s.NEED_TOPICS
        said = found[_FOUND_TOPICS]
        need = _fill(st, lay, buffer, used)
        if need != s.OK:
            return need
        row[s.X_THROTTLE] = found[role.THROTTLE]
        row[s.X_ERROR] = found[_FOUND_FIRST_ERROR]
        errors = _list_symbol(st, _FOUND_TABLE, 2 * found[_FOUND_CODES], False)
        if errors == -1:
            return s.NEED_LISTS
        row[s.X_ERRORS] = errors
        if found[_FOUND_TOPICS] > said:
            topics = _list_symbol(st, 0, found[_FOUND_TOPICS], True)
            if topics == -1:
                return s.NEED_LISTS
            if topics == -2:
                return s.NEED_TOPICS
            row[s.X_TOPICS] = topics
        if found[role.MEMBER] != s.NULL:
            # A member that joins says an empty id, and learns its own from the answer.
            member = row[s.X_MEMBER]
            if member == s.NULL or st.strings.entries[member, ENTRY_LENGTH] == 0:
                row[s.X_MEMBER] = found[role.MEMBER]
        if row[s.X_GENERATION] == s.NULL:
            row[s.X_GENERATION] = found[role.GENERATION]
        need = _room_for_facts(st, used)
        if need != s.OK:
            return need
        need = room_for_parts(st, lay, used, row[s.X_PARTS_COUNT])
        if need != s.OK:
            return need

    # From here on everything is carried out.
    if state == s.DECODED_STATE:
        record_parts(st, lay, buffer, used, row, np.int64(1), slot)
        _record_facts(st, lay, buffer, used, slot, api, trigger)
    _count_bytes(st, slot, state, reason, trailing)
    _keep_message(st, buffer, slot, 1, row[s.X_REPLY])
    st.f[key, s.F_FRAMES] += 1
    if request >= 0:
        for _ in range(before):
            first = take_first(st, slot)
            put_out(st, st.pending[first], s.UNANSWERED, trigger)
        take_first(st, slot)
        put_out(st, row, s.ANSWERED, trigger)
    else:
        put_out(st, row, s.ORPHAN_RESPONSE, trigger)
    return s.OK

