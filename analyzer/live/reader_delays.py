"""Count, second for second, how far groups are behind and how long batches took to them.

In: the topic-partitions of a window's exchanges. Out: `ReaderLine`s. Rules: a reader is a group, or the client id of a
client that named none; followers are left out; how it stood at the end of a second follows from the exchanges until
then alone; what is remembered is bounded as `reader_lag` says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.rows import Exchanges
from kwire.analyzer.frame import arrow
from kwire.analyzer.live.reader_lag import ReaderLag, ReaderStanding
from kwire.analyzer.protocol import api_keys as apis
from kwire.captures.kernels import NULL

MOST_CLIENTS: Final = 20_000
"""Clients whose group is remembered."""
MOST_LINES: Final = 200
"""Readers and topics that are told of: those furthest behind."""
_GROUP: Final = "g"
_CLIENT: Final = "c"
"""First letter of a reader: the rest is the name of a group, or a client id."""
_APIS: Final = (apis.PRODUCE, apis.FETCH)


class ReaderLine(NamedTuple):
    """A reader of a topic: records that it has not got, how long the next of them has been there (us), and of the
    batches that came to it how many, and the 99th percentile of how long they took from their producer (us)."""

    group: str | None
    client_id: str | None
    topic: str
    lag: int
    lag_us: int
    batches: int
    p99_us: int | None


@dataclass(slots=True)
class ReaderDelays:
    """State between windows. groups: by client id and address, the group that a client named last."""

    lag: ReaderLag = field(default_factory=ReaderLag)
    groups: dict[tuple[str, str], str] = field(default_factory=dict)

    def learn_groups(self, rows: Exchanges) -> None:
        """Learn which group each client is in."""
        group = rows.column("group_id")
        named = np.flatnonzero((group != NULL) & (rows.column("api_key") != apis.DESCRIBE_GROUPS))
        if not len(named):
            return
        keys = np.stack([rows.connection[named], rows.column("client_id")[named], group[named]])
        names = rows.names
        for connection, client, number in np.unique(keys, axis=1).T.tolist():
            address = names.strings[names.ends[connection][0]]
            key = (names.strings[client] if client != NULL else "", address)
            self.groups.pop(key, None)
            if len(self.groups) >= MOST_CLIENTS:
                self.groups.pop(next(iter(self.groups)))
            self.groups[key] = names.strings[number]

    def take(
        self, rows: Exchanges, parts: np.ndarray, topic_name: Callable[[str], str]
    ) -> dict[tuple[str, str], list[int]]:
        """Take some topic-partitions of exchanges, numbers of `rows.partitions`, in order. Returns, by reader and
        topic, how long each batch took that came to it (us)."""
        delays: dict[tuple[str, str], list[int]] = {}
        if not len(parts):
            return delays
        names, owner = rows.names, rows.owner[parts]
        columns = [
            rows.column("api_key")[owner],
            rows.columns[s.X_REPLICA][owner],
            rows.connection[owner],
            rows.column("client_id")[owner],
            rows.column("request_time")[owner],
            rows.column("response_end")[owner],
            *(rows.partitions[row][parts] for row in _OF_PARTS),
        ]
        for api, replica, connection, client, sent, ended, *values in zip(*(c.tolist() for c in columns), strict=True):
            topic_number, topic_id, partition, error, offset, mark, following, first, records = values
            if error > 0 or offset == NULL or ended == NULL or (topic_number == NULL and topic_id == NULL):
                continue
            topic = names.strings[topic_number] if topic_number != NULL else topic_name(names.strings[topic_id])
            if api == apis.PRODUCE:
                if records > 0 and sent != NULL:
                    for reader, took in self.lag.writes(topic, partition, sent, offset, offset + records):
                        delays.setdefault((reader, topic), []).append(took // 1000)
                continue
            if mark != NULL and mark >= 0:
                self.lag.reaches(topic, partition, ended, mark)
            if replica >= 0:
                continue
            reader = self._reader(rows, connection, client)
            brought = following != NULL
            position, begin = (following, max(offset, first)) if brought else (offset, None)
            for took in self.lag.reads(topic, reader, partition, ended, position, begin):
                delays.setdefault((reader, topic), []).append(took // 1000)
        return delays

    def _reader(self, rows: Exchanges, connection: int, client: int) -> str:
        names = rows.names
        client_id = names.strings[client] if client != NULL else ""
        group = self.groups.get((client_id, names.strings[names.ends[connection][0]]))
        return _CLIENT + client_id if group is None else _GROUP + group


_OF_PARTS: Final = (
    s.P_TOPIC,
    s.P_TOPIC_ID,
    s.P_PARTITION,
    s.P_ERROR,
    s.P_OFFSET,
    s.P_HIGH_WATERMARK,
    s.P_FOLLOWING,
    s.P_FIRST,
    s.P_RECORDS,
)


def concerned(rows: Exchanges) -> np.ndarray:
    """Return int64[n]: topic-partitions of a window that `ReaderDelays.take` learns from."""
    if not rows.partitions.shape[1]:
        return np.zeros(0, np.int64)
    return np.flatnonzero(arrow.among(rows.column("api_key")[rows.owner], _APIS))


def lines_of(
    standing: list[ReaderStanding], at_ns: int, delays: dict[tuple[str, str], tuple[int, int | None]]
) -> list[ReaderLine]:
    """Return lines, furthest behind first. at_ns: when it stood so; delays: how many batches came, and their 99th
    percentile (us), by reader and topic."""
    lines = {}
    for entry in standing:
        lag_us = 0 if entry.since_ns is None else max(0, at_ns - entry.since_ns) // 1000
        lines[entry.reader, entry.topic] = entry.records, lag_us
    out = []
    for reader, topic in {**lines, **dict.fromkeys(delays)}:
        group, client = (reader[1:], None) if reader.startswith(_GROUP) else (None, reader[1:])
        batches, p99_us = delays.get((reader, topic), (0, None))
        out.append(ReaderLine(group, client, topic, *lines.get((reader, topic), (0, 0)), batches, p99_us))
    return sorted(out, key=lambda line: (-line.lag_us, -(line.p99_us or 0), line.topic, line.group or ""))[:MOST_LINES]
