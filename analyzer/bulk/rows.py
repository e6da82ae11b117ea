"""Merge the shards' results of one window of a capture point into one `Window`.

In: for each window a `ShardResult` of each shard, in order. Out: a `Window`, with the shards' rows in one order,
connections named and symbols numbered for the whole capture point. Rules: a window is read-only, and the shards'
results are not changed; numbers in windows mean what `Names` has, which grows; rows are in order of the packet that
completed them, then of the age of their connection, however many shards there are.
"""

from __future__ import annotations

import functools
import ipaddress
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.column_names import COLUMNS
from kwire.analyzer.bulk.concat import ConcatColumns, Each, Naming, concat_shards, one_after_another
from kwire.analyzer.bulk.merging import Numbers
from kwire.analyzer.bulk.shard_result import SYMBOLS, TEXTS, Connections, ShardResult
from kwire.analyzer.bulk.zookeeper import ZooKeeper
from kwire.analyzer.frame.arrow import among, distinct, text
from kwire.analyzer.frame.buffer_pool import BufferPool
from kwire.captures.files import FileInfo


@functools.lru_cache(maxsize=1 << 16)
def ip_text(address: int) -> str:
    """An address of `kwire.captures.packets`: IPv4 is ::ffff:a.b.c.d there."""
    if address >> 32 == 0xFFFF:
        return str(ipaddress.IPv4Address(address & 0xFFFFFFFF))
    return str(ipaddress.IPv6Address(address))


def address_of(text: str) -> int:
    """The inverse of `ip_text`; raises ValueError if it is a name."""
    address = ipaddress.ip_address(text)
    return int(address) | 0xFFFF << 32 if address.version == 4 else int(address)


def end_point(ip: str, port: int) -> str:
    """`ip:port`, IPv6 in brackets (RFC 5952)."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


MOST_NAMES: Final = 1 << 16
"""Strings and lists of a capture point before those are looked for that nobody means any more; of more in use twice as
many."""


@dataclass(slots=True)
class Names:
    """Meanings of the numbers in the windows of a capture point; the lists grow while windows come.

    To look up things in another thread, or later, take `strings` and `lists` as they are now: `forget` replaces them.

    capture      name of the capture point
    files        what is known of its files, in reading order
    strings      distinct strings by number
    lists        distinct lists by number: of numbers of strings (topics), of code, count, code, count ... (errors), or
                 of node ids (replicas)
    connections  name of each connection, `client_ip:port-broker_ip:port#n`
    ends         numbers of client address, client port, broker address, broker port of each connection (addresses as
                 numbers of strings)
    serials      which connection of the capture point each is, from 0

    The number of a connection that has ended may be given again once `release` was called after its window, that of a
    string once `forget` was.
    """

    capture: str
    files: list[FileInfo] = field(default_factory=list)
    strings: list[str] = field(default_factory=list)
    lists: list[tuple[int, ...]] = field(default_factory=list)
    connections: list[str] = field(default_factory=list)
    ends: list[tuple[int, int, int, int]] = field(default_factory=list)
    serials: list[int] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)
    _list_numbers: dict[tuple[int, ...], int] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)
    _over: list[int] = field(default_factory=list)
    _free_strings: list[int] = field(default_factory=list)
    _most: int = 0

    def release(self) -> None:
        """All windows so far are done with: numbers of connections that have ended may be given again. So what is kept
        grows with the connections that are open, not with the capture."""
        self._free += self._over
        self._over = []

    def over(self, numbers: list[int]) -> None:
        """These connections have ended."""
        self._over += numbers

    def string(self, value: str) -> int:
        """The number of a string, a new one if it is new."""
        number = self._numbers.get(value)
        if number is None:
            if self._free_strings:
                number = self._free_strings.pop()
                self.strings[number] = value
            else:
                number = len(self.strings)
                self.strings.append(value)
            self._numbers[value] = number
        return number

    @property
    def crowded(self) -> bool:
        """There are many more strings and lists than were in use at the last `forget`."""
        return len(self.strings) - len(self._free_strings) + len(self.lists) > max(MOST_NAMES, self._most)

    def forget(self, used: np.ndarray) -> None:
        """All windows so far are done with, and of the strings only some (int64: their numbers) are still meant by
        anybody, of the lists none: numbers of the others may be given again."""
        meant = np.zeros(len(self.strings), np.bool_)
        meant[used] = True
        strings = [value if here else "" for value, here in zip(self.strings, meant.tolist(), strict=True)]
        self.strings, self.lists, self._list_numbers = strings, [], {}
        self._numbers = {strings[number]: number for number in np.flatnonzero(meant).tolist()}
        self._free_strings = np.flatnonzero(~meant)[::-1].tolist()
        self._most = 2 * len(self._numbers)

    def list_of(self, values: tuple[int, ...]) -> int:
        """Return the number of a list, a new one if it is new."""
        number = self._list_numbers.get(values)
        if number is None:
            number = self._list_numbers[values] = len(self.lists)
            self.lists.append(values)
        return number

    def connection(self, client: tuple[int, int], broker: tuple[int, int], reuse: int, serial: int) -> int:
        """A number for a connection between two (address, port)."""
        client_ip, broker_ip = ip_text(client[0]), ip_text(broker[0])
        name = f"{end_point(client_ip, client[1])}-{end_point(broker_ip, broker[1])}#{reuse}"
        ends = (self.string(client_ip), client[1], self.string(broker_ip), broker[1])
        if not self._free:
            self.connections.append(name)
            self.ends.append(ends)
            self.serials.append(serial)
            return len(self.connections) - 1
        number = self._free.pop()
        self.connections[number], self.ends[number], self.serials[number] = name, ends, serial
        return number

    def serials_of(self, numbers: np.ndarray) -> np.ndarray:
        """The serials of many connections."""
        serials: np.ndarray = np.array(self.serials, np.int64)[numbers]
        return serials


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Exchanges in order, with symbols in the numbering of the capture point.

    columns      int64[X_COLUMNS, n], as in `kwire.analyzer.bulk.state`; `column` gives one by name
    connection   int64[n], the number of each row's connection
    partitions   int64[P_COLUMNS, m], their topic-partitions in the same order, P_OWNER the exchange's row
    names        what the numbers stand for
    forgotten    int64[P_COLUMNS, f]: topic-partitions that Fetch takes out of its session, of rows before any filter
    """

    columns: np.ndarray
    connection: np.ndarray
    partitions: np.ndarray
    names: Names
    forgotten: np.ndarray = field(default_factory=lambda: np.zeros((s.P_COLUMNS, 0), np.int64))

    def __len__(self) -> int:
        return len(self.connection)

    def column(self, name: str) -> np.ndarray:
        """One of `COLUMNS`."""
        values: np.ndarray = self.columns[COLUMNS[name]]
        return values

    @property
    def owner(self) -> np.ndarray:
        """int64[m]: the row that each topic-partition belongs to."""
        values: np.ndarray = self.partitions[s.P_OWNER]
        return values

    def where(self, mask: np.ndarray) -> Exchanges:
        """The rows that a mask lets through, and their topic-partitions."""
        if mask.all():
            return self
        partitions = self.partitions.compress(mask[self.partitions[s.P_OWNER]], axis=1)
        partitions[s.P_OWNER] = (np.cumsum(mask) - 1)[partitions[s.P_OWNER]]
        columns, connection = self.columns.compress(mask, axis=1), self.connection[mask]
        return Exchanges(columns, connection, partitions, self.names, self.forgotten[:, :0])


def no_exchanges(names: Names) -> Exchanges:
    """None of them."""
    no_parts = np.zeros((s.P_COLUMNS, 0), np.int64)
    return Exchanges(np.zeros((s.X_COLUMNS, 0), np.int64), np.zeros(0, np.int64), no_parts, names, no_parts)


class Message(NamedTuple):
    """One frame: its bytes, the length field included; `complete`: none is missing. `connection`: its number in
    `Names`; `ordinal`: which of its side of the connection; `completed_by`: ordinal of the packet that completed it.
    `last_ns` is None where not all of it came."""

    data: bytes
    complete: bool
    connection: int = -1
    request: bool = True
    ordinal: int = 0
    api_key: int = s.NULL
    api_version: int = s.NULL
    first_ns: int = 0
    last_ns: int | None = None
    completed_by: int = 0


class RawMessages(NamedTuple):
    """Columns of the messages of a window, as `Message` has them: int64[n], NULL if there is none.

    heaps: the bytes of the first so many, and so on; views, as `RecordSets`; at, length: position and size of each
    in its heap."""

    heaps: list[tuple[np.ndarray, int]]
    at: np.ndarray
    length: np.ndarray
    complete: np.ndarray
    connection: np.ndarray
    direction: np.ndarray
    ordinal: np.ndarray
    api_key: np.ndarray
    api_version: np.ndarray
    first_ns: np.ndarray
    last_ns: np.ndarray
    completed_by: np.ndarray


MESSAGE_NUMBERS: Final = (
    s.MSG_COMPLETE,
    s.MSG_SLOT,
    s.MSG_DIRECTION,
    s.MSG_ORDINAL,
    s.MSG_API_KEY,
    s.MSG_API_VERSION,
    s.MSG_FIRST_NS,
    s.MSG_LAST_NS,
    s.MSG_COMPLETED_BY,
)
"""Columns of raw messages beside their bytes; in the order of the fields of `Message`."""

_RAW: Final = (s.MSG_AT, s.MSG_LENGTH, *MESSAGE_NUMBERS)
"""The columns of `RawMessages` behind `heaps`."""


class RecordSets(NamedTuple):
    """Record sets of one shard: `number`, which `Exchanges.partitions` has in P_SET, where each lies in `heap`
    uint8[:], and whether headers of batches may stand in it alone (`HEADER_ALONE`); int64[r]. Views, valid until the
    window after the next one."""

    heap: np.ndarray
    number: np.ndarray
    at: np.ndarray
    length: np.ndarray
    bridged: np.ndarray


@dataclass(frozen=True, slots=True)
class Window:
    """One window of a capture point; read-only.

    names        what its numbers stand for
    every        all exchanges that ended in it
    exchanges    those of them that are wanted: all, unless a filter chose (`only`)
    connections  those that ended in it, in order
    topic_ids    int64[:, 3]: id and name, numbers of strings, in order of the messages that said so; the packet that
                 completed each of these
    brokers      int64[:, 6]: node id, host (a string's number), port, rack (a string's number, or NULL); the number of
                 the connection that said so, and the packet that completed its message
    offers       int64[:, 4]: connection's number, API key, lowest and highest version offered
    leaders      int64[:, L_COLUMNS], in order; L_TOPIC and L_TOPIC_ID numbers of strings, L_ISR of a list
    sets         record sets, where those are kept
    oldest       whatever ends in later windows has its first packet at this ordinal or later
    measured     the parts of latencies have been worked out (`kwire.analyzer.analysis.latency`)
    zookeeper    what was said to ZooKeeper, in order
    open         int64[:, 6]: requests without an answer at its end, where those were asked for: connection's number,
                 last byte (ns), API key, `acks`, `max_wait_ms`, client id (a string's number)
    """

    names: Names
    every: Exchanges
    exchanges: Exchanges
    connections: Connections
    topic_ids: np.ndarray
    brokers: np.ndarray
    offers: np.ndarray
    leaders: np.ndarray
    sets: tuple[RecordSets, ...]
    oldest: int
    _messages: tuple[tuple[np.ndarray, np.ndarray], ...]
    measured: bool = False
    zookeeper: tuple[ZooKeeper, ...] = ()
    open: np.ndarray = field(default_factory=lambda: np.zeros((0, 6), np.int64))
    _over: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def over(self) -> tuple[np.ndarray, np.ndarray]:
        """Connections that ended, also where what is known of them is left out: number, and completed_by of the end."""
        return (self.connections.number, self.connections.completed_by) if self._over is None else self._over

    def only(self, exchanges: Exchanges) -> Window:
        """Return the window with fewer exchanges wanted."""
        return replace(self, exchanges=exchanges)

    def without_facts(self) -> Window:
        """Its exchanges, messages and record sets alone."""
        none = self.connections.take(np.zeros(0, np.int64))
        facts = {name: getattr(self, name)[:0] for name in _FACTS}
        return replace(self, connections=none, _over=self.over, zookeeper=(), **facts)

    def facts_alone(self) -> Window:
        """Return the window with only the facts of its connections that matter for others, and their ends."""
        none = no_exchanges(self.names)
        return replace(self, every=none, exchanges=none, sets=(), _messages=())

    def pieces(self, firsts: Sequence[int]) -> Iterator[Window]:
        """Divide an unfiltered window into windows of fewer exchanges with their messages.

        firsts: rows that begin a piece beside the first. Facts about the cluster and record sets are in each piece,
        connections that ended and ZooKeeper's events in the last."""
        if not firsts:
            yield self
            return
        completed_by, place, after = self.every.column("completed_by"), np.arange(len(self.every)), -1
        goes_on = replace(
            self,
            connections=self.connections.take(np.zeros(0, np.int64)),
            zookeeper=(),
            _over=(np.zeros(0, np.int64), np.zeros(0, np.int64)),
        )
        for begin, end in itertools.pairwise([0, *firsts, len(place)]):
            last = end == len(place)
            until = NEVER if last else int(completed_by[end - 1])
            every = self.every.where((begin <= place) & (place < end))
            messages = self._messages_between(after, until)
            yield replace(self if last else goes_on, every=every, exchanges=every, _messages=messages)
            after = until

    def _messages_between(self, after: int, until: int) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """Return the messages that packets after `after` and up to `until` completed."""
        messages = []
        for rows, heap in self._messages:
            completed_by = rows[:, s.MSG_COMPLETED_BY]
            messages.append((rows[(after < completed_by) & (completed_by <= until)], heap))
        return tuple(messages)

    def messages(
        self,
        apis: Collection[int] | None = None,
        directions: Mapping[int, int] = MappingProxyType({}),
        newest: int | None = None,
    ) -> Iterator[Message]:
        """Raw messages, where those are kept: of some APIs, or of all; of those in `directions` of that alone (0:
        requests); where `newest` is given, that many of each shard."""
        for rows, heap in self.raw_rows(apis, directions):
            first = 0 if newest is None else max(0, len(rows) - newest)
            for begin in range(first, len(rows), _MESSAGES_AT_ONCE):
                yield from _messages(rows[begin : begin + _MESSAGES_AT_ONCE], heap.data)

    def raw_rows(
        self, apis: Collection[int] | None, directions: Mapping[int, int]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the messages of `messages` as rows int64[n, MSG_COLUMNS], and the heap in which their bytes are."""
        for rows, heap in self._messages:
            if apis is not None:
                rows = rows[among(rows[:, s.MSG_API_KEY], list(apis))]
            for api_key, direction in directions.items():
                is_other = (rows[:, s.MSG_API_KEY] == api_key) & (rows[:, s.MSG_DIRECTION] != direction)
                rows = rows[~is_other] if is_other.any() else rows
            yield rows, heap

    def raw(self) -> RawMessages:
        """Like `messages`, for all of them at once, as columns."""
        rows = np.concatenate([np.zeros((0, s.MSG_COLUMNS), np.int64), *(rows for rows, _ in self._messages)])
        return RawMessages([(heap, len(rows)) for rows, heap in self._messages], *rows.T[list(_RAW)])

    def message_places(self) -> tuple[np.ndarray, np.ndarray]:
        """(completed_by, number of the connection) of each raw message."""
        raw = self.raw()
        return raw.completed_by, raw.connection


_MESSAGES_AT_ONCE: Final = 4096
"""Raw messages of which Python's numbers are made at a time."""


def _messages(rows: np.ndarray, data: memoryview) -> Iterator[Message]:
    """Raw messages of some rows, whose bytes are in `data`."""
    slot, _, direction, ordinal, key, version, at, length, complete, first, last, completed_by = rows.T
    columns = (
        [bytes(data[begin:end]) for begin, end in zip(at.tolist(), (at + length).tolist(), strict=True)],
        (complete != 0).tolist(),
        slot.tolist(),
        (direction == 0).tolist(),
        ordinal.tolist(),
        key.tolist(),
        version.tolist(),
        first.tolist(),
        [None if time == s.NULL else time for time in last.tolist()],
        completed_by.tolist(),
    )
    return map(Message._make, zip(*columns, strict=True))


_FACTS: Final = ("topic_ids", "brokers", "offers", "leaders")
NEVER: Final = np.iinfo(np.int64).max
"""A packet that does not come."""


class EndPoints(Protocol):
    """Properties of connections by slot: `kwire.captures.flows.Flows`."""

    def end_points(self, slot: int) -> tuple[Any, Any, int, int]:
        """Two (address, port), how often they had a connection before, and which of the capture point it is."""
        ...

    def serials(self, slots: np.ndarray) -> np.ndarray:
        """The last of these, of many."""
        ...

    def other_end_points(self, slots: np.ndarray) -> dict[int, list[tuple[Any, Any]]]:
        """Of those in some slots that have other legs, two (address, port) of each leg."""
        ...


def _no_numbers() -> np.ndarray:
    return np.zeros(0, np.int64)


@dataclass(slots=True)
class _Symbols:
    """One shard's symbols in the numbering of the whole capture point; -1: not needed yet."""

    strings: np.ndarray = field(default_factory=_no_numbers)
    lists: list[bytes] = field(default_factory=list)
    topics: np.ndarray = field(default_factory=_no_numbers)  # of lists of strings
    others: np.ndarray = field(default_factory=_no_numbers)  # of lists of numbers: errors with counts, node ids

    def learn(self, ended: ShardResult, names: Names) -> None:
        """Number the strings that are new in a window."""
        if ended.anew:
            self.strings = self.topics = self.others = _no_numbers()
            self.lists = []
        if ended.strings:
            fresh = np.fromiter((names.string(text(value)) for value in ended.strings), np.int64, len(ended.strings))
            self.strings = np.append(self.strings, fresh)
        if ended.lists:
            self.lists.extend(ended.lists)
            fresh = np.full(len(ended.lists), -1, np.int64)
            self.topics, self.others = np.append(self.topics, fresh), np.append(self.others, fresh)

    def forget_lists(self) -> None:
        """None has a number any more."""
        self.topics, self.others = (np.full(len(self.lists), -1, np.int64) for _ in range(2))

    def name_topics(self, symbols: np.ndarray, names: Names) -> None:
        """These symbols, of lists of strings, have numbers afterwards."""
        self._lists(symbols, self.topics, names, through=True)

    def other_lists(self, symbols: np.ndarray, names: Names) -> np.ndarray:
        """Numbers of lists of numbers by symbol, these symbols' among them."""
        return self._lists(symbols, self.others, names, through=False)

    def _lists(self, symbols: np.ndarray, numbers: np.ndarray, names: Names, *, through: bool) -> np.ndarray:
        used = symbols[symbols != s.NULL]
        for symbol in distinct(used[numbers[used] < 0]).tolist():
            content = np.frombuffer(self.lists[symbol], "<i4")
            numbers[symbol] = names.list_of(tuple((self.strings[content] if through else content).tolist()))
        return numbers


class ShardMerger:
    """Makes the windows of a capture point of what its shards hand out, and names what is in them (`names`)."""

    def __init__(self, capture: str, shards: int, flows: EndPoints, files: list[FileInfo]) -> None:
        self.names = Names(capture, files)
        self._flows = flows
        self._shards = [_Symbols() for _ in range(shards)]
        self._slots = np.full(256, -1, np.int64)  # number of the connection in each slot
        self._buffers = BufferPool()

    def take(
        self,
        shards: Sequence[ShardResult],
        done_packets: int,
        each: Each = one_after_another,
        gather: Callable[[Naming, BufferPool], ConcatColumns] | None = None,
    ) -> Window:
        """Merge one window's results, one a shard.

        done_packets: number of packets that the windows so far cover; each: runs work on pieces of rows; gather:
        puts exchanges together that are not in the results."""
        for symbols, ended in zip(self._shards, shards, strict=True):
            symbols.learn(ended, self.names)
        buffers = self._buffers
        columns = concat_shards(shards, self, each, buffers) if gather is None else gather(self, buffers)
        exchanges = Exchanges(columns.exchanges, columns.connection, columns.parts, self.names, columns.forgotten)
        facts = self._facts(shards)
        kind = facts[:, s.FACT_KIND]
        offers = facts[kind == s.FACT_API_VERSION][:, [s.FACT_SLOT, s.FACT_A, s.FACT_B, s.FACT_C]]
        offers[:, 0] = self.connections(offers[:, 0], np.full(len(offers), -1))
        nodes = (s.FACT_A, s.FACT_B, s.FACT_C, s.FACT_D, s.FACT_SLOT, s.FACT_COMPLETED_BY)
        brokers = facts[kind == s.FACT_BROKER][:, nodes]
        brokers[:, 4] = self.connections(brokers[:, 4], np.full(len(brokers), -1))
        window = Window(
            names=self.names,
            every=exchanges,
            exchanges=exchanges,
            open=self._open(shards),
            topic_ids=facts[kind == s.FACT_TOPIC_ID][:, [s.FACT_A, s.FACT_B, s.FACT_COMPLETED_BY]],
            brokers=brokers,
            offers=offers,
            leaders=self._leaders(shards),
            sets=tuple(self._sets(shards)),
            oldest=min([ended.oldest for ended in shards if ended.oldest is not None] + [done_packets]),
            _messages=tuple(self._messages(shards)),
            zookeeper=self._zookeeper(shards),
            connections=self._ended(shards),
        )
        for array in (exchanges.columns, exchanges.connection, exchanges.partitions, exchanges.forgotten):
            array.flags.writeable = False
        for name in _FACTS:
            getattr(window, name).flags.writeable = False
        return window

    def release(self) -> None:
        """Let go of the memory for rows: no window follows."""
        self._buffers = BufferPool()

    def forget(self, others: Iterable[np.ndarray]) -> None:
        """Forget names that neither the shards nor `others` (numbers of strings) mean any more.

        No window so far may be in use."""
        names = self.names
        of_ends = np.array([(client, broker) for client, _, broker, _ in names.ends], np.int64).ravel()
        used = np.concatenate([of_ends, *(known.strings for known in self._shards), *others])
        for known in self._shards:
            known.forget_lists()
        names.forget(used[used != s.NULL])

    # -- what names have been given (`gathering.Naming`) --------------------------------------------------------------
    def numbers(self, shard: int) -> Numbers:
        """Return the capture point's numbers of a shard's symbols."""
        known = self._shards[shard]
        return Numbers(known.strings, known.topics, known.others, np.array([len(self._shards), shard], np.int64))

    def named(self) -> tuple[np.ndarray, np.ndarray]:
        """int64 each: number of the connection in each slot, -1: none yet; age of each number's connection."""
        return self._slots, np.array(self.names.serials, np.int64)

    def name_lists(self, shard: int, topics: np.ndarray, others: np.ndarray) -> None:
        """These symbols of a shard's lists get numbers: of lists of strings, and others."""
        self._shards[shard].name_topics(topics, self.names)
        self._shards[shard].other_lists(others, self.names)

    # -- record sets and messages -------------------------------------------------------------------------------------
    def _set_numbers(self, shard: int, numbers: np.ndarray) -> np.ndarray:
        """A shard's numbers of record sets in the numbering of the capture point."""
        return numbers * len(self._shards) + shard

    def _sets(self, shards: Sequence[ShardResult]) -> Iterator[RecordSets]:
        for shard, ended in enumerate(shards):
            numbers = self._set_numbers(shard, ended.sets[:, s.SET_NUMBER])
            columns = (ended.sets[:, column] for column in (s.SET_AT, s.SET_LENGTH, s.SET_BRIDGED))
            yield RecordSets(ended.set_bytes, numbers, *map(np.ascontiguousarray, columns))

    def _messages(self, shards: Sequence[ShardResult]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for ended in shards:
            rows = ended.messages
            if len(rows):
                rows = rows.copy()
                rows[:, s.MSG_SLOT] = self.connections(rows[:, s.MSG_SLOT], rows[:, s.MSG_CLIENT])
            yield rows, ended.message_bytes

    # -- what messages say of the cluster -----------------------------------------------------------------------------
    def _facts(self, shards: Sequence[ShardResult]) -> np.ndarray:
        """Rows for the small tables, FACT_SLOT a slot still."""
        tables, serials, order = [], [], []
        for known, ended in zip(self._shards, shards, strict=True):
            rows = _without_repeats(ended.facts).copy()
            strings, kind = known.strings, rows[:, s.FACT_KIND]
            for columns, wanted in ((s.FACT_A, s.FACT_B), s.FACT_TOPIC_ID), ((s.FACT_B, s.FACT_D), s.FACT_BROKER):
                for column in columns:
                    here = kind == wanted
                    rows[here, column] = through(strings, rows[here, column])
            tables.append(rows)
            serials.append(self._flows.serials(rows[:, s.FACT_SLOT]))
            order.append(np.arange(len(rows)))
        rows = np.concatenate(tables)
        return rows[np.lexsort((np.concatenate(order), np.concatenate(serials), rows[:, s.FACT_COMPLETED_BY]))]

    def _leaders(self, shards: Sequence[ShardResult]) -> np.ndarray:
        tables, serials = [], []
        for known, ended in zip(self._shards, shards, strict=True):
            rows = ended.leaders.copy()
            for column in (s.L_TOPIC, s.L_TOPIC_ID):
                rows[:, column] = through(known.strings, rows[:, column])
            rows[:, s.L_ISR] = through(known.other_lists(rows[:, s.L_ISR], self.names), rows[:, s.L_ISR])
            tables.append(rows)
            serials.append(self._flows.serials(rows[:, s.L_SLOT]))
        rows = np.concatenate(tables)
        return rows[np.lexsort((np.concatenate(serials), rows[:, s.L_COMPLETED_BY]))]

    def _zookeeper(self, shards: Sequence[ShardResult]) -> tuple[ZooKeeper, ...]:
        """In order, each with the number of its connection."""
        events = []
        for event in (event for ended in shards for event in ended.zookeeper):
            number = self.connections(np.array([event.slot]), np.array([event.client_side]))
            events.append(event._replace(slot=int(number[0])))
        return tuple(sorted(events, key=lambda event: (event.completed_by, self.names.serials[event.slot])))

    def _open(self, shards: Sequence[ShardResult]) -> np.ndarray:
        """Open requests of all shards, with numbers in place of slots and symbols."""
        parts = [np.zeros((0, 6), np.int64)]
        for known, ended in zip(self._shards, shards, strict=True):
            if len(ended.open):
                number = self.connections(ended.open[:, 0], ended.open[:, 1])
                client = through(known.strings, ended.open[:, 6])
                parts.append(np.column_stack([number, ended.open[:, 2:6], client]))
        every = np.concatenate(parts)
        result: np.ndarray = every[every[:, 0] >= 0]
        return result

    # -- connections --------------------------------------------------------------------------------------------------
    def connections(self, slots: np.ndarray, clients: np.ndarray) -> np.ndarray:
        """The number of each slot's connection; `clients`: which side of it asks."""
        top = int(slots.max(initial=-1)) + 1
        if top > len(self._slots):
            larger = np.full(max(top, 2 * len(self._slots)), -1, np.int64)
            larger[: len(self._slots)] = self._slots
            self._slots = larger
        numbers: np.ndarray = self._slots[slots]
        new = numbers < 0
        if new.any():
            fresh, where = np.unique(slots[new], return_index=True)
            self._slots[fresh] = [
                self._number(slot, side)
                for slot, side in zip(fresh.tolist(), clients[new][where].tolist(), strict=True)
            ]
            numbers = self._slots[slots]
        return numbers

    def _number(self, slot: int, side: int) -> int:
        a, b, reuse, serial = self._flows.end_points(slot)
        client, broker = (b, a) if side == 1 else (a, b)
        return self.names.connection(client, broker, reuse, serial)

    def _other_addresses(self, ended: Connections, numbers: np.ndarray) -> np.ndarray:
        """Numbers of strings: the addresses of other legs of these connections, with a blank between; NULL: none. Of
        each leg the client's comes first."""
        addresses = np.full(len(ended), s.NULL, np.int64)
        strings = self.names.strings
        others = self._flows.other_end_points(ended.number)
        if not others:
            return addresses
        for row, (slot, side) in enumerate(zip(ended.number.tolist(), ended["client_side"].tolist(), strict=True)):
            if slot in others:
                client, client_port, broker, broker_port = self.names.ends[int(numbers[row])]
                own = {end_point(strings[client], client_port), end_point(strings[broker], broker_port)}
                legs = [leg[::-1] if side == 1 else leg for leg in others[slot]]
                ends = dict.fromkeys(end_point(ip_text(address), port) for leg in legs for address, port in leg)
                addresses[row] = self.names.string(" ".join(end for end in ends if end not in own))
        return addresses

    def _ended(self, shards: Sequence[ShardResult]) -> Connections:
        """Return the connections that ended, in order; their slots may be given to others."""
        parts = []
        for known, ended in zip(self._shards, shards, strict=True):
            those = ended.connections
            if not len(those):
                continue
            numbers = self.connections(those.number, those["client_side"])
            strings = {name: through(known.strings, those[name]) for name in SYMBOLS}
            if ended.texts:
                texts = np.array([self.names.string(text) for text in ended.texts], np.int64)
                strings |= {name: through(texts, those[name]) for name in TEXTS}
            strings["other_addresses"] = self._other_addresses(those, numbers)
            parts.append(Connections(numbers, those.completed_by, {**those.columns, **strings}))
            self._slots[those.number] = -1
            self.names.over(numbers.tolist())
        if not parts:
            return shards[0].connections
        number, completed_by = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("number", "completed_by")
        )
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0].columns}
        serials = np.array([self.names.serials[connection] for connection in number.tolist()], np.int64)
        return Connections(number, completed_by, columns).take(np.lexsort((serials, completed_by)))


def _without_repeats(facts: np.ndarray) -> np.ndarray:
    """Facts of one window, each once (of brokers once a connection): what Metadata says of topics and brokers it says
    again and again. Offered API versions stay: `Offers` knows what a connection was offered in earlier windows too."""
    if len(facts) < 2:
        return facts
    content = facts[:, : s.FACT_COMPLETED_BY].copy()
    content[facts[:, s.FACT_KIND] != s.FACT_BROKER, s.FACT_SLOT] = 0
    _, first = np.unique(content, axis=0, return_index=True)
    fresh: np.ndarray = facts[:, s.FACT_KIND] == s.FACT_API_VERSION
    fresh[first] = True
    distinct_facts: np.ndarray = facts[fresh]
    return distinct_facts


def through(numbers: np.ndarray, symbols: np.ndarray) -> np.ndarray:
    """numbers[symbols], NULL staying NULL."""
    if not len(numbers):
        return symbols
    absent = symbols == s.NULL
    mapped: np.ndarray = numbers[np.where(absent, 0, symbols)]
    mapped[absent] = s.NULL
    return mapped
