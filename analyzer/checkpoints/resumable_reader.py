"""A capture point that is read file by file, and may be left between two files and taken up by another process.

In: the files of a capture point as they become whole; a snapshot. Out: (name of a table, rows) that are known for good,
a snapshot, and in the end what one pass over all files would have given besides. Rules

- Whatever stands where a file ends goes on in the next: connections, unfinished messages, requests without an answer.
- A file that still grows may be left between two of its records, and is gone on with there.
- All rows that are known are handed out before a snapshot is taken, so rows are in it never twice.
- A snapshot is read with the options that it was made with, or not at all.
- Names for topic ids are known as far as messages have said them: what comes later is not read ahead (`--filter` with
  a topic, records of internal topics).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from kwire.analyzer.bulk.engine import Engine, Settings
from kwire.analyzer.checkpoints.checkpoint import (
    difference,
    fill,
    opened_checkpoint,
    packed_checkpoint,
    reading_options,
)
from kwire.analyzer.checkpoints.codec import CheckpointError
from kwire.analyzer.dataset.parquet_files import tables_of
from kwire.analyzer.pipeline.analysis_options import AnalysisOptions
from kwire.analyzer.pipeline.drive import drive
from kwire.analyzer.pipeline.point_result import PointResult
from kwire.analyzer.pipeline.point_tables import PointTables
from kwire.captures.files import CapturePoint

Rows = Iterator[tuple[str, pa.Table]]


class ResumableReader:
    """One capture point. `secrets`: of TLS, which earlier files brought along, where they are still known. `key`: of
    whom snapshots are, if not of this user."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        choice: AnalysisOptions,
        snapshot: bytes | None = None,
        secrets: Sequence[bytes] = (),
        key: bytes | None = None,
    ) -> None:
        self.name = name
        self._settings, self._choice, self._key = settings, choice, key
        before = None if snapshot is None else opened_checkpoint(snapshot, key=key)
        shards = settings.shards if before is None else int(before["about"]["shards"])
        settings = replace(settings, shards=shards, keep_records=choice.keep_records)
        about = reading_options(name, settings, choice)
        if before is not None and before["about"] != about:
            raise CheckpointError(difference(before["about"], about), "give the same options, or a new dataset")
        self._about = about
        self._engine = Engine(CapturePoint(name, ()), settings)
        self._sink = PointTables(self._engine.merging.names, choice, settings.threads)
        if before is not None:
            fill(before, [self._engine, self._sink])
            self._engine.take_up(secrets)

    @property
    def secrets(self) -> list[bytes]:
        """TLS secrets that the files so far brought along."""
        return self._engine.reader.secrets

    def read(self, files: CapturePoint, until: int | None = None) -> Rows:
        """Further files of the capture point, whole: the rows that are known with them. `until`: the last one still
        grows, and has so many bytes; it is the first of the files that are read next."""
        self._engine.go_on(files, until)
        yield from tables_of(drive(self._engine, [self._sink], over=False))
        yield from tables_of(self._sink.pause())

    def finish(self) -> Generator[tuple[str, pa.Table], None, PointResult]:
        """The capture is over: all rows that are left, and what is known of the capture point."""
        engine = self._engine
        yield from tables_of(drive(engine, [self._sink]))
        return self._sink.result(CapturePoint(self.name, ()), engine.reader, engine.attempts())

    def snapshot(self) -> bytes:
        """All that is known between two files, sealed. Raises CheckpointError."""
        return packed_checkpoint(self.name, self._about, [self._engine, self._sink], key=self._key)
