"""Compare latency without `queue_us` with the broker's time in its own request log.

Proves `analyzer/bulk/matching.py` and `analyzer/bulk/exchange_tables.py`. In these captures a broker was killed and
came back: while one Produce waited for replicas, hundreds behind it on the same connections waited for that one.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from kwire import analyzer
from tests import shared
from tests.witness import requestlog

SECOND_US = 1_000_000


class Timed:
    """Exchanges with what their broker's log says they took: (API, latency, queue, broker), in microseconds."""

    def __init__(self, folder: Path) -> None:
        logged: dict[tuple[object, ...], list[float]] = {}
        for line in requestlog.read(folder):
            if not line.forwarded:
                key = (line.client, line.broker, line.api_key, line.correlation_id)
                logged.setdefault(key, []).append(line.total_ms)
        self.rows: list[tuple[str, int, int, int]] = []
        files = [str(path) for path in shared.capture_files(folder)]
        for row in analyzer.analyze(*files).exchanges.to_pylist():
            client, broker = (row["client_ip"], row["client_port"]), (row["broker_ip"], row["broker_port"])
            took = logged.get((client, broker, row["api_key"], row["correlation_id"]), [])
            if row["latency_us"] is not None and len(took) == 1:
                self.rows.append((row["api"], row["latency_us"], row["queue_us"], round(took[0] * 1000)))


@pytest.fixture(scope="module", params=["cluster-kraft-3.9", "cluster-zk-2.8"])
def timed(request: pytest.FixtureRequest) -> Timed:
    return Timed(shared.real_folder(request.param))


def test_as_many_are_over_a_second_as_the_broker_says(timed: Timed) -> None:
    seen = Counter(api for api, latency, queue, _ in timed.rows if latency - queue > SECOND_US)
    assert seen == Counter(api for api, _, _, broker in timed.rows if broker > SECOND_US)
    assert 3 <= seen.total() <= 4
    # Without the queue taken out, the capture seems to hold a hundred times as many.
    assert sum(latency > SECOND_US for _, latency, _, _ in timed.rows) > 180


def test_without_the_queue_latencies_are_the_brokers(timed: Timed) -> None:
    """Within 20 ms, on a machine that three brokers kept busy."""
    apart = [abs(latency - queue - broker) for _, latency, queue, broker in timed.rows]
    assert len(apart) > 5000
    assert sum(difference > 20_000 for difference in apart) < 0.003 * len(apart)
    assert sum(abs(latency - broker) > 20_000 for _, latency, _, broker in timed.rows) > 300


def test_the_queue_is_never_longer_than_the_latency(timed: Timed) -> None:
    assert all(0 <= queue <= latency for _, latency, queue, _ in timed.rows)
