"""Columns cached from rows on their way to files equal those read from the files: `analyzer/frame/pending.py`,
`columns.py`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from kwire import analyzer
from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.dataset import open_dataset
from kwire.analyzer.findings import evaluate
from kwire.analyzer.findings.capture import CACHED
from kwire.analyzer.frame import columns as column_cache
from kwire.analyzer.frame import parquet, pending
from kwire.analyzer.frame.parquet import RowGroups, StoredFrame
from kwire.analyzer.frame.pending import PendingTables
from tests.shared import capture_files, real_folder

CAPTURES = [{"name": "a"}]
GROUP = 4
COLUMNS = {
    "latency_us": [7] * GROUP + [1, 2, None, 3] + [None] * GROUP,
    "queue_us": [None] * GROUP + [4, None, 9, 9] + [0] * GROUP,
    "api_key": [1] * 3 * GROUP,
    "group_id": [None] * GROUP + ["g"] * GROUP + ["h", None, "g", "h"],
    "status": ["answered"] * GROUP + ["in_flight"] * GROUP + ["answered", "unanswered"] * 2,
}
"""Of three row groups."""


def table(name: str = "exchanges", columns: Mapping[str, object] | None = None, rows: int = 3 * GROUP) -> pa.Table:
    schema = tables.schema(name)
    of: Mapping[str, Any] = {"capture": ["a"] * rows, **(columns or {})}
    return pa.table([pa.array(of.get(field.name, [None] * rows), field.type) for field in schema], schema=schema)


def coded(rows: pa.Table) -> pa.Table:
    """As rows are made: strings as dictionaries."""
    for at, column in enumerate(rows.schema):
        if column.type == pa.string():
            rows = rows.set_column(at, column.name, rows.column(at).dictionary_encode())
    return rows


def settled(files: dict[str, list[Path]]) -> Future[dict[str, list[Path]]]:
    done: Future[dict[str, list[Path]]] = Future()
    done.set_result(files)
    return done


def makers(keep: PendingTables, rows: pa.Table) -> list[Callable[[], pa.Table]]:
    groups = [coded(rows.slice(start, GROUP)) for start in range(0, len(rows), GROUP)]
    pieces = [keep.take("exchanges", functools.partial(groups.__getitem__, at)) for at in range(len(groups))]
    assert all(callable(piece) for piece in pieces)
    return [piece for piece in pieces if callable(piece)]


def words(rows: StoredFrame, column: str) -> Sequence[str | None]:
    codes, names = rows.text(column)
    return [names[code] if code >= 0 else None for code in codes.tolist()]


@pytest.mark.parametrize("small", [0, 100])
def test_columns_are_those_of_the_files(small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups that are made in another order; the files are not there yet, and nobody asks for them."""
    monkeypatch.setattr(pending, "SMALL_ROWS", small)
    monkeypatch.setattr(parquet, "SMALL_ROWS", small)
    rows = table(columns=COLUMNS)
    keep = PendingTables(CACHED)
    for make in reversed(makers(keep, rows)):
        make()
    cached = StoredFrame(keep.row_groups(Future(), CAPTURES, ()), "a", "exchanges")
    path = tmp_path / "part.parquet"
    pyarrow.parquet.write_table(rows, path, row_group_size=GROUP)
    stored = StoredFrame(RowGroups({"exchanges": [path]}, CAPTURES), "a", "exchanges")
    assert len(cached) == len(stored) == len(rows)
    for column, dtype in CACHED["exchanges"].numbers.items():
        own, other = cached.numbers(column, dtype), stored.numbers(column, dtype)
        assert own.dtype == other.dtype
        assert own.tolist() == other.tolist(), column
    for column in CACHED["exchanges"].texts:
        if column != "connection":
            assert words(cached, column) == words(stored, column), column
    for column in CACHED["exchanges"].greatest:
        assert cached.greatest(column) == stored.greatest(column), column
    assert cached.greatest("latency_us") == 7
    assert cached.greatest("broker_us") == np.iinfo(np.int64).min


def test_what_is_not_kept_is_read_from_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "SMALL_ROWS", 2)
    monkeypatch.setattr(parquet, "SMALL_ROWS", 2)
    rows = table(columns={**COLUMNS, "response_bytes": list(range(3 * GROUP))})
    path = tmp_path / "part.parquet"
    pyarrow.parquet.write_table(rows, path, row_group_size=GROUP)
    for most in (3 * GROUP, 2 * GROUP):
        monkeypatch.setattr(pending, "MOST_ROWS", most)
        keep = PendingTables(CACHED)
        for make in makers(keep, rows):
            make()
        keep.take("topic_ids", table("topic_ids", rows=3))
        files = {"exchanges": [path], "topic_ids": []}
        tables_read = keep.row_groups(settled(files), CAPTURES, ())
        assert ("exchanges" in tables_read.cached) == (most == 3 * GROUP)
        assert list(tables_read.parts["topic_ids"]) == []  # three are more than are kept
        exchanges = StoredFrame(tables_read, "a", "exchanges")
        assert exchanges["latency_us"].tolist()[:2] == [7, 7]
        assert exchanges["response_bytes"].tolist() == list(range(3 * GROUP))
        assert [row["group_id"] for row in exchanges.rows([4, 9], ["group_id"])] == ["g", None]


def test_where_rows_are_never_made_the_reason_is_told() -> None:
    keep = PendingTables(CACHED)
    keep.take("exchanges", functools.partial(table, "exchanges"))
    failed: Future[dict[str, list[Path]]] = Future()
    failed.set_exception(OSError("disk full"))
    with pytest.raises(OSError, match="disk full"):
        keep.row_groups(failed, CAPTURES, ())


@pytest.mark.parametrize("small", [0, parquet.SMALL_ROWS])
def test_findings_are_those_of_the_files(small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "SMALL_ROWS", small)
    monkeypatch.setattr(parquet, "SMALL_ROWS", small)
    files = [str(path) for path in capture_files(real_folder("sasl-librdkafka-4.3"))]
    analyzer.analyze(files, tmp_path / "out", rotated=True)
    dataset = open_dataset(tmp_path / "out")
    stored = evaluate.as_table(evaluate.judged(RowGroups.of(dataset)))
    assert len(stored) > 2
    assert pyarrow.parquet.read_table(next((tmp_path / "out" / "findings").iterdir())).to_pylist() == stored.to_pylist()


def test_nothing_is_kept_of_what_no_rule_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message has up to 4 MiB, a record any number of bytes."""
    names: set[str] = set()
    read = StoredFrame.__init__

    def noted(self: StoredFrame, source: RowGroups, capture: str, name: str) -> None:
        names.add(name)
        read(self, source, capture, name)

    monkeypatch.setattr(StoredFrame, "__init__", noted)
    captured = analyzer.analyze([str(path) for path in capture_files(real_folder("sasl-librdkafka-4.3"))], rotated=True)
    evaluate.judged(RowGroups.of(captured))
    assert names >= {"exchanges", "partitions", "batches", "connections"}
    assert not names & pending.NEVER_READ
    keep = PendingTables(CACHED)
    rows = table("messages", {"bytes": [b"x"] * 3 * GROUP})
    assert keep.take("messages", rows) is rows
    assert not keep._tables


def test_of_a_long_dictionary_only_texts_in_use_get_a_code() -> None:
    """A window's columns name all strings of the capture so far by their numbers."""
    texts = pa.array([f"t{number}" for number in range(10_000)])
    known: dict[str, int] = {"t7": 0}
    chunk = pa.DictionaryArray.from_arrays(pa.array([9000, None, 7, 9000, 3], pa.int32()), texts)
    codes = column_cache.encode(chunk, known)
    assert list(known) == ["t7", "t3", "t9000"]
    assert codes.tolist() == [2, -1, 0, 2, 1]
    whole = column_cache.encode(pa.DictionaryArray.from_arrays(pa.array(range(len(texts)), pa.int32()), texts), known)
    assert len(known) == len(texts)
    assert [list(known)[code] for code in whole.tolist()] == texts.to_pylist()
