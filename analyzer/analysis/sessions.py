"""Fetches: their sessions (KIP-227), the ends of partitions, and who reads what from when to when.

In: windows whose exchanges were measured. Out: how long the exchanges of `latency_split.ACROSS` were held, and the
readers. Rules: a topic's id, or the number of a partition's replicas, holds for the exchanges completed after the
message with it; partitions beyond `MAX_KNOWN` are not remembered, and exchanges about them have no results.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from kwire.analyzer.bulk import purgatory as h
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.row_groups import steady
from kwire.analyzer.bulk.rows import Names, Window
from kwire.analyzer.dataset import tables
from kwire.analyzer.frame import arrow

MAX_KNOWN: Final = 1 << 17
"""Partitions whose ends are remembered: 450 bytes each. A broker that leads a tenth of it is a large one."""

_PIECE: Final = 1 << 12
"""Readers whose numbers are Python's at a time: all that last end at once where the capture ends."""

_SEVERAL_BYTES: Final = 4 << 20
_MAPPED_BYTES: Final = 32 << 20
"""A table of several MB gets so many at once: glibc maps what is larger by itself, so that rows without a value take no
memory, and all of it returns. What is smaller leaves a gap among other memory each time the table grows."""

_WENT_ON: Final = 2
"""Value of S_BEGUN: an earlier rotation has a row of the reader."""


_NUMBERS: Final = struct.Struct("<10q")
"""`ReaderNumbers`."""


class Reader(NamedTuple):
    """A row of `readers`, times in nanoseconds; topic and id as in messages.

    Many wait for the capture's end, so numbers are packed (`_NUMBERS`): objects take three times as much.
    """

    connection: str
    client_ip: str
    client_id: str | None
    topic: str | None
    topic_id: str | None
    packed: bytes

    @property
    def numbers(self) -> ReaderNumbers:
        return ReaderNumbers(*_NUMBERS.unpack(self.packed))


class ReaderNumbers(NamedTuple):
    """The numbers in a row of `readers`, NULL where there is none."""

    session_id: int
    partition: int
    from_ns: int
    to_ns: int
    first_offset: int
    last_offset: int
    records: int
    record_bytes: int
    begun: int
    isolation_level: int


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
    """Fetch sessions of a capture point, in progress; `over`: readers of those that have ended."""

    def __init__(self) -> None:
        self.over: list[Reader] = []
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
        ended = window.connections.number
        if len(ended):
            self._make_room(int(ended.max()) + 1, 0, 0)
            h.end_sessions(np.ascontiguousarray(ended).copy(), self._know)
        self._take_over(window.names)
        return held

    def finish(self, names: Names) -> None:
        """The capture ends: what still lasts is over."""
        open_ = np.flatnonzero(self._know.connections[:, 0] >= 0)
        self._make_room(0, 0, 0)
        h.end_sessions(open_, self._know)
        self._take_over(names)
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
        self.over.clear()

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

    def _take_over(self, names: Names) -> None:
        """The readers that are over, with names, for the numbers of connections will be others'."""
        count = int(self._know.v[h.V_GONE])
        self._know.v[h.V_GONE] = 0
        strings = names.strings

        def text(number: int) -> str | None:
            return None if number == s.NULL else strings[number]

        pieces = (self._know.gone[at : min(at + _PIECE, count)].tolist() for at in range(0, count, _PIECE))
        for row in itertools.chain.from_iterable(pieces):
            if row[h.S_BEGUN] == _WENT_ON and row[h.S_TO_NS] <= row[h.S_FROM_NS]:
                continue  # it fetched nothing in this rotation
            connection = row[h.S_CONNECTION]
            self.over.append(
                Reader(
                    names.connections[connection],
                    strings[names.ends[connection][0]],
                    text(row[h.S_CLIENT]),
                    text(row[h.S_TOPIC]),
                    text(row[h.S_TOPIC_ID]),
                    _NUMBERS.pack(*(row[column] for column in _PACKED)),
                )
            )


_PACKED: Final = (
    h.S_ID,
    h.S_PARTITION,
    h.S_FROM_NS,
    h.S_TO_NS,
    h.S_FIRST,
    h.S_LAST,
    h.S_RECORDS,
    h.S_BYTES,
    h.S_BEGUN,
    h.S_ISOLATION,
)
"""Columns of a reader in the order of `ReaderNumbers`."""


def _value(number: int) -> int | None:
    return None if number == s.NULL else number


def _firsts(parts: np.ndarray, exchanges: int) -> np.ndarray:
    """int64[exchanges + 1]: where the topic-partitions of each begin."""
    counts = np.bincount(parts[s.P_OWNER], minlength=exchanges)
    return np.concatenate([[0], np.cumsum(counts)])


class _Partitions:
    """Numbers of partitions, by their topic's name or its id. `count` of them are known."""

    def __init__(self) -> None:
        self.count = 0
        self._numbers: dict[tuple[int, int], int] = {}  # by topic and partition
        self._topic: dict[int, int] = {}  # what a name or an id (numbers of strings) stands for: itself, or another
        self._id_of: dict[int, int] = {}
        self._pairs: set[tuple[int, int]] = set()
        self._replica_counts: dict[int, int] = {}  # replicas, by name or id, and partition
        self._replicas: dict[tuple[int, int], int] = {}
        self._unput: list[tuple[int, int]] = []  # number and replicas
        self._forget_places()

    def _forget_places(self) -> None:
        """Empty the index of partitions: sorted keys (name or id, and partition, in one integer), and their numbers.

        The latest keys stand apart, so that a new one is inserted among few.
        """
        self._keys = self._late_keys = np.zeros(0, np.int64)
        self._values = self._late_values = np.zeros(0, np.int64)

    def numbers(self, name: np.ndarray, partition: np.ndarray) -> np.ndarray:
        """The number of each partition, -1 of one too many. `name`: its topic's name or id."""
        key = name << 32 | partition & 0xFFFFFFFF
        numbers_found, missing = _looked_up(self._keys, self._values, key)
        if not missing.any():
            return numbers_found
        late = key[missing]
        numbers, unknown = _looked_up(self._late_keys, self._late_values, late)
        if unknown.any():
            fresh = arrow.distinct(late[unknown])
            given = [self._number(key >> 32, key & 0xFFFFFFFF) for key in fresh.tolist()]
            self._late_keys, self._late_values = _put(self._late_keys, self._late_values, fresh, np.array(given))
            numbers, _ = _looked_up(self._late_keys, self._late_values, late)
            if len(self._late_keys) > max(_LATE, len(self._keys) // _LATE):
                self._settle()
        numbers_found[missing] = numbers
        return numbers_found

    def _settle(self) -> None:
        self._keys, self._values = _put(self._keys, self._values, self._late_keys, self._late_values)
        self._late_keys, self._late_values = self._late_keys[:0], self._late_values[:0]

    def _number(self, name: int, partition: int) -> int:
        key = self._topic.get(name, name), partition
        number = self._numbers.get(key)
        if number is None:
            if self.count >= MAX_KNOWN:
                return -1
            number = self._numbers[key] = self.count
            self.count += 1
            self._unput.append((number, self._replicas.get(key, s.NULL)))
        return number

    def named(self) -> Iterator[np.ndarray]:
        """Yield the numbers of the names and ids that are known here; those beyond MAX_KNOWN are not."""
        self._settle()
        known = self._values >= 0
        self._keys, self._values = self._keys[known], self._values[known]
        yield self._keys >> 32
        for pairs in (self._numbers, self._replicas):
            yield np.fromiter((name for name, _ in pairs), np.int64, len(pairs))
        yield np.fromiter(self._replica_counts, np.int64, len(self._replica_counts)) >> 32
        for of in (self._topic, self._id_of):
            yield np.fromiter(of, np.int64, len(of))
            yield np.fromiter(of.values(), np.int64, len(of))

    def put_replicas(self, ends: np.ndarray) -> None:
        """New partitions, and what is new of others."""
        for number, replicas in self._unput:
            if ends[number, h.E_FOLLOWED] == 0 and ends[number, h.E_REPLICAS] == 0:
                ends[number, h.E_NEWEST_NS : h.E_RING] = s.NULL
            ends[number, h.E_REPLICAS] = replicas
        self._unput = []

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
        self._forget_places()

    def _replicated(self, name: int, partition: int, replicas: int) -> None:
        key = self._topic.get(name, name), partition
        self._replicas[key] = replicas
        if key in self._numbers:
            self._unput.append((self._numbers[key], replicas))


_LATE: Final = 256
"""Partitions that stand apart, or one in so many of those that do not."""


def _looked_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the value of each key that is wanted, bool: it has none). keys int64[n] in order; values int64[n]."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64), np.ones(len(wanted), np.bool_)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return values[at], keys[at] != wanted


def _put(keys: np.ndarray, values: np.ndarray, more: np.ndarray, of_more: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Insert keys with their values, in order."""
    at = np.searchsorted(keys, more)
    return np.insert(keys, at, more), np.insert(values, at, of_more)


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
    capture: str, readers: Sequence[Reader], groups: Mapping[tuple[str | None, str | None], Sequence[str]]
) -> pa.Table:
    """Return rows of `readers`, in order of time.

    groups   those of each client (id and address); a client with several has null
    """
    ordered = sorted(readers, key=_place)
    of = (groups.get((reader.client_id, reader.client_ip), ()) for reader in ordered)

    def number(name: str) -> Iterator[int | None]:
        column = attrgetter(name)
        return (_value(column(reader.numbers)) for reader in ordered)

    columns: dict[str, Iterable[Any]] = {  # column by column: a row as an object takes half a kilobyte
        "capture": itertools.repeat(capture, len(ordered)),
        "group_id": (group_ids[0] if len(group_ids) == 1 else None for group_ids in of),
        "from_time": (reader.numbers.from_ns // 1000 for reader in ordered),
        "to_time": (None if to_ns is None else to_ns // 1000 for to_ns in number("to_ns")),
        "start_seen": (reader.numbers.begun == 1 for reader in ordered),
        **{name: map(attrgetter(name), ordered) for name in Reader._fields},
        **{name: number(name) for name in ReaderNumbers._fields},
    }
    schema = tables.schema("readers")
    arrays = [
        pa.array(columns[field.name], field.type, size=len(ordered))
        if field.name in columns
        else pa.nulls(len(ordered), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _place(reader: Reader) -> tuple[int, str, str, int, int]:
    numbers = reader.numbers
    return numbers.from_ns, reader.connection, reader.topic or reader.topic_id or "", numbers.partition, numbers.to_ns
