"""Read a capture point in shares of its connections: merged, they give the rows of one reader (without Spark).

(proves: analyzer/pipeline/shares.py, analyzer/bulk/facts.py, analyzer/bulk/wire_format.py)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kwire import analyzer
from kwire.analyzer.api import findings_of
from kwire.analyzer.dataset.dataset import TableFiles
from kwire.analyzer.pipeline import shares
from kwire.analyzer.pipeline.points import AnalysisOptions, joined
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.files import capture_points
from tests.shared import SAMPLES, capture_files

WANTED: dict[str, dict[str, Any]] = {
    "all": {"records": "meta"},
    "records": {"records": "full"},
    "topic": {"filter": 'topic == "grp" or topic ~ "^js-" or api == Vote', "records": "full"},
    "parts": {"filter": "api == Fetch and latency > 100ms or api == Produce"},
    "bodies": {"filter": 'request.groupId == "grp-1" or response.brokers.port > 0'},
    "nothing": {"filter": "api == Vote"},
}


@pytest.mark.parametrize("sample", ["group-kip848-librdkafka-4.3", "client-kafkajs-3.9"])
@pytest.mark.parametrize(("count", "at_once"), [(1, 1 << 20), (3, 0), (3, 200_000)], ids=["one", "each", "some"])
@pytest.mark.parametrize("wanted", WANTED)
def test_shares_become_what_one_reader_gives(
    sample: str, count: int, at_once: int, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`at_once`: bytes of ranges that are sorted together: all, none, some."""
    monkeypatch.setattr(shares, "_AT_ONCE_BYTES", at_once)
    capture = str(capture_files(SAMPLES / sample)[0])
    [point] = capture_points([capture], False)
    choice = AnalysisOptions.of(keep_bytes=True, **WANTED[wanted])
    settings = ReadOptions(window_bytes=20_000).settings(choice.keep)
    parted = [shares.Share(number, count) for number in range(count)]
    topics: dict[str, str] = {}
    for part in parted if choice.asks_names else ():
        topics |= shares.topic_names_of_share(point, settings, part)
    results = [
        shares.share(point, settings, choice, part, 100, tmp_path / "pieces" / str(part.number), topics=topics)
        for part in parted
    ]
    assert results[0].ranges > 2
    rows, facts = shares.by_range(results)
    parts, small = TableFiles(tmp_path, "rows"), TableFiles(tmp_path, "facts")
    read, names, more = shares.take_facts(facts, results, point, choice, small, tmp_path / "decided")
    files, own = shares.merge(point, results[0].files, rows, parts, tmp_path / "decided")
    read.summary.own.join(own)
    tables_read = {
        entry["table"]: pq.read_table(tmp_path / entry["path"], partitioning=None) for entry in [*files, *more]
    }
    expected = analyzer.analyze(capture, keep_bytes=True, **WANTED[wanted])
    assert (len(expected.tables["exchanges"]) > 0) == (wanted != "nothing")
    assert {*names, "findings", "schemas"} == set(expected.tables)  # both are made of the whole
    joined_result = joined([read])
    tables_read["findings"] = findings_of(joined_result, tables_read)
    for name, table in expected.tables.items():
        rows_found = tables_read.pop(name, table.schema.empty_table()).cast(table.schema)
        assert len(rows_found) == len(table), name
        different = [column for column in table.column_names if not _same(rows_found, table, column)]
        assert not different, name
    assert not tables_read
    assert joined_result.summary == expected.summary
    assert (joined_result.coverage, joined_result.notes, joined_result.captures) == (
        expected.coverage,
        expected.notes,
        expected.captures,
    )


def _same(left: pa.Table, right: pa.Table, column: str) -> bool:
    return bool(left[column].combine_chunks().equals(right[column].combine_chunks()))
