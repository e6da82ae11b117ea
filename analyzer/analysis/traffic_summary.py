"""Summarise busy traffic from columns: requests by connection, and topics that Produce and Fetch are about.

In: windows with the headers of their record sets (`Settings.record_headers`). Out: a `TrafficSummary` of each: one row
for each connection, one for each client and topic, and the exchanges of all other APIs as they are, so that only those
must be decoded. Rules: a request without its whole body only counts; an answer counts where both bodies are whole.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

import numpy as np

from kwire.analyzer.analysis.combinations import combinations, largest, smallest
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.rows import Exchanges, Window
from kwire.analyzer.frame.arrow import among
from kwire.analyzer.protocol import api_keys
from kwire.analyzer.records import timestamps
from kwire.captures.kernels import NULL

APIS: Final = (api_keys.PRODUCE, api_keys.FETCH)
OTHERS: Final = frozenset(range(s.KEPT_APIS)).difference(APIS)
"""All other APIs."""
_DECODED: Final = 0


class ConnectionActivity(NamedTuple):
    """Requests of a connection in a window: their number, the lowest exchange number and when that was sent, the
    earliest and the latest time (ns; all 0 where there are no requests)."""

    connection: str
    broker: tuple[str, int]
    requests: int
    first: int
    first_ns: int
    earliest_ns: int
    last_ns: int


class TopicActivity(NamedTuple):
    """Requests of a client (address, client id) for a topic, named by either or both. `requested`, `served`: the
    highest partition that was requested, and that was answered without an error; -1: none. Of what was produced:
    records, bytes of their batches, and the oldest and newest time (ms, -1: none has one)."""

    api_key: int
    client: tuple[str, str | None]
    topic: str
    topic_id: str
    requested: int
    served: int
    records: int
    bytes: int
    oldest_ms: int
    newest_ms: int


class TrafficSummary(NamedTuple):
    """Activity of connections and of topics. `fetched`: (topic id, partition, CRC-32C) of the first batch that was read
    of topics without a name here; `rest`: exchanges of other APIs; `sent_ns`: int64[n], when requests were sent."""

    connections: list[ConnectionActivity]
    topics: list[TopicActivity]
    fetched: list[tuple[str, int, bytes]]
    rest: Exchanges
    sent_ns: np.ndarray


class TrafficSummarizer:
    """Summarises the windows of a capture point, in order. `named`: topic ids whose name is known, which may grow."""

    def __init__(self, named: Collection[str] = ()) -> None:
        self._named = named
        # Record sets come when their message does; the exchange, with what they are of, may end later.
        self._sets = np.zeros((1 + timestamps.A_COLUMNS, 0), np.int64)

    def take(self, window: Window) -> TrafficSummary:
        """Summarise the exchanges of a window."""
        rows = window.exchanges
        self._read_sets(window)
        requests = rows.column("exchange") != NULL
        busy = among(rows.column("api_key"), APIS)
        parts = _Partitions.of(rows, requests & busy & (rows.column("request_state") == _DECODED))
        summary = TrafficSummary(
            _connections(rows, requests),
            self._topics(parts) + _forgotten(rows),
            self._fetched(parts),
            rows.where(requests & ~busy),
            rows.column("request_time")[requests],
        )
        ended = window.every.partitions[s.P_SET]
        self._sets = self._sets[:, ~np.isin(self._sets[0], ended[ended != NULL])]
        return summary

    def _read_sets(self, window: Window) -> None:
        fresh = [self._sets]
        for sets in window.sets:
            columns = np.empty((1 + timestamps.A_COLUMNS, len(sets.number)), np.int64)
            columns[0] = sets.number
            timestamps.look(sets.heap, sets.at, sets.length, True, columns[1:])
            fresh.append(columns)
        sets_ = np.concatenate(fresh, axis=1)
        self._sets = sets_[:, np.argsort(sets_[0], kind="stable")]

    def _of_sets(self, numbers: np.ndarray) -> np.ndarray:
        """int64[A_COLUMNS, n], NULL where there is no such set."""
        out = np.full((timestamps.A_COLUMNS, len(numbers)), NULL, np.int64)
        if self._sets.shape[1]:
            place = np.minimum(np.searchsorted(self._sets[0], numbers), self._sets.shape[1] - 1)
            there = self._sets[0, place] == numbers
            out[:, there] = self._sets[1:, place[there]]
        return out

    def _topics(self, parts: _Partitions) -> list[TopicActivity]:
        if not len(parts.owner):
            return []
        p, rows = parts.columns, parts.rows
        api = rows.column("api_key")[parts.owner]
        produced = api == api_keys.PRODUCE
        address = np.array([end[0] for end in rows.names.ends], np.int64)[rows.connection[parts.owner]]
        client = rows.column("client_id")[parts.owner]
        first, place = combinations(api, address, client, p[s.P_TOPIC], p[s.P_TOPIC_ID])
        count = len(first)
        # A fetch that goes on with a session is answered with more than it names (KIP-227).
        requested = largest(np.where(produced | (p[s.P_OFFSET] != NULL), p[s.P_PARTITION], NULL), place, count)
        served = largest(np.where(parts.served, p[s.P_PARTITION], NULL), place, count)
        of_sets = self._of_sets(np.where(produced, p[s.P_SET], NULL))
        sums = [_summed(of_sets[column], place, count) for column in (timestamps.A_RECORDS, timestamps.A_BYTES)]
        oldest = smallest(of_sets[timestamps.A_OLDEST], place, count)
        newest = largest(of_sets[timestamps.A_NEWEST], place, count)
        text = rows.names.strings
        columns = (
            api[first],
            address[first],
            client[first],
            p[s.P_TOPIC, first],
            p[s.P_TOPIC_ID, first],
            requested,
            served,
            *sums,
            oldest,
            newest,
        )
        return [_row(text, *values) for values in zip(*(column.tolist() for column in columns), strict=True)]

    def _fetched(self, parts: _Partitions) -> list[tuple[str, int, bytes]]:
        p, text = parts.columns, parts.rows.names.strings
        fetched = parts.rows.column("api_key")[parts.owner] == api_keys.FETCH
        where = np.flatnonzero(fetched & parts.answered & (p[s.P_TOPIC] == NULL) & (p[s.P_TOPIC_ID] != NULL))
        ids = np.unique(p[s.P_TOPIC_ID, where]).tolist()
        unnamed = [number for number in ids if text[number] not in self._named]
        where = where[np.isin(p[s.P_TOPIC_ID, where], unnamed)]
        checksums = self._of_sets(p[s.P_SET, where])[timestamps.A_CHECKSUM]
        known = checksums != NULL
        columns = (p[s.P_TOPIC_ID, where][known], p[s.P_PARTITION, where][known], checksums[known])
        return [
            (text[topic_id], partition, checksum.to_bytes(4, "big"))
            for topic_id, partition, checksum in zip(*(column.tolist() for column in columns), strict=True)
        ]


class _Partitions(NamedTuple):
    """Topic-partitions of some exchanges: `columns` int64[P_COLUMNS, m], `owner` the row of `rows`; bool[m] each: both
    bodies are whole and the answer has it, and it says no error."""

    rows: Exchanges
    columns: np.ndarray
    owner: np.ndarray
    answered: np.ndarray
    served: np.ndarray

    @classmethod
    def of(cls, rows: Exchanges, wanted: np.ndarray) -> _Partitions:
        columns = rows.partitions[:, wanted[rows.owner]]
        owner = columns[s.P_OWNER]
        whole = (rows.column("response_state") == _DECODED)[owner]
        answered = whole & (columns[s.P_ANSWERED] == 1)
        return cls(rows, columns, owner, answered, answered & (columns[s.P_ERROR] == 0))


def _row(text: list[str], api: int, ip: int, client: int, topic: int, topic_id: int, *numbers: int) -> TopicActivity:
    name, id_ = (text[symbol] if symbol != NULL else "" for symbol in (topic, topic_id))
    client_id = text[client] if client != NULL else None
    return TopicActivity(
        api, (text[ip], client_id), name, id_, *(-1 if number == NULL else number for number in numbers)
    )


def _summed(values: np.ndarray, place: np.ndarray, count: int) -> np.ndarray:
    out = np.zeros(count, np.int64)
    np.add.at(out, place, np.where(values == NULL, 0, values))
    return out


def _connections(rows: Exchanges, requests: np.ndarray) -> list[ConnectionActivity]:
    names_, connection = rows.names, rows.connection
    used, place = np.unique(connection, return_inverse=True)
    count = len(used)
    exchange, sent = rows.column("exchange"), rows.column("request_time")
    requests_of = np.bincount(place[requests], minlength=count)
    sent = np.where(requests, sent, NULL)
    lowest, earliest, last = smallest(exchange, place, count), smallest(sent, place, count), largest(sent, place, count)
    at_first = requests & (exchange == lowest[place])
    first_ns = np.full(count, NULL, np.int64)
    first_ns[place[at_first]] = sent[at_first]
    activities = []
    columns = (used, requests_of, lowest, first_ns, earliest, last)
    for number, requested, *others in zip(*(column.tolist() for column in columns), strict=True):
        _, _, broker, port = names_.ends[number]
        times = others if requested else [0, 0, 0, 0]
        end = names_.strings[broker], port
        activities.append(ConnectionActivity(names_.connections[number], end, requested, *times))
    return activities


def _forgotten(rows: Exchanges) -> list[TopicActivity]:
    """Topics that fetches take out of their sessions."""
    text, names_ = rows.names.strings, rows.names
    p = rows.forgotten[:, rows.column("api_key")[rows.forgotten[s.P_OWNER]] == api_keys.FETCH]
    activities = []
    for owner, topic, topic_id, partition in p[[s.P_OWNER, s.P_TOPIC, s.P_TOPIC_ID, s.P_PARTITION]].T.tolist():
        ip, client = names_.ends[int(rows.connection[owner])][0], int(rows.column("client_id")[owner])
        activities.append(_row(text, api_keys.FETCH, ip, client, topic, topic_id, partition, *[NULL] * 5))
    return activities
