"""Read a message's tape: its topics, errors and group, and facts for the small tables.

In: the rows that the decoder left on the tape. Out: `Matching.by_role`, by role; `Matching.topics`; rows of
`Output.facts`. Rule: room is made sure of before anything is changed.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.analyzer.bulk import projection as role
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.partitions import uuid_text
from kwire.analyzer.bulk.symbols import ENTRY_AT, ENTRY_LENGTH, ENTRY_STAMP, STAMP, intern, lacks
from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.decoding import read_int64
from kwire.captures.kernels import Bytes, Flag, Int, Table, inline

MAX_CODES: Final = 64
"""Different error codes listed for one response; there are some 130 in all, and real answers hold one or two."""

# `found[role]` holds what a message said in that role; these come after the roles.
TOPICS_COUNT: Final = role.ROLES
CODES_COUNT: Final = role.ROLES + 1
FIRST_ERROR: Final = role.ROLES + 2
_CODES_TABLE: Final = role.ROLES + 3  # pairs (code, count)
BY_ROLE_COLUMNS: Final = _CODES_TABLE + 2 * MAX_CODES


@inline
def _add_topic(mt: s.Matching, symbol: Int) -> Flag:
    """Note a topic of the exchange at hand once. False: no room."""
    entries = mt.strings.entries
    if entries[symbol, ENTRY_STAMP] == mt.strings.state[STAMP]:
        return True
    count = mt.by_role[TOPICS_COUNT]
    if count >= len(mt.topics):
        return False
    entries[symbol, ENTRY_STAMP] = mt.strings.state[STAMP]
    mt.topics[count] = symbol
    mt.by_role[TOPICS_COUNT] = count + 1
    return True


@inline
def forget(mt: s.Matching) -> None:
    """Clear the values of the message at hand."""
    for i in range(TOPICS_COUNT):
        mt.by_role[i] = s.NULL
    mt.by_role[TOPICS_COUNT] = 0
    mt.by_role[CODES_COUNT] = 0
    mt.by_role[FIRST_ERROR] = 0
    mt.strings.state[STAMP] += 1


@inline
def recall_topics(mt: s.Matching, symbol: Int) -> Flag:
    """Put the request's topics before those of its response. False: no room."""
    if symbol == s.NULL:
        return True
    at = mt.lists.entries[symbol, ENTRY_AT]
    for i in range(mt.lists.entries[symbol, ENTRY_LENGTH] // 4):
        b = at + 4 * i
        heap = mt.lists.heap
        low = np.int64(heap[b]) | np.int64(heap[b + 1]) << 8
        topic = low | np.int64(heap[b + 2]) << 16 | np.int64(heap[b + 3]) << 24
        if not _add_topic(mt, topic):
            return False
    return True


@inline
def fill(mt: s.Matching, lay: s.Layouts, buffer: Bytes, used: Int) -> Int:
    """Note the tape's values in `mt.by_role`. Returns OK or a NEED_ status."""
    by_role = mt.by_role
    tape = mt.tape
    for i in range(used):
        field = tape[i, 1]
        kind = np.int64(lay.role[field])
        value = tape[i, 2]
        if kind == role.ERROR or kind == role.PART_ERROR or kind == role.PART_ERROR_EARLY:
            if value != 0:
                if by_role[FIRST_ERROR] == 0:
                    by_role[FIRST_ERROR] = value
                codes = by_role[CODES_COUNT]
                k = np.int64(0)
                while k < codes and by_role[_CODES_TABLE + 2 * k] != value:
                    k += 1
                if k < codes:
                    by_role[_CODES_TABLE + 2 * k + 1] += 1
                elif k < MAX_CODES:
                    by_role[_CODES_TABLE + 2 * k] = value
                    by_role[_CODES_TABLE + 2 * k + 1] = 1
                    by_role[CODES_COUNT] = codes + 1
        elif kind == role.TOPIC:
            if value > 0:
                symbol = intern(mt.strings, buffer, tape[i, 3], value)
                if symbol < 0:
                    return s.NEED_STRINGS
                tape[i, 0] = symbol
                if not _add_topic(mt, symbol):
                    return s.NEED_TOPICS
        elif kind == role.GROUP_SECTION or kind == role.TRANSACTION_SECTION or kind == role.SECTION:
            if value > 0:
                symbol = intern(mt.strings, buffer, tape[i, 3], value)
                if symbol < 0:
                    return s.NEED_STRINGS
                tape[i, 0] = symbol
                if kind == role.GROUP_SECTION and by_role[role.GROUP] == s.NULL:
                    by_role[role.GROUP] = symbol
                elif kind == role.TRANSACTION_SECTION and by_role[role.TRANSACTIONAL_ID] == s.NULL:
                    by_role[role.TRANSACTIONAL_ID] = symbol
        elif kind >= role.FIRST_OF_PARTITIONS:
            pass  # see `record_parts`
        elif kind == role.TOPIC_ID:
            at = tape[i, 3]
            named = False  # the struct said the name too, just before or after
            for j in (i - 1, i + 1):
                if 0 <= j < used and lay.role[tape[j, 1]] == role.TOPIC and lay.parent[tape[j, 1]] == lay.parent[field]:
                    named = named or tape[j, 2] > 0
            if not named and (value != 0 or read_int64(buffer, at + 8) != 0):
                uuid_text(buffer, at, mt.scratch)
                symbol = intern(mt.strings, mt.scratch, 0, 22)
                if symbol < 0:
                    return s.NEED_STRINGS
                if not _add_topic(mt, symbol):
                    return s.NEED_TOPICS
        elif by_role[kind] == s.NULL:
            if (
                kind == role.GROUP
                or kind == role.MEMBER
                or kind == role.TRANSACTIONAL_ID
                or kind == role.RACK
                or kind == role.SOFTWARE_NAME
                or kind == role.SOFTWARE_VERSION
                or kind == role.MECHANISM
            ):
                if value > 0 or (value == 0 and kind != role.RACK):  # a client without a rack says an empty one
                    symbol = intern(mt.strings, buffer, tape[i, 3], value)
                    if symbol < 0:
                        return s.NEED_STRINGS
                    by_role[kind] = symbol
            elif kind != role.GENERATION or value >= 0:
                by_role[kind] = value
    return s.OK


@inline
def fill_error(mt: s.Matching, lay: s.Layouts, used: Int) -> None:
    """Note the error code of an answer that may not be readable otherwise."""
    for i in range(used):
        if lay.role[mt.tape[i, 1]] == role.ERROR and mt.tape[i, 2] != 0:
            mt.by_role[FIRST_ERROR] = mt.tape[i, 2]
            mt.by_role[_CODES_TABLE] = mt.tape[i, 2]
            mt.by_role[_CODES_TABLE + 1] = 1
            mt.by_role[CODES_COUNT] = 1
            return


@inline
def _list_symbol(mt: s.Matching, numbers: Table, first: Int, count: Int) -> Int:
    """numbers[first:first + count] as one symbol; -1: no room."""
    for i in range(count):
        number = numbers[first + i]
        for k in range(4):
            mt.scratch[4 * i + k] = np.uint8((number >> (8 * k)) & 255)
    return intern(mt.lists, mt.scratch, 0, 4 * count)


@inline
def error_symbol(mt: s.Matching) -> Int:
    """The error codes of the message at hand, and how often each: a list as one symbol; NULL: none, -1: no room."""
    count = 2 * mt.by_role[CODES_COUNT]
    if count == 0:
        return np.int64(s.NULL)
    return _list_symbol(mt, mt.by_role, np.int64(_CODES_TABLE), count)


@inline
def topic_symbol(mt: s.Matching) -> Int:
    """The topics of the exchange at hand: a list as one symbol; NULL: none, -1: no room for it, -2: for its bytes."""
    count = mt.by_role[TOPICS_COUNT]
    if count == 0:
        return np.int64(s.NULL)
    if 4 * count > len(mt.scratch):
        return np.int64(-2)
    return _list_symbol(mt, mt.topics, np.int64(0), count)


@inline
def record_facts(st: s.State, lay: s.Layouts, buffer: Bytes, used: Int, slot: Int, api: Int, completed_by: Int) -> None:
    """Topic ids with their names, and the versions a broker offers. Room was made sure of before."""
    fr = st.framing
    mt = st.matching
    out = st.output
    tape = mt.tape
    facts = out.facts
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
                    uuid_text(buffer, at, mt.scratch)
                    row = out.v[s.V_FACTS]
                    out.v[s.V_FACTS] = row + 1
                    facts[row, s.FACT_KIND] = s.FACT_TOPIC_ID
                    facts[row, s.FACT_SLOT] = slot
                    facts[row, s.FACT_A] = intern(mt.strings, mt.scratch, 0, 22)
                    facts[row, s.FACT_B] = intern(mt.strings, buffer, tape[j, 3], tape[j, 2])
                    facts[row, s.FACT_C] = facts[row, s.FACT_D] = s.NULL
                    facts[row, s.FACT_COMPLETED_BY] = completed_by
        elif kind == role.API_KEY and fr.k[slot, s.K_OFFERED] == 0 and i + 2 < used:
            row = out.v[s.V_FACTS]
            out.v[s.V_FACTS] = row + 1
            facts[row, s.FACT_KIND] = s.FACT_API_VERSION
            facts[row, s.FACT_SLOT] = slot
            facts[row, s.FACT_A] = tape[i, 2]
            facts[row, s.FACT_B] = tape[i + 1, 2]
            facts[row, s.FACT_C] = tape[i + 2, 2]
            facts[row, s.FACT_D] = s.NULL
            facts[row, s.FACT_COMPLETED_BY] = completed_by
        elif kind == role.NODE_ID and i + 2 < used and tape[i, 2] >= 0:
            row = out.v[s.V_FACTS]
            out.v[s.V_FACTS] = row + 1
            facts[row, s.FACT_KIND] = s.FACT_BROKER
            facts[row, s.FACT_SLOT] = slot
            facts[row, s.FACT_A] = tape[i, 2]
            facts[row, s.FACT_B] = intern(mt.strings, buffer, tape[i + 1, 3], max(tape[i + 1, 2], 0))
            facts[row, s.FACT_C] = tape[i + 2, 2]
            facts[row, s.FACT_D] = s.NULL
            if i + 3 < used and lay.role[tape[i + 3, 1]] == role.NODE_RACK and tape[i + 3, 2] >= 0:
                facts[row, s.FACT_D] = intern(mt.strings, buffer, tape[i + 3, 3], tape[i + 3, 2])
            facts[row, s.FACT_COMPLETED_BY] = completed_by
    if api == api_keys.API_VERSIONS and mt.by_role[FIRST_ERROR] == 0:
        fr.k[slot, s.K_OFFERED] = 1


@inline
def room_for_facts(st: s.State, others: Int) -> Int:
    """Check the room for facts of a message that names `others`, before anything is changed.

    It includes the symbols that recording them will look up (see `partitions.count_named`)."""
    fr = st.framing
    mt = st.matching
    out = st.output
    if out.v[s.V_FACTS] + others > len(out.facts):
        return s.NEED_FACTS
    # Uuids are 22 bytes as text; names and hosts are bytes of the message itself.
    if lacks(mt.strings, 2 * others + 8, 22 * (others + 1) + fr.frame[s.FR_HAVE]):
        return s.NEED_STRINGS
    return s.OK
