"""Long arrays that are a file's, and that a RUN's index takes no memory for each of its exchanges.

Proves: replay/diff/mapped_arrays.py, replay/diff/stored_run.py, replay/diff/offsets.py
"""

from __future__ import annotations

import errno
import os
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzer.dataset.dataset import DatasetError
from replay.diff import mapped_arrays, offsets, pairs
from replay.diff.learning import learn
from tests.bench import diff

EXCHANGES = 100_000


def test_parts_stand_one_behind_the_other() -> None:
    made = mapped_arrays.mapped(iter([np.array([3, 1]), np.empty(0, np.int64), np.array([2])]))
    assert made.tolist() == [3, 1, 2]
    made[0] = 9  # of its own: kernels are compiled for arrays that may be written to
    assert made.tolist() == [9, 1, 2]
    flags = mapped_arrays.mapped([np.array([True, False])], np.bool_)
    assert flags.tolist() == [True, False]
    assert flags.dtype == np.dtype(np.bool_)
    assert mapped_arrays.mapped([]).tolist() == []


def test_an_array_to_be_written_to_is_filled_first() -> None:
    made = mapped_arrays.filled(mapped_arrays.PART + 3, -1)
    assert len(made) == mapped_arrays.PART + 3
    made[-1] = 7
    assert (int(made.sum()), made[-1]) == (7 - mapped_arrays.PART - 2, 7)
    assert len(mapped_arrays.filled(0, -1)) == 0


def test_nothing_is_left_in_the_folder_and_a_full_one_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = mapped_arrays.mapped([np.arange(5)])
    assert (list(tmp_path.iterdir()), made.tolist()) == ([], [0, 1, 2, 3, 4])

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(np, "ascontiguousarray", full)
    with pytest.raises(DatasetError, match="cannot unpack an index: No space left on device"):
        mapped_arrays.mapped([np.arange(5)])
    assert list(tmp_path.iterdir()) == []


def test_an_index_takes_no_memory_for_each_exchange(tmp_path: Path) -> None:
    """It was a quarter of a kilobyte: 1 GiB was reached at some four million."""
    diff.forge(tmp_path / "run", EXCHANGES)
    pairs.from_run(tmp_path / "run")  # what is loaded once is loaded
    tracemalloc.start()
    try:
        found = pairs.from_run(tmp_path / "run")
        assert sum(len(block) for block in found.blocks()) == EXCHANGES  # everything that is looked up late, too
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept / EXCHANGES < 30


def test_what_grows_is_what_was_added_wherever_it_lies() -> None:
    heap = mapped_arrays.Heap()
    some = [mapped_arrays.Growing(heap), mapped_arrays.Growing(heap)]
    said = [bytearray(), bytearray()]
    for number in range(3 * mapped_arrays.RECENT // 1_000):
        for index, one in enumerate(some):
            data = bytes([number % 256, index]) * (500 + index)
            one.extend(data)
            said[index] += data
    assert [one.data() for one in some] == said
    assert [len(one) for one in some] == list(map(len, said))
    assert some[0].data() == said[0]  # again
    assert mapped_arrays.Growing(heap).data() == b""


def test_long_ranges_of_offsets_are_those_of_short_ones() -> None:
    """Longer ones are a file's."""
    batches = offsets.StoredBatches(mapped_arrays.Heap())
    count = 40_000
    for number in range(count):
        batches.append(offsets.Stored(number * 3, 7 + number * 3, 3, 1, number))
    assert len(batches) == count
    assert list(batches)[-1] == offsets.Stored(3 * count - 3, 3 * count + 4, 3, 1, count - 1)
    ranges = batches.ranges(offsets.LEFT, offsets.RIGHT)
    assert isinstance(ranges.here, memoryview)
    for offset in (0, 1, 3 * count - 1):
        assert ranges.translated(offset) == offset + 7
        assert isinstance(ranges.translated(offset), int)
    assert (ranges.translated(-1), ranges.translated(3 * count)) == (None, None)
    assert ranges.all_translated(np.array([-1, 4, 3 * count])).tolist() == [-1, 11, -1]


def test_what_a_comparison_remembers_lies_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests of records that were read, and where batches are: they were 200 bytes an exchange."""
    monkeypatch.setattr(mapped_arrays, "RECENT", 2_048)
    monkeypatch.setattr(offsets, "_LONG", 100)
    diff.forge(tmp_path / "run", EXCHANGES)
    found = pairs.from_run(tmp_path / "run")
    learn(pairs.from_run(tmp_path / "run"))  # what is loaded once is loaded
    tracemalloc.start()
    try:
        learned = learn(found)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(len(one.batches) for one in learned.partitions.values()) == EXCHANGES * 4 // 5
    assert kept / EXCHANGES < 60
