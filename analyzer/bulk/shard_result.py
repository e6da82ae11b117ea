"""Result of one window of one shard, with symbols and slots in the shard's own numbering.

In: the shard's tables. Out: copies of their rows, and the counters of connections by name, so that no later stage knows
which columns `kwire.captures.streams` and `kwire.analyzer.bulk.state` keep them in. `rows.ShardMerger` makes a `Window`
of the results of all shards.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.zookeeper import ZooKeeper
from kwire.analyzer.dataset import tables
from kwire.captures import stream_tables as t
from kwire.captures.tls.certificates import subject_and_end
from kwire.captures.tls.hello import VERSIONS
from kwire.captures.tls.session import Session
from kwire.captures.tls.suites import suite_name

SYMBOLS = ("client_id", "software_name", "software_version", "sasl_mechanism", "prefix")
"""The columns of `Connections` that are numbers of strings."""

TEXTS = ("tls_version", "tls_cipher", "tls_sni", "tls_alpn", "tls_subject", "tls_failure")
"""The columns of `Connections` that are numbers in `Ended.texts`."""

OPEN_COLUMNS: Final = 7
"""Of an open request: slot of its connection, which side of it is the client, last byte of the request (ns), API key,
`acks`, `max_wait_ms`, and the client id's symbol."""

NOT_KNOWN, AT_CLIENT, AT_BROKER, BETWEEN = range(4)
"""Where a connection was captured."""

NEARER: Final = 3
"""How much quicker one side's part of the handshake is where the capture was made. A kernel answers in some tens of
microseconds, and the other side's answer comes that much later at least; in between, both take their way."""

UNHEARD: Final = 3
"""How often TCP sends the same again before it is taken for unheard, where the capture has nothing of the other side.
Who is heard, and merely not captured, goes on to other bytes."""

_OPAQUE = (
    s.K_ENCRYPTED,
    s.K_SASL,
    s.K_UNKNOWN_API,
    s.K_UNSUPPORTED_VERSION,
    s.K_MALFORMED,
    s.K_TRAILING,
    s.K_LIMIT,
    s.K_PREFIX,
)


@dataclass(frozen=True, slots=True)
class Connections:
    """Connections that ended, a row each; int64, NULL where absent.

    number      which connection: a shard's slot, in a `Window` its number in `Names`
    completed_by     ordinal of the packet that ended it
    columns     by name: `is_kafka`, `client_side` (-1: unknown), `first_0` and `first_1` (the first 8 bytes of each
                side), `first_ns`, `last_ns`, `rtt_ns`, `prefix_kind`, `broker_frames` (messages of the broker), the
                columns of the table `connections` that are numbers, and `SYMBOLS`; in a `Window` also
                `other_addresses`, a string with blanks between them
    """

    number: np.ndarray
    completed_by: np.ndarray
    columns: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.number)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def take(self, order: np.ndarray) -> Connections:
        """Some of the rows, in another order."""
        columns = {name: values[order] for name, values in self.columns.items()}
        return Connections(self.number[order], self.completed_by[order], columns)


@dataclass(frozen=True, slots=True)
class ShardResult:
    """Exchanges, connections, facts and messages that ended in one window of one shard.

    exchanges   int64[X_ENDED_COLUMNS, n] columns, ordered by X_COMPLETED_BY; a view of rows, valid until the take after
                the next one, and so is `parts`
    facts       int64[m, FACT_COLUMNS]
    connections those that ended, but for what never said anything and is not Kafka by `--port` either
    slots       of all that ended, to be used again
    messages    int64[p, MSG_COLUMNS] and message_bytes uint8[:]
    parts       int64[P_COLUMNS, q]: topic-partitions of `exchanges`, in their order
    leaders     int64[l, L_COLUMNS]
    sets        int64[r, SET_COLUMNS] and set_bytes uint8[:]: record sets; views, valid until the take
                after the next one
    strings, lists   contents of the symbols that are new since the last window
    anew        symbols were numbered anew before this window: `strings` and `lists` are all that there are
    texts       what the TLS of `connections` says
    oldest      ordinal of the first packet of the oldest request that may still end; None where none is open
    zookeeper   what was said to ZooKeeper
    open        int64[o, OPEN_COLUMNS]: requests without an answer at its end, where those were asked for
    stopped_at  there is more of this window, completed by this packet or later; None: there is not
    """

    exchanges: np.ndarray
    facts: np.ndarray
    connections: Connections
    slots: np.ndarray
    messages: np.ndarray
    message_bytes: np.ndarray
    parts: np.ndarray
    leaders: np.ndarray
    sets: np.ndarray
    set_bytes: np.ndarray
    strings: list[bytes]
    lists: list[bytes]
    oldest: int | None
    texts: list[str]
    zookeeper: list[ZooKeeper] = field(default_factory=list)
    anew: bool = False
    open: np.ndarray = field(default_factory=lambda: np.zeros((0, OPEN_COLUMNS), np.int64))
    stopped_at: int | None = None

    def divided(self, packet: int) -> tuple[ShardResult, ShardResult | None]:
        """Divide it into what was completed up to a packet, and the rest; None: there is none so far."""
        completed_by = self.exchanges[s.X_COMPLETED_BY]
        rows = int(np.searchsorted(completed_by, packet, side="right"))
        parts = int(np.searchsorted(self.parts[s.P_OWNER], rows))
        facts, messages, leaders = (
            table[:, column] <= packet
            for table, column in (
                (self.facts, s.FACT_COMPLETED_BY),
                (self.messages, s.MSG_COMPLETED_BY),
                (self.leaders, s.L_COMPLETED_BY),
            )
        )
        ended = self.connections.completed_by <= packet
        later = [event.completed_by > packet for event in self.zookeeper]
        if self.stopped_at == packet and rows == len(completed_by):
            return self, None
        first = replace(
            self,
            exchanges=self.exchanges[:, :rows],
            facts=self.facts[facts],
            connections=self.connections.take(np.flatnonzero(ended)),
            slots=self.slots[:0],
            messages=self.messages[messages],
            parts=self.parts[:, :parts],
            leaders=self.leaders[leaders],
            zookeeper=[event for event, after in zip(self.zookeeper, later, strict=True) if not after],
            oldest=self._oldest_after(rows),
            open=self.open[:0],
            stopped_at=packet,
        )
        left_parts = self.parts[:, parts:].copy()
        left_parts[s.P_OWNER] -= rows
        rest = replace(
            self,
            exchanges=self.exchanges[:, rows:],
            facts=self.facts[~facts],
            connections=self.connections.take(np.flatnonzero(~ended)),
            messages=self.messages[~messages],
            parts=left_parts,
            leaders=self.leaders[~leaders],
            sets=self.sets[:0],
            strings=[],
            lists=[],
            anew=False,
            zookeeper=[event for event, after in zip(self.zookeeper, later, strict=True) if after],
        )
        return first, rest

    def _oldest_after(self, rows: int) -> int | None:
        """`oldest` where the exchanges from this row on are still to come."""
        request, answer = self.exchanges[s.X_PACKET_INDEX, rows:], self.exchanges[s.X_COMPLETED_BY, rows:]
        firsts = np.where(request == s.NULL, answer, request)
        return min([*firsts.tolist(), *([] if self.oldest is None else [self.oldest])], default=None)

    @property
    def rows(self) -> int:
        """How much there is of it."""
        return sum(map(len, (self.exchanges.T, self.parts.T, self.sets, self.slots)))


def _capture_points(c: np.ndarray) -> np.ndarray:
    """By the two halves of each connection's handshake, SYN to SYN-ACK and SYN-ACK to ACK: the half that the nearer
    side answers is short. `c`: rows of `kwire.captures.streams`."""
    there = c[:, t.C_PATH_DELAY_NS]
    back = c[:, t.C_RTT_NS] - there
    points = np.where(there >= NEARER * back, AT_CLIENT, np.where(back >= NEARER * there, AT_BROKER, BETWEEN))
    points[(there < 0) | (c[:, t.C_RTT_NS] < 0) | (back < 0) | ((there == 0) & (back == 0))] = NOT_KNOWN
    return points


def _undelivered(d: np.ndarray, other: np.ndarray, toward: str) -> dict[str, np.ndarray]:
    """Columns about the bytes of one direction that its receiver never acknowledged.

    d, other: rows of `kwire.captures.streams` of the direction, and of the one that acknowledges; toward: `broker` or
    `client`."""
    top = d[:, t.D_MAX_ACK]
    known = (other[:, t.D_PACKETS] > 0) & (top >= 0) & (d[:, t.D_HIGH] >= 0)
    # Nobody is heard, and TCP sends the same again and again, and nothing else: it does not hear anybody either.
    stuck = (top < 0) & (d[:, t.D_AGAIN] >= UNHEARD) & (d[:, t.D_HIGH_NS] <= d[:, t.D_AGAIN_NS])
    top = np.where(stuck, d[:, t.D_AGAIN_AT], top)
    known |= stuck
    held = np.zeros(len(d), np.int64)
    for block in range(t.SACK_RANGES):
        low, high = d[:, t.D_SACK_0 + 2 * block], d[:, t.D_SACK_0 + 2 * block + 1]
        held += np.where(high > top, high - np.maximum(low, top), 0)
    sent = np.where(known, np.maximum(d[:, t.D_HIGH] - top, 0), 0)
    held = np.minimum(held, sent)
    again = known & (d[:, t.D_AGAIN_AT] == top) & (d[:, t.D_AGAIN] > 0)
    unseen = known & ~again & (d[:, t.D_NEVER_BYTES] > 0)
    waits = sent - held > 0
    since = np.where(again, d[:, t.D_AGAIN_NS], np.where(unseen, d[:, t.D_HOLE_NS], s.NULL))
    sends = np.where(again, 1 + d[:, t.D_AGAIN], np.where(unseen, 0, 1))
    return {
        f"unacknowledged_bytes_to_{toward}": np.where(known, sent - held, s.NULL),
        f"unacknowledged_since_to_{toward}": np.where(waits, since, s.NULL),
        f"unacknowledged_sends_to_{toward}": np.where(waits, sends, s.NULL),
        f"unacknowledged_segment_to_{toward}": np.where(waits & again, d[:, t.D_AGAIN_LENGTH], s.NULL),
        f"sacked_bytes_to_{toward}": np.where(known, held, s.NULL),
        f"sacked_segment_to_{toward}": np.where(d[:, t.D_SACK_LENGTH] > 0, d[:, t.D_SACK_LENGTH], s.NULL),
    }


def _side(value: np.ndarray, client: np.ndarray) -> np.ndarray:
    """1 for the client's side, 2 for the broker's, 0 for none; `value`: 1 + a side, or 0."""
    side: np.ndarray = np.where(value == 0, 0, np.where(value == 1 + client, 1, 2))
    return side


def path_delay_behind(connections: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """int64 like `slots`: how long a message and its answer are under way between the capture point and the broker, in
    nanoseconds. 0 at the broker, and where that is not known."""
    rows = connections[:, [t.C_PATH_DELAY_NS, t.C_RTT_NS]]
    used = np.flatnonzero(rows[:, 0] > 0)
    way = np.zeros(len(connections), np.int64)
    point = _capture_points(connections[used])
    way[used] = np.where((point == AT_CLIENT) | (point == BETWEEN), rows[used, 0], 0)
    delays: np.ndarray = way[slots]
    return delays


@functools.cache
def no_connections() -> Connections:
    """Most windows end none."""
    ended = np.zeros((0, 2), np.int64)
    widths = (s.K_COLUMNS, s.F_COLUMNS, t.C_COLUMNS, t.D_COLUMNS)
    k, f, c, d = (np.zeros((0, columns), np.int64) for columns in widths)
    return _connections(ended, k, f, c, d, sealed(ended[:, 0], {}, np.zeros(0, np.bool_), ended[:, 0])[1])


def _failure(session: Session, whole: bool, client: int) -> str | None:
    """Return why there was no conversation, or which side ended it.

    whole: the connection ended, and both sides were captured; client: the client's side in framing, -1 if it is
    unknown."""
    if session.alert is not None:
        side, alert = session.alert
        # Who spoke in the clear to a listener of TLS said no hello; which side comes first says nothing.
        asking = session.client if session.client >= 0 else max(0, client)
        return f"{'client' if side == asking else 'broker'}: {alert}"
    if whole and session.saw_client_hello and not session.version and not session.retried:
        return "broker: not TLS" if session.answered else "broker: no answer"
    return None


def sealed(
    slots: np.ndarray, over: Mapping[int, Session], whole: np.ndarray, clients: np.ndarray
) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return texts and columns about the TLS of connections in some slots.

    over: sessions by slot; whole: connections that ended, with packets of both sides; clients: their K_CLIENT."""
    texts: dict[str, int] = {}
    columns = {name: np.full(len(slots), s.NULL, np.int64) for name in (*TEXTS, "tls_not_after")}
    columns["decrypted"] = np.zeros(len(slots), np.bool_)
    for row, slot in enumerate(slots.tolist()) if over else ():
        session = over.get(slot)
        if session is None:
            continue
        subject, end = subject_and_end(session.certificate)
        values = (
            VERSIONS.get(session.version),
            suite_name(session.suite) if session.version else None,
            session.server_name,
            session.protocol,
            subject,
            _failure(session, bool(whole[row]), int(clients[row])),
        )
        for name, text in zip(TEXTS, values, strict=True):
            if text is not None:
                columns[name][row] = texts.setdefault(text, len(texts))
        columns["tls_not_after"][row] = s.NULL if end is None else end
        columns["decrypted"][row] = session.given > 0
    return list(texts), columns


def connections(
    ended: np.ndarray, k: np.ndarray, f: np.ndarray, c: np.ndarray, d: np.ndarray, tls_columns: Mapping[str, np.ndarray]
) -> Connections:
    """Make the rows of connections that ended.

    ended int64[e, 2]: slot, and index of the packet that completed it; k and c: their rows of the tables of
    connections; f and d: two rows each of the tables of directions; tls_columns: columns about their TLS."""
    return _connections(ended, k, f, c, d, tls_columns) if len(ended) else no_connections()


def _connections(
    ended: np.ndarray, k: np.ndarray, f: np.ndarray, c: np.ndarray, d: np.ndarray, tls_columns: Mapping[str, np.ndarray]
) -> Connections:
    rows = np.arange(len(ended))
    client = np.maximum(0, k[:, s.K_CLIENT])
    sides = d.reshape(len(ended), 2, t.D_COLUMNS)
    both = sides.sum(axis=1)
    lost = f.reshape(len(ended), 2, s.F_COLUMNS)[:, :, s.F_LOST].sum(axis=1)
    opaque = {
        f"opaque_{reason}_bytes": k[:, column] for reason, column in zip(tables.OPAQUE_REASONS, _OPAQUE, strict=True)
    }
    columns = {
        "is_kafka": k[:, s.K_CLASS] == s.KAFKA,
        "client_side": k[:, s.K_CLIENT],
        "first_0": k[:, s.K_FIRST_0],
        "first_1": k[:, s.K_FIRST_1],
        "client_id": k[:, s.K_CLIENT_ID],
        "software_name": k[:, s.K_SOFTWARE_NAME],
        "software_version": k[:, s.K_SOFTWARE_VERSION],
        "sasl_mechanism": k[:, s.K_MECHANISM],
        "prefix_kind": k[:, s.K_PREFIX_KIND],
        "prefix": k[:, s.K_PREFIX_TEXT],
        "first_ns": c[:, t.C_FIRST_NS],
        "last_ns": c[:, t.C_LAST_NS],
        "rtt_ns": np.where(c[:, t.C_RTT_NS] >= 0, c[:, t.C_RTT_NS], s.NULL),
        "capture_point": _capture_points(c),
        "opened": c[:, t.C_SYN_SIDE] >= 0,
        "closed": k[:, s.K_CLOSED],
        "tls": k[:, s.K_TLS] != 0,
        "requests": k[:, s.K_REQUESTS],
        "broker_frames": f.reshape(len(ended), 2, s.F_COLUMNS)[rows, 1 - client, s.F_FRAMES],
        "errors": k[:, s.K_ERRORS],
        "client_packets": sides[rows, client, t.D_PACKETS],
        "broker_packets": sides[rows, 1 - client, t.D_PACKETS],
        "client_bytes": sides[rows, client, t.D_CAPTURED],
        "broker_bytes": sides[rows, 1 - client, t.D_CAPTURED],
        "retransmissions": both[:, t.D_RETRANSMISSIONS],
        "duplicates": both[:, t.D_DUPLICATE_PACKETS],
        "out_of_order": both[:, t.D_OUT_OF_ORDER],
        "overlap_conflicts": both[:, t.D_CONFLICTS],
        "zero_windows": both[:, t.D_ZERO_WINDOWS],
        "gaps": both[:, t.D_GAPS] - both[:, t.D_UNSENT_GAPS],
        "payload_bytes": both[:, t.D_CAPTURED],
        "duplicate_bytes": both[:, t.D_DUPLICATE],
        "decoded_bytes": k[:, s.K_DECODED],
        "opaque_bytes": np.sum(list(opaque.values()), axis=0),
        "skipped_bytes": k[:, s.K_SKIPPED] + both[:, t.D_LATE] + lost,
        "incomplete_bytes": k[:, s.K_INCOMPLETE],
        "gap_bytes": both[:, t.D_GAP_BYTES] - both[:, t.D_UNSENT_BYTES],
        "snaplen_bytes": both[:, t.D_SNAPLEN],
        "snaplen_record_bytes": k[:, s.K_BRIDGED],
        **_undelivered(sides[rows, client], sides[rows, 1 - client], "broker"),
        **_undelivered(sides[rows, 1 - client], sides[rows, client], "client"),
        "longest_silence_ns": np.where(c[:, t.C_SILENCE_NS] > 0, c[:, t.C_SILENCE_NS], s.NULL),
        "longest_silence_end": np.where(c[:, t.C_SILENCE_NS] > 0, c[:, t.C_SILENCE_END_NS], s.NULL),
        "closed_by": _side(c[:, t.C_CLOSER], client),
        "closed_after": _side(c[:, t.C_CLOSED_AFTER], client),
        # (A clock that was set back makes it negative: then it is not known.)
        "closed_after_ns": np.where(
            (c[:, t.C_CLOSED_AFTER] > 0) & (c[:, t.C_CLOSED_AFTER_NS] >= 0), c[:, t.C_CLOSED_AFTER_NS], s.NULL
        ),
        "delayed_sends": sides[rows, client, t.D_DELAYED],
        **opaque,
        **tls_columns,
    }
    return Connections(ended[:, 0], ended[:, 1], columns)
