"""Raw messages of one side of exchanges, as columns: of a million small ones no object is made.

In: windows with the bytes of messages. Out: `MessageColumns`, and `WaitingMessages`, which has those whose exchanges
have not been handed on. A `Message` is made where one is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.rows import MESSAGE_NUMBERS, Message, Window

_COMPLETE, _DIRECTION, _LAST_NS = 0, 2, 7
_ORDINAL_BITS: Final = 40


class MessageColumns:
    """The message of each exchange on one side.

    data     object[n]: its bytes, None where there is no message
    numbers  int64[9, n]: its columns of `MESSAGE_NUMBERS`
    """

    def __init__(self, data: np.ndarray, numbers: np.ndarray) -> None:
        self.data, self.numbers = data, numbers

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[Message | None]:
        if self.is_empty:
            return iter([None] * len(self))
        columns = self.numbers.tolist()
        columns[_COMPLETE] = [value != 0 for value in columns[_COMPLETE]]
        columns[_DIRECTION] = [value == 0 for value in columns[_DIRECTION]]
        columns[_LAST_NS] = [None if value == s.NULL else value for value in columns[_LAST_NS]]
        rows = zip(self.data.tolist(), *columns, strict=True)
        return (None if row[0] is None else Message(*row) for row in rows)

    @property
    def is_empty(self) -> bool:
        """No exchange has a message on this side."""
        return not self.data.any()

    def take(self, rows: np.ndarray) -> MessageColumns:
        """Take the messages of some exchanges; rows: int64 or bool[n]."""
        return MessageColumns(self.data[rows], self.numbers[:, rows])

    @classmethod
    def nothing(cls, count: int) -> MessageColumns:
        """No messages of so many exchanges."""
        return cls(np.full(count, None, np.object_), np.zeros((len(MESSAGE_NUMBERS), count), np.int64))

    @classmethod
    def joined(cls, parts: Sequence[MessageColumns]) -> MessageColumns:
        """One after the other."""
        if len(parts) == 1:
            return parts[0]
        data = np.concatenate([part.data for part in parts])
        return cls(data, np.concatenate([part.numbers for part in parts], axis=1))

    @classmethod
    def of(cls, messages: Sequence[Message | None]) -> MessageColumns:
        """The columns of messages."""
        columns = cls.nothing(len(messages))
        for row, message in enumerate(messages):
            if message is not None:
                data, complete, slot, is_request, *numbers, last_ns, completed_by = message
                columns.data[row] = data
                last = s.NULL if last_ns is None else last_ns
                columns.numbers[:, row] = (complete, slot, not is_request, *numbers, last, completed_by)
        return columns


class WaitingMessages:
    """The raw messages of a capture point whose exchanges have not been handed on yet; of some APIs, or of all.

    apis, directions    as of `Window.messages`
    """

    def __init__(
        self, apis: Collection[int] | None = None, directions: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        self._apis, self._directions = apis, directions
        self._waiting = [MessageColumns.nothing(0), MessageColumns.nothing(0)]

    def take(self, window: Window) -> None:
        """Add one window's messages."""
        for rows, heap in window.raw_rows(self._apis, self._directions):
            view, at = heap.data, rows[:, s.MSG_AT]
            ends = (at + rows[:, s.MSG_LENGTH]).tolist()
            data = np.empty(len(rows), np.object_)
            data[:] = [bytes(view[begin:end]) for begin, end in zip(at.tolist(), ends, strict=True)]
            columns = MessageColumns(data, rows[:, MESSAGE_NUMBERS].T)
            for side, waiting in enumerate(self._waiting):
                of_side = columns.take(columns.numbers[_DIRECTION] == side)
                self._waiting[side] = MessageColumns.joined([waiting, of_side]) if len(waiting) else of_side

    def pop_columns(
        self, connection: np.ndarray, exchange: np.ndarray, reply: np.ndarray
    ) -> tuple[MessageColumns, MessageColumns]:
        """Requests and responses of exchanges, by connection and ordinals; they are not kept any longer."""
        return self._pop(0, connection, exchange), self._pop(1, connection, reply)

    def _pop(self, side: int, connection: np.ndarray, ordinal: np.ndarray) -> MessageColumns:
        waiting = self._waiting[side]
        if not len(waiting):
            return MessageColumns.nothing(len(connection))
        _, slots, _, ordinals, *_ = waiting.numbers
        keys, wanted = _keys(slots, ordinals), _keys(connection, ordinal)
        order = np.argsort(keys, kind="stable")
        place = np.searchsorted(keys[order], wanted)
        row = order[np.minimum(place, len(order) - 1)]
        is_there = (keys[row] == wanted) & (ordinal != s.NULL)
        stays = np.ones(len(waiting), np.bool_)
        stays[row[is_there]] = False
        popped = waiting.take(row)
        popped.data[~is_there] = None
        self._waiting[side] = waiting.take(stays)
        return popped


def _keys(connection: np.ndarray, ordinal: np.ndarray) -> np.ndarray:
    """int64[n]: one number for the number of a connection and an ordinal on it."""
    keys: np.ndarray = (connection << _ORDINAL_BITS) + ordinal
    return keys
