"""When an API is slower beyond noise. Latencies are drawn from a generator with a fixed seed: nothing is measured.

Proves: replay/diff/slower.py
"""

from __future__ import annotations

import dataclasses
import random
from array import array
from typing import Any

import pytest

from kwire.replay.diff.compare import compare
from kwire.replay.diff.differences import grouped
from kwire.replay.diff.latencies import Latencies
from kwire.replay.diff.pairs import Pair, Pairs, RunFacts
from kwire.replay.diff.slower import ENOUGH, MOST_LOAD, load, shift
from kwire.replay.diff.text import as_text
from tests.replay.forging import pair


def latencies(median_ms: float, count: int, seed: int, spread: float = 0.5) -> list[int]:
    """As brokers have them: log-normal, with a long tail."""
    rng = random.Random(seed)
    return [round(median_ms * 1000 * rng.lognormvariate(0, spread)) for _ in range(count)]


def test_a_shift_of_three_hundred_milliseconds_is_seen_with_thirty_answers() -> None:
    left = latencies(2, ENOUGH, 1)
    result = shift(left, [latency + 300_000 for latency in left])
    assert result is not None
    before, after, least = result
    assert after - before == pytest.approx(300_000)
    assert 290_000 < least < 300_000


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (latencies(2, 29, 1), latencies(302, 29, 2)),  # too few
        (latencies(2, 500, 1), latencies(6, 500, 2)),  # by less than 5 ms, though three times
        (latencies(100, 500, 1), latencies(115, 500, 2)),  # by less than a fifth
        (latencies(300, 500, 1), latencies(2, 500, 2)),  # faster
        (latencies(10, 30, 1, 2.0), latencies(20, 30, 2, 2.0)),  # may be chance
        ([], []),
    ],
)
def test_what_is_not_slower_beyond_noise(left: list[int], right: list[int]) -> None:
    assert shift(left, right) is None


def test_one_broker_against_itself_is_never_slower() -> None:
    """Two hundred healthy pairs, of few and of many answers, with narrow and wide tails."""
    for seed in range(200):
        count, spread = (30, 100, 1000)[seed % 3], (0.1, 0.5, 1.0, 2.0)[seed % 4]
        left = latencies(20, count, seed, spread)
        assert shift(left, latencies(20, count, seed + 10_000, spread)) is None


def test_what_makes_all_apis_slower_together_is_load() -> None:
    """A machine that does something else meanwhile, at one of two runs, for all of it."""
    commits, others = latencies(12, 100, 1), [(latencies(10, 500, seed), latencies(17, 500, -seed)) for seed in (2, 3)]
    again = latencies(21, 100, 4)
    assert shift(commits, again) is not None
    assert (load([]), load([], MOST_LOAD)) == (1.0, MOST_LOAD)
    assert 1.5 < load(others) < MOST_LOAD
    assert shift(commits, again, load(others)) is None
    # The others as before: then it is the API.
    assert load([(left, left) for left, _ in others]) == load([(right, left) for left, right in others]) == 1.0


def test_a_target_that_is_slower_with_all_apis_is_slower_all_the_same() -> None:
    """A proxy that delays everything by 300 ms: no load does that."""
    every = [
        (left, [latency + 300_000 for latency in left]) for left in (latencies(10, 100, seed) for seed in range(3))
    ]
    assert load(every) == MOST_LOAD
    assert [shift(*exchange, load(every)) is not None for exchange in every] == [True] * 3


def test_few_answers_say_nothing_about_load() -> None:
    assert load([(latencies(10, 29, 1), latencies(300, 29, 2)), (latencies(10, 30, 3), latencies(10, 30, 3))]) == 1.0


@pytest.mark.parametrize("speed", [None, 1.0, 20.0])
def test_a_machine_that_is_busier_during_one_of_two_runs_makes_no_api_slower(speed: float | None) -> None:
    some = [metadata(10_000, 18_000) for _ in range(ENOUGH)]
    some += [_timed(pair("ListGroups", 0, {}, {"groups": []}, {"groups": []}), 20_000, 37_000) for _ in range(ENOUGH)]
    pairs = Pairs(len(some), some.__getitem__)
    pairs.runs = (RunFacts([], {}, speed, {}), RunFacts([], {}, speed, {}))
    assert compare(pairs).slower == {}


@pytest.mark.parametrize(("speed", "slower"), [(None, set()), (1.0, {"Metadata"})])
def test_load_is_presumed_only_where_a_side_is_as_busy_as_it_can_be(speed: float | None, slower: set[str]) -> None:
    """On a schedule a target has time for each request, and there is no other API that is slower too."""
    some = [metadata(10_000, 18_000) for _ in range(ENOUGH)]
    pairs = Pairs(len(some), some.__getitem__)
    pairs.runs = (RunFacts([], {}, speed, {}), RunFacts([], {}, speed, {}))
    assert set(compare(pairs).slower) == slower


def metadata(left_us: int, right_us: int, **row: Any) -> Pair:
    return _timed(pair("Metadata", 1, {"topics": None}, {"topics": []}, {"topics": []}, **row), left_us, right_us)


def _timed(exchange: Pair, left_us: int, right_us: int) -> Pair:
    left, right = (
        dataclasses.replace(side, latency_us=us) for side, us in ((exchange.left, left_us), (exchange.right, right_us))
    )
    return Pair(exchange.row, left, right)


def test_a_slower_api_is_a_difference_and_says_where() -> None:
    some = [metadata(2_000, 302_000 + number) for number in range(ENOUGH)]
    result = compare(some)
    (group,) = grouped(result.differences)
    assert (group.rule, group.kind, group.version, group.count) == (None, "slower", None, 1)
    assert (group.examples[0].left, group.examples[0].row["exchange"]) == ("median 2.0 ms", some[-1].row["exchange"])
    assert (result.same, result.unexpected) == (ENOUGH, 0)  # as exchanges they are the same
    lines = as_text(result, ("captured", "replayed")).splitlines()
    assert lines[0] == "verdict: 1 unexpected difference: Metadata slower median 302.0 ms, at least 300.0 ms more"
    assert lines[-1].endswith("  slower")


@pytest.mark.parametrize(
    ("speeds", "judged"),
    [((1.0,), True), ((20.0,), False), ((None,), False), ((None, None), True), ((1.0, 2.0), False)],
)
def test_only_what_was_sent_at_the_same_speed_is_compared(speeds: tuple[float | None, ...], judged: bool) -> None:
    some = [metadata(2_000, 302_000) for _ in range(ENOUGH)]
    pairs = Pairs(len(some), some.__getitem__)
    pairs.runs = tuple(RunFacts([], {}, speed, {}) for speed in speeds)
    result = compare(pairs)
    assert result.judged == judged
    assert len(list(result.differences)) == judged
    assert ("not judged: B was sent at another speed than A" in as_text(result, ("A", "B"))) != judged


def test_what_a_broker_held_on_purpose_is_not_compared() -> None:
    def fetch(cause: str | None) -> Pair:
        part = {"partitionIndex": 0, "errorCode": 0, "records": b"x"}
        answer = {"responses": [{"topic": "orders", "partitions": [part]}]}
        exchange = pair("Fetch", 11, {"topics": []}, answer, answer, cause=cause)
        return Pair(exchange.row, exchange.left, dataclasses.replace(exchange.right, latency_us=400_000))

    assert compare([fetch("hold") for _ in range(ENOUGH)]).latencies == {}
    assert set(compare([fetch("broker") for _ in range(ENOUGH)]).slower) == {"Fetch"}


# --- most APIs together ---


def measured(**factors: float) -> Latencies:
    """Forty answers of each API, so many times longer on the right."""
    every = Latencies()
    for number, (api, factor) in enumerate(factors.items()):
        left = latencies(50, 40, number, 0.1)
        every.by_api[api] = array("q", left), array("q", [round(value * factor) for value in left])
        every._slowest[api] = 1, {"api_key": number, "api_version": 1}
    return every


def texts_of(every: Latencies) -> list[str]:
    return [f"{each.kind} {each.right}" for each in every.judged(None, evidence="own lag 40 ms")]


def test_most_apis_that_are_slower_alike_are_one_difference() -> None:
    busy = measured(Produce=4.0, Fetch=5.0, Metadata=4.5, Heartbeat=1.0)
    assert texts_of(busy) == ["slower 3 of 4 APIs alike, 4.0 to 5.0 times as long (own lag 40 ms)"]
    assert set(busy.slower) == {"Produce", "Fetch", "Metadata"}


@pytest.mark.parametrize(
    "factors",
    [
        {"Produce": 4.0, "Fetch": 4.0, "Metadata": 1.0},  # two are no crowd
        {"Produce": 3.0, "Fetch": 12.0, "Metadata": 5.0},  # not alike
        {"Produce": 4.0, "Fetch": 4.0, "Metadata": 4.0, "Heartbeat": 1.0, "JoinGroup": 1.0, "SyncGroup": 1.0},
    ],
)
def test_others_are_told_one_by_one(factors: dict[str, float]) -> None:
    assert len(texts_of(measured(**factors))) == sum(factor > MOST_LOAD for factor in factors.values())


def test_slower_from_a_factor_on() -> None:
    left = latencies(100, 200, 1, 0.1)
    right = [round(value * 1.4) for value in left]
    assert shift(left, right) is not None
    assert shift(left, right, share=0.5) is None


def test_apis_that_take_like_times_longer_are_one_difference_too() -> None:
    """A machine that gives each answer its turn 40 ms late, whatever the API takes."""
    every = measured(Produce=1.0, Fetch=1.0, Metadata=1.0)
    for number, (left, right) in enumerate(every.by_api.values()):
        left[:] = array("q", (value // 20 >> 2 * number for value in left))
        right[:] = array("q", (value + 40_000 + number for value in left))
    assert texts_of(every) == ["slower 3 of 3 APIs alike, 40.0 ms more (own lag 40 ms)"]


# --- the replayer's own event loop ---


@pytest.mark.parametrize(("late_us", "slower", "expected"), [(0.0, {"Fetch"}, 0), (90_000.0, set(), 1)])
def test_what_is_not_slower_than_the_replayer_itself_was_late(late_us: float, slower: set[str], expected: int) -> None:
    every = measured(Produce=1.0, Fetch=2.5)
    differences = list(every.judged(None, evidence="event loop late", late_us=late_us))
    assert [each.rule for each in differences] == ["busy_replayer" if expected else None]
    assert set(every.slower) == slower
    assert ("event loop late" in differences[0].right) == bool(expected)


def test_what_is_slower_than_that_stays_a_difference_beside_it() -> None:
    every = measured(Produce=10.0, Fetch=2.5, Metadata=1.0)
    rules = {each.rule: each.right for each in every.judged(None, late_us=90_000.0)}
    assert rules.keys() == {None, "busy_replayer"}
    assert rules["busy_replayer"].startswith("Fetch: ")
    assert set(every.slower) == {"Produce"}


# --- the slowest answers by themselves ---


def delayed(each: int, by_us: int, count: int = 400) -> Latencies:
    """Fetches of which each so many-th takes longer on the right, among other answers that do not."""
    every = Latencies()
    for number, api in enumerate(("Fetch", "Metadata")):
        left, right = latencies(2, count, number, 0.2), latencies(2, count, 10 + number, 0.2)
        if api == "Fetch":
            right = [value + by_us * (at % each == 0) for at, value in enumerate(right)]
        every.by_api[api] = array("q", left), array("q", right)
        every._slowest[api] = 1, {"api_key": number, "api_version": 1}
    return every


def test_each_twentieth_answer_that_takes_longer_is_seen_in_the_tail() -> None:
    every = delayed(20, 50_000)
    (difference,) = every.judged(None)
    assert (difference.rule, difference.left[:3], difference.right[:4]) == (None, "p98", "p98 ")
    assert set(every.slower) == {"Fetch"}


@pytest.mark.parametrize(
    ("every", "busy"),
    [
        (delayed(100, 50_000), False),  # as rare as outliers are
        (delayed(20, 4_000), False),  # by less than 5 ms
        (delayed(20, 50_000, 190), False),  # too few
        (delayed(20, 50_000), True),  # at full speed tails are the machine's
    ],
)
def test_tails_that_say_nothing(every: Latencies, busy: bool) -> None:
    assert list(every.judged(None, busy)) == []


def test_a_tail_that_all_have_is_the_machine() -> None:
    every = delayed(20, 50_000)
    _, right = every.by_api["Metadata"]
    right[:] = array("q", (value + 50_000 * (at % 20 == 0) for at, value in enumerate(right)))
    assert list(every.judged(None)) == []
