"""The tables of the shipped samples are, column for column, those whose digests lie beside this file.

A change that is meant is accepted by writing the digests again; the difference of the file is part of the commit:

    python -m tests.digest --accept
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.digest.__main__ import EXPECTED, accepted, main
from tests.digest.columns import column_digest, table_digest, text_digest
from tests.digest.comparing import differences
from tests.shared import sample_folders

HOW = "if that is meant: python -m tests.digest --accept"


@pytest.mark.parametrize("folder", sample_folders(), ids=lambda folder: str(folder.name))
def test_every_column_of_a_sample_is_as_it_was(folder: Path) -> None:
    """Compared with the file's own names: a table or column that is new, lost or elsewhere fails too."""
    expected = json.loads(EXPECTED.read_text())[folder.name]
    actual = [str(difference) for difference in differences(expected, accepted(folder))]
    assert not actual, "\n".join([*actual, HOW])


def test_no_digest_is_left_of_a_sample_that_went() -> None:
    assert list(json.loads(EXPECTED.read_text())) == [folder.name for folder in sample_folders()]


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "numbers": (pa.int32(), [1, None, -3, 4]),
    "booleans": (pa.bool_(), [True, None, False, True]),
    "times": (pa.timestamp("us", tz="UTC"), [datetime(2026, 11, 21, tzinfo=UTC), None, None, None]),
    "texts": (pa.string(), ["a", None, "", "bcd"]),
    "bytes": (pa.binary(), [b"\x00", None, b"", b"bc"]),
    "lists": (pa.list_(pa.string()), [["a", None], None, [], ["b", "c"]]),
    "structs": (
        pa.list_(pa.struct([("code", pa.int16()), ("error", pa.string())])),
        [[{"code": 1, "error": "x"}, None], None, [], [{"code": None, "error": ""}]],
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_digest_does_not_depend_on_chunks_and_places_in_buffers(name: str) -> None:
    kind, values = VALUES[name]
    whole = pa.chunked_array([pa.array(values, kind)])
    pieces = pa.chunked_array([pa.array([*values[:1], *values, *values], kind).slice(1, 2), pa.array(values[2:], kind)])
    padded = pa.chunked_array([pa.array([*values, *values, *values], kind).slice(len(values), len(values))])
    assert column_digest(pieces) == column_digest(padded) == column_digest(whole)


@pytest.mark.parametrize("name", VALUES)
def test_a_digest_depends_on_each_value_their_order_and_what_is_null(name: str) -> None:
    kind, values = VALUES[name]
    others = [values[::-1], values[:-1], [*values, None], [None, *values[1:]], [values[0], values[0], *values[2:]]]
    digests = {column_digest(pa.chunked_array([pa.array(other, kind)])) for other in [values, *others]}
    assert len(digests) == 1 + len(others)


def test_a_digest_tells_where_texts_and_lists_end() -> None:
    def digest(values: list[Any]) -> str:
        return column_digest(pa.chunked_array([pa.array(values)]))

    assert digest(["ab", "c"]) != digest(["a", "bc"])
    assert digest([["a"], ["b", "c"]]) != digest([["a", "b"], ["c"]])
    assert digest([["ab"], ["c"]]) != digest([["a"], ["bc"]])
    assert digest([None, "a"]) != digest(["", "a"])
    assert digest([None, ["a"]]) != digest([[], ["a"]])


def test_a_dictionary_is_its_values() -> None:
    plain = pa.chunked_array([pa.array(["a", "b", None, "a"])])
    assert column_digest(plain.dictionary_encode()) == column_digest(plain)


def test_a_type_is_part_of_a_digest() -> None:
    assert column_digest(pa.chunked_array([pa.array([1], pa.int32())])).startswith("int32 ")
    empty = pa.chunked_array([], pa.int64())
    assert column_digest(empty) != column_digest(empty.cast(pa.int32()))


def test_a_comparison_names_table_and_column_and_tells_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = {"local": {"one": {"exchanges": table_digest(pa.table({"api": ["Fetch"], "size": [1]}))}}}
    new = {"local": {"one": {"exchanges": table_digest(pa.table({"api": ["Fetch"], "size": [2], "acks": [0]}))}}}
    for name, value in (("old", old), ("new", new)):
        (tmp_path / name).write_text(json.dumps(value))

    def compared(left: str, right: str, *options: str) -> tuple[int, list[str]]:
        monkeypatch.setattr("sys.argv", ["digest", "--compare", str(tmp_path / left), str(tmp_path / right), *options])
        return main(), capsys.readouterr().out.splitlines()

    code, lines = compared("old", "new")
    assert code == 1
    assert [line.partition(":")[0] for line in lines[:-1]] == [
        "local / one / exchanges / columns / size",
        "local / one / exchanges / columns / acks",
    ]
    assert compared("old", "new", "--allow-added")[1][-1].startswith("1 difference")
    assert compared("new", "old", "--allow-added")[0] == 1
    assert compared("old", "old") == (0, [f"0 differences between {tmp_path / 'old'} and {tmp_path / 'old'}"])


def test_a_column_that_moved_is_a_difference() -> None:
    here = table_digest(pa.table({"a": [1], "b": [2]}))
    there = table_digest(pa.table({"b": [2], "a": [1]}))
    between = table_digest(pa.table({"b": [2], "c": [3], "a": [1]}))
    assert [difference.place for difference in differences(here, there)] == [("columns", "order")]
    assert [difference.place for difference in differences(here, between)] == [("columns", "c"), ("columns", "order")]


def test_a_text_is_told_by_its_lines() -> None:
    assert text_digest("a\nb\n").startswith("2 lines ")
    assert text_digest("a\nb\n") != text_digest("a\nc\n")
