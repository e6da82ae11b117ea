"""Rows that stay columns are what dicts of them are.

Proves: analyzer/frame/cells.py, analyzer/api.py
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kwire.analyzer import api
from kwire.analyzer.dataset import tables
from kwire.analyzer.frame import cells
from kwire.analyzer.pipeline.read_options import ReadOptions
from tests.shared import SAMPLES, capture_files, sample_folders

CAPTURES = {folder.name: folder for folder in sample_folders()}
SHUT = "tls13-aiokafka-4.3"  # needs keys to be read
SAMPLE = SAMPLES / "codecs-franzgo-4.3"


def both(name: str) -> tuple[list[Any], list[Any]]:
    files = [str(path) for path in capture_files(CAPTURES[name])]
    how = ReadOptions(rotated=len(files) > 1)
    return list(api.raw_exchanges(files, how)), list(api.decoded(files, how))


@pytest.mark.parametrize("name", sorted(CAPTURES.keys() - {SHUT}))
def test_light_exchanges_have_the_cells_and_messages_of_others_in_their_order(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "ROWS", 7)
    light, full = both(name)

    assert [dict(exchange.row) for exchange in light] == [exchange.row for exchange in full]
    assert [exchange[1:] for exchange in light] == [
        (exchange.request_message, exchange.response_message) for exchange in full
    ]
    table = cells.table([exchange.row for exchange in light], "exchanges")
    assert table.schema == tables.schema("exchanges")
    assert table.to_pylist() == [exchange.row for exchange in full]


def rows() -> list[cells.Row]:
    return [exchange.row for exchange in both(SAMPLE.name)[0]]


def test_a_row_is_a_mapping_like_the_dict_of_it() -> None:
    row = rows()[0]
    alone = dict(row)
    assert row == alone
    assert repr(row) == repr(alone)
    assert {**row, "api": "other"} == {**alone, "api": "other"}
    assert list(row) == tables.schema("exchanges").names
    assert row.get("api") == alone["api"]
    assert row.get("no such column") is None
    with pytest.raises(KeyError):
        row["no such column"]
    assert pickle.loads(pickle.dumps(row)) == alone


def test_a_time_is_told_without_a_datetime() -> None:
    for row in rows():
        for name in ("request_time", "response_end"):
            micros = row.micros(name)
            stored = pa.scalar(micros, tables.TIME).as_py()
            assert stored == row[name]


def test_rows_and_dicts_go_into_one_table_in_their_order() -> None:
    some = rows()[:9]
    renamed: list[Any] = [{**row, "client_id": f"copy-{at}"} if at % 2 else row for at, row in enumerate(some)]
    assert cells.table(renamed, "exchanges").to_pylist() == [dict(row) for row in renamed]
    assert cells.table(renamed[1::2], "exchanges").to_pylist() == renamed[1::2]
    lacking = [{"client_id": "a"}, some[0]]
    table = cells.table(lacking, "exchanges", ("client_id", "acks"))
    assert table.to_pylist() == [{"client_id": "a", "acks": None}, {name: some[0][name] for name in table.column_names}]


def test_a_row_keeps_its_part_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "ROWS", 4)
    whole = cells.table(rows(), "exchanges")
    parts = list(cells.parts(whole))
    assert sum(map(len, parts)) == len(whole)
    assert max(part.batch.get_total_buffer_size() for part in parts) < whole.get_total_buffer_size() / 4


def test_parts_have_memory_of_their_own() -> None:
    """The memory that a kernel wrote its rows to is written to again."""
    numbers = np.arange(3)
    (part,) = cells.parts(pa.table({"reply": pa.Array.from_buffers(pa.int64(), 3, [None, pa.py_buffer(numbers)])}))
    numbers[:] = 7
    assert part.column("reply") == [0, 1, 2]


def test_equal_strings_are_one_object() -> None:
    some = rows()
    some = [row for row in some if row.part is some[0].part]
    assert len({id(row["connection"]) for row in some}) == len({row["connection"] for row in some}) < len(some)


@pytest.mark.parametrize("bound", ["HELD", "HELD_BYTES"])
def test_what_waits_for_an_exchange_that_began_before_is_bounded(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [str(path) for path in capture_files(SAMPLES / "group-kip848-librdkafka-4.3")]
    how = ReadOptions(window_bytes=10_000)

    def given() -> list[tuple[Any, Any]]:
        return [
            (exchange.row["connection"], exchange.row["exchange"] or exchange.row["reply"])
            for exchange in api.raw_exchanges(files, how)
        ]

    in_order = given()
    monkeypatch.setattr(api, bound, 0)
    at_once = given()
    assert sorted(at_once, key=str) == sorted(in_order, key=str)
    assert at_once != in_order  # fetches that were held came when they ended
    monkeypatch.setattr(api, bound, 1 << 30)
    assert given() == in_order
