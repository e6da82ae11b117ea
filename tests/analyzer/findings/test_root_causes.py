"""Brokers that went are those that a plain walk over all connections finds. Proves:
kwire.analyzer.findings.root_causes; rules that rest on them are in `test_rules`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire.analyzer.findings import root_causes
from kwire.analyzer.findings.capture import SECOND, UNANSWERED
from kwire.analyzer.frame.frame import NULL

TIMES = st.integers(0, 40).map(lambda tenths: tenths * SECOND // 4) | st.integers(0, 100 * SECOND)
LINKS = st.tuples(
    st.integers(0, 1),
    st.integers(0, 3),
    TIMES | st.just(NULL),
    TIMES | st.just(NULL),
    st.sampled_from(["fin", "rst", "open"]),
)
EXCHANGES = st.tuples(st.integers(0, 11), TIMES | st.just(NULL), st.booleans())


def seen_of(links: list[Any], exchanges: list[Any], moved: list[int]) -> Any:
    """As much of a `CaptureFrame` as is looked at."""
    columns = list(zip(*links, strict=True))
    broker = np.array(columns[0], np.int32)
    rows = [row for row in exchanges if row[0] < len(links)]
    of = np.array([row[0] for row in rows], np.int64)
    table = SimpleNamespace(
        link=of,
        api=np.zeros(len(of), np.int16),
        response_end=np.array([row[1] for row in rows], np.int64),
        status=np.array([UNANSWERED if row[2] else UNANSWERED + 1 for row in rows], np.int64),
    )
    first, last = (np.array(columns[which], np.int64) for which in (2, 3))
    return SimpleNamespace(
        exchanges=table,
        link_times=lambda name: {"first_time": first, "last_time": last}[name],
        closed=list(columns[4]),
        brokers=["a", "b"],
        broker_of=broker,
        links=range(len(links)),
        client_of=np.array(columns[1], np.int32),
        broker=broker[of],
        one_way=np.zeros(len(links), bool),
        unbroken=np.ones(len(links), bool),
        span=(0, 1 << 62),
        links_where=lambda column, text: np.zeros(len(links), bool),
        memo={root_causes.moves: [root_causes.Move(time, ("t", 0), 1, 2) for time in moved]},
    )


def plainly(seen: Any) -> list[tuple[int, int, list[int]]]:
    """Each connection that ended looks at all others."""
    first, ended = seen.link_times("first_time"), seen.link_times("last_time")
    losses = []
    used = set(seen.exchanges.link.tolist())  # clients leave connections that they did not work on
    for broker in range(len(seen.brokers)):
        own_links = [link for link in range(len(ended)) if seen.broker_of[link] == broker]
        links = sorted(
            (
                link
                for link in own_links
                if (seen.closed[link] == "rst" or (seen.closed[link] == "fin" and link in used)) and ended[link] != NULL
            ),
            key=lambda link: int(ended[link]),
        )
        answers = [int(time) for time in seen.exchanges.response_end[seen.broker == broker] if time != NULL]
        while links:
            time = int(ended[links[0]])
            group = [link for link in links if ended[link] <= time + SECOND]
            last = int(ended[group[-1]])
            clients = {int(seen.client_of[link]) for link in group}
            open_ = set(seen.exchanges.link[seen.exchanges.status == UNANSWERED].tolist())
            broken = any(seen.closed[link] == "rst" or link in open_ for link in group)
            quiet = not any(last < time <= last + SECOND for time in answers)
            back = {int(seen.client_of[link]) for link in own_links if last + SECOND < first[link] < last + 60 * SECOND}
            moved = any(abs(move.time - time) <= 10 * SECOND for move in seen.memo[root_causes.moves])
            if len(clients) >= 2 and broken and quiet and (len(clients & back) >= 2 or moved):
                losses.append((broker, time, group))
                links = links[len(group) :]
            else:
                links = links[1:]
    return losses


@given(st.lists(TIMES), st.lists(TIMES, max_size=3))
def test_many_times_at_once_are_near_what_each_is_near(times: list[int], moved: list[int]) -> None:
    seen = seen_of([(0, 0, 0, NULL, "open")], [], moved)
    assert root_causes.near_each(seen, np.array(times, np.int64)).tolist() == [
        root_causes.near(seen, time, time) for time in times
    ]


@given(st.lists(LINKS, min_size=1, max_size=12), st.lists(EXCHANGES, max_size=12), st.lists(TIMES, max_size=2))
@settings(max_examples=500)
def test_brokers_that_went_are_those_of_a_plain_walk(links: list[Any], exchanges: list[Any], moved: list[int]) -> None:
    explained = [
        (loss.broker, loss.time, loss.links.tolist()) for loss in root_causes.losses(seen_of(links, exchanges, moved))
    ]
    assert explained == plainly(seen_of(links, exchanges, moved))


def test_a_broker_that_went_twice_is_told_twice() -> None:
    """Three clients, who come back each time; the test above meets that seldom."""
    links = [
        (0, client, start * SECOND, (start + 20) * SECOND + client, "rst")
        for start in (0, 22, 44)
        for client in range(3)
    ]
    losses = root_causes.losses(seen_of(links, [], []))
    assert [(loss.time, loss.links.tolist()) for loss in losses] == [(20 * SECOND, [0, 1, 2]), (42 * SECOND, [3, 4, 5])]


@pytest.mark.parametrize(
    ("back", "answer", "lost"),
    [
        (5 * SECOND, 90 * SECOND, True),
        (SECOND, 90 * SECOND, False),
        (SECOND + 1, 90 * SECOND, True),
        (60 * SECOND, 90 * SECOND, False),
        (60 * SECOND - 1, 90 * SECOND, True),
        (5 * SECOND, 0, True),
        (5 * SECOND, 1, False),
        (5 * SECOND, SECOND, False),
        (5 * SECOND, SECOND + 1, True),
    ],
)
def test_who_comes_back_and_what_is_heard_is_taken_to_the_microsecond(back: int, answer: int, lost: bool) -> None:
    """Two clients whose connections were reset at once, and so many us later."""
    at = 20 * SECOND
    links = [(0, client, 0, at, "rst") for client in range(2)]
    links += [(0, client, at + back, NULL, "open") for client in range(2)]
    seen = seen_of(links, [(2, at + answer, False)], [])
    assert bool(root_causes.losses(seen)) == lost == bool(plainly(seen))
