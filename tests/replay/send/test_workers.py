"""Which connections go to the same process, that a share is a whole plan, and what a dead worker leaves.

Proves: replay/send/workers.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kwire.analyzer.dataset.dataset import Writer, open_dataset
from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.tree import Body
from kwire.replay.journal import Journal
from kwire.replay.outcome import Outcome
from kwire.replay.plan import decisions
from kwire.replay.plan.steps import Plan
from kwire.replay.remap.remap import Learned
from kwire.replay.run_writer import Recorder
from kwire.replay.send import workers
from kwire.replay.send.settings import Settings
from tests.replay.batching import batch, produced, produced_answer
from tests.replay.conversation import EVERYTHING, Captured


def _planned(*captured: Captured) -> tuple[list[Any], Any]:
    sessions = [capture.session() for capture in captured]
    return sessions, decisions.make(sessions, EVERYTHING, decisions.PlanOptions())[0]


def _asks(capture: Captured, key: str, client_id: str = "c", at: float = 0.0) -> Captured:
    return capture.add(
        at,
        api_keys.FIND_COORDINATOR,
        1,
        {"key": key, "keyType": 0},
        {"nodeId": 1, "host": "h", "port": 1},
        client_id=client_id,
    )


def _connection(number: int) -> Captured:
    return Captured(f"10.0.0.{number}:1-10.0.0.9:9092#1")


def test_connections_of_one_client_stay_together_and_strangers_do_not() -> None:
    sessions, planned = _planned(
        _asks(_connection(1), "a", "one"), _asks(_connection(2), "b", "two"), _asks(_connection(3), "c", "one")
    )
    assert sorted(workers.groups(sessions, planned)) == [[0, 2], [1]]


def test_members_of_one_group_stay_together() -> None:
    first = _connection(1).add(0.0, api_keys.HEARTBEAT, 1, _beat("a"), {"errorCode": 0}, client_id="one")
    second = _connection(2).add(9.0, api_keys.DESCRIBE_GROUPS, 1, {"groups": ["g"]}, {"groups": []}, client_id="two")
    joined: Body = {"groupId": "g", "sessionTimeoutMs": 1, "memberId": "", "protocolType": "consumer"}
    third = _connection(3).add(0.0, api_keys.JOIN_GROUP, 1, joined, {"memberId": "a"}, client_id="three")
    sessions, planned = _planned(first, second, third)
    assert workers.groups(sessions, planned) == [[0, 1, 2]]


def test_a_reader_goes_with_the_writer_of_its_records() -> None:
    records = batch()
    writer = _connection(1).add(0.0, api_keys.PRODUCE, 9, produced(records), produced_answer(0), client_id="w")
    request_body = {
        "replicaId": -1,
        "maxWaitMs": 1,
        "minBytes": 1,
        "maxBytes": 1,
        "topics": [{"topic": "orders", "partitions": [{"partition": 0, "fetchOffset": 0}]}],
    }
    answer = {
        "responses": [
            {"topic": "orders", "partitions": [{"partitionIndex": 0, "highWatermark": 3, "records": records}]}
        ]
    }
    reader = _connection(2).add(1.0, api_keys.FETCH, 4, request_body, answer, client_id="r")
    sessions, planned = _planned(writer, reader)
    assert workers.groups(sessions, planned) == [[0, 1]]


def test_shares_hold_every_step_once_with_its_waits() -> None:
    captured = []
    for number in range(1, 7):
        capture = _connection(number)
        for at in range(number):
            _asks(capture, f"{number}", f"client {number}", float(at))
        captured.append(capture)
    sessions, planned = _planned(*captured)

    shares = workers.shares(sessions, planned, 2)

    assert sorted(number for share in shares for number in share.numbers) == list(range(len(planned.steps)))
    assert {len(share.plan.steps) for share in shares} == {10, 11}
    for share in shares:
        for step, number in zip(share.plan.steps, share.numbers, strict=True):
            whole = planned.steps[number]
            assert step.request is whole.request
            assert tuple(share.numbers[number] for number in step.waits) == whole.waits
            assert share.sessions[step.session] is sessions[whole.session]


def test_no_more_shares_than_there_is_to_share() -> None:
    sessions, planned = _planned(_asks(_connection(1), "a", "one"))
    assert len(workers.shares(sessions, planned, 4)) == 1


@pytest.mark.parametrize(
    ("speed", "seconds", "expected"),
    [
        pytest.param(1.0, 2.5, ["sent", "unknown", "unknown", "not_sent"], id="due later"),
        pytest.param(10.0, 2.5, ["sent", "unknown", "unknown", "unknown"], id="ten times as fast"),
        pytest.param(None, 2.5, ["sent", "unknown", "unknown", "unknown"], id="nothing is due at any time"),
        pytest.param(None, 2.5, ["sent", "unknown", "not_sent", "not_sent"], id="not claimed"),
        pytest.param(None, -0.1, ["sent", "not_sent", "not_sent", "not_sent"], id="it had not started"),
    ],
)
def test_what_a_dead_worker_cannot_have_sent_is_told_as_that(
    speed: float | None, seconds: float, expected: list[str], tmp_path: Path
) -> None:
    capture = _connection(1)
    for at in range(4):
        _asks(capture, "a", at=float(at))
    claimed = 2 if expected[1:3] == ["unknown", "not_sent"] else 4
    share, recorder, planned = _left(tmp_path, [capture], [[0]], (0, claimed))

    left = workers.take_over(_dead(tmp_path, seconds), share, planned, Settings(speed=speed), recorder)

    recorder.finish([], [], {})
    rows = sorted(open_dataset(tmp_path / "run").outcomes.to_table().to_pylist(), key=lambda row: row["step"])
    assert [row["action"] for row in rows] == expected
    assert left.unknown == expected.count("unknown")
    assert left.known == {0}


def test_the_last_of_what_a_dead_worker_learned_counts(tmp_path: Path) -> None:
    appended = ("t", 0), 0, 5, 3
    learned: list[Learned] = [
        ("producer", None, "1/0", "7/0", None),
        ("member", "g", "a", "b", None),
        ("generation", "g", "1", "1", None),
        ("producer", None, "1/0", "7/1", None),
        ("generation", "g", "1", "2", None),
    ]
    share, recorder, planned = _left(tmp_path, [_asks(_connection(1), "a")], [[], [0]])
    written = Journal(tmp_path / "journal2")
    for entry in learned:
        written.write(
            ([appended] if entry is learned[0] or entry is learned[-1] else [], [entry]),
            {"Metadata": 3},
            {"reconnected": 1},
        )
    dead = workers.DeadWorker(0, "was killed by SIGKILL", 1.0, tmp_path / "journal2")

    left = workers.take_over(dead, share, planned, Settings(), recorder)

    # Batches are told one by one, and two may look alike; generations are those of several members.
    batch: Learned = ("offset", "t-0", "0", "5", 3)
    assert left.learned == [batch, batch, learned[3], learned[1], learned[2], learned[4]]
    assert (left.own_requests, left.notes) == ({"Metadata": 3}, {"reconnected": 1})


def _left(
    folder: Path, captured: list[Captured], frames: list[list[int]], claim: tuple[int, int] = (0, 1)
) -> tuple[workers.Share, Recorder, Plan]:
    """A share of all, a recorder, and a journal in which these steps were answered, frame by frame."""
    sessions, planned = _planned(*captured)
    (share,) = workers.shares(sessions, planned, 1)
    written = Journal(folder / "journal")
    written.claim(*claim)
    for steps in frames:
        for step in steps:
            written.add(
                Outcome({}, step, "sent", "answered", sent_version=1, sent_ns=1, answered_ns=2, targets=["h:1"])
            )
        written.write()
    return share, Recorder(Writer(folder / "run")), planned


def _dead(folder: Path, seconds: float) -> workers.DeadWorker:
    return workers.DeadWorker(0, "was killed by SIGKILL", seconds, folder / "journal")


def _beat(member: str) -> Body:
    return {"groupId": "g", "generationId": 1, "memberId": member}
