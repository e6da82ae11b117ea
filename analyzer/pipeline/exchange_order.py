"""Exchanges of one window after the other in order of their requests, however many wait for one that is still open.

In: the exchanges of each window, as columns (`PackedExchanges`). Out: `ExchangeBlock`s of a few thousand, whose
`Exchange` objects are made when they are asked for. Rules: an exchange waits while one that began earlier may still
end; what waits is packed, beyond `HELD_ROWS` in files without a name; of each that waits only its place in the order,
24 bytes, stays in memory.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.bulk.message_columns import MessageColumns
from kwire.analyzer.bulk.rows import Message, Window
from kwire.analyzer.common import compute
from kwire.analyzer.frame import arrow, spill
from kwire.analyzer.messages.exchange import Exchange
from kwire.analyzer.pipeline.drive import Sink
from kwire.captures.kernels import NULL

ROWS_AT_ONCE: Final = 4096
"""Rows made Python objects at a time: each takes some kilobytes."""

HELD_ROWS: Final = 1 << 14
"""Exchanges that wait in memory."""

_FEW: Final = 16
"""One value of a column alone costs as much as so many one after the other."""

Messages = tuple[Message | None, Message | None]
"""Request and response of an exchange, where they are kept."""

_SIDES: Final = ("request", "response")
_PARTITIONS: Final = "partitions"
_NO_PARTITIONS: Final[list[dict[str, Any]]] = []


class ExchangeBlock:
    """Some exchanges in order: columns, of which objects are made only where they are asked for.

    rows            their rows of the table `exchanges`, in plain types
    messages        their requests and responses
    partitions      their rows of that table, in the same order; None: nobody asked for them
    ends            int64[n + 1]: where those of each begin, and the last end
    """

    def __init__(
        self,
        rows: pa.Table,
        messages: tuple[MessageColumns, MessageColumns],
        partitions: pa.Table | None = None,
        ends: np.ndarray | None = None,
    ) -> None:
        self.rows = rows
        self.messages = messages
        self._partitions = partitions
        self._ends = np.zeros(len(messages[0]) + 1, np.int64) if ends is None else ends

    def __len__(self) -> int:
        return len(self.messages[0])

    def values(self, name: str, rows: Sequence[int]) -> list[Any]:
        """The values of a column in some rows."""
        column = self.rows.column(name)
        if len(rows) * _FEW < len(self):
            return [column[row].as_py() for row in rows]
        values = list(arrow.python_values(column))
        return [values[row] for row in rows]

    def numbers(self, name: str) -> np.ndarray:
        """int64[n]: a column of integers, or of times in us since 1970, NULL where there is none."""
        return arrow.numbers(arrow.as_array(self.rows.column(name)), NULL)

    def take(self, rows: np.ndarray) -> ExchangeBlock:
        """Some of the exchanges, in any order."""
        requests, responses = self.messages
        messages = requests.take(rows), responses.take(rows)
        table = compute.take(self.rows, rows)
        if self._partitions is None:
            return ExchangeBlock(table, messages)
        partitions = compute.take(self._partitions, _ranges(self._ends, rows))
        return ExchangeBlock(table, messages, partitions, np.append(0, np.cumsum(np.diff(self._ends)[rows])))

    def has_elements(self, name: str) -> np.ndarray:
        """bool[n]: which rows have a list with elements in a column of lists."""
        lists = arrow.as_array(self.rows.column(name))
        if pa.types.is_null(lists.type):
            return np.zeros(len(self), np.bool_)
        has: np.ndarray = arrow.list_lengths(lists) > 0
        return has

    def has_partitions(self) -> np.ndarray:
        """bool[n]: which exchanges have rows of partitions."""
        has: np.ndarray = np.diff(self._ends) > 0
        return has

    def exchanges(self, make: Callable[[dict[str, Any], Messages], Exchange]) -> Iterator[Exchange]:
        """Yield the exchanges. `make`: of a row and the messages."""
        parts = itertools.repeat(_NO_PARTITIONS) if self._partitions is None else self._parts()
        rows = zip(*self.messages, arrow.row_dicts(self.rows), parts, strict=False)
        for request, response, row, partitions in rows:
            exchange = make(row, (request, response))
            exchange.partitions = partitions
            yield exchange

    def _parts(self) -> Iterator[list[dict[str, Any]]]:
        """The partitions of each exchange."""
        assert self._partitions is not None
        counts, ends = np.diff(self._ends), self._ends[1:]
        begin = 0
        while begin < len(self):
            before = int(self._ends[begin])
            until = max(int(np.searchsorted(ends, before + ROWS_AT_ONCE, side="right")), begin + 1)
            listed = list(arrow.row_dicts(self._partitions.slice(before, int(self._ends[until]) - before)))
            at = 0
            for count in counts[begin:until].tolist():
                yield listed[at : at + count]
                at += count
            begin = until

    @classmethod
    def joined(cls, blocks: Sequence[ExchangeBlock]) -> ExchangeBlock:
        """One block after the other."""
        if len(blocks) == 1:
            return blocks[0]
        requests, responses = zip(*(block.messages for block in blocks), strict=True)
        messages = MessageColumns.joined(requests), MessageColumns.joined(responses)
        rows = _concat([block.rows for block in blocks])
        having = [block._partitions for block in blocks if block._partitions is not None]
        if not having:
            return cls(rows, messages)
        counts = np.concatenate([np.diff(block._ends) for block in blocks])
        return cls(rows, messages, _concat(having), np.append(0, np.cumsum(counts)))

    def without_nulls(self) -> ExchangeBlock:
        """Return the block with columns of nulls that take no memory."""
        return ExchangeBlock(_without_nulls(self.rows), self.messages, self._partitions, self._ends)

    def packed(self) -> pa.Table:
        """All of it as one table: columns for messages and partitions beside those of `rows`."""
        table = self.rows
        for side, messages in zip(_SIDES, self.messages, strict=True):
            if messages.is_empty:
                continue
            table = table.append_column(f"{side}.data", pa.array(messages.data.tolist(), pa.binary()))
            for number, values in enumerate(messages.numbers):
                table = table.append_column(f"{side}.{number}", arrow.integers(values, pa.int64()))
        if self._partitions is not None:
            content = arrow.as_array(self._partitions.combine_chunks().to_struct_array())
            lists = pa.ListArray.from_arrays(self._ends.astype(np.int32), content)
            table = table.append_column(_PARTITIONS, lists)
        return _without_nulls(table)

    @classmethod
    def unpacked(cls, table: pa.Table) -> ExchangeBlock:
        """The block of a table that `packed` made, or of some of its rows."""
        requests, responses = (cls._unpacked(table, side) for side in _SIDES)
        messages = requests, responses
        rows = table.select([name for name in table.column_names if "." not in name and name != _PARTITIONS])
        if _PARTITIONS not in table.column_names:
            return cls(rows, messages)
        lists = arrow.as_array(table.column(_PARTITIONS))
        if pa.types.is_null(lists.type):
            return cls(rows, messages)
        ends = np.append(0, np.cumsum(arrow.list_lengths(lists)))
        return cls(rows, messages, pa.Table.from_struct_array(lists.flatten()), ends)

    @staticmethod
    def _unpacked(table: pa.Table, side: str) -> MessageColumns:
        columns = MessageColumns.nothing(table.num_rows)
        if f"{side}.data" in table.column_names:
            columns.data[:] = table.column(f"{side}.data").to_pylist()
            for number, values in enumerate(columns.numbers):
                arrow.put_numbers(arrow.as_array(table.column(f"{side}.{number}")), NULL, values)
        return columns


def _concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables one after the other; columns of nulls take the type that others have."""
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="default")


class PackedExchanges:
    """Exchanges of one window: columns until they are handed out.

    first, serial   int64[n]: index of the first packet of each, and which connection of the capture point it is of
    block           the exchanges
    """

    def __init__(self, first: np.ndarray, serial: np.ndarray, block: ExchangeBlock) -> None:
        self.first, self.serial = first, serial
        self._held: ExchangeBlock | None = block
        self._stored: _Stored | None = None

    def __len__(self) -> int:
        return len(self.first)

    def block(self, rows: np.ndarray) -> ExchangeBlock:
        """Some exchanges; rows int64: ascending."""
        if self._stored is not None:
            return ExchangeBlock.unpacked(self._stored.table(rows))
        assert self._held is not None
        return self._held if len(rows) == len(self._held) else self._held.take(rows)

    @property
    def is_stored(self) -> bool:
        """They are in a file."""
        return self._stored is not None

    def keep(self, rows: np.ndarray, heap: spill.Heap | None) -> None:
        """Let go of all others; rows int64: ascending. `heap`: where those that stay go to; None: memory has room."""
        if self._stored is not None:
            self._stored.keep(rows)
        else:
            assert self._held is not None
            if heap is None:
                self._held = self._held.take(rows).without_nulls()
            else:
                parts = (rows[begin : begin + ROWS_AT_ONCE] for begin in range(0, len(rows), ROWS_AT_ONCE))
                self._stored = _Stored(map(ExchangeBlock.packed, map(self._held.take, parts)), heap)
                self._held = None
        self.first, self.serial = self.first[rows], self.serial[rows]


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

    def table(self, rows: np.ndarray) -> pa.Table:
        """Read some rows back, int64, ascending."""
        wanted = self._stays[rows]
        parts = np.searchsorted(self._begins, wanted, side="right") - 1
        tables = []
        for part in np.unique(parts).tolist():
            table = pa.ipc.open_stream(self._heap.get(*self._at[part])).read_all()
            tables.append(compute.take(table, wanted[parts == part] - self._begins[part]))
        return _concat(tables)


_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4")


class InRequestOrder(Sink[ExchangeBlock]):
    """Hands out exchanges in order of their requests. `of`: the exchanges of a window."""

    def __init__(self, of: Callable[[Window], PackedExchanges]) -> None:
        self._of = of
        self._waiting: list[PackedExchanges] = []
        self._heap = spill.Heap()

    def take(self, window: Window) -> Iterator[ExchangeBlock]:
        """Return the exchanges that no open one began before."""
        self._waiting.append(self._of(window))
        window.names.release()
        yield from self._handed_out(window.oldest)

    def finish(self) -> Iterator[ExchangeBlock]:
        """Return those that waited for one that never ended."""
        yield from self._handed_out(None)

    def _handed_out(self, oldest: int | None) -> Iterator[ExchangeBlock]:
        """Return the exchanges whose first packet came before `oldest`; None: all."""
        waiting = self._waiting
        ready = [  # int32: all of a capture may wait
            np.arange(len(packed), dtype=np.int32)
            if oldest is None
            else np.flatnonzero(packed.first < oldest).astype(np.int32)
            for packed in waiting
        ]
        owner = np.repeat(np.arange(len(waiting), dtype=np.int32), [len(rows) for rows in ready])
        rows = np.concatenate([np.zeros(0, np.int32), *ready])
        order = self._order(ready)
        for begin in range(0, len(order), ROWS_AT_ONCE):
            part = order[begin : begin + ROWS_AT_ONCE]
            by_owner = np.lexsort((rows[part], owner[part]))  # as they can be taken
            part = part[by_owner]
            part_owner, part_rows = owner[part], rows[part]
            blocks = [
                waiting[number].block(part_rows[part_owner == number]) for number in arrow.distinct(part_owner).tolist()
            ]
            block = ExchangeBlock.joined(blocks)
            is_in_order = (by_owner[1:] > by_owner[:-1]).all()
            yield block if is_in_order else block.take(np.argsort(by_owner))
        self._let_go(ready)

    def _order(self, ready: Sequence[np.ndarray]) -> np.ndarray:
        """The order of the rows of `ready`, one window's behind the other's: by first packet and connection."""
        first, serial = (
            np.concatenate(
                [_NONE, *(getattr(packed, name)[some] for packed, some in zip(self._waiting, ready, strict=True))]
            )
            for name in ("first", "serial")
        )
        return np.lexsort((serial, first)).astype(np.int32)

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


class AsTheyEnd(Sink[ExchangeBlock]):
    """Hands out exchanges as they complete. `of`: as of `InRequestOrder`."""

    def __init__(self, of: Callable[[Window], PackedExchanges]) -> None:
        self._of = of

    def take(self, window: Window) -> Iterator[ExchangeBlock]:
        """Return the exchanges that ended in a window."""
        packed = self._of(window)
        for begin in range(0, len(packed), ROWS_AT_ONCE):
            yield packed.block(np.arange(begin, min(begin + ROWS_AT_ONCE, len(packed))))
        window.names.release()


_NONE: Final = np.zeros(0, np.int64)
