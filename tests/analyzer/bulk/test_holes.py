"""Where requests may have been lost on a connection: the column `holes` of rows of exchanges.

(proves: `_count_hole` of analyzer/bulk/matching.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.engine import Engine
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.files import capture_points
from tests.analyzer import forging
from tests.analyzer.forging import answering, asking, payloads, produce, produce_answer, turns, without
from tests.captures.forge import Segment, converse, cut, pcap, rendered


def holes(folder: Path, segments: Sequence[Segment], snaplen: int = 1 << 16) -> dict[int, int]:
    """By correlation id of the requests found."""
    path = folder / "capture.pcap"
    path.write_bytes(pcap(cut(rendered(segments), snaplen), nanoseconds=True))
    [point] = capture_points([str(path)], False)
    counts: dict[int, int] = {}
    for window in Engine(point, ReadOptions(threads=1).settings(False)).windows():
        every = window.every
        rows = zip(*(every.column(name).tolist() for name in ("exchange", "correlation_id", "holes")), strict=True)
        counts |= {correlation: count for exchange, correlation, count in rows if exchange != s.NULL}
    return counts


def large(number: int) -> bytes:
    return produce(number, records=forging.batch(20, 100))


def test_a_connection_whose_every_byte_was_captured_has_none(tmp_path: Path) -> None:
    assert holes(tmp_path, converse(turns([1, 2, 5, 9]))) == dict.fromkeys((1, 2, 5, 9), 0)


@pytest.mark.parametrize("lost", [(2,), (2, 3)])
def test_requests_that_were_not_captured_are_a_hole(lost: tuple[int, ...], tmp_path: Path) -> None:
    segments = converse(turns(range(6)))
    requests = payloads(segments, to_broker=True)
    counts = holes(tmp_path, without(segments, *(requests[number] for number in lost)))
    assert counts == {number: int(number > lost[0]) for number in range(6) if number not in lost}


def test_answers_that_were_not_captured_are_none(tmp_path: Path) -> None:
    segments = converse(turns(range(6)))
    answered = payloads(segments, to_broker=False)
    assert holes(tmp_path, without(segments, answered[2])) == dict.fromkeys(range(6), 0)


def test_a_hole_inside_a_request_hides_no_other(tmp_path: Path) -> None:
    """The request after it has the next correlation id."""
    writes = [*turns([1]), asking(large(2)), answering(produce_answer(2)), *turns([3, 4])]
    segments = converse(writes, mss=500)
    requests = payloads(segments, to_broker=True)
    assert holes(tmp_path, without(segments, requests[2])) == dict.fromkeys(range(1, 5), 0)
    assert holes(tmp_path, segments, snaplen=400) == dict.fromkeys(range(1, 5), 0)


def test_a_hole_from_inside_a_request_to_behind_the_next_one_hides_that(tmp_path: Path) -> None:
    writes = [*turns([1]), asking(large(2)), answering(produce_answer(2)), *turns([3, 4])]
    segments = converse(writes, mss=500)
    requests = payloads(segments, to_broker=True)
    counts = holes(tmp_path, without(segments, *requests[3:-1]))
    assert counts == {1: 0, 2: 0, 4: 1}
