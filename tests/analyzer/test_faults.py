"""Every way in which captures are known to mislead an analyzer, each a test of its own.

The first part are faults measured in tshark 4.0.17; then what else real captures hold. Conversations are forged, top
to bottom, and read through the same door as a user has; `read` checks each time that the coverage adds up.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from captures.forge import converse
from tests.analyzer.forging import (
    answering,
    asking,
    batch,
    fetch,
    fetch_answer,
    heartbeat,
    payloads,
    read,
    turns,
    without,
)

DECODED = ("answered", "decoded", "decoded")


def outcomes(rows: list[dict[str, object]]) -> list[tuple[object, ...]]:
    return [(row["correlation_id"], row["status"], row["request_state"], row["response_state"]) for row in rows]


# ------------------------------------------------------------------------------------------------------ lost packets


def test_a_lost_request_near_the_end_leaves_requests_and_answers_in_order(tmp_path: Path) -> None:
    """All that waits behind the hole comes out when the connection ends: still each request before its answer."""
    segments = converse(turns(range(1, 20)), acks=False)
    seen = read(tmp_path, without(segments, payloads(segments, True)[9]))
    assert [(row["correlation_id"], row["status"]) for row in seen.exchanges] == [
        (number, "orphan_response" if number == 10 else "answered") for number in range(1, 20)
    ]
    assert seen.coverage["gap_bytes"] == len(heartbeat(10))
    assert seen.coverage["skipped_bytes"] == 0


def test_a_large_frame_beside_a_small_unfinished_one(tmp_path: Path) -> None:
    """The room for frames in progress is nearly empty, and one more frame asks for all of it: it must grow."""
    small = converse(turns([1]), mss=20, client=("10.0.0.1", 40000))
    large = fetch_answer(7, batch(40, 90_000))
    assert len(large) > 3 << 20
    big = converse([asking(fetch(7)), answering(large)], mss=60_000, client=("10.0.0.1", 40001), acks=False)
    half = payloads(small, True)[1]
    packets = small[:half] + [replace(one, time_ns=small[half].time_ns) for one in big] + small[half:]
    seen = read(tmp_path, packets)
    assert outcomes(seen.exchanges) == [(7, *DECODED), (1, *DECODED)]


def test_records_full_of_zeros_are_not_taken_for_an_early_answer(tmp_path: Path) -> None:
    """After a hole in a response, `01 00 00 00 | 00 00 00 00` inside the records looks like an answer of 16 MiB to
    request 0, from before the capture; the answers behind it must be found."""
    records = bytes([1, 0, 0, 0]) + bytes(540)
    body = fetch_answer(6, records)
    writes = [*turns(range(3, 6)), asking(fetch(6)), answering(body[: -len(records)]), answering(records)]
    segments = converse([*writes, *turns(range(7, 12))], acks=False)
    lost = payloads(segments, False)[3]
    seen = read(tmp_path, without(segments, lost))
    assert [row["correlation_id"] for row in seen.exchanges] == [3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert [row["status"] for row in seen.exchanges] == ["answered"] * 3 + ["unanswered"] + ["answered"] * 5
    assert seen.coverage["skipped_bytes"] == len(records)
    assert seen.coverage["gap_bytes"] == len(segments[lost].payload)
