"""Where readers are: of their fetches those that do not go on where the one before ended, and what ListOffsets said.

In: windows, read by columns. Out: `moves`: columns of few rows. Rules: memory is bounded by the open connections and
their partitions; a fetch that goes on where it should is forgotten at once, and so are moves that nobody told a reader
to make, but for the first and the last of a window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from analyzer import arrow
from analyzer.bulk import combining
from analyzer.bulk import state as s
from analyzer.bulk.rows import Exchanges, Window
from analyzer.meaning.combos import combinations
from analyzer.meaning.noted import Columns, places
from analyzer.protocol import errors as kafka_errors
from analyzer.protocol import names as apis
from captures.kernels import NULL

ASKED, REFUSED, LISTED, LEFT = range(4)
"""What a move is: a fetch from elsewhere than where the one before ended, or the first of its connection; a fetch
refused with OFFSET_OUT_OF_RANGE; an offset that ListOffsets said; the place at which a connection ended."""

MOVE_COLUMNS: Final = (
    "trigger", "born", "time", "connection", "exchange", "reply", "client", "ip", "what", "topic", "topic_id",
    "partition", "offset", "expected", "error",
)  # fmt: skip
MOVE_TEXTS: Final = ("connection", "client", "ip", "topic", "topic_id")


@dataclass(slots=True)
class _Reader:
    """Of an open connection: its client's id and address (numbers of strings), and the next offset of each topic (a
    number of strings) or else topic id, and partition."""

    client: int
    ip: int
    at: dict[tuple[int, int, int], int] = field(default_factory=dict)


@dataclass(slots=True)
class Positions:
    """The next offset of each reader, by connection."""

    _open: dict[int, _Reader] = field(default_factory=dict)

    def named(self) -> np.ndarray:
        """int64[n]: the numbers of strings in them."""
        said = [number for one in self._open.values() for number in (one.client, one.ip)]
        places = [number for one in self._open.values() for place in one.at for number in place[:2]]
        return np.array([*said, *places], np.int64)

    def take(self, window: Window) -> Iterator[Columns]:
        """The moves of one window."""
        every = window.every
        api = every.column("api_key")
        listed = api == apis.LIST_OFFSETS
        told = every.column("client_id")[listed]
        if len(told):
            yield _listed(every, listed)
        fetches = api == apis.FETCH
        if fetches.any():
            yield from self._fetched(every, fetches, told)
        numbers, triggers = window.over
        ended = [(n, t) for n, t in zip(numbers.tolist(), triggers.tolist(), strict=True) if n in self._open]
        if ended:
            yield self._left(window, ended)

    def _fetched(self, every: Exchanges, wanted: np.ndarray, told: np.ndarray) -> Iterator[Columns]:
        """Moves by fetches; `told`: client ids that were told an offset in this window."""
        parts = every.partitions
        of_fetches = np.flatnonzero(wanted[every.owner])
        if not len(of_fetches):
            return
        rows = parts[s.P_OWNER, of_fetches]
        keys = (every.connection[rows], *(parts[column, of_fetches] for column in _OF_READERS))
        heads, reader = combining.numbered(*keys)
        asked, after = parts[s.P_OFFSET, of_fetches], parts[s.P_FOLLOWING, of_fetches]
        names, client = every.names, every.column("client_id")[rows[heads]].tolist()
        now = np.full(len(heads), NULL, np.int64)
        readers: list[tuple[_Reader, tuple[int, int, int]]] = []
        for i, (number, topic, topic_id, partition) in enumerate(
            zip(*(key[heads].tolist() for key in keys), strict=True)
        ):
            one = self._open.get(number)
            if one is None:
                one = self._open[number] = _Reader(NULL, names.ends[number][0])
            one.client = client[i]
            place = (topic, topic_id, partition)
            now[i] = one.at.get(place, NULL)
            readers.append((one, place))
        expected, moved = np.empty((2, len(rows)), np.int64)
        combining.follow(reader, combining.steady(asked), combining.steady(after), now, expected, moved)
        for (one, place), position in zip(readers, now.tolist(), strict=True):
            if position != NULL:
                one.at[place] = position
        refused = parts[s.P_ERROR, of_fetches] == kafka_errors.OFFSET_OUT_OF_RANGE
        elsewhere = np.flatnonzero(moved)
        told = np.concatenate([told, every.column("client_id")[rows[refused]]])
        elsewhere = _that_matter(elsewhere, reader[elsewhere], every.column("client_id")[rows[elsewhere]], told)
        for what, chosen in ((ASKED, elsewhere), (REFUSED, np.flatnonzero(refused))):
            if len(chosen):
                offset = np.where(asked[chosen] != NULL, asked[chosen], expected[chosen])
                yield _moves(every, rows[chosen], parts[:, of_fetches[chosen]], what, offset, expected[chosen])

    def _left(self, window: Window, ended: list[tuple[int, int]]) -> Columns:
        """The places at which connections ended."""
        found: list[tuple[int, ...]] = []
        for number, trigger in ended:
            reader = self._open.pop(number)
            for (topic, topic_id, partition), position in reader.at.items():
                born = window.names.born[number]
                found.append(
                    (trigger, born, 0, number, NULL, NULL, reader.client, reader.ip, LEFT, topic, topic_id, partition,
                     position, NULL, NULL)
                )  # fmt: skip
        columns = np.array(found, np.int64).reshape(-1, len(MOVE_COLUMNS)).T
        return dict(zip(MOVE_COLUMNS, columns, strict=True))


def _listed(every: Exchanges, wanted: np.ndarray) -> Columns:
    """What ListOffsets answered."""
    parts = every.partitions.compress(wanted[every.owner], axis=1)
    offset = parts[s.P_OFFSET]
    return _moves(every, parts[s.P_OWNER], parts, LISTED, offset, np.full(len(offset), NULL))


def _moves(
    every: Exchanges, rows: np.ndarray, parts: np.ndarray, what: int, offset: np.ndarray, expected: np.ndarray
) -> Columns:
    """Moves of topic-partitions `parts` of the exchanges `rows`."""
    return {
        **places(every, rows),
        "what": np.full(len(rows), what, np.int64),
        "topic": parts[s.P_TOPIC],
        "topic_id": parts[s.P_TOPIC_ID],
        "partition": parts[s.P_PARTITION],
        "offset": offset,
        "expected": expected,
        "error": parts[s.P_ERROR],
    }


_OF_READERS: Final = (s.P_TOPIC, s.P_TOPIC_ID, s.P_PARTITION)


def _that_matter(moves: np.ndarray, reader: np.ndarray, client: np.ndarray, told: np.ndarray) -> np.ndarray:
    """Moves of a window without those that change nothing: where nobody of a client was refused, or told an offset, in
    it (`told`: client ids), a reader's first move is where it went after what it was told before, and its last where it
    stands when it is told next. moves, reader, client: int64[n], the row of each, whose it is, and the client id."""
    if not len(moves):
        return moves
    first, which = combinations(reader, client)
    order, last = np.arange(len(moves)), np.empty(len(first), np.int64)
    last[which] = order  # of what is written twice the last stays
    kept = (order == first[which]) | (order == last[which]) | arrow.among(client, arrow.distinct(told))
    chosen: np.ndarray = moves[kept]
    return chosen
