"""The line that the user sees while a run goes on.

Proves: replay/send/progress.py, replay/send/target_watch.py
"""

from __future__ import annotations

import pytest

from kwire.analyzer.protocol import api_keys
from kwire.replay.send.progress import Standing, line
from tests.replay.conversation import Captured, Target, replayed

MOVING = Standing(1200, 700, 690, 0, 10, 0.2, ("the answer to Fetch of app from b:9092", 0.1), True)
ASKS = {"key": "g", "keyType": 0}
COORDINATOR = {"errorCode": 0, "errorMessage": None, "nodeId": 1, "host": "h", "port": 1}


@pytest.mark.parametrize(
    ("standing", "expected"),
    [
        (MOVING, "sent 700 of 1,200, answered 690, in flight 10"),
        (MOVING._replace(errors=3), "sent 700 of 1,200, answered 690, errors 3, in flight 10"),
        (MOVING._replace(behind=4.6), "sent 700 of 1,200, answered 690, 5 s behind the schedule, in flight 10"),
        (
            MOVING._replace(moves=False, awaited=("the answer to Fetch of app from b:9092", 12.0)),
            "sent 700 of 1,200, answered 690, waits for the answer to Fetch of app from b:9092 for 12 s",
        ),
        (MOVING._replace(moves=False, awaited=None), "sent 700 of 1,200, answered 690, nothing is due"),
    ],
)
def test_the_line_of_a_moment(standing: Standing, expected: str) -> None:
    assert line(standing) == expected


def test_a_run_says_each_second_how_far_it_is_and_what_it_waits_for() -> None:
    capture = Captured()
    capture.add(0.0, api_keys.FIND_COORDINATOR, 2, ASKS, COORDINATOR)
    capture.add(4.0, api_keys.FIND_COORDINATOR, 2, ASKS, COORDINATOR)
    target = Target().on(api_keys.FIND_COORDINATOR, COORDINATOR, delay=6.5)
    lines: list[str] = []

    replayed([capture], target, speed=1.0, progress=lambda standing: lines.append(line(standing)))

    wait = "waits for the answer to FindCoordinator of client from target:9092"
    assert lines[0] == "sent 1 of 2, answered 0, in flight 1"
    assert lines[2] == f"sent 1 of 2, answered 0, {wait} for 3 s"
    assert lines[5] == f"sent 1 of 2, answered 0, 2 s behind the schedule, {wait} for 6 s"
    assert lines[6] == "sent 2 of 2, answered 1, in flight 1"
