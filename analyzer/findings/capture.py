"""Columns of one capture point for rules: its exchanges, topic-partitions and connections, and clients by name.

In: `RowGroups`. Out: `CaptureFrame`. An exchange is the number of its row; a connection (`link`), client, topic and
topic-partition are small integers; times are us; nothing is read before a rule uses it. The columns of an exchange that
every rule needs take 40 bytes.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from kwire.analyzer.common.times import micros
from kwire.analyzer.findings.query import Evidence, Query
from kwire.analyzer.findings.wording import UNREAD
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.frame.columns import ColumnSet
from kwire.analyzer.frame.frame import NULL, Lists, codes_of
from kwire.analyzer.frame.grouping import OrdinalIndex, first_rows, number_values
from kwire.analyzer.frame.parquet import RowGroups, StoredFrame
from kwire.analyzer.protocol import api_keys as apis
from kwire.analyzer.protocol import schema

NO_CODE: Final = np.iinfo(np.int16).min
"""An error code, API or version that is absent."""

STATUSES = ("answered", "no_response_expected", "unanswered", "in_flight", "orphan_response")
ANSWERED, SILENT, UNANSWERED, IN_FLIGHT, ORPHAN = range(5)

SECOND: Final = 1_000_000

_SET_BACK_US: Final = SECOND // 2
"""A clock service corrects smaller differences, and TCP retransmits within that time."""

_IN_A_ROW: Final = 5

_UNSURE: Final = 8
"""So many answers of a connection that began before the capture may wait until it is taken for Kafka."""

HELD: Final = (apis.FETCH, apis.JOIN_GROUP, apis.SYNC_GROUP, apis.SHARE_FETCH)
"""The broker holds the answer until there is data, or the group is complete."""

OF_BROKERS = re.compile(
    r"broker-\d+-(fetcher|to-controller|.*NodeToController|txn-marker-sender)|raft-client|.*[Cc]hannel[Mm]anager"
    r"|controller-\d+|to-controller|directory-assignments|AddPartitionsManager-client-\d+$"
    r"|id_\d+-host_.+-port_\d+$|ReplicaFetcherThread-\d+-\d+$"
)
"""Client ids of brokers and controllers; the last two are a controller's and a follower's up to Kafka 0.8.2. Their bare
node id, as controllers have, may be any client's too: there what is asked tells."""

# fmt: off
BY_BROKERS: Final = (
    apis.LEADER_AND_ISR, apis.STOP_REPLICA, apis.UPDATE_METADATA, apis.CONTROLLED_SHUTDOWN, apis.VOTE,
    apis.BEGIN_QUORUM_EPOCH, apis.END_QUORUM_EPOCH, apis.ALTER_PARTITION, apis.ENVELOPE, apis.FETCH_SNAPSHOT,
    apis.BROKER_REGISTRATION, apis.BROKER_HEARTBEAT, apis.ALLOCATE_PRODUCER_IDS, apis.CONTROLLER_REGISTRATION,
    apis.ASSIGN_REPLICAS_TO_DIRS, apis.UPDATE_RAFT_VOTER,
)
# fmt: on
"""APIs that only brokers and controllers use. Not WriteTxnMarkers: kafka-transactions.sh sends it to abort."""


_OF_EXCHANGES: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("api_key", "api_version", "error_code"), np.int16),
    **dict.fromkeys(("request_time", "response_end"), np.int64),
    **dict.fromkeys(("exchange", "reply"), np.int32),
}
_TEXT_OF_EXCHANGES: Final = ("connection", "status")
"""Columns of `ExchangeArrays`."""
_OFTEN: Final[Mapping[str, Any]] = dict.fromkeys(
    (
        "latency_us",
        "throttle_us",
        "acks",
        "max_wait_ms",
        "min_bytes",
        "response_time",
        "generation",
    ),
    np.int64,
)
_OFTEN_TEXT: Final = ("group_id", "member_id", "reason", "request_state")
# fmt: off
_OFTEN_OF_PARTITIONS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(
        ("offset", "high_watermark", "last_stable_offset", "lag", "record_bytes", "record_count", "leader_epoch",
         "diverging_offset", "delivery_count"), np.int64,
    ),
    **dict.fromkeys(("exchange", "reply", "partition"), np.int32),
    "error_code": np.int16,
}
# fmt: on
_OFTEN_TEXT_OF_PARTITIONS: Final = ("connection", "topic", "topic_id")
"""Columns that rules often use."""

# fmt: off
OF_BATCHES: Final = ColumnSet(
    {
        **dict.fromkeys(
            ("producer_id", "producer_epoch", "base_sequence", "record_count", "batch_bytes", "magic"), np.int64
        ),
        **dict.fromkeys(("exchange", "reply", "partition"), np.int32),
        "crc_ok": np.int8,
    },
    ("side", "codec", "reason", "topic", "topic_id", "connection"),
    ("uncompressed_bytes", "last_timestamp"),
)
# fmt: on
"""Columns of `batches` that rules use if there are produced batches."""

LARGE: Final[Mapping[str, ColumnSet]] = {
    "exchanges": ColumnSet({**_OF_EXCHANGES, **_OFTEN}, (*_TEXT_OF_EXCHANGES, *_OFTEN_TEXT)),
    "partitions": ColumnSet(_OFTEN_OF_PARTITIONS, _OFTEN_TEXT_OF_PARTITIONS),
}
"""Columns that rules use of the large tables that are always written."""

_OF_FETCHES: Final = frozenset(
    ("latency_us", "max_wait_ms", "min_bytes", "high_watermark", "last_stable_offset", "lag")
)
"""Columns that rules use only if some fetches were empty, or took long: 40 bytes an exchange."""


def _whatever(wanted: ColumnSet, greatest: Sequence[str] = ()) -> ColumnSet:
    numbers = {name: dtype for name, dtype in wanted.numbers.items() if name not in _OF_FETCHES}
    return ColumnSet(numbers, wanted.texts, greatest)


CACHED: Final[Mapping[str, ColumnSet]] = {
    "exchanges": _whatever(
        LARGE["exchanges"],
        ("broker_us", "latency_us", "max_wait_ms", "queue_us", "request_bytes", "response_bytes"),
    ),
    "partitions": _whatever(LARGE["partitions"]),
    "batches": OF_BATCHES,
}
"""Columns to cache while tables are written: those that rules use of every capture, and the greatest value of some
others."""


@dataclass(frozen=True, slots=True)
class ExchangeArrays:
    """Arrays with a value for each exchange. link int32: its connection; api, version, error int16 (NO_CODE: absent);
    status int8; request_time, response_end int64: first byte of the request, last of the answer; exchange, reply int32
    (least: null)."""

    link: np.ndarray
    api: np.ndarray
    version: np.ndarray
    error: np.ndarray
    status: np.ndarray
    request_time: np.ndarray
    response_end: np.ndarray
    exchange: np.ndarray
    reply: np.ndarray

    def __len__(self) -> int:
        return len(self.link)


class Partitions(NamedTuple):
    """Arrays with a value for each topic-partition of an exchange. owner int32: the exchange; topic_partition
    int32: its number in `CaptureFrame.topic_partitions`; error int16."""

    owner: np.ndarray
    topic_partition: np.ndarray
    error: np.ndarray


class Attempt(NamedTuple):
    """Failed connection attempts of an address to an end point: how many were refused, and how many got no answer; the
    most within a minute; times in us."""

    client: str
    server: str
    refused: int
    unanswered: int
    most: int
    since: int
    until: int

    @property
    def times(self) -> int:
        return self.refused + self.unanswered


_CLUSTER_METADATA_ID: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
"""KRaft's own topic: its id is the same in every cluster, and no message says its name."""


class CaptureFrame:
    """Columns of one capture point."""

    def __init__(self, source: RowGroups, entry: Mapping[str, Any], query: Query) -> None:
        self.source = source
        self.entry = entry
        self.name: str = entry["name"]
        self.query = query
        self.memo: dict[Hashable, Any] = {}
        """Results that several rules use."""
        self._tables: dict[str, StoredFrame] = {}

    def table(self, name: str) -> StoredFrame:
        """The rows of this capture point in a table."""
        if name not in self._tables:
            self._tables[name] = StoredFrame(self.source, self.name, name)
        return self._tables[name]

    @property
    def means(self) -> bool:
        """Whether the analysis of the traffic was run."""
        return bool(self.entry.get("meaning", False))

    @property
    def sealed(self) -> list[Mapping[str, Any]]:
        """Connections that begin with TLS and could not be decrypted."""
        return self.unrecognised("TLS")

    def unrecognised(self, like: str) -> list[Mapping[str, Any]]:
        """Connections without Kafka that look like this protocol."""
        return [
            connection
            for connection in self.source.unrecognised
            if connection["capture"] == self.name and connection["looks_like"] == like
        ]

    @functools.cached_property
    def attempts(self) -> list[Attempt]:
        """Failed connection attempts. Unanswered ones are left out where the capture has only the client's direction,
        because answers would not have been captured."""
        attempts = [
            Attempt(
                entry["client"],
                entry["server"],
                entry["refused"],
                entry["unanswered"],
                entry["most_in_a_minute"],
                micros(entry["first_time"], NULL),
                micros(entry["last_time"], NULL),
            )
            for entry in self.entry.get("attempts", ())
        ]
        if not attempts or not self.one_way.any():
            return attempts
        answering = {self.brokers[broker] for broker in arrow.distinct(self.broker_of[~self.one_way]).tolist()}
        return [attempt for attempt in attempts if attempt.refused or attempt.server in answering]

    # ------------------------------------------------------------------------------------- connections and clients

    @property
    def links(self) -> list[str]:
        """Names of connections: those of the table `connections`, in its order, then those that only exchanges name."""
        return self._named[1]

    @functools.cached_property
    def _named(self) -> tuple[ExchangeArrays, list[str]]:
        return self._read_exchanges([*self.table("connections").text("connection")[1]])

    @functools.cached_property
    def _ends(self) -> tuple[np.ndarray, list[tuple[str, str | None]], np.ndarray, list[str]]:
        rows = self.table("connections")
        ips, ids, brokers, ports = (
            rows.text("client_ip"),
            self._ids(*rows.text("client_id")),
            rows.text("broker_ip"),
            rows["broker_port"],
        )
        # Those without an id, and those whose ids were not captured, are others.
        clients: dict[tuple[str, str | None, bool], int] = {}
        servers: dict[str, int] = {}
        of, at = [], []
        unread = self._unread(ids[0] < 0).tolist()
        for ip, named, lost, broker, port in zip(
            ips[0].tolist(), ids[0].tolist(), unread, brokers[0].tolist(), ports.tolist(), strict=True
        ):
            client = (ips[1][ip] if ip >= 0 else "", ids[1][named] if named >= 0 else None, lost)
            of.append(clients.setdefault(client, len(clients)))
            at.append(servers.setdefault(_end(brokers[1][broker] if broker >= 0 else "", port), len(servers)))
        own_ids = self._own_ids(len(of))
        for number, link in enumerate(self.links[len(of) :], len(of)):  # no row of its own: its exchanges say enough
            client_end, _, broker_end = link.rpartition("#")[0].partition("-")
            key = client_end.rpartition(":")[0], own_ids.get(number), False
            of.append(clients.setdefault(key, len(clients)))
            at.append(servers.setdefault(broker_end, len(servers)))
        self.unread = np.array([lost for _, _, lost in clients], bool)
        return np.array(of, np.int32), [(ip, named) for ip, named, _ in clients], np.array(at, np.int32), list(servers)

    def _own_ids(self, rows: int) -> dict[int, str]:
        """Client ids by connection, as their exchanges have them, of connections beyond so many rows of the table:
        those that go on."""
        if len(self.links) <= rows:
            return {}
        codes, names = self.table("exchanges").text("client_id")
        link = self.exchanges.link
        named = spill.where(len(link), lambda block: (link[block] >= rows) & (codes[block] >= 0))
        named = named[np.lexsort((self.exchanges.exchange[named], link[named]))]
        named = named[first_rows(link[named])] if len(named) else named
        return {int(link[row]): names[codes[row]] for row in named.tolist()}

    def _ids(self, codes: np.ndarray, names: list[str]) -> tuple[np.ndarray, list[str]]:
        """Client ids of connections, as in table `clients`: an empty id is replaced by a later one, because the first
        Metadata of Java's old SimpleConsumer has none."""
        empty = np.flatnonzero(arrow.among(codes, codes_of(names, "")))
        if not len(empty):
            return codes, names
        rows = self.exchanges
        id_codes, ids = self.table("exchanges").text("client_id")
        none = codes_of(ids, "")
        named_rows = spill.where(
            len(id_codes),
            lambda block: (
                (id_codes[block] >= 0) & ~arrow.among(id_codes[block], none) & arrow.among(rows.link[block], empty)
            ),
        )
        named_rows = named_rows[np.lexsort((rows.exchange[named_rows], rows.link[named_rows]))]
        named_rows = named_rows[first_rows(rows.link[named_rows])]
        known = {name: number for number, name in enumerate(names)}
        codes = codes.copy()
        codes[rows.link[named_rows]] = [known.setdefault(ids[id_codes[row]], len(known)) for row in named_rows.tolist()]
        return codes, [*known]

    unread: np.ndarray
    """bool[clients]: whether its client id was not captured; available once `clients` was used."""

    def _unread(self, nameless: np.ndarray) -> np.ndarray:
        """bool[n]: connections without a client id of which no request was decoded."""
        lossy = (self.link_numbers("requests") == 0) | ~self.unbroken | (self.link_numbers("opened") == 0)
        unread: np.ndarray = nameless & lossy[: len(nameless)]
        if unread.any():
            state, states = self.table("exchanges").text("request_state")
            whole = codes_of(states, "decoded")
            read = spill.where(len(state), lambda block: arrow.among(state[block], whole))
            unread &= ~arrow.among(np.arange(len(unread)), arrow.distinct(spill.take(self.exchanges.link, read)))
        return unread

    @functools.cached_property
    def mixed(self) -> np.ndarray:
        """bool[clients]: several clients whose ids were not captured, counted as one; their sum is no client's
        behaviour."""
        connections = np.bincount(self.client_of, minlength=len(self.clients))
        return self.unread & (connections > 1)

    def of_one(self, rows: np.ndarray) -> np.ndarray:
        """Leave out exchanges whose client may be several."""
        return rows[~self.mixed[self.client[rows]]] if self.mixed.any() else rows

    @property
    def client_of(self) -> np.ndarray:
        """int32[links]: the client of each connection."""
        return self._ends[0]

    @property
    def clients(self) -> list[tuple[str, str | None]]:
        """(address, client id) of clients."""
        return self._ends[1]

    @property
    def broker_of(self) -> np.ndarray:
        """int32[links]: the broker of each connection."""
        return self._ends[2]

    @property
    def brokers(self) -> list[str]:
        """`ip:port` of brokers."""
        return self._ends[3]

    @functools.cached_property
    def between_brokers(self) -> np.ndarray:
        """bool[clients]: a broker or controller, by its client id, or by what it asks. Clients without an id are
        several: what one of them asks says nothing of the others."""
        between = np.array([bool(named and OF_BROKERS.match(named)) for _, named in self.clients], bool)
        for client in arrow.distinct(self.client[self.of_api(*BY_BROKERS)]).tolist():
            between[client] |= bool(self.clients[client][1])
        return between

    def links_of(self, table: StoredFrame) -> np.ndarray:
        """int32[rows]: the connection of each row of a table."""
        return _by_links(self.links, *table.text("connection"))[0]

    def link_numbers(self, column: str) -> np.ndarray:
        """int64[links]: a column of `connections`; 0 where null or without a row."""
        values = self.table("connections").numbers(column)
        out = np.zeros(len(self.links), np.int64)
        out[: len(values)] = np.where(values == NULL, 0, values)
        return out

    def link_times(self, column: str) -> np.ndarray:
        """int64[links]: a column of times, NULL where absent."""
        values = self.table("connections").numbers(column)
        out = np.full(len(self.links), NULL, np.int64)
        out[: len(values)] = values
        return out

    def links_where(self, column: str, text: str) -> np.ndarray:
        """bool[links]: a column of texts of `connections` says this; False without a row."""
        codes, texts = self.table("connections").text(column)
        out = np.zeros(len(self.links), bool)
        out[: len(codes)] = arrow.among(codes, codes_of(texts, text))
        return out

    @functools.cached_property
    def link_packets(self) -> np.ndarray:
        """int64[links]: packets of both sides."""
        packets: np.ndarray = self.link_numbers("client_packets") + self.link_numbers("broker_packets")
        return packets

    @functools.cached_property
    def closed(self) -> list[str]:
        """How each connection ended: `fin`, `rst`, `open`."""
        codes, names = self.table("connections").text("closed")
        ends = [names[code] if code >= 0 else "open" for code in codes.tolist()]
        return ends + ["open"] * (len(self.links) - len(ends))

    @functools.cached_property
    def one_way(self) -> np.ndarray:
        """bool[links]: packets of one side were captured, and none of the other, which that side heard."""
        client, broker = self.link_numbers("client_packets"), self.link_numbers("broker_packets")
        unheard = sum(self.link_numbers(f"unacknowledged_bytes_to_{toward}") for toward in ("broker", "client"))
        lonely = (np.minimum(client, broker) == 0) & (np.maximum(client, broker) > 0)
        one_way: np.ndarray = lonely & np.asarray(unheard == 0)
        return one_way

    @functools.cached_property
    def cut_fields(self) -> np.ndarray:
        """int64[links]: bytes that the snap length cut off, but for content of record batches."""
        fields: np.ndarray = self.link_numbers("snaplen_bytes") - self.link_numbers("snaplen_record_bytes")
        return fields

    @functools.cached_property
    def unbroken(self) -> np.ndarray:
        """bool[links]: no byte is missing since the capture begins, as far as a gap shows, and both directions were
        captured."""
        one_way = self.one_way
        missing = self.link_numbers("gaps") + self.link_numbers("gap_bytes") + self.cut_fields
        # Who comes midway skips to the next message: nothing is missing after.
        skipped = (self.link_numbers("skipped_bytes") > 0) & (self.link_numbers("opened") > 0)
        unbroken: np.ndarray = np.asarray(missing == 0) & ~skipped & ~one_way
        return unbroken

    @functools.cached_property
    def whole(self) -> np.ndarray:
        """bool[links]: no byte is missing, so that what was not captured was not sent."""
        whole: np.ndarray = self.unbroken & (self.link_numbers("opened") > 0)
        return whole

    @functools.cached_property
    def loses(self) -> bool:
        """Whether packets are missing somewhere: the end of a connection may be missing too, without a later packet to
        show the gap."""
        counted = (self.entry.get("packets") or {}).get("dropped_by_capture")
        return bool(counted) or bool(self.link_numbers("gaps").any())

    @functools.cached_property
    def software(self) -> dict[int, str]:
        """Name and version of software by client, if one of its connections states them."""
        rows = self.table("connections")
        (names, known), (versions, numbers) = rows.text("software_name"), rows.text("software_version")
        out: dict[int, str] = {}
        for link in np.flatnonzero(names >= 0).tolist():
            version = f" {numbers[versions[link]]}" if versions[link] >= 0 else ""
            out.setdefault(int(self.client_of[link]), known[names[link]] + version)
        return out

    # ------------------------------------------------------------------------------------------------- exchanges

    @property
    def exchanges(self) -> ExchangeArrays:
        """Columns of exchanges that nearly all rules use."""
        return self._named[0]

    def _read_exchanges(self, links: list[str]) -> tuple[ExchangeArrays, list[str]]:
        """Exchanges, and the names of connections: `links`, then those that only exchanges name."""
        read = self.table("exchanges").pop(_OF_EXCHANGES, _TEXT_OF_EXCHANGES)
        link, links = _by_links(links, *read.text("connection"))
        codes, statuses = read.text("status")
        status = spill.take(np.array([*(STATUSES.index(text) for text in statuses), -1], np.int8), codes)
        api, version, error, request_time, response_end, exchange, reply = (read[name] for name in _OF_EXCHANGES)
        return ExchangeArrays(link, api, version, error, status, request_time, response_end, exchange, reply), links

    @functools.cached_property
    def set_back(self) -> tuple[int, int] | None:
        """When the capture's clock was first set back by half a second or more, and by how much, us. Rows are in order
        of the packets that completed them, so several rows with earlier times show it. Connections with late or missing
        bytes are left out, because their messages are completed late, and the first of connections that began before
        the capture, which wait until it is clear that they are Kafka."""
        late_bytes = self.link_numbers("retransmissions") + self.link_numbers("out_of_order")
        in_order = self.unbroken & (late_bytes == 0)
        in_order[len(self.table("connections")) :] = False  # of those that go on nobody knows yet
        opened = self.link_numbers("opened") > 0
        latest = NULL
        some, ahead = np.zeros(0, np.int64), np.zeros(0, np.int64)  # the last times, and the latest before each
        for block in spill.blocks(len(self.exchanges)):
            times, link = self.exchanges.response_end[block], self.exchanges.link[block]
            at_once = opened[link] | (self.exchanges.reply[block] >= _UNSURE)
            times = times[(times != NULL) & in_order[link] & at_once]
            before = np.maximum.accumulate(np.append(latest, times))
            some, ahead = np.append(some, times), np.append(ahead, before[:-1])
            late = some + _SET_BACK_US <= ahead
            if late.sum() >= _IN_A_ROW:
                several = np.flatnonzero(np.convolve(late, np.ones(_IN_A_ROW, np.int64), "valid") == _IN_A_ROW)
                if len(several):
                    at = int(several[0])
                    return int(ahead[at]), int(ahead[at] - some[at])
            latest = int(before[-1])
            some, ahead = some[1 - _IN_A_ROW :], ahead[1 - _IN_A_ROW :]
        return None

    @functools.cached_property
    def doubled(self) -> np.ndarray:
        """bool[links]: nearly every packet was captured twice. Copies within a burst may come too late to be
        recognised, and then look like retransmissions, but those are never half of all packets."""
        copies, again = self.link_numbers("duplicates"), self.link_numbers("retransmissions")
        doubled: np.ndarray = (copies > 0) & (20 * (copies + again) >= 9 * self.link_packets) & ~self.has_legs
        return doubled

    @functools.cached_property
    def unsure_copies(self) -> np.ndarray:
        """bool[links]: nearly every packet was captured twice, and some copies look as if TCP had sent them again."""
        unsure: np.ndarray = self.doubled & (2 * self.link_numbers("duplicates") < self.link_packets)
        return unsure

    @functools.cached_property
    def other_addresses(self) -> Lists:
        """Addresses of other legs of each row of `connections`."""
        return self.table("connections").lists("other_addresses")

    @functools.cached_property
    def has_legs(self) -> np.ndarray:
        """bool[links]: the connection was captured under other addresses too; its copies are known as such."""
        has_legs = np.zeros(len(self.links), bool)
        lengths = np.diff(self.other_addresses.offsets)
        has_legs[: len(lengths)] = lengths > 0
        return has_legs

    @functools.cached_property
    def left_open(self) -> np.ndarray:
        """Exchanges without an answer, on connections without gaps; none if packets are missing at all, because an
        answer lost at a connection's end leaves no gap."""
        silent = spill.true_rows(self.exchanges.status == UNANSWERED)
        return silent[:0] if self.loses else silent[self.unbroken[self.exchanges.link[silent]]]

    def load(self) -> None:
        """Read the columns that most rules use in one pass."""
        for name, wanted in LARGE.items():
            if not self.table(name).is_cached:
                self.table(name).load(wanted.numbers, wanted.texts)

    def column(self, name: str) -> np.ndarray:
        """int64[exchanges]: a column of `exchanges`, NULL where null."""
        return self.table("exchanges").numbers(name)

    def greatest(self, name: str) -> int:
        """The greatest value of a column of `exchanges`, NULL if all are null; mostly without reading it."""
        return self.table("exchanges").greatest(name)

    @functools.cached_property
    def groups(self) -> tuple[np.ndarray, list[str]]:
        """int32[exchanges]: the group of each, -1 without; and the names of groups."""
        return self.table("exchanges").text("group_id")

    def of_api(self, *keys: int) -> np.ndarray:
        """Rows of exchanges of these APIs."""
        api = self.exchanges.api
        return spill.where(len(api), lambda block: arrow.among(api[block], keys))

    def api_of(self, owner: np.ndarray) -> np.ndarray:
        """int16: the API of some exchanges, NO_CODE for -1."""
        known = self.exchanges.api if len(self.exchanges) else np.full(1, NO_CODE, np.int16)
        apis: np.ndarray = np.where(owner >= 0, known[owner], NO_CODE)
        return apis

    def parts_of(self, key: int) -> np.ndarray:
        """Rows of topic-partitions of exchanges of this API."""
        owner = self.partitions.owner
        return spill.where(len(owner), lambda block: self.api_of(owner[block]) == key)

    @functools.cached_property
    def client(self) -> np.ndarray:
        """int32[exchanges]: the client of each."""
        return _take(self.client_of, self.exchanges.link)

    @functools.cached_property
    def broker(self) -> np.ndarray:
        """int32[exchanges]: the broker of each."""
        return _take(self.broker_of, self.exchanges.link)

    @functools.cached_property
    def span(self) -> tuple[int, int]:
        """The first and the last time of the capture point, us."""
        times = [self.exchanges.request_time, self.exchanges.response_end]
        times += [self.link_times("first_time"), self.link_times("last_time")]
        known = [extent for part in times if (extent := spill.value_range(part, NULL)) is not None]
        if not known:  # all of it is encrypted, say
            ends = [micros(time, NULL) for name in ("first_time", "last_time") if (time := self.entry.get(name))]
            return (ends[0], ends[-1]) if ends else (0, 0)
        return min(first for first, _ in known), max(last for _, last in known)

    @property
    def seconds(self) -> float:
        """Duration of the capture point; a rule's window may be longer."""
        return (self.span[1] - self.span[0]) / SECOND

    # ------------------------------------------------------------------------------------------------ partitions

    @functools.cached_property
    def topic_names(self) -> dict[str, str]:
        """Names for topic ids."""
        named = {row["topic_id"]: row["topic"] for row in self.table("topic_ids").every(["topic_id", "topic"])}
        return {_CLUSTER_METADATA_ID: "__cluster_metadata", **named}

    @functools.cached_property
    def remade(self) -> set[str]:
        """Names that several topics had in turn: a new topic gets a new id."""
        ids = Counter(self.topic_names.values())
        return {name for name, number in ids.items() if number > 1}

    @functools.cached_property
    def partitions(self) -> Partitions:
        """Topic-partitions of exchanges."""
        rows = self.table("partitions")
        place, self.topic_partitions = self.number_topic_partitions(rows)
        return Partitions(self.owners(rows), place, rows.numbers("error_code", np.int16))

    topic_partitions: list[tuple[str, int]]
    """(topic, partition) by number; available once `partitions` was used."""

    def number_topic_partitions(self, rows: StoredFrame) -> tuple[np.ndarray, list[tuple[str, int]]]:
        """int32[rows]: the number of each row's topic-partition, and (topic, partition) by number. Computed once."""
        if ("topic_partitions", rows.name) not in self.memo:
            self.memo["topic_partitions", rows.name] = self._number_topic_partitions(rows)
        numbered: tuple[np.ndarray, list[tuple[str, int]]] = self.memo["topic_partitions", rows.name]
        return numbered

    def _number_topic_partitions(self, rows: StoredFrame) -> tuple[np.ndarray, list[tuple[str, int]]]:
        topics, names = rows.text("topic")
        ids, by_id = rows.text("topic_id")
        names = list(names)
        numbers = {name: number for number, name in enumerate(names)}
        for topic_id in by_id:
            numbers.setdefault(self.topic_names.get(topic_id, topic_id), len(numbers))
        of_id = np.array([*(numbers[self.topic_names.get(topic_id, topic_id)] for topic_id in by_id), -1], np.int32)
        names = list(numbers)
        partition = rows.numbers("partition", np.int32)
        low = int(partition.min(initial=0))
        span = int(partition.max(initial=0)) - low + 1

        def keys(block: slice) -> np.ndarray:
            some = topics[block]
            key = (np.where(some >= 0, some, of_id[ids[block]]) if by_id else some).astype(np.int64)
            key += 1  # in place: fresh memory costs more than the sums
            key *= span
            key += partition[block]
            key -= low
            return key

        known, inverse = number_values(spill.compute(len(topics), np.int64, keys))
        places = [(names[key // span - 1] if key >= span else "", key % span + low) for key in known.tolist()]
        return inverse, places

    def owners(self, rows: StoredFrame) -> np.ndarray:
        """int32[rows]: the exchange of each row of a table, -1 without. Computed once."""
        if ("owners", rows.name) not in self.memo:
            self.memo["owners", rows.name] = self._owners(rows)
        owners: np.ndarray = self.memo["owners", rows.name]
        return owners

    def _owners(self, rows: StoredFrame) -> np.ndarray:
        link, _ = _by_links(self.links, *rows.text("connection"))
        exchange = rows.numbers("exchange", np.int32)
        out = spill.full(len(link), -1, np.int32)
        null = np.iinfo(np.int32).min
        orphan = exchange == null
        self._requests.join(out, link, exchange, ~orphan)
        if orphan.any():
            alone = np.where(self.exchanges.exchange == null, self.exchanges.reply, null)
            answered = rows.numbers("reply", np.int32)
            self._index(alone).join(out, link, answered, orphan & (answered != null))
        return out

    def _index(self, ordinals: np.ndarray) -> OrdinalIndex:
        """Index exchanges by connection and ordinal. Ordinals count frames, so there are few gaps."""
        known = ordinals != np.iinfo(np.int32).min
        if known.all():  # mostly: then nothing is chosen
            return OrdinalIndex(self.exchanges.link, ordinals, len(self.links))
        rows = np.flatnonzero(known)
        return OrdinalIndex(self.exchanges.link[rows], ordinals[rows], len(self.links), rows)

    @functools.cached_property
    def _requests(self) -> OrdinalIndex:
        """Exchanges by connection and ordinal of the request."""
        return self._index(self.exchanges.exchange)

    @functools.cached_property
    def _link_numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.links)}

    def row_of(self, connection: str, exchange: int) -> int | None:
        """The row of an exchange, or None."""
        link = self._link_numbers.get(connection)
        return None if link is None else self._requests.row(link, exchange)

    @functools.cached_property
    def known_topic_partitions(self) -> set[tuple[str, int]]:
        """(topic, partition) that an answer states to exist."""
        leaders, names = self.number_topic_partitions(self.table("leaders"))
        there = {names[place] for place in set(leaders.tolist())}
        parts = self.partitions
        good = np.zeros(len(self.topic_partitions), np.bool_)
        for block in spill.blocks(len(parts.topic_partition)):
            good[parts.topic_partition[block][parts.error[block] == 0]] = True
        return there | {self.topic_partitions[place] for place in np.flatnonzero(good).tolist()}

    # ---------------------------------------------------------------------------------------------------- evidence

    def key(self, row: int) -> Evidence:
        """The key of an exchange."""
        null = np.iinfo(np.int32).min
        numbers = (int(self.exchanges.exchange[row]), int(self.exchanges.reply[row]))
        exchange, reply = (None if number == null else number for number in numbers)
        return self.links[self.exchanges.link[row]], exchange, reply

    def who(self, client: int | None = None, broker: int | None = None, link: int | None = None) -> dict[str, Any]:
        """The client, broker and connection of a finding."""
        if link is not None:
            client, broker = int(self.client_of[link]), int(self.broker_of[link])
        out: dict[str, Any] = {}
        if client is not None:
            out["client_ip"], out["client_id"] = self.clients[client]
            out[UNREAD] = ("several" if self.mixed[client] else "one") if self.unread[client] else None
            out["software"] = self.software.get(client)
        if broker is not None:
            out["broker"] = self.brokers[broker]
        if link is not None:
            out["connection"] = self.links[link]
        return out


def _by_links(links: list[str], codes: np.ndarray, names: list[str]) -> tuple[np.ndarray, list[str]]:
    """int32[rows]: the position of each connection in `links`, and the names, with those appended that were not there.
    In: a text column."""
    known = {name: number for number, name in enumerate(links)}
    numbers = np.array([*(known.setdefault(name, len(known)) for name in names), -1], np.int32)
    return spill.take(numbers, codes), list(known)


def api_name(key: int) -> str:
    """Kafka's name of an API."""
    return _API_NAMES.get(key, f"API {key}")


_API_NAMES = {api.api_key: api.name for api in schema.apis()}


def _end(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _take(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    return spill.take(values, at) if len(values) else np.zeros(0, np.int32)


T = TypeVar("T")


def once(compute: Callable[[CaptureFrame], T]) -> Callable[[CaptureFrame], T]:
    """Compute a result that several rules use once for each capture point."""

    @functools.wraps(compute)
    def cached(capture: CaptureFrame) -> T:
        if cached not in capture.memo:
            capture.memo[cached] = compute(capture)
        result: T = capture.memo[cached]
        return result

    return cached
