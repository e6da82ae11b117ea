"""Arrays of very many rows: what is worked out a block at a time, in files without names, is what is worked out whole.

(proves: analyzer/frame/spill.py, analyzer/frame/grouping.py, and every rule)
"""

from __future__ import annotations

import errno
import os
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire import analyzer
from kwire.analyzer.dataset import parquet_files
from kwire.analyzer.dataset.dataset import open_dataset
from kwire.analyzer.findings import evaluate
from kwire.analyzer.findings.query import Query
from kwire.analyzer.frame import grouping, parquet, spill
from kwire.analyzer.frame.parquet import RowGroups
from tests.analyzer.findings.cases import CASES
from tests.analyzer.findings.evaluating import Traffic, judged
from tests.analyzer.findings.test_rules import MODULES
from tests.bench import generate
from tests.shared import capture_files, sample_folders, shared_folders

assert MODULES  # they bring the cases
BLOCK = 3
NUMBERS = st.lists(st.integers(-2, 4), max_size=14)


@pytest.fixture
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """All arrays are large, and blocks small."""
    monkeypatch.setattr(spill, "BLOCK", BLOCK)
    monkeypatch.setattr(spill, "LARGE_BYTES", 1)
    monkeypatch.setattr(parquet, "CACHED_ROWS", 0)
    monkeypatch.setattr(parquet, "SMALL_ROWS", 0)


@pytest.fixture(scope="module")
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spill, "BLOCK", BLOCK)
        patch.setattr(spill, "LARGE_BYTES", 1)
        yield


@pytest.mark.usefixtures("small_blocks")
@given(NUMBERS)
def test_rows_are_chosen_and_taken(numbers: list[int]) -> None:
    values = np.array(numbers, np.int64)
    chosen = spill.where(len(values), lambda block: values[block] > 0)
    assert chosen.tolist() == [at for at, value in enumerate(numbers) if value > 0]
    assert spill.true_rows(values > 0).tolist() == chosen.tolist()
    assert spill.take(values, chosen).tolist() == [value for value in numbers if value > 0]
    assert spill.compute(len(values), np.int64, lambda block: 2 * values[block]).tolist() == [
        2 * number for number in numbers
    ]
    known = [value for value in numbers if value != -2]
    assert spill.value_range(values, -2) == ((min(known), max(known)) if known else None)


def test_one_value_takes_no_memory_however_many_rows_have_it() -> None:
    repeated = np.broadcast_to(np.array(7), 1 << 40)
    assert spill.take(repeated, np.array([3, 1 << 39])).tolist() == [7, 7]


@pytest.mark.usefixtures("small_blocks")
@given(st.lists(st.tuples(st.integers(-2, 4), st.integers(0, 2)), max_size=14), st.integers(1, 4))
def test_rows_are_put_together(rows: list[tuple[int, int]], least: int) -> None:
    keys = [np.array([row[at] for row in rows], np.int64) for at in range(2)]
    wide = [keys[0] << 20, keys[1]]  # too wide to be counted
    expected = [[at for at, row in enumerate(rows) if row == pair] for pair in sorted(set(rows))]
    for pair in (keys, wide):
        groups = grouping.group(*pair)
        order, starts, ends = groups.order, groups.starts, groups.ends
        ordered = order.tolist()
        assert [ordered[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)] == expected
        often = [some for some in expected if len(some) >= least]
        assert [some.tolist() for some in grouping.split(None, *pair, least=least)] == often
        assert [some.tolist() for some in grouping.split(np.arange(len(rows)) + 5, *pair, least=least)] == [
            [at + 5 for at in some] for some in often
        ]


@pytest.mark.usefixtures("small_blocks")
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-3, 9)), max_size=14))
def test_amounts_are_added_up_by_place(rows: list[tuple[int, int]]) -> None:
    place, amounts = (np.array([row[at] for row in rows], np.int64) for at in range(2))
    sums = [sum(max(amount, 0) for where, amount in rows if where == number) for number in range(4)]
    assert grouping.sum_positive_by(place, amounts, 4).tolist() == sums
    most = [max((amount for where, amount in rows if where == number), default=-1) for number in range(4)]
    assert grouping.max_by(place, amounts, 4, -1).tolist() == [max(greatest, -1) for greatest in most]


@pytest.mark.usefixtures("in_blocks")
def test_a_large_array_lies_in_a_file_that_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    spill.folder.cache_clear()
    try:
        array = spill.empty(1 << 18, np.int64)
        array[:] = 5
        assert [int(line.split()[-1]) for line in _mappings(tmp_path)] == [2 << 20]
        assert not list(tmp_path.iterdir())
        del array
        assert not _mappings(tmp_path)
    finally:
        spill.folder.cache_clear()


def _mappings(folder: Path) -> list[str]:
    """Lines of this process's mappings of files in a folder, each with the size in bytes at its end."""
    lines = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if str(folder) in line:
            begin, end = (int(bound, 16) for bound in line.split()[0].split("-"))
            lines.append(f"{line} {end - begin}")
    return lines


@pytest.mark.usefixtures("in_blocks")
def test_files_serve_again_when_no_part_of_an_array_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever makes the part: slices of slices, other types, masks of memory."""
    monkeypatch.setattr(spill, "folder", lambda: str(tmp_path))
    parts_of: list[Callable[[np.ndarray], Any]] = [
        lambda array: array[3:][::2],
        lambda array: array.view(np.int16)[1:],
        lambda array: array.reshape(2, -1).T,
        lambda array: np.broadcast_to(array[:1], 9),
        lambda array: array.data[1:],
        lambda array: pa.array(array[1:]),
    ]
    with spill.reuse():
        for part_of in parts_of:
            array = spill.empty(1 << 18, np.int64)
            array[:] = 5
            part = part_of(array)
            del array
            other = spill.empty(1 << 18, np.int64)
            other[:] = 6
            assert len(_mappings(tmp_path)) == 2
            assert set(np.unique(np.asarray(part)).tolist()) <= {5, 0}
            del part, other
        half, third = spill.empty(1 << 17, np.int64), spill.empty((1 << 18) // 3, np.int64)
        assert sorted(int(line.split()[-1]) for line in _mappings(tmp_path)) == [700_416, 2 << 20, 2 << 20]
        del half
    assert [int(line.split()[-1]) for line in _mappings(tmp_path)] == [700_416]
    del third
    assert not _mappings(tmp_path)


@pytest.mark.usefixtures("in_blocks")
def test_where_a_disk_is_full_arrays_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    array = spill.empty(100, np.int32)
    array[:] = 9
    assert array.sum() == 900


def texts_of(findings: list[Any]) -> list[str]:
    return [repr(finding) for finding in findings]


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_rule_says_the_same_a_block_at_a_time(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    traffic = Traffic(tmp_path)
    CASES[name](traffic, True)
    if not traffic.rows["connections"]:
        traffic.link(0)
    query = Query(target={0: (0, 13), 1: (4, 17)}, target_name="4.0")
    whole = texts_of(judged(traffic.write(), query))
    request.getfixturevalue("in_blocks")
    assert whole
    assert texts_of(judged(traffic.path, query)) == whole


@pytest.mark.parametrize("folder", [*sample_folders(), *shared_folders()], ids=lambda folder: folder.name)
def test_real_captures_say_the_same_a_block_at_a_time(
    folder: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    analyzer.analyze([str(path) for path in capture_files(folder)], tmp_path / "out", rotated=True)
    dataset = open_dataset(tmp_path / "out")
    whole = evaluate.judged(RowGroups.of(dataset))
    request.getfixturevalue("in_blocks")
    monkeypatch.setattr(spill, "BLOCK", 100)
    assert evaluate.judged(RowGroups.of(dataset)) == whole


def test_what_is_held_does_not_grow_with_rows(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy tells Python of its memory, but not of files: with arrays of a byte a row, and few of them, in memory."""
    generate.small(tmp_path / "small.pcap", 40_000_000)
    monkeypatch.setattr(parquet_files, "ROW_GROUP_ROWS", 1000)
    monkeypatch.setattr(parquet_files, "ENOUGH_ROWS", 1000)
    analyzer.analyze([str(tmp_path / "small.pcap")], tmp_path / "out")
    dataset = open_dataset(tmp_path / "out")
    rows = dataset.exchanges.count_rows()
    assert rows > 80_000
    request.getfixturevalue("in_blocks")
    monkeypatch.setattr(spill, "BLOCK", 1000)
    assert evaluate.judged(RowGroups.of(dataset))  # whatever is loaded once is there
    tracemalloc.start()
    try:
        evaluate.judged(RowGroups.of(dataset))
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert held < 10 * rows + 100_000, f"{held / rows:.1f} bytes an exchange"  # each rule takes some, whatever the rows
