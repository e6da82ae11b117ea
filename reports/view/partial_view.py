"""Rows of a capture that is being analysed become views.

In: what a capture begins with, and rows of tables as they are made. Out: views, on a `Stage`.
Rules: a new view comes when there are several times as many rows, so that making them costs a part of the analysis;
beyond `SHOWN` rows none comes before all is there, so that memory is bounded.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from analyzer.dataset.dataset import StoredDataset
from analyzer.pipeline.read_options import ReadOptions
from captures.errors import KwireError
from captures.files import CapturePoint
from reports.view import columns
from reports.view.answers import View
from reports.view.current_view import Stage
from reports.view.messages import Messages
from reports.view.source_captures import Captures
from reports.view.tables import Tables

SHOWN: Final = 1_000_000
"""Exchanges that are shown before all are there."""

PEEKED: Final = 1 << 20
"""Bytes of a capture that are read at a time for its very first exchanges."""

GROWTH: Final = 4
"""So many times as many rows make a new view."""


class Ended(Exception):
    """Nobody looks any more."""


class Growing:
    """Rows of a capture that is being analysed become views of a stage. `folder` is for their columns; `named`: what
    makes a view of tables and messages; `begun`: the capture points as a manifest has them, as far as they are known,
    for times that do not become others when all is there."""

    def __init__(
        self,
        stage: Stage,
        folder: Path,
        captures: Captures | None,
        named: Callable[[Tables, Messages], View],
        begun: Sequence[dict[str, Any]] = (),
    ) -> None:
        self._stage = stage
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
        """Told by the analysis. Raises Ended."""
        if self._stage.ended:
            raise Ended
        self._stage.size = max(self._stage.size, size) if name in self._read else self._stage.size + size
        self._read[name] = read
        read = sum(self._read.values())
        self._stage.read = min(read, self._stage.size or read)  # files may grow meanwhile

    def peek(self, point: CapturePoint, how: ReadOptions) -> None:
        """A view of what a capture begins with: the analysis hands out rows by many thousands, and nobody waits for
        those. What is wrong with the capture is left to the analysis to say."""
        from analyzer.bulk.engine import Engine  # a dataset is shown without them
        from analyzer.dataset.parquet_files import tables_of
        from analyzer.pipeline.analysis_options import AnalysisOptions
        from analyzer.pipeline.drive import drive
        from analyzer.pipeline.point_tables import PointTables

        with contextlib.suppress(KwireError, OSError):
            engine = Engine(point, replace(how, window_bytes=PEEKED, threads=1).settings())
            sink = PointTables(engine.merging.names, AnalysisOptions(records="none"), enough_rows=1)
            first = next(table for name, table in tables_of(drive(engine, [sink])) if name == "exchanges")
            rows = [first] if len(first) else []
            if rows and not self._stage.ended:
                self._stage.become(self._made(rows, sink.topics.names))

    def seen(self, name: str, table: pa.Table) -> None:
        """Rows of a table. Raises Ended."""
        if self._stage.ended:
            raise Ended
        if name == "topic_ids":
            self._topics |= {row["topic_id"]: row["topic"] for row in table.to_pylist() if row["topic"]}
        if name != "exchanges" or self._next > SHOWN:
            return
        self._rows.append(table)
        self._count += len(table)
        if self._count >= self._next:
            self._next = GROWTH * self._count
            with contextlib.suppress(OSError):  # without room there are no first rows; the dataset will say so
                self._stage.become(self._made(self._rows, dict(self._topics)))
        if self._next > SHOWN:
            self._rows.clear()

    def _made(self, rows: list[pa.Table], topics: dict[str, str]) -> View:
        place = self._folder / f"first-{self._stage.round}"
        columns.make_of(rows, lambda topic: topics.get(topic, topic), place)
        dataset = StoredDataset(place, {"captures": self._begun, "coverage": {}, "files": []})
        tables = Tables(dataset, columns.opened(place), topics)
        shutil.rmtree(place, ignore_errors=True)  # what is mapped stays there
        messages = Messages(tables, self._captures)
        if messages.at_hand:
            tables.bodies = messages.matching
        view = self._named(tables, messages)
        return view
