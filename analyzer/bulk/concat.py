"""Concatenate the exchanges of all shards that ended in one window, in one order.

In: a `ShardResult` of each shard, its symbols' numbers in the capture point, and the object that gives numbers to
connections and lists (`Naming`). Out: the columns of all exchanges and of their topic-partitions. Rules: rows are in
order of the packet that completed them, then of the age of their connection, however many shards there are; results of
shards are not changed. Work on rows is done piece by piece, in parallel if there are threads (`Each`); only naming new
things and finding each row's position is serial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np

from kwire.analyzer.bulk import merging as m
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.shard_result import ShardResult
from kwire.analyzer.frame.arrow import distinct
from kwire.analyzer.frame.buffer_pool import BufferPool

Each: TypeAlias = Callable[[Callable[[Any], None], Sequence[Any]], None]
"""Does something with each of some things, in any order, perhaps several at a time; back when all is done."""

_PIECE: Final = 1 << 13
"""Rows that one thread takes at a time; a window of small messages has some tens of thousands, and each piece costs a
call. Fewer altogether are not worth another thread."""


def one_after_another(work: Callable[[Any], None], things: Sequence[Any]) -> None:
    """Work in one thread, one piece after the other."""
    for thing in things:
        work(thing)


class Helpers:
    """Threads that help the one that puts windows together, so many of them (`Each`)."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "kwire-rows") if threads > 0 else None

    def each(self, work: Callable[[Any], None], things: Sequence[Any]) -> None:
        """Call `work` for each argument, in this thread too: no call waits for a thread that has not begun."""
        if self._pool is None or len(things) < 2:
            one_after_another(work, things)
            return
        *others, last = things
        coming = [self._pool.submit(work, thing) for thing in others]
        try:
            work(last)
            for argument, future in zip(reversed(others), reversed(coming), strict=True):
                if future.cancel():
                    work(argument)
        finally:
            begun = [future for future in coming if not future.cancel()]
            wait(begun)
        for future in begun:
            future.result()

    def leave(self) -> None:
        """They are needed no more."""
        if self._pool is not None:
            self._pool.shutdown()


class Naming(Protocol):
    """Gives numbers of the capture point to symbols and connections of shards."""

    def numbers(self, shard: int) -> m.Numbers:
        """Return the capture point's numbers of the shard's symbols."""
        ...

    def connections(self, slots: np.ndarray, clients: np.ndarray) -> np.ndarray:
        """Numbers of the connections in some slots; `clients`: which side of each asks."""
        ...

    def named(self) -> tuple[np.ndarray, np.ndarray]:
        """int64 each: number of the connection in each slot, -1: none yet; age of each number's connection."""
        ...

    def name_lists(self, shard: int, topics: np.ndarray, others: np.ndarray) -> None:
        """Give these symbols of a shard's lists numbers: of lists of strings, and others."""
        ...


class ConcatColumns(NamedTuple):
    """The columns of `rows.Exchanges`: int64[X_COLUMNS, n], connection int64[n], int64[P_COLUMNS, parts], and those
    that Fetch takes out of its session."""

    exchanges: np.ndarray
    connection: np.ndarray
    parts: np.ndarray
    forgotten: np.ndarray


class _Piece(NamedTuple):
    """Some rows of one shard: [begin, end) of its own, from `at` on among those of all."""

    shard: int
    begin: int
    end: int
    at: int

    @property
    def rows(self) -> slice:
        """Position of its rows among those of all shards."""
        return slice(self.at, self.at + self.end - self.begin)


def _kinds(columns: int, which: dict[int, int]) -> np.ndarray:
    kinds = np.full(columns, m.SAME, np.int64)
    for column, kind in which.items():
        kinds[column] = kind
    return kinds


_EXCHANGES: Final = _kinds(
    s.X_COLUMNS,
    {
        **dict.fromkeys((s.X_CLIENT_ID, s.X_GROUP, s.X_MEMBER, s.X_TRANSACTIONAL_ID, s.X_RACK_ID), m.STRING),
        s.X_TOPICS: m.TOPICS,
        s.X_ERRORS: m.OTHERS,
    },
)
_PARTS: Final = _kinds(s.P_COLUMNS, {s.P_OWNER: m.OWNER, s.P_TOPIC: m.STRING, s.P_TOPIC_ID: m.STRING, s.P_SET: m.SET})
_NO_OWNERS: Final = np.zeros(0, np.int64)


class Concatenation:
    """One window being put together: see `concat_shards`."""

    def __init__(self, shards: Sequence[ShardResult], naming: Naming, each: Each, buffers: BufferPool) -> None:
        self._naming = naming
        self._buffers = buffers
        self._rows = [_by_rows(ended.exchanges) for ended in shards]
        self._parts = [_by_rows(ended.parts) for ended in shards]
        few = sum(map(len, self._rows)) + sum(map(len, self._parts)) < _PIECE
        self._each = one_after_another if few else each
        self._begins, self._part_begins = _begins(self._rows), _begins(self._parts)

    def all(self) -> ConcatColumns:
        pieces, part_pieces = list(_pieces(self._rows)), list(_pieces(self._parts))
        orders = self._orders(pieces)
        place = places(self._begins, orders)
        owner, forgotten = self._owners(part_pieces, place)
        count = len(place)
        part_places, next_of = [], np.empty(count, np.int64)
        for gone in (False, True) if forgotten else (False,):
            part_place = np.empty(len(owner), np.int64)
            m.place_parts(owner, gone, next_of, part_place)
            part_places.append(part_place)
        x = self._buffers.numbers(s.X_COLUMNS, count)
        parts = [self._buffers.numbers(s.P_COLUMNS, len(owner) - forgotten)]
        if forgotten:
            parts.append(self._buffers.numbers(s.P_COLUMNS, forgotten))
        numbers = [self._naming.numbers(shard) for shard in range(len(self._rows))]
        connection = np.empty(count, np.int64)

        def fill(what: tuple[_Piece, bool]) -> None:
            piece, of_parts = what
            known = numbers[piece.shard]
            if not of_parts:
                rows = self._rows[piece.shard][piece.begin : piece.end]
                m.move(rows, place[piece.rows], _EXCHANGES, known, _NO_OWNERS, x)
                connection[place[piece.rows]] = orders.connection[piece.rows]
                return
            rows = self._parts[piece.shard][piece.begin : piece.end]
            for places, out in zip(part_places, parts, strict=True):
                m.move(rows, places[piece.rows], _PARTS, known, owner[piece.rows], out)

        self._each(fill, [*((piece, False) for piece in pieces), *((piece, True) for piece in part_pieces)])
        return ConcatColumns(x, connection, parts[0], parts[1] if forgotten else parts[0][:, :0])

    def _orders(self, pieces: list[_Piece]) -> m.Orders:
        """Read the columns that order all shards' exchanges; name connections and lists that are new."""
        orders = m.Orders(*np.empty((3, int(self._begins[-1])), np.int64))
        slots, serials = self._naming.named()
        numbers = [self._naming.numbers(shard) for shard in range(len(self._rows))]
        fresh: list[tuple[int, np.ndarray, np.ndarray]] = []

        def look(piece: _Piece) -> None:
            rows = self._rows[piece.shard][piece.begin : piece.end]
            wanted = np.empty((2, len(rows)), np.int64)
            piece_orders = m.Orders(*(values[piece.rows] for values in orders))
            topics, others = m.look(rows, slots, serials, numbers[piece.shard], piece_orders, wanted)
            if topics or others:
                fresh.append((piece.shard, wanted[0, :topics], wanted[1, :others]))

        self._each(look, pieces)
        self._name_connections(orders)
        for shard in range(len(self._rows)):
            topics, others = (
                distinct(np.concatenate([_NO_OWNERS, *(entry[which] for entry in fresh if entry[0] == shard)]))
                for which in (1, 2)
            )
            if len(topics) or len(others):
                self._naming.name_lists(shard, topics, others)
        return orders

    def _name_connections(self, orders: m.Orders) -> None:
        """Name connections that have no number yet, in order of the shards' rows."""
        new = np.flatnonzero(orders.connection < 0)
        if not len(new):
            return
        ends = np.searchsorted(new, self._begins)
        slots, sides = (
            np.concatenate(
                [
                    rows[new[ends[shard] : ends[shard + 1]] - self._begins[shard], column]
                    for shard, rows in enumerate(self._rows)
                ]
            )
            for column in (s.X_SLOT, s.X_CLIENT_SIDE)
        )
        orders.connection[new] = self._naming.connections(slots, sides)
        orders.age[new] = self._naming.named()[1][orders.connection[new]]

    def _owners(self, pieces: list[_Piece], place: np.ndarray) -> tuple[np.ndarray, int]:
        """`merging.look_at_parts` of all shards."""
        owner = np.empty(int(self._part_begins[-1]), np.int64)
        forgotten: list[int] = []

        def look(piece: _Piece) -> None:
            rows = self._parts[piece.shard][piece.begin : piece.end]
            shard_places = place[self._begins[piece.shard] : self._begins[piece.shard + 1]]
            forgotten.append(m.look_at_parts(rows, shard_places, owner[piece.rows]))

        self._each(look, pieces)
        return owner, sum(forgotten)


def concat_shards(shards: Sequence[ShardResult], naming: Naming, each: Each, buffers: BufferPool) -> ConcatColumns:
    """The exchanges of all shards in one order, symbols numbered for the capture point; `buffers`: whose memory the
    columns are in."""
    return Concatenation(shards, naming, each, buffers).all()


def _by_rows(columns: np.ndarray) -> np.ndarray:
    """int64[n, columns], row by row, of int64[columns, n]; shards hand out just that, so nothing is copied."""
    return np.ascontiguousarray(columns.T)


def _begins(tables: Sequence[np.ndarray]) -> np.ndarray:
    """int64[len(tables) + 1]: where the rows of each begin among all."""
    return np.cumsum([0, *map(len, tables)], dtype=np.int64)


def _pieces(tables: Sequence[np.ndarray]) -> Iterator[_Piece]:
    at = 0
    for shard, rows in enumerate(tables):
        for begin in range(0, len(rows), _PIECE):
            end = min(begin + _PIECE, len(rows))
            yield _Piece(shard, begin, end, at)
            at += end - begin


def places(begins: np.ndarray, orders: m.Orders) -> np.ndarray:
    """Where each row stands when all are ordered; `begins`: of lists that are mostly in order."""
    place = np.empty(len(orders.completed_by), np.int64)
    if not m.merge(begins, np.zeros(len(begins) - 1, np.int64), orders.completed_by, orders.age, place):
        place[np.lexsort((orders.age, orders.completed_by))] = np.arange(len(place))
    return place
