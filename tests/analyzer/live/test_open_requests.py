"""Requests without an answer, second for second. Proves `kwire.analyzer.live.open_requests`."""

from __future__ import annotations

import numpy as np
import pytest

from kwire.analyzer.live.open_requests import OpenRequests

SECOND = 10**9
NEVER = 1 << 62
WAIT = SECOND // 2


def requests(*rows: tuple[float, float | None, float, int, int, int]) -> np.ndarray:
    """int64[n, 6] of (request s, answer s or None, allowed s, broker, client, whether it waits for replicas)."""
    return np.array(
        [
            (int(asks * SECOND), NEVER if answer is None else int(answer * SECOND), int(wait * SECOND), *rest)
            for asks, answer, wait, *rest in rows
        ],
        np.int64,
    ).reshape(-1, 6)


def state(pending: np.ndarray, last: float, closed: np.ndarray | None = None) -> OpenRequests:
    """A broker that answered last at so many seconds."""
    known = OpenRequests(brokers={"10.0.0.9:9092": 0}, pending=pending)
    known.answers = {int(last): {0: (int(last * SECOND), int(last * SECOND))}}
    known.last_answer = {0: int(last * SECOND)}
    if closed is not None:
        known.closed = closed
    return known


def test_a_stall_is_marked_in_the_second_in_which_it_begins() -> None:
    known = state(requests((10.2, None, 0, 0, 1, 0), (10.4, None, 0.5, 0, 2, 0)), last=10.1)
    (entry,) = known.at_end_of(10)
    assert (entry.requests, entry.waiting, entry.oldest_us) == (2, 2, 800_000)
    assert entry.is_stalled
    assert entry.silent_us == 900_000
    (entry,) = known.at_end_of(11)
    assert (entry.oldest_us, entry.silent_us, entry.is_stalled) == (1_800_000, 1_900_000, True)


def test_a_long_poll_is_open_and_does_not_wait() -> None:
    (entry,) = state(requests((10.2, None, 5, 0, 1, 0)), last=10.1).at_end_of(12)
    assert (entry.requests, entry.waiting, entry.oldest_us, entry.is_stalled) == (1, 0, None, False)


def test_what_was_answered_later_was_open_at_the_end_of_a_second() -> None:
    closed = requests((10.2, 12.5, 0, 0, 1, 0), (10.3, 10.9, 0, 0, 1, 0))
    known = state(requests(), last=10.1, closed=closed)
    known.answers[12] = {0: (int(12.5 * SECOND), int(12.5 * SECOND))}
    (entry,) = known.at_end_of(10)
    assert (entry.requests, entry.is_stalled) == (1, True)
    (entry,) = known.at_end_of(11)
    assert (entry.requests, entry.oldest_us) == (1, 1_800_000)
    assert known.at_end_of(12) == []
    assert not len(known.closed)


@pytest.mark.parametrize(("replicas", "is_reported"), [(0, True), (1, False)])
def test_a_stall_is_told_where_something_waits_for_no_replica(replicas: int, is_reported: bool) -> None:
    known = state(requests(*((10.2, None, 0, 0, client, replicas) for client in range(3))), last=10.1)
    assert not known.standstills(int(11.9 * SECOND), 2 * SECOND)
    stills = known.standstills(int(12.2 * SECOND), 2 * SECOND)
    assert [(still.broker, still.clients, still.requests) for still in stills] == [
        ("10.0.0.9:9092", 3, 3)
    ] * is_reported
    (entry,) = known.now(int(12.2 * SECOND))
    assert entry.is_stalled
