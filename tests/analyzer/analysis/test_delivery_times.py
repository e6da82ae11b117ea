"""For how long a client stood still, against plain Python over its fetches.

(proves: analyzer/analysis/delivery_times.py)
"""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from kwire import analyzer
from kwire.analyzer.analysis import delivery_times
from kwire.analyzer.analysis.delivery_times import BIN_NS, DeliveryTimes
from kwire.analyzer.bulk.engine import Engine
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.captures.files import capture_points
from tests.shared import SAMPLES, capture_files

TXN = SAMPLES / "txn-librdkafka-4.3"
Times = dict[tuple[str, int], list[int]]


def of(times: Times, split: int = 1) -> DeliveryTimes:
    """As if windows had brought these times of one client."""
    delivery_times = DeliveryTimes()
    for part in range(split):
        for (topic, partition), those in times.items():
            number = delivery_times._numbers.setdefault(
                ("c", "10.0.0.1", topic, partition), len(delivery_times._numbers)
            )
            now = np.array(those[part::split], np.int64)
            delivery_times._add(np.stack([np.full(len(now), number), now // delivery_times._bin_ns, now, now]))
        delivery_times._settle()
    return delivery_times


def slow(times: Times, stop: int, go: int) -> int | None:
    everything = sorted(itertools.chain(*times.values()))
    before, after = [time for time in everything if time <= stop], [time for time in everything if time >= go]
    if not before or not after:
        return None
    between = [time for time in everything if before[-1] <= time <= after[0]]
    return max(later - earlier for earlier, later in itertools.pairwise(between)) if len(between) > 1 else 0


def stopped(delivery_times: DeliveryTimes, stop: int, go: int) -> int | None:
    return delivery_times.by_client(str).stopped_ns(("c", "10.0.0.1"), None, None, stop, go)


def test_stops_are_those_of_plain_python_to_within_a_bin() -> None:
    rng = random.Random(14)
    seen = set()
    for _ in range(200):
        times = {("t", number): sorted(rng.sample(range(40 * BIN_NS), 12)) for number in range(2)}
        stop = rng.randrange(40 * BIN_NS)
        go = stop + rng.randrange(10 * BIN_NS)
        actual, wanted = stopped(of(times), stop, go), slow(times, stop, go)
        assert (actual is None) == (wanted is None)
        if actual is not None and wanted is not None:
            assert abs(actual - wanted) <= 2 * BIN_NS
            seen.add(actual == wanted)
    assert True in seen


def test_a_partition_that_goes_on_is_no_stop() -> None:
    times = {("t", 0): list(range(0, 1000 * BIN_NS, 5 * BIN_NS)), ("t", 1): [0, 900 * BIN_NS]}
    by = of(times).by_client(str)
    client = ("c", "10.0.0.1")
    assert by.stopped_ns(client, [("t", 0)], [("t", 0)], 100 * BIN_NS, 800 * BIN_NS) == 5 * BIN_NS
    assert by.stopped_ns(client, [("t", 1)], [("t", 1)], 100 * BIN_NS, 800 * BIN_NS) == 900 * BIN_NS
    assert by.stopped_ns(client, [], [("t", 1)], 100 * BIN_NS, 800 * BIN_NS) is None
    assert by.stopped_ns(("d", "10.0.0.1"), None, None, 0, 1) is None


def test_bins_widen_alike_whatever_the_windows_and_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_times, "MAX_BINS", 50)
    rng = random.Random(15)
    times = {("t", number): sorted(rng.sample(range(10_000 * BIN_NS), 300)) for number in range(3)}
    whole = of(times)
    apart = of({key: those for key, those in times.items() if key[1] == 1})
    apart.join(of({key: those for key, those in times.items() if key[1] != 1}, split=7))
    widths = {delivery_times._bin_ns for delivery_times in (whole, of(times, split=9), apart)}
    assert len(widths) == 1
    assert widths.pop() > BIN_NS
    assert whole._bins.shape[1] <= 50
    for stop in range(0, 10_000 * BIN_NS, 333 * BIN_NS):
        assert (
            len(
                {
                    stopped(delivery_times, stop, stop + 10 * BIN_NS)
                    for delivery_times in (whole, of(times, split=9), apart)
                }
            )
            == 1
        )


def test_fetches_that_brought_records_are_those_of_the_exchanges() -> None:
    [path] = capture_files(TXN)
    [point] = capture_points([str(path)], False)
    delivery_times = DeliveryTimes()
    for window in Engine(point, ReadOptions(window_bytes=4096).settings(False)).windows():
        delivery_times.take(window)
        window.names.release()
    names = {row["topic_id"]: row["topic"] for row in analyzer.analyze(path).topic_ids.to_pylist()}
    wanted: dict[tuple[str, int], list[int]] = {}
    for exchange in analyzer.exchanges(path, partitions=True):
        for part in exchange.partitions if exchange.api == "Fetch" else ():
            if part["record_count"] and exchange.response_end is not None:
                topic = part["topic"] or names[part["topic_id"]]
                wanted.setdefault((topic, part["partition"]), []).append(round(exchange.response_end.timestamp() * 1e6))
    by = delivery_times.by_client(lambda topic: names.get(topic, topic))._times
    by_partition: dict[tuple[str, int], list[int]] = {}
    for partitions in by.values():
        for key, bins in partitions.items():
            by_partition.setdefault(key, []).extend(np.concatenate(bins, axis=1).reshape(-1).tolist())
    assert wanted
    assert {key: (min(times) // 1000, max(times) // 1000) for key, times in by_partition.items()} == {
        key: (min(times), max(times)) for key, times in wanted.items()
    }
