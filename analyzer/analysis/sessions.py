"""Fetches: their sessions (KIP-227), the ends of partitions, and who reads what from when to when.

In: windows whose exchanges were measured. Out: how long the exchanges of `latency_split.ACROSS` were held, and the
readers. Rules: a topic's id, or the number of a partition's replicas, holds for the exchanges completed after the
message with it; partitions beyond `MAX_KNOWN` are not remembered, and exchanges about them have no results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.analysis.combinations import combinations
from kwire.analyzer.bulk import purgatory as h
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.row_groups import steady
from kwire.analyzer.bulk.rows import Names, Window
from kwire.analyzer.dataset import tables
from kwire.analyzer.frame import arrow
from kwire.analyzer.frame.log import Log
from kwire.analyzer.frame.numbered_keys import NumberedKeys

MAX_KNOWN: Final = 1 << 17
"""Partitions whose ends are remembered: 450 bytes each. A broker that leads a tenth of it is a large one."""

_AT_ONCE: Final = 64
"""Connections whose sessions are taken over together. Where the capture ends all are over, which need not be there
twice."""

_SEVERAL_BYTES: Final = 4 << 20
_MAPPED_BYTES: Final = 32 << 20
"""A table of several MB gets so many at once: glibc maps what is larger by itself, so that rows without a value take no
memory, and all of it returns. What is smaller leaves a gap among other memory each time the table grows."""

_WENT_ON: Final = 2
"""Value of S_BEGUN: an earlier rotation has a row of the reader."""


READER_NUMBERS: Final = {
    "session_id": h.S_ID,
    "partition": h.S_PARTITION,
    "from": h.S_FROM_NS,
    "to": h.S_TO_NS,
    "first_offset": h.S_FIRST,
    "last_offset": h.S_LAST,
    "records": h.S_RECORDS,
    "record_bytes": h.S_BYTES,
    "begun": h.S_BEGUN,
    "isolation_level": h.S_ISOLATION,
}
"""Numbers of a reader that is over, times in nanoseconds, `NULL` where there is none, and their columns of `gone`."""
READER_TEXTS: Final = ("connection", "client_ip", "client_id", "topic", "topic_id")


def _no_readers() -> Log:
    return Log((*READER_TEXTS, *READER_NUMBERS), READER_TEXTS)


def _nothing_known() -> h.PurgatoryState:
    know = h.PurgatoryState(
        ends=np.zeros((64, h.E_COLUMNS), np.int64),
        entries=np.zeros((64, h.S_COLUMNS), np.int64),
        chains=np.full(128, -1, np.int64),
        sessions=np.zeros((64, h.Z_COLUMNS), np.int64),
        connections=np.array([[-1, 0]] * 64, np.int64),
        gone=np.zeros((64, h.S_COLUMNS), np.int64),
        v=np.zeros(h.V_COLUMNS, np.int64),
    )
    know.v[[h.V_ENTRY_FREE, h.V_SESSION_FREE]] = -1
    return know


class Sessions:
    """Fetch sessions of a capture point, in progress; `over`: readers of those that have ended (`READER_TEXTS`,
    `READER_NUMBERS`)."""

    def __init__(self) -> None:
        self.over = _no_readers()
        self._partitions = _Partitions()
        self._know = _nothing_known()
        self._known = 0

    def take(self, window: Window, rows: np.ndarray, served: np.ndarray, taken_up: np.ndarray) -> np.ndarray:
        """Return int64: how long some exchanges (`rows`) of a window were held, in microseconds or NULL.

        served     of all exchanges of the window: the broker's time; taken_up: when the broker could begin
        """
        held = np.zeros(len(rows), np.int64)
        if len(rows):
            every = window.every
            parts, left = steady(every.partitions), steady(every.forgotten)
            table = h.Rows(
                steady(every.columns),
                steady(every.connection),
                served,
                taken_up,
                parts,
                _firsts(parts, len(every)),
                np.full(parts.shape[1], -1, np.int64),
                _firsts(left, len(every)),
                np.full(left.shape[1], -1, np.int64),
            )
            named = (parts, table.firsts, table.numbers), (left, table.left_firsts, table.left_numbers)
            trigger = every.column("completed_by")[rows]
            begin = 0
            for packet, facts in self._partitions.new_facts(window):
                end = int(np.searchsorted(trigger, packet, side="left"))
                self._hold(table, named, rows, held, begin, end)
                begin = end
                facts()
            self._hold(table, named, rows, held, begin, len(rows))
        else:
            for _, facts in self._partitions.new_facts(window):
                facts()
        self._take_over(window.names)
        self._end(window.connections.number, window.names)
        return held

    def finish(self, names: Names) -> None:
        """The capture ends: what still lasts is over."""
        self._end(np.flatnonzero(self._know.connections[:, 0] >= 0), names)
        self._partitions, self._know = _Partitions(), _nothing_known()

    def onward(self) -> None:
        """Continue in another rotation, after a copy made the rows of this one's readers: open readers begin anew."""
        entries, sessions = self._know.entries, self._know.sessions
        within = entries[:, h.S_ID] != s.NULL
        last_fetch_ns = np.where(within, sessions[entries[:, h.S_SESSION], h.Z_TO_NS], entries[:, h.S_TO_NS])
        entries[:, h.S_FROM_NS], entries[:, h.S_TO_NS] = last_fetch_ns, last_fetch_ns
        entries[:, h.S_FIRST] = entries[:, h.S_LAST]
        entries[:, h.S_RECORDS] = entries[:, h.S_BYTES] = 0
        entries[:, h.S_BEGUN] = _WENT_ON
        self.clear_over()

    def clear_over(self) -> None:
        """The readers that are over have become rows."""
        self.over = _no_readers()

    def named(self) -> Iterator[np.ndarray]:
        """Numbers of strings that sessions go by from window to window."""
        entries = self._know.entries[: int(self._know.v[h.V_ENTRIES])]
        yield from (entries[:, column] for column in (h.S_CLIENT, h.S_TOPIC, h.S_TOPIC_ID))
        yield from self._partitions.named()

    def _hold(
        self,
        table: h.Rows,
        named: Sequence[tuple[np.ndarray, ...]],
        rows: np.ndarray,
        held: np.ndarray,
        begin: int,
        end: int,
    ) -> None:
        """Decide exchanges `begin` to `end` of `rows`, between which no fact changes.

        named   topic-partitions, where those of each exchange begin, and their numbers, to be filled in
        """
        if begin == end:
            return
        first, past = int(rows[begin]), int(rows[end - 1]) + 1
        wanted = np.zeros(past - first, np.bool_)
        wanted[rows[begin:end] - first] = True
        for some, firsts, numbers in named:
            these: np.ndarray | slice = slice(int(firsts[first]), int(firsts[past]))
            if not wanted.all():
                these = np.flatnonzero(wanted[some[s.P_OWNER, these] - first]) + int(firsts[first])
            name = np.where(some[s.P_TOPIC, these] != s.NULL, some[s.P_TOPIC, these], some[s.P_TOPIC_ID, these])
            numbers[these] = self._partitions.numbers(name, some[s.P_PARTITION, these])
        connections = int(table.connection[first:past].max()) + 1
        self._make_room(connections, int(table.firsts[past] - table.firsts[first]), end - begin)
        h.hold(begin, end, rows, table, held, self._know)

    def _make_room(self, connections: int, readers: int, sessions: int) -> None:
        """For so many connections, and so many more readers and sessions."""
        v, known = self._know.v, len(self._know.connections)
        self._grow("connections", connections, known)
        self._know.connections[known:, 0] = -1
        self._grow("ends", self._partitions.count, len(self._know.ends))
        self._partitions.put_replicas(self._know.ends)
        live, gone = int(v[h.V_LIVE]), int(v[h.V_GONE])
        self._grow("entries", int(v[h.V_ENTRIES]) + readers, int(v[h.V_ENTRIES]))
        self._grow("gone", gone + live + readers, gone)
        self._grow("sessions", int(v[h.V_SESSIONS]) + sessions, int(v[h.V_SESSIONS]))
        if len(self._know.chains) < 2 * (live + readers):
            self._grow("chains", 2 * (live + readers), 0)
            h.chain_again(self._know)

    def _grow(self, name: str, rows: int, used: int) -> None:
        """Make room in a table for so many rows; of those there are, `used` go on."""
        before = getattr(self._know, name)
        if len(before) < rows:
            # In one step, and not touched before it is used: most of what is made sure of never is.
            room = 1 << (rows - 1).bit_length()
            width = before[:1].nbytes
            if room * width >= _SEVERAL_BYTES:
                room = max(room, 1 << (_MAPPED_BYTES // width).bit_length())
            after = np.zeros((room, *before.shape[1:]), before.dtype)
            after[:used] = before[:used]
            self._know = self._know._replace(**{name: after})

    def _end(self, connections: np.ndarray, names: Names) -> None:
        """The sessions of some connections are over."""
        for begin in range(0, len(connections), _AT_ONCE):
            some = np.array(connections[begin : begin + _AT_ONCE])
            self._make_room(int(some.max()) + 1, 0, 0)
            h.end_sessions(some, self._know)
            self._take_over(names)

    def _take_over(self, names: Names) -> None:
        """The readers that are over, with names, for the numbers of connections will be others'."""
        rows = self._know.gone[: int(self._know.v[h.V_GONE])]
        self._know.v[h.V_GONE] = 0
        # One that went on from an earlier rotation may have fetched nothing in this one.
        rows = rows[(rows[:, h.S_BEGUN] != _WENT_ON) | (rows[:, h.S_TO_NS] > rows[:, h.S_FROM_NS])]
        if not len(rows):
            return
        connection = rows[:, h.S_CONNECTION]
        used = arrow.distinct(connection)
        ips = np.array([names.ends[number][0] for number in used.tolist()], np.int64)
        texts = {
            "connection": connection,
            "client_ip": ips[np.searchsorted(used, connection)],
            "client_id": rows[:, h.S_CLIENT],
            "topic": rows[:, h.S_TOPIC],
            "topic_id": rows[:, h.S_TOPIC_ID],
        }
        numbers = {name: rows[:, column] for name, column in READER_NUMBERS.items()}
        self.over.append({**texts, **numbers}, names.strings, names.connections)


def _firsts(parts: np.ndarray, exchanges: int) -> np.ndarray:
    """int64[exchanges + 1]: where the topic-partitions of each begin."""
    counts = np.bincount(parts[s.P_OWNER], minlength=exchanges)
    return np.concatenate([[0], np.cumsum(counts)])


@dataclass(slots=True)
class _Partitions:
    """Numbers of partitions, by their topic's name or its id; at most `MAX_KNOWN` have one.

    _known            keys: the number of a name or an id in the upper half, a partition in the lower
    _topic            what a name or an id (numbers of strings) stands for: itself, or another
    _id_of            the id of each name; _pairs: both, as messages had them
    _replica_counts   replicas by name or id, and partition, as messages had them; _replicas: by key
    _put, _unput      how many partitions `put_replicas` was told of; those whose replicas have changed since
    """

    _known: NumberedKeys = field(default_factory=NumberedKeys)
    _topic: dict[int, int] = field(default_factory=dict)
    _id_of: dict[int, int] = field(default_factory=dict)
    _pairs: set[tuple[int, int]] = field(default_factory=set)
    _replica_counts: dict[int, int] = field(default_factory=dict)
    _replicas: dict[int, int] = field(default_factory=dict)
    _put: int = 0
    _unput: list[int] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self._known)

    def numbers(self, name: np.ndarray, partition: np.ndarray) -> np.ndarray:
        """The number of each partition, -1 of one too many. `name`: its topic's name or id."""
        if self._topic:
            named = arrow.distinct(name)
            topics = np.array([self._topic.get(number, number) for number in named.tolist()], np.int64)
            name = topics[np.searchsorted(named, name)]
        return self._known.numbers(name << 32 | partition & 0xFFFFFFFF, MAX_KNOWN)

    def named(self) -> Iterator[np.ndarray]:
        """Yield the numbers of the names and ids that are known here; those beyond MAX_KNOWN are not."""
        yield arrow.distinct(self._known.keys >> 32)
        for keys in (self._replicas, self._replica_counts):
            yield np.fromiter(keys, np.int64, len(keys)) >> 32
        for of in (self._topic, self._id_of):
            yield np.fromiter(of, np.int64, len(of))
            yield np.fromiter(of.values(), np.int64, len(of))

    def put_replicas(self, ends: np.ndarray) -> None:
        """New partitions, and what is new of others."""
        fresh = slice(self._put, self.count)
        if fresh.start < fresh.stop:
            ends[fresh, h.E_NEWEST_NS : h.E_RING] = s.NULL
            ends[fresh, h.E_REPLICAS] = s.NULL
            if self._replicas:
                of = (self._replicas.get(key, s.NULL) for key in self._known.keys[fresh].tolist())
                ends[fresh, h.E_REPLICAS] = np.fromiter(of, np.int64, fresh.stop - fresh.start)
        numbers = self._known.numbers(np.array(self._unput, np.int64), most=0)  # none becomes known by that
        for key, number in zip(self._unput, numbers.tolist(), strict=True):
            if number >= 0:
                ends[number, h.E_REPLICAS] = self._replicas[key]
        self._put, self._unput = self.count, []

    def new_facts(self, window: Window) -> list[tuple[int, Callable[[], None]]]:
        """Return new facts in a window's messages: (packet that completed the message, function that learns it)."""
        facts: list[tuple[int, Callable[[], None]]] = []
        for identity, name, packet in window.topic_ids.tolist():
            if (identity, name) not in self._pairs:
                self._pairs.add((identity, name))
                facts.append((packet, partial(self._same_topic, identity, name)))
        for name, partition, replicas, packet in _changes(window.leaders):
            if self._replica_counts.get(name << 32 | partition) != replicas and len(self._replica_counts) < MAX_KNOWN:
                self._replica_counts[name << 32 | partition] = replicas
                facts.append((packet, partial(self._replicated, name, partition, replicas)))
        return sorted(facts, key=lambda fact: fact[0])

    def _same_topic(self, identity: int, name: int) -> None:
        """A topic's id and name. A name that had another id is of a new topic now."""
        if identity in self._topic:
            self._topic[name] = self._topic[identity]
        elif name in self._id_of:
            self._topic[name] = self._topic[identity] = identity
        else:
            self._topic[identity] = self._topic.get(name, name)
        self._id_of[name] = identity

    def _replicated(self, name: int, partition: int, replicas: int) -> None:
        key = self._topic.get(name, name) << 32 | partition
        self._replicas[key] = replicas
        self._unput.append(key)


def _changes(leaders: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Return (name or id of the topic, partition, replicas, packet) of each change of a partition's replicas in a
    window."""
    rows = leaders[leaders[:, s.L_REPLICAS] != s.NULL]
    rows = rows[(rows[:, s.L_TOPIC] != s.NULL) | (rows[:, s.L_TOPIC_ID] != s.NULL)]
    name = np.where(rows[:, s.L_TOPIC] != s.NULL, rows[:, s.L_TOPIC], rows[:, s.L_TOPIC_ID])
    partition, replicas = rows[:, s.L_PARTITION], rows[:, s.L_REPLICAS]
    order = np.lexsort((partition, name))
    again = (np.diff(name[order]) == 0) & (np.diff(partition[order]) == 0) & (np.diff(replicas[order]) == 0)
    chosen = np.sort(order[np.append(True, ~again)]) if len(order) else order
    columns = (name[chosen], partition[chosen] & 0xFFFFFFFF, replicas[chosen], rows[chosen, s.L_COMPLETED_BY])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def readers_table(
    capture: str, readers: Log, groups: Mapping[tuple[str | None, str | None], Sequence[str]]
) -> pa.Table:
    """Return rows of `readers`, in order of time.

    readers  `Sessions.over`
    groups   those of each client (id and address); a client with several has null
    """
    columns = readers.read()
    rank = np.full(len(readers.strings) + 1, -1)  # the last: of no text
    rank[sorted(range(len(readers.strings)), key=readers.strings.__getitem__)] = np.arange(len(readers.strings))
    topic = np.where(columns["topic"] != s.NULL, columns["topic"], columns["topic_id"])
    order = np.lexsort(
        (
            columns["to"],
            columns["partition"],
            rank[np.where(topic == s.NULL, -1, topic)],
            rank[columns["connection"]],
            columns["from"],
        )
    )
    ordered = {name: column[order] for name, column in columns.items()}
    given: dict[str, pa.Array] = {
        "capture": arrow.dictionary(arrow.zeros(len(order), np.int32), [capture]),
        "group_id": _groups_of(ordered["client_id"], ordered["client_ip"], readers, groups),
        "from_time": arrow.times(arrow.micros(ordered["from"])),
        "to_time": arrow.times(arrow.micros(ordered["to"])),
        "start_seen": arrow.flags(ordered["begun"] == 1),
        **{name: arrow.strings(ordered[name], readers.strings) for name in READER_TEXTS},
    }
    schema = tables.schema("readers")
    arrays = [
        given[field.name] if field.name in given else arrow.integers(ordered[field.name], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema.names)


def _groups_of(
    client: np.ndarray, ip: np.ndarray, readers: Log, groups: Mapping[tuple[str | None, str | None], Sequence[str]]
) -> pa.Array:
    """Return the group of each reader, null of a client with several, or with none that is known."""
    first, which = combinations(client, ip)
    of = [groups.get((readers.text(client[row]), readers.text(ip[row])), ()) for row in first.tolist()]
    names = [group_ids[0] if len(group_ids) == 1 else None for group_ids in of]
    known = sorted({name for name in names if name is not None})
    numbers = np.array([s.NULL if name is None else known.index(name) for name in names], np.int64)
    return arrow.strings(numbers[which], known)
