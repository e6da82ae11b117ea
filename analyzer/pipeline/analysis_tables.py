"""Tables of the analysis: collectors over the windows of a capture point, and their rows.

In: windows, filtered by nothing. Out: rows of `tables.MEANING`, but for findings. Rule: more than some memory is not
kept to the end of the capture: what has ended becomes rows on the way (*early rows*), and the rest goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from kwire.analyzer.analysis import ResumableCollector
from kwire.analyzer.analysis.clients import Clients
from kwire.analyzer.analysis.clients import Key as ClientKey
from kwire.analyzer.analysis.cluster_metadata import TopicIds
from kwire.analyzer.analysis.control_exchanges import Border, ControlExchanges
from kwire.analyzer.analysis.groups import GroupCollector
from kwire.analyzer.analysis.journeys import Journeys
from kwire.analyzer.analysis.journeys_of_points import JourneysOfPoints
from kwire.analyzer.analysis.offsets import Offsets
from kwire.analyzer.analysis.sessions import Sessions, readers_table
from kwire.analyzer.analysis.transactions import Transactions
from kwire.analyzer.bulk.rows import Window
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import concatenated
from kwire.analyzer.frame.buffer_pool import give_back

MOST_HELD_BYTES: Final = 96 << 20
"""Bytes that a collector keeps until the capture ends (`ResumableCollector.held_bytes`), beside its state after the
last rows: beyond them, what has ended becomes rows at once. That is 600,000 commits, or 100,000 events of groups or of
transactions."""

MOST_HELD_JOINTLY: Final = 4 * MOST_HELD_BYTES
"""The same of the journeys of all capture points of one clock: four million batches. Beyond it, what a point's own
readers have passed becomes rows without those of other points."""

MOST_READERS: Final = 200_000
"""Readers that are over, 120 bytes each, beyond which they become rows at once."""

ANSWERED_NS: Final = 60 * 10**9
"""After this time no answer is expected any more to a request about transactions that something else is to wait for."""

MOST_WINDOWS: Final = 1000
"""Windows of a minute whose times are remembered, at least; of more some."""

_ROWS_AT_ONCE: Final = 8192
"""Rows that are Python objects at a time."""


class AnalysisTables:
    """Collects what the traffic means. `control`, `collectors`: those of the capture point before, where this one goes
    on with it; without collectors the tables stay empty. `early_rows`: how often rows were made on the way; `joint`:
    takes the journeys in place of making rows, where capture points have one clock."""

    def __init__(
        self,
        control: ControlExchanges,
        collectors: Sequence[ResumableCollector],
        joint: JourneysOfPoints | None = None,
    ) -> None:
        self.control = control
        self._joint = joint
        self.collectors = tuple(collectors)
        self.early_rows = 0
        self._held_before = [0 for _ in self.collectors]
        self._windows: list[tuple[int, int]] = []

    @staticmethod
    def all_collectors(journeys: bool = True) -> tuple[ResumableCollector, ...]:
        """Return a new collector of each kind; that of journeys, where it is wanted, last: it learns from the others'
        rows."""
        collectors = Clients(), GroupCollector(), Offsets(), Transactions()
        return (*collectors, Journeys()) if journeys else collectors

    def take(self, window: Window) -> None:
        """Let the collectors learn from a window."""
        if not self.collectors:
            return
        for piece, control in self.control.pieces(window):
            for collector in self.collectors:
                collector.take(piece, control)
        self._note_time(window)

    def named(self) -> Iterator[np.ndarray]:
        """Return the numbers of strings that collectors still mean (`ShardMerger.forget`)."""
        return (collector.named() for collector in self.collectors if isinstance(collector, Offsets))

    def _note_time(self, window: Window) -> None:
        """Remember which packet was the last at which time, for the last minute."""
        if len(window.every):
            time, packet = (int(window.every.column(name).max()) for name in ("request_time", "completed_by"))
            self._windows.append((max(time, self._windows[-1][0] if self._windows else time), packet))
            while len(self._windows) > 1 and self._windows[1][0] <= self._windows[-1][0] - ANSWERED_NS:
                self._windows.pop(0)
            if len(self._windows) > 2 * MOST_WINDOWS:
                self._windows[1:-1] = self._windows[1:-1:2]

    def early(self, capture: str, topics: TopicIds, sessions: Sessions) -> Iterator[tuple[str, pa.Table]]:
        """Make rows of what has ended, if more has happened than is kept to the end of the capture."""
        latest = self._windows[-1][0] if self._windows else 0
        answered = [packet for time, packet in self._windows if time <= latest - ANSWERED_NS]
        border = Border(topics.name, max(answered, default=0))
        for position, collector in enumerate(self.collectors):
            joint = self._joint is not None and isinstance(collector, Journeys)
            most = MOST_HELD_JOINTLY - self._joint.held_bytes if self._joint is not None and joint else MOST_HELD_BYTES
            if collector.held_bytes - self._held_before[position] > most:
                after = collector.onward(border)
                if isinstance(collector, Journeys):
                    collector.groups = self._groups_so_far()
                for name, table in collector.tables(capture, topics.name):
                    self._learn_transactions(name, table)
                    yield name, table
                self.collectors = (*self.collectors[:position], after, *self.collectors[position + 1 :])
                self._held_before[position] = after.held_bytes
                self.early_rows += 1
                del collector, after
                give_back()
        if len(sessions.over) > MOST_READERS:
            for clients in self.collectors:
                if isinstance(clients, Clients):
                    yield "readers", readers_table(capture, sessions.over, clients.groups())
                    self.early_rows += 1
            sessions.clear_over()  # without collectors (a filter), they never become rows

    def _groups_so_far(self) -> dict[ClientKey, list[str]]:
        return {
            key: groups
            for collector in self.collectors
            if isinstance(collector, Clients)
            for key, groups in collector.groups().items()
        }

    def _learn_transactions(self, name: str, rows: pa.Table) -> None:
        """Tell the collector of journeys what became of transactions."""
        if name == "transactions":
            for collector in self.collectors:
                if isinstance(collector, Journeys):
                    collector.learn_transactions(rows)

    def finish(self, capture: str, topics: TopicIds, sessions: Sessions) -> Iterator[tuple[str, pa.Table]]:
        """Make the tables, empty ones too, when all windows were taken.

        Findings come of all tables, later. Collectors go one after the other, as their rows are made."""
        rows = {name: [tables.empty(name)] for name in tables.MEANING if name != "findings"}
        means = bool(self.collectors)
        before: dict[ClientKey, set[str]] = {}
        while self.collectors:
            collector, *others = self.collectors
            self.collectors = tuple(others)
            if self.early_rows:
                give_back()
            if isinstance(collector, Journeys):
                collector.groups = _groups(rows["clients"][-1], before)
                if self._joint is not None:
                    self._joint.add(capture, collector, topics.names)
                    continue
                yield from collector.tables(capture, topics.name)  # they are many: Parquet takes them as they are
                continue
            for name, table in collector.tables(capture, topics.name):
                rows[name].append(table)
                self._learn_transactions(name, table)
            if isinstance(collector, Clients):
                before = collector.groups_before
        if means:
            groups = _groups(rows["clients"][-1], before)
            rows["readers"].append(readers_table(capture, sessions.over, groups))
        for name in list(rows):
            yield name, concatenated(name, rows.pop(name))


def _groups(clients: pa.Table, before: Mapping[ClientKey, set[str]]) -> dict[ClientKey, list[str]]:
    """Return the groups that each client takes part in, by rows of `clients` and earlier rows (`before`)."""
    columns = clients.select(["client_id", "client_ip", "group_ids"])
    groups_of = {
        (row["client_id"], row["client_ip"]): row["group_ids"]
        for batch in columns.to_batches(max_chunksize=_ROWS_AT_ONCE)
        for row in batch.to_pylist()
        if row["group_ids"]
    }
    for key, groups in before.items():
        groups_of[key] = sorted({*groups, *groups_of.get(key, ())})
    return groups_of
