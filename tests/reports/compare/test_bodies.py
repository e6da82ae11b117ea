"""Settings that only bodies say, read from captures.

Proves: reports/compare/bodies.py
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import kwire
from kwire.analyzer.pipeline.read_options import ReadOptions
from kwire.reports.compare import bodies
from tests.shared import SAMPLES, capture_files


@pytest.mark.parametrize("sample", ["txn-librdkafka-4.3", "client-kafkajs-3.9", "zookeeper-java-0.8.2"])
def test_settings_are_those_of_the_decoded_bodies(sample: str) -> None:
    (path,) = capture_files(SAMPLES / sample)
    expected: dict[str, set[str]] = {}
    for exchange in kwire.exchanges(str(path), filter="api == Fetch or api == JoinGroup"):
        body = exchange.request or {}
        if exchange.api == "JoinGroup":
            expected.setdefault("assignors", set()).add(", ".join(each["name"] for each in body["protocols"]))
        elif "maxBytes" in body:
            expected.setdefault("fetch_max_bytes", set()).add(f"{body['maxBytes']:,}")
        for topic in body.get("topics") or []:
            for partition in topic.get("partitions") or []:
                expected.setdefault("fetch_partition_max_bytes", set()).add(f"{partition['partitionMaxBytes']:,}")
    total: dict[str, Counter[str]] = {}
    for facts in bodies.settings([str(path)], ReadOptions()).values():
        for name, counts in facts.items():
            total.setdefault(name, Counter()).update(counts)
    assert expected
    assert {name: set(counts) for name, counts in total.items()} == expected


def test_a_filter_holds_for_bodies_too_and_stdin_is_not_read_twice() -> None:
    path: Path = SAMPLES / "txn-librdkafka-4.3" / "capture.pcap"
    some = bodies.settings([str(path)], ReadOptions(), "client_id == lab-read_committed")
    assert some
    assert len(some) < len(bodies.settings([str(path)], ReadOptions()))
    assert bodies.settings(["-"], ReadOptions()) == {}
