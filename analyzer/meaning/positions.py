"""Where readers are: of their fetches those that do not go on where the one before ended, and what ListOffsets said.

In: windows, read by columns. Out: `moves`: columns of few rows. Rules: memory is bounded by the open connections and
their partitions; a fetch that goes on where it should is forgotten at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from analyzer.bulk import state as s
from analyzer.bulk.rows import Exchanges, Window
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

_CONNECTION_BITS, _TOPIC_BITS, _PARTITION_BITS = 20, 21, 22


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

    def take(self, window: Window) -> Iterator[Columns]:
        """The moves of one window."""
        every = window.every
        api = every.column("api_key")
        listed = api == apis.LIST_OFFSETS
        if listed.any():
            yield _listed(every, listed)
        fetches = api == apis.FETCH
        if fetches.any():
            yield from self._fetched(every, fetches)
        numbers, triggers = window.over
        ended = [(n, t) for n, t in zip(numbers.tolist(), triggers.tolist(), strict=True) if n in self._open]
        if ended:
            yield self._left(window, ended)

    def _fetched(self, every: Exchanges, wanted: np.ndarray) -> Iterator[Columns]:
        parts = every.partitions
        of_fetches = np.flatnonzero(wanted[every.owner])
        if not len(of_fetches):
            return
        rows = parts[s.P_OWNER, of_fetches]
        connection, topic, topic_id, partition = (
            every.connection[rows], *(parts[column, of_fetches] for column in _OF_READERS)
        )  # fmt: skip
        order = _by_reader(connection, topic, topic_id, partition)
        connection, topic, topic_id, partition = (
            column[order] for column in (connection, topic, topic_id, partition)
        )
        rows, of_fetches = rows[order], of_fetches[order]
        first = np.ones(len(rows), bool)
        for column in (connection, topic, topic_id, partition):
            first[1:] &= column[1:] == column[:-1]
        first[1:] = ~first[1:]
        first[0] = True
        asked, after = parts[s.P_OFFSET, of_fetches], parts[s.P_FOLLOWING, of_fetches]
        after = np.where(after != NULL, after, asked)
        # Where each reader should be after each row: a row that says nothing leaves it where it was.
        heads = np.flatnonzero(first)
        keys = zip(*(column[heads].tolist() for column in (connection, topic, topic_id, partition)), strict=True)
        names, client = every.names, every.column("client_id")[rows[heads]]
        carried = np.full(len(heads), NULL, np.int64)
        readers: list[tuple[_Reader, tuple[int, int, int]]] = []
        for i, (number, *key) in enumerate(keys):
            reader = self._open.get(number)
            if reader is None:
                reader = self._open[number] = _Reader(NULL, names.ends[number][0])
            reader.client = int(client[i])
            place = (key[0], key[1], key[2])
            carried[i] = reader.at.get(place, NULL)
            readers.append((reader, place))
        group = np.cumsum(first) - 1
        said = np.maximum.accumulate(np.where((after != NULL) | first, np.arange(len(rows)), 0))
        now = np.where(after[said] != NULL, after[said], carried[group])
        expected = np.where(first, carried[group], np.concatenate([[NULL], now[:-1]]).astype(np.int64))
        lasts = np.append(heads[1:], len(rows)) - 1
        for (reader, place), position in zip(readers, now[lasts].tolist(), strict=True):
            if position != NULL:
                reader.at[place] = position
        moved = np.flatnonzero((asked != NULL) & (asked != expected))
        refused = np.flatnonzero(parts[s.P_ERROR, of_fetches] == kafka_errors.OFFSET_OUT_OF_RANGE)
        for what, chosen in ((ASKED, moved), (REFUSED, refused)):
            if len(chosen):
                chosen = chosen[np.argsort(order[chosen])]  # as the window has them
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


def _by_reader(connection: np.ndarray, name: np.ndarray, topic_id: np.ndarray, partition: np.ndarray) -> np.ndarray:
    """An order in which rows of one connection, topic and partition follow one another as they stand. One integer a
    row sorts several times as fast as four; where the numbers do not fit into one, four it is."""
    topic = np.where(name != NULL, 2 * name, 2 * topic_id + 1)
    fits = (
        (int(connection.max()) < 1 << _CONNECTION_BITS)
        and (int(topic.min()) >= 0 and int(topic.max()) < 1 << _TOPIC_BITS)
        and (int(partition.min()) >= 0 and int(partition.max()) < 1 << _PARTITION_BITS)
    )
    if fits:
        packed = connection << (_TOPIC_BITS + _PARTITION_BITS) | topic << _PARTITION_BITS | partition
        return np.argsort(packed, kind="stable")
    return np.lexsort((partition, topic_id, name, connection))
