"""Whether a run kept its pace, and what is said and done where it did not.

Proves: replay/pace.py
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kwire.analyzer.protocol import api_keys
from kwire.replay import commands, run
from kwire.replay.audit.auditor import Audit
from kwire.replay.options import Options
from kwire.replay.outcome import Counts
from kwire.replay.pace import Pace, pace
from kwire.replay.plan import decisions
from kwire.replay.plan.steps import Plan
from tests.replay.batching import batch, produced, produced_answer
from tests.replay.conversation import EVERYTHING, Captured

OUT_OF_ORDER = {
    "topic": "orders",
    "partition": 0,
    "acknowledged": 9,
    "readable": 9,
    "missing": 0,
    "displaced": 0,
    "alignment": None,
    "out_of_order": 1,
    "first_missing_offset": None,
    "stored_otherwise": 0,
    "stored_as": None,
    "unclaimed": 0,
    "hidden": None,
    "visible": None,
    "left_open": None,
    "transactions": [],
}


def plan(seconds: float, took: float = 0.5) -> Plan:
    """Two requests, the second so many seconds later, answered after `took`."""
    captured = Captured()
    for at in (0.0, seconds - took):
        captured.add(at, api_keys.PRODUCE, 8, produced(batch()), produced_answer(0), took=took)
    return decisions.make([captured.session()], EVERYTHING, decisions.PlanOptions())[0]


@pytest.mark.parametrize(
    ("seconds", "speed", "took", "slower"),
    [
        (10.5, None, 134.9, True),  # seen: a target with fewer partitions
        (10.5, None, 15.4, False),  # by less than 5 s
        (100.0, 1.0, 119.0, False),  # by less than a fifth
        (100.0, 1.0, 121.0, True),
        (100.0, 2.0, 58.0, False),
        (100.0, 2.0, 714.0, True),
        (100.0, 20.0, 9.9, False),
    ],
)
def test_a_run_is_slower_by_a_fifth_and_five_seconds(
    seconds: float, speed: float | None, took: float, slower: bool
) -> None:
    measured = pace(Counts(), plan(seconds), speed, took)
    assert measured.wanted == pytest.approx(seconds / (speed or 1))
    assert measured.slower == slower
    assert bool(measured.text()) == slower


def test_what_requests_waited_for_counts_too_where_there_is_a_schedule() -> None:
    counts = Counts(queues_us=[0] * 90 + [6_000_000] * 10)
    assert pace(counts, plan(20.0), 1.0, 20.0).slower
    assert not pace(counts, plan(20.0), None, 20.0).slower
    assert not pace(counts, plan(100.0), 1.0, 100.0).slower
    assert "one request in a hundred waited for more than 6.0 s" in pace(counts, plan(20.0), 1.0, 20.0).text()


def test_it_says_how_much_and_why() -> None:
    counts = Counts()
    counts.excess_us.update(Produce=117_900_000, Fetch=3_000_000)
    counts.retries.update(topic_appears=2334, reconnected=1)
    assert pace(counts, plan(10.5), None, 134.9).text() == (
        "slower than captured: took 134.9 s in place of 10.5 s; answers to Produce took 117.9 s longer in all than "
        "captured, topic_appears 2,334 times"
    )
    silent = Counts()
    silent.excess_us.update(Metadata=49_999)  # 0.0 s is no reason
    silent.silent.update(Produce=1)
    assert pace(silent, plan(8.0), None, 90.1).text() == (
        "slower than captured: took 90.1 s in place of 8.0 s; 1 request of Produce got no answer"
    )
    text = pace(Counts(), plan(100.0), 2.0, 714.0).text()
    assert text == "slower than at --speed 2: took 714.0 s in place of 50.0 s, 7 % of that rate"


def test_a_replayer_that_was_busy_all_the_time_is_to_blame_itself() -> None:
    """Nothing waited for the target: not valid. At full speed nothing is owed, and a target that keeps it waiting is
    the target's."""
    counts = Counts()
    counts.excess_us.update(Produce=10_000_000)
    busy = pace(counts, plan(100.0), 2.0, 714.0, 0.97)
    assert busy.own
    assert busy.text().endswith("7 % of that rate; the replayer was busy for 97 % of the time")
    assert not pace(counts, plan(100.0), 2.0, 714.0, 0.5).own
    assert not pace(counts, plan(100.0), None, 714.0, 0.97).own
    assert not pace(counts, plan(100.0), 2.0, 50.0, 0.97).own


def test_a_run_that_the_replayer_could_not_keep_up_with_is_not_valid(capsys: pytest.CaptureFixture[str]) -> None:
    own = Pace(2.0, 50.0, 714.0, 0.0, "", 0.97)
    late = dataclasses.replace(result(True, False), valid=False, pace=own)
    assert commands._verdict(late, Options("h", 1), "run", "never") == commands.EXIT_NOT_VALID
    assert capsys.readouterr().err.startswith("kwire: not valid as a load test: slower than at --speed 2: took 714.0 s")


def result(slower: bool, lost: bool) -> run.Result:
    counts = Counts()
    counts.actions["sent"] = 1
    audit = Audit([OUT_OF_ORDER] if lost else [], [])
    measured = Pace(1.0, 10.0, 100.0 if slower else 10.0, 0.0, "")
    return run.Result(counts, Plan((), (), ()), [], {}, {}, True, False, None, 1.0, 1.0, 1.0, measured, audit)


@pytest.mark.parametrize(
    ("fail_on", "of_slower", "of_lost"),
    [("any", 1, 1), ("unexpected", 0, 1), ("slower", 1, 0), ("never", 0, 0)],
)
def test_what_fails_a_run_is_chosen(fail_on: str, of_slower: int, of_lost: int) -> None:
    options = Options("h", 1)
    assert commands._verdict(result(True, False), options, "run", fail_on) == of_slower
    assert commands._verdict(result(False, True), options, "run", fail_on) == of_lost
    assert commands._verdict(result(False, False), options, "run", fail_on) == 0


def test_the_first_line_of_the_summary_says_it(tmp_path: Path) -> None:
    summary = commands.summary(result(True, True), str(tmp_path / "run")).splitlines()
    assert summary[0] == "slower than captured: took 100.0 s in place of 10.0 s, 10 % of that rate"
    assert "audit      9 records were acknowledged in 1 partitions: all are there, 1 out of order" in summary
    assert commands.summary(result(False, False), "run").startswith("1 captured exchanges: ")


def test_what_may_be_there_twice_is_among_the_last_lines() -> None:
    again = result(False, False)
    again.counts.retries.update(reconnected=5, perhaps_twice=2)
    again.audit = Audit([], [])
    assert "audit      no record was acknowledged, so there is none to look for" in commands.summary(again, "run")
    again.audit = Audit([{**OUT_OF_ORDER, "out_of_order": 0, "unclaimed": 4}], [])
    assert commands.summary(again, "run").splitlines()[-3:-1] == [
        "again      2 requests to produce without a producer id: the target may have these records twice",
        "audit      9 records were acknowledged in 1 partitions: all are there, in order; 4 more lie at offsets that "
        "no answer gave, as if stored twice (most in orders-0)",
    ]


def test_groups_that_fell_apart_are_named_first() -> None:
    apart = result(False, False)
    apart.counts.apart.update({"billing": 2, "audit\n": 5})
    assert commands.summary(apart, "run").startswith("groups fell apart: audit\\n, billing: the target lost ")


def test_a_run_that_is_not_valid_stays_that_whatever_fails_it() -> None:
    late = dataclasses.replace(result(True, True), valid=False)
    late.counts.lags_us.append(10**6)
    assert commands._verdict(late, Options("h", 1), "run", "never") == commands.EXIT_NOT_VALID
