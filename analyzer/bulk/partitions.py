"""Topic-partitions of an exchange: one row for each, request and response side joined; and who leads them.

In: the tape of a decoded message. Out: rows of `State.parts`, linked to the exchange until it ends, then copied to
`State.parts_out`; rows of `State.leaders`; where records are wanted, `State.sets` and the bytes of each record set.

Rules
- A partition field starts a row (`roles.PARTITION`); the fields after it in the message belong to it; topic, topic id
  and, where a message has several groups or transactions, the section are those named last.
- Response rows meet the request's by (section, topic or else topic id, partition). Brokers mostly answer in the order
  asked, so the next row is tried first; then a small hash table. A row that only one side has stays a row.
- Headers of record batches are counted here, because the bytes are here: 61 bytes are read of each batch (KIP-98), or
  18 of each outermost message of the older formats.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.analyzer.bulk import projection as role
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.regions import next_cut
from kwire.analyzer.bulk.symbols import intern, lacks
from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.decoding import read_int32, read_int64
from kwire.analyzer.protocol.record_batches import HEADER_ALONE, HEADER_V2
from kwire.captures.kernels import Bytes, Flag, Int, Table, copy_bytes, inline, shared

MAX_NAMED: Final = 1 << 19
"""Topic-partitions of one message, and other things that it names: topics, groups, nodes. A hostile one could name 25
million in 100 MB, and each takes up to ten times its bytes here; real brokers hold some thousands."""

MAX_WAITING: Final = 1 << 20
"""Topic-partitions of requests that wait for an answer; a capture of one direction would else pile them up."""

_COLUMN: Final = np.full(role.ROLES, -1, np.int64)
"""By role: the column that a number of a topic-partition stands in as it is, where it is not negative."""
_COLUMN[role.HIGH_WATERMARK] = s.P_HIGH_WATERMARK
_COLUMN[role.LAST_STABLE] = s.P_LAST_STABLE
_COLUMN[role.LOG_START] = s.P_LOG_START
_COLUMN[role.PART_EPOCH] = s.P_EPOCH
_COLUMN[role.SENT_ON] = s.P_SENT_ON
_COLUMN[role.DIVERGES] = s.P_DIVERGES

_SCAN: Final = 8
_BASE64URL: Final = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8).copy()


@inline
def uuid_text(buffer: Bytes, at: Int, into: Bytes) -> None:
    """Kafka's text of a uuid: 22 characters of URL-safe base64 without padding."""
    for group in range(5):
        b = at + 3 * group
        bits = np.int64(buffer[b]) << 16 | np.int64(buffer[b + 1]) << 8 | np.int64(buffer[b + 2])
        for k in range(4):
            into[4 * group + k] = _BASE64URL[(bits >> (18 - 6 * k)) & 63]
    last = np.int64(buffer[at + 15])
    into[20] = _BASE64URL[last >> 2]
    into[21] = _BASE64URL[(last & 3) << 4]


@inline
def count_batches(buffer: Bytes, at: Int, length: Int) -> tuple[Int, Int, Int, Int, Int, Int, Int]:
    """A record set at `at` -> (whole batches or outermost messages, records in them, the offset after the last, the
    base offset of the first, the time of its first record in ms, offsets that are missing between batches, the label
    of the first).

    The markers in control batches are no records.

    Records are NULL where a message of the old formats is compressed: only its content says how many. The offsets are
    NULL where there is no batch; the time also where the log's time replaced it (LogAppendTime), or where only
    compressed content would say it. A batch that is cut off, or makes no sense, ends the count. A batch without records
    counts as missing.

    A label is the checksum and, above 32 bits, the size: brokers leave both as they were produced, unless they write a
    batch anew. NULL for a compressed message of the old formats, whose offset is its last record's."""
    end = at + length
    batches = np.int64(0)
    records = np.int64(0)
    known = True
    following = np.int64(s.NULL)
    first = np.int64(s.NULL)
    created = np.int64(s.NULL)
    absent = np.int64(0)
    label = np.int64(s.NULL)
    while end - at >= 17:
        size = read_int32(buffer, at + 8)
        if size < 14 or size > end - at - 12:
            break
        magic = np.int64(buffer[at + 16])
        if magic == 2:
            if size < 49:
                break
            inside = read_int32(buffer, at + 57)
            known = known and inside >= 0
            control = np.int64(buffer[at + 22]) & 0x20
            records += max(inside, 0) if control == 0 else np.int64(0)
            base = read_int64(buffer, at)
            span = read_int32(buffer, at + 23) + 1
            if batches == 0:
                first = base
                label = (size + 12) << 32 | (read_int32(buffer, at + 17) & np.int64(0xFFFFFFFF))
                if (np.int64(buffer[at + 22]) & 8) == 0:
                    created = read_int64(buffer, at + 27)
            elif base > following:
                absent += base - following
            if inside == 0:
                absent += max(span, np.int64(0))
            following = base + span
        elif magic <= 1:
            plain = (np.int64(buffer[at + 17]) & 7) == 0
            known = known and plain
            records += 1
            base = read_int64(buffer, at)
            if batches == 0:
                first = base
                if plain:
                    label = (size + 12) << 32 | (read_int32(buffer, at + 12) & np.int64(0xFFFFFFFF))
                if magic == 1 and plain and size >= 22 and (np.int64(buffer[at + 17]) & 8) == 0:
                    created = read_int64(buffer, at + 18)
            elif plain and base > following:
                absent += base - following
            following = base + 1
        else:
            break
        batches += 1
        at += 12 + size
    return batches, records if known else np.int64(s.NULL), following, first, created, absent, label


@shared
def lacks_records_alone(fr: s.Framing, lay: s.Layouts, buffer: Bytes, tape: Table, used: Int, key: Int) -> Flag:
    """Whether all that was cut off of the decoded frame at hand is content of record batches (KIP-98) whose headers are
    there: then zeros in its place make no difference but to the records themselves."""
    base = fr.f[key, s.F_AT]
    last = base + fr.f[key, s.F_HAVE]
    begin, end, mark = next_cut(fr, key, fr.frame[s.FR_MARK])
    for i in range(used):
        if lay.role[tape[i, 1]] != role.RECORDS or tape[i, 2] <= 0:
            continue
        at: Int = tape[i, 3]
        stop = at + tape[i, 2]
        while base + begin < stop:
            # The first hole that is left: it must be in the batch at `at`, or in one behind it.
            if stop - at < HEADER_V2 or base + begin < at + HEADER_V2:
                return False
            size = 12 + read_int32(buffer, at + 8)
            if buffer[at + 16] != 2 or size < HEADER_V2:
                return False
            at = min(at + size, stop)
            while base + begin < at:
                if base + end > at:
                    return False
                begin, end, mark = next_cut(fr, key, mark)
    return base + begin >= last


@inline
def count_named(lay: s.Layouts, tape: Table, used: Int) -> tuple[Int, Int]:
    """At most how many topic-partitions a message names, and how many other things: what `NAMES` says."""
    if used <= 1024:
        return used, used
    parts = np.int64(0)
    others = np.int64(0)
    for i in range(used):
        kind = np.int64(lay.role[tape[i, 1]])
        if kind == role.PARTITION or kind == role.FORGOTTEN:
            parts += 1
        elif role.NAMES[kind]:
            others += 1
    return parts, others


@inline
def room_for_parts(st: s.State, used: Int, named: Int, others: Int, requested: Int) -> Int:
    """Check the room for the rows of a message with `used` rows on the tape.

    named, others: see `count_named`; requested: rows of its request. Returns OK or a NEED_ status."""
    fr = st.framing
    mt = st.matching
    parts = st.parts
    out = st.output
    v = out.v
    more = named + 1
    if v[s.V_PARTS_LIVE] + more > len(parts.rows):
        return s.NEED_PARTS
    # What is out and what may still come out: no other place has to ask.
    if v[s.V_PARTS_OUT] + v[s.V_PARTS_LIVE] + more > len(out.parts):
        return s.NEED_PARTS_OUT
    if 2 * (requested + 1) > len(parts.lookup):
        return s.NEED_LOOKUP
    if v[s.V_LEADERS] + others > len(parts.leaders):
        return s.NEED_LEADERS
    if lacks(mt.strings, 2 * others + 8, 22 * (others + 1)):
        return s.NEED_STRINGS
    if 4 * used + 32 > len(mt.scratch):
        return s.NEED_TOPICS
    if lacks(mt.lists, others + 1, 4 * used):
        return s.NEED_LISTS
    if v[s.V_RECORDS] != 0:
        if v[s.V_SETS] + named > len(parts.sets):
            return s.NEED_SETS
        if v[s.V_SET_BYTES] + fr.frame[s.FR_HAVE] > len(parts.set_bytes):
            return s.NEED_SETS
    return s.OK


@inline
def _new_part(parts: s.Parts) -> Int:
    """A free row of `State.parts`, all NULL."""
    v = parts.v
    at = v[s.V_PART_FREE]
    if at >= 0:
        v[s.V_PART_FREE] = parts.rows[at, s.P_NEXT]
    else:
        at = v[s.V_PARTS]
        v[s.V_PARTS] = at + 1
    v[s.V_PARTS_LIVE] += 1
    for column in range(s.P_PENDING_COLUMNS):
        parts.rows[at, column] = s.NULL
    parts.rows[at, s.P_NEXT] = -1
    return at


@inline
def _link(parts: s.Parts, row: Table, part: Int) -> None:
    """Append a part to an exchange's."""
    if row[s.X_PARTS] < 0:
        row[s.X_PARTS] = part
    else:
        parts.rows[row[s.X_PARTS_LAST], s.P_NEXT] = part
    row[s.X_PARTS_LAST] = part
    row[s.X_PARTS_COUNT] += 1


@inline
def _same(parts: Table, at: Int, section: Int, topic: Int, partition: Int) -> Flag:
    name = parts[at, s.P_TOPIC] if parts[at, s.P_TOPIC] != s.NULL else parts[at, s.P_TOPIC_ID]
    return (
        parts[at, s.P_PARTITION] == partition
        and name == topic
        and parts[at, s.P_SECTION] == section
        and parts[at, s.P_ANSWERED] == s.NULL
    )


@inline
def _bucket(section: Int, topic: Int, partition: Int, mask: Int) -> Int:
    h = np.uint64(section) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(topic) * np.uint64(0xD6E8FEB86659FD93)
    h ^= np.uint64(partition) * np.uint64(0xFF51AFD7ED558CCD)
    h ^= h >> np.uint64(32)
    return np.int64(h & np.uint64(0x7FFFFFFFFFFFFFFF)) & mask


@shared
def _fill_lookup(parts: Table, lookup: Table, at: Int, count: Int) -> Int:
    """Enter an exchange's parts, linked from `at`, into a hash table; of equal ones the first. Returns its mask."""
    size = np.int64(2)
    while size < 2 * count:
        size *= 2
    mask = size - 1
    for i in range(size):
        lookup[i] = -1
    while at >= 0:
        name = parts[at, s.P_TOPIC] if parts[at, s.P_TOPIC] != s.NULL else parts[at, s.P_TOPIC_ID]
        bucket = _bucket(parts[at, s.P_SECTION], name, parts[at, s.P_PARTITION], mask)
        known = False
        while lookup[bucket] >= 0 and not known:
            other = lookup[bucket]
            other_name = parts[other, s.P_TOPIC] if parts[other, s.P_TOPIC] != s.NULL else parts[other, s.P_TOPIC_ID]
            known = (
                other_name == name
                and parts[other, s.P_PARTITION] == parts[at, s.P_PARTITION]
                and parts[other, s.P_SECTION] == parts[at, s.P_SECTION]
            )
            bucket = (bucket + 1) & mask
        if not known:
            lookup[bucket] = at
        at = parts[at, s.P_NEXT]
    return mask


@inline
def _copy_captured(fr: s.Framing, key: Int, into: Bytes, to: Int, buffer: Bytes, at: Int, length: Int) -> Int:
    """Copy a record set, of batches that lack content only the header, with `HEADER_ALONE` in place of the magic.

    Returns the bytes copied. `lacks_records_alone` has looked at the set before."""
    base = fr.f[key, s.F_AT]
    start, stop = to, at + length
    begin, end, mark = next_cut(fr, key, fr.frame[s.FR_MARK])
    while at < stop:
        while mark >= 0 and base + end <= at:
            fr.frame[s.FR_MARK] = mark
            begin, end, mark = next_cut(fr, key, mark)
        if base + begin >= stop or base + end <= at:
            copy_bytes(into, to, buffer, at, stop - at)
            return to + stop - at - start
        size = min(12 + read_int32(buffer, at + 8), stop - at)
        alone = base + begin < at + size
        count = HEADER_V2 if alone else size
        copy_bytes(into, to, buffer, at, count)
        if alone:
            into[to + 16] = HEADER_ALONE
        to += count
        at += size
    return to - start


@inline
def _copy_headers(into: Bytes, to: Int, buffer: Bytes, at: Int, length: Int) -> Int:
    """Copy the headers of a record set's whole batches of magic 2 (KIP-98); return their bytes.

    Of the bytes behind them as many are copied as show that these are no such batch."""
    begin, end = to, at + length
    while end - at >= 17:
        size = 12 + read_int32(buffer, at + 8)
        batch = buffer[at + 16] == 2 and size >= 61
        if batch and size > end - at:
            break
        count = 61 if batch else 17
        copy_bytes(into, to, buffer, at, count)
        to += count
        at += size if batch else length
    return to - begin


@inline
def _keep_set(fr: s.Framing, parts: s.Parts, key: Int, buffer: Bytes, at: Int, length: Int, side: Int) -> Int:
    """Keep a record set's bytes, or the headers in it; returns its number."""
    v = parts.v
    number = v[s.V_SET_NUMBER]
    v[s.V_SET_NUMBER] = number + 1
    row = v[s.V_SETS]
    v[s.V_SETS] = row + 1
    into = v[s.V_SET_BYTES]
    size = length
    partly = fr.frame[s.FR_BRIDGED] >= 0
    if v[s.V_RECORDS] == s.KEEP_HEADERS:
        size = _copy_headers(parts.set_bytes, into, buffer, at, length)
    elif partly:
        size = _copy_captured(fr, key, parts.set_bytes, into, buffer, at, length)
    else:
        copy_bytes(parts.set_bytes, into, buffer, at, length)
    v[s.V_SET_BYTES] = into + size
    parts.sets[row, s.SET_NUMBER] = number
    parts.sets[row, s.SET_AT] = into
    parts.sets[row, s.SET_LENGTH] = size
    parts.sets[row, s.SET_SIDE] = side
    parts.sets[row, s.SET_BRIDGED] = 1 if partly and v[s.V_RECORDS] != s.KEEP_HEADERS else 0
    return number


@inline
def record_parts(
    st: s.State, lay: s.Layouts, buffer: Bytes, used: Int, row: Table, side: Int, slot: Int, key: Int
) -> None:
    """Make or complete the topic-partition rows of the exchange `row` from a tape, and note leaders.

    side: 0 the request's tape, 1 the response's. The caller has made sure of room, and topics have their symbol in
    column 0."""
    fr = st.framing
    mt = st.matching
    parts = st.parts
    tape = mt.tape
    v = parts.v
    section = np.int64(s.NULL)
    topic = np.int64(s.NULL)
    topic_id = np.int64(s.NULL)
    early = np.int64(s.NULL)
    part: Int = np.int64(-1)
    leader = np.int64(-1)
    expected = row[s.X_PARTS]
    requested = row[s.X_PARTS_COUNT] if expected >= 0 else np.int64(0)
    first = expected
    mask = np.int64(-1)
    nodes = np.int64(-1)
    acquired = np.int64(0)
    for i in range(used):
        kind = np.int64(lay.role[tape[i, 1]])
        if kind < role.TOPIC or role.TOPIC_ID < kind < role.FIRST_OF_PARTITIONS:
            continue
        value = tape[i, 2]
        if nodes >= 0 and kind != role.ISR:
            parts.leaders[leader, s.L_ISR] = intern(mt.lists, mt.scratch, 0, 4 * nodes)
            nodes = np.int64(-1)
        if kind == role.TOPIC:
            topic = tape[i, 0] if value > 0 else np.int64(s.NULL)
        elif kind == role.TOPIC_ID:
            at: Int = tape[i, 3]
            topic_id = np.int64(s.NULL)
            if value != 0 or read_int64(buffer, at + 8) != 0:
                uuid_text(buffer, at, mt.scratch)
                topic_id = intern(mt.strings, mt.scratch, 0, 22)
        elif kind == role.PARTITION:
            part = np.int64(-1)
            if side == 1 and requested > 0:
                name = topic if topic != s.NULL else topic_id
                if expected >= 0 and _same(parts.rows, expected, section, name, value):
                    part = expected
                elif requested <= _SCAN:
                    at = first
                    for _ in range(requested):
                        if _same(parts.rows, at, section, name, value):
                            part = at
                            break
                        at = parts.rows[at, s.P_NEXT]
                else:
                    if mask < 0:
                        mask = _fill_lookup(parts.rows, parts.lookup, first, requested)
                    bucket = _bucket(section, name, value, mask)
                    while parts.lookup[bucket] >= 0:
                        if _same(parts.rows, parts.lookup[bucket], section, name, value):
                            part = parts.lookup[bucket]
                            break
                        bucket = (bucket + 1) & mask
            if part < 0:
                part = _new_part(parts)
                _link(parts, row, part)
                parts.rows[part, s.P_SECTION] = section
                parts.rows[part, s.P_PARTITION] = value
            else:
                expected = parts.rows[part, s.P_NEXT]
            if topic != s.NULL:
                parts.rows[part, s.P_TOPIC] = topic
            if topic_id != s.NULL:
                parts.rows[part, s.P_TOPIC_ID] = topic_id
            if side == 1:
                parts.rows[part, s.P_ANSWERED] = 1
                parts.rows[part, s.P_ERROR] = early
                early = np.int64(s.NULL)
        elif kind == role.FORGOTTEN:
            part = _new_part(parts)
            _link(parts, row, part)
            parts.rows[part, s.P_TOPIC] = topic
            parts.rows[part, s.P_TOPIC_ID] = topic_id
            parts.rows[part, s.P_PARTITION] = value
            parts.rows[part, s.P_ANSWERED] = s.FORGOTTEN
            part = np.int64(-1)
        elif kind == role.PART_ERROR_EARLY:
            early = value
        elif kind == role.GROUP_SECTION or kind == role.TRANSACTION_SECTION or kind == role.SECTION:
            section = tape[i, 0] if value > 0 else np.int64(s.NULL)
        elif kind == role.LEADER_ID or kind == role.META_PARTITION:
            leader = np.int64(-1)
            # Share groups are always answered with a leader, which is 0 unless the error is that it moved (KIP-932).
            shared = row[s.X_API_KEY] == api_keys.SHARE_FETCH or row[s.X_API_KEY] == api_keys.SHARE_ACKNOWLEDGE
            error = parts.rows[part, s.P_ERROR] if part >= 0 else np.int64(0)
            moved = error == errors.NOT_LEADER_OR_FOLLOWER or error == errors.FENCED_LEADER_EPOCH
            blank = shared and not moved
            if kind == role.META_PARTITION or (value >= 0 and part >= 0 and not blank):
                leader = v[s.V_LEADERS]
                v[s.V_LEADERS] = leader + 1
                for column in range(s.L_COLUMNS):
                    parts.leaders[leader, column] = s.NULL
                parts.leaders[leader, s.L_NS] = fr.frame[s.FR_LAST_NS]
                parts.leaders[leader, s.L_COMPLETED_BY] = fr.frame[s.FR_COMPLETED_BY]
                parts.leaders[leader, s.L_SLOT] = slot
                parts.leaders[leader, s.L_TOPIC] = topic
                parts.leaders[leader, s.L_TOPIC_ID] = topic_id
                if kind == role.META_PARTITION:
                    parts.leaders[leader, s.L_PARTITION] = value
                else:
                    parts.leaders[leader, s.L_PARTITION] = parts.rows[part, s.P_PARTITION]
                    parts.leaders[leader, s.L_LEADER] = value
        elif leader >= 0 and kind == role.META_LEADER:
            if value >= 0:
                parts.leaders[leader, s.L_LEADER] = value
        elif leader >= 0 and kind == role.LEADER_EPOCH:
            if value >= 0:
                parts.leaders[leader, s.L_EPOCH] = value
        elif leader >= 0 and kind == role.META_REPLICAS:
            if value >= 0:
                parts.leaders[leader, s.L_REPLICAS] = value
        elif leader >= 0 and kind == role.ISR_COUNT:
            nodes = np.int64(0)
        elif kind == role.ISR:
            if nodes >= 0:
                for k in range(4):
                    mt.scratch[4 * nodes + k] = np.uint8((value >> (8 * k)) & 255)
                nodes += 1
        elif part >= 0:
            if kind == role.PART_ERROR:
                parts.rows[part, s.P_ERROR] = value
            elif kind == role.RECORDS:
                if value >= 0:
                    parts.rows[part, s.P_RECORD_BYTES] = value
                    counted = count_batches(buffer, tape[i, 3], value)
                    batches, records, following, begin, created, absent, label = counted
                    parts.rows[part, s.P_BATCHES] = batches
                    parts.rows[part, s.P_RECORDS] = records
                    parts.rows[part, s.P_FOLLOWING] = following
                    parts.rows[part, s.P_FIRST] = created if side == 0 else begin
                    parts.rows[part, s.P_ABSENT] = absent
                    parts.rows[part, s.P_LABEL] = label
                    if v[s.V_RECORDS] != 0 and value > 0:
                        parts.rows[part, s.P_SET] = _keep_set(fr, parts, key, buffer, tape[i, 3], value, side)
            elif kind == role.PREFERRED:
                if value >= 0:
                    parts.rows[part, s.P_SENT_ON] = value
                    if row[s.X_PREFERRED_REPLICA] == s.NULL:
                        row[s.X_PREFERRED_REPLICA] = value
            elif kind == role.PART_OFFSET:
                if value >= 0 and parts.rows[part, s.P_OFFSET] == s.NULL:
                    parts.rows[part, s.P_OFFSET] = value
            elif kind == role.ACQUIRED_FROM:
                if parts.rows[part, s.P_ACQUIRED] == s.NULL:
                    parts.rows[part, s.P_FIRST] = value
                    parts.rows[part, s.P_ABSENT] = 0
                else:
                    behind = parts.rows[part, s.P_FIRST] + parts.rows[part, s.P_ACQUIRED] + parts.rows[part, s.P_ABSENT]
                    parts.rows[part, s.P_ABSENT] += max(value - behind, np.int64(0))
                acquired = -value
            elif kind == role.ACQUIRED_TO:
                acquired += value + 1
            elif kind == role.DELIVERED:
                # Offsets are 64 bits of whoever wrote them; 2**32 records are more than a message holds.
                given = min(max(acquired, 0), np.int64(1) << 32)
                again = given if value > 1 else np.int64(0)
                parts.rows[part, s.P_ACQUIRED] = max(parts.rows[part, s.P_ACQUIRED], np.int64(0)) + given
                parts.rows[part, s.P_REDELIVERED] = max(parts.rows[part, s.P_REDELIVERED], np.int64(0)) + again
                parts.rows[part, s.P_DELIVERIES] = max(parts.rows[part, s.P_DELIVERIES], value)
            elif _COLUMN[kind] >= 0 and value >= 0:
                parts.rows[part, _COLUMN[kind]] = value
    if nodes >= 0:
        parts.leaders[leader, s.L_ISR] = intern(mt.lists, mt.scratch, 0, 4 * nodes)


@inline
def put_parts(parts: s.Parts, out: s.Output, first: Int, owner: Int) -> None:
    """The exchange in row `owner` of the output has ended: copy its topic-partitions out and free them."""
    v = out.v
    to = v[s.V_PARTS_OUT]
    at = first
    while at >= 0:
        for column in range(s.P_COLUMNS):
            out.parts[to, column] = parts.rows[at, column]
        out.parts[to, s.P_OWNER] = owner
        to += 1
        following = parts.rows[at, s.P_NEXT]
        parts.rows[at, s.P_NEXT] = v[s.V_PART_FREE]
        v[s.V_PART_FREE] = at
        v[s.V_PARTS_LIVE] -= 1
        at = following
    v[s.V_PARTS_OUT] = to
