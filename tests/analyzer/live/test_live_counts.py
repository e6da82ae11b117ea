"""Compare live counts with the rows of `kwire analyze` of the same capture.

(proves: analyzer/live/live_counts.py, analyzer/live/watch_session.py)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kwire import analyzer
from kwire.analyzer.live import live_counts, watch_session
from kwire.analyzer.live.live_counts import Moment, bucket, quantile
from kwire.analyzer.live.watch_session import WatchSession
from kwire.analyzer.pipeline.points import parsed
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.files import capture_points
from tests.shared import SAMPLES

NAMES = ("txn-librdkafka-4.3", "client-kafkajs-3.9", "sasl-librdkafka-4.3")


def session_of(path: Path, filter: str | None = None, window_bytes: int = 16_384, **more: Any) -> WatchSession:
    """Watch a capture to its end."""
    settings = ReadOptions(window_bytes=window_bytes).settings(keep_messages=True)
    session = WatchSession(capture_points([str(path)])[0], settings, None, parsed(filter), telling=True, **more)
    session.run()
    return session


def rows_of(path: Path, **options: Any) -> list[dict[str, Any]]:
    return [exchange.row for exchange in analyzer.exchanges(path, bodies=False, **options)]


def failed(row: dict[str, Any]) -> bool:
    return bool(row["error_code"]) or (row["response_end"] is None and row["acks"] != 0)


def lines(moments: list[Moment]) -> dict[tuple[str, str], list[float]]:
    rates: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0])
    for moment in moments:
        for line in moment.lines:
            rates[line.api, line.broker][0] += line.rate
            rates[line.api, line.broker][1] += line.error_rate
    return rates


@pytest.mark.parametrize(("name", "window_bytes"), [(NAMES[0], 4096), *((name, 1 << 20) for name in NAMES)])
def test_every_exchange_is_in_one_second(name: str, window_bytes: int) -> None:
    path = SAMPLES / name / "capture.pcap"
    rows = rows_of(path)
    moments = list(session_of(path, window_bytes=window_bytes, find=False).counts.told)
    expected: Counter[tuple[str, str]] = Counter()
    errors: Counter[tuple[str, str]] = Counter()
    for row in rows:
        broker = row["connection"].split("-")[1].split("#")[0]
        expected[row["api"] or "?", broker] += 1
        errors[row["api"] or "?", broker] += failed(row)
    assert {key: (round(a), round(b)) for key, (a, b) in lines(moments).items()} == {
        key: (count, errors[key]) for key, count in expected.items()
    }
    assert sum(moment.exchanges for moment in moments) == len(rows)
    assert sum(moment.bytes for moment in moments) == sum(
        (row["request_bytes"] or 0) + (row["response_bytes"] or 0) for row in rows
    )
    clients: Counter[str] = Counter()
    for moment in moments:
        clients.update({client: round(rate) for client, rate, _ in moment.clients})
    assert clients == Counter(row["client_id"] or "" for row in rows)
    seconds = [moment.time_ns for moment in moments]
    assert seconds == list(range(seconds[0], seconds[-1] + 1, 10**9))


def test_seconds_hold_what_was_answered_in_them() -> None:
    path = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"
    rows = [row for row in rows_of(path) if row["response_end"] is not None]
    expected = Counter(int(row["response_end"].timestamp()) for row in rows)
    counts = {moment.time_ns // 10**9: moment.exchanges for moment in session_of(path, find=False).counts.told}
    late = len(rows_of(path)) - len(rows)
    assert sum(abs(counts.get(second, 0) - count) for second, count in expected.items()) <= late
    assert late <= 3


@pytest.mark.parametrize("filter", ["error is not null", "request.topics.name == 'tx-in'"])
def test_a_filter_limits_what_is_counted(filter: str) -> None:
    path = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"
    moments = session_of(path, filter).counts.told
    assert sum(moment.exchanges for moment in moments) == len(rows_of(path, filter=filter)) > 0


def test_percentiles_are_right_within_five_percent() -> None:
    durations = np.random.default_rng(5).lognormal(7, 2, 5000).astype(np.int64) + 1
    histogram = np.bincount(bucket(durations), minlength=1)
    for share in (0.01, 0.5, 0.9, 0.99, 1.0):
        exact = np.sort(durations)[max(0, int(np.ceil(share * len(durations))) - 1)]
        estimate = quantile(histogram, share)
        assert estimate is not None
        assert abs(estimate - exact) <= max(1, 0.05 * exact)
    assert quantile(np.zeros(5, np.int64), 0.5) is None
    assert quantile(np.bincount(bucket(np.array([0, 0]))), 0.5) == 1
    assert bucket(np.array([1 << 62])).tolist() == [42 * live_counts.STEPS - 1]


def test_what_was_held_on_purpose_is_told_apart() -> None:
    """A fetch that waited 500 ms for records took a few milliseconds."""
    path = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"
    rows = [row for row in rows_of(path) if row["api"] == "Fetch" and row["hold_us"]]
    slowest = max(row["latency_us"] - row["hold_us"] for row in rows)
    fetches = [
        line for moment in session_of(path, find=False).counts.told for line in moment.lines if line.api == "Fetch"
    ]
    assert max(line.held_p50_us or 0 for line in fetches) > 400_000
    assert max(line.p99_us or 0 for line in fetches) <= max(1.05 * slowest, 400_000)


def test_groups_in_rebalance_are_those_that_joined_and_have_no_assignment_yet() -> None:
    path = SAMPLES / "client-kafkajs-3.9" / "capture.pcap"
    rows = sorted((row for row in rows_of(path) if row["group_id"]), key=lambda row: row["response_end"])
    since: set[str] = set()
    ever = False
    for row in rows:
        if row["error_code"] == 27 or row["api"] == "JoinGroup":
            since.add(row["group_id"])
            ever = True
        elif row["api"] in ("SyncGroup", "Heartbeat", "LeaveGroup") and row["error_code"] == 0:
            since.discard(row["group_id"])
    assert ever
    session = session_of(path, find=False)
    assert {group for group, _ in session.counts.moment().rebalancing} == since


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kinds beyond the bound are one kind; nothing is lost."""
    monkeypatch.setattr(live_counts, "MOST", 2)
    path = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"
    moments = session_of(path, find=False).counts.told
    assert sum(moment.exchanges for moment in moments) == 188
    assert max(len(moment.lines) for moment in moments) <= 3
    assert any(line.broker == live_counts.OTHERS for moment in moments for line in moment.lines)
    assert max(moment.client_count for moment in moments) <= 3


def test_old_seconds_are_forgotten() -> None:
    path = SAMPLES / "sasl-librdkafka-4.3" / "capture.pcap"
    settings = ReadOptions(window_bytes=16_384).settings()
    session = WatchSession(capture_points([str(path)])[0], settings, None, None, telling=False, find=False)
    session.run()
    assert len(session.counts._seconds) <= live_counts.SECONDS
    rows = rows_of(path)
    ends = [(row["response_end"] or row["request_end"]).timestamp() for row in rows]
    recent = [end for end in ends if end >= max(ends) // 1 - live_counts.SECONDS + 1]
    now = session.counts.moment()
    assert sum(line.rate for line in now.lines) == pytest.approx(now.exchanges)
    assert now.exchanges * live_counts.SECONDS == pytest.approx(len(recent), rel=0.15)


def test_findings_are_those_of_a_dataset_and_told_once() -> None:
    """The capture is one window of evaluation long."""
    from kwire.analyzer.live.evaluation_windows import _OF_THE_WHOLE

    path = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"
    session = session_of(path)
    findings = [(row["code"], row["text"]) for row in session.findings]
    expected = [(row["code"], row["text"]) for row in analyzer.analyze(path).findings.to_pylist()]
    assert findings
    assert findings == [finding for finding in expected if finding[0] not in _OF_THE_WHOLE and finding in findings]
    assert len(set(findings)) == len(findings)


def test_an_exchange_of_each_kind_is_kept_to_look_into() -> None:
    session = session_of(SAMPLES / "txn-librdkafka-4.3" / "capture.pcap", find=False, window_bytes=1 << 20)
    apis = {example.row["api"] for example in session.examples.values()}
    assert {"Produce", "Fetch", "EndTxn", "AddPartitionsToTxn"} <= apis
    (produce,) = [example for example in session.examples.values() if example.row["api"] == "AddPartitionsToTxn"]
    assert produce.row["error_code"], "one that failed, where there is one"
    assert produce.request is not None
    assert produce.response is not None


def test_of_many_messages_the_newest_are_kept_to_look_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """The capture is one window, of which a sixth is kept."""
    monkeypatch.setattr(watch_session, "MOST_MESSAGES", 40)
    session = session_of(SAMPLES / "txn-librdkafka-4.3" / "capture.pcap", find=False, window_bytes=1 << 20)
    whole = [example for example in session.examples.values() if example.request and example.response]
    without = [example for example in session.examples.values() if not example.request and not example.response]
    assert whole
    assert without
    assert min(example.row["request_time"] for example in whole) > min(row.row["request_time"] for row in without)
