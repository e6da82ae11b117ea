"""Write Parquet files in the background: rows stay in the order in which they were given."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from kwire.analyzer.dataset import tables
from kwire.analyzer.dataset.parquet_files import ALONE_BYTES, PENDING_TABLES, TableFiles

SCHEMA = tables.schema("topic_ids")


def rows(*topics: str) -> pa.Table:
    return pa.Table.from_pylist(
        [{"capture": "c", "topic_id": topic, "topic": topic} for topic in topics], schema=SCHEMA
    )


def stored(folder: Path, entry: dict[str, object]) -> list[str]:
    topics: list[str] = pyarrow.parquet.read_table(folder / str(entry["path"])).column("topic").to_pylist()
    return topics


@pytest.mark.parametrize("writers", [1, 2, 8])
def test_rows_stand_as_they_were_given(writers: int, tmp_path: Path) -> None:
    """Write tables and functions that make tables to two files in turn, more than may be pending at a time."""
    parts = TableFiles(tmp_path, "a", writers)
    wanted = []
    for number in range(3 * (PENDING_TABLES + writers)):
        name = f"t{number}"
        wanted.append(name)
        parts.write("topic_ids", rows(name) if number % 3 else functools.partial(rows, name))
        parts.write("brokers", rows(name))
    topic_file, broker_file = parts.close()
    assert stored(tmp_path, topic_file) == stored(tmp_path, broker_file) == wanted
    assert (topic_file["table"], topic_file["rows"], broker_file["table"]) == ("topic_ids", len(wanted), "brokers")


def test_a_large_message_is_a_row_group_of_its_own(tmp_path: Path) -> None:
    sizes = [10, ALONE_BYTES, 20, ALONE_BYTES - 1, ALONE_BYTES + 5, ALONE_BYTES, 3]
    schema = tables.schema("messages")
    given = pa.Table.from_pylist([{"bytes": bytes(size), "exchange": at} for at, size in enumerate(sizes)], schema)
    parts = TableFiles(tmp_path, "a")
    parts.write("messages", given)
    parts.write("messages", given.slice(2, 1))
    (entry,) = parts.close()
    file = pyarrow.parquet.ParquetFile(tmp_path / str(entry["path"]))
    assert [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)] == [1, 1, 2, 1, 1, 1, 1]
    assert entry["rows"] == len(sizes) + 1
    assert file.read().column("bytes").to_pylist() == [bytes(size) for size in [*sizes, 20]]


def test_what_is_made_later_stands_where_it_was_given(tmp_path: Path) -> None:
    """The second is made before the first: it waits for it."""
    second_is_made = threading.Event()

    def first() -> pa.Table:
        assert second_is_made.wait(60)
        return rows("first")

    def second() -> pa.Table:
        second_is_made.set()
        return rows("second")

    parts = TableFiles(tmp_path, "a", writers=3)
    parts.write("topic_ids", first)
    parts.write("topic_ids", second)
    assert stored(tmp_path, *parts.close()) == ["first", "second"]


@pytest.mark.parametrize("writers", [1, 2])
def test_each_is_made_once(writers: int, tmp_path: Path) -> None:
    calls: list[str] = []

    def making(name: str) -> Callable[[], pa.Table]:
        def make() -> pa.Table:
            calls.append(name)
            return rows(name)

        return make

    parts = TableFiles(tmp_path, "a", writers)
    names = [f"t{number}" for number in range(20)]
    for name in names:
        parts.write("topic_ids", making(name))
    assert stored(tmp_path, *parts.close()) == sorted(names, key=names.index)
    assert sorted(calls) == sorted(names)


@pytest.mark.parametrize("writers", [1, 2])
def test_what_goes_wrong_in_the_background_is_raised(writers: int, tmp_path: Path) -> None:
    def broken() -> pa.Table:
        raise OSError(28, "No space left on device")

    parts = TableFiles(tmp_path, "a", writers)
    parts.write("topic_ids", broken)
    with pytest.raises(OSError, match="No space left"):
        parts.close()
    with pytest.raises(OSError, match="No space left"):
        parts.write("topic_ids", rows("t"))
    parts.abandon()
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_file_without_rows_is_one(tmp_path: Path) -> None:
    parts = TableFiles(tmp_path, "a")
    parts.write("topic_ids", rows())
    parts.write("brokers", rows)
    assert [(entry["table"], entry["rows"]) for entry in parts.close()] == [("topic_ids", 0), ("brokers", 0)]


@pytest.mark.parametrize("empty_first", [True, False])
def test_a_table_without_rows_does_not_decide_how_strings_are_kept(empty_first: bool, tmp_path: Path) -> None:
    """As of a capture without Produce beside one with it: strings of rows may have numbers (dictionaries)."""
    some = pa.table({name: rows("x", "y").column(name).dictionary_encode() for name in SCHEMA.names})
    parts = TableFiles(tmp_path, "a")
    for table in (rows(), some) if empty_first else (some, rows()):
        parts.write("topic_ids", table)
    (entry,) = parts.close()
    assert stored(tmp_path, entry) == ["x", "y"]


def test_a_table_without_rows_is_a_file(tmp_path: Path) -> None:
    parts = TableFiles(tmp_path, "a")
    parts.write("topic_ids", rows)  # made by a thread
    parts.write("topic_ids", rows())
    (entry,) = parts.close()
    assert (stored(tmp_path, entry), entry["rows"]) == ([], 0)
