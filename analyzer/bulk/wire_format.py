"""Rows that go from one process to another: exchanges as whole numbers, with what these stand for.

In: `Exchanges` of one share of a capture point. Out: `WireExchanges`, which can be stored; of those of all shares,
`Exchanges` again, in one order. Rules: nothing becomes a table before it is where it is written, so strings travel once
for all rows that have them; what is carried means the same whatever names the share gives afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np

from kwire.analyzer.bulk import concat, merging
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.rows import Exchanges, Names, through
from kwire.analyzer.frame.buffer_pool import BufferPool
from kwire.captures.packed import Packed, pack

_STRINGS: Final = (s.X_CLIENT_ID, s.X_GROUP, s.X_MEMBER, s.X_TRANSACTIONAL_ID, s.X_RACK_ID)
_CONNECTION: Final = s.X_COLUMNS
"""What the numbers of connections are called by, beside the columns."""
_SYMBOLS: Final = (*_STRINGS, s.X_TOPICS, s.X_ERRORS, _CONNECTION)
_PLAIN: Final = tuple(set(range(s.X_COLUMNS)) - {*_SYMBOLS})
_PART_STRINGS: Final = (s.P_TOPIC, s.P_TOPIC_ID)
_PART_SYMBOLS: Final = (*_PART_STRINGS, s.P_OWNER)
_PART_PLAIN: Final = tuple(set(range(s.P_COLUMNS)) - {*_PART_SYMBOLS, s.P_SET})


T = TypeVar("T")


class _Numbered(NamedTuple, Generic[T]):
    """Things by their numbers: the i-th thing is called numbers[i]."""

    numbers: np.ndarray
    things: list[T]

    def through(self, of: np.ndarray, anew: Sequence[int] | np.ndarray) -> np.ndarray:
        """Numbers of things as they are called anew."""
        called = np.zeros(int(self.numbers.max(initial=-1)) + 1, np.int64)
        called[self.numbers] = anew
        return through(called, of)


class WireExchanges(NamedTuple):
    """Exchanges of one window of a share, and their topic-partitions. `symbols` and `part_symbols`: columns whose
    numbers are the share's own (P_OWNER: the row among these), and which connection an exchange is of; what they stand
    for: strings, connections (name, ends, which of the capture point it is), lists of strings, lists of numbers."""

    symbols: Packed
    rest: Packed
    part_symbols: Packed
    part_rest: Packed
    strings: _Numbered[str]
    connections: _Numbered[tuple[str, tuple[int, int, int, int], int]]
    topics: _Numbered[tuple[int, ...]]
    errors: _Numbered[tuple[int, ...]]

    @property
    def rows(self) -> int:
        """How many exchanges."""
        return self.symbols.rows


def to_wire(rows: Exchanges) -> WireExchanges:
    """To be called before numbers of connections are given again (`Names.release`)."""
    names, x, p = rows.names, rows.columns, rows.partitions
    own = np.stack([*(x[which] for which in _SYMBOLS[:-1]), rows.connection])
    topics, errors = (_used([x[which]], len(names.lists)) for which in (s.X_TOPICS, s.X_ERRORS))
    of_topics = [names.lists[number] for number in topics.tolist()]
    connections = _used([rows.connection], len(names.connections)).tolist()
    listed = np.array([*(topic for some in of_topics for topic in some)], np.int64)
    ends = np.array([(names.ends[number][0], names.ends[number][2]) for number in connections], np.int64).ravel()
    strings = _used(
        [*(x[which] for which in _STRINGS), *(p[which] for which in _PART_STRINGS), listed, ends], len(names.strings)
    )
    return WireExchanges(
        pack(own, range(len(_SYMBOLS)))._replace(which=np.array(_SYMBOLS)),
        pack(x, _PLAIN),
        pack(p, _PART_SYMBOLS),
        pack(p, _PART_PLAIN),
        _Numbered(strings, [names.strings[number] for number in strings.tolist()]),
        _Numbered(
            np.array(connections, np.int64),
            [(names.connections[number], names.ends[number], names.serials[number]) for number in connections],
        ),
        _Numbered(topics, of_topics),
        _Numbered(errors, [names.lists[number] for number in errors.tolist()]),
    )


def _used(columns: Sequence[np.ndarray], count: int) -> np.ndarray:
    """int64: the numbers below `count` that are in some columns, in order."""
    met = np.zeros(count + 1, np.bool_)
    for values in columns:
        met[np.where(values == s.NULL, count, values)] = True
    return np.flatnonzero(met[:count])


def from_wire(names: Names, shares: Sequence[Sequence[WireExchanges]], buffers: BufferPool) -> Exchanges:
    """Merge the windows of all shares into one order.

    The order is that of the packets that completed exchanges, then of the age of connections. names: has no names
    yet; buffers: pool of the columns' memory."""
    carried = [window for some in shares for window in some]
    strings = [np.array([names.string(thing) for thing in window.strings.things], np.int64) for window in carried]
    numbers: dict[int, int] = {}
    own = [_own(names, window, called, numbers) for window, called in zip(carried, strings, strict=True)]
    ends = np.cumsum([0, *(window.rows for window in carried)])
    symbols = np.concatenate([np.zeros((len(_SYMBOLS), 0), np.int64), *own], axis=1)
    connection = symbols[-1]
    completed_by = np.concatenate(
        [np.zeros(0, np.int64), *(window.rest.column(s.X_COMPLETED_BY) for window in carried)]
    )
    age = np.array(names.serials, np.int64)[connection]
    begins = np.cumsum([0, *(sum(window.rows for window in some) for some in shares)], dtype=np.int64)
    place = concat.places(begins, merging.Orders(completed_by, connection, age))
    x = buffers.numbers(s.X_COLUMNS, len(place))
    for which, values in zip(_SYMBOLS[:-1], symbols[:-1], strict=True):
        x[which, place] = values
    for window, begin, end in zip(carried, ends[:-1], ends[1:], strict=True):
        window.rest.into(x, place[begin:end])
    ordered = np.empty_like(connection)
    ordered[place] = connection
    return Exchanges(x, ordered, _parts(carried, strings, ends, place, buffers), names)


def _own(names: Names, window: WireExchanges, strings: np.ndarray, numbers: dict[int, int]) -> np.ndarray:
    """int64[len(_SYMBOLS), n]: symbols as they are called anew; `strings`: those of its strings, `numbers`: those of
    connections by which of the capture point they are."""

    def listed(some: tuple[int, ...]) -> int:
        return names.list_of(tuple(window.strings.through(np.array(some, np.int64), strings).tolist()))

    columns = {which: window.strings.through(window.symbols.column(which), strings) for which in _STRINGS}
    connections = [_number(names, window, known, strings, numbers) for known in window.connections.things]
    columns |= {
        s.X_TOPICS: window.topics.through(
            window.symbols.column(s.X_TOPICS), [listed(some) for some in window.topics.things]
        ),
        s.X_ERRORS: window.errors.through(
            window.symbols.column(s.X_ERRORS), [*map(names.list_of, window.errors.things)]
        ),
        _CONNECTION: window.connections.through(window.symbols.column(_CONNECTION), connections),
    }
    return np.stack([columns[which] for which in _SYMBOLS])


def _number(
    names: Names,
    window: WireExchanges,
    known: tuple[str, tuple[int, int, int, int], int],
    strings: np.ndarray,
    numbers: dict[int, int],
) -> int:
    """Return the new number of a connection."""
    name, (client, port, broker, other), serial = known
    if serial not in numbers:
        numbers[serial] = len(names.serials)
        client, broker = window.strings.through(np.array([client, broker]), strings).tolist()
        names.connections.append(name)
        names.ends.append((client, port, broker, other))
        names.serials.append(serial)
    return numbers[serial]


def _parts(
    carried: Sequence[WireExchanges],
    strings: Sequence[np.ndarray],
    ends: np.ndarray,
    place: np.ndarray,
    buffers: BufferPool,
) -> np.ndarray:
    """int64[P_COLUMNS, m]: topic-partitions in the order of their exchanges, whose places are known."""
    none = np.zeros(0, np.int64)
    owner = np.concatenate(
        [none, *(window.part_symbols.column(s.P_OWNER) + end for window, end in zip(carried, ends[:-1], strict=True))]
    )
    owner = place[owner]
    places = np.empty_like(owner)
    merging.place_parts(owner, False, np.empty(len(place), np.int64), places)
    p = buffers.numbers(s.P_COLUMNS, len(owner))
    p[s.P_SET] = s.NULL
    p[s.P_OWNER, places] = owner
    begin = 0
    for window, called in zip(carried, strings, strict=True):
        own_places = places[begin : begin + window.part_symbols.rows]
        begin += len(own_places)
        window.part_rest.into(p, own_places)
        for which in _PART_STRINGS:
            p[which, own_places] = window.strings.through(window.part_symbols.column(which), called)
    return p
