"""What messages say of the cluster: names of topic ids, brokers, leaders, and the API versions that brokers offer.

In: windows. Out: rows of `topic_ids`, `brokers`, `leaders` and `api_versions`, each said once, in order of the messages
that said so; names by topic id. Pure but for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from analyzer import tables
from analyzer.bulk import state as s
from analyzer.bulk.rows import Names, Window
from analyzer.bulk.zookeeper import ZooKeeper
from analyzer.meaning.zookeeper import Led, broker_of, leader_of

MAX_OFFERS = 1024
"""Offers of API versions remembered of a connection, so that each is one row; brokers offer fewer than a hundred."""

Rows = list[dict[str, Any]]


def _table(name: str, rows: Rows) -> tuple[str, pa.Table]:
    return name, pa.Table.from_pylist(rows, schema=tables.schema(name))


METADATA_TOPIC = {"AAAAAAAAAAAAAAAAAAAAAQ": "__cluster_metadata"}
"""KRaft's own topic: its id is the same in every cluster (`Uuid.METADATA_TOPIC_ID`), and messages seldom name it."""


@dataclass(slots=True)
class TopicIds:
    """Names of topic ids."""

    names: dict[str, str] = field(default_factory=METADATA_TOPIC.copy)
    _pairs: set[tuple[str, str]] = field(default_factory=set)
    _rows: Rows = field(default_factory=list)

    def take(self, window: Window) -> None:
        strings = window.names.strings
        for topic_id, topic, _ in window.topic_ids.tolist():
            pair = (strings[topic_id], strings[topic])
            if pair not in self._pairs:
                self._pairs.add(pair)
                self.names[pair[0]] = pair[1]
                self._rows.append({"capture": window.names.capture, "topic_id": pair[0], "topic": pair[1]})

    def tables(self) -> Iterator[tuple[str, pa.Table]]:
        yield _table("topic_ids", self._rows)
        self._rows = []

    def join(self, other: TopicIds) -> None:
        self._pairs |= other._pairs
        self._rows += other._rows
        self.names.update(other.names)

    def onward(self, capture: str) -> TopicIds:
        """For another capture point, which begins where this one ends: it has what is known."""
        rows = [{"capture": capture, "topic_id": id_, "topic": topic} for id_, topic in sorted(self._pairs)]
        return TopicIds(self.names.copy(), self._pairs.copy(), rows)

    def name(self, topic: str) -> str:
        """The name for a topic id, where a message so far says it; else what was given."""
        return self.names.get(topic, topic)

    def learn(self, names: Mapping[str, str]) -> None:
        """Names that messages say only later; what was said so far goes before."""
        self.names = {**names, **self.names}

    def resolve(self, row: dict[str, Any]) -> None:
        """Put names for topic ids in a row of `exchanges`, as far as they are known."""
        if row["topics"]:
            row["topics"] = list(dict.fromkeys(map(self.name, row["topics"])))


@dataclass(slots=True)
class Brokers:
    """Brokers by what Metadata and redirects say."""

    _seen: set[tuple[int, str, int, str | None]] = field(default_factory=set)
    _rows: Rows = field(default_factory=list)

    def take(self, window: Window) -> None:
        strings = window.names.strings
        told: list[tuple[int, str, int, str | None]] = [
            (node_id, strings[host], port, strings[rack] if rack != s.NULL else None)
            for node_id, host, port, rack in window.brokers.tolist()
        ]
        told += [(*found,) for one in window.zookeeper if (found := broker_of(one)) is not None]
        for node in told:
            if node not in self._seen:
                self._seen.add(node)
                self._rows.append(_broker(window.names.capture, node))

    def onward(self, capture: str) -> Brokers:
        """For another capture point, which begins where this one ends: it has what is known."""
        known = sorted(self._seen, key=lambda node: (*node[:3], node[3] or ""))
        return Brokers(self._seen.copy(), [_broker(capture, node) for node in known])

    def tables(self) -> Iterator[tuple[str, pa.Table]]:
        yield _table("brokers", self._rows)
        self._rows = []

    def join(self, other: Brokers) -> None:
        self._seen |= other._seen
        self._rows += other._rows


def _broker(capture: str, node: tuple[int, str, int, str | None]) -> dict[str, Any]:
    return {"capture": capture, **dict(zip(("node_id", "host", "port", "rack"), node, strict=True))}


@dataclass(slots=True)
class Offers:
    """The API versions that brokers offer, for each connection once while it is open."""

    _offered: dict[str, set[tuple[int, int, int]]] = field(default_factory=dict)  # by name of the connection
    _rows: Rows = field(default_factory=list)

    def take(self, window: Window) -> None:
        names = window.names
        for number, *offer in window.offers.tolist():
            connection = names.connections[number]
            offered = self._offered.setdefault(connection, set())
            api_key, lowest, highest = offer
            if (api_key, lowest, highest) in offered:
                continue
            if len(offered) < MAX_OFFERS:
                offered.add((api_key, lowest, highest))
            self._rows.append(_offer(names.capture, connection, offer))
        for number in window.connections.number.tolist():
            self._offered.pop(names.connections[number], None)

    def onward(self, capture: str) -> Offers:
        """For another capture point, which begins where this one ends: it has what connections that are open heard."""
        rows = [_offer(capture, name, offer) for name, offers in self._offered.items() for offer in sorted(offers)]
        return Offers({name: offers.copy() for name, offers in self._offered.items()}, rows)

    def tables(self) -> Iterator[tuple[str, pa.Table]]:
        yield _table("api_versions", self._rows)
        self._rows = []

    def join(self, other: Offers) -> None:
        for connection, offers in other._offered.items():
            self._offered.setdefault(connection, set()).update(offers)
        self._rows += other._rows


def _offer(capture: str, connection: str, offer: Sequence[int]) -> dict[str, Any]:
    """`connection`: its name, of which the broker is a part."""
    broker = connection.partition("-")[2].rpartition("#")[0]
    said = dict(zip(("api_key", "min", "max"), offer, strict=True))
    return {"capture": capture, "connection": connection, "broker": broker, **said}


@dataclass(slots=True)
class Leaders:
    """Leaders of topic-partitions: a row where a leader, its epoch or the in-sync replicas are other than last said.
    `topics` knows the names of ids, and has taken the window before."""

    topics: TopicIds
    _last: dict[tuple[str, int], tuple[int, int, tuple[int, ...] | None]] = field(default_factory=dict)
    _rows: Rows = field(default_factory=list)

    def take(self, window: Window) -> None:
        rows, names = window.leaders, window.names
        told_elsewhere = [(one, led) for one in window.zookeeper if (led := leader_of(one)) is not None]
        if told_elsewhere:
            self._both(rows, told_elsewhere, names)
            return
        if not len(rows):
            return
        # Most of what Metadata says repeats: what one topic-partition had said of it twice in a row is dropped here.
        told = rows[:, [s.L_TOPIC, s.L_TOPIC_ID, s.L_PARTITION, s.L_LEADER, s.L_EPOCH, s.L_ISR]]
        order = np.lexsort((told[:, 2], told[:, 1], told[:, 0]))
        fresh = np.ones(len(rows), bool)
        fresh[order[1:]] = (told[order[1:]] != told[order[:-1]]).any(axis=1)
        for row in rows[fresh].tolist():
            self._take(row, names)

    def _both(self, rows: np.ndarray, elsewhere: list[tuple[ZooKeeper, Led]], names: Names) -> None:
        """What messages and ZooKeeper say, in order."""
        told: list[tuple[int, list[int]]] = [(row[s.L_TRIGGER], row) for row in rows.tolist()]
        for one, led in elsewhere:
            row = [s.NULL] * s.L_COLUMNS
            row[s.L_NS], row[s.L_TOPIC], row[s.L_PARTITION] = one.time_ns, names.string(led.topic), led.partition
            row[s.L_LEADER] = s.NULL if led.leader is None else led.leader
            row[s.L_EPOCH] = s.NULL if led.epoch is None else led.epoch
            row[s.L_ISR] = s.NULL if led.isr is None else names.list_of(led.isr)
            told.append((one.trigger, row))
        for _, row in sorted(told, key=lambda pair: pair[0]):
            self._take(row, names)

    def _take(self, row: list[int], names: Names) -> None:
        topic = names.strings[row[s.L_TOPIC]] if row[s.L_TOPIC] != s.NULL else None
        topic_id = names.strings[row[s.L_TOPIC_ID]] if row[s.L_TOPIC_ID] != s.NULL else None
        key = (topic or self.topics.name(topic_id or ""), row[s.L_PARTITION])
        last = self._last.get(key)
        replicas = names.lists[row[s.L_ISR]] if row[s.L_ISR] != s.NULL else None
        now = (row[s.L_LEADER], row[s.L_EPOCH], replicas if replicas is not None or last is None else last[2])
        if now == last:
            return
        self._last[key] = now
        self._rows.append(
            {
                "capture": names.capture,
                "time": row[s.L_NS] // 1000,
                "topic": topic,
                "topic_id": topic_id,
                "partition": row[s.L_PARTITION],
                "leader": row[s.L_LEADER] if row[s.L_LEADER] != s.NULL else None,
                "leader_epoch": row[s.L_EPOCH] if row[s.L_EPOCH] != s.NULL else None,
                "isr": list(replicas) if replicas is not None else None,
            }
        )

    def tables(self) -> Iterator[tuple[str, pa.Table]]:
        yield _table("leaders", self._rows)
        self._rows = []

    def join(self, other: Leaders) -> None:
        self._last.update(other._last)
        self._rows += other._rows
