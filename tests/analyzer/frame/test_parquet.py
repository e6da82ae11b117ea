"""Columns as rules read them: from files, where some row groups need not be read, as from tables in memory.

(proves: analyzer/frame/parquet.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from kwire.analyzer.dataset import tables
from kwire.analyzer.frame import parquet as sources
from kwire.analyzer.frame.parquet import RowGroups, StoredFrame

GROUP = 100
COLUMNS: dict[str, list[Any]] = {
    "capture": ["a"] * 3 * GROUP,
    "request_time": list(range(3 * GROUP)),
    "muted_us": [0] * 3 * GROUP,
    "queue_us": [7] * GROUP + [8] * GROUP + [7] * GROUP,
    "hold_us": [None] * GROUP + [5] * GROUP + [5, None, 6, 7] * (GROUP // 4),
    "latency_us": list(range(2 * GROUP)) + [3] * GROUP,
    "status": ["answered"] * 3 * GROUP,
    "group_id": [None] * GROUP + ["g"] * GROUP + ["h", None] * (GROUP // 2),
    "member_id": ["m", "n"] * GROUP + ["n"] * GROUP,
    "reason": [None] * 3 * GROUP,
}
"""Of three row groups: one value in all, in some, in none."""
NUMBERS = ("request_time", "muted_us", "queue_us", "hold_us", "latency_us")
CODES = ("status", "group_id", "member_id", "reason")


@pytest.fixture
def exchanges() -> pa.Table:
    schema = tables.schema("exchanges")
    rows = len(COLUMNS["capture"])
    return pa.table([pa.array(COLUMNS.get(field.name, [None] * rows), field.type) for field in schema], schema=schema)


@pytest.mark.parametrize("small", [0, 10 * GROUP])
def test_files_say_what_tables_in_memory_say(
    exchanges: pa.Table, small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "SMALL_ROWS", small)
    path = tmp_path / "part.parquet"
    pyarrow.parquet.write_table(exchanges, path, row_group_size=GROUP)
    captures = [{"name": "a"}]
    stored = StoredFrame(RowGroups({"exchanges": [path]}, captures), "a", "exchanges")
    for name in NUMBERS:
        expected = [np.iinfo(np.int64).min if value is None else value for value in COLUMNS[name]]
        assert stored[name].tolist() == expected, name
        assert StoredFrame(RowGroups({"exchanges": exchanges}, captures), "a", "exchanges")[name].tolist() == expected
    for name in CODES:
        codes, texts = stored.text(name)
        assert [texts[code] if code >= 0 else None for code in codes.tolist()] == COLUMNS[name], name


def test_what_has_one_value_is_not_read(exchanges: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SMALL_ROWS", 0)
    path = tmp_path / "part.parquet"
    pyarrow.parquet.write_table(exchanges, path, row_group_size=GROUP)
    source = RowGroups({"exchanges": [path]}, [{"name": "a"}])
    read: list[tuple[str, ...]] = []
    read_group = source.read_group

    def noted(table: str, group: Any, capture: str, columns: Sequence[str]) -> pa.Table:
        read.append(tuple(columns))
        return read_group(table, group, capture, columns)

    monkeypatch.setattr(source, "read_group", noted)
    StoredFrame(source, "a", "exchanges").load(dict.fromkeys(NUMBERS, np.int64), CODES)
    assert read == [
        ("request_time", "latency_us", "member_id"),
        ("request_time", "latency_us", "member_id"),
        ("request_time", "hold_us", "group_id"),
    ]
