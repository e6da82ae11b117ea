"""Rows put together by what they have in common, and how often things come, against plain Python.

(proves: analyzer/frame/grouping.py, analyzer/findings/capture.py, analyzer/findings/produce.py,
analyzer/findings/error_answers.py)
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kwire.analyzer.dataset.dataset import open_dataset
from kwire.analyzer.findings import evaluate, produce
from kwire.analyzer.findings.capture import CaptureFrame
from kwire.analyzer.findings.error_answers import Nearest
from kwire.analyzer.frame import grouping
from kwire.analyzer.frame.frame import NULL
from kwire.analyzer.frame.grouping import first_rows, rows_by_key, split
from kwire.analyzer.frame.parquet import RowGroups
from tests.analyzer.findings.evaluating import Traffic


@pytest.mark.parametrize("span", [1, 2, 255, 256, 257, 65535, 65536, 65537])
def test_keys_are_grouped_whatever_they_span(span: int) -> None:
    """One key, of as many values as 8 or 16 bits tell apart, and one more or less; and two, in their order."""
    rng = random.Random(span)
    keys = [0, span - 1, *(rng.randrange(span) for _ in range(100))]
    shifted = np.array(keys, np.int64) - 5
    groups = grouping.group(shifted)
    order, starts, ends = groups.order, groups.starts, groups.ends
    assert order.tolist() == sorted(range(len(keys)), key=lambda i: keys[i])
    assert (ends - starts).tolist() == [keys.count(key) for key in sorted(set(keys))]
    other = np.array([rng.randrange(2) for _ in keys])
    pairs = list(zip(shifted.tolist(), other.tolist(), strict=True))
    assert grouping.group(shifted, other).order.tolist() == sorted(range(len(keys)), key=lambda i: pairs[i])
    assert grouping.group(shifted, other).numbers().tolist() == [sorted(set(pairs)).index(pair) for pair in pairs]


@pytest.mark.parametrize("seed", range(20))
def test_the_median_count_is_that_of_an_array_of_all_counts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for size in range(1, 30):
        numbers = rng.integers(0, 12, rng.integers(0, 40))
        expected = float(np.median(np.bincount(numbers, minlength=size)))
        assert grouping.median_count(numbers, size) == expected


@pytest.mark.parametrize("count", [0, 1, 300])
def test_rows_are_looked_up_by_their_keys(count: int) -> None:
    rng = random.Random(count)
    keys = [(rng.randrange(5), rng.randrange(-3, 70_000)) for _ in range(count)]
    rows = np.arange(10, 10 + count)
    by_key = rows_by_key(rows, *np.array(keys, np.int64).reshape(-1, 2).T)
    assert {key: some.tolist() for key, some in by_key.items()} == {
        key: [row for row, other in zip(rows.tolist(), keys, strict=True) if other == key] for key in keys
    }
    assert list(by_key) == sorted(by_key)
    firsts = first_rows(*np.array(keys, np.int64).reshape(-1, 2).T)
    assert firsts.tolist() == [keys.index(key) for key in sorted(set(keys))]


@pytest.mark.parametrize("others", [0, 5_000])
def test_a_missing_topic_is_held_against_the_name_most_like_it(others: int) -> None:
    rng = random.Random(7)
    known = {"".join(rng.choice("abcdefghijklmnopqrstuvwxyz-.") for _ in range(12)) for _ in range(others)}
    nearest = Nearest(known | {"orders.europe"})
    assert nearest.to("orders.eurpoe") == "orders.europe"
    assert nearest.to("0000000000") is None


def test_rows_that_are_few_are_no_part() -> None:
    parts = [part.tolist() for part in split(np.arange(10, 16), np.array([3, 1, 3, 2, 1, 3]), least=2)]
    assert parts == [[11, 14], [10, 12, 15]]


@pytest.mark.parametrize("limit", [0, 3, 4, 4.5, 9])
def test_a_median_is_below_a_limit(limit: float) -> None:
    rng = random.Random(limit)
    for size in (1, 2, 3, 4, 9, 10):
        for _ in range(50):
            values = np.array([rng.randrange(9) for _ in range(size)])
            assert produce._mostly_below(values, limit) == (np.median(values) < limit)


@pytest.mark.parametrize("apart", [1, 40, 400])
def test_requests_that_wait_for_more_go_together(apart: int) -> None:
    rng = random.Random(apart)
    times = np.sort(np.array([rng.randrange(1000 * apart) for _ in range(1000)], np.int64))
    sent, until = 0, -1
    for time in times.tolist():
        if time > until:
            sent, until = sent + 1, time + 500
    assert produce._lingering(times, 500) == sent


@pytest.mark.parametrize("several", [False, True])
def test_batches_are_told_with_the_requests_of_their_client_and_broker(several: bool, tmp_path: Path) -> None:
    """One batch a request; or some requests hold two, and some none."""
    seen = Traffic(tmp_path / "forged")
    batch = {"record_count": 1, "batch_bytes": 100}
    for number in range(60):
        who: dict[str, Any] = {"on": number % 3, "client_id": f"client-{number % 3}"}
        seen.ask("Produce", number * 0.01, place=("t", number % 2), batch=batch, **who)
        if several and number % 7 == 0:
            row = seen.rows["batches"][-1]
            seen.rows["batches"].append({**row, "partition": 1 - row["partition"]})
        if several and number % 5 == 0:
            seen.ask("Produce", number * 0.01, **who)
    source = RowGroups.of(open_dataset(seen.write()))
    here = CaptureFrame(source, source.captures[0], evaluate.USUAL)
    written = produce.batches(here)
    frequent = {tuple(rows.tolist()): some.tolist() for rows, some in produce._often(here, written, 5)}
    assert len(frequent) == 3
    links = here.exchanges.link
    for rows, some in frequent.items():
        assert set(rows) == set(np.flatnonzero(links == links[rows[0]]).tolist())
        assert some == [at for at, owner in enumerate(written.owner.tolist()) if owner in rows]
    assert sum(map(len, frequent.values())) == len(written.owner) == (69 if several else 60)


@pytest.mark.parametrize("seed", range(40))
def test_batches_that_others_passed_are_found_without_looking_at_all_pairs(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randrange(1, 30)
    requested = [rng.choice([NULL, *range(12)]) for _ in range(count)]
    answered = [rng.choice([NULL, time + rng.randrange(5) if time != NULL else 3]) for time in requested]
    alike = [rng.randrange(3) for _ in range(count)]
    states = [rng.choice(["failed", "good", "other"]) for _ in range(count)]
    expected = []
    for row in range(count):
        good = [other for other in range(count) if states[other] == "good"]
        behind = [other for other in good if requested[row] < requested[other] < answered[row]]
        again = [other for other in good if requested[other] >= answered[row] and alike[other] == alike[row]]
        if states[row] == "failed" and behind and again:
            expected.append((row, behind[0], again[0]))
    sent, came, kinds = (np.array(values, np.int64) for values in (requested, answered, alike))
    failed, stored = (np.array([state == wanted for state in states]) for wanted in ("failed", "good"))
    assert list(produce._passed(sent, came, kinds, failed, stored)) == expected
