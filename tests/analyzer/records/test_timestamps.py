"""Records are counted, and their age told, by the headers of batches alone.

Proves: analyzer/records/timestamps.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kwire.analyzer.bulk.engine import Engine, Settings
from kwire.analyzer.records import timestamps
from kwire.captures.files import capture_points
from kwire.captures.kernels import NULL
from tests.replay.batching import batch
from tests.shared import capture_files, sample_folders


def looked(*sets: bytes) -> list[list[int]]:
    """Each set's columns, at whatever place of the heap it lies."""
    heap = np.frombuffer(b"\x02" * 7 + b"".join(sets), np.uint8)
    length = np.array([len(data) for data in sets], np.int64)
    out = np.zeros((timestamps.A_COLUMNS, len(sets)), np.int64)
    timestamps.look(heap, 7 + np.cumsum(length) - length, length, False, out)
    return [column.tolist() for column in out.T]


def timed(first_ms: int, last_ms: int) -> bytes:
    data = bytearray(batch())
    data[27:43] = first_ms.to_bytes(8, "big", signed=True) + last_ms.to_bytes(8, "big", signed=True)
    return bytes(data)


def test_batches_of_a_set_add_up() -> None:
    early, late = timed(1_000, 1_500), timed(900, 2_500)
    (both,), (count,) = looked(early + late), looked(early)
    assert both == [
        2 * count[timestamps.A_RECORDS],
        len(early) + len(late),
        900,
        2_500,
        int.from_bytes(early[17:21], "big"),
    ]
    assert count[timestamps.A_RECORDS] == int.from_bytes(early[57:61], "big") > 0


def test_a_batch_without_a_time_has_no_age() -> None:
    ((_, size, oldest, newest, _),) = looked(timed(-1, -1))
    assert size > 0
    assert (oldest, newest) == (NULL, NULL)


def test_what_is_cut_off_is_left_out() -> None:
    whole = timed(1, 2)
    assert looked(whole + whole[:-1]) == looked(whole)
    assert looked(whole[:-1]) == [[0, 0, NULL, NULL, NULL]]


@pytest.mark.parametrize("what", ["old", "small", "short", "empty"])
def test_what_is_no_batch_ends_the_look(what: str) -> None:
    whole = timed(1, 2)
    odd = {
        "old": whole[:16] + b"\x01" + whole[17:],
        "small": whole[:8] + (3).to_bytes(4, "big") + whole[12:],
        "short": whole[:16],
        "empty": b"",
    }[what]
    (result,) = looked(whole + odd)
    (alone,) = looked(whole)
    assert result[: timestamps.A_CHECKSUM] == alone[: timestamps.A_CHECKSUM]
    assert result[timestamps.A_CHECKSUM] == (NULL if what in ("old", "small") else alone[timestamps.A_CHECKSUM])


def test_a_size_beyond_all_bounds_reads_nothing_beyond_the_set() -> None:
    whole = timed(1, 2)
    huge = whole[:8] + (0x7FFFFFFF).to_bytes(4, "big") + whole[12:]
    assert looked(huge, whole)[1] == looked(whole)[0]


@pytest.mark.parametrize("folder", sample_folders(), ids=lambda folder: folder.name)
def test_headers_that_an_engine_hands_out_say_what_whole_sets_do(folder: Path) -> None:
    """Of every sample, some with message sets of old formats, some with answers cut off in a batch."""
    for capture in capture_files(folder):
        [point] = capture_points([str(capture)])
        results = [
            _ages(Engine(point, Settings(1, keep_records=True, record_headers=way)), way) for way in (False, True)
        ]
        (whole, sizes), (headers, header_sizes) = results
        assert headers == whole
        assert header_sizes <= sizes


def _ages(engine: Engine, headers: bool) -> tuple[list[list[int]], int]:
    """The columns of all its sets, and how many bytes these are."""
    ages: list[list[int]] = []
    size = 0
    for window in engine.windows():
        for sets in window.sets:
            out = np.zeros((timestamps.A_COLUMNS, len(sets.at)), np.int64)
            timestamps.look(sets.heap, sets.at, sets.length, headers, out)
            ages += out.T.tolist()
            size += int(sets.length.sum())
    return ages, size
