"""Journeys over several capture points whose clocks agree: a batch produced at one, and read at another.

In: the `Journeys` of each point, when it has ended. Out: rows of the table `journeys`, each of the point where the
batch was produced. Rules

- A connection that two points saw at one time counts at the first of them only, so that no answer counts twice. So does
  a batch at one place of the log, with the same size and time, under whatever names the points saw its connection.
- Times of different points are compared as they are: it is the caller who says that the clocks agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.analysis import TopicName, journey_matching, journey_rows
from kwire.analyzer.analysis.journey_columns import (
    B_BASE,
    B_BYTES,
    B_COMPLETED_BY,
    B_CREATED,
    B_ORIGIN,
    B_RECORDS,
    B_SENT,
    C_TIME,
    L_TIME,
    R_TIME,
)
from kwire.analyzer.analysis.journeys import Journeys
from kwire.analyzer.bulk import row_groups
from kwire.analyzer.frame import arrow
from kwire.captures.kernels import NULL

_POINT_BITS: Final = 44
"""Packets of a capture point are numbered below 2 to this power."""

_APART_NS: Final = 10**9
"""So far apart two points see one message at most; a client takes a port anew after longer."""


class JourneysOfPoints(Journeys):
    """Batches, answers and commits of the points that have ended.

    captures   their names
    _begins    number of each one's first origin
    _names     names of topics by their ids
    """

    __slots__ = ("_begins", "_names", "captures")

    def __init__(self) -> None:
        super().__init__(groups={})
        self.captures: list[str] = []
        self._begins: list[int] = []
        self._names: dict[str, str] = {}

    def add(self, capture: str, journeys: Journeys, names: Mapping[str, str]) -> None:
        """Add a point that has ended. names: of its topics, by id; `journeys` is of no use afterwards."""
        repeated = self._seen_before(journeys)
        groups = {key: list(of_client) for key, of_client in self.groups.items()}
        for key, of_client in journeys.groups.items():
            known = groups.setdefault(key, [])
            known += [group for group in of_client if group not in known]
        self.groups = groups
        self._names |= {topic_id: name for topic_id, name in names.items() if topic_id not in self._names}
        self._begins.append(len(self._origins))
        for _, others in self._logs(journeys):
            unrepeated = (rows[:, ~repeated[rows[0]]] for rows in others)
            others[:] = [rows for rows in unrepeated if rows.shape[1]]
        journeys._grow_ranges()
        journeys._ranges[:, np.flatnonzero(repeated)] = [[np.iinfo(np.int64).max], [NULL]]
        for rows in (*journeys._batches, *journeys._silent):
            rows[B_COMPLETED_BY] += len(self.captures) << _POINT_BITS
        self.captures.append(capture)
        self.join(journeys)

    def rows(self) -> Iterator[pa.Table]:
        """Make the rows of all points."""
        if not self._batches and not self._silent:
            return
        known = self._known(lambda topic_id: self._names.get(topic_id, topic_id)).settled()
        owner = np.searchsorted(self._begins, np.arange(len(self._origins)), "right") - 1
        yield from journey_rows.rows(self.captures, known, self._transactions, self.groups, owner)

    def _known(self, topic_name: TopicName) -> journey_matching.Known:
        known = super()._known(topic_name)
        if len(self.captures) < 2 or not known.parts:
            return known
        whole = known.batches
        first, which = row_groups.numbered(
            known.partition[whole[B_ORIGIN]], *(whole[column] for column in (B_BASE, B_RECORDS, B_BYTES, B_CREATED))
        )
        point = whole[B_COMPLETED_BY] >> _POINT_BITS
        earliest = np.full(len(first), len(self.captures))
        np.minimum.at(earliest, which, point)
        chosen = whole[:, (whole[B_BASE] == NULL) | (point == earliest[which])]
        return known._replace(parts=[chosen] if chosen.shape[1] else [])

    def _seen_before(self, journeys: Journeys) -> np.ndarray:
        """Return bool[origins] of a point: those of connections that an earlier one saw at the same time."""
        own, others = _times_of_connections(self), _times_of_connections(journeys)
        twice = {
            name
            for name, (begin, end) in others.items()
            if name in own and begin <= own[name][1] + _APART_NS and own[name][0] <= end + _APART_NS
        }
        log = journeys._origins
        connection = log.read()["connection"]
        numbers = np.array([number for number, text in enumerate(log.strings) if text in twice], np.int64)
        return arrow.among(connection, numbers)


def _times_of_connections(journeys: Journeys) -> dict[str, tuple[int, int]]:
    """Return the first and the last time of what is known of each connection, by name, in ns."""
    log = journeys._origins
    connection = log.read()["connection"]
    begin, end = np.full(len(connection), np.iinfo(np.int64).max), np.full(len(connection), NULL)
    timed: Sequence[tuple[list[np.ndarray], int]] = (
        (journeys._batches, B_SENT),
        (journeys._silent, B_SENT),
        (journeys._reads, R_TIME),
        (journeys._labels, L_TIME),
        (journeys._commits, C_TIME),
    )
    for parts, at in timed:
        for rows in parts:
            there = rows[at] != NULL
            np.minimum.at(begin, rows[0, there], rows[at, there])
            np.maximum.at(end, rows[0, there], rows[at, there])
    times: dict[str, tuple[int, int]] = {}
    for number, first, last in zip(connection.tolist(), begin.tolist(), end.tolist(), strict=True):
        if number != NULL and last != NULL:
            name = log.strings[number]
            known = times.get(name, (first, last))
            times[name] = min(first, known[0]), max(last, known[1])
    return times
