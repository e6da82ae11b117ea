"""The memory that a comparison takes for each exchange of a RUN.

Proves: replay/diff/stored_run.py, replay/diff/offsets.py
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from kwire.analyzer.frame import spill
from kwire.replay.diff import offsets, pairs
from kwire.replay.diff.learning import learn
from tests.bench import diff

EXCHANGES = 100_000


def test_an_index_takes_no_memory_for_each_exchange(tmp_path: Path) -> None:
    """It was a quarter of a kilobyte: 1 GiB was reached at some four million."""
    diff.forge(tmp_path / "run", EXCHANGES)
    pairs.from_run(tmp_path / "run")  # what is loaded once is loaded
    tracemalloc.start()
    try:
        run = pairs.from_run(tmp_path / "run")
        assert sum(len(block) for block in run.blocks()) == EXCHANGES  # everything that is looked up late, too
        memory, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert memory / EXCHANGES < 30


def test_long_ranges_of_offsets_are_those_of_short_ones() -> None:
    """Longer ones are a file's."""
    batches = offsets.StoredBatches(spill.Heap())
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
    monkeypatch.setattr(spill, "RECENT_BYTES", 2_048)
    monkeypatch.setattr(offsets, "_LONG", 100)
    diff.forge(tmp_path / "run", EXCHANGES)
    run = pairs.from_run(tmp_path / "run")
    learn(pairs.from_run(tmp_path / "run"))  # what is loaded once is loaded
    tracemalloc.start()
    try:
        learned = learn(run)
        memory, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(len(partition.batches) for partition in learned.partitions.values()) == EXCHANGES * 4 // 5
    assert memory / EXCHANGES < 60
