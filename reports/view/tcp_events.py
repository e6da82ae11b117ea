"""Events of TCP over time: retransmissions, zero windows and resets of connections.

In: connections of a dataset, and the captures that it was made of. Out: events in order of time, and counts of them by
intervals. Rule: packets are read again (`tcp_packets`) when events are first asked for, and only where the table
`connections` says that there are any.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from kwire.captures.files import capture_points
from kwire.reports.view.source_captures import SourceCaptures

KINDS: Final = ("retransmission", "zero window", "reset")
"""In order of the numbers in `tcp_packets`."""

Link = tuple[str, str]
"""A connection: its capture and its name."""


@dataclass(frozen=True, slots=True)
class TcpEvents:
    """Events in order of time: us since 1970, numbers in `KINDS`, and numbers in `links`."""

    links: list[Link]
    times: np.ndarray
    kinds: np.ndarray
    link: np.ndarray

    def chosen(self, links: set[Link] | None) -> TcpEvents:
        """Keep the events of some connections; None: of all."""
        if links is None:
            return self
        here = np.array([link in links for link in self.links], np.bool_)[self.link]
        return TcpEvents(self.links, self.times[here], self.kinds[here], self.link[here])

    def lanes(self, first: int, step: int, columns: int) -> list[dict[str, Any]]:
        """Count events by kind and interval: `columns` intervals of `step` us from `first` on; a kind without any is
        left out. Each interval has the time and connection (`link`) of its first event, and how many connections have
        any (`of`)."""
        column = (self.times - first) // step
        inside = (column >= 0) & (column < columns)
        lanes = []
        for kind, name in enumerate(KINDS):
            here = np.flatnonzero(inside & (self.kinds == kind))
            if not len(here):
                continue
            at, begins, counts = np.unique(column[here], return_index=True, return_counts=True)
            pairs = np.unique(column[here] * len(self.links) + self.link[here]) // len(self.links)
            lanes.append(
                {
                    "kind": name,
                    "total": len(here),
                    "column": at,
                    "count": counts,
                    "time": self.times[here[begins]],
                    "link": self.link[here[begins]],
                    "of": np.unique(pairs, return_counts=True)[1],
                }
            )
        return lanes


NO_EVENTS: Final = TcpEvents([], np.zeros(0, np.int64), np.zeros(0, np.int8), np.zeros(0, np.int64))


def has_events(row: dict[str, Any]) -> bool:
    """Whether the table says that a connection has events."""
    return bool(row["retransmissions"] or row["zero_windows"] or row["closed"] == "rst")


@dataclass
class EventReader:
    """Reads events of a dataset's connections once, when they are first asked for. `connections`: gives its rows."""

    connections: Callable[[], list[dict[str, Any]]]
    captures: SourceCaptures | None
    _events: TcpEvents | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self) -> TcpEvents | None:
        """The events; None if packets are needed and cannot be read again. Raises CaptureError."""
        with self._lock:
            if self._events is None:
                rows = [row for row in self.connections() if has_events(row) and row["first_time"] is not None]
                if rows and self.captures is None:
                    return None
                self._events = NO_EVENTS if self.captures is None else _read(rows, self.captures)
            return self._events


def _read(rows: Sequence[dict[str, Any]], captures: SourceCaptures) -> TcpEvents:
    from kwire.reports.view.tcp_packets import events_of  # loads the readers of captures

    links = [(row["capture"], row["connection"]) for row in rows]
    of_capture: dict[str, list[int]] = {}
    for number, (capture, _) in enumerate(links):
        of_capture.setdefault(capture, []).append(number)
    parts = [
        part
        for name, numbers in of_capture.items()
        for point in capture_points(list(captures.point(name)), captures.how.rotated)
        for part in events_of(point, numbers, rows)
    ]
    if not parts:
        return NO_EVENTS
    times, kinds, link = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(times, kind="stable")
    return TcpEvents(links, times[order] // 1000, kinds[order], link[order])
