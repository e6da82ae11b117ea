"""Frames: rows chosen, sorted and joined against plain Python; lists and texts as they are stored.

(proves: analyzer/frame/frame.py, grouping.py, parquet.py, counting.py)
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire.analyzer.dataset import tables
from kwire.analyzer.frame import counting, spill
from kwire.analyzer.frame.frame import NULL, Codes, Frame
from kwire.analyzer.frame.grouping import left_join
from kwire.analyzer.frame.parquet import RowGroups, read

NEAR = st.integers(-1, 4)
FAR = st.sampled_from([-(1 << 62), -7, 0, 3, 1 << 61, (1 << 62) + 1])


@pytest.fixture(params=[3, 1 << 20])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "BLOCK", request.param)


def columns(rows: list[tuple[int, int]]) -> list[np.ndarray]:
    return [np.array([row[column] for row in rows], np.int64) for column in range(2)]


@pytest.mark.parametrize("values", [NEAR, FAR, NEAR | FAR], ids=["near", "far", "both"])
@given(data=st.data(), block=st.sampled_from([3, 1 << 20]), keys=st.integers(1, 2))
def test_a_join_finds_the_first_row_with_the_same_keys(
    values: st.SearchStrategy[int], data: st.DataObject, block: int, keys: int
) -> None:
    left, right = (data.draw(st.lists(st.tuples(values, NEAR), max_size=12)) for _ in range(2))
    known = [row[:keys] for row in right]
    expected = [known.index(row[:keys]) if row[:keys] in known else -1 for row in left]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spill, "BLOCK", block)
        assert left_join(columns(left)[:keys], columns(right)[:keys]).tolist() == expected


@pytest.mark.usefixtures("block")
def test_a_join_takes_columns_that_are_null_where_nothing_matches() -> None:
    answers = Frame(4, {"key": np.array([5, 5, 7, 9]), "error": np.array([1, 2, 3, 4], np.int16)})
    batches = Frame(5, {"key": np.array([9, 5, 6, 7, 5]), "size": np.arange(5)})
    joined = batches.left_join(answers, on=["key"], take=["error"])
    assert joined["error"].dtype == np.int16
    assert joined["error"].tolist() == [4, 1, np.iinfo(np.int16).min, 3, 1]
    assert joined["size"].tolist() == [0, 1, 2, 3, 4]
    assert batches.left_join(answers.take(np.zeros(0, np.int64)), ["key"], ["error"])["error"].tolist() == [-32768] * 5


@pytest.mark.usefixtures("block")
def test_rows_are_taken_sorted_and_grouped_with_all_their_columns() -> None:
    read_columns: list[str] = []

    def load(name: str) -> Codes:
        read_columns.append(name)
        return Codes(np.array([1, 0, -1, 1, 0], np.int32), ["b", "a"])

    frame = Frame(5, {"size": np.array([30, 10, 20, 10, 40])}, load)
    smaller = frame.where(frame["size"] < 40)
    assert not read_columns  # a column is loaded when it is used
    assert smaller["size"].tolist() == [30, 10, 20, 10]
    assert smaller.text("client").codes.tolist() == [1, 0, -1, 1]
    ordered = frame.sort("client", "size")
    assert list(zip(ordered.text("client").codes.tolist(), ordered["size"].tolist(), strict=True)) == [
        (-1, 20),
        (0, 10),
        (0, 40),
        (1, 10),
        (1, 30),
    ]
    groups = frame.group("client")
    assert [rows.tolist() for rows in groups] == [[2], [1, 4], [0, 3]]
    assert groups.sum(frame["size"]).tolist() == [20, 50, 40]
    assert groups.first.tolist() == [2, 1, 0]
    assert groups.numbers().tolist() == [2, 1, 0, 2, 1]
    assert frame.text("client").rows("a", "c").tolist() == [0, 3]
    assert read_columns == ["client"]
    with pytest.raises(KeyError):
        Frame(1).column("size")


def test_texts_that_get_one_name_become_one() -> None:
    codes, values = Codes(np.array([0, 1, -1, 2], np.int8), ["id-1", "t", "u"]).rename(rename)
    assert (codes.tolist(), values) == ([0, 0, -1, 1], ["t", "u"])


def rename(topic: str) -> str:
    return "t" if topic == "id-1" else topic


TOPICS: list[list[str] | None] = [["t", "u"], None, [], ["u"], ["t"], ["v", "t", "u"]]
ERRORS: list[list[dict[str, int]] | None] = [
    None,
    [{"code": 3, "count": 2}],
    [],
    [{"code": 6, "count": 1}] * 2,
    [],
    None,
]


@pytest.mark.parametrize("is_stored", [False, True])
def test_lists_are_read_with_their_elements(is_stored: bool, tmp_path: Path) -> None:
    rows = len(TOPICS)
    given_columns: dict[str, list[Any]] = {"capture": ["a"] * rows, "topics": TOPICS, "errors": ERRORS}
    schema = tables.schema("exchanges")
    arrays = [pa.array(given_columns.get(field.name, [None] * rows), field.type) for field in schema]
    part: Any = pa.table(arrays, schema=schema)
    if is_stored:
        pyarrow.parquet.write_table(part, tmp_path / "part.parquet", row_group_size=2)
        part = [tmp_path / "part.parquet"]
    frame = read(RowGroups({"exchanges": part}, [{"name": "a"}]), "exchanges", ["latency_us", "client_id"])
    assert frame["latency_us"].tolist() == [NULL] * rows
    assert frame.text("client_id").codes.tolist() == [-1] * rows
    for chosen in (frame, frame.take(np.arange(rows)[::-1])):
        in_order = slice(None, None, 1 if chosen is frame else -1)
        topics, errors = chosen.lists("topics"), chosen.lists("errors")
        codes, values = topics.elements.text("value")
        expected = [topic for listed in TOPICS[in_order] for topic in listed or ()]
        assert [values[code] for code in codes.tolist()] == expected
        assert np.diff(topics.offsets).tolist() == [len(listed or ()) for listed in TOPICS[in_order]]
        listed_errors = [error for listed in ERRORS[in_order] for error in listed or ()]
        assert errors.elements["code"].tolist() == [error["code"] for error in listed_errors]
        assert errors.elements["count"].tolist() == [error["count"] for error in listed_errors]


@pytest.fixture
def cancelled() -> Iterator[threading.Event]:
    event = threading.Event()
    with spill.cancellable(event):
        yield event


def test_nothing_is_computed_for_nobody(cancelled: threading.Event) -> None:
    codes = np.array([0, 1, -1, 1], np.int8)
    assert counting.count_codes(codes, None, 2).tolist() == [1, 2]
    cancelled.set()
    with pytest.raises(spill.Cancelled):
        counting.count_codes(codes, None, 2)
    with pytest.raises(spill.Cancelled):
        spill.check_cancelled()
