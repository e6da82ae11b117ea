"""Noise learned from old against old: what differs there as often is no difference, and a latency is slower only beyond
what old differs from old. Latencies are drawn from a generator with a fixed seed: nothing is measured.

Proves: replay/diff/noise.py
"""

from __future__ import annotations

import json
from fractions import Fraction
from math import comb

import numpy as np
import pytest

from kwire.analyzer.common import statistics
from kwire.replay.diff import noise
from kwire.replay.diff.compare import Comparison, compare, compare_beyond
from kwire.replay.diff.differences import grouped
from kwire.replay.diff.pairs import Pair
from kwire.replay.diff.text import as_json, as_text
from tests.replay.diff.test_slower import latencies, metadata
from tests.replay.forging import pair

COMMITTED, REFUSED = 0, 12
"""No error, and OFFSET_METADATA_TOO_LARGE: one that no rule expects."""


def commits(*errors: tuple[int, int]) -> list[Pair]:
    """OffsetCommit of one partition, with the error of either side."""

    def answer(error: int) -> dict[str, object]:
        return {"topics": [{"name": "orders", "partitions": [{"partitionIndex": 0, "errorCode": error}]}]}

    request = {
        "groupId": "billing",
        "topics": [
            {"name": "orders", "partitions": [{"partitionIndex": 0, "committedOffset": 1, "committedMetadata": ""}]}
        ],
    }
    return [pair("OffsetCommit", 2, request, answer(left), answer(right), captured=False) for left, right in errors]


def unexpected(comparison: Comparison) -> list[tuple[str, int]]:
    return [(group.kind, group.count) for group in grouped(comparison.differences) if group.unexpected]


def some(failing: int, of: int = 100) -> list[tuple[int, int]]:
    """So many of them fail on the right only."""
    return [(COMMITTED, REFUSED if number < failing else COMMITTED) for number in range(of)]


def test_what_old_against_old_does_not_show_counts_at_once() -> None:
    quiet = commits(*some(0))
    assert unexpected(compare_beyond(commits(*some(1)), quiet)) == [("error appeared", 1)]


@pytest.mark.parametrize(("old", "new", "counted"), [(5, 5, False), (5, 9, False), (5, 16, True), (1, 100, True)])
def test_what_old_against_old_shows_counts_where_it_is_more_often(old: int, new: int, counted: bool) -> None:
    comparison = compare_beyond(commits(*some(new)), commits(*some(old)))
    assert unexpected(comparison) == ([("error appeared", new)] if counted else [])
    # As exchanges too; and whatever is no difference is told, with its reason.
    assert (comparison.unexpected, comparison.expected) == ((new, 0) if counted else (0, new))
    assert {group.rule for group in grouped(comparison.differences)} == {None if counted else "noise"}


def test_noise_has_no_direction() -> None:
    """Which of two runs at one target met the error is chance."""
    turned = commits(*((right, left) for left, right in some(4)))
    assert unexpected(compare_beyond(commits(*some(4)), turned)) == []


def test_noise_is_of_one_kind_only() -> None:
    other = commits(*((COMMITTED, 3 if number < 50 else COMMITTED) for number in range(100)))
    assert unexpected(compare_beyond(commits(*some(1)), other)) == [("error appeared", 1)]


@pytest.mark.parametrize(
    ("before", "of_before", "after", "of_after"), [(5, 100, 12, 100), (1, 10, 9, 12), (3, 200, 4, 50)]
)
def test_the_chance_is_that_of_fishers_exact_test(before: int, of_before: int, after: int, of_after: int) -> None:
    both = before + after
    exact = sum(
        Fraction(comb(of_after, count) * comb(of_before, both - count), comb(of_before + of_after, both))
        for count in range(after, min(both, of_after) + 1)
    )
    assert statistics.more_often(before, of_before, after, of_after) == pytest.approx(float(exact), rel=1e-9)


def test_the_interval_of_a_quantile_is_that_of_resampling() -> None:
    """Against samples that are really drawn, value by value."""
    values = np.sort(np.asarray(latencies(10, 400, 1), np.float64))
    chance = np.random.default_rng(7)
    drawn = np.sort(chance.choice(values, (4000, len(values))), axis=1)[:, noise._rank(len(values), 0.95) - 1]
    resampled = noise._resampled(values, 0.95, np.random.default_rng(8))
    for part in (0.025, 0.5, 0.975):
        assert float(np.quantile(resampled, part)) == pytest.approx(float(np.quantile(drawn, part)), rel=0.05)


def test_an_interval_covers_the_true_shift() -> None:
    """Of two hundred shifts by 5 ms, 95 in a hundred intervals have it: with a fixed seed, at least 180."""
    covered = 0
    for seed in range(200):
        left = np.sort(np.asarray(latencies(20, 300, seed), np.float64))
        right = np.sort(np.asarray(latencies(20, 300, seed + 10_000), np.float64)) + 5_000
        _, low, high = noise.shift(left, right, 0.5)
        covered += low <= 5_000 <= high
    assert 180 <= covered <= 200


def answers(left: list[int], right: list[int]) -> list[Pair]:
    return [metadata(first, other) for first, other in zip(left, right, strict=True)]


def test_slower_is_what_is_beyond_noise() -> None:
    """Old against old moves by some milliseconds; new by that is the same, by ten times as much slower."""
    old = latencies(20, 200, 1)
    again = [latency + 6_000 for latency in latencies(20, 200, 2)]
    close = [latency + 5_000 for latency in latencies(20, 200, 3)]
    far = [latency + 60_000 for latency in latencies(20, 200, 4)]
    noisy = answers(old, again)
    same = compare_beyond(answers(old, close), noisy)
    assert (list(same.differences), same.slower) == ([], {})
    assert [shift.quantile for shift in same.measured.shifts["Metadata"]] == ["p50", "p95"]
    slower = compare_beyond(answers(old, far), noisy)
    (group,) = grouped(slower.differences)
    assert (group.rule, group.kind) == (None, "slower")
    text = as_text(slower, ("A", "B"))
    assert text.startswith("verdict: 1 unexpected difference: Metadata slower p50 ")
    assert "95% intervals" in text
    figures = as_json(slower, ("A", "B"))["shifts"]["Metadata"]["p50"]
    assert figures["slower"]
    assert figures["noise_us"] < figures["low_us"] <= figures["shift_us"] <= figures["high_us"]
    json.dumps(figures)


def test_a_tail_that_grows_is_slower_though_the_median_stays() -> None:
    """One answer in fifty takes 300 ms more: p99 says so, p50 does not."""
    old, again, new = (latencies(20, 2000, seed, 0.2) for seed in (1, 2, 3))
    new = [latency + (300_000 if number % 50 == 0 else 0) for number, latency in enumerate(new)]
    comparison = noise.Noise(latencies={"Produce": (old, again)}).shifts({"Produce": (old, new)})
    assert [shift.quantile for shift in comparison["Produce"]] == ["p50", "p95", "p99"]
    assert [shift.quantile for shift in comparison["Produce"] if shift.slower] == ["p99"]


def test_ten_healthy_runs_against_each_other_are_never_slower() -> None:
    """Each against each, with each other one as noise; runs of one target have medians some percent apart."""
    runs = [latencies(20 * (1 + 0.02 * (seed % 3)), 500, seed, 0.4) for seed in range(10)]
    for a, old in enumerate(runs):
        for b, new in enumerate(runs):
            again = runs[(a + b + 1) % 10]
            learned = noise.Noise(latencies={"Produce": (old, again)})
            assert not any(shift.slower for shift in learned.shifts({"Produce": (old, new)})["Produce"])


def test_one_slow_broker_of_two_is_named() -> None:
    def at(broker: str, left: int, right: int) -> Pair:
        return metadata(left, right, connection=f"10.0.0.1:50000-{broker}:9092#1")

    quick = [at("10.0.0.2", 2_000, 2_000 + number) for number in range(60)]
    slow = [at("10.0.0.3", 2_000, 302_000 + number) for number in range(40)]
    comparison = compare([*quick, *slow])
    (group,) = grouped(comparison.differences)
    assert (group.kind, group.examples[0].key) == ("slower", ("10.0.0.3:9092",))
    assert set(comparison.slower) == {"Metadata at 10.0.0.3:9092"}
    assert as_text(comparison, ("captured", "replayed")).splitlines()[0].endswith("(10.0.0.3:9092)")


def test_few_answers_say_nothing_of_a_tail() -> None:
    old = latencies(20, 60, 1)
    comparison = noise.Noise(latencies={"Produce": (old, old)}).shifts({"Produce": (old, old)})
    assert [shift.quantile for shift in comparison["Produce"]] == ["p50"]
