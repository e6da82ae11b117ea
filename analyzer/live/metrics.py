"""Count all that a watch sees, for Prometheus: exchanges, errors, latencies, bytes, lag, by a bounded set of labels.

In: windows, measured. Out: `Counted`. Rules: counters grow from the beginning of the watch and are those of the tables
that `kwire analyze` writes: each exchange counts once, its latency is `latency_us`; no Python object an exchange; of
each label so many values are told apart (`LIMITS`), and whatever comes later counts as `other`, so memory does not grow
with the number of clients or topics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from kwire.analyzer.analysis.combinations import few_combinations, last_of_each
from kwire.analyzer.bulk import state as s
from kwire.analyzer.bulk.exchange_tables import STATUSES, latency_us
from kwire.analyzer.bulk.rows import Exchanges, Names, end_point
from kwire.analyzer.common.escapes import printable
from kwire.analyzer.frame import arrow
from kwire.analyzer.live.reader_lag import ReaderLag
from kwire.analyzer.protocol import api_keys as apis
from kwire.captures.kernels import NULL

LIMITS: Final = {"client_id": 500, "broker": 200, "topic": 1000}
"""Values of each label that are told apart: a dashboard shows tens, and each costs a time series for every API."""
MOST_SERIES: Final = 5000
"""Combinations of API, broker and client that are told apart: each has two histograms."""
OTHER: Final = "other"
UNKNOWN: Final = "unknown"
"""The API of an exchange whose request was not captured, and the topic whose name no message told."""
LONGEST_LABEL: Final = 200
"""Characters of a label's value: a client id may have 32,767."""

BOUNDS_US: Final = (
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000, 30_000_000, 60_000_000,
)  # fmt: skip
"""Upper bounds of the classic histogram's buckets."""
SCHEMA: Final = 3
"""Of the native histogram: 2**3 buckets to a power of two, so a quantile is right within 5 %."""
FIRST_NATIVE: Final = -160
"""Index of the first native bucket that is kept: its upper bound is 2**-20 s, below a microsecond."""
_NATIVE: Final = 160 + 200

Labels = tuple[str, str, str]
"""API, broker, client id."""


@dataclass(slots=True)
class Series:
    """Exchanges of one API of one client at one broker. statuses, failures: how many by status, and by error code."""

    statuses: dict[str, int] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)
    request_bytes: int = 0
    response_bytes: int = 0
    latency_us: int = 0
    classic: np.ndarray = field(default_factory=lambda: np.zeros(len(BOUNDS_US) + 1, np.int64))
    zero: int = 0
    native: np.ndarray = field(default_factory=lambda: np.zeros(_NATIVE, np.int64))

    def copy(self) -> Series:
        """Return a copy that stays as it is."""
        return replace(
            self,
            statuses=dict(self.statuses),
            failures=dict(self.failures),
            classic=self.classic.copy(),
            native=self.native.copy(),
        )


@dataclass(slots=True)
class TopicSeries:
    """Records of a topic that one client wrote, or read: bytes of their batches, and how many where that is known."""

    record_bytes: int = 0
    records: int = 0


@dataclass(slots=True)
class Counted:
    """All that was counted. beyond: exchanges, or topic-partitions, whose label became `other`."""

    series: dict[Labels, Series] = field(default_factory=dict)
    topics: dict[tuple[str, str, str], TopicSeries] = field(default_factory=dict)
    findings: dict[tuple[str, str], int] = field(default_factory=dict)
    values: dict[str, dict[str, str]] = field(default_factory=lambda: {name: {} for name in LIMITS})
    beyond: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*LIMITS, "series"), 0))
    time_ns: int = 0

    def copy(self) -> Counted:
        """Return a copy that stays as it is."""
        return replace(
            self,
            series={labels: series.copy() for labels, series in self.series.items()},
            topics={labels: replace(series) for labels, series in self.topics.items()},
            findings=dict(self.findings),
            values={label: dict(known) for label, known in self.values.items()},
            beyond=dict(self.beyond),
        )


def native_bucket(micros: np.ndarray) -> np.ndarray:
    """int64: the buckets of latencies above zero: of index i, those up to 2**(i / 2**SCHEMA) seconds."""
    index = np.ceil(np.log2(micros / 1e6) * (1 << SCHEMA)).astype(np.int64)
    clipped: np.ndarray = np.clip(index, FIRST_NATIVE, FIRST_NATIVE + _NATIVE - 1)
    return clipped


class Metrics:
    """Takes windows; `counted` is how it stands. tell: who hears, once for each label, that its budget is used up."""

    def __init__(self, topic_name: Callable[[str], str], tell: Callable[[str], None] = lambda _: None) -> None:
        self.counted = Counted()
        self._topic_name = topic_name
        self._tell = tell
        self.lag = ReaderLag()

    def finding(self, code: str, severity: str) -> None:
        """Count a finding."""
        self.counted.findings[code, severity] = self.counted.findings.get((code, severity), 0) + 1

    def take(self, rows: Exchanges) -> None:
        """Count the exchanges of a window."""
        if not len(rows):
            return
        for name in ("request_end", "response_end"):
            self.counted.time_ns = max(self.counted.time_ns, int(rows.column(name).max()))
        client = self._labels("client_id", rows.column("client_id"), self._strings(rows.names))
        broker = self._labels("broker", rows.connection, lambda number: self._broker(rows.names, number))
        self._count_exchanges(rows, client, broker)
        self._count_topics(rows, client)

    @staticmethod
    def _strings(names: Names) -> Callable[[int], str]:
        return lambda number: names.strings[number] if number != NULL else ""

    @staticmethod
    def _broker(names: Names, connection: int) -> str:
        _, _, address, port = names.ends[connection]
        return end_point(names.strings[address], port)

    def _labels(self, label: str, numbers: np.ndarray, text: Callable[[int], str]) -> tuple[np.ndarray, list[str]]:
        """Values of a label of each row, as numbers into a list."""
        used, where, counts = np.unique(numbers, return_inverse=True, return_counts=True)
        values: dict[str, int] = {}
        local = np.empty(len(used), np.int64)
        for i, (number, count) in enumerate(zip(used.tolist(), counts.tolist())):
            local[i] = values.setdefault(self._value(label, text(number), count), len(values))
        return local[where.reshape(-1)], list(values)

    def _value(self, label: str, text: str, count: int) -> str:
        """Return the value of a label that stands for a text, which `count` rows have."""
        known = self.counted.values[label]
        value = known.get(text)
        if value is not None:
            return value
        if len(known) < LIMITS[label]:
            shown = printable(text)
            known[text] = shown if len(shown) <= LONGEST_LABEL else shown[: LONGEST_LABEL - 3] + "..."
            return known[text]
        if not self.counted.beyond[label]:
            self._tell(f"more than {LIMITS[label]:,} values of {label}: those that come now count as {OTHER!r}")
        self.counted.beyond[label] += count
        return OTHER

    def _count_exchanges(
        self,
        rows: Exchanges,
        client: tuple[np.ndarray, list[str]],
        broker: tuple[np.ndarray, list[str]],
    ) -> None:
        api = rows.column("api_key")
        code, statuses = rows.column("error_code"), rows.column("status")
        latency, _ = latency_us(rows.columns)
        sizes = [
            np.where(rows.column(name) == NULL, 0, rows.column(name)) for name in ("request_bytes", "response_bytes")
        ]
        kind = (np.where(api == NULL, -1, api) * len(broker[1]) + broker[0]) * len(client[1]) + client[0]
        order = np.argsort(kind, kind="stable")
        starts = np.flatnonzero(np.r_[True, kind[order][1:] != kind[order][:-1]])
        for here in np.split(order, starts[1:]):
            first = int(here[0])
            key = int(api[first])
            name = UNKNOWN if key == NULL else apis.name(key)
            series = self._series((name, broker[1][int(broker[0][first])], client[1][int(client[0][first])]), len(here))
            for status, count in zip(*np.unique(statuses[here], return_counts=True)):
                text = STATUSES[int(status)]
                series.statuses[text] = series.statuses.get(text, 0) + int(count)
            failed = code[here]
            for number, count in zip(*np.unique(failed[(failed != NULL) & (failed != 0)], return_counts=True)):
                series.failures[int(number)] = series.failures.get(int(number), 0) + int(count)
            series.request_bytes += int(sizes[0][here].sum())
            series.response_bytes += int(sizes[1][here].sum())
            took = latency[here]
            took = took[took != NULL]
            series.latency_us += int(took.sum())
            series.classic += np.bincount(np.searchsorted(BOUNDS_US, took), minlength=len(BOUNDS_US) + 1)
            series.zero += int((took == 0).sum())
            series.native += np.bincount(native_bucket(took[took > 0]) - FIRST_NATIVE, minlength=_NATIVE)

    def _series(self, labels: Labels, count: int) -> Series:
        series = self.counted.series.get(labels)
        if series is not None:
            return series
        if len(self.counted.series) >= MOST_SERIES:
            if not self.counted.beyond["series"]:
                self._tell(
                    f"more than {MOST_SERIES:,} combinations of API, broker and client: those that come now count as "
                    f"client {OTHER!r}"
                )
            self.counted.beyond["series"] += count
            labels = (labels[0], labels[1], OTHER)
        return self.counted.series.setdefault(labels, Series())

    # -- topics ------------------------------------------------------------------------------------------------------
    def _count_topics(self, rows: Exchanges, client: tuple[np.ndarray, list[str]]) -> None:
        """Count records by topic, and how far readers are behind."""
        parts = rows.partitions
        owner = rows.owner
        api = rows.column("api_key")[owner] if len(owner) else owner
        wanted = np.flatnonzero(arrow.among(api, (apis.PRODUCE, apis.FETCH, apis.SHARE_FETCH)))
        if not len(wanted):
            return
        parts, owner, api = parts[:, wanted], owner[wanted], api[wanted]
        first, topic = few_combinations([parts[s.P_TOPIC], parts[s.P_TOPIC_ID]])
        names = [self._topic(rows.names, *pair) for pair in parts[[s.P_TOPIC, s.P_TOPIC_ID]][:, first].T.tolist()]
        counts = np.bincount(topic, minlength=len(names)).tolist()
        values = [self._value("topic", name, count) for name, count in zip(names, counts)]
        reader, produced = client[0][owner], (api == apis.PRODUCE).astype(np.int64)
        first, kind = few_combinations([topic, reader, produced])
        sums = [
            np.bincount(kind, np.where(parts[row] == NULL, 0, parts[row]), len(first)).tolist()
            for row in (s.P_RECORD_BYTES, s.P_RECORDS)
        ]
        for row, record_bytes, records in zip(first.tolist(), *sums):
            direction = "produce" if produced[row] else "fetch"
            series = self._topic_series((values[topic[row]], client[1][reader[row]], direction))
            series.record_bytes += int(record_bytes)
            series.records += int(records)
        self._learn_positions(rows, parts, owner, api, topic, values, client)

    def _topic(self, names: Names, topic: int, topic_id: int) -> str:
        if topic != NULL:
            return names.strings[topic]
        return self._topic_name(names.strings[topic_id]) if topic_id != NULL else UNKNOWN

    def _topic_series(self, labels: tuple[str, str, str]) -> TopicSeries:
        topics = self.counted.topics
        if labels not in topics and len(topics) >= MOST_SERIES:
            self.counted.beyond["series"] += 1
            labels = (labels[0], OTHER, labels[2])
        return topics.setdefault(labels, TopicSeries())

    def _learn_positions(
        self,
        rows: Exchanges,
        parts: np.ndarray,
        owner: np.ndarray,
        api: np.ndarray,
        topic: np.ndarray,
        values: list[str],
        client: tuple[np.ndarray, list[str]],
    ) -> None:
        """Learn how far partitions reach and readers are, the last of the window for each.

        topic: int64[n], positions in `values` of the rows of `parts`."""
        times = rows.column("response_end")[owner]
        offset, mark = parts[s.P_OFFSET], parts[s.P_HIGH_WATERMARK]
        after = np.where(parts[s.P_FOLLOWING] != NULL, parts[s.P_FOLLOWING], offset)
        sound = (times != NULL) & ((parts[s.P_ERROR] == 0) | (parts[s.P_ERROR] == NULL)) & (after != NULL)
        partition, reader = parts[s.P_PARTITION], client[0][owner]
        sent = rows.column("request_time")[owner]
        written = sound & (api == apis.PRODUCE) & (parts[s.P_RECORDS] > 0) & (sent != NULL)
        for i in np.flatnonzero(written).tolist():
            if (name := values[topic[i]]) != OTHER:
                begin = int(offset[i])
                self.lag.writes(name, int(partition[i]), int(sent[i]), begin, begin + int(parts[s.P_RECORDS, i]))
        fetched = sound & (api == apis.FETCH) & (mark != NULL) & (mark >= 0)
        for i in np.flatnonzero(last_of_each(fetched, topic, partition)).tolist():
            if (name := values[topic[i]]) != OTHER:
                self.lag.reaches(name, int(partition[i]), int(times[i]), int(mark[i]))
        for i in np.flatnonzero(last_of_each(fetched, topic, reader, partition)).tolist():
            name, client_id = values[topic[i]], client[1][reader[i]]
            if OTHER not in (name, client_id):
                self.lag.reads(name, client_id, int(partition[i]), int(times[i]), int(after[i]))
