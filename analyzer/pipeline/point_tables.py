"""The sink that makes tables of a capture point: its windows become rows, and a `PointResult` in the end.

In: windows (`drive`). Out: (name of a table, rows, or what makes them in any thread). A window goes through

    latencies -> names, brokers, connections -> analysis -> filter -> summary, record batches -> rows that wait

Rows of exchanges wait until they are many enough to be made together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from kwire.analyzer.analysis import Collector, ResumableCollector
from kwire.analyzer.analysis.cluster_metadata import Brokers, Leaders, Offers, TopicIds
from kwire.analyzer.analysis.connections import EndedConnections
from kwire.analyzer.analysis.control_exchanges import Border, ControlExchanges
from kwire.analyzer.analysis.journeys_of_points import JourneysOfPoints
from kwire.analyzer.analysis.latency import Latency
from kwire.analyzer.analysis.record_sets import OpenedRecords
from kwire.analyzer.analysis.summary import CaptureStats, Summary
from kwire.analyzer.analysis.zookeeper import Requests
from kwire.analyzer.bulk import exchange_tables
from kwire.analyzer.bulk.rows import Exchanges, Names, Window
from kwire.analyzer.dataset.parquet_files import ENOUGH_ROWS, LazyTable
from kwire.analyzer.messages.raw_messages import HeldMessages
from kwire.analyzer.pipeline.analysis_options import AnalysisOptions
from kwire.analyzer.pipeline.analysis_tables import AnalysisTables
from kwire.analyzer.pipeline.drive import Sink
from kwire.analyzer.pipeline.point_result import PointResult, point_result
from kwire.analyzer.pipeline.selection import Selection
from kwire.captures.attempts import Attempt
from kwire.captures.files import CapturePoint

Rows = tuple[str, LazyTable]
"""The name of a table, and rows of it."""

PARTITIONS_A_ROW: Final = 8
"""Topic-partitions that weigh as much as an exchange where rows wait: few exchanges have more, some have a thousand."""

ROWS_A_CONNECTION: Final = 2
"""Exchanges that weigh as much as a connection that has ended: a capture's end may end a hundred thousand at once."""


class CarryOver(NamedTuple):
    """State that goes on from one capture point to the next: names, API versions that connections were offered, fetch
    sessions, messages and record sets whose exchange has not ended, and the collectors."""

    topics: TopicIds
    brokers: Brokers
    offers: Offers
    latency: Latency
    control: ControlExchanges
    messages: HeldMessages
    records: OpenedRecords
    collectors: tuple[ResumableCollector, ...]


class PointTables(Sink[Rows]):
    """See above. `waiting`: exchanges that are in no table yet, about `rows` of them (of partitions some weigh as much
    as one, as memory goes); `look_up`: gives the name for a topic's id, by default as far as messages have said it;
    `before`: this capture point goes on where that one ended; `enough_rows`: so many become rows at once; `joint`:
    takes the journeys, where several points have one clock."""

    def __init__(
        self,
        names: Names,
        options: AnalysisOptions,
        threads: int = 1,
        topics: TopicIds | None = None,
        look_up: Callable[[str], str] | None = None,
        before: CarryOver | None = None,
        enough_rows: int | None = None,
        joint: JourneysOfPoints | None = None,
    ) -> None:
        self.names = names
        self.topics = topics or (TopicIds() if before is None else before.topics.onward(names.capture))
        self.summary = Summary()
        self.waiting: list[Exchanges] = []
        self.rows = 0
        self.settled = False
        self._options = options
        self._enough_rows = ENOUGH_ROWS if enough_rows is None else enough_rows
        look_up = look_up or self.topics.name
        self.selection = Selection(options, look_up, None if before is None else before.messages)
        self.latency = Latency() if before is None else before.latency
        collectors = AnalysisTables.all_collectors(options.journeys) if before is None else before.collectors
        self.analysis = AnalysisTables(
            ControlExchanges() if before is None else before.control, collectors if options.means else (), joint
        )
        self._ended = EndedConnections()
        self._brokers = Brokers() if before is None else before.brokers.onward(names.capture)
        self._offers = Offers() if before is None else before.offers.onward(names.capture)
        leaders = Leaders(self.topics)
        self._zookeeper = Requests()
        # Names come first.
        self._learners: tuple[Collector, ...] = (
            self.topics,
            leaders,
            self._brokers,
            self._offers,
            self._ended,
            self._zookeeper,
        )
        self._small: tuple[Collector, ...] = (self._ended, leaders, self._brokers, self.topics, self._offers)
        """Collectors of small tables, as these stand in the dataset."""
        self._records = (
            OpenedRecords(options.records, threads, options.limits, look_up, options.everything, options.payloads)
            if before is None
            else before.records.onward(look_up)
        )

    def carry_over(self, ordinal: int) -> CarryOver:
        """Return the state for a capture point that goes on, when all windows were taken (`ordinal`: see `Border`).

        The latencies are this sink's own: a caller that still finishes it gives it a copy of them after this."""
        border = Border(self.topics.name, ordinal)
        return CarryOver(
            self.topics.onward(""),
            self._brokers.onward(""),
            self._offers.onward(""),
            self.latency,
            self.analysis.control,
            self.selection.messages,
            self._records,
            tuple(collector.onward(border) for collector in self.analysis.collectors),
        )

    def learn(self, window: Window) -> None:
        """Take a window, of which no rows are made yet."""
        self.settled = False
        if self._options.meaning and not window.measured:
            window = self.latency.take(window)
        for learner in self._learners:
            learner.take(window)
        self.analysis.take(window)
        window = self.selection.take(window)
        self.summary.take(window)
        self._records.take(window)
        if len(window.exchanges):
            self.waiting.append(window.exchanges)
            self.rows += max(len(window.exchanges), window.exchanges.partitions.shape[1] // PARTITIONS_A_ROW)
        self.rows = max(self.rows, ROWS_A_CONNECTION * self._ended.waiting)

    def window_rows(self) -> Iterator[tuple[str, pa.Table]]:
        """Return the rows of record batches, and the raw messages of the window taken last, if they are kept."""
        yield from self._records.tables()
        yield from self.selection.rows()

    def take(self, window: Window) -> Iterator[Rows]:
        """Take a window, and return rows that are known for good."""
        self.learn(window)
        yield from self.window_rows()
        yield from self.analysis.early(self.names.capture, self.topics, self.latency.sessions)
        if self.rows >= self._enough_rows:
            yield from self.flush()

    def flush(self) -> Iterator[Rows]:
        """Return all exchanges that wait, and rows of small tables; what makes them may run while windows are taken."""
        self.summary.own.take(self.waiting)
        yield "exchanges", exchange_tables.later_exchanges(self.names, self.waiting)
        yield "partitions", exchange_tables.later_partitions(self.names, self.waiting)
        self.waiting, self.rows = [], 0
        for collector in self._small:
            yield from collector.tables()
        self.names.release()
        self.settled = True

    def leave_waiting(self) -> None:
        """Let go of exchanges that wait: they become rows elsewhere."""
        self.waiting, self.rows = [], 0
        self.names.release()

    def pause(self) -> Iterator[Rows]:
        """Return all rows that are known, record batches that wait for a row group too: the capture goes on later."""
        yield from self.flush()
        yield from self.flush_records()

    def flush_records(self) -> Iterator[tuple[str, pa.Table]]:
        """Return the record batches that wait for more to make a row group."""
        yield from self._records.flush()

    def finish(self) -> Iterator[Rows]:
        """Return all rows that are left when the capture has ended; each table comes at least once."""
        yield from self.flush()
        yield from self.remaining_records()
        yield from self.analysis_rows()

    def remaining_records(self) -> Iterator[tuple[str, pa.Table]]:
        """Return the record batches whose exchange never ended."""
        yield from self._records.finish(self.names)

    def analysis_rows(self) -> Iterator[tuple[str, pa.Table]]:
        """Return the tables of the analysis, when all windows were taken."""
        sessions = self.latency.sessions
        sessions.finish(self.names)
        yield from self.analysis.finish(self.names.capture, self.topics, sessions)

    def named(self) -> Iterator[np.ndarray]:
        """Return the numbers of strings that are still meant once all rows are made."""
        yield from self.latency.named()
        yield from self.analysis.named()

    def join_counts(self) -> None:
        """Add the counts of record batches to the summary, when all windows were taken."""
        self.summary.records.join(self._records.counts)

    def result(self, point: CapturePoint, stats: CaptureStats, attempts: Sequence[Attempt]) -> PointResult:
        """Return what is known besides the rows. `attempts`: connections that never were established."""
        self.join_counts()
        self.summary.finish(point.name, stats, self._ended, self.topics)
        return point_result(
            point,
            stats,
            attempts,
            summary=self.summary,
            ended=self._ended,
            zookeeper=self._zookeeper,
            brokers=self._brokers,
            means=self._options.means,
            schema_sources=self._records.schema_sources,
            early_rows=self.analysis.early_rows,
            passed=(self.selection.matched, self.selection.seen) if self._options.filter is not None else None,
        )
