"""Events of groups as they wait to be told: bytes, not objects.

In: `Event`s, one after the other. Out: the same, group by group, each group's in order; the latest of them. Rule: an
event is an object while its group is looked at. As one it takes a kilobyte, here (`said_rows`) some 400 bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Final

import numpy as np

from analyzer.analysis import group_events as g
from analyzer.analysis.group_events import Event
from analyzer.analysis.said_rows import SaidRows
from analyzer.frame.arrow import distinct

_KINDS: Final = tuple(
    sorted(
        (g.JOIN, g.SYNC, g.HEARTBEAT_FAILED, g.LEAVE, g.EXPIRED, g.COMMIT_FAILED, g.COORDINATOR_MOVED, g.FOUND, g.TOLD)
    )
)
"""By their numbers: those sort as the kinds do."""
_TRIGGER, _BORN, _ORDER, _KIND, _GROUP, _STATE, _WIDTH = range(7)
"""What is in a row."""
_TOLD, _SETTLED = 1, 2
_ROW: Final = ("place", "order", "kind", "group", "told", "settled")
_SAID: Final = tuple(one.name for one in fields(Event) if one.name not in _ROW)
_said = attrgetter(*_SAID)
_PAIRS: Final = tuple(_SAID.index(name) for name in ("assigned", "revoked"))
_LISTS: Final = tuple(_SAID.index(name) for name in ("members", "subscribed"))
_OWNED: Final = _SAID.index("owned")


@dataclass(slots=True)
class EventLog:
    """Events of groups, in the order in which they came."""

    _packed: SaidRows = field(default_factory=lambda: SaidRows(_WIDTH, _GROUP))

    def __len__(self) -> int:
        return len(self._packed)

    def put(self, event: Event) -> None:
        """One more."""
        kind, state = _KINDS.index(event.kind), _TOLD * event.told | _SETTLED * event.settled
        row = (*event.place, event.order, kind, self._packed.number(event.group), state)
        self._packed.put(row, list(_said(event)))

    @property
    def groups(self) -> list[str]:
        """By number, in order of their first event."""
        return self._packed.names

    def number(self, group: str) -> int:
        """Of a group, as `groups` has it; -1: it has no events."""
        number = self._packed.known(group)
        return -1 if number is None else number

    def join(self, other: EventLog) -> None:
        """Take in those of another, after these."""
        self._packed.join(other._packed)

    def by_group(self) -> Iterator[tuple[str, np.ndarray, list[Event]]]:
        """(group, places of its events here, the events), both in order; groups in order of their first event."""
        rows = self._packed.rows
        order = np.lexsort(tuple(rows[:, column] for column in (_KIND, _ORDER, _BORN, _TRIGGER)))
        together = np.argsort(rows[order, _GROUP], kind="stable")
        group = rows[order[together], _GROUP]
        starts = np.flatnonzero(np.append(True, group[1:] != group[:-1])) if len(group) else np.zeros(0, np.int64)
        ends = np.append(starts[1:], len(group))
        for one in np.argsort(together[starts]).tolist():
            places = order[together[starts[one] : ends[one]]]
            yield self.groups[int(group[starts[one]])], places, [self._event(place) for place in places.tolist()]

    def _event(self, place: int) -> Event:
        trigger, born, order, kind, group, state = self._packed.rows[place].tolist()
        said = self._packed.said(place, len(_SAID))
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

    def settle(self, places: np.ndarray, settled: list[bool]) -> None:
        """Whether the rebalances that they are part of were told."""
        state = self._packed.rows[:, _STATE]
        state[places] = state[places] & ~_SETTLED | _SETTLED * np.array(settled, np.int64)

    def latest(self, frequent: Collection[str], most: int, most_of_all: int) -> np.ndarray:
        """Places of those to remember, in order: of each group so many, of those that may be `frequent` as many again;
        of all groups so many, those of the groups that were heard last."""
        rows = self._packed.rows
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
        return frozenset(self.groups[number] for number in distinct(self._packed.rows[places, _GROUP]).tolist())

    def told(self, places: np.ndarray) -> EventLog:
        """Some of them as a log of their own; rows have been made of them."""
        made = EventLog(_packed=self._packed.some(places))
        state = made._packed.rows[:, _STATE]
        state |= _TOLD
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
