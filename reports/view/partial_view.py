"""Views of a capture while it is being analysed.

In: the beginning of a capture, and rows of tables as they are made. Out: views, in a `CurrentView`.
Rules: a new view is made when the number of rows has multiplied, so that views cost a fraction of the analysis; beyond
`SHOWN` rows only the complete view follows, so that memory is bounded.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from kwire.analyzer.dataset.dataset import StoredDataset
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.errors import KwireError
from kwire.captures.files import CapturePoint
from kwire.reports.view import columns
from kwire.reports.view.answers import DataView
from kwire.reports.view.current_view import CurrentView
from kwire.reports.view.messages import Messages
from kwire.reports.view.source_captures import SourceCaptures
from kwire.reports.view.tables import Tables

SHOWN: Final = 1_000_000
"""Exchanges that are shown before the analysis is complete."""

PEEKED: Final = 1 << 20
"""Bytes of a capture that are read at a time for its first exchanges."""

GROWTH: Final = 4
"""Factor of growth in rows that makes a new view."""


class ViewClosedError(Exception):
    """The view was closed; raised to stop the analysis."""


class PartialViews:
    """Makes views of the rows that an analysis hands out.

    folder    folder for their columns
    named     function that makes a view of tables and messages
    begun     capture points as in a manifest, as far as known, so that times shown do not change later
    """

    def __init__(
        self,
        current: CurrentView,
        folder: Path,
        captures: SourceCaptures | None,
        named: Callable[[Tables, Messages], DataView],
        begun: Sequence[dict[str, Any]] = (),
    ) -> None:
        self._current = current
        self._folder = folder
        self._captures = captures
        self._named = named
        self._begun = list(begun)
        self._rows: list[pa.Table] = []
        self._count = 0
        self._next = 1
        self._topics: dict[str, str] = {}
        self._read: dict[str, int] = {}

    def progress(self, name: str, read: int, size: int) -> None:
        """Take the analysis's progress: bytes read of a file's size. Raises ViewClosedError."""
        if self._current.ended:
            raise ViewClosedError
        self._current.size = max(self._current.size, size) if name in self._read else self._current.size + size
        self._read[name] = read
        read = sum(self._read.values())
        self._current.read = min(read, self._current.size or read)  # a file may grow meanwhile

    def peek(self, point: CapturePoint, how: ReadOptions) -> None:
        """Make a view of a capture's beginning, long before the analysis hands out its first thousands of rows. Errors
        are left to the analysis to report."""
        from kwire.analyzer.bulk.engine import Engine  # datasets do not need them
        from kwire.analyzer.dataset.parquet_files import tables_of
        from kwire.analyzer.pipeline.analysis_options import AnalysisOptions
        from kwire.analyzer.pipeline.drive import drive
        from kwire.analyzer.pipeline.point_tables import PointTables

        with contextlib.suppress(KwireError, OSError):
            engine = Engine(point, how._replace(window_bytes=PEEKED, threads=1).settings())
            sink = PointTables(engine.merging.names, AnalysisOptions(records="none"), enough_rows=1)
            first = next(table for name, table in tables_of(drive(engine, [sink])) if name == "exchanges")
            rows = [first] if len(first) else []
            if rows and not self._current.ended:
                self._current.show(self._view_of_rows(rows, sink.topics.names))

    def take_rows(self, name: str, table: pa.Table) -> None:
        """Take rows of a table. Raises ViewClosedError."""
        if self._current.ended:
            raise ViewClosedError
        if name == "topic_ids":
            self._topics |= {row["topic_id"]: row["topic"] for row in table.to_pylist() if row["topic"]}
        if name != "exchanges" or self._next > SHOWN:
            return
        self._rows.append(table)
        self._count += len(table)
        if self._count >= self._next:
            self._next = GROWTH * self._count
            with contextlib.suppress(
                OSError
            ):  # without disk space there are no first rows; writing the dataset reports it
                self._current.show(self._view_of_rows(self._rows, dict(self._topics)))
        if self._next > SHOWN:
            self._rows.clear()

    def _view_of_rows(self, rows: list[pa.Table], topics: dict[str, str]) -> DataView:
        place = self._folder / f"first-{self._current.round}"
        columns.write_columns_of(rows, lambda topic: topics.get(topic, topic), place)
        dataset = StoredDataset(place, {"captures": self._begun, "coverage": {}, "files": []})
        tables = Tables(dataset, columns.open_columns(place), topics)
        shutil.rmtree(place, ignore_errors=True)  # mapped files remain readable
        messages = Messages(tables, self._captures)
        if messages.available:
            tables.bodies = messages.matching
        view = self._named(tables, messages)
        return view
