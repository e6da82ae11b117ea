"""Compare the live lag and delays of readers with the table `journeys` of the same capture, and with the records sent.

(proves: analyzer/live/reader_delays.py, analyzer/live/reader_lag.py)
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from kwire import analyzer
from kwire.analyzer.live.live_counts import STEPS
from kwire.analyzer.live.reader_lag import GONE_NS, MOST_PARTITIONS, MOST_READERS, ReaderLag
from tests.analyzer import forging
from tests.analyzer.analysis.test_journeys import SECOND, batch, fetching, producing
from tests.analyzer.live.test_live_counts import session_of
from tests.captures.forge import converse, interleaved
from tests.shared import SAMPLES


@pytest.mark.parametrize("name", ["txn-librdkafka-4.3", "codecs-franzgo-4.3"])
@pytest.mark.parametrize("window_bytes", [4096, 1 << 20])
def test_batches_of_each_reader_are_those_of_journeys(name: str, window_bytes: int) -> None:
    path = SAMPLES / name / "capture.pcap"
    rows = analyzer.analyze(path).journeys.to_pylist()
    expected: Counter[tuple[str | None, str]] = Counter()
    longest: dict[tuple[str | None, str], int] = {}
    names = {row["topic_id"]: row["topic"] for row in analyzer.analyze(path).topic_ids.to_pylist()}
    for row in rows:
        if row["kind"] == "consumer" and row["fetched"] is not None and row["acked"] is not None:
            key = row["group_id"] or row["reader_client"], row["topic"] or names[row["topic_id"]]
            expected[key] += 1
            took = int((row["fetched"] - row["sent"]).total_seconds() * 1e6)
            longest[key] = max(longest.get(key, 0), took)
    moments = list(session_of(path, window_bytes=window_bytes, find=False).counts.told)
    batches: Counter[tuple[str | None, str]] = Counter()
    slowest: dict[tuple[str | None, str], int] = {}
    for moment in moments:
        for line in moment.readers:
            batches[line.group or line.client_id, line.topic] += line.batches
            key = line.group or line.client_id, line.topic
            slowest[key] = max(slowest.get(key, 0), line.p99_us or 0)
    assert expected
    assert +batches == expected
    for key, took in longest.items():  # fewer than a hundred a second: the percentile is the longest
        assert took / 2 ** (1 / STEPS) <= slowest[key] <= took * 2 ** (1 / STEPS)


def test_a_reader_is_behind_by_the_age_of_its_next_batch(tmp_path: Path) -> None:
    """Batches of two records are sent at 1, 2 and 3 s; the first is read at 4 s, the others never."""
    produced = [producing(number, 8 + 2 * number, 2, number * SECOND) for number in (1, 2, 3)]
    fetched = [fetching(1, 10, batch(2, 10), 4 * SECOND), fetching(2, 12, b"", 6 * SECOND)]
    conversations = [[write for part in parts for write in part] for parts in (produced, fetched)]
    packets = [converse(writes, client=("10.0.0.1", 40_000 + i), acks=False) for i, writes in enumerate(conversations)]
    forging.read(tmp_path, interleaved(*packets))
    moments = list(session_of(tmp_path / "capture.pcap", find=False).counts.told)
    lags = [line.lag_us for moment in moments for line in moment.readers]
    assert lags
    assert lags == sorted(lags)
    steps = {after - before for before, after in itertools.pairwise(lags)}
    assert steps == {1_000_000}


def test_a_batch_that_a_reader_had_before_its_acknowledgement_counts_once() -> None:
    lag, second = ReaderLag(), 10**9
    assert lag.reads("t", "r", 0, 2 * second, 12, 10) == []
    assert lag.writes("t", 0, second, 10, 12) == [("r", second)]
    assert lag.reads("t", "r", 0, 5 * second, 12, 10) == []
    assert lag.writes("t", 0, 3 * second, 12, 14) == []
    assert lag.reads("t", "r", 0, 7 * second, 14, 12) == [4 * second]


def test_a_lag_counts_from_the_batch_that_comes_next() -> None:
    lag, second = ReaderLag(), 10**9
    for number in range(3):
        lag.writes("t", 0, number * second + 7, 10 * number, 10 * number + 10)
    lag.reads("t", "r", 0, 3 * second, 15)
    [standing] = lag.standing(4 * second)
    assert (standing.records, standing.since_ns) == (15, second + 7)


def test_state_has_bounds_and_is_forgotten() -> None:
    lag = ReaderLag()
    for number in range(MOST_READERS + 5000):
        lag.writes("t", number, number, 0, 1)
        lag.reads("t", "r", number, number, 1, 0)
    assert len(lag.positions) == MOST_READERS == sum(map(len, lag.answers.values()))
    assert len(lag.written) == MOST_PARTITIONS
    assert lag.standing(GONE_NS + 10**6) == []
    assert not lag.positions
    assert not lag.answers
