"""Positions of readers: fetches that do not continue the one before, and the offsets that ListOffsets returned.

In: windows, read by columns. Out: moves: columns of few rows. Rules: memory is bounded by the open connections and
their partitions; a fetch that continues the one before is forgotten at once, and so are moves without a refused fetch
or ListOffsets before them, but for the first and the last of a window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kwire.analyzer.analysis.combinations import combinations
from kwire.analyzer.analysis.event_columns import EVENT_COLUMNS, event_columns
from kwire.analyzer.analysis.numbered_places import NumberedPlaces
from kwire.analyzer.bulk import row_groups
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.rows import Exchanges, Window
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.log import Columns
from kwire.analyzer.protocol import api_keys as apis
from kwire.analyzer.protocol import errors as kafka_errors
from kwire.captures.kernels import NULL

FETCHED, REFUSED, LISTED, LEFT = range(4)
"""Kinds of moves: a fetch elsewhere than where the one before ended, or the first of its connection; a fetch refused
with OFFSET_OUT_OF_RANGE; an offset in a ListOffsets response; the position at the end of a connection."""

MOVE_COLUMNS: Final = (
    *EVENT_COLUMNS,
    "what",
    "topic",
    "topic_id",
    "partition",
    "offset",
    "expected",
    "error",
    "target",
)
MOVE_TEXTS: Final = ("connection", "client", "ip", "topic", "topic_id")

_PLACE_BITS: Final = 32
"""Of a key: below them is the place, above them the connection."""
_PLACE: Final = (1 << _PLACE_BITS) - 1
_FEW_PLACES: Final = 1000
"""Places without readers that may be remembered."""


def _none() -> np.ndarray:
    return np.zeros(0, np.int64)


@dataclass(slots=True)
class Positions:
    """The next offset of each reader.

    _at        int64[n], by `_keys` int64[n] in order: connection and place. A place is a topic (a number of strings),
               or else a topic id, and a partition
    _clients   int64[connections]: the client id (a number of strings) of each connection
    _places    topic, topic id and partition
    """

    _keys: np.ndarray = field(default_factory=_none)
    _at: np.ndarray = field(default_factory=_none)
    _clients: np.ndarray = field(default_factory=_none)
    _places: NumberedPlaces = field(default_factory=lambda: NumberedPlaces(2))

    def named(self) -> np.ndarray:
        """Return int64[n]: the numbers of strings in use. A place without readers may become another, as its strings
        do."""
        places = self._places.places(arrow.distinct(self._keys & _PLACE))[:, :2].ravel()
        return np.concatenate([places, self._clients[arrow.distinct(self._keys >> _PLACE_BITS)]])

    def take(self, window: Window) -> Iterator[Columns]:
        """The moves of one window."""
        every = window.every
        api = every.column("api_key")
        listed = api == apis.LIST_OFFSETS
        clients_listed = every.column("client_id")[listed]
        if len(clients_listed):
            yield _listed(every, listed)
        fetches = api == apis.FETCH
        if fetches.any():
            yield from self._fetched(every, fetches, clients_listed)
        yield from self._left(window)

    def _fetched(self, every: Exchanges, wanted: np.ndarray, clients_listed: np.ndarray) -> Iterator[Columns]:
        """Yield the moves of fetches. `clients_listed`: client ids that got an offset or were refused in this
        window."""
        parts = every.partitions
        of_fetches = np.flatnonzero(wanted[every.owner])
        if not len(of_fetches):
            return
        rows = parts[s.P_OWNER, of_fetches]
        keys = (every.connection[rows], *(parts[column, of_fetches] for column in _OF_READERS))
        heads, reader = row_groups.numbered(*keys)
        fetch_offset, after = parts[s.P_OFFSET, of_fetches], parts[s.P_FOLLOWING, of_fetches]
        self._learn(keys[0][heads], every.column("client_id")[rows[heads]])
        wanted = keys[0][heads] << _PLACE_BITS | self._places.numbers([key[heads] for key in keys[1:3]], keys[3][heads])
        now, there = self._looked_up(wanted)
        expected, moved = np.empty((2, len(rows)), np.int64)
        row_groups.follow(reader, row_groups.steady(fetch_offset), row_groups.steady(after), now, expected, moved)
        self._put(wanted, now, there)
        refused = parts[s.P_ERROR, of_fetches] == kafka_errors.OFFSET_OUT_OF_RANGE
        elsewhere = np.flatnonzero(moved)
        clients_listed = np.concatenate([clients_listed, every.column("client_id")[rows[refused]]])
        elsewhere = _relevant(elsewhere, reader[elsewhere], every.column("client_id")[rows[elsewhere]], clients_listed)
        for what, chosen in ((FETCHED, elsewhere), (REFUSED, np.flatnonzero(refused))):
            if len(chosen):
                offset = np.where(fetch_offset[chosen] != NULL, fetch_offset[chosen], expected[chosen])
                yield _moves(every, rows[chosen], parts[:, of_fetches[chosen]], what, offset, expected[chosen])

    def _learn(self, connections: np.ndarray, clients: np.ndarray) -> None:
        """The client ids of connections, in order: the last is what counts."""
        most = int(connections.max()) + 1
        if most > len(self._clients):
            grown = np.full(1 << (most - 1).bit_length(), NULL, np.int64)
            grown[: len(self._clients)] = self._clients
            self._clients = grown
        self._clients[connections] = clients

    def _looked_up(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (offset of each key, NULL: none; its index in `_keys`, -1: none)."""
        if not len(self._keys):
            return np.full(len(wanted), NULL, np.int64), np.full(len(wanted), -1, np.int64)
        there = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        known = self._keys[there] == wanted
        return np.where(known, self._at[there], NULL), np.where(known, there, -1)

    def _put(self, wanted: np.ndarray, now: np.ndarray, there: np.ndarray) -> None:
        """Where readers are from here on; `there` as `_looked_up` gives it. Each key stands once in `wanted`."""
        has_offset = now != NULL
        known = has_offset & (there >= 0)
        self._at[there[known]] = now[known]
        fresh = np.flatnonzero(has_offset & (there < 0))
        if len(fresh):
            fresh = fresh[np.argsort(wanted[fresh])]
            into = np.searchsorted(self._keys, wanted[fresh])
            self._at = np.insert(self._at, into, now[fresh])
            self._keys = np.insert(self._keys, into, wanted[fresh])

    def _left(self, window: Window) -> Iterator[Columns]:
        """The places at which connections ended."""
        numbers, triggers = window.over
        starts, ends = (np.searchsorted(self._keys, (numbers + more) << _PLACE_BITS) for more in (0, 1))
        counts = ends - starts
        count = int(counts.sum())
        if not count:
            return
        rows = np.repeat(starts - np.cumsum(counts) + counts, counts) + np.arange(count)
        places = self._places.places(self._keys[rows] & _PLACE)
        of, names = np.repeat(numbers, counts), window.names
        born, ip = np.empty((2, int(of.max()) + 1), np.int64)
        for number in arrow.distinct(of).tolist():
            born[number], ip[number] = names.serials[number], names.ends[number][0]
        left = {
            "completed_by": np.repeat(triggers, counts),
            "serial": born[of],
            "time": np.zeros(count, np.int64),
            "connection": of,
            "exchange": np.full(count, NULL),
            "reply": np.full(count, NULL),
            "client": self._clients[of],
            "ip": ip[of],
            "what": np.full(count, LEFT, np.int64),
            "topic": places[:, 0],
            "topic_id": places[:, 1],
            "partition": places[:, 2],
            "offset": self._at[rows],
            "expected": np.full(count, NULL),
            "error": np.full(count, NULL),
            "target": np.full(count, NULL),
        }
        self._forget(rows)
        yield left

    def _forget(self, rows: np.ndarray) -> None:
        """Forget readers that have ended, and places without readers once they are the most."""
        reading = np.ones(len(self._keys), np.bool_)
        reading[rows] = False
        self._keys, self._at = self._keys[reading], self._at[reading]
        if len(self._places) > 2 * len(self._keys) + _FEW_PLACES:
            own_places = self._keys & _PLACE
            places = self._places.places(own_places)
            self._places = NumberedPlaces(2)
            if len(places):
                self._keys += self._places.numbers([*places.T[:2]], places.T[2]) - own_places
            order = np.argsort(self._keys)
            self._keys, self._at = self._keys[order], self._at[order]


def _listed(every: Exchanges, wanted: np.ndarray) -> Columns:
    """Return the moves of ListOffsets responses."""
    parts = every.partitions.compress(wanted[every.owner], axis=1)
    offset = parts[s.P_OFFSET]
    return _moves(every, parts[s.P_OWNER], parts, LISTED, offset, np.full(len(offset), NULL))


def _moves(
    every: Exchanges, rows: np.ndarray, parts: np.ndarray, what: int, offset: np.ndarray, expected: np.ndarray
) -> Columns:
    """Moves of topic-partitions `parts` of the exchanges `rows`."""
    return {
        **event_columns(every, rows),
        "what": np.full(len(rows), what, np.int64),
        "topic": parts[s.P_TOPIC],
        "topic_id": parts[s.P_TOPIC_ID],
        "partition": parts[s.P_PARTITION],
        "offset": offset,
        "expected": expected,
        "error": parts[s.P_ERROR],
        "target": np.full(len(rows), NULL),
    }


_OF_READERS: Final = (s.P_TOPIC, s.P_TOPIC_ID, s.P_PARTITION)


def _relevant(moves: np.ndarray, reader: np.ndarray, client: np.ndarray, clients_listed: np.ndarray) -> np.ndarray:
    """Return the moves of a window that may matter later.

    If no reader of a client was refused or got an offset in the window, its first move is where it went after what it
    got before, and its last where it stands when it gets the next. moves, reader, client: int64[n], row, reader and
    client id; clients_listed: client ids that got an offset or were refused.
    """
    if not len(moves):
        return moves
    first, which = combinations(reader, client)
    order, last = np.arange(len(moves)), np.empty(len(first), np.int64)
    last[which] = order  # of what is written twice the last stays
    matters = (order == first[which]) | (order == last[which]) | arrow.among(client, arrow.distinct(clients_listed))
    chosen: np.ndarray = moves[matters]
    return chosen
