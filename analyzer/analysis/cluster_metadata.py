"""Cluster metadata in messages: names of topic ids, brokers, leaders, and the API versions that brokers support.

In: windows. Out: rows of `topic_ids`, `brokers`, `leaders` and `api_versions`, each once, in order of the messages that
contain them; names by topic id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.analysis.zookeeper import LeaderState, broker_of, leader_of
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.rows import Names, Window
from kwire.analyzer.bulk.zookeeper import ZooKeeper
from kwire.analyzer.dataset import tables
from kwire.analyzer.frame import arrow

MAX_OFFERS = 1024
"""Offers of API versions remembered of a connection, so that each is one row; brokers offer fewer than a hundred."""

Rows = list[dict[str, Any]]


def _table(name: str, rows: Rows) -> tuple[str, pa.Table]:
    return name, pa.Table.from_pylist(rows, schema=tables.schema(name)) if rows else tables.empty(name)


METADATA_TOPIC = {"AAAAAAAAAAAAAAAAAAAAAQ": "__cluster_metadata"}
"""KRaft's own topic: its id is the same in every cluster (`Uuid.METADATA_TOPIC_ID`), and messages seldom name it."""


@dataclass(slots=True)
class TopicIds:
    """Names of topic ids: `names`, by id, each the first that a message said. In Kafka an id has one name for ever;
    which of several counts must not depend on how far a capture has been read."""

    names: dict[str, str] = field(default_factory=METADATA_TOPIC.copy)
    _unnamed: set[str] = field(default_factory=lambda: set(METADATA_TOPIC))  # ids of `names` that no message named
    _others: set[tuple[str, str]] = field(default_factory=set)  # id and name, where `names` has another
    _rows: Rows = field(default_factory=list)

    def take(self, window: Window, *_: object) -> None:
        strings = window.names.strings
        for topic_id, topic, _ in window.topic_ids.tolist():
            if self._learn(strings[topic_id], strings[topic]):
                self._rows.append(_named(window.names.capture, (strings[topic_id], strings[topic])))

    def _learn(self, topic_id: str, topic: str) -> bool:
        """Learn a name from a message; return whether no message had it before."""
        if self._is_known(topic_id, topic):
            return False
        is_named = topic_id in METADATA_TOPIC or (topic_id in self.names and topic_id not in self._unnamed)
        if is_named and self.names[topic_id] != topic:
            self._others.add((topic_id, topic))
        else:
            self.names[topic_id] = topic
            self._unnamed.discard(topic_id)
        return True

    def _is_known(self, topic_id: str, topic: str) -> bool:
        if self.names.get(topic_id) == topic and topic_id not in self._unnamed:
            return True
        return (topic_id, topic) in self._others

    @property
    def _stated(self) -> set[tuple[str, str]]:
        """All pairs of id and name in messages."""
        return self._others.union(pair for pair in self.names.items() if pair[0] not in self._unnamed)

    def tables(self, *_: object) -> Iterator[tuple[str, pa.Table]]:
        yield _table("topic_ids", self._rows)
        self._rows = []

    def join(self, other: TopicIds) -> None:
        for topic_id, topic in other.names.items():
            if topic_id not in other._unnamed:
                self._learn(topic_id, topic)
            elif topic_id not in self.names:
                self.names[topic_id] = topic
                self._unnamed.add(topic_id)
        self._others |= other._others
        self._rows += other._rows

    def onward(self, capture: str) -> TopicIds:
        """Return the names for another capture point that continues this one."""
        rows = [_named(capture, pair) for pair in sorted(self._stated)]
        return TopicIds(self.names.copy(), self._unnamed.copy(), self._others.copy(), rows)

    def name(self, topic: str) -> str:
        """Return the name for a topic id if a message has named it so far; else the argument."""
        return self.names.get(topic, topic)

    def learn(self, names: Mapping[str, str]) -> None:
        """Add names from later messages; those of messages so far take precedence."""
        self._unnamed.update(topic_id for topic_id in names if topic_id not in self.names)
        self.names = {**names, **self.names}

    def resolve(self, row: dict[str, Any]) -> None:
        """Replace topic ids in a row of `exchanges` by their names, if known."""
        if row["topics"]:
            row["topics"] = list(dict.fromkeys(map(self.name, row["topics"])))


def _named(capture: str, pair: tuple[str, str]) -> dict[str, Any]:
    return {"capture": capture, "topic_id": pair[0], "topic": pair[1]}


MAX_ADVERTISED = 10_000
"""Addresses that are remembered with the end points that advertise them."""


@dataclass(slots=True)
class Advertised:
    """An address that answers of one end point sent clients to. nodes: ids of the nodes that it was said to be;
    is_shared: one answer gave it to several nodes."""

    nodes: set[int] = field(default_factory=set)
    is_shared: bool = False


@dataclass(slots=True)
class Brokers:
    """Brokers in Metadata and in redirects; `_advertised`: their addresses, by end point that said so, host and
    port."""

    _seen: set[tuple[int, str, int, str | None]] = field(default_factory=set)
    _rows: Rows = field(default_factory=list)
    _advertised: dict[tuple[str, str, int], Advertised] = field(default_factory=dict)

    def take(self, window: Window, *_others: object) -> None:
        strings, connections = window.names.strings, window.names.connections
        nodes: list[tuple[int, str, int, str | None]] = []
        answers: dict[tuple[int, int, str, int], set[int]] = {}
        for node_id, host, port, rack, connection, completed_by in window.brokers.tolist():
            nodes.append((node_id, strings[host], port, strings[rack] if rack != s.NULL else None))
            answers.setdefault((connection, completed_by, strings[host], port), set()).add(node_id)
        for (connection, _, name, port), ids in answers.items():
            key = _broker_end(connections[connection]), name, port
            if key in self._advertised or len(self._advertised) < MAX_ADVERTISED:
                advertised = self._advertised.setdefault(key, Advertised())
                advertised.nodes |= ids
                advertised.is_shared |= len(ids) > 1
        nodes += [(*broker,) for operation in window.zookeeper if (broker := broker_of(operation)) is not None]
        for node in nodes:
            if node not in self._seen:
                self._seen.add(node)
                self._rows.append(_broker(window.names.capture, node))

    def advertised(self) -> list[dict[str, Any]]:
        """List addresses that clients were sent to, with the end point that said so, as `_kwire.json` has them."""
        return [
            {"broker": broker, "host": host, "port": port, "nodes": sorted(known.nodes), "shared": known.is_shared}
            for (broker, host, port), known in self._advertised.items()
        ]

    def onward(self, capture: str) -> Brokers:
        """Return the brokers for another capture point that continues this one."""
        known = sorted(self._seen, key=lambda node: (*node[:3], node[3] or ""))
        after = Brokers(self._seen.copy(), [_broker(capture, node) for node in known])
        after._join_advertised(self)
        return after

    def tables(self, *_: object) -> Iterator[tuple[str, pa.Table]]:
        yield _table("brokers", self._rows)
        self._rows = []

    def join(self, other: Brokers) -> None:
        self._seen |= other._seen
        self._rows += other._rows
        self._join_advertised(other)

    def _join_advertised(self, other: Brokers) -> None:
        for key, known in other._advertised.items():
            advertised = self._advertised.setdefault(key, Advertised())
            advertised.nodes |= known.nodes
            advertised.is_shared |= known.is_shared


def _broker_end(connection: str) -> str:
    """`ip:port` of the broker of a connection, from its name."""
    return connection.partition("-")[2].rpartition("#")[0]


def _broker(capture: str, node: tuple[int, str, int, str | None]) -> dict[str, Any]:
    return {"capture": capture, **dict(zip(("node_id", "host", "port", "rack"), node, strict=True))}


_Offer = tuple[int, int, int]
"""API key, lowest and highest version."""


@dataclass(slots=True)
class Offers:
    """The API versions that brokers offer, for each connection once while it is open: each opens with some 70.

    _offered   by name of the connection
    _rows      name of the capture, of the connection, offer
    """

    _offered: dict[str, set[_Offer]] = field(default_factory=dict)
    _rows: list[tuple[str, str, _Offer]] = field(default_factory=list)

    def take(self, window: Window, *_: object) -> None:
        names = window.names
        for number, api_key, lowest, highest in window.offers.tolist():
            connection, offer = names.connections[number], (api_key, lowest, highest)
            offered = self._offered.get(connection)
            if offered is None:
                offered = self._offered[connection] = set()
            if offer in offered:
                continue
            if len(offered) < MAX_OFFERS:
                offered.add(offer)
            self._rows.append((names.capture, connection, offer))
        for number in window.connections.number.tolist():
            self._offered.pop(names.connections[number], None)

    def onward(self, capture: str) -> Offers:
        """Return the versions of open connections for another capture point that continues this one."""
        rows = [(capture, name, offer) for name, offers in self._offered.items() for offer in sorted(offers)]
        return Offers({name: offers.copy() for name, offers in self._offered.items()}, rows)

    def tables(self, *_: object) -> Iterator[tuple[str, pa.Table]]:
        yield "api_versions", _offers_table(self._rows) if self._rows else tables.empty("api_versions")
        self._rows = []

    def join(self, other: Offers) -> None:
        for connection, offers in other._offered.items():
            self._offered.setdefault(connection, set()).update(offers)
        self._rows += other._rows


def _offers_table(rows: list[tuple[str, str, _Offer]]) -> pa.Table:
    captures, connections, offers = zip(*rows, strict=True)
    brokers = {name: _broker_end(name) for name in dict.fromkeys(connections)}
    columns = (captures, connections, [brokers[name] for name in connections], *zip(*offers, strict=True))
    schema = tables.schema("api_versions")
    arrays = [pa.array(values, kind.type) for values, kind in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


_KEY, _LEADER, _EPOCH, _ISR = range(4)
_LATE: Final = 1024
"""Topic-partitions (and a sixteenth of all) that wait to be merged in order after a change."""

_LeaderState = tuple[int, int, int]
"""Leader, its epoch, in-sync replicas (number of a list); NULL: unknown."""


@dataclass(slots=True)
class Leaders:
    """Leaders of topic-partitions: a row where a leader, its epoch or the in-sync replicas are other than last said.
    `topics` knows the names of ids, and has taken the window before. What was said last takes 32 bytes a partition.

    _known    int64[4, n], by _KEY: number of the topic's name and partition
    _late     what was said since of some
    """

    topics: TopicIds
    _names: dict[str, int] = field(default_factory=dict)
    _lists: list[tuple[int, ...]] = field(default_factory=list)
    _list_numbers: dict[tuple[int, ...], int] = field(default_factory=dict)
    _known: np.ndarray = field(default_factory=lambda: np.zeros((4, 0), np.int64))
    _late: dict[int, _LeaderState] = field(default_factory=dict)
    _rows: Rows = field(default_factory=list)

    def take(self, window: Window, *_: object) -> None:
        rows, names = window.leaders, window.names
        in_zookeeper = [(operation, led) for operation in window.zookeeper if (led := leader_of(operation)) is not None]
        if in_zookeeper:
            rows = self._both(rows, in_zookeeper, names)
        if not len(rows):
            return
        keys, isr = self._keys(rows, names), self._isr(rows[:, s.L_ISR], names)
        for place in np.flatnonzero(self._news(keys, rows, isr)).tolist():
            self._take(rows[place].tolist(), int(keys[place]), int(isr[place]), names)
        if len(self._late) > _LATE + self._known.shape[1] // 16:
            self._settle()

    def _both(self, rows: np.ndarray, in_zookeeper: list[tuple[ZooKeeper, LeaderState]], names: Names) -> np.ndarray:
        """Merge leaders in messages and in ZooKeeper, in order."""
        rows_by_packet: list[tuple[int, list[int]]] = [(row[s.L_COMPLETED_BY], row) for row in rows.tolist()]
        for operation, led in in_zookeeper:
            row = [s.NULL] * s.L_COLUMNS
            row[s.L_NS], row[s.L_TOPIC], row[s.L_PARTITION] = operation.time_ns, names.string(led.topic), led.partition
            row[s.L_LEADER] = s.NULL if led.leader is None else led.leader
            row[s.L_EPOCH] = s.NULL if led.epoch is None else led.epoch
            row[s.L_ISR] = s.NULL if led.isr is None else names.list_of(led.isr)
            rows_by_packet.append((operation.completed_by, row))
        return np.array([row for _, row in sorted(rows_by_packet, key=lambda pair: pair[0])], np.int64)

    def _keys(self, rows: np.ndarray, names: Names) -> np.ndarray:
        """Which topic-partition each is of."""
        pairs, where = _pairs(rows[:, s.L_TOPIC], rows[:, s.L_TOPIC_ID])
        numbers = []
        for topic, topic_id in pairs:
            name = names.strings[topic] if topic != s.NULL else ""
            name = name or self.topics.name(names.strings[topic_id] if topic_id != s.NULL else "")
            numbers.append(self._names.setdefault(name, len(self._names)))
        return _key(np.array(numbers, np.int64)[where], rows[:, s.L_PARTITION])

    def _isr(self, lists: np.ndarray, names: Names) -> np.ndarray:
        """Lists of `names` by their numbers here."""
        numbers = np.full(len(lists), s.NULL, np.int64)
        for number in arrow.distinct(lists[lists != s.NULL]).tolist():
            numbers[lists == number] = self._list(names.lists[number])
        return numbers

    def _list(self, nodes: tuple[int, ...]) -> int:
        number = self._list_numbers.get(nodes)
        if number is None:
            number = self._list_numbers[nodes] = len(self._lists)
            self._lists.append(nodes)
        return number

    def _news(self, keys: np.ndarray, rows: np.ndarray, isr: np.ndarray) -> np.ndarray:
        """Return bool[n]: the rows that may differ from the state so far; those of Metadata mostly repeat it."""
        order = np.argsort(keys, kind="stable")
        stated = np.stack([keys, rows[:, s.L_LEADER], rows[:, s.L_EPOCH], isr])[:, order]
        differs = np.append(True, (stated[:, 1:] != stated[:, :-1]).any(axis=0))
        alone = np.append(True, stated[_KEY, 1:] != stated[_KEY, :-1])
        alone &= np.append(alone[1:], True)
        known = self._known
        if known.shape[1]:
            last = known[:, np.minimum(np.searchsorted(known[_KEY], stated[_KEY]), known.shape[1] - 1)]
            same = (stated[:_ISR] == last[:_ISR]).all(axis=0) & (
                (stated[_ISR] == s.NULL) | (stated[_ISR] == last[_ISR])
            )
            if self._late:
                same &= ~np.isin(stated[_KEY], np.fromiter(self._late, np.int64, len(self._late)))
            differs &= ~(same & alone)
        changed = np.empty(len(keys), np.bool_)
        changed[order] = differs
        return changed

    def _last(self, key: int) -> _LeaderState | None:
        late = self._late.get(key)
        if late is not None:
            return late
        known = self._known
        at = int(np.searchsorted(known[_KEY], key))
        if at == known.shape[1] or known[_KEY, at] != key:
            return None
        _, leader, epoch, isr = known[:, at].tolist()
        return leader, epoch, isr

    def _take(self, row: list[int], key: int, isr: int, names: Names) -> None:
        last = self._last(key)
        now = (row[s.L_LEADER], row[s.L_EPOCH], isr if isr != s.NULL or last is None else last[2])
        if now == last:
            return
        self._late[key] = now
        self._rows.append(
            {
                "capture": names.capture,
                "time": row[s.L_NS] // 1000,
                "topic": names.strings[row[s.L_TOPIC]] if row[s.L_TOPIC] != s.NULL else None,
                "topic_id": names.strings[row[s.L_TOPIC_ID]] if row[s.L_TOPIC_ID] != s.NULL else None,
                "partition": row[s.L_PARTITION],
                "leader": row[s.L_LEADER] if row[s.L_LEADER] != s.NULL else None,
                "leader_epoch": row[s.L_EPOCH] if row[s.L_EPOCH] != s.NULL else None,
                "isr": list(self._lists[isr]) if isr != s.NULL else None,
            }
        )

    def _settle(self) -> None:
        """Merge `_late` into `_known`, in order."""
        late = np.array([(key, *state) for key, state in self._late.items()], np.int64).reshape(-1, 4).T
        both = np.concatenate([self._known[:, ~np.isin(self._known[_KEY], late[_KEY])], late], axis=1)
        self._known, self._late = both[:, np.argsort(both[_KEY])], {}

    def tables(self, *_: object) -> Iterator[tuple[str, pa.Table]]:
        yield _table("leaders", self._rows)
        self._rows = []

    def join(self, other: Leaders) -> None:
        other._settle()
        topics = np.array([self._names.setdefault(name, len(self._names)) for name in other._names], np.int64)
        lists = [self._list(nodes) for nodes in other._lists]
        for key, leader, epoch, isr in other._known.T.tolist():
            own_key = int(topics[key >> 32]) << 32 | key & 0xFFFFFFFF
            self._late[own_key] = leader, epoch, lists[isr] if isr != s.NULL else isr
        self._settle()
        self._rows += other._rows


def _key(topics: np.ndarray, partitions: np.ndarray) -> np.ndarray:
    keys: np.ndarray = topics << 32 | partitions & 0xFFFFFFFF
    return keys


def _pairs(a: np.ndarray, b: np.ndarray) -> tuple[list[tuple[int, int]], np.ndarray]:
    """(each pair once, which of them each row is)."""
    order = np.lexsort((b, a))
    first = np.append(True, (a[order[1:]] != a[order[:-1]]) | (b[order[1:]] != b[order[:-1]]))
    where = np.empty(len(a), np.int64)
    where[order] = np.cumsum(first) - 1
    those = order[first]
    return list(zip(a[those].tolist(), b[those].tolist(), strict=True)), where
