"""Events of groups as they wait to be told: bytes, not objects.

In: `Event`s, one after the other. Out: the same, group by group, each group's in order; the latest of them. Rule: an
event is an object while its group is looked at. As one it takes a kilobyte, here some 400 bytes: what sorts it is a row
of numbers, the rest JSON.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Final

import numpy as np

from analyzer.arrow import distinct
from analyzer.meaning import group_events as g
from analyzer.meaning.group_events import Event

_KINDS: Final = tuple(
    sorted(
        (g.JOIN, g.SYNC, g.HEARTBEAT_FAILED, g.LEAVE, g.EXPIRED, g.COMMIT_FAILED, g.COORDINATOR_MOVED, g.FOUND, g.TOLD)
    )
)
"""By their numbers: those sort as the kinds do."""
_TRIGGER, _BORN, _ORDER, _KIND, _GROUP, _STATE, _END = range(7)
"""What is in a row; _END: where its JSON ends, which begins where that of the row before does."""
_TOLD, _SETTLED = 1, 2
_ROW: Final = ("place", "order", "kind", "group", "told", "settled")
_SAID: Final = tuple(one.name for one in fields(Event) if one.name not in _ROW)
_said = attrgetter(*_SAID)
_text = json.JSONEncoder(separators=(",", ":")).encode
_PAIRS: Final = tuple(_SAID.index(name) for name in ("assigned", "revoked"))
_LISTS: Final = tuple(_SAID.index(name) for name in ("members", "subscribed"))
_OWNED: Final = _SAID.index("owned")


def _no_rows() -> np.ndarray:
    return np.zeros((64, _END + 1), np.int64)


@dataclass(slots=True)
class EventLog:
    """Events of groups, in the order in which they came."""

    groups: list[str] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)
    _rows: np.ndarray = field(default_factory=_no_rows)
    _count: int = 0
    _heap: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        return self._count

    def put(self, event: Event) -> None:
        """One more."""
        said = list(_said(event))
        while said and said[-1] is None:
            said.pop()
        self._heap += _text(said).encode()
        state = _TOLD * event.told | _SETTLED * event.settled
        kind = _KINDS.index(event.kind)
        self._put((*event.place, event.order, kind, self._number(event.group), state, len(self._heap)))

    def _put(self, row: tuple[int, ...]) -> None:
        if self._count == len(self._rows):
            self._grow(self._count + (self._count >> 1))
        self._rows[self._count] = row
        self._count += 1

    def _grow(self, size: int) -> None:
        larger = np.zeros((size, self._rows.shape[1]), np.int64)
        larger[: self._count] = self._rows[: self._count]
        self._rows = larger

    def _number(self, group: str) -> int:
        number = self._numbers.get(group)
        if number is None:
            number = self._numbers[group] = len(self.groups)
            self.groups.append(group)
        return number

    def number(self, group: str) -> int:
        """Of a group, as `groups` has it; -1: it has no events."""
        return self._numbers.get(group, -1)

    def join(self, other: EventLog) -> None:
        """Take in those of another, after these."""
        numbers = np.array([self._number(group) for group in other.groups], np.int64)
        rows = other._rows[: other._count].copy()
        rows[:, _GROUP] = numbers[rows[:, _GROUP]]
        rows[:, _END] += len(self._heap)
        self._grow(self._count + len(rows))
        self._rows[self._count :] = rows
        self._count += len(rows)
        self._heap += other._heap

    def by_group(self) -> Iterator[tuple[str, np.ndarray, list[Event]]]:
        """(group, places of its events here, the events), both in order; groups in order of their first event."""
        rows = self._rows[: self._count]
        order = np.lexsort(tuple(rows[:, column] for column in (_KIND, _ORDER, _BORN, _TRIGGER)))
        together = np.argsort(rows[order, _GROUP], kind="stable")
        group = rows[order[together], _GROUP]
        starts = np.flatnonzero(np.append(True, group[1:] != group[:-1])) if len(group) else np.zeros(0, np.int64)
        ends = np.append(starts[1:], len(group))
        for one in np.argsort(together[starts]).tolist():
            places = order[together[starts[one] : ends[one]]]
            yield self.groups[int(group[starts[one]])], places, [self._event(place) for place in places.tolist()]

    def _event(self, place: int) -> Event:
        trigger, born, order, kind, group, state, end = self._rows[place].tolist()
        said: list[Any] = json.loads(self._heap[self._begin(place) : end])
        said += [None] * (len(_SAID) - len(said))
        for at in _PAIRS:
            if said[at] is not None:
                said[at] = tuple((member, tuple(map(tuple, has))) for member, has in said[at])
        for at in _LISTS:
            if said[at] is not None:
                said[at] = tuple(said[at])
        if said[_OWNED] is not None:
            said[_OWNED] = tuple(map(tuple, said[_OWNED]))
        found = Event((trigger, born), order, _KINDS[kind], self.groups[group], *said)
        found.told, found.settled = bool(state & _TOLD), bool(state & _SETTLED)
        return found

    def _begin(self, place: int) -> int:
        return int(self._rows[place - 1, _END]) if place else 0

    def settle(self, places: np.ndarray, settled: list[bool]) -> None:
        """Whether the rebalances that they are part of were told."""
        state = self._rows[places, _STATE] & ~_SETTLED
        self._rows[places, _STATE] = state | _SETTLED * np.array(settled, np.int64)

    def latest(self, frequent: Collection[str], most: int, most_of_all: int) -> np.ndarray:
        """Places of those to remember, in order: of each group so many, of those that may be `frequent` as many again;
        of all groups so many, those of the groups that were heard last."""
        rows = self._rows[: self._count]
        back = np.lexsort(tuple(-rows[:, column] for column in (_KIND, _ORDER, _BORN, _TRIGGER)))
        often = np.array([kind in frequent for kind in _KINDS], np.int64)
        back = back[_rank(2 * rows[back, _GROUP] + often[rows[back, _KIND]]) < most]
        if len(back) > most_of_all:
            group = rows[back, _GROUP]
            size = np.bincount(group, minlength=len(self.groups))
            heads = group[_rank(group) == 0]  # the one that was heard last first
            kept = np.zeros(len(self.groups), np.bool_)
            kept[heads[np.cumsum(size[heads]) <= most_of_all]] = True
            back = back[kept[group]]
        return back[::-1]

    def groups_of(self, places: np.ndarray) -> frozenset[str]:
        """The groups that some of them are of."""
        return frozenset(self.groups[number] for number in distinct(self._rows[places, _GROUP]).tolist())

    def told(self, places: np.ndarray) -> EventLog:
        """Some of them as a log of their own; rows have been made of them."""
        made = EventLog()
        rows = self._rows[places]
        made._heap += b"".join(
            self._heap[self._begin(place) : end]
            for place, end in zip(places.tolist(), rows[:, _END].tolist(), strict=True)
        )
        begins = np.where(places > 0, self._rows[places - 1, _END], 0)
        rows[:, _END] = np.cumsum(rows[:, _END] - begins)
        rows[:, _GROUP] = [made._number(self.groups[number]) for number in rows[:, _GROUP].tolist()]
        rows[:, _STATE] |= _TOLD
        made._rows, made._count = rows, len(rows)
        made._grow(max(len(rows), len(_no_rows())))
        return made


def _rank(keys: np.ndarray) -> np.ndarray:
    """int64[n]: how many equal ones are before each."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    place = np.arange(len(keys))
    first = np.append(True, ordered[1:] != ordered[:-1])[: len(keys)]
    found = np.empty(len(keys), np.int64)
    found[order] = place - np.maximum.accumulate(np.where(first, place, 0))
    return found
