"""Long arrays and bytes in files without a name.

Proves: analyzer/frame/spill.py
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kwire.analyzer.dataset.dataset import DatasetError
from kwire.analyzer.frame import spill


def test_parts_stand_one_behind_the_other() -> None:
    array = spill.concat(iter([np.array([3, 1]), np.empty(0, np.int64), np.array([2])]))
    assert array.tolist() == [3, 1, 2]
    array[0] = 9  # of its own: kernels are compiled for arrays that may be written to
    assert array.tolist() == [9, 1, 2]
    flags = spill.concat([np.array([True, False])], np.bool_)
    assert flags.tolist() == [True, False]
    assert flags.dtype == np.dtype(np.bool_)
    assert spill.concat([]).tolist() == []


@pytest.mark.parametrize("large_bytes", [0, 1 << 20])
def test_an_array_to_be_written_to_is_filled_first(large_bytes: int) -> None:
    array = spill.full(1_003, -1, np.int64, large_bytes)
    assert len(array) == 1_003
    array[-1] = 7
    assert (int(array.sum()), array[-1]) == (7 - 1_002, 7)
    assert len(spill.full(0, -1, np.int64)) == 0


def test_nothing_is_left_in_the_folder_and_a_full_one_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "folder", lambda: str(tmp_path))
    array = spill.concat([np.arange(5)])
    assert (list(tmp_path.iterdir()), array.tolist()) == ([], [0, 1, 2, 3, 4])

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(np, "ascontiguousarray", full)
    with pytest.raises(DatasetError, match="cannot unpack an index: No space left on device"):
        spill.concat([np.arange(5)])
    assert list(tmp_path.iterdir()) == []


def test_what_grows_is_what_was_added_wherever_it_lies() -> None:
    heap = spill.Heap()
    some = [spill.GrowingBytes(heap), spill.GrowingBytes(heap)]
    expected = [bytearray(), bytearray()]
    for number in range(3 * spill.RECENT_BYTES // 1_000):
        for index, growing in enumerate(some):
            data = bytes([number % 256, index]) * (500 + index)
            growing.extend(data)
            expected[index] += data
    assert [growing.data() for growing in some] == expected
    assert [len(growing) for growing in some] == list(map(len, expected))
    assert some[0].data() == expected[0]  # again
    assert spill.GrowingBytes(heap).data() == b""
