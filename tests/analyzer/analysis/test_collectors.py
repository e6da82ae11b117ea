"""Collectors: their state can be stored between windows, and joined with that of other shares.

(proves: analyzer/analysis/cluster_metadata.py, analyzer/analysis/connections.py, analyzer/analysis/summary.py,
analyzer/analysis/record_sets.py)
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest

from kwire.analyzer.analysis import Collector
from kwire.analyzer.analysis.cluster_metadata import Brokers, Leaders, Offers, TopicIds
from kwire.analyzer.analysis.connections import EndedConnections
from kwire.analyzer.analysis.record_sets import OpenedRecords
from kwire.analyzer.analysis.summary import Summary
from kwire.analyzer.bulk.engine import Engine, Settings, Share
from kwire.analyzer.bulk.rows import Window
from kwire.analyzer.records.batches import BatchLimits
from kwire.captures.files import capture_points
from tests.shared import SAMPLES, capture_files

SAMPLE = "group-kip848-librdkafka-4.3"
OF_RECORDS = "txn-librdkafka-4.3"
Rows = dict[str, list[str]]


def collectors() -> tuple[Collector, ...]:
    topics = TopicIds()
    return topics, Leaders(topics), Brokers(), Offers(), EndedConnections(), Summary()


def windows(share: Share | None = None, name: str = SAMPLE, records: bool = False) -> Iterator[Window]:
    [point] = capture_points([str(capture_files(SAMPLES / name)[0])], False)
    settings = Settings(threads=1, window_bytes=10_000, keep_records=records)
    for window in Engine(point, settings, share=share).windows():
        yield window
        window.names.release()


def gather(gathered: Rows, some: tuple[Collector, ...]) -> None:
    for collector in some:
        for name, table in collector.tables():
            assert isinstance(table, pa.Table)
            gathered.setdefault(name, []).extend(map(repr, table.to_pylist()))


def rows(some: tuple[Collector, ...]) -> Rows:
    gathered: Rows = {}
    gather(gathered, some)
    return gathered


def summary(some: tuple[Collector, ...]) -> dict[str, object]:
    last = some[-1]
    assert isinstance(last, Summary)
    return last.as_dict()


def whole() -> tuple[Collector, ...]:
    known = collectors()
    for window in windows():
        for collector in known:
            collector.take(window)
    return known


def test_what_is_known_can_be_stored_between_windows() -> None:
    known, gathered, count = collectors(), Rows(), 0
    for window in windows():
        for collector in known:
            collector.take(window)
        gather(gathered, known)
        known = pickle.loads(pickle.dumps(known))
        count += 1
    assert count > 3
    once = whole()
    assert summary(known) == summary(once)
    assert gathered == rows(once)
    assert all(gathered[name] for name in ("topic_ids", "leaders", "brokers", "api_versions", "connections"))


def test_shares_joined_know_what_one_reader_knows() -> None:
    shares = []
    for number in range(3):
        known = collectors()
        for window in windows(Share(number, 3)):
            for collector in known:
                collector.take(window)
        shares.append(known)
    joined, *others = shares
    for other in others:
        for collector, other_collector in zip(joined, other, strict=True):
            collector.join(other_collector)
    once = whole()
    assert summary(joined) == summary(once)
    first, ended = joined[0], joined[4]
    assert isinstance(first, TopicIds)
    assert isinstance(ended, EndedConnections)
    assert isinstance(once[0], TopicIds)
    assert isinstance(once[4], EndedConnections)
    assert first.names == once[0].names
    assert ended.coverage == once[4].coverage
    expected, actual = rows(once), rows(joined)
    for name in ("connections", "api_versions"):
        assert Counter(actual[name]) == Counter(expected[name])
    for name in ("topic_ids", "brokers"):
        assert set(actual[name]) == set(expected[name])


def records(share: Share | None = None) -> tuple[OpenedRecords, Rows]:
    """A collector that has taken all, and the rows that it gave; those of its last row group still wait."""
    opened, gathered = OpenedRecords("meta", 1, BatchLimits(), str), Rows()
    for window in windows(share, OF_RECORDS, records=True):
        opened.take(window)
        gather(gathered, (opened,))
    return opened, gathered


def test_opened_records_of_shares_joined_are_those_of_one_reader() -> None:
    once, expected = records()
    joined, actual = records(Share(0, 2))
    other, given = records(Share(1, 2))
    joined.join(other)
    for opened, into in ((once, expected), (joined, actual)):
        for name, table in opened.flush():
            into.setdefault(name, []).extend(map(repr, table.to_pylist()))
    assert joined.counts.as_dict() == once.counts.as_dict() != {}
    for name in ("batches", "records"):
        assert expected[name]
        assert Counter([*actual[name], *given.get(name, ())]) == Counter(expected[name])
    assert not list(other.flush())


def test_record_sets_that_wait_are_their_own_readers() -> None:
    first, second = (OpenedRecords("batches", 1, BatchLimits(), str) for _ in range(2))
    for window in windows(None, OF_RECORDS, records=True):
        second.take(window)
    with pytest.raises(ValueError, match="finish"):
        first.join(second)
