"""The gist of busy traffic, from columns: who sent how much and when, which topics Produce and Fetch are about.

In: windows with the headers of their record sets (`Settings.record_headers`). Out: a `Gist` of each: plain rows, one a
connection, one for each client and topic, and the exchanges of all other APIs as they are. So whoever surveys a capture
decodes those alone. Rules: a request without its whole body counts, and says nothing; what an answer says counts where
both bodies are whole.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

import numpy as np

from analyzer.analysis.combinations import combinations, largest, smallest
from analyzer.bulk import state as s
from analyzer.bulk.rows import Exchanges, Window
from analyzer.frame.arrow import among
from analyzer.protocol import api_keys
from analyzer.records import timestamps
from captures.kernels import NULL

APIS: Final = (api_keys.PRODUCE, api_keys.FETCH)
OTHERS: Final = frozenset(range(s.KEPT_APIS)).difference(APIS)
"""All others, as far as there are any."""
_DECODED: Final = 0


class Asked(NamedTuple):
    """What a connection sent that has ended now: how many requests, the lowest ordinal and when that was sent, the
    earliest and the latest time (ns; nothing but 0 where there are no requests)."""

    connection: str
    broker: tuple[str, int]
    requests: int
    first: int
    first_ns: int
    earliest_ns: int
    last_ns: int


class Touched(NamedTuple):
    """What a client (address, client id) asked of a topic, named by either or both. `asked`, `served`: the highest
    partition that requests name, and that was answered without an error; -1: none. What was produced: records, bytes
    of their batches, and the oldest and newest time (ms, -1: none has one)."""

    api_key: int
    client: tuple[str, str | None]
    topic: str
    topic_id: str
    asked: int
    served: int
    records: int
    bytes: int
    oldest_ms: int
    newest_ms: int


class Gist(NamedTuple):
    """`fetched`: (topic id, partition, CRC-32C) of the first batch of what was read of topics without a name here;
    `rest`: exchanges of other APIs."""

    asked: list[Asked]
    touched: list[Touched]
    fetched: list[tuple[str, int, bytes]]
    rest: Exchanges


class Gists:
    """Of the windows of a capture point, in order. `named`: topic ids whose name is known, which may grow."""

    def __init__(self, named: Collection[str] = ()) -> None:
        self._named = named
        # Record sets come when their message does; the exchange, with what they are of, may end later.
        self._sets = np.zeros((1 + timestamps.A_COLUMNS, 0), np.int64)

    def take(self, window: Window) -> Gist:
        """What the wanted exchanges of a window come to."""
        rows = window.exchanges
        self._look(window)
        requests = rows.column("exchange") != NULL
        busy = among(rows.column("api_key"), APIS)
        parts = _Parts.of(rows, requests & busy & (rows.column("request_state") == _DECODED))
        found = Gist(
            _asked(rows, requests),
            self._touched(parts) + _forgotten(rows),
            self._fetched(parts),
            rows.where(requests & ~busy),
        )
        told = window.every.partitions[s.P_SET]
        self._sets = self._sets[:, ~np.isin(self._sets[0], told[told != NULL])]
        return found

    def _look(self, window: Window) -> None:
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

    def _touched(self, parts: _Parts) -> list[Touched]:
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
        asked = largest(np.where(produced | (p[s.P_OFFSET] != NULL), p[s.P_PARTITION], NULL), place, count)
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
            asked,
            served,
            *sums,
            oldest,
            newest,
        )
        return [_row(text, *values) for values in zip(*(one.tolist() for one in columns), strict=True)]

    def _fetched(self, parts: _Parts) -> list[tuple[str, int, bytes]]:
        p, text = parts.columns, parts.rows.names.strings
        fetched = parts.rows.column("api_key")[parts.owner] == api_keys.FETCH
        where = np.flatnonzero(fetched & parts.answered & (p[s.P_TOPIC] == NULL) & (p[s.P_TOPIC_ID] != NULL))
        ids = np.unique(p[s.P_TOPIC_ID, where]).tolist()
        unnamed = [one for one in ids if text[one] not in self._named]
        where = where[np.isin(p[s.P_TOPIC_ID, where], unnamed)]
        checksums = self._of_sets(p[s.P_SET, where])[timestamps.A_CHECKSUM]
        known = checksums != NULL
        columns = (p[s.P_TOPIC_ID, where][known], p[s.P_PARTITION, where][known], checksums[known])
        return [
            (text[one], partition, checksum.to_bytes(4, "big"))
            for one, partition, checksum in zip(*(column.tolist() for column in columns), strict=True)
        ]


class _Parts(NamedTuple):
    """Topic-partitions of some exchanges: `columns` int64[P_COLUMNS, m], `owner` the row of `rows`; bool[m] each: both
    bodies are whole and the answer has it, and it says no error."""

    rows: Exchanges
    columns: np.ndarray
    owner: np.ndarray
    answered: np.ndarray
    served: np.ndarray

    @classmethod
    def of(cls, rows: Exchanges, wanted: np.ndarray) -> _Parts:
        columns = rows.partitions[:, wanted[rows.owner]]
        owner = columns[s.P_OWNER]
        whole = (rows.column("response_state") == _DECODED)[owner]
        answered = whole & (columns[s.P_ANSWERED] == 1)
        return cls(rows, columns, owner, answered, answered & (columns[s.P_ERROR] == 0))


def _row(text: list[str], api: int, ip: int, client: int, topic: int, topic_id: int, *numbers: int) -> Touched:
    name, id_ = (text[one] if one != NULL else "" for one in (topic, topic_id))
    asked, served, records, bytes_, oldest, newest = (one if one != NULL else -1 for one in numbers)
    who = text[client] if client != NULL else None
    return Touched(api, (text[ip], who), name, id_, asked, served, records, bytes_, oldest, newest)


def _summed(values: np.ndarray, place: np.ndarray, count: int) -> np.ndarray:
    out = np.zeros(count, np.int64)
    np.add.at(out, place, np.where(values == NULL, 0, values))
    return out


def _asked(rows: Exchanges, requests: np.ndarray) -> list[Asked]:
    names_, connection = rows.names, rows.connection
    used, place = np.unique(connection, return_inverse=True)
    count = len(used)
    ordinal, sent = rows.column("exchange"), rows.column("request_time")
    often = np.bincount(place[requests], minlength=count)
    sent = np.where(requests, sent, NULL)
    lowest, earliest, last = smallest(ordinal, place, count), smallest(sent, place, count), largest(sent, place, count)
    at_first = requests & (ordinal == lowest[place])
    first_ns = np.full(count, NULL, np.int64)
    first_ns[place[at_first]] = sent[at_first]
    found = []
    columns = (used, often, lowest, first_ns, earliest, last)
    for number, requested, *others in zip(*(column.tolist() for column in columns), strict=True):
        _, _, broker, port = names_.ends[number]
        times = others if requested else [0, 0, 0, 0]
        found.append(Asked(names_.connections[number], (names_.strings[broker], port), requested, *times))
    return found


def _forgotten(rows: Exchanges) -> list[Touched]:
    """Topics that a fetch takes out of its session."""
    text, names_ = rows.names.strings, rows.names
    p = rows.forgotten[:, rows.column("api_key")[rows.forgotten[s.P_OWNER]] == api_keys.FETCH]
    found = []
    for owner, topic, topic_id, partition in p[[s.P_OWNER, s.P_TOPIC, s.P_TOPIC_ID, s.P_PARTITION]].T.tolist():
        ip, client = names_.ends[int(rows.connection[owner])][0], int(rows.column("client_id")[owner])
        found.append(_row(text, api_keys.FETCH, ip, client, topic, topic_id, partition, *[NULL] * 5))
    return found
