"""Exchanges of one window after the other in order of their requests, however many wait for one that is still open.

In: the exchanges of each window, as columns (`PackedExchanges`). Out: `Exchange` objects, made a few thousand at a
time. Rules: an exchange waits while one that began earlier may still end; what waits is packed, beyond `HELD_ROWS` in
files without a name; of each that waits only its place in the order, 24 bytes, stays in memory.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.bulk.rows import Message, Window
from kwire.analyzer.frame import spill
from kwire.analyzer.messages.exchange import Exchange
from kwire.analyzer.pipeline.drive import Sink

ROWS_AT_ONCE: Final = 4096
"""Rows made Python objects at a time: each takes some kilobytes."""

HELD_ROWS: Final = 1 << 14
"""Exchanges that wait in memory."""

Messages = tuple[Message | None, Message | None]
"""Request and response of an exchange, where they are kept."""

_SIDES: Final = ("request", "response")
_NO_PARTITIONS: Final[list[dict[str, Any]]] = []


class PackedExchanges:
    """Exchanges of one window: columns until they are handed out.

    first, serial   int64[n]: index of the first packet of each, and which connection of the capture point it is of
    rows            their rows of the table `exchanges`, in plain types
    messages        their messages
    partitions      their rows of that table, in the same order; None: nobody asked for them
    ends            int64[n + 1]: where those of each begin, and the last end
    """

    def __init__(
        self,
        first: np.ndarray,
        serial: np.ndarray,
        rows: pa.Table,
        messages: Sequence[Messages],
        partitions: pa.Table | None = None,
        ends: np.ndarray | None = None,
    ) -> None:
        self.first, self.serial = first, serial
        self._rows = rows
        self._messages: Sequence[Messages] | None = messages
        self._partitions = partitions
        self._ends = np.zeros(len(first) + 1, np.int64) if ends is None else ends
        self._stored: _Stored | None = None

    def __len__(self) -> int:
        return len(self.first)

    def exchanges(self, rows: np.ndarray, make: Callable[[dict[str, Any], Messages], Exchange]) -> Iterator[Exchange]:
        """Yield some exchanges; rows int64: ascending. `make`: of a row and the messages."""
        if self._stored is not None:
            for table in self._stored.tables(rows):
                yield from _unpacked(table, make)
            return
        table = self._rows if len(rows) == len(self._rows) else self._rows.take(pa.array(rows))
        assert self._messages is not None
        parts = itertools.repeat(_NO_PARTITIONS) if self._partitions is None else self._parts(rows)
        for number, row, partitions in zip(rows.tolist(), _dicts(table), parts, strict=False):
            exchange = make(row, self._messages[number])
            exchange.partitions = partitions
            yield exchange

    def _parts(self, rows: np.ndarray) -> Iterator[list[dict[str, Any]]]:
        """The partitions of each of some rows."""
        assert self._partitions is not None
        counts = np.diff(self._ends)[rows]
        ends = np.cumsum(counts)
        begin = 0
        while begin < len(rows):
            before = int(ends[begin - 1]) if begin else 0
            until = max(int(np.searchsorted(ends, before + ROWS_AT_ONCE, side="right")), begin + 1)
            listed = list(_dicts(self._partitions.take(pa.array(_ranges(self._ends, rows[begin:until])))))
            at = 0
            for count in counts[begin:until].tolist():
                yield listed[at : at + count]
                at += count
            begin = until

    @property
    def is_stored(self) -> bool:
        """They are in a file."""
        return self._stored is not None

    def keep(self, rows: np.ndarray, heap: spill.Heap | None) -> None:
        """Let go of all others; rows int64: ascending. `heap`: where those that stay go to; None: memory has room."""
        if self._stored is not None:
            self._stored.keep(rows)
        elif heap is not None:
            self._stored = _Stored(self._packed(rows), heap)
            self._rows, self._partitions, self._messages = self._rows[:0], None, None
        else:
            assert self._messages is not None
            self._rows = _without_nulls(self._rows.take(pa.array(rows)))
            self._messages = [self._messages[row] for row in rows.tolist()]
            if self._partitions is not None:
                self._partitions = self._partitions.take(pa.array(_ranges(self._ends, rows)))
            self._ends = np.append(0, np.cumsum(np.diff(self._ends)[rows]))
        self.first, self.serial = self.first[rows], self.serial[rows]

    def _packed(self, rows: np.ndarray) -> Iterator[pa.Table]:
        """Tables of `ROWS_AT_ONCE` rows each, with columns for messages and partitions."""
        assert self._messages is not None
        for begin in range(0, len(rows), ROWS_AT_ONCE):
            part = rows[begin : begin + ROWS_AT_ONCE]
            table = self._rows.take(pa.array(part))
            for number, side in enumerate(_SIDES):
                of_side = [self._messages[row][number] for row in part.tolist()]
                for name in Message._fields:
                    values = [None if message is None else getattr(message, name) for message in of_side]
                    table = table.append_column(
                        f"{side}.{name}", pa.array(values, _MESSAGE_TYPES.get(name, pa.int64()))
                    )
            if self._partitions is not None:
                counts = np.diff(self._ends)[part]
                content = self._partitions.take(pa.array(_ranges(self._ends, part))).combine_chunks().to_struct_array()
                lists = pa.ListArray.from_arrays(np.append(0, np.cumsum(counts)).astype(np.int32), _as_array(content))
                table = table.append_column("partitions", lists)
            yield _without_nulls(table)


_MESSAGE_TYPES: Final = {"data": pa.binary(), "complete": pa.bool_(), "request": pa.bool_()}


def _dicts(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Rows as dicts. (`to_pylist` makes an object of each null, and most columns have nothing else.)"""
    names, count = table.column_names, table.num_rows
    columns = [
        itertools.repeat(None, count) if column.null_count == count else column.to_pylist()
        for column in table.itercolumns()
    ]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def _as_array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _ranges(ends: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """int64: the numbers from ends[row] up to ends[row + 1] of each row."""
    counts = np.diff(ends)[rows]
    before = np.append(0, np.cumsum(counts))[:-1]
    within: np.ndarray = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(before, counts)
    within += np.repeat(ends[rows], counts)
    return within


def _without_nulls(table: pa.Table) -> pa.Table:
    """Columns of nulls take no memory."""
    for number, name in enumerate(table.column_names):
        if table.num_rows and table.column(number).null_count == table.num_rows:
            table = table.set_column(number, name, pa.nulls(table.num_rows))
    return table


def _unpacked(table: pa.Table, make: Callable[[dict[str, Any], Messages], Exchange]) -> Iterator[Exchange]:
    for row in _dicts(table):
        request, response = (
            None if row[f"{side}.data"] is None else Message(*(row[f"{side}.{name}"] for name in Message._fields))
            for side in _SIDES
        )
        partitions = row.get("partitions") or []
        exchange = make(
            {name: row[name] for name in row if "." not in name and name != "partitions"}, (request, response)
        )
        exchange.partitions = partitions
        yield exchange


class _Stored:
    """Packed exchanges in a file. Raises DatasetError where there is no room."""

    def __init__(self, tables: Iterator[pa.Table], heap: spill.Heap) -> None:
        self._heap = heap
        self._at: list[tuple[int, int]] = []
        self._begins = [0]
        for table in tables:
            memory = io.BytesIO()
            with pa.ipc.new_stream(memory, table.schema, options=_COMPRESSED) as stream:
                stream.write_table(table)
            self._at.append(heap.put(memory.getvalue()))
            self._begins.append(self._begins[-1] + table.num_rows)
        self._stays = np.arange(self._begins[-1])

    def keep(self, rows: np.ndarray) -> None:
        """Some of those that stayed so far are left."""
        self._stays = self._stays[rows]

    def tables(self, rows: np.ndarray) -> Iterator[pa.Table]:
        """Read some rows back, int64, ascending."""
        wanted = self._stays[rows]
        parts = np.searchsorted(self._begins, wanted, side="right") - 1
        for part in np.unique(parts).tolist():
            table = pa.ipc.open_stream(self._heap.get(*self._at[part])).read_all()
            yield table.take(pa.array(wanted[parts == part] - self._begins[part]))


_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4")


class InRequestOrder(Sink[Exchange]):
    """Hands out exchanges in order of their requests.

    of      the exchanges of a window
    make    an exchange of a row and its messages, at the time it is handed out
    """

    def __init__(
        self, of: Callable[[Window], PackedExchanges], make: Callable[[dict[str, Any], Messages], Exchange]
    ) -> None:
        self._of, self._make = of, make
        self._waiting: list[PackedExchanges] = []
        self._heap = spill.Heap()

    def take(self, window: Window) -> Iterator[Exchange]:
        """Return the exchanges that no open one began before."""
        self._waiting.append(self._of(window))
        window.names.release()
        yield from self._handed_out(window.oldest)

    def finish(self) -> Iterator[Exchange]:
        """Return those that waited for one that never ended."""
        yield from self._handed_out(None)

    def _handed_out(self, oldest: int | None) -> Iterator[Exchange]:
        """Return the exchanges whose first packet came before `oldest`; None: all."""
        waiting = self._waiting
        ready = [
            np.arange(len(packed)) if oldest is None else np.flatnonzero(packed.first < oldest) for packed in waiting
        ]
        owner = np.repeat(np.arange(len(waiting)), [len(rows) for rows in ready])
        rows = np.concatenate([_NONE, *ready])
        keys = [
            np.concatenate([_NONE, *(getattr(packed, name)[some] for packed, some in zip(waiting, ready, strict=True))])
            for name in ("first", "serial")
        ]
        order = np.lexsort((keys[1], keys[0]))
        for begin in range(0, len(order), ROWS_AT_ONCE):
            part = order[begin : begin + ROWS_AT_ONCE]
            part_owner, part_rows = owner[part], rows[part]
            exchanges: list[Exchange | None] = [None] * len(part)
            for number in np.unique(part_owner).tolist():
                places = np.flatnonzero(part_owner == number)
                places = places[np.argsort(part_rows[places], kind="stable")]
                unpacked = waiting[number].exchanges(part_rows[places], self._make)
                for place, exchange in zip(places.tolist(), unpacked, strict=True):
                    exchanges[place] = exchange
            exchanges.reverse()
            while exchanges:
                yield exchanges.pop()  # type: ignore[misc]
        self._let_go(ready)

    def _let_go(self, ready: Sequence[np.ndarray]) -> None:
        left = []
        held = 0
        for packed, rows in zip(self._waiting, ready, strict=True):
            if len(rows) == len(packed):
                continue
            if len(rows) or packed is self._waiting[-1]:
                stays = np.ones(len(packed), np.bool_)
                stays[rows] = False
                is_much = held + len(packed) - len(rows) > HELD_ROWS
                packed.keep(np.flatnonzero(stays), self._heap if is_much else None)
            held += len(packed)
            left.append(packed)
        self._waiting = left
        if not any(packed.is_stored for packed in left):
            self._heap = spill.Heap()


class AsTheyEnd(Sink[Exchange]):
    """Hands out exchanges as they complete. `of`, `make`: as of `InRequestOrder`."""

    def __init__(
        self, of: Callable[[Window], PackedExchanges], make: Callable[[dict[str, Any], Messages], Exchange]
    ) -> None:
        self._of, self._make = of, make

    def take(self, window: Window) -> Iterator[Exchange]:
        """Return the exchanges that ended in a window."""
        packed = self._of(window)
        for begin in range(0, len(packed), ROWS_AT_ONCE):
            yield from packed.exchanges(np.arange(begin, min(begin + ROWS_AT_ONCE, len(packed))), self._make)
        window.names.release()


_NONE: Final = np.zeros(0, np.int64)
