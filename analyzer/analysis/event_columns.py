"""Events of frequent APIs, gathered as integers: what a `ResumableCollector` keeps of them until all are there.

In: columns of windows, in which text is a number of `Names`. Out: the same columns for the whole capture point, in
order, text numbered by this collection alone. Rules: no event makes a Python object; plain state, so that it can be
stored and joined with another share's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from analyzer.bulk.rows import Exchanges
from analyzer.frame.arrow import distinct
from captures.kernels import NULL

PLACE = ("trigger", "born")
"""The columns that order events: the packet that completed the exchange, and the age of its connection."""

Columns = dict[str, np.ndarray]


@dataclass(slots=True)
class Noted:
    """Events with the same columns.

    columns   their names; those of `PLACE` among them
    texts     those of them that hold numbers of `strings`, NULL where absent
    """

    columns: tuple[str, ...]
    texts: tuple[str, ...]
    strings: list[str] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)
    _parts: list[list[np.ndarray]] = field(default_factory=list)  # of each its columns

    def put(self, values: Mapping[str, np.ndarray], texts: Sequence[str], connections: Sequence[str]) -> None:
        """Events of one window, in order: int64[n] for each column. Numbers in text columns are places in `texts`, in
        the column `connection` places in `connections`."""
        if not len(values[PLACE[0]]):
            return
        part = []
        for name in self.columns:
            column = values[name]
            if name in self.texts:
                column = self._own(column, connections if name == "connection" else texts)
            part.append(_held(column))
        self._parts.append(part)

    def join(self, other: Noted) -> None:
        """Take in the events of another share."""
        for part in other._parts:
            said = [name in self.texts for name in self.columns]
            self._parts.append(
                [self._own(column, other.strings) if text else column for column, text in zip(part, said, strict=True)]
            )

    @property
    def count(self) -> int:
        """How many events there are."""
        return sum(len(part[0]) for part in self._parts)

    @property
    def held_bytes(self) -> int:
        """About how much memory they take, with their texts."""
        return 8 * len(self.columns) * self.count + 100 * len(self.strings)

    def divided(self, column: str, limit: int) -> tuple[Noted, Noted]:
        """Events whose number in a column is below a limit, and the others."""
        events = self.inside()
        below = events[column] < limit
        return self.some(events, below), self.some(events, ~below)

    def some(self, events: Columns, which: np.ndarray) -> Noted:
        """Some of these events, which are of this collection, as one of their own."""
        made = Noted(self.columns, self.texts)
        made.put({name: values[which] for name, values in events.items()}, self.strings, self.strings)
        return made

    def inside(self) -> Columns:
        """All events in order. From here on they are held as given, each column joined as its parts are let go of."""
        parts, self._parts = self._parts, []
        if not parts:
            return {name: np.zeros(0, np.int64) for name in self.columns}
        found: Columns = {}
        for name in reversed(self.columns):
            found[name] = _joined([part.pop() for part in parts])
        trigger, born = (found[name] for name in PLACE)
        if not np.all((trigger[1:] > trigger[:-1]) | ((trigger[1:] == trigger[:-1]) & (born[1:] >= born[:-1]))):
            order = np.lexsort((born, trigger))  # stable: what one connection says in one packet stays in order
            for name in self.columns:
                found[name] = _held(found[name][order])
        self._parts.append([found[name] for name in self.columns])
        return found

    def number(self, text: str | None) -> int:
        """The number of a text here, a new one if it is new; NULL of None."""
        if text is None:
            return NULL
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self.strings)
            self.strings.append(text)
        return number

    def text(self, number: int) -> str | None:
        """The text that a number stands for."""
        return None if number == NULL else self.strings[number]

    def _own(self, numbers: np.ndarray, texts: Sequence[str]) -> np.ndarray:
        """Places in `texts` as numbers of `strings`."""
        used = distinct(numbers[numbers != NULL])
        if not len(used):
            return numbers
        mine = np.array([self.number(texts[i]) for i in used.tolist()], np.int64)
        found: np.ndarray = np.where(
            numbers == NULL, NULL, mine[np.minimum(np.searchsorted(used, numbers), len(used) - 1)]
        )
        return found


def _held(column: np.ndarray) -> np.ndarray:
    """A copy of a column; where all are equal, as most of what is seldom said, it takes no memory."""
    if len(column) and (column == column[0]).all():
        return np.broadcast_to(np.int64(column[0]), column.shape)
    return np.array(column, np.int64)


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The parts of a column as one, which takes no memory either where no part does and all are equal."""
    if len(parts) == 1:
        return parts[0]
    if all(part.strides == (0,) and part[0] == parts[0][0] for part in parts):
        return np.broadcast_to(parts[0][0], (sum(map(len, parts)),))
    return np.concatenate(parts)


def places(every: Exchanges, rows: np.ndarray) -> Columns:
    """Of these exchanges, what all events have: their place, `time` (ns: end of the answer, or of the request that had
    none), connection (a number of `Names`), exchange, reply, and the client's id and address (numbers of strings)."""
    names = every.names
    connection = every.connection[rows]
    used, where = _each(connection)
    born = np.array([names.born[i] for i in used.tolist()], np.int64)[where]
    ips = np.array([names.ends[i][0] for i in used.tolist()], np.int64)[where]
    answered, asked = every.column("response_end")[rows], every.column("request_end")[rows]
    return {
        "trigger": every.column("trigger")[rows],
        "born": born,
        "time": np.where(answered == NULL, asked, answered),
        "connection": connection,
        "exchange": every.column("exchange")[rows],
        "reply": every.column("reply")[rows],
        "client": every.column("client_id")[rows],
        "ip": ips,
    }


def _each(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(each value once, in order; where each row's is among them)."""
    used = distinct(values)
    return used, np.searchsorted(used, values)
