"""Events of groups as they wait for the tables: bytes, not objects (`kwire.analyzer.frame.log`).

In: `GroupEvent`s, one after the other. Out: the same, group by group, each group's in order; the latest of them. Rule:
an event is an object only while its group is read. As an object it takes a kilobyte, here some 400 bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Final

import numpy as np

from kwire.analyzer.analysis import group_events as g
from kwire.analyzer.analysis.group_events import GroupEvent
from kwire.analyzer.frame.arrow import distinct
from kwire.analyzer.frame.log import Columns, Log

# fmt: off
_KINDS: Final = tuple(sorted((
    g.JOIN, g.SYNC, g.HEARTBEAT_FAILED, g.LEAVE, g.EXPIRED, g.COMMIT_FAILED, g.COORDINATOR_MOVED, g.COORDINATOR_FOUND,
    g.COORDINATOR_REFUSED, g.UPDATE,
)))
# fmt: on
"""By their numbers: those sort as the kinds do."""
_ORDER: Final = ("completed_by", "serial", "order", "kind")
_COLUMNS: Final = (*_ORDER, "group", "state")
_REPORTED, _SETTLED = 1, 2
"""Bits of `state`."""
_IN_ROW: Final = ("place", "order", "kind", "group", "reported", "settled")
_BESIDE: Final = tuple(column.name for column in fields(GroupEvent) if column.name not in _IN_ROW)
_values_of = attrgetter(*_BESIDE)
_PAIRS: Final = tuple(_BESIDE.index(name) for name in ("assigned", "revoked"))
_LISTS: Final = tuple(_BESIDE.index(name) for name in ("members", "subscribed"))
_OWNED: Final = _BESIDE.index("owned")


@dataclass(slots=True)
class EventLog:
    """Events of groups, in the order in which they were appended. A position is an index in that order."""

    _log: Log = field(default_factory=lambda: Log(_COLUMNS, ("group",)))

    def __len__(self) -> int:
        return len(self._log)

    def append(self, event: GroupEvent) -> None:
        kind, state = _KINDS.index(event.kind), _REPORTED * event.reported | _SETTLED * event.settled
        row = (*event.place, event.order, kind, self._log.number(event.group), state)
        self._log.append_row(row, list(_values_of(event)))

    @property
    def groups(self) -> list[str]:
        """Groups by number, in order of their first event."""
        return self._log.strings

    def number(self, group: str) -> int:
        """Return a group's index in `groups`; -1 if it has no events."""
        number = self._log.known(group)
        return -1 if number is None else number

    def join(self, other: EventLog) -> None:
        """Append the events of another log."""
        self._log.join(other._log)

    def by_group(self) -> Iterator[tuple[str, np.ndarray, list[GroupEvent]]]:
        """Yield (group, positions of its events, the events), both in order; groups in order of their first event."""
        rows = self._log.read()
        order = np.lexsort([rows[name] for name in reversed(_ORDER)])
        together = np.argsort(rows["group"][order], kind="stable")
        group = rows["group"][order[together]]
        starts = np.flatnonzero(np.append(True, group[1:] != group[:-1])) if len(group) else np.zeros(0, np.int64)
        ends = np.append(starts[1:], len(group))
        for number in np.argsort(together[starts]).tolist():
            positions = order[together[starts[number] : ends[number]]]
            events = [self._event(rows, position) for position in positions.tolist()]
            yield self.groups[int(group[starts[number]])], positions, events

    def _event(self, rows: Columns, position: int) -> GroupEvent:
        trigger, born, order, kind, group, state = (int(rows[name][position]) for name in _COLUMNS)
        values = self._log.values(position, len(_BESIDE))
        for at in _PAIRS:
            if values[at] is not None:
                values[at] = tuple((member, tuple(map(tuple, has))) for member, has in values[at])
        for at in _LISTS:
            if values[at] is not None:
                values[at] = tuple(values[at])
        if values[_OWNED] is not None:
            values[_OWNED] = tuple(map(tuple, values[_OWNED]))
        event = GroupEvent((trigger, born), order, _KINDS[kind], self.groups[group], *values)
        event.reported, event.settled = bool(state & _REPORTED), bool(state & _SETTLED)
        return event

    def settle(self, settled: np.ndarray) -> None:
        """Set for each event (bool[n]) whether the rebalance that it is part of has a row."""
        state = self._log.read()["state"]
        self._log.replace("state", state & ~_SETTLED | _SETTLED * settled)

    def latest(self, frequent: Collection[str], most: int, most_of_all: int) -> np.ndarray:
        """Return the positions, in order, of the events to remember.

        Of each group at most `most` events, and as many of the kinds that may be `frequent`; of all groups at most
        `most_of_all`, those of the groups with the latest events.
        """
        rows = self._log.read()
        back = np.lexsort([-rows[name] for name in reversed(_ORDER)])
        often = np.array([kind in frequent for kind in _KINDS], np.int64)
        back = back[_rank(2 * rows["group"][back] + often[rows["kind"][back]]) < most]
        if len(back) > most_of_all:
            group = rows["group"][back]
            size = np.bincount(group, minlength=len(self.groups))
            heads = group[_rank(group) == 0]  # the group with the latest event first
            chosen = np.zeros(len(self.groups), np.bool_)
            chosen[heads[np.cumsum(size[heads]) <= most_of_all]] = True
            back = back[chosen[group]]
        return back[::-1]

    def groups_of(self, positions: np.ndarray) -> frozenset[str]:
        """Return the groups of some events."""
        return frozenset(self.groups[number] for number in distinct(self._log.read()["group"][positions]).tolist())

    def reported(self, positions: np.ndarray) -> EventLog:
        """Return a log of some events, marked as having rows."""
        return EventLog(self._log.take(positions, state=self._log.read()["state"] | _REPORTED))


def _rank(keys: np.ndarray) -> np.ndarray:
    """Return int64[n]: how many equal keys stand before each."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    position = np.arange(len(keys))
    first = np.append(True, ordered[1:] != ordered[:-1])[: len(keys)]
    rank = np.empty(len(keys), np.int64)
    rank[order] = position - np.maximum.accumulate(np.where(first, position, 0))
    return rank
