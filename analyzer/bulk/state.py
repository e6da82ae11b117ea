"""The tables that framing and matching keep while they read a capture: names of their columns, and nothing else.

All are int64, one row a thing; `NULL` stands for absent. They live in one `State` (named tuples of arrays, which
kernels take as one argument) and are grown by `kwire.analyzer.bulk.shard` between kernel calls.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kwire.analyzer.bulk.symbols import Symbols
from kwire.captures.kernels import NULL as NULL
from kwire.captures.kernels import Array, Bytes, Table

# --- directions (row = 2 * slot + side) -------------------------------------------------------------------------------
# A direction collects bytes in the slab: [F_FROM, F_HAVE) of its region are not used up yet.
(
    F_MODE,
    F_AT,  # its region in the slab
    F_ROOM,
    F_FROM,
    F_HAVE,
    F_NEED,  # bytes from F_FROM that complete the frame at hand, 0 where not known
    F_SCANNED,  # SEEK: offsets before it are no frame's start
    F_STALLED,  # SEEK: F_HAVE when the search last stopped for want of bytes
    F_STRICT,  # SEEK: only offset F_FROM can be a frame's start (the connection's first byte)
    F_TENTATIVE,  # the frame at hand was found by seeking and is not proved yet
    F_MARKS,  # first mark of the region, or -1
    F_LAST_MARK,
    F_SEEN,  # DROP: stream bytes of the frame so far, missing ones included
    F_HELD,  # DROP: captured bytes of the frame so far
    F_CAUSE,  # DROP: why (TRUNCATED, LIMIT)
    F_LAST_NS,
    F_FRAMES,  # frames seen: the next one's ordinal
    F_BROKEN,  # a gap came before the first frame was found
    F_LOST,  # bytes given up before the connection was recognised
    F_PREFIX,  # something may stand before its first message (see `kwire.analyzer.bulk.proxy_prefixes`)
    F_ASKS,  # a request without a name was found, with this correlation id (plus 1): its answer would prove it
    F_ANSWER,  # where an answer to what the other direction asks may start, behind F_AT; -1: none
    F_ANSWER_END,
    F_HOLE,  # bytes are missing since the last message of it that was whole
    F_BRIDGED,  # zeros stand in its region for bytes that were cut off
    F_COLUMNS,
) = range(26)
SYNC, SEEK, DROP, SWALLOW = 0, 1, 2, 3
TRUNCATED, LIMIT = 1, 2  # see also CUT

# --- marks: which packet brought a byte (linked per direction) --------------------------------------------------------
(
    MARK_NEXT,
    MARK_AT,
    MARK_NS,
    MARK_NUMBER,
    MARK_FILE,
    MARK_RECORD_AT,
    MARK_PACKET_INDEX,
    MARK_CUT,  # where the zeros begin that stand for what was cut off of the packet, up to the next mark; -1: none
    MARK_COLUMNS,
) = range(9)

# --- connections (row = slot) -----------------------------------------------------------------------------------------
(
    K_STARTED,
    K_CLASS,
    K_CLIENT,  # side that sends requests, -1 unknown
    K_INSISTED,  # 1 where --port says that it is Kafka
    K_HEAD,  # pending requests, linked
    K_TAIL,
    K_COUNT,
    K_RAW,  # SaslHandshake v0 seen: raw tokens until the next request
    K_RAW_WAITING,
    K_CLOSED,  # 0 open, 1 FIN from both sides, 2 RST
    K_FINS,
    K_MECHANISM,
    K_SOFTWARE_NAME,
    K_SOFTWARE_VERSION,
    K_CLIENT_ID,
    K_OFFERED,  # an ApiVersions answer was recorded
    K_LOWEST_ID,  # smallest correlation id of a request seen, to know answers to earlier ones
    K_REQUESTS,
    K_ERRORS,
    K_TLS,
    K_PREFIX_KIND,  # what stood before Kafka's first byte, and the part of it that names the ends
    K_PREFIX_TEXT,
    K_ZERO_HELD,  # Produce requests with acks=0 among the pending ones: most brokers do not answer them
    K_ZERO_SILENT,  # this one does not
    K_FIRST_0,  # the first 8 bytes of each side, to say what an unknown protocol may be
    K_FIRST_1,
    K_OTHER,  # bytes of a connection that is not (yet) Kafka
    K_DECODED,
    K_ENCRYPTED,
    K_SASL,
    K_UNKNOWN_API,
    K_UNSUPPORTED_VERSION,
    K_MALFORMED,
    K_TRAILING,
    K_LIMIT,
    K_SKIPPED,
    K_INCOMPLETE,
    K_PREFIX,  # bytes before Kafka's first
    K_ANSWERED_NS,  # last byte of the last response, NULL before the first
    K_LAST_ID,  # correlation id of the last request, NULL before the first
    K_HOLES,  # holes so far that requests may have been lost in
    K_ANSWERED_TO,  # the highest ordinal of a request that was answered, -1 before the first
    K_BRIDGED,  # bytes cut off that were content of record batches, or of a message that nothing comes behind
    K_COLUMNS,
) = range(44)
UNDECIDED, KAFKA, OTHER = 0, 1, 2

# --- exchanges --------------------------------------------------------------------------------------------------------
# A window has the first X_COLUMNS of these. The output of a shard has two more, X_ENDED_COLUMNS in all, and exchanges
# in progress four more, X_PENDING_COLUMNS in all. Columns that are not known yet are NULL.
(
    X_EXCHANGE,
    X_REPLY,
    X_STATUS,
    X_API_KEY,
    X_API_VERSION,
    X_CORRELATION_ID,
    X_CLIENT_ID,
    X_REQUEST_FIRST_NS,
    X_REQUEST_LAST_NS,
    X_REQUEST_BYTES,
    X_REQUEST_FILE,
    X_REQUEST_NUMBER,
    X_REQUEST_RECORD_AT,
    X_REQUEST_STATE,
    X_REQUEST_REASON,
    X_REQUEST_REASON_A,
    X_REQUEST_REASON_B,
    X_RESPONSE_FIRST_NS,
    X_RESPONSE_LAST_NS,
    X_RESPONSE_BYTES,
    X_RESPONSE_FILE,
    X_RESPONSE_NUMBER,
    X_RESPONSE_RECORD_AT,
    X_RESPONSE_STATE,
    X_RESPONSE_REASON,
    X_RESPONSE_REASON_A,
    X_RESPONSE_REASON_B,
    X_THROTTLE,
    X_ERROR,
    X_ERRORS,
    X_ACKS,
    X_MAX_WAIT,
    X_MIN_BYTES,
    X_ISOLATION_LEVEL,
    X_REPLICA,  # Fetch: node id of the broker that asks; NULL (or -1): a consumer
    X_SESSION,  # Fetch: id of the session that it belongs to, and its number in it (KIP-227)
    X_SESSION_EPOCH,
    X_TIMEOUT,  # Produce, JoinGroup: how long the broker may wait for replicas, for members
    X_ASSIGNMENTS,  # SyncGroup: how many it brings; only the leader of a group brings any
    X_GROUP,
    X_MEMBER,
    X_GENERATION,
    X_TRANSACTIONAL_ID,
    X_RACK_ID,  # Fetch: the rack that the reader says it is in
    X_PREFERRED_REPLICA,  # Fetch: the first replica that the answer names to read instead
    X_TOPICS,
    X_PACKET_INDEX,
    X_COMPLETED_BY,
    X_EARLIER_NS,  # last byte of the response before it on the connection, NULL: there was none
    X_SESSION_GIVEN,  # Fetch: id of the session that the answer says
    X_HOLES,  # K_HOLES where the request came
    X_PATH_DELAY_NS,  # of the latency, how long request and response were on the path behind the capture point
    X_MUTED_US,  # parts of the latency (see `kwire.analyzer.bulk.latency_split`)
    X_NETWORK_US,
    X_HOLD_US,
    X_BROKER_US,
    X_CAUSE,
    X_COLUMNS,
) = range(58)
(
    X_SLOT,  # of its connection: the shard's own in `Matching.pending`, those of `Flows` in `Output.exchanges`
    X_CLIENT_SIDE,  # which side of the connection is the client; only in the output
    X_ENDED_COLUMNS,
) = range(X_COLUMNS, X_COLUMNS + 3)
(
    X_NEXT,  # the next one in progress of its connection, or the next free row; -1: none
    X_PARTS,  # first of its topic-partitions, linked; -1: none
    X_PARTS_LAST,
    X_PARTS_COUNT,
    X_PENDING_COLUMNS,
) = range(X_ENDED_COLUMNS, X_ENDED_COLUMNS + 5)
REQUEST_COLUMNS: Final = X_REQUEST_FIRST_NS
RESPONSE_COLUMNS: Final = X_RESPONSE_FIRST_NS
"""Where the columns of a message, M_FIRST_NS and so on, begin among those of an exchange."""
(
    M_FIRST_NS,
    M_LAST_NS,
    M_BYTES,
    M_FILE,
    M_NUMBER,
    M_RECORD_AT,
    M_STATE,
    M_REASON,
    M_REASON_A,
    M_REASON_B,
    M_COLUMNS,
) = range(11)
ANSWERED, NO_RESPONSE_EXPECTED, UNANSWERED, IN_FLIGHT, ORPHAN_RESPONSE = 0, 1, 2, 3, 4
DECODED_STATE, TRUNCATED_STATE, UNDECODED_STATE = 0, 1, 2
# Reasons; A and B are numbers that go with them.
(
    R_NONE,
    R_TRAILING,  # A bytes
    R_UNKNOWN_API,
    R_UNSUPPORTED_VERSION,
    R_MALFORMED,  # A: pc * 16 + status of the decoder, B: offset in the message
    R_TRUNCATED,  # A bytes of the message missing
    R_LIMIT,
    R_HEADER,  # the header itself breaks a rule; B: offset
    R_CUT,  # the capture or the connection ended inside; A bytes of the message missing
    R_NO_REQUEST,
    R_TOO_MANY,  # more requests without an answer than a connection may have
    R_LENGTH,  # the length field holds A, which no message can have
    R_SHUT,  # the broker had closed the connection before the request came
) = range(13)

# --- topic-partitions of an exchange (`kwire.analyzer.bulk.partitions`) -----------------------------------------------
# Output and windows have the first P_COLUMNS of these, those of exchanges in progress one more, P_PENDING_COLUMNS.
(
    P_OWNER,  # row of its exchange in the same output, or the same window
    P_SECTION,  # the group or transaction that it stands under, where a message has several
    P_TOPIC,
    P_TOPIC_ID,
    P_PARTITION,
    P_ANSWERED,
    P_ERROR,
    P_OFFSET,
    P_HIGH_WATERMARK,
    P_LAST_STABLE,
    P_LOG_START,
    P_EPOCH,
    P_RECORD_BYTES,
    P_BATCHES,
    P_RECORDS,
    P_FOLLOWING,  # the offset after the records
    P_SET,  # number of its record set, where those are kept
    P_SENT_ON,  # Fetch: the replica that it shall read instead, or where its log is another one
    P_DIVERGES,  # Fetch: where that log ends
    P_ACQUIRED,  # ShareFetch: records given out, those of them given out before, and how often the most frequent was
    P_REDELIVERED,
    P_DELIVERIES,
    P_FIRST,  # base offset of the first batch; ShareFetch: first record given out; Produce: its first record's time, ms
    P_ABSENT,  # offsets from P_FIRST on that are lacking between batches; ShareFetch: between records given out
    P_LABEL,  # size and checksum of the first batch (`partitions.count_batches`)
    P_COLUMNS,
) = range(26)
(
    P_NEXT,  # the next one of the same exchange, or the next free row; -1: none
    P_PENDING_COLUMNS,
) = range(P_COLUMNS, P_COLUMNS + 2)
FORGOTTEN: Final = 2
"""P_ANSWERED of what a Fetch only names to take it out of its session."""

# --- leaders: what Metadata and redirects say of a topic-partition ----------------------------------------------------
(L_SLOT, L_NS, L_TOPIC, L_TOPIC_ID, L_PARTITION, L_LEADER, L_EPOCH, L_ISR, L_COMPLETED_BY, L_REPLICAS, L_COLUMNS) = (
    range(11)
)

# --- record sets: the content of records fields -----------------------------------------------------------------------
KEEP_SETS, KEEP_HEADERS = 1, 2
"""Of V_RECORDS: record sets are kept, or what `Settings.record_headers` says of them."""
(
    SET_NUMBER,
    SET_AT,
    SET_LENGTH,
    SET_SIDE,
    SET_BRIDGED,  # 1: of batches with HEADER_ALONE in place of their magic, only the header is kept
    SET_COLUMNS,
) = range(6)

# --- facts: rows for the small tables ---------------------------------------------------------------------------------
FACT_KIND, FACT_SLOT, FACT_A, FACT_B, FACT_C, FACT_D, FACT_COMPLETED_BY, FACT_COLUMNS = range(8)
FACT_API_VERSION, FACT_TOPIC_ID, FACT_BROKER = 0, 1, 2

# --- messages: raw bytes kept for show, view and replay ---------------------------------------------------------------
(
    MSG_SLOT,
    MSG_CLIENT,
    MSG_DIRECTION,
    MSG_ORDINAL,
    MSG_API_KEY,
    MSG_API_VERSION,
    MSG_AT,
    MSG_LENGTH,
    MSG_COMPLETE,
    MSG_FIRST_NS,
    MSG_LAST_NS,
    MSG_COMPLETED_BY,
    MSG_COLUMNS,
) = range(13)

KEEP_NONE, KEEP_ALL, KEEP_SOME, KEEP_SOME_WHOLE = range(4)
KEPT_APIS: Final = 256
"""More APIs than there are."""
KEEP_SOME_BYTES: Final = 4 << 20
"""Messages larger than this are not among some that are kept (KEEP_SOME): who wants some does without the giant."""

# --- the frame at hand ------------------------------------------------------------------------------------------------
(
    FR_AT,  # where it starts (its 4-byte length) in the buffer given
    FR_HAVE,  # bytes of it that are there, from its start
    FR_TOTAL,  # its size, the length field included
    FR_HELD,  # captured bytes (those of FR_HAVE, and those after a hole)
    FR_FIRST_NS,
    FR_LAST_NS,
    FR_NUMBER,
    FR_FILE,
    FR_RECORD_AT,
    FR_PACKET_INDEX,
    FR_COMPLETED_BY,
    FR_CAUSE,  # 0 whole, TRUNCATED, LIMIT, CUT, IMPOSSIBLE
    FR_TENTATIVE,
    FR_SOURCE,  # which bytes FR_AT points into: the window's, the waiting ones, the slab
    FR_BRIDGED,  # where the first zeros are that stand for bytes cut off, from its start; -1: none
    FR_MARK,  # the mark that the next of these are looked for from
    FR_COLUMNS,
) = range(17)
CUT, IMPOSSIBLE = 3, 4

# --- the vector of counters -------------------------------------------------------------------------------------------
(
    V_SLAB,
    V_SLAB_LIVE,
    V_MARK_FREE,
    V_MARKS,
    V_PENDING_FREE,
    V_PENDINGS,
    V_OUT,
    V_FACTS,
    V_MESSAGES,
    V_MESSAGE_BYTES,
    V_ENDED,
    V_POSITION,
    V_KEEP,
    V_FRAME_LIMIT,
    V_FINAL,
    V_STAGE,
    V_KEY_0,
    V_KEY_1,
    V_PART_FREE,
    V_PARTS,
    V_PARTS_LIVE,
    V_PARTS_OUT,
    V_LEADERS,
    V_RECORDS,
    V_SETS,
    V_SET_BYTES,
    V_SET_NUMBER,
    V_PENDING_LIVE,
    V_TLS,
    V_SHARD,
    V_SHARDS,
    V_BRIDGED,  # bytes of the hole at hand that zeros stand for
    V_COLUMNS,
) = range(33)

# --- what a kernel call may come back for -----------------------------------------------------------------------------
(
    OK,
    NEED_SLAB,
    NEED_MARKS,
    NEED_PENDING,
    NEED_OUT,
    NEED_FACTS,
    NEED_MESSAGES,
    NEED_STRINGS,
    NEED_LISTS,
    NEED_TAPE,
    NEED_ENDED,
    NEED_TOPICS,
    NEED_PARTS,
    NEED_PARTS_OUT,
    NEED_LOOKUP,
    NEED_LEADERS,
    NEED_SETS,
) = range(17)
REVERT = 99
TORN = 98


class Layouts(NamedTuple):
    """Tables of the decoder's program (see `kwire.analyzer.protocol.program`), and the roles of fields."""

    code: Array
    tags: Array
    tag_entries: Array
    start: Array
    flexible: Array
    header_version: Array
    max_version: Array
    role: Array
    parent: Array


class Framing(NamedTuple):
    """State of framing: connections, directions, bytes that wait, and the frame at hand."""

    f: Table  # a row a direction
    k: Table  # a row a connection
    slab: Bytes
    marks: Table
    frame: Table  # int64[FR_COLUMNS]
    v: Table  # int64[V_COLUMNS]: the counters of all four


class Matching(NamedTuple):
    """State of matching: exchanges in progress, the exchange and the message at hand, strings."""

    pending: Table
    row: Table  # int64[X_COLUMNS]: the exchange at hand
    by_role: Table  # what a message said, by role (see `kwire.analyzer.bulk.fields`)
    topics: Table  # symbols of the topics of the exchange at hand
    tape: Table
    stack: Table
    strings: Symbols
    lists: Symbols
    scratch: Bytes  # symbols of a list, as bytes
    v: Table


class Parts(NamedTuple):
    """State of topic-partitions of exchanges in progress, their leaders, and record sets."""

    rows: Table
    lookup: Table  # hash table of one exchange's parts
    leaders: Table
    sets: Table
    set_bytes: Bytes
    v: Table


class Output(NamedTuple):
    """Rows that have ended, until the caller takes them."""

    exchanges: Table
    parts: Table
    facts: Table
    keep: Bytes  # uint8[APIs]: whose messages are kept, where not all are
    messages: Table
    message_bytes: Bytes
    ended: Table
    v: Table


class State(NamedTuple):
    """Everything a shard keeps. A kernel takes the part that it writes, or all where it writes three and more."""

    framing: Framing
    matching: Matching
    parts: Parts
    output: Output
